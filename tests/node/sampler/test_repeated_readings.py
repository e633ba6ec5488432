"""What of a job is read in a sweep: nothing if it has not run, some of it seldom."""

from pathlib import Path

import pytest
from sampling import Reading

from iodaemon.core.sample import JobCounters
from iodaemon.node.sampler import sweep
from iodaemon.node.sampler.proc_files import PAGE_BYTES


class Machine:
    """A directory that looks like / with one job: process 11."""

    def __init__(self, root: Path):
        self.root = root
        self.cgroup = root / "1.1"
        self.cgroup.mkdir()
        (root / "proc/11").mkdir(parents=True)
        (root / "proc/11/statm").write_text("1 1 1 1 0 1 0\n")
        (self.cgroup / "cgroup.procs").write_text("11\n")
        (self.cgroup / "cgroup.stat").write_text("nr_descendants 0\n")
        self.moves(0)
        self.runs(0)
        self.reading = Reading(root)

    def moves(self, read_bytes):
        (self.root / "proc/11/io").write_text(
            f"rchar: 0\nwchar: 0\nsyscr: 0\nsyscw: 0\nread_bytes: {read_bytes}\n"
            "write_bytes: 0\ncancelled_write_bytes: 0\n"
        )

    def runs(self, usage_us):
        text = f"usage_usec {usage_us}\nuser_usec {usage_us}\nsystem_usec 0\n"
        (self.cgroup / "cpu.stat").write_text(text)

    def settle(self):
        """Until it is read seldom what is read seldom."""
        for us in range(1, 4 * sweep._FIRST_READINGS):
            self.runs(us)
            self.reading.sweep()


@pytest.fixture
def machine(tmp_path):
    built = Machine(tmp_path)
    yield built
    built.reading.close()


def test_of_a_job_that_has_not_run_nothing_is_read_unless_that_is_wanted(machine):
    machine.reading.sweep()
    machine.moves(4096)

    assert machine.reading.sweep() is None
    assert machine.reading.sweep(is_wanted=True).read_bytes == 4096

    machine.moves(8192)
    machine.runs(7)

    assert machine.reading.sweep().read_bytes == 8192


def test_a_job_whose_io_may_not_be_read_is_tried_each_time(machine):
    io = machine.root / "proc/11/io"
    io.unlink()
    io.symlink_to("/proc/sys/vm/compact_memory")  # which nobody may read
    first = machine.reading.sweep()
    io.unlink()
    machine.moves(5)

    assert (None, 5) == (first.read_bytes, machine.reading.sweep().read_bytes)


def test_after_many_repetitions_everything_is_read_again(machine):
    machine.reading.sweep()
    machine.moves(4096)
    told = [machine.reading.sweep() for _ in range(sweep._MOST_REPEATS)]

    assert [4096] == [counters.read_bytes for counters in told if counters is not None]


def test_memory_is_told_a_few_sweeps_late_and_what_was_moved_at_once(machine):
    machine.settle()
    (machine.root / "proc/11/statm").write_text("1 5 1 1 0 1 0\n")
    told = []
    for us in range(100, 100 + sweep._SELDOM):
        machine.runs(us)
        machine.moves(us)
        told.append(machine.reading.sweep())

    assert [100, 101, 102, 103] == [counters.read_bytes for counters in told]
    assert told[-1].resident_bytes == 5 * PAGE_BYTES


def test_who_has_asked_for_something_is_asked_at_once_for_how_long_it_waits(machine):
    (machine.cgroup / "io.pressure").write_text("some avg10=0.00 total=0\n")
    machine.settle()
    (machine.cgroup / "io.pressure").write_text("some avg10=0.00 total=250000\n")
    machine.runs(100)
    machine.moves(1)

    assert machine.reading.sweep().io_stall_s == 0.25


def on_disks(counters):
    return counters.device_read_bytes, counters.device_written_bytes


def test_what_is_written_back_for_a_job_that_has_not_run_is_told(machine):
    io_stat = machine.cgroup / "io.stat"
    io_stat.write_text("")
    first = machine.reading.sweep()
    io_stat.write_text("254:0 rbytes=0 wbytes=8192 rios=0 wios=2 dbytes=0 dios=0\n")
    told = [machine.reading.sweep() for _ in range(sweep._SELDOM)]

    assert on_disks(first) == (0, 0)
    assert [(0, 8192)] == [on_disks(counters) for counters in told if counters is not None]


def test_only_what_was_moved_on_leaf_disks_counts(machine):
    """Partitions, volumes and arrays on them say the same bytes again."""
    line = "rbytes=1 wbytes=100 rios=1 wios=1 dbytes=0 dios=0"
    layers = "".join(f"{number} {line}\n" for number in ("254:0", "254:1", "252:0", "9:9", "7:0"))
    (machine.cgroup / "io.stat").write_text(layers)

    assert on_disks(machine.reading.sweep()) == (1, 100)


def test_what_a_container_hides_is_unknown_and_all_else_is_known(machine):
    machine.runs(1_500_000)
    counters = machine.reading.sweep()

    known = {"read_bytes": 0, "written_bytes": 0, "operations": 0, "logical_bytes": 0}
    times = {"cpu_s": 1.5, "user_s": 1.5, "resident_bytes": PAGE_BYTES}
    assert counters == JobCounters(**known, **times)


def test_a_job_that_is_gone_has_moved_what_was_waited_for(machine):
    machine.reading.sweep()
    for name in ("cgroup.procs", "cgroup.stat", "cpu.stat"):
        (machine.cgroup / name).unlink()
    (machine.root / "proc/11/io").unlink()
    machine.reading.close()
    counters = Reading(machine.root).sweep()

    assert (0, None) == (counters.read_bytes, counters.cpu_s)
