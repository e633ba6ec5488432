"""What is measured: it fits into the time, the room and the file."""

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from iodaemon.calibration import plan
from iodaemon.calibration.plan import Regions

MIB = 1 << 20


@given(st.floats(plan.LEAST_S, 3600.0), st.integers(1, 64))
def test_all_steps_together_take_about_as_long_as_was_asked(seconds, sockets):
    times = plan.divide_time(seconds, sockets)

    assert times.counts[0] == 1
    assert times.counts[-1] == sockets
    assert 3 <= times.curves <= 12
    assert 0.25 <= times.step_s <= 2.5
    if seconds >= 60.0:
        assert times.total_s <= seconds


@given(st.integers(1, 256))
def test_sockets_are_loaded_from_one_to_all(sockets):
    counts = plan.socket_counts(sockets)

    assert list(counts) == sorted(set(counts))
    assert (counts[0], counts[-1]) == (1, sockets)
    assert len(counts) <= 10


def test_up_to_four_sockets_every_number_of_them_is_loaded():
    assert plan.socket_counts(4) == (1, 2, 3, 4)
    assert plan.socket_counts(6) == (1, 2, 4, 6)
    assert plan.socket_counts(8) == (1, 2, 4, 8)


@given(st.lists(st.lists(st.integers(0, 500), min_size=1, max_size=2), min_size=1, max_size=70))
def test_a_socket_is_divided_into_parts_that_have_all_its_cpus(cores):
    parts = plan.divide_cores(cores)

    assert len(parts) == plan.PIECES
    assert {cpu for part in parts for cpu in part} == {cpu for core in cores for cpu in core}
    assert all(parts)


@given(st.integers(0, 1 << 45), st.integers(1, 64), st.none() | st.integers(0, 1 << 45))
def test_the_file_leaves_half_of_the_room_and_is_no_larger_than_asked(free, readers, asked):
    size = plan.file_bytes(free, readers, asked)

    assert size <= free / 2
    assert size <= (plan.MOST_BYTES if asked is None else asked)
    assert size % (readers * MIB) == 0
    if size:
        assert size >= min(plan.LEAST_BYTES // readers * readers, size)


def test_too_little_room_is_no_room():
    assert plan.file_bytes(31 * MIB, 8, None) == 0
    assert plan.file_bytes(32 * MIB, 8, None) == 16 * MIB
    assert plan.file_bytes(1 << 40, 8, 15 * MIB) == 0
    assert plan.file_bytes(1 << 50, 8, None) == plan.MOST_BYTES


@given(
    st.dictionaries(st.integers(2, 64), st.floats(1e3, 1e11), max_size=6),
    st.floats(1e3, 1e11),
    st.integers(2, 12),
)
def test_rates_rise_from_what_the_slowest_load_carries_to_what_one_socket_had(others, one, curves):
    capacities = {1: one, **others}
    rates = plan.rates(capacities, curves)

    assert len(rates) == curves
    assert list(rates) == sorted(rates)
    assert math.isclose(rates[-1], plan.HIGH_SHARE * one, rel_tol=1e-9)
    assert all(rates[0] * n <= 0.5 * had * (1 + 1e-9) for n, had in capacities.items())


@given(st.none() | st.floats(1.0, 1e11), st.floats(0.1, 10.0), st.integers(1, 1 << 33))
def test_a_step_is_whole_blocks_within_its_part(rate, seconds, room):
    assume(room >= plan.BLOCK)
    size = plan.step_bytes(rate, seconds, room)

    assert size % plan.BLOCK == 0
    assert plan.BLOCK <= size <= room
    if rate is not None and rate * seconds <= room - plan.BLOCK:
        assert rate * seconds <= size < rate * seconds + plan.BLOCK * (1 + 1e-6)


@given(
    st.integers(1, 8),
    st.integers(1, 64),
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 64)), max_size=60),
)
def test_no_byte_is_read_twice_before_all_of_a_part_was(readers, part, steps):
    regions = Regions(readers * part * MIB + 12345, readers)
    read = [set() for _ in range(readers)]
    for reader, blocks in steps:
        reader, blocks = reader % readers, min(blocks, part)
        had_wrapped = regions.wrapped
        at = regions.take(reader, blocks * MIB)
        taken = set(range(at // MIB, at // MIB + blocks))
        assert at % MIB == 0
        assert min(taken) >= reader * part
        assert max(taken) < (reader + 1) * part
        if not regions.wrapped:
            assert taken.isdisjoint(read[reader])
        elif not had_wrapped:  # it would not have fitted behind what was read
            assert len(read[reader]) + blocks > part
        read[reader] |= taken


@given(st.integers(MIB, 1 << 36), st.sampled_from(plan.SIZES))
def test_a_place_to_begin_at_leaves_half_the_file_and_is_aligned(whole, size):
    regions = Regions(whole, 4)
    for _ in range(20):
        at = regions.anywhere(size)
        assert at % size == 0
        assert 0 <= at <= whole / 2
