"""One job's I/O: the rules, on process trees that look like /proc."""

import os
import resource
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from sampling import Measured

from iodaemon.core.sample import JobCounters
from iodaemon.node.sampler.job_io import Position
from iodaemon.node.sampler.proc_files import read_members, sum_resident_bytes
from iodaemon.supervisor.ledger import Use

WRITE_ONLY = Path("/proc/sys/vm/compact_memory")
"""Mode 0200, and the kernel holds even root to it: opening it to read is EACCES."""


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


class Supervisor:
    """What it says it has waited for of one job."""

    def __init__(self) -> None:
        self.reaped = Use()

    def says(self, read=0, written=0, operations=0, logical=0, cancelled=0) -> None:
        self.reaped = Use(read, written, operations, 0, logical, cancelled)


def job_io(root: Path, members: Iterable[int] = (), supervisor=None) -> Measured:
    supervisor = Supervisor() if supervisor is None else supervisor
    return Measured(root, lambda: supervisor.reaped, lambda: members)


@pytest.fixture
def supervisor():
    return Supervisor()


def open_files(root: Path) -> int:
    links = (
        os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_open(fd)
    )
    return sum(link.startswith(str(root)) for link in links)


def is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_the_total_is_what_was_reaped_and_what_members_have(tmp_path, supervisor):
    supervisor.says(read=10, written=3, operations=1, logical=50)
    process(tmp_path, 11, read=20, write=5, calls=3, rchar=70, wchar=8)
    process(tmp_path, 12, read=3, write=1, calls=1)

    counters = job_io(tmp_path, [11, 12], supervisor).read()

    expected = (33, 9, 5, 128)
    assert expected == (
        counters.read_bytes,
        counters.written_bytes,
        counters.operations,
        counters.logical_bytes,
    )


def test_what_a_process_deletes_is_taken_off_wherever_it_was_written(tmp_path, supervisor):
    supervisor.says(written=70)
    process(tmp_path, 11, write=5, cancelled=60)
    io = job_io(tmp_path, [11], supervisor)
    before = io.read().written_bytes
    vanish(tmp_path, 11)
    supervisor.says(written=75, cancelled=60)

    assert (15, 15) == (before, io.read().written_bytes)


def test_a_child_that_is_reaped_is_counted_once(tmp_path, supervisor):
    process(tmp_path, 11, read=20)
    process(tmp_path, 12, read=5)
    process(tmp_path, 13, read=2)
    members = [11, 12, 13]
    io = job_io(tmp_path, members, supervisor)
    before = io.read().read_bytes
    process(tmp_path, 11, read=25)  # by its parent
    vanish(tmp_path, 12)
    supervisor.says(read=2)  # an orphan, by the supervisor
    vanish(tmp_path, 13)
    del members[1:]

    assert (before, io.read().read_bytes) == (27, 27)


def test_a_child_that_vanishes_uncounted_does_not_lower_the_totals(tmp_path):
    process(tmp_path, 11, read=20, rchar=30)
    io = job_io(tmp_path, [11])
    io.read()
    vanish(tmp_path, 11)
    counters = io.read()

    assert (counters.read_bytes, counters.logical_bytes) == (20, 30)


def test_a_child_that_is_reaped_while_the_sum_is_made_counts_late_and_never_twice(
    tmp_path, supervisor
):
    process(tmp_path, 11, read=20)

    def members() -> list[int]:
        if (tmp_path / "proc/11/io").exists():  # asked for after what was reaped
            supervisor.says(read=20)
            vanish(tmp_path, 11)
        return [11]

    io = Measured(tmp_path, lambda: supervisor.reaped, members)

    assert [io.read().read_bytes, io.read().read_bytes] == [0, 20]


def test_what_is_told_late_of_who_is_gone_lowers_nothing_and_is_not_doubled(tmp_path, supervisor):
    """The supervisor's word is as old as the last beat."""
    process(tmp_path, 11, read=20)
    members = [11]
    io = job_io(tmp_path, members, supervisor)
    totals = [io.read().read_bytes]
    vanish(tmp_path, 11)
    process(tmp_path, 12, read=5)
    members[:] = [12]
    totals.append(io.read().read_bytes)
    supervisor.says(read=20)
    totals.append(io.read().read_bytes)

    assert totals == [20, 20, 25]


def test_deleted_before_it_was_written_is_subtracted(tmp_path):
    process(tmp_path, 11, write=100)
    process(tmp_path, 12, cancelled=40)

    assert job_io(tmp_path, [11, 12]).read().written_bytes == 60


def test_a_job_that_deletes_what_others_wrote_has_written_nothing(tmp_path):
    process(tmp_path, 11, write=100)
    process(tmp_path, 12, cancelled=400)

    assert job_io(tmp_path, [11, 12]).read().written_bytes == 0


def test_writing_after_a_deletion_is_seen_again(tmp_path):
    io = job_io(tmp_path, [11])
    written = []
    for write, cancelled in ((100, 0), (100, 100), (150, 100)):
        process(tmp_path, 11, write=write, cancelled=cancelled)
        written.append(io.read().written_bytes)

    assert written == [100, 0, 50]


@pytest.mark.skipif(not WRITE_ONLY.exists(), reason="needs a file that nobody may read")
def test_a_member_that_may_not_be_read_makes_the_io_unknown(tmp_path, supervisor):
    supervisor.says(read=100)
    process(tmp_path, 11, read=10)
    members = [11]
    io = job_io(tmp_path, members, supervisor)
    io.read()
    (tmp_path / "proc/12").mkdir(parents=True)
    (tmp_path / "proc/12/io").symlink_to(WRITE_ONLY)
    members.append(12)

    assert io.read() == JobCounters()


@pytest.mark.skipif(not WRITE_ONLY.exists(), reason="needs a file that nobody may read")
def test_the_io_is_known_again_once_the_unreadable_member_was_reaped(tmp_path, supervisor):
    supervisor.says(read=100)
    (tmp_path / "proc/12").mkdir(parents=True)
    (tmp_path / "proc/12/io").symlink_to(WRITE_ONLY)
    members = [12]
    io = job_io(tmp_path, members, supervisor)
    unknown = io.read().read_bytes
    members.clear()
    supervisor.says(read=150)

    assert (unknown, io.read().read_bytes) == (None, 150)


def test_a_new_member_with_the_number_of_a_gone_one_is_counted(tmp_path, supervisor):
    process(tmp_path, 11, read=20)
    io = job_io(tmp_path, [11], supervisor)
    io.read()
    vanish(tmp_path, 11)
    supervisor.says(read=20)
    process(tmp_path, 11, read=7)

    assert io.read().read_bytes == 27


def test_a_zombie_that_is_no_longer_listed_still_counts(tmp_path):
    process(tmp_path, 11, read=20)
    members = [11]
    io = job_io(tmp_path, members)
    io.read()
    process(tmp_path, 11, read=30)
    members.clear()

    assert io.read().read_bytes == 30


def test_a_process_named_twice_counts_once(tmp_path):
    process(tmp_path, 11, read=20)

    assert job_io(tmp_path, [11, 11]).read().read_bytes == 20


def test_a_job_whose_members_cannot_be_listed_is_what_was_reaped(tmp_path):
    io = Measured(tmp_path, lambda: Use(100), lambda: read_members(str(tmp_path / "gone")))

    assert io.read().read_bytes == 100


def test_one_descriptor_a_process_and_none_of_the_gone(tmp_path):
    pids = list(range(11, 31))
    for pid in pids:
        process(tmp_path, pid)
    io = job_io(tmp_path, pids)
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


def cgroup(directory: Path, **files: str) -> str:
    for name, text in files.items():
        (directory / name.replace("_", ".", 1)).write_text(text)
    return str(directory)


def test_a_cgroup_lists_its_processes_in_the_kernels_order(tmp_path):
    path = cgroup(tmp_path, cgroup_procs="30\n20\n0\n25\n", cgroup_stat="nr_descendants 0\n")

    assert read_members(path) == [30, 20, 25]


def test_those_of_cgroups_that_the_job_made_below_are_listed_as_well(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for where, pid, below in (("", 30, 2), ("a", 0, 1), ("a/b", 25, 0)):
        (tmp_path / where / "cgroup.procs").write_text(f"{pid}\n")
        (tmp_path / where / "cgroup.stat").write_text(f"nr_descendants {below}\n")

    assert read_members(str(tmp_path)) == [30, 25]


# -- descriptors ----------------------------------------------------------------------------------

MANY = 150


@pytest.fixture(scope="module")
def family():
    """A process with many children, and what it reads from a file in the end."""
    script = f"for i in $(seq {MANY}); do sleep 600 & done; echo; read line; kill $(jobs -p); wait"
    with subprocess.Popen(
        ["bash", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as parent:
        parent.stdout.readline()
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        while not all(map(is_asleep, children)):
            time.sleep(0.05)
        yield [int(word) for word in children]
        parent.stdin.write(b"\n")


def is_asleep(pid):
    """Whether it has read all that a program reads at its start."""
    return "(sleep) S" in Path(f"/proc/{pid}/stat").read_text()


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
