"""S and W over time, and the mean of how far they are apart."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.simulator.equilibrio_run import (
    Moment,
    Stay,
    in_bins,
    intensity_course,
    mean_distance_bytes_per_s,
    mean_distance_of_moments,
    mean_running,
)


def stay(submit_s, start_s, end_s, intensity, weight=1.0):
    return Stay(
        submit_s=submit_s,
        start_s=start_s,
        end_s=end_s,
        intensity_bytes_per_s=intensity,
        weight=weight,
    )


def moment(at_s, system, workload, running):
    return Moment(
        at_s=at_s, system_bytes_per_s=system, workload_bytes_per_s=workload, running=running
    )


TWO = (stay(0.0, 0.0, 10.0, 4.0), stay(2.0, 10.0, 14.0, 8.0))
"""The second waits for the end of the first."""


def test_both_means_change_when_a_job_comes_starts_or_ends():
    assert intensity_course(TWO) == (
        moment(0.0, 4.0, 4.0, 1),
        moment(2.0, 4.0, 6.0, 1),
        moment(10.0, 8.0, 8.0, 1),
        moment(14.0, 0.0, 0.0, 0),
    )


def test_the_mean_distance_is_over_the_time_in_which_something_runs():
    late = (*TWO, stay(20.0, 24.0, 26.0, 1.0))

    assert mean_distance_bytes_per_s(intensity_course(TWO)) == pytest.approx(2.0 * 8.0 / 14.0)
    assert mean_distance_bytes_per_s(intensity_course(late)) == pytest.approx(2.0 * 8.0 / 16.0)
    assert mean_distance_bytes_per_s(()) == 0.0


def test_a_mean_over_moments_does_not_ask_how_long_each_lasts():
    assert mean_distance_of_moments(intensity_course(TWO)) == pytest.approx(2.0 / 3.0)
    assert mean_distance_of_moments(()) == 0.0


def test_the_mean_number_of_running_jobs_is_over_the_time_in_which_one_runs():
    three = (*TWO, stay(0.0, 12.0, 14.0, 1.0), stay(20.0, 24.0, 26.0, 1.0))

    assert mean_running(intensity_course(three)) == pytest.approx((14.0 + 2.0 + 2.0) / 16.0)
    assert mean_running(()) == 0.0


def test_a_job_may_count_for_more_than_one():
    course = intensity_course((stay(0.0, 0.0, 1.0, 1.0, 3.0), stay(0.0, 0.0, 1.0, 5.0)))

    assert course[0] == moment(0.0, 2.0, 2.0, 2)


def test_bins_hold_the_means_over_their_time():
    bins = in_bins(intensity_course(TWO), 7)

    assert [each.at_s for each in bins] == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0]
    assert [each.system_bytes_per_s for each in bins] == pytest.approx([4.0] * 5 + [8.0] * 2)
    assert [each.workload_bytes_per_s for each in bins] == pytest.approx(
        [4.0] + [6.0] * 4 + [8] * 2
    )


TIMES = st.integers(0, 20).map(float)
STAYS = st.lists(
    st.tuples(TIMES, TIMES, TIMES, st.integers(0, 9)).map(
        lambda drawn: stay(*sorted(drawn[:3]), float(drawn[3]))
    ),
    max_size=12,
)


@given(STAYS)
def test_the_course_is_what_counting_at_any_time_gives(stays):
    course = intensity_course(stays)

    for one in course:
        runs = [s for s in stays if s.start_s <= one.at_s < s.end_s]
        there = [s for s in stays if s.submit_s <= one.at_s < s.end_s]
        for held, found in (
            (runs, one.system_bytes_per_s),
            (there, one.workload_bytes_per_s),
        ):
            mean = math.fsum(s.intensity_bytes_per_s for s in held) / max(1, len(held))
            assert found == pytest.approx(mean, abs=1e-9)
        assert one.running == len(runs)


@given(STAYS, st.integers(1, 9))
def test_bins_keep_the_sum_over_time(stays, count):
    course = intensity_course(stays)
    if len(course) < 2:
        return
    width_s = (course[-1].at_s - course[0].at_s) / count
    whole = math.fsum(
        a.system_bytes_per_s * (b.at_s - a.at_s) for a, b in itertools.pairwise(course)
    )

    binned = math.fsum(each.system_bytes_per_s * width_s for each in in_bins(course, count))

    assert binned == pytest.approx(whole, abs=1e-6)
