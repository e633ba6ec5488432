"""How long the test file is written, however slow the disk is; what readers had together."""

import os

import pytest

from iodaemon.calibration import measure
from iodaemon.calibration.measure import load_of, write_file
from iodaemon.calibration.plan import LEAST_BYTES
from iodaemon.errors import RequestError
from iodaemon.kernels.paced import Told

MIB = 1 << 20


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


def test_a_fast_disk_gets_all_of_it(clock, descriptor):
    disk = Disk(clock, 1000 * MIB)

    written, rate = write_file(disk, descriptor, 500 * MIB, 10.0)

    assert written == 500 * MIB == os.fstat(descriptor).st_size
    assert rate == pytest.approx(1000 * MIB)


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
