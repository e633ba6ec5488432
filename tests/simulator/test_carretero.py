"""The workloads of Carretero et al., and their packs."""

import math
import random
import tomllib
from pathlib import Path

import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from published import targets

from iodaemon.errors import ConfigError
from iodaemon.policy.list_order import ORDERS
from iodaemon.simulator.carretero import (
    Application,
    Generator,
    io_load,
    load_list,
    node_weights,
)
from iodaemon.simulator.catalogue import load_experiment
from iodaemon.simulator.packed import Setting, pack_applications, parse_strategy, run_strategies
from iodaemon.simulator.study import carretero_packs, carretero_table1

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


# -- the experiments -------------------------------------------------------------------------------

EXPERIMENTS = Path(__file__).parents[2] / "sim/experiments"
TABLE_1 = tuple(
    Application(compute_s=w, io_s=v, iterations=n)
    for w, v, n in [
        (32.0, 10.0, 250),
        (16.0, 5.0, 500),
        (8.0, 2.5, 1000),
        (8.0, 2.5, 1000),
        (16.0, 5.0, 500),
    ]
)


def run(study, *seeds):
    rows = [row for task in study.tasks(seeds) for row in study.run(task)]
    return rows, study.measure(rows), study.figures(rows)


def misses(name, values):
    return {
        id_: values[id_]
        for id_, target in targets(name).items()
        if ("low" in target or "high" in target)
        and not target.get("low", -math.inf) <= values[id_] <= target.get("high", math.inf)
    }


@pytest.mark.slow
def test_targets_c1_pass():
    """No free parameter: every band, those of the paper and our own."""
    _, values, figures = run(carretero_table1.Study(jobs=TABLE_1), 0)

    assert targets("carretero-table1").keys() == values.keys()
    assert {} == misses("carretero-table1", values)
    assert [1.833, 1.583, 1.452, 1.346] == [
        round(values[id_], 3) for id_ in ("C1a", "C1b", "C1c", "C1e")
    ]
    names = [figure.name for figure in figures]
    assert ["figure-5", "figure-6", *(f"figure-7-{name}" for name in ORDERS)] == names[:10]
    assert ["figure-8", "figure-9"] == names[10:]
    assert values["C1i"] is None


def test_steps_of_half_a_second_change_nothing_and_whole_ones_do():
    exact, half, whole = (
        run(carretero_table1.Study(jobs=TABLE_1, batches=(1.0,), step_s=step_s), 0)[1]
        for step_s in (0.0, 0.5, 1.0)
    )

    assert exact == half
    assert whole != exact


def test_every_value_has_a_target_and_every_target_a_source():
    known = targets("carretero-packs")
    _, values, _ = run(carretero_packs.Study(workloads=1, engine="compiled"), 1)

    assert known.keys() == values.keys()
    assert all(target["source"] for target in known.values())


SEEDS = tuple(tomllib.loads((EXPERIMENTS / "carretero-packs.toml").read_text())["seeds"])
PUBLISHED_BANDS = {
    id_ for id_, target in targets("carretero-packs").items() if target.get("band_from") == "paper"
}


@pytest.mark.slow
def test_of_all_bands_on_the_mean_of_five_seeds_two_are_missed():
    """More is taken off delay than printed; the stretch with longest remaining is larger."""
    rows, values, figures = run(carretero_packs.Study(), *SEEDS)

    assert 5 * 12 * 10 * 4 == len(rows)
    assert ["C2i", "C2j-stretch"] == list(misses("carretero-packs", values))
    assert [f"figure-{number}" for number in range(10, 16)] == [figure.name for figure in figures]


@pytest.mark.parametrize(
    "seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[1:])]
)
def test_what_the_paper_claims_holds_on_every_seed(seed):
    _, values, _ = run(carretero_packs.Study(), seed)
    missed = misses("carretero-packs", values).keys()

    assert {"C2a-least", "C2b-most", "C2c-most", "C2d", "C2f", "C2g", "C2i-idle"} == PUBLISHED_BANDS
    assert set() == missed & PUBLISHED_BANDS


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("carretero-packs", "partition_nodes = 2048", "partition_nodes = 512", "may need 2048"),
        ("carretero-packs", '"1/fifo"', '"1/fifi"', "policies: .*unknown order 'fifi'.*'fifo'"),
        ("carretero-packs", 'loads = "integer"', 'loads = "half"', "loads: 'half' is none of"),
        ("carretero-table1", '"lowest_id"', '"lowest_ip"', "policies: unknown order 'lowest_ip'"),
    ],
)
def test_a_wrong_parameter_in_a_file_is_refused_with_file_and_key(tmp_path, name, old, new, words):
    path = tmp_path / "mine.toml"
    path.write_text((EXPERIMENTS / f"{name}.toml").read_text().replace(old, new, 1))

    with pytest.raises(ConfigError, match=rf"mine.toml.*{words}"):
        load_experiment(str(path), search=())
