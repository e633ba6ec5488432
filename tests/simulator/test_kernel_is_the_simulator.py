"""Two engines, one truth: the fast loops end every job when the simulated daemon does."""

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
