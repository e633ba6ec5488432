"""How busy the machine is, from the kernel's counters."""

import pytest
from builders import device_load

from iodaemon.calibration.beside import Busy, look


def load(*, busy, moved):
    return device_load(
        reads_per_s=10.0,
        read_bytes_per_s=moved,
        read_await_s=0.001,
        queue_length=0.01,
        busy_ratio=busy,
        in_flight=0,
    )


@pytest.mark.parametrize(
    ("cpu", "disk", "count"),
    [
        (0.1, load(busy=0.05, moved=1e6), 0),
        (None, load(busy=0.05, moved=1e6), 0),
        (0.6, load(busy=0.05, moved=1e6), 1),
        (0.1, load(busy=0.2, moved=1e6), 1),
        (0.1, load(busy=0.01, moved=60e6), 0),
        (0.9, load(busy=0.9, moved=1e9), 2),
    ],
)
def test_what_is_too_much_is_named(cpu, disk, count):
    why = Busy(cpu_ratio=cpu, loads={"sda": disk}).why

    assert len(why) == count
    assert all("sda" in text or "CPUs" in text for text in why)


def test_only_where_busy_time_is_not_counted_bytes_say_it():
    disk = load(busy=0.0, moved=6e6)

    assert Busy(cpu_ratio=0.1, loads={"sda": disk}).why == ()
    (why,) = Busy(cpu_ratio=0.1, loads={"sda": disk}, untimed=frozenset({"sda"})).why
    assert "6.0 MB/s" in why


def test_a_look_at_this_machine_says_what_it_can():
    found = look([], for_s=0.05)

    assert found.loads == {}
    assert found.cpu_ratio is None or 0.0 <= found.cpu_ratio <= 1.0
