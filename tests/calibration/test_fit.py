"""What is seen of a device is held against what was measured, for long enough."""

from builders import device_load
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.calibration.record import SUSTAIN_ABOVE, SUSTAIN_LONE, Fit, judge
from iodaemon.core.platform import LoneTimes, ServiceTimes

MB = 1e6
SERVICE = ServiceTimes(reads=LoneTimes(in_order=((4096.0, 0.001),), at_random=((4096.0, 0.010),)))


def slice_of(*, reads=100.0, took_s=0.002, busy=None, moved=None):
    """One slice of reads of 4 KiB one at a time."""
    queue = reads * took_s
    return device_load(
        reads_per_s=reads,
        read_bytes_per_s=reads * 4096.0 if moved is None else moved,
        read_await_s=took_s,
        queue_length=queue,
        busy_ratio=min(1.0, queue) if busy is None else busy,
    )


def after(*slices):
    fit = Fit()
    for load in slices:
        fit = judge(fit, load, most_bytes_per_s=100 * MB, service=SERVICE)
    return fit


def test_far_more_than_was_measured_is_told_after_some_slices():
    fast = slice_of(moved=151 * MB)

    assert after(*[fast] * (SUSTAIN_ABOVE - 1)).problem == ""
    assert "151 MB/s, and at most 100 MB/s" in after(*[fast] * SUSTAIN_ABOVE).problem


def test_a_slice_within_what_was_measured_begins_the_count_anew():
    fast, usual = slice_of(moved=151 * MB), slice_of(moved=149 * MB)

    assert after(*[fast] * (SUSTAIN_ABOVE - 1), usual, fast).problem == ""


def test_lone_requests_that_take_far_longer_are_told():
    slow = slice_of(took_s=0.031, reads=20.0)

    assert after(*[slow] * (SUSTAIN_LONE - 1)).problem == ""
    assert "31 ms" in after(*[slow] * SUSTAIN_LONE).problem


def test_requests_that_were_not_alone_say_nothing():
    burst = slice_of(took_s=0.050, reads=10.0, busy=0.1)
    few = slice_of(took_s=0.050, reads=4.0)

    assert after(*[burst, few] * 2 * SUSTAIN_LONE) == Fit()


@given(st.floats(0.001, 0.010), st.floats(5.0, 90.0), st.integers(1, 100))
def test_what_was_measured_always_fits(took_s, reads, slices):
    assert after(*[slice_of(took_s=took_s, reads=reads)] * slices).problem == ""


def test_what_did_not_fit_once_stays_told():
    fit = after(*[slice_of(moved=200 * MB)] * SUSTAIN_ABOVE, *[slice_of()] * 50)

    assert fit.problem != ""
