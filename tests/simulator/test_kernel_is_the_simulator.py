"""Two engines, one truth: the fast loops end every job when the simulated daemon does."""

import math

import pytest
from builders import FirstFit, InOrder, platform
from exploring import tries
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from iodaemon.core.decision import AdmissionPlan
from iodaemon.core.job import JobSpec
from iodaemon.core.rule import Rules
from iodaemon.model.node import Compute, LinkSpec, Model, Profile, Transfer
from iodaemon.policy.list_order import CHANGING, ORDERS
from iodaemon.policy.packing import Item, assign, make_packs
from iodaemon.policy.regulation.none import Rule as NoRegulation
from iodaemon.simulator.carretero import Application
from iodaemon.simulator.kernel.run import Batch, finish_times, shared_finish_times
from iodaemon.simulator.kernel.unpacked import (
    Backfilled,
    IoNode,
    Life,
    WithoutBarrier,
    run_unpacked,
)
from iodaemon.simulator.run import simulate

LENGTHS = st.integers(1, 40).map(lambda quarters: quarters / 4)
"""Without rounding, so that both engines reckon with the very same keys; many ties."""
JOBS = st.tuples(st.one_of(st.just(0.0), LENGTHS), LENGTHS, st.integers(1, 8))
PACKS = st.lists(st.lists(JOBS, min_size=1, max_size=5), min_size=1, max_size=3)


def simulated_ends(packs, name, *, io_first):
    """Every pack on a partition with an exclusive link of its own, all at once."""
    link = LinkSpec(
        id="io_node",
        capacity_bytes_per_s=1.0,
        sharing="exclusive",
        order=ORDERS[name],
        order_is_fixed=name not in CHANGING,
        per_partition=True,
    )
    return ends_on(link, packs, io_first=io_first)


def ends_on(link, packs, *, io_first=False):
    rules = Rules(
        name="packs", admission=InOrder(), placement=FirstFit(), regulation=NoRegulation()
    )
    jobs = [
        (0.0, JobSpec(command=("simulated",)), profile(*job, io_first=io_first))
        for pack in packs
        for job in pack
    ]
    ended = simulate(
        platform(*[len(pack) for pack in packs]),
        rules,
        jobs,
        model=Model(links=(link,), disk=None),
        sampling=False,
    )
    return [job.ended_s for job in ended.jobs]


def profile(compute_s, io_s, iterations, *, io_first):
    steps = (Compute(compute_s), Transfer(io_s, "io_node"))
    return Profile(steps=steps[::-1] if io_first else steps, repeat=iterations)


def kernel_ends(packs, name, *, io_first, engine):
    batch = Batch()
    for pack in packs:
        for job in pack:
            batch.add_job(*job)
        batch.end_pack()
    return finish_times(batch, ORDERS[name], io_first=io_first, engine=engine)


@pytest.mark.parametrize("name", ORDERS)
@settings(max_examples=tries(60), deadline=None)
@given(packs=PACKS, io_first=st.booleans())
def test_the_kernel_ends_every_job_when_the_simulator_does(name, packs, io_first):
    ends = simulated_ends(packs, name, io_first=io_first)

    assert ends == kernel_ends(packs, name, io_first=io_first, engine="plain")
    assert ends == kernel_ends(packs, name, io_first=io_first, engine="compiled")


TABLE_1 = [
    (32.0, 10.0, 250),
    (16.0, 5.0, 500),
    (8.0, 2.5, 1000),
    (8.0, 2.5, 1000),
    (16.0, 5.0, 500),
]


@pytest.mark.parametrize("name", ORDERS)
def test_table_1_of_carretero_is_the_same_in_both_engines(name):
    assert simulated_ends([TABLE_1], name, io_first=False) == kernel_ends(
        [TABLE_1], name, io_first=False, engine="auto"
    )


def lossy(loss):
    """What ``loss`` means to the kernel, as the scaling of a link."""
    return lambda streams: 1.0 if streams == 1 else 1.0 - loss


@settings(max_examples=tries(100), deadline=None)
@given(packs=PACKS, loss=st.sampled_from([0.0, 0.16, 0.5]))
def test_sharing_is_the_fair_link_of_the_simulator(packs, loss):
    """Equal but for rounding: the two count the service since different instants."""
    link = LinkSpec(id="io_node", capacity_bytes_per_s=1.0, per_partition=True, scaling=lossy(loss))
    batch = Batch()
    for pack in packs:
        for job in pack:
            batch.add_job(*job)
        batch.end_pack()

    assert ends_on(link, packs) == pytest.approx(shared_finish_times(batch, loss=loss), rel=1e-9)


# -- jobs without packs ----------------------------------------------------------------------------

NODES = 8


def application(io_quarters, exponent, iterations, nodes):
    """With V / T a power of two, so that loads add up without rounding in any order."""
    io_s = io_quarters / 4
    return Application(
        compute_s=io_s * (2**exponent - 1), io_s=io_s, iterations=iterations, nodes=nodes
    )


WORKLOADS = st.lists(
    st.builds(
        application,
        st.integers(1, 200),
        st.integers(1, 3),
        st.integers(1, 4),
        st.sampled_from([1, 1, 2, 3, 5, NODES]),
    ),
    min_size=4,
    max_size=12,
)
BOUNDS = st.sampled_from([0.2, 0.5, 1.0, 1.5, math.inf])


class NoBarrier:
    """The rule of ``WithoutBarrier``, said once more in the terms of the daemon's admission."""

    def __init__(self, jobs, bound):
        self._jobs = jobs
        self._bound = bound

    def decide(self, view, memory):
        draft = view.draft()
        held = loads(view, self._jobs)
        starts = []
        for job in sorted(view.pending, key=lambda job: (-self._jobs[job.id - 1].alone_s, job.id)):
            load = self._jobs[job.id - 1].volume / self._jobs[job.id - 1].alone_s
            rooms = [
                (sum(of), -draft.slots_free(number), number)
                for number, of in held.items()
                if draft.slots_free(number) >= job.spec.cpus
                and (not of or sum(of) + load <= self._bound)
            ]
            if rooms:
                starts.append(draft.start(job, min(rooms)[-1]))
                held[min(rooms)[-1]].append(load)
        return AdmissionPlan(starts=tuple(starts)), memory


class Asking:
    """Asks an admission of the kernel at every step of the daemon's controller."""

    def __init__(self, jobs, admission):
        self._jobs = jobs
        self._admission = admission

    def decide(self, view, memory):
        draft = view.draft()
        nodes = [
            IoNode(free_nodes=view.slots_free(number), load=sum(of), running=len(of))
            for number, of in loads(view, self._jobs).items()
        ]
        pending = {job.id: job for job in view.pending}
        starts = []
        for number, place in self._admission.admit(view.now_s, nodes):
            nodes[place].take(self._jobs[number])
            starts.append(draft.start(pending[number + 1], place))
        return AdmissionPlan(starts=tuple(starts)), memory


def loads(view, jobs):
    """V / T of each job that runs, by partition."""
    held = {partition.id: [] for partition in view.platform.partitions}
    for job in view.live:
        held[job.partition].append(jobs[job.id - 1].volume / jobs[job.id - 1].alone_s)
    return held


def simulated_lives(jobs, admission, io_nodes):
    """Where two end at once the kernel asks after each, the daemon after both: not compared."""
    link = LinkSpec(id="io_node", capacity_bytes_per_s=1.0, sharing="exclusive", per_partition=True)
    ended = simulate(
        platform(*[NODES] * io_nodes),
        Rules(name="mine", admission=admission, placement=FirstFit(), regulation=NoRegulation()),
        [
            (
                0.0,
                JobSpec(command=("simulated",), cpus=job.nodes),
                profile(job.compute_s, job.io_s, job.iterations, io_first=False),
            )
            for job in jobs
        ],
        model=Model(links=(link,), disk=None),
        sampling=False,
    )
    assume(len({job.ended_s for job in ended.jobs}) == len(jobs))
    return [Life(job.started_s, job.ended_s) for job in ended.jobs]


def kernel_lives(jobs, admission, io_nodes):
    return run_unpacked(jobs, admission, partition_nodes=NODES, io_nodes=io_nodes)


@settings(max_examples=tries(200), deadline=None)
@given(WORKLOADS, BOUNDS, st.integers(1, 3))
def test_without_a_barrier_jobs_start_and_end_as_under_such_an_admission_rule(
    jobs, bound, io_nodes
):
    lives = simulated_lives(jobs, NoBarrier(jobs, bound), io_nodes)

    assert lives == kernel_lives(jobs, WithoutBarrier(jobs, bound), io_nodes)


@settings(max_examples=tries(200), deadline=None)
@given(WORKLOADS, BOUNDS, st.integers(1, 3))
def test_with_small_jobs_beside_packs_jobs_start_and_end_as_in_the_simulator(jobs, bound, io_nodes):
    items = [
        Item(id=number, slots=job.nodes, alone_s=job.alone_s, volume_bytes=job.volume)
        for number, job in enumerate(jobs)
    ]
    packs = make_packs(items, slots=NODES, stretch_bound=bound, bandwidth_bytes_per_s=1.0)
    places = assign([pack.alone_s for pack in packs], io_nodes)
    numbers = [[item.id for item in pack.items] for pack in packs]
    asking = Asking(jobs, Backfilled(jobs, bound, numbers, places))
    lives = simulated_lives(jobs, asking, io_nodes)

    assert lives == kernel_lives(jobs, Backfilled(jobs, bound, numbers, places), io_nodes)
