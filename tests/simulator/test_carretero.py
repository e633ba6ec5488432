"""The workloads of Carretero et al., and their packs."""

import math
import random

import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.policy.list_order import ORDERS
from iodaemon.simulator.carretero import (
    Application,
    Generator,
    io_load,
    load_list,
    node_weights,
)
from iodaemon.simulator.packed import Setting, pack_applications, parse_strategy, run_strategies

SIZES = [2**exponent for exponent in range(12)]


def application(compute_s=4.0, io_s=1.0, iterations=2, nodes=1):
    return Application(compute_s=compute_s, io_s=io_s, iterations=iterations, nodes=nodes)


WORKLOADS = st.lists(
    st.builds(
        application,
        st.integers(1, 40).map(float),
        st.integers(1, 40).map(float),
        st.integers(1, 5),
        st.integers(1, 8),
    ),
    min_size=1,
    max_size=10,
)
SETTING = Setting(partition_nodes=8, io_nodes=(1, 2, 3))

# -- workloads -------------------------------------------------------------------------------------


@given(st.floats(1.0, 2048.0))
def test_the_number_of_nodes_has_the_wanted_mean(wanted):
    weights = node_weights(wanted)

    assert all(weight >= 0.0 for weight in weights)
    assert sum(weights) == pytest.approx(1.0)
    assert sum(map(math.prod, zip(weights, SIZES, strict=True))) == pytest.approx(wanted, rel=1e-6)


def test_the_lists_of_loads_are_as_long_as_they_were_read():
    assert (12, 39) == (len(load_list("integer")), len(load_list("quarter")))
    assert {0.5, 0.75, 1.0, 10.0} <= {*load_list("integer")} <= {*load_list("quarter")}


@given(st.sampled_from(load_list("integer")), st.integers(0, 1000))
@settings(max_examples=tries(30), deadline=None)
def test_a_workload_is_within_what_the_paper_says(load, seed):
    made = Generator(sigma=0.316).workload(load, random.Random(seed))

    assert 25 <= len(made) <= 100
    for each in made:
        assert 250 <= each.iterations <= 1000
        assert 10.0 <= each.compute_s <= 100.0
        assert 0.0 < each.io_s <= each.compute_s
        assert each.nodes in SIZES


def test_the_load_of_equation_6():
    """8 x (2 x 1 + 2 x 3) / (2 x 10 + 4 x 10) = 64 / 60."""
    jobs = [application(4.0, 1.0, 2, nodes=2), application(2.0, 3.0, 2, nodes=4)]

    assert pytest.approx(64 / 60) == io_load(jobs, 8)


# -- strategies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["2/lifo", "fifo", "0/fifo", "-1/fifo", "nan/fifo", "fit/fifo"])
def test_a_strategy_that_does_not_exist_is_refused_by_name(name):
    with pytest.raises(ValueError, match=name):
        parse_strategy(name)


@given(WORKLOADS, st.sampled_from(sorted(ORDERS)))
@settings(deadline=None)
def test_what_came_out_adds_up(jobs, order):
    names = [f"first-fit/{order}", f"as-submitted/{order}", f"load/{order}", f"1/{order}"]
    for made in run_strategies(jobs, [parse_strategy(name) for name in names], SETTING):
        one, *more = (made[f"makespan_{count}_s"] for count in SETTING.io_nodes)
        assert one == pytest.approx(made["real_s"])
        assert all(makespan_s <= one for makespan_s in more)
        assert made["real_s"] >= made["ideal_s"] * (1 - 1e-12)
        assert made["stretch"] >= 1 - 1e-12
        assert made["exec_node_s"] == pytest.approx(sum(each.nodes * each.alone_s for each in jobs))
        assert made["delay_node_s"] >= -1e-9
        assert made["idle_node_s"] >= -1e-9
        spent_s = made["exec_node_s"] + made["delay_node_s"] + made["idle_node_s"]
        assert spent_s == pytest.approx(SETTING.partition_nodes * made["real_s"])


def test_first_fit_as_submitted_does_not_sort():
    jobs = [application(iterations=n, nodes=4) for n in (1, 9, 2, 8)]
    sorted_, listed = (
        pack_applications(jobs, parse_strategy(f"{packing}/fifo"), SETTING)
        for packing in ("first-fit", "as-submitted")
    )

    assert [[1, 3], [2, 0]] == [[item.id for item in pack.items] for pack in sorted_]
    assert [[0, 1], [2, 3]] == [[item.id for item in pack.items] for pack in listed]
