"""How long a lone request takes: between, below and above the sizes that were measured."""

import math

from builders import device_load
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.meter import lone_range_s
from iodaemon.core.platform import LoneTimes, ServiceTimes, time_s

SIZES = st.floats(min_value=1.0, max_value=1e9)
TIMES = st.floats(min_value=1e-6, max_value=10.0)
POINTS = st.dictionaries(SIZES, TIMES, min_size=1, max_size=6).map(
    lambda found: tuple(sorted(found.items()))
)


def load(*, reads=0.0, read=0.0, writes=0.0, written=0.0, flushes=0.0):
    return device_load(
        reads_per_s=reads,
        writes_per_s=writes,
        flushes_per_s=flushes,
        read_bytes_per_s=read,
        written_bytes_per_s=written,
    )


@given(POINTS)
def test_a_measured_size_takes_what_was_measured(points):
    for size, spent_s in points:
        assert math.isclose(time_s(points, size), spent_s, rel_tol=1e-6)


@given(POINTS, SIZES)
def test_between_two_sizes_it_lies_between_their_times(points, size):
    found_s = time_s(points, size)

    assert found_s > 0.0
    below = [spent_s for known, spent_s in points if known <= size]
    above = [spent_s for known, spent_s in points if known >= size]
    if below and above:
        low, high = sorted((below[-1], above[0]))
        assert low * (1 - 1e-9) <= found_s <= high * (1 + 1e-9)


@given(POINTS, SIZES)
def test_a_larger_request_than_any_is_moved_as_fast_as_the_largest(points, factor):
    size, spent_s = points[-1]

    assert math.isclose(time_s(points, size * factor), spent_s * factor, rel_tol=1e-6)


def test_a_request_of_no_bytes_takes_as_long_as_the_smallest():
    assert time_s(((4096.0, 0.001), (8192.0, 0.002)), 0.0) == 0.001


@given(POINTS, POINTS, SIZES)
def test_the_range_is_from_the_shorter_pattern_to_the_longer(in_order, at_random, size):
    times = LoneTimes(in_order=in_order, at_random=at_random)

    low_s, high_s = times.range_s(size)

    assert {low_s, high_s} == {time_s(in_order, size), time_s(at_random, size)}
    assert low_s <= high_s


def test_nothing_is_said_of_what_was_not_measured():
    reads = LoneTimes(in_order=((4096.0, 0.001),))

    assert LoneTimes().range_s(4096.0) is None
    assert lone_range_s(load(), ServiceTimes(reads=reads)) is None
    assert lone_range_s(load(writes=10.0, written=4e4), ServiceTimes(reads=reads)) is None


def test_a_slice_of_reads_and_writes_is_held_against_both_by_their_number():
    service = ServiceTimes(
        reads=LoneTimes(in_order=((4096.0, 0.001),), at_random=((4096.0, 0.010),)),
        writes=LoneTimes(in_order=((4096.0, 0.003),)),
    )
    mixed = load(reads=30.0, read=30 * 4096.0, writes=10.0, written=10 * 4096.0)

    low_s, high_s = lone_range_s(mixed, service)

    assert math.isclose(low_s, 0.0015)
    assert math.isclose(high_s, 0.00825)


def test_a_slice_of_many_flushes_says_nothing():
    service = ServiceTimes(writes=LoneTimes(in_order=((4096.0, 0.003),)))
    few = load(writes=100.0, written=4e5, flushes=10.0)
    many = load(writes=100.0, written=4e5, flushes=11.0)

    assert lone_range_s(few, service) is not None
    assert lone_range_s(many, service) is None
