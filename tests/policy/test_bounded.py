"""Regulation with judgement, in simulation: what it wins, what it must never do."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.backend.simulated import (
    Compute,
    Model,
    Profile,
    Read,
    SimulatedDisk,
    default_platform,
    table_scaling,
)
from iodaemon.core.job import JobSpec, JobState
from iodaemon.core.measure import makespan_s
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


def run(rule, profiles, disk, **spec):
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
    return simulate(default_platform(2, 4), rules, jobs, model=Model(disk=disk))


def readers(count, megabytes, *, compute_s=0.0, parts=20):
    pause = (Compute(compute_s),) if compute_s else ()
    steps = (*pause, Read(megabytes * MB // parts)) * parts
    return [Profile(steps=steps) for _ in range(count)]


def suspensions(result):
    return [step for step in result.transitions if step.after is JobState.SUSPENDED_IO]


def test_streams_on_a_disk_with_an_arm_take_turns_and_win_at_least_fourfold():
    alone = run(none.Rule(), readers(8, 600), ARM)
    regulated = run(bounded.Rule(), readers(8, 600), ARM)

    assert makespan_s(alone.jobs) > 4 * makespan_s(regulated.jobs)
    assert {job.state for job in regulated.jobs} == {JobState.COMPLETED}


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
    profiles = readers(8, 5000)

    plain = run(dynamic.Rule(io_bound_bytes_per_s=1.6e9), profiles, PARALLEL)
    judged = run(bounded.Rule(), profiles, PARALLEL)

    assert len(suspensions(plain)) >= 10
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


@settings(max_examples=40, deadline=None, derandomize=True)
@given(profiles=profiles, bound=st.sampled_from([None, 30e6, 100e6]))
def test_one_job_always_runs_none_stands_still_for_ever_and_each_has_its_dwell(profiles, bound):
    rule = bounded.Rule(io_bound_bytes_per_s=bound)

    result = run(rule, profiles, ARM, max_suspend_s=60.0)

    assert {job.state for job in result.jobs} == {JobState.COMPLETED}
    for one in result.slices:
        assert one.running or not one.suspended or _resumes_next(result, one)
    by_job = {}
    for step in suspensions(result):
        by_job.setdefault(step.job_id, []).append(step.at_s)
    for times in by_job.values():
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert all(gap >= rule.dwell_s for gap in gaps)
    assert run(rule, profiles, ARM, max_suspend_s=60.0) == result


def _resumes_next(result, one):
    """Between the end of the last runner and the next slice nobody may run."""
    later = [s for s in result.slices if s.at_s > one.at_s]
    return not later or bool(later[0].running) or later[0].suspended != one.suspended


@pytest.mark.parametrize(
    "fields",
    [
        {"io_bound_bytes_per_s": 0.0},
        {"io_bound_bytes_per_s": -1.0},
        {"timeslice_s": 0.0},
        {"low_share": 1.5},
        {"low_share": 0.0},
        {"high_wait": 1.0},
        {"sustain": 0},
        {"turn_s": -1.0},
    ],
)
def test_parameters_that_contradict_each_other_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        bounded.Rule(**fields)
