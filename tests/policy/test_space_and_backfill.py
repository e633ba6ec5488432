"""A head that waits for space of a tier: when it is promised to start, and who may overtake it."""

import msgspec
import pytest
from builders import platform
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.job import JobSpec, JobState, ScratchRequest, TierName
from iodaemon.core.rule import Rules
from iodaemon.core.storage import Disk, Storage, StorageNode, Tier
from iodaemon.model.profile import Compute, Profile
from iodaemon.registry import find_rule
from iodaemon.simulator.run import simulate

SLOTS = 4


def rule(kind, name, **fields):
    return find_rule(kind, name)(**fields)


RULES = Rules(
    name="easy",
    admission=rule("admission", "easy"),
    placement=rule("placement", "least_io"),
    regulation=rule("regulation", "none"),
)


def tier(size):
    disk = Disk(id="a", capacity_bytes=size, read_bytes_per_s=1.0, write_bytes_per_s=1.0)
    return Tier(
        name=TierName("fast"),
        storage=Storage(nodes=(StorageNode(id="fast", disks=(disk,)),)),
        bandwidth_bytes_per_s=1.0,
        rule=rule("allocation", "balanced"),
    )


def job(submit_s, run_s, cpus=1, size=0, *, walltime=True, fallback="wait"):
    scratch = ScratchRequest(size_bytes=size, fallback=fallback) if size else None
    spec = JobSpec(
        command=("x",), cpus=cpus, walltime_s=float(run_s) if walltime else None, scratch=scratch
    )
    return float(submit_s), spec, Profile(steps=(Compute(seconds=float(run_s)),))


def run(*jobs, size=10, watch=None):
    """When each job started, by its place among the submitted."""
    done = simulate(platform(SLOTS), RULES, jobs, tiers=[tier(size)], sampling=False, on_step=watch)
    return {each.id: each.started_s for each in done.jobs}, done


HOLDS = job(0, 100, size=6)
CASES = {
    # who comes; when some start; after when others do; what is promised
    "the end of those who hold the space": (
        [HOLDS, job(0, 300, size=3), job(1, 10, size=5)],
        {3: 100.0},
        {},
        {3: 100.0},
    ),
    "who asks for space beside it ends in time": (
        [HOLDS, job(1, 10, size=5), job(2, 200, size=1), job(3, 10, size=1), job(4, 200)],
        {2: 100.0, 4: 3.0, 5: 4.0},
        {3: 100.0},
        {},
    ),
    "the later of slots and space": (
        [HOLDS, job(0, 50, cpus=3), job(1, 10, cpus=3, size=5)],
        {3: 100.0},
        {},
        {3: 100.0},
    ),
    "who would take its slots beyond the promise": (
        [HOLDS, job(1, 10, cpus=3, size=5), job(2, 50, cpus=3), job(3, 200, cpus=3)],
        {2: 100.0, 3: 2.0},
        {4: 110.0},
        {},
    ),
    "where nobody can tell the slots are kept": (
        [job(0, 100, size=6, walltime=False), job(1, 10, cpus=3, size=5), job(2, 5)],
        {2: 100.0},
        {3: 100.0},
        {},
    ),
}


@pytest.mark.parametrize(("jobs", "at_s", "after_s", "promises"), CASES.values(), ids=CASES)
def test_the_head_is_promised_space_and_slots_and_not_overtaken(jobs, at_s, after_s, promises):
    promised = {}
    starts, _ = run(*jobs, watch=lambda state, plan: promised.update(state.reservations))

    assert at_s == {i: starts[i] for i in at_s}
    assert promises.items() <= promised.items()
    assert all(starts[i] >= least_s for i, least_s in after_s.items())


JOBS = st.lists(
    st.builds(
        job,
        st.integers(0, 50),
        st.integers(1, 60),
        st.integers(1, SLOTS),
        st.integers(0, 10),
        fallback=st.sampled_from(["wait", "slow"]),
    ),
    min_size=1,
    max_size=12,
)


@given(JOBS)
def test_every_promise_is_kept_and_everybody_ends(jobs):
    promised = {}

    def watch(state, plan):
        state.check()
        for job_id, at_s in state.reservations.items():
            assert at_s <= promised.get(job_id, at_s) + 1e-6, "a promise is never put off"
            promised[job_id] = at_s

    starts, done = run(*jobs, watch=watch)

    assert {JobState.COMPLETED} == {each.state for each in done.jobs}
    assert all(each.shares == () for each in done.jobs)
    for job_id, at_s in promised.items():
        assert starts[job_id] <= at_s + 1e-6
    assert msgspec.json.encode(done.jobs)
