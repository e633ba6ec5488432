"""The fast engine: compiled and plain give the same bits, and both obey the theory."""

import subprocess
import sys

import pytest
from builders import FirstFit, InOrder, platform
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.core.job import JobSpec
from iodaemon.core.rule import Rules
from iodaemon.model.node import Compute, LinkSpec, Model, Profile, Transfer
from iodaemon.policy.list_order import CHANGING, ORDERS
from iodaemon.policy.regulation.none import Rule as NoRegulation
from iodaemon.simulator.kernel import Batch, finish_times
from iodaemon.simulator.run import simulate

NAMES = st.sampled_from(sorted(ORDERS))
ROUND = st.integers(0, 40).map(lambda quarters: quarters / 4)
"""Lengths without rounding and with many ties."""
ANY = st.floats(0.0, 50.0)


def batches(lengths, largest=6):
    job = st.tuples(lengths, lengths, st.integers(1, 12))
    packs = st.lists(st.lists(job, min_size=1, max_size=largest), min_size=1, max_size=3)
    return packs.map(lambda packs: batch(*packs))


def batch(*packs):
    made = Batch()
    for pack in packs:
        for compute_s, io_s, iterations in pack:
            made.add_job(compute_s, io_s, iterations)
        made.end_pack()
    return made


def alone_s(made):
    return [n * (w + v) for w, v, n in zip(made.compute_s, made.io_s, made.iterations, strict=True)]


@given(batches(st.one_of(ROUND, ANY)), NAMES)
def test_compiled_and_plain_loops_agree_to_the_last_bit(made, name):
    order = ORDERS[name]

    assert finish_times(made, order, engine="plain") == finish_times(made, order, engine="compiled")


@given(batches(st.one_of(ROUND, ANY)), NAMES)
def test_an_order_that_nobody_knows_is_served_as_exactly(made, name):
    """By looking at all who wait each time, which is exact for every order."""
    known = ORDERS[name]

    def unknown(*numbers):
        return known(*numbers)

    assert finish_times(made, known, engine="plain") == finish_times(made, unknown, engine="plain")


@given(st.lists(st.tuples(ANY, ANY, st.integers(1, 12)), min_size=1, max_size=8), NAMES)
def test_no_order_is_worse_than_twice_the_best(pack, name):
    """Theorem 1 of the paper, against two lower bounds of the best makespan."""
    made = batch(pack)
    best_s = max(sum(v * n for _, v, n in pack), *alone_s(made), 0.0)
    makespan_s = max(finish_times(made, ORDERS[name], engine="plain"))

    assert best_s * (1 - 1e-12) <= makespan_s <= 2 * best_s * (1 + 1e-12)


def test_two_jobs_by_hand():
    """w, v = 3, 2 and 1, 2, two iterations each, first come, first served.

    Job 1 is served in 1-3, job 0 (asked at 3) in 3-5, job 1 (asked at 4) in 5-7, job 0 (8) in 8-10.
    """
    made = batch([(3.0, 2.0, 2), (1.0, 2.0, 2)])

    assert [10.0, 7.0] == finish_times(made)


@pytest.mark.parametrize("name", sorted(ORDERS))
@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_of_equals_the_smaller_id_is_first_also_when_it_asks_again_at_once(engine, name):
    """Job 0 has nothing to do, twice: it is over before job 1 begins, unless the longest go first.

    At instant 0 nobody has been served and all stretches are 1.
    """
    made = batch([(0.0, 0.0, 2), (0.0, 0.25, 1)])
    is_last = name in {"longest_io", "longest_remaining"}

    assert [0.25 * is_last, 0.25] == finish_times(made, ORDERS[name], engine=engine)


@pytest.mark.parametrize("name", sorted(CHANGING))
def test_three_jobs_by_hand_in_the_fair_orders(name):
    """Served: job 0 from 1, 1 from 5 (0 of I/O yet, as job 2), 2 from 6, 1 from 8 (before job 0,
    which has had 4), 0 from 9, 1 from 13 (asked before job 2), 2 from 14, 0 from 16, 2 from 20.
    """
    made = batch([(1.0, 4.0, 3), (2.0, 1.0, 3), (4.0, 2.0, 3)])

    assert [20.0, 14.0, 22.0] == finish_times(made, ORDERS[name])


@pytest.mark.parametrize("engine", ["auto", "plain"])
def test_without_numba_the_plain_loop_runs(engine):
    """An interpreter in which numba cannot be found."""
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'numba' else find(name, *rest)\n"
        "from iodaemon.simulator.kernel import Batch, finish_times\n"
        "made = Batch(); made.add_job(3.0, 2.0, 2); made.end_pack()\n"
        f"print(finish_times(made, engine={engine!r}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert ("[10.0]\n", "") == (ended.stdout, ended.stderr)


# -- two engines, one truth: all jobs end when the simulated daemon does ---------------------------

LENGTHS = st.integers(1, 40).map(lambda quarters: quarters / 4)
"""Without rounding, so that both engines reckon with the very same keys; many ties."""
JOBS = st.tuples(st.one_of(st.just(0.0), LENGTHS), LENGTHS, st.integers(1, 8))
PACKS = st.lists(st.lists(JOBS, min_size=1, max_size=5), min_size=1, max_size=3)


def simulated_ends(packs, name):
    """Every pack on a partition with an exclusive link of its own, all at once."""
    link = LinkSpec(
        id="io_node",
        capacity_bytes_per_s=1.0,
        sharing="exclusive",
        order=ORDERS[name],
        order_is_fixed=name not in CHANGING,
        per_partition=True,
    )
    rules = Rules(
        name="packs", admission=InOrder(), placement=FirstFit(), regulation=NoRegulation()
    )
    jobs = [(0.0, JobSpec(command=("simulated",)), profile(*job)) for pack in packs for job in pack]
    ended = simulate(
        platform(*[len(pack) for pack in packs]),
        rules,
        jobs,
        model=Model(links=(link,), disk=None),
        sampling=False,
    )
    return [job.ended_s for job in ended.jobs]


def profile(compute_s, io_s, iterations):
    return Profile(steps=(Compute(compute_s), Transfer(io_s, "io_node")), repeat=iterations)


def kernel_ends(packs, name, engine):
    batch = Batch()
    for pack in packs:
        for job in pack:
            batch.add_job(*job)
        batch.end_pack()
    return finish_times(batch, ORDERS[name], engine=engine)


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=tries(60), deadline=None)
@given(packs=PACKS)
def test_the_kernel_ends_every_job_when_the_simulator_does(name, packs):
    ends = simulated_ends(packs, name)

    assert ends == kernel_ends(packs, name, engine="plain")
    assert ends == kernel_ends(packs, name, engine="compiled")


TABLE_1 = [
    (32.0, 10.0, 250),
    (16.0, 5.0, 500),
    (8.0, 2.5, 1000),
    (8.0, 2.5, 1000),
    (16.0, 5.0, 500),
]


@pytest.mark.parametrize("name", ORDERS)
def test_table_1_of_carretero_is_the_same_in_both_engines(name):
    assert simulated_ends([TABLE_1], name) == kernel_ends([TABLE_1], name, engine="auto")
