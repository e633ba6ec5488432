"""What others do before and during a step, and whether it was the disk that answered."""

import pytest
from builders import device_counters, device_load
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.calibration.beside import Moved, Witness, is_disturbed, others_bytes, why_busy
from iodaemon.errors import RequestError
from iodaemon.kernels.paced import Order, Told

MB = 1_000_000
SECTOR = 512


class Disk:
    """Counters as the kernel has them."""

    def __init__(self):
        self.counters = device_counters()

    def move(self, *, read=0, written=0, count=None):
        """So many bytes."""
        now = self.counters
        self.counters = device_counters(
            reads=now.reads + read // 4096,
            read_sectors=now.read_sectors + read // SECTOR,
            read_ms=now.read_ms + 5,
            writes=now.writes + (written // 4096 if count is None else count),
            written_sectors=now.written_sectors + written // SECTOR,
        )


def told(size, ios=None):
    return Told(None, size, size // 4096 if ios is None else ios, 1.0, 0.5)


def witness(disk, *, is_forced=False, is_direct=True, planned=20):
    return Witness(
        ["sda"],
        planned=planned,
        is_direct=is_direct,
        is_forced=is_forced,
        read=lambda names: dict.fromkeys(names, disk.counters),
    )


def step(watched, disk, had, *, writes=False, **moved):
    watched.begin()
    disk.move(**moved)
    return watched.end([told(had)], 1.0, writes=writes)


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def test_what_the_disk_did_in_a_step_is_told():
    disk = Disk()
    disk.move(read=9 * MB, written=MB)

    (moved,) = step(witness(disk), disk, 4096 * 1000, read=4096 * 1000).values()

    assert (moved.reads, moved.read_bytes, moved.read_ms) == (1000, 4096 * 1000, 5)
    assert (moved.writes, moved.written_bytes) == (0, 0)


@pytest.mark.parametrize("writes", [False, True])
def test_what_the_disk_did_not_count_did_not_come_from_it(writes):
    disk = Disk()
    moved = {"written" if writes else "read": 4 * MB}

    with pytest.raises(RequestError, match="did not come from sda") as error:
        step(witness(disk, is_forced=True), disk, 10 * MB, writes=writes, **moved)

    assert "4.0 of 10.0 MB" in one_line(error)


def test_a_disk_without_counters_is_not_measured():
    watched = Witness(["sda"], planned=9, is_direct=True, is_forced=True, read=lambda _: {})

    with pytest.raises(RequestError, match="does not count the I/O of sda") as error:
        watched.begin()

    one_line(error)


@pytest.mark.parametrize(
    "moved",
    [
        {"read": 100 * MB, "written": 6 * MB},
        {"read": 106 * MB},
        {"read": 100 * MB, "count": 4000},
    ],
)
def test_others_who_use_the_disk_in_more_than_a_tenth_of_the_steps_end_it(moved):
    disk = Disk()
    watched = witness(disk)
    for _ in range(2):
        step(watched, disk, 100 * MB, **moved)

    with pytest.raises(RequestError, match="became busy") as error:
        step(watched, disk, 100 * MB, **moved)

    text = one_line(error)
    assert "MB/s on sda in 3 of 3 steps" in text
    assert "nothing is kept" in text
    assert "--force" in text


def test_what_is_more_than_a_writer_wrote_is_others():
    disk = Disk()
    watched = witness(disk)

    for others, is_disturbing in (
        ({"written": 100 * MB}, False),
        ({"written": 100 * MB, "read": 10 * MB}, True),
        ({"written": 103 * MB}, False),
        ({"written": 120 * MB}, True),
    ):
        step(watched, disk, 100 * MB, writes=True, **others)
        assert is_disturbing == watched.was_disturbed


@pytest.mark.parametrize(
    ("others", "steps"), [([], 1), ([0], 2), ([0, 1], 3), ([0, 1, 2], 3), ([1], 1)]
)
def test_a_step_that_others_disturbed_is_done_again_on_other_bytes_and_the_last_one_counts(
    others, steps
):
    disk, made = Disk(), []
    watched = witness(disk, planned=100)

    def make():
        made.append(len(made))
        return {0: Order(offset=made[-1], length=MB)}

    def do(orders):
        disk.move(read=100 * MB, written=50 * MB if orders[0].offset in others else 0)
        return {0: told(100 * MB, ios=orders[0].offset)}

    (counted,), _ = watched.steady(do, make)

    assert list(range(steps)) == made
    assert steps - 1 == counted.ios


def test_where_others_are_too_many_nothing_is_done_again():
    disk = Disk()
    watched = witness(disk, is_forced=True, planned=10)
    done = []

    def do(orders):
        done.append(orders)
        disk.move(read=100 * MB, written=50 * MB)
        return {0: told(100 * MB)}

    for _ in range(4):
        watched.steady(do, lambda: {0: Order(offset=0, length=MB)})

    assert 2 + 3 == len(done)  # from the second on more than one of ten


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_machine_that_is_busy_at_the_end_is_said(is_forced):
    watched = witness(Disk(), is_forced=is_forced)

    watched.look_back(())
    assert watched.words == ()
    watched.look_back(why_busy(0.9, {}))
    assert watched.words == ("at the end the CPUs are busy for 90 %",)


SIZES = st.integers(0, 1 << 40)


@given(SIZES, SIZES, SIZES, st.booleans(), st.floats(0.01, 100.0))
def test_who_moves_nothing_disturbs_nobody_and_more_never_disturbs_less(
    had, read, written, is_direct, spent_s
):
    def disturbed(read, written):
        one = Moved(
            reads=0, read_bytes=read, read_ms=0, writes=0, written_bytes=written, write_ms=0
        )
        assert others_bytes([one], had, is_direct=is_direct) >= 0
        return is_disturbed(
            [one], had_bytes=had, ios=had // 4096, spent_s=spent_s, is_direct=is_direct
        )

    assert not disturbed(had, 0)
    assert disturbed(read, written) <= disturbed(read, written + 1)
    assert disturbed(read, written) <= disturbed(read + 1, written)


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
    why = why_busy(cpu, {"sda": disk})

    assert len(why) == count
    assert all("sda" in text or "CPUs" in text for text in why)
