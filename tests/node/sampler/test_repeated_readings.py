"""A job that has not run is not read again, a job that has is."""

from pathlib import Path

import pytest

from iodaemon.core.platform import DeviceId
from iodaemon.node.live_job import LiveJob, Reaped
from iodaemon.node.sampler import sweep
from iodaemon.node.sampler.job_io import Allowance
from iodaemon.node.sampler.proc_files import PAGE_BYTES
from iodaemon.node.sampler.sweep import Leaves, OutputRoom, _JobReader
from iodaemon.supervisor.ledger import Key

DISKS = (DeviceId("8:0"),)


class Machine:
    """A directory that looks like / with one job: process 11."""

    def __init__(self, root: Path):
        self.root = root
        directory = root / "1.1"
        directory.mkdir()
        self.cpu_stat = directory / "cpu.stat"
        for pid in (11,):
            (root / f"proc/{pid}").mkdir(parents=True)
            (root / f"proc/{pid}/statm").write_text("1 1 1 1 0 1 0\n")
        (directory / "cgroup.procs").write_text("11\n")
        (directory / "cgroup.stat").write_text("nr_descendants 0\n")
        self.moves(0)
        self.runs(0)
        self.job = LiveJob(Key(1, 1), {"pid": 11}, str(root))
        output = OutputRoom(None, self.job)
        self.reader = _JobReader(root, self.job, Leaves(root), Allowance(), output)

    def moves(self, read_bytes):
        for pid, count in ((11, read_bytes),):
            (self.root / f"proc/{pid}/io").write_text(
                f"rchar: 0\nwchar: 0\nsyscr: 0\nsyscw: 0\nread_bytes: {count}\n"
                "write_bytes: 0\ncancelled_write_bytes: 0\n"
            )

    def runs(self, usage_us):
        text = f"usage_usec {usage_us}\nuser_usec {usage_us}\nsystem_usec 0\n"
        self.cpu_stat.write_text(text)


@pytest.fixture
def machine(tmp_path):
    built = Machine(tmp_path)
    yield built
    built.reader.close()


def test_a_job_that_has_not_run_has_the_very_same_counters(machine):
    first = machine.reader.read(DISKS)
    machine.moves(4096)

    assert first is machine.reader.read(DISKS)


def test_a_job_at_rest_is_read_until_what_it_moved_is_known(machine):
    machine.job.reaped = None
    machine.moves(4096)

    assert machine.reader.read(DISKS).read_bytes is None

    machine.job.reaped = Reaped(read_bytes=5)

    assert machine.reader.read(DISKS).read_bytes == 4101


def test_a_job_that_has_run_is_read_again(machine):
    machine.reader.read(DISKS)
    machine.moves(4096)
    machine.runs(7)

    assert machine.reader.read(DISKS).read_bytes == 4096


def test_after_many_repetitions_everything_is_read_again(machine):
    machine.reader.read(DISKS)
    machine.moves(4096)
    counts = [machine.reader.read(DISKS).read_bytes for _ in range(2 * sweep._MOST_REPEATS)]

    assert 4096 == counts[-1]


def test_other_devices_are_told_of_a_job_that_has_not_run(machine):
    machine.reader.read(DISKS)

    assert machine.reader.read(()).devices == ()


def test_what_is_written_back_for_a_job_that_has_not_run_is_told(machine):
    disk = machine.root / "sys/devices/vda"
    disk.mkdir(parents=True)
    (disk / "size").write_text("1000\n")
    (machine.root / "sys/dev/block").mkdir(parents=True)
    (machine.root / "sys/dev/block/254:0").symlink_to(disk)
    io_stat = machine.cpu_stat.parent / "io.stat"
    io_stat.write_text("")
    first = machine.reader.read(DISKS)
    again = machine.reader.read(DISKS)
    io_stat.write_text("254:0 rbytes=0 wbytes=8192 rios=0 wios=2 dbytes=0 dios=0\n")
    later = machine.reader.read(DISKS)

    assert first is again
    assert (0, 8192) == (first.device_written_bytes, later.device_written_bytes)


def test_an_io_stat_that_says_nothing_known_is_unknown(machine):
    (machine.cpu_stat.parent / "io.stat").write_text("what is this\n")

    assert machine.reader.read(DISKS).device_written_bytes is None


def test_cpu_memory_and_stalls_are_known_of_a_job_whose_io_is_not(machine):
    machine.runs(1_500_000)
    (machine.cpu_stat.parent / "io.pressure").write_text("some avg10=0.00 total=250000\n")
    counters = machine.reader.read(DISKS, silent_pid=11)

    assert (None, 11) == (counters.read_bytes, counters.silent_pid)
    assert (1.5, 1.5, PAGE_BYTES) == (counters.cpu_s, counters.user_s, counters.resident_bytes)
    assert (0.25, None) == (counters.io_stall_s, counters.memory_stall_s)
