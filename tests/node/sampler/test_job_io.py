"""One job's I/O: the rules, on process trees that look like /proc."""

import os
import resource
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from harness import find_state, name_of, until
from sampling import Measured

from iodaemon.core.sample import JobCounters
from iodaemon.node.sampler.job_io import Position
from iodaemon.node.sampler.proc_files import read_members, sum_resident_bytes
from iodaemon.supervisor.ledger import Use

WRITE_ONLY = Path("/proc/sys/vm/compact_memory")
"""Mode 0200, and the kernel holds even root to it: opening it to read is EACCES."""


NOTHING = Use()


def process(
    root: Path,
    pid: int,
    *,
    read=0,
    write=0,
    cancelled=0,
    calls=0,
    rchar=0,
    wchar=0,
    children: Iterable[int] = (),
) -> None:
    """A process of which JobIo can read what it reads of a real one."""
    directory = root / "proc" / str(pid)
    (directory / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
    (directory / "io").write_text(
        f"rchar: {rchar}\nwchar: {wchar}\nsyscr: {calls}\nsyscw: 0\nread_bytes: {read}\n"
        f"write_bytes: {write}\ncancelled_write_bytes: {cancelled}\n"
    )
    (directory / "task" / str(pid) / "children").write_text("".join(f"{pid} " for pid in children))


def vanish(root: Path, pid: int) -> None:
    """As after reaping: an open descriptor has nothing more to say, the path is gone."""
    io = root / "proc" / str(pid) / "io"
    io.write_text("")
    io.unlink()
    (root / "proc" / str(pid) / "task" / str(pid) / "children").unlink()


class Job:
    """A job whose processes, and what was waited for of them, are as each reading finds them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reaped = Use()
        self.members: list[int] = []
        self._there: set[int] = set()
        self.io = Measured(root, lambda: self.reaped, lambda: self.members)

    def finds(
        self, processes: dict[int, dict[str, int]], reaped: Use = NOTHING, members=None
    ) -> JobCounters:
        """What is read where these are there, and these members are listed: all, unless said."""
        for pid in self._there - processes.keys():
            vanish(self.root, pid)
        self._there = set(processes)
        for pid, counters in processes.items():
            process(self.root, pid, **counters)
        self.reaped = reaped
        self.members[:] = processes if members is None else members
        return self.io.read()


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_the_total_is_what_was_reaped_and_what_members_have(job):
    counters = job.finds(
        {
            11: {"read": 20, "write": 5, "calls": 3, "rchar": 70, "wchar": 8},
            12: {"read": 3, "write": 1, "calls": 1},
        },
        Use(10, 3, 1, 0, 50, 0),
        members=[11, 12, 11],  # one is named twice
    )

    assert (33, 9, 5, 128) == (
        counters.read_bytes,
        counters.written_bytes,
        counters.operations,
        counters.logical_bytes,
    )


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        # a child that is reaped is counted once
        (
            [
                ({11: {"read": 20}, 12: {"read": 5}, 13: {"read": 2}},),
                ({11: {"read": 25}}, Use(2)),  # one by its parent, an orphan by the supervisor
            ],
            [27, 27],
        ),
        # one that vanishes uncounted lowers nothing
        ([({11: {"read": 20}},), ({},)], [20, 20]),
        # what is told late of who is gone is not doubled
        ([({11: {"read": 20}},), ({12: {"read": 5}},), ({12: {"read": 5}}, Use(20))], [20, 20, 25]),
        # a zombie that is no longer listed still counts
        ([({11: {"read": 20}},), ({11: {"read": 30}}, NOTHING, [])], [20, 30]),
    ],
)
def test_what_was_read_is_counted_once_and_falls_never(job, readings, expected):
    assert expected == [job.finds(*reading).read_bytes for reading in readings]


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        # wherever it was written
        (
            [
                ({11: {"write": 5, "cancelled": 60}}, Use(0, 70)),
                ({}, Use(0, 75, cancelled_bytes=60)),
            ],
            [15, 15],
        ),
        # by another process
        ([({11: {"write": 100}, 12: {"cancelled": 40}},)], [60]),
        # what others wrote
        ([({11: {"write": 100}, 12: {"cancelled": 400}},)], [0]),
        # and writing after that is seen again
        (
            [
                ({11: {"write": 100}},),
                ({11: {"write": 100, "cancelled": 100}},),
                ({11: {"write": 150, "cancelled": 100}},),
            ],
            [100, 0, 50],
        ),
    ],
)
def test_what_is_deleted_before_it_reaches_the_disk_is_taken_off(job, readings, expected):
    assert expected == [job.finds(*reading).written_bytes for reading in readings]


def test_a_new_member_with_the_number_of_a_gone_one_is_counted(job):
    job.finds({11: {"read": 20}})
    vanish(job.root, 11)

    assert 27 == job.finds({11: {"read": 7}}, Use(20)).read_bytes


def test_a_child_that_is_reaped_while_the_sum_is_made_counts_late_and_never_twice(tmp_path):
    process(tmp_path, 11, read=20)
    reaped = [Use()]

    def members():
        if (tmp_path / "proc/11/io").exists():  # asked for after what was reaped
            reaped[0] = Use(20)
            vanish(tmp_path, 11)
        return [11]

    io = Measured(tmp_path, lambda: reaped[0], members)

    assert [io.read().read_bytes, io.read().read_bytes] == [0, 20]


@pytest.mark.skipif(not WRITE_ONLY.exists(), reason="needs a file that nobody may read")
def test_a_member_that_may_not_be_read_makes_the_io_unknown_until_it_was_reaped(job):
    (job.root / "proc/12").mkdir(parents=True)
    (job.root / "proc/12/io").symlink_to(WRITE_ONLY)
    known = job.finds({11: {"read": 10}}, Use(100))
    unknown = job.finds({11: {"read": 10}}, Use(100), members=[11, 12])
    again = job.finds({11: {"read": 10}}, Use(150))

    assert (110, JobCounters(), 160) == (known.read_bytes, unknown, again.read_bytes)


def test_a_job_whose_members_cannot_be_listed_is_what_was_reaped(tmp_path):
    io = Measured(tmp_path, lambda: Use(100), lambda: read_members(str(tmp_path / "gone")))

    assert io.read().read_bytes == 100


def open_files(root: Path) -> int:
    links = (
        os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_open(fd)
    )
    return sum(link.startswith(str(root)) for link in links)


def is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_one_descriptor_a_process_and_none_of_the_gone(tmp_path):
    pids = list(range(11, 31))
    for pid in pids:
        process(tmp_path, pid)
    io = Measured(tmp_path, Use, lambda: pids)
    counts = [open_files(tmp_path)]
    for _ in range(3):
        io.read()
    counts.append(open_files(tmp_path))
    for pid in pids[:15]:
        vanish(tmp_path, pid)
    io.read()
    counts.append(open_files(tmp_path))
    io.close()
    counts.append(open_files(tmp_path))

    assert counts == [0, 20, 5, 0]


def test_resident_memory_is_the_sum_over_those_that_are_there(tmp_path):
    for pid, pages in ((11, 100), (12, 20)):
        process(tmp_path, pid)
        (tmp_path / f"proc/{pid}/statm").write_text(f"500 {pages} 1 1 0 1 0\n")
    page_bytes = os.sysconf("SC_PAGE_SIZE")

    assert sum_resident_bytes(str(tmp_path), [11, 12, 13, 11]) == 120 * page_bytes
    assert sum_resident_bytes(str(tmp_path), [13]) is None


def test_a_cgroup_lists_its_processes_and_those_of_cgroups_that_the_job_made_below(tmp_path):
    """In the kernel's order, but for those of another namespace."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    for where, pids, below in (("", "30\n20\n0\n25\n", 2), ("a", "0\n", 1), ("a/b", "26\n", 0)):
        (tmp_path / where / "cgroup.procs").write_text(pids)
        (tmp_path / where / "cgroup.stat").write_text(f"nr_descendants {below}\n")

    assert read_members(str(tmp_path)) == [30, 20, 25, 26]
    assert read_members(str(tmp_path / "a/b")) == [26]


# -- descriptors ----------------------------------------------------------------------------------

MANY = 60


@pytest.fixture(scope="module")
def family():
    """Processes that do nothing, of which all is read."""
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(MANY)]
    for child in children:
        until(lambda pid=child.pid: name_of(pid) == "sleep" and find_state(pid) == "S", "sleep")
    yield [child.pid for child in children]
    for child in children:
        child.kill()
        child.wait()


def kept():
    """This process's descriptors of processes' I/O."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return sum(link.startswith("/proc/") and link.endswith("/io") for link in links)


def having(spare):
    position = Position()
    position.spare = spare
    return position


def test_all_jobs_together_keep_what_is_allowed_and_are_still_read(family):
    position = having(40)
    jobs = [Measured("/", Use, lambda: family, position) for _ in "abc"]
    before = [io.read() for io in jobs]
    held = kept()
    jobs[0].close()  # the only one that has any
    again = jobs[1].read()

    assert 40 == held
    assert before[0].operations == before[1].operations == before[2].operations
    assert again.operations is not None
    assert (40, 0) == (kept(), position.spare)
    for io in jobs[1:]:
        io.close()
    assert (0, 40) == (kept(), position.spare)


def test_what_is_kept_counts_for_one_that_is_gone_no_more(tmp_path):
    position = having(2)
    for number in (1, 2, 3, 4):
        (tmp_path / f"proc/{number}").mkdir(parents=True)
        (tmp_path / f"proc/{number}/io").write_text(Path("/proc/self/io").read_text())
    members = [2, 3]
    io = Measured(tmp_path, Use, lambda: members, position)
    io.read()
    full = position.spare
    for number in members:
        (tmp_path / f"proc/{number}/io").write_text("")
    members[:] = [4]
    io.read()
    io.read()

    assert (0, 1) == (full, position.spare)
    io.close()


def test_the_jobs_leave_more_than_they_take():
    """For files that are opened for one reading only."""
    assert 0 < Position().spare < resource.getrlimit(resource.RLIMIT_NOFILE)[0] / 2
