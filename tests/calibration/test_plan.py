"""What is measured: it fits into the time, the room and the file."""

import math
import os

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from iodaemon.calibration import measure, plan
from iodaemon.calibration.measure import load_of, write_file
from iodaemon.calibration.plan import LEAST_BYTES, Regions
from iodaemon.errors import RequestError
from iodaemon.kernels.paced import Told

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


# -- how long the test file is written -------------------------------------------------------------


class Clock:
    """The seconds that writing took."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    return clock


@pytest.fixture
def descriptor(tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


class Disk:
    """Writes so many bytes a second, and ends an order when its time is over."""

    def __init__(self, clock, rate):
        self.clock, self.rate, self.orders = clock, rate, []

    def __call__(self, orders):
        (order,) = orders.values()
        blocks = order.length // order.block
        self.orders.append(order)
        if self.rate:
            within = max(1, int(order.seconds * self.rate / order.block))
            blocks = min(blocks, within)
            self.clock.now_s += blocks * order.block / self.rate
        size = blocks * order.block if self.rate else 0
        return {0: Told(None, size, blocks, 1.0, 1.0)}


def test_of_a_slow_disk_no_order_lasts_longer_than_there_is_time(clock, descriptor):
    disk = Disk(clock, MIB)

    written, rate = write_file(disk, descriptor, 500 * MIB, 4.0)

    assert written == LEAST_BYTES == os.fstat(descriptor).st_size
    assert rate == pytest.approx(MIB)
    assert all(order.seconds <= 4.0 for order in disk.orders)
    assert clock.now_s == pytest.approx(LEAST_BYTES / MIB)


def test_a_disk_that_takes_nothing_is_said(clock, descriptor):
    with pytest.raises(RequestError, match="cannot be written"):
        write_file(Disk(clock, 0), descriptor, 500 * MIB, 4.0)


def told(moved, run_s):
    return Told(None, moved, 4, run_s, run_s / 2)


def test_readers_of_which_one_takes_longer_had_all_of_it_until_that_one_was_done():
    load = load_of(2, None, [told(100, 1.0), told(300, 4.0)])

    assert load.had_bytes_per_s == pytest.approx(100.0)
    assert (2, 2) == (load.sockets, load.readers)
    assert load.wait_s == pytest.approx(2.5 / 8)
