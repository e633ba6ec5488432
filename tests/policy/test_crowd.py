"""Many small jobs that fill a storage only together: rule ``bounded`` in virtual time."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bounded import (
    ARM,
    MAX_SUSPEND_S,
    MB,
    PARALLEL,
    assert_dwells,
    longest_standstill_s,
    readers,
    run,
    spells_s,
    suspensions,
)

from iodaemon.backend.model.scaling import waning_scaling
from iodaemon.backend.simulated import (
    Compute,
    Model,
    Profile,
    Read,
    SimulatedDisk,
    default_platform,
)
from iodaemon.core import event as ev
from iodaemon.core.congestion import Sense
from iodaemon.core.job import JobId, JobSpec, JobState
from iodaemon.core.measure import makespan_s
from iodaemon.core.platform import Device, DeviceId
from iodaemon.core.rule import Rules
from iodaemon.policy.admission import fcfs
from iodaemon.policy.crowd import CROWD_SHARE, LIGHT_SHARE, Crowding, heavy_from, is_crowd
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import bounded, none
from iodaemon.simulator.run import simulate

WIDE = default_platform(4, 16)
WIDE_ARM = msgspec.structs.replace(WIDE, devices=(Device(id=DeviceId("sim0"), rotational=True),))
WANING = SimulatedDisk(
    capacity_bytes_per_s=50e6,
    scaling=waning_scaling(8, 0.374),
    counted="waiting",
    stream_cap_bytes_per_s=26e6,
    stream_depth=2,
)
"""Carries eight streams that wait for it as well as one or better, and 64 only half as well."""


def still_s(result):
    """By job, for how long it stood still."""
    return {job.id: job.suspended_io_s for job in result.jobs if job.suspended_io_s > 0.0}


@pytest.mark.parametrize("machine", [WIDE_ARM, WIDE])
def test_25_equal_readers_on_an_overloaded_disk_take_turns_and_win(machine):
    """None of them has as much as a twentieth of the queue."""
    alone = run(none.Rule(), readers(25, 100), ARM, machine=machine)
    regulated = run(bounded.Rule(), readers(25, 100), ARM, machine=machine)

    assert {job.state for job in regulated.jobs} == {JobState.COMPLETED}
    assert len(still_s(regulated)) >= 24
    assert makespan_s(alone.jobs) > 3 * makespan_s(regulated.jobs)


def test_25_equal_readers_are_taken_below_the_operators_cap():
    """Each moves 40 MB/s, a twenty-fifth of all; the cap lets twelve of them run."""
    reader = Profile(steps=(Read(1200 * MB, cap_bytes_per_s=40e6),))
    rule = bounded.Rule(io_bound_bytes_per_s=500e6)

    result = run(rule, [reader] * 25, PARALLEL, machine=WIDE)

    assert {job.state for job in result.jobs} == {JobState.COMPLETED}
    assert 25 == len(still_s(result))
    assert max(one.device_bytes_per_s for one in result.slices[5:]) <= 1.05 * 500e6


def test_a_crowd_on_a_device_that_loses_nothing_by_it_is_left_alone():
    result = run(bounded.Rule(), readers(60, 500), PARALLEL, machine=WIDE)

    assert suspensions(result) == []


@pytest.mark.parametrize("bound", [None, 60e6])
def test_truly_light_jobs_beside_heavy_ones_are_spared_however_many_they_are(bound):
    light = [Profile(steps=(Compute(4.0), Read(MB // 8)) * 10) for _ in range(40)]
    rule = bounded.Rule(io_bound_bytes_per_s=bound)

    result = run(rule, readers(6, 600) + light, ARM, machine=WIDE_ARM)

    assert len(still_s(result)) >= 5
    assert set(still_s(result)) <= {1, 2, 3, 4, 5, 6}


def test_of_jobs_that_mostly_compute_as_many_come_back_as_keep_the_disk_busy():
    """One or two at a time would take twice as long."""
    jobs = readers(64, 88, compute_s=0.2, parts=40)
    alone = run_at_once(none.Rule(), jobs)
    regulated = run_at_once(bounded.Rule(), jobs)

    assert suspensions(regulated)
    assert makespan_s(regulated.jobs) < 1.1 * makespan_s(alone.jobs)
    assert mean_end_s(regulated) < 0.8 * mean_end_s(alone)


def test_those_who_read_and_then_compute_come_back_ever_more_at_a_time():
    """One at a time would take as many seconds as there are jobs."""
    jobs = [Profile(steps=(Read(12 * MB), Compute(16.0))) for _ in range(64)]

    back = returns_by_slice(run_at_once(bounded.Rule(), jobs))

    assert {1, 2, 4} <= set(back.values())
    assert len(back) < 0.7 * sum(back.values())


def test_in_no_slice_more_come_back_than_twice_as_many_as_in_the_one_before_and_who_replaces():
    """Jobs end all the time, and each that ended may be replaced by one."""
    jobs = [
        Profile(steps=(Read(12 * MB), Compute(3.0 + number % 40 * 0.13))) for number in range(64)
    ]
    result = run_at_once(bounded.Rule(), jobs)
    back = returns_by_slice(result)
    ended = Counter(int(job.ended_s) for job in result.jobs)

    assert max(back.values()) > 2
    for at_s, count in back.items():
        assert count <= max(1, 2 * back[at_s - 1]) + ended[at_s]


def test_those_whom_a_person_held_meanwhile_do_not_all_come_back_at_once():
    """While nobody may come back nobody does, and what would be too many is not found out."""
    jobs = [Profile(steps=(Read(12 * MB), Compute(60.0))) for _ in range(64)]
    crowd = range(2, 65)
    asked = [ev.SuspendRequested(at_s=11.5, job_id=JobId(n), by="ann") for n in crowd]
    asked += [ev.ResumeRequested(at_s=25.5, job_id=JobId(n), by="ann") for n in crowd]
    back = returns_by_slice(run_at_once(bounded.Rule(), jobs, asked))

    assert max(back[at_s] for at_s in (26, 27)) <= 2


def test_who_comes_back_because_too_many_are_held_is_told_so():
    jobs = [Profile(steps=(Read(12 * MB), Compute(16.0))) for _ in range(64)]
    steps = run_at_once(bounded.Rule(), jobs).transitions

    texts = [step.reason.text for step in steps if step.before is JobState.SUSPENDED_IO]
    assert sum(text.startswith("too many are held, less is moved than before: ") for text in texts)


def returns_by_slice(result):
    """How many came back, by the whole second."""
    steps = (step for step in result.transitions if step.before is JobState.SUSPENDED_IO)
    return Counter(int(step.at_s) for step in steps if step.after is JobState.RUNNING)


WAITS = Sense(wait=1.7, last_wait=2.1)
"""Calm in the mean, and not any more."""


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_twice_as_many_may_come_back_as_did_until_enough_is_moved(can_come):
    crowding = Crowding(most_bytes_per_s=100e6)
    expected = 1
    for can in can_come:
        crowding = crowding.after(Sense(), 10e6, is_held=True, is_calm=True)
        assert crowding.returning == expected
        for _ in range(2 * crowding.returning if can else 0):  # those who fit come back as well
            crowding = crowding.with_return()
        expected = 2 * expected if can else 1

    assert crowding.after(Sense(), 90e6, is_held=True, is_calm=True).returning == 0
    assert crowding.after(Sense(), 10e6, is_held=True, is_calm=False).returning == 0
    assert crowding.after(Sense(), 10e6, is_held=False, is_calm=True).returning == 0
    assert crowding.after(WAITS, 10e6, is_held=True, is_calm=True).returning == 0


def test_a_burst_of_a_crowd_passes_by_itself():
    """64 jobs begin with reading at the same time; later they are in nobody's way."""
    jobs = [
        Profile(steps=(Read(600_000), Compute(0.6 + number / 160.0)) * 20) for number in range(64)
    ]

    result = run_at_once(bounded.Rule(), jobs)

    assert [step for step in suspensions(result) if step.at_s <= 20.0] == []  # then most are over


def run_at_once(rule, profiles, events=()):
    """All submitted at the same time, on the disk that many streams slow down."""
    rules = Rules(name="test", admission=fcfs.Rule(), placement=least_io.Rule(), regulation=rule)
    jobs = [(0.0, JobSpec(command=("x",)), profile) for profile in profiles]
    return simulate(WIDE_ARM, rules, jobs, model=Model(disk=WANING), events=events)


def mean_end_s(result):
    return sum(job.ended_s for job in result.jobs) / len(result.jobs)


PARTS = st.lists(st.floats(0.0, 1e6), max_size=80)


@given(parts=PARTS, nobodys=st.floats(0.0, 1e6))
def test_who_is_spared_for_its_size_never_puts_more_than_half_of_a_load_there(parts, nobodys):
    shares = dict(enumerate(parts))
    load = sum(parts) + nobodys
    mark = heavy_from(shares, load)

    assert mark <= LIGHT_SHARE * load * (1.0 + 1e-9)
    assert sum(part for part in parts if part < mark) <= CROWD_SHARE * load * (1.0 + 1e-9)
    if not is_crowd(shares, load):
        assert mark == LIGHT_SHARE * load


@given(count=st.integers(1, 500), part=st.floats(1e-3, 1e9))
def test_of_equal_jobs_every_one_matters(count, part):
    shares = dict.fromkeys(range(count), part)

    assert heavy_from(shares, sum(shares.values())) <= part


CROWDS = st.lists(
    st.builds(
        lambda size, pause, parts: Profile(
            steps=(((Compute(pause),) if pause else ()) + (Read(size * MB // 10),)) * parts
        ),
        st.integers(1, 40),
        st.sampled_from([0.0, 0.0, 0.3, 2.0]),
        st.integers(1, 6),
    ),
    min_size=21,
    max_size=40,
)


@settings(max_examples=10, deadline=None)
@given(
    profiles=CROWDS,
    bound=st.sampled_from([None, 5e6, 40e6]),
    disk=st.sampled_from([ARM, WANING]),
    machine=st.sampled_from([WIDE, WIDE_ARM]),
)
def test_of_a_crowd_too_one_runs_always_and_none_stands_still_for_too_long(
    profiles, bound, disk, machine
):
    rule = bounded.Rule(io_bound_bytes_per_s=bound, turn_s=6.0)

    result = run(rule, profiles, disk, machine=machine, max_suspend_s=MAX_SUSPEND_S)

    assert {job.state for job in result.jobs} == {JobState.COMPLETED}
    assert 0.0 == longest_standstill_s(result)
    assert all(spell <= MAX_SUSPEND_S + 1e-6 for spell in spells_s(result))
    assert_dwells(result, rule)
