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


def test_makespan_is_from_the_first_submit_to_the_last_end_of_the_finished():
    assert measure.makespan_s(JOBS) == 14.0
    assert measure.makespan_s([]) == 0.0


def test_turnaround_is_from_submit_to_end():
    assert [measure.turnaround_s(each) for each in JOBS] == [8.0, 12.0, None]
    assert measure.mean_turnaround_s(JOBS) == 10.0


def test_wait_is_from_submit_to_start():
    jobs = [running(1, 2.0, 5.0), running(2, 4.0, 11.0), job(3, submitted_s=1.0)]

    assert [measure.wait_s(each) for each in jobs] == [3.0, 7.0, None]
    assert measure.mean_wait_s(jobs) == 5.0
    assert measure.mean_wait_s([]) == 0.0


@pytest.mark.parametrize(
    ("turnaround", "run_s", "slowdown"),
    [(80.0, 20.0, 4.0), (62.0, 2.0, 6.2), (2.0, 2.0, 1.0), (5.0, 0.0, 1.0), (20.0, 10.0, 2.0)],
)
def test_the_slowdown_of_a_short_job_is_bounded(turnaround, run_s, slowdown):
    assert measure.bounded_slowdown(turnaround, run_s) == pytest.approx(slowdown)


def test_the_bound_of_the_slowdown_is_ones_own():
    assert measure.bounded_slowdown(62.0, 2.0, bound_s=1.0) == 31.0


def test_stretch_is_turnaround_over_time_alone():
    assert measure.stretch(12.0, 3.0) == 4.0


def test_the_measures_of_lv():
    assert measure.lv_throughput_per_s(64, 32.0) == 2.0
    assert measure.lv_slowdown([1.0, 2.0], [2.0, 8.0]) == 0.75
    assert measure.lv_average_runtime_s([1.0, 3.0]) == 2.0


def test_the_slowdown_of_lv_compares_the_same_jobs():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        measure.lv_slowdown([1.0, 2.0], [2.0])


@pytest.mark.parametrize(
    ("values", "index"),
    [([1.0, 1.0, 1.0], 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25), ([1.0, 3.0], 0.8), ([], 1.0)],
)
def test_jain_index(values, index):
    assert measure.jain_index(values) == index


def test_the_mean_of_nothing_is_zero():
    assert measure.mean([]) == 0.0


# -- EquilibrIO ------------------------------------------------------------------------------------


def test_a_slowdown_is_what_a_job_takes_longer_in_parts_of_what_it_takes_alone():
    assert measure.equilibrio_job_slowdown(150.0, 100.0) == 0.5
    assert measure.equilibrio_io_slowdown(25.0, 10.0) == 1.5
    assert measure.equilibrio_io_slowdown(10.0, 10.0) == 0.0


def test_the_utilisation_of_a_job_is_its_time_out_of_io():
    assert measure.equilibrio_utilisation(100.0, 25.0) == 0.75


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
