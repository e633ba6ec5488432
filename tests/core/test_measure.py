"""One function a definition, with known values."""

import pytest
from builders import job

from iodaemon.core import measure
from iodaemon.core.job import JobState


def ended(job_id, submitted_s, ended_s):
    return job(job_id, state=JobState.COMPLETED, submitted_s=submitted_s, ended_s=ended_s)


def running(job_id, submitted_s, started_s, *, ended_s=None, cpus=1):
    state = JobState.RUNNING if ended_s is None else JobState.COMPLETED
    times = {"submitted_s": submitted_s, "started_s": started_s, "ended_s": ended_s}
    return job(job_id, state=state, cpus=cpus, **times)


JOBS = [ended(1, 2.0, 10.0), ended(2, 4.0, 16.0), job(3, submitted_s=1.0)]


def test_times_are_from_the_submit_and_the_mean_of_nothing_is_zero():
    jobs = [running(1, 2.0, 5.0), running(2, 4.0, 11.0), job(3, submitted_s=1.0)]

    assert (14.0, 0.0) == (measure.makespan_s(JOBS), measure.makespan_s([]))
    assert [8.0, 12.0, None] == [measure.turnaround_s(each) for each in JOBS]
    assert [3.0, 7.0, None] == [measure.wait_s(each) for each in jobs]
    assert (10.0, 5.0) == (measure.mean_turnaround_s(JOBS), measure.mean_wait_s(jobs))
    assert (0.0, 0.0) == (measure.mean_wait_s([]), measure.mean([]))


@pytest.mark.parametrize(
    ("turnaround", "run_s", "slowdown"),
    [(80.0, 20.0, 4.0), (62.0, 2.0, 6.2), (2.0, 2.0, 1.0), (5.0, 0.0, 1.0), (20.0, 10.0, 2.0)],
)
def test_the_slowdown_of_a_short_job_is_bounded(turnaround, run_s, slowdown):
    assert measure.bounded_slowdown(turnaround, run_s) == pytest.approx(slowdown)


def test_a_ratio_is_what_its_definition_says():
    assert 31.0 == measure.bounded_slowdown(62.0, 2.0, bound_s=1.0)
    assert 4.0 == measure.stretch(12.0, 3.0)
    assert 2.0 == measure.lv_throughput_per_s(64, 32.0)
    assert 0.75 == measure.lv_slowdown([1.0, 2.0], [2.0, 8.0])
    assert 2.0 == measure.lv_average_runtime_s([1.0, 3.0])
    assert 0.5 == measure.equilibrio_job_slowdown(150.0, 100.0)
    assert [1.5, 0.0] == [measure.equilibrio_io_slowdown(io_s, 10.0) for io_s in (25.0, 10.0)]
    assert 0.75 == measure.equilibrio_utilisation(100.0, 25.0)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        measure.lv_slowdown([1.0, 2.0], [2.0])


@pytest.mark.parametrize(
    ("values", "index"),
    [([1.0, 1.0, 1.0], 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25), ([1.0, 3.0], 0.8), ([], 1.0)],
)
def test_jain_index(values, index):
    assert measure.jain_index(values) == index


@pytest.mark.parametrize(
    ("starts_s", "displaced"),
    [
        ((), ()),
        ((5.0,), (0,)),
        ((1.0, 2.0, 3.0), (0, 0, 0)),
        ((3.0, 1.0, 2.0), (2, 1, 1)),
        ((2.0, 2.0, 2.0), (0, 0, 0)),
        ((2.0, 1.0, 2.0), (1, 1, 0)),
    ],
)
def test_a_displacement_is_how_far_a_start_is_from_its_place_by_arrival(starts_s, displaced):
    assert measure.displacements(starts_s) == displaced
