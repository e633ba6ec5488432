"""Regulation with judgement, in simulation: what it wins, what it must never do."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.backend.simulated import (
    Compute,
    Model,
    Profile,
    Read,
    SimulatedDisk,
    Write,
    default_platform,
    table_scaling,
)
from iodaemon.core.job import JobSpec, JobState
from iodaemon.core.measure import makespan_s
from iodaemon.core.platform import Device, DeviceId
from iodaemon.core.rule import Rules
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import bounded, dynamic, none
from iodaemon.simulator.run import simulate

MB = 1_000_000
ARM = SimulatedDisk(
    capacity_bytes_per_s=120e6,
    scaling=table_scaling([1, 0.24, 0.2, 0.15, 0.14, 0.13, 0.125, 0.12]),
)
"""A disk with one arm: sequential readers share what seeking leaves (a spinning disk measured
without drive cache gave 135, 29, 18 and 15 MB/s to 1, 2, 4 and 8 readers)."""
PARALLEL = SimulatedDisk(capacity_bytes_per_s=2e9, stream_cap_bytes_per_s=600e6)
"""A fast parallel device: one stream never gets all of it."""


WITH_ARM = msgspec.structs.replace(
    default_platform(2, 4), devices=(Device(id=DeviceId("sim0"), rotational=True),)
)
"""The machine with a disk that is known to have an arm."""


def run(rule, profiles, disk, *, machine=None, **spec):
    rules = Rules(
        name="test",
        admission=fcfs.Rule(),
        placement=least_io.Rule(),
        regulation=rule,
        max_suspend_s=600.0,
    )
    jobs = [
        (0.1 * number, JobSpec(command=("x",), **spec), profile)
        for number, profile in enumerate(profiles)
    ]
    return simulate(machine or default_platform(2, 4), rules, jobs, model=Model(disk=disk))


def readers(count, megabytes, *, compute_s=0.0, parts=20):
    pause = (Compute(compute_s),) if compute_s else ()
    steps = (*pause, Read(megabytes * MB // parts)) * parts
    return [Profile(steps=steps) for _ in range(count)]


def suspensions(result):
    return [step for step in result.transitions if step.after is JobState.SUSPENDED_IO]


def test_streams_on_a_disk_with_an_arm_take_turns_and_win_eightfold():
    """The figures of docs/design.md."""
    alone = run(none.Rule(), readers(8, 600), ARM, machine=WITH_ARM)
    regulated = run(bounded.Rule(), readers(8, 600), ARM, machine=WITH_ARM)

    assert (332, 42, 7) == (
        round(makespan_s(alone.jobs)),
        round(makespan_s(regulated.jobs)),
        len(suspensions(regulated)),
    )
    assert {job.state for job in regulated.jobs} == {JobState.COMPLETED}


def test_what_an_ended_job_used_is_given_on_at_once():
    result = run(bounded.Rule(), readers(8, 250), ARM)

    ends_s = [step.at_s for step in result.transitions if step.after is JobState.COMPLETED]
    returns_s = [step.at_s for step in result.transitions if step.before is JobState.SUSPENDED_IO]
    assert len(ends_s) == 8
    assert ends_s[:-1] == returns_s


def test_a_queue_of_which_half_would_be_too_much_is_cut_in_one_step():
    on_an_arm = run(bounded.Rule(), readers(8, 600), ARM, machine=WITH_ARM)
    on_a_guess = run(bounded.Rule(), readers(8, 600), ARM)

    assert [2.0] * 7 == [step.at_s for step in suspensions(on_an_arm)]
    assert [2.0] * 4 + [3.0] * 2 + [4.0] == [step.at_s for step in suspensions(on_a_guess)]


def test_one_job_comes_back_for_one_that_ends_also_just_before_the_slice_does():
    """What came back a moment ago has moved little in the slice; that is not what it will move."""
    result = run(bounded.Rule(io_bound_bytes_per_s=1e9), readers(4, 4000), PARALLEL)

    assert [1] * 10 == [len(one.running) for one in result.slices[4:14]]


def test_jobs_that_also_compute_win_twofold_there():
    alone = run(none.Rule(), readers(8, 300, compute_s=0.3), ARM)
    regulated = run(bounded.Rule(), readers(8, 300, compute_s=0.3), ARM)

    assert makespan_s(alone.jobs) > 2 * makespan_s(regulated.jobs)


@pytest.mark.parametrize("compute_s", [0.0, 0.2])
def test_on_a_parallel_device_nobody_is_suspended_and_nothing_is_lost(compute_s):
    profiles = readers(8, 5000, compute_s=compute_s)
    alone = run(none.Rule(), profiles, PARALLEL)
    regulated = run(bounded.Rule(), profiles, PARALLEL)

    assert suspensions(regulated) == []
    assert makespan_s(regulated.jobs) == makespan_s(alone.jobs)


def test_a_plain_bound_cycles_on_the_same_work_where_evidence_does_not():
    """The figures of docs/design.md; the bound is 80 % of what the device can do."""
    profiles = readers(8, 5000)

    alone = run(none.Rule(), profiles, PARALLEL)
    plain = run(dynamic.Rule(io_bound_bytes_per_s=1.6e9), profiles, PARALLEL)
    judged = run(bounded.Rule(), profiles, PARALLEL)

    assert (20, 28, 13) == (
        round(makespan_s(alone.jobs)),
        round(makespan_s(plain.jobs)),
        len(suspensions(plain)),
    )
    assert suspensions(judged) == []


def test_the_operators_cap_is_kept_without_a_cycle():
    profiles = readers(4, 4000)

    result = run(bounded.Rule(io_bound_bytes_per_s=1e9), profiles, PARALLEL)

    above = [s for s in result.slices[4:] if s.device_bytes_per_s > 1e9 * 1.05]
    assert len(above) <= 4
    assert max(_count_by_job(result).values()) <= 1 + result.ended_s // 5.0


def test_light_jobs_and_computing_jobs_are_never_suspended():
    heavy = readers(6, 600)
    light = [Profile(steps=(Compute(2.0), Read(1 * MB)) * 10) for _ in range(2)]

    result = run(bounded.Rule(), heavy + light, ARM)

    assert {step.job_id for step in suspensions(result)} <= {1, 2, 3, 4, 5, 6}


def _count_by_job(result):
    counts = dict.fromkeys((job.id for job in result.jobs), 0)
    for step in suspensions(result):
        counts[step.job_id] += 1
    return counts


profiles = st.lists(
    st.builds(
        lambda size, pause, parts: Profile(
            steps=((Compute(pause),) if pause else ()) * 1 + (Read(size * MB),) * parts
        ),
        st.integers(5, 200),
        st.sampled_from([0.0, 0.5, 3.0]),
        st.integers(1, 6),
    ),
    min_size=1,
    max_size=8,
)


def spells_s(result):
    """How long each suspension lasted; all of them ended."""
    began_s, spells = {}, []
    for step in result.transitions:
        if step.after is JobState.SUSPENDED_IO:
            began_s[step.job_id] = step.at_s
        elif step.before is JobState.SUSPENDED_IO:
            spells.append(step.at_s - began_s.pop(step.job_id))
    assert not began_s
    return spells


def longest_standstill_s(result):
    """The longest time in which jobs were there and the regulation held every one of them."""
    states, since_s, longest_s = {}, None, 0.0
    for step in result.transitions:
        if since_s is not None:
            longest_s = max(longest_s, step.at_s - since_s)
        states[step.job_id] = step.after
        there = {state for state in states.values() if not state.is_final}
        is_still = there == {JobState.SUSPENDED_IO}
        since_s = (step.at_s if since_s is None else since_s) if is_still else None
    return longest_s


MAX_SUSPEND_S = 12.0
"""Little more than a turn, so that there are jobs whose suspension the guard ends."""


@settings(max_examples=40, deadline=None)
@given(
    profiles=profiles,
    bound=st.sampled_from([None, 30e6, 100e6]),
    machine=st.sampled_from([None, WITH_ARM]),
)
def test_one_job_always_runs_none_stands_still_for_too_long_and_each_has_its_dwell(
    profiles, bound, machine
):
    rule = bounded.Rule(io_bound_bytes_per_s=bound)

    result = run(rule, profiles, ARM, machine=machine, max_suspend_s=MAX_SUSPEND_S)

    assert {job.state for job in result.jobs} == {JobState.COMPLETED}
    assert 0.0 == longest_standstill_s(result)
    assert all(spell <= MAX_SUSPEND_S + 1e-6 for spell in spells_s(result))
    assert_dwells(result, rule)
    assert run(rule, profiles, ARM, machine=machine, max_suspend_s=MAX_SUSPEND_S) == result


def assert_dwells(result, rule):
    """Who came back runs for ``dwell`` before it is suspended again."""
    back_s = {}
    for step in result.transitions:
        if step.before is JobState.SUSPENDED_IO:
            back_s[step.job_id] = step.at_s
        elif step.after is JobState.SUSPENDED_IO and step.job_id in back_s:
            assert step.at_s - back_s[step.job_id] >= rule.dwell_s


def test_the_guard_ends_the_suspensions_of_those_who_wait_longest():
    """That of the property above is met: with eight in turns some would stand still for 70 s."""
    result = run(bounded.Rule(), readers(8, 2000), ARM, machine=WITH_ARM, max_suspend_s=30.0)

    assert 30.0 == max(spells_s(result))
    assert 0.0 == longest_standstill_s(result)


@pytest.mark.parametrize("bound", [None, 30e6, 1e9])
@pytest.mark.parametrize(("disk", "machine"), [(ARM, WITH_ARM), (ARM, None), (PARALLEL, None)])
def test_a_constant_load_does_not_oscillate(disk, machine, bound):
    """Eight streams without pause or end: each goes once, and then one a turn."""
    rule = bounded.Rule(io_bound_bytes_per_s=bound)

    result = endless(rule, 8, disk, machine=machine, until_s=300.0)

    assert len(suspensions(result)) <= 8 + 300.0 / rule.turn_s
    assert_dwells(result, rule)
    assert 0.0 == longest_standstill_s(result)


def test_a_bound_that_one_job_alone_exceeds_drives_dynamic_round_and_bounded_once_a_turn():
    """The figures of docs/design.md: one stream moves 600 MB/s, the bound is 100."""
    plain = endless(dynamic.Rule(io_bound_bytes_per_s=100e6), 4, PARALLEL, until_s=100.0)
    judged = endless(bounded.Rule(io_bound_bytes_per_s=100e6), 4, PARALLEL, until_s=100.0)

    assert (102, 12) == (len(suspensions(plain)), len(suspensions(judged)))
    assert [2.0, 2.0, 3.0] + [12.0 + 10.0 * turn for turn in range(9)] == [
        step.at_s for step in suspensions(judged)
    ]
    assert 1.0 == longest_standstill_s(plain)
    assert 0.0 == longest_standstill_s(judged)


@pytest.mark.parametrize(("writeback_s", "expected"), [(35.0, {1, 2}), (0.0, {1, 2, 3, 4})])
def test_the_writeback_of_suspended_writers_is_waited_for_and_no_reader_pays(writeback_s, expected):
    """Jobs 1 and 2 dirtied 3 GB; the disk writes that while three slow readers come."""
    writer = Profile(steps=(Write(300 * MB, cap_bytes_per_s=300e6),) * 10)
    reader = Profile(steps=(Compute(4.0), Read(100 * MB)))
    disk = SimulatedDisk(
        capacity_bytes_per_s=120e6,
        stream_cap_bytes_per_s=18e6,
        writeback_depth=8,
        dirty_background_bytes=300 * MB,
        dirty_limit_bytes=3000 * MB,
    )

    rule = bounded.Rule(writeback_s=writeback_s)
    result = run(rule, [writer] * 2 + [reader] * 3, disk, machine=WITH_ARM)

    assert expected == {step.job_id for step in suspensions(result)}


def endless(rule, count, disk, *, machine=None, until_s):
    """So many streams that neither pause nor end, submitted together, until then."""
    rules = Rules(
        name="test",
        admission=fcfs.Rule(),
        placement=least_io.Rule(),
        regulation=rule,
        max_suspend_s=600.0,
    )
    profile = Profile(steps=(Read(10**6 * MB),))
    jobs = [(0.0, JobSpec(command=("x",)), profile)] * count
    return simulate(
        machine or default_platform(2, 4), rules, jobs, model=Model(disk=disk), until_s=until_s
    )


NUMBERS = tuple(name for name in bounded.Rule.__struct_fields__ if name != "sustain")


@pytest.mark.parametrize(
    "fields",
    [
        {"io_bound_bytes_per_s": 0.0},
        {"io_bound_bytes_per_s": -1.0},
        {"timeslice_s": 0.0},
        {"low_share": 1.5},
        {"low_share": 0.0},
        {"high_wait": 1.0},
        {"high_wait": 2.0},
        {"dwell_s": -1.0},
        {"writeback_s": float("nan")},
        {"sustain": 0},
        {"turn_s": -1.0},
        {"turn_s": 0.0},
        {"turn_s": 3.0, "dwell_s": 2.0, "timeslice_s": 4.0},
        {"dwell_s": 11.0},
        *({name: value} for name in NUMBERS for value in (float("inf"), float("nan"))),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        bounded.Rule(**fields)
