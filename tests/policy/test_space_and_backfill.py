"""A head that waits for space of a tier: when it is promised to start, and who may overtake it."""

import msgspec
from builders import platform
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.job import DiskId, JobSpec, JobState, ScratchRequest, TierName
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
    disk = Disk(
        id=DiskId("a"), capacity_bytes=size, read_bytes_per_s=1.0, write_bytes_per_s=1.0, kind="ssd"
    )
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


def test_the_head_is_promised_the_end_of_those_who_hold_the_space_it_lacks():
    promised = {}
    starts, _ = run(
        job(0, 100, size=6),
        job(0, 300, size=3),
        job(1, 10, size=5),
        watch=lambda state, plan: promised.update(state.reservations),
    )

    assert {3: 100.0} == promised
    assert 100.0 == starts[3]


def test_who_asks_for_space_starts_beside_it_only_if_it_ends_in_time():
    starts, _ = run(
        job(0, 100, size=6),
        job(1, 10, size=5),
        job(2, 200, size=1),
        job(3, 10, size=1),
        job(4, 200),
    )

    assert (100.0, 3.0, 4.0) == (starts[2], starts[4], starts[5])
    assert starts[3] >= 100.0


def test_who_lacks_slots_and_space_is_promised_the_later_of_both():
    promised = {}
    run(
        job(0, 100, size=6),
        job(0, 50, cpus=3),
        job(1, 10, cpus=3, size=5),
        watch=lambda state, plan: promised.update(state.reservations),
    )

    assert {3: 100.0} == promised


def test_who_would_take_its_slots_beyond_the_promise_does_not_overtake():
    starts, _ = run(
        job(0, 100, size=6),
        job(1, 10, cpus=3, size=5),
        job(2, 50, cpus=3),
        job(3, 200, cpus=3),
    )

    assert 2.0 == starts[3], "it has ended before the head gets space"
    assert 100.0 == starts[2]
    assert starts[4] >= 110.0


def test_where_nobody_can_tell_the_slots_are_kept_for_it():
    starts, _ = run(
        job(0, 100, size=6, walltime=False),
        job(1, 10, cpus=3, size=5),
        job(2, 5, cpus=1),
    )

    assert 100.0 == starts[2]
    assert starts[3] >= 100.0


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
