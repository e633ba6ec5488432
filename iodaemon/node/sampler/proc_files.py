r"""Files of /proc: one parser each, and ``KeptFile``, which reads one again and again.

A parser takes the file's bytes; what is missing or cut short is ``NoData``, an ordinary answer.
Counters are as the kernel counts them, in base units. Standard library only.

========================== ============ ========================================================
file                       since Linux  documentation
========================== ============ ========================================================
/proc/diskstats            2.6          Documentation/admin-guide/iostats.rst
/proc/locks                2.6          man proc_locks(5)
/proc/meminfo              2.6          Documentation/filesystems/proc.rst, man proc_meminfo(5)
/proc/pressure/{io,...}    4.20         Documentation/accounting/psi.rst; also a cgroup's *.pressure
/proc/stat                 2.6          Documentation/filesystems/proc.rst 1.7, man proc_stat(5)
/proc/vmstat               3.15, 4.13   man proc_vmstat(5), mm/workingset.c, mm/oom_kill.c
/proc/PID/cgroup           2.6.24       man cgroups(7)
/proc/PID/io               2.6.20       Documentation/filesystems/proc.rst 3.3, man proc_pid_io(5)
/proc/PID/mountinfo        2.6.26       man proc_pid_mountinfo(5)
/proc/PID/statm            2.6          man proc_pid_statm(5)
/proc/PID/status           2.6          man proc_pid_status(5)
/proc/PID/task/*/children  3.5          man proc_tid_children(5), CONFIG_PROC_CHILDREN
========================== ============ ========================================================

A process that hangs in execve(2) holds its ``exec_update_lock`` for as long as the close of a
close-on-exec file takes: with a dead NFS or FUSE server, for ever. A reader of certain files of
that process waits as long, and only a fatal signal ends the wait. Seen on Linux 6.18:

- They wait: ``stat``, ``io``, ``personality``, ``stack``, ``syscall``, ``wchan``, also through a
  descriptor that was opened before, and of ``task/TID``; the open of ``auxv``, ``environ``,
  ``maps``, ``numa_maps``, ``smaps``; the links ``cwd``, ``exe``, ``root``, ``ns/*`` and ``fd/*``;
  kcmp(2), pidfd_getfd(2).
- They answer: ``status``, ``statm``, ``cgroup``, ``cmdline``, ``comm``, ``limits``, ``mountinfo``,
  ``sched``, ``schedstat``, ``task/TID/children``, the names in ``fd`` and ``fdinfo``,
  ``fdinfo/N``; stat(2) of ``/proc/PID`` itself; getsid(2), pidfd_open(2), the pidfd and its
  ``fdinfo``, signals.

So states and kinship come from ``status``, and ``io`` is read with care (``job_io``).
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from iodaemon.errors import NoData

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
"""/proc/stat counts in USER_HZ, which is 100 everywhere but on alpha."""
_US_PER_S: Final = 1_000_000
_KB_BYTES: Final = 1024
"""What /proc/meminfo calls kB."""

# -- reading ---------------------------------------------------------------------------------------

_RECORD_BYTES: Final = 4096
"""Room for a file that is one record; the longest, /proc/meminfo, has about 1.6 KiB in 6.18."""
WHOLE_BYTES: Final = 4000
"""A text that is shorter is whole: one read gives a page, less a part of a line."""
_CHUNK_BYTES: Final = 8192
"""One read of a file of many records gives at most a page or so (fs/seq_file.c)."""
_GONE: Final = frozenset(
    {
        errno.ENOENT,  # no such file: process reaped, kernel without the feature
        errno.ENOTDIR,
        errno.ESRCH,  # the descriptor's process was reaped, whatever has its number now
        errno.ENODEV,  # the descriptor's cgroup was removed
        errno.EOPNOTSUPP,  # pressure accounting is switched off
    }
)


class KeptFile:
    """A kernel file that is read again and again through one descriptor.

    pread at offset 0 makes the kernel write the file afresh (fs/seq_file.c); it costs 0.7 to
    1 us where open, read and close cost 2.1 to 3.5 us. A descriptor of /proc/PID/... stays with
    its process: once that is reaped a read fails (ESRCH), even when the number is used again.

    Invariant: the descriptor is open from the first successful read until the file is found
    gone or ``close``, or the object is collected.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path | str) -> None:
        self._fd: int | None = None
        self.path = os.fspath(path)

    def read_record(self, size: int = _RECORD_BYTES, offset: int = 0) -> bytes:
        """The text now of a file that the kernel writes as one record (up to 4 KiB).

        Args:
            size: of the beginning that is wanted, where the record may be longer.
            offset: of the first byte.

        Raises:
            NoData: it does not exist (any more).
            OSError: it exists, but may not be read.
        """
        try:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._fd, size, offset)
        except OSError as error:
            if error.errno in _GONE:
                self.close()
            raise _judge(self.path, error) from error

    def read(self, most_bytes: int | None = None) -> bytes:
        """The text now, however many records long; more than ``most_bytes`` is ``NoData``."""
        text = chunk = self.read_record(_CHUNK_BYTES)
        while chunk:
            text += (chunk := self.read_record(_CHUNK_BYTES, len(text)))
            if most_bytes is not None and len(text) > most_bytes:
                raise NoData(f"{self.path}: longer than {most_bytes} bytes")
        return text

    def close(self) -> None:
        """Close the descriptor; a later read opens the file anew."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def read_seldom(path: str) -> bytes:
    """The text of a file that is one record, or many short ones; as ``KeptFile.read``."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, _RECORD_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        raise _judge(path, error) from error
    return text if len(text) < WHOLE_BYTES else KeptFile(path).read()


def _judge(path: str, error: OSError) -> Exception:
    return NoData(f"{path}: {os.strerror(error.errno)}") if error.errno in _GONE else error


def whole_lines(text: bytes) -> list[bytes]:
    """The lines, less a last one that is cut short (has no line feed)."""
    return text.split(b"\n")[:-1]


def find_count(text: bytes, name: bytes) -> int | None:
    """The number on the line ``NAME NUMBER``; None: there is no such line, or it is cut short.

    For long files of which few lines are wanted: the others are not parsed.
    """
    at = 0 if text.startswith(name + b" ") else text.find(b"\n" + name + b" ") + 1
    if at == 0 and not text.startswith(name + b" "):
        return None
    start = at + len(name) + 1
    end = text.find(b"\n", start)
    digits = text[start:end]
    return int(digits) if end > start and digits.isdigit() else None


# -- the machine -----------------------------------------------------------------------------------

_NAME_WORDS: Final = 3
"""Major, minor and name come before the fields of a disk."""
_FIELD_COUNTS: Final = (17, 15, 11)
"""Fields after the name: since Linux 5.5 with flushes, since 4.18 with discards, before that."""


def parse_diskstats(
    text: bytes, wanted: Container[str] | None = None
) -> dict[str, tuple[int, ...]]:
    """The 17 fields of each device, in the kernel's order; partitions are devices here too.

    Fields that an older kernel does not have are 0; further ones of a newer kernel are not read. A
    line that is cut short, or has fewer than 11 fields (partitions before Linux 2.6.25), is left
    out.

    Args:
        text: the file.
        wanted: only these; None: all.
    """
    counters: dict[str, tuple[int, ...]] = {}
    any_device = False
    for line in whole_lines(text):
        words = line.split(None, _NAME_WORDS)
        if len(words) <= _NAME_WORDS:
            continue
        name = words[2].decode(errors="surrogateescape")
        if wanted is not None and name not in wanted:
            any_device = True
            continue
        fields = _parse_fields(words[_NAME_WORDS].split())
        if fields is not None:
            any_device = True
            counters[name] = fields
    if not any_device:
        raise NoData("diskstats: no device in it")
    return counters


def _parse_fields(words: list[bytes]) -> tuple[int, ...] | None:
    count = next((count for count in _FIELD_COUNTS if len(words) >= count), 0)
    if not count:
        return None
    try:
        return (*map(int, words[:count]), *(0,) * (_FIELD_COUNTS[0] - count))
    except ValueError:
        return None


_IDLE, _IOWAIT = 4, 5
"""Words of a line of /proc/stat, the name being the first."""
_CPU_FIELDS: Final = 8
"""user to steal; what guests use is in user and nice already."""


def parse_idle(text: bytes, *, ticks_per_s: int = _TICKS_PER_S) -> dict[int, float]:
    """Idle and iowait since boot in a /proc/stat, s, by CPU; no CPU that is offline.

    Both may go back a little: iowait is charged to the CPU on which a waiting task last ran.
    """
    idle_s: dict[int, float] = {}
    for line in whole_lines(text):
        if not line.startswith(b"cpu"):
            break
        words = line.split(None, _IOWAIT + 1)
        digits = words[0][3:], *words[_IDLE : _IOWAIT + 1]
        if len(digits) == 3 and all(map(bytes.isdigit, digits)):
            cpu, idle, iowait = map(int, digits)
            idle_s[cpu] = (idle + iowait) / ticks_per_s
    if not idle_s:
        raise NoData("stat: no line of a CPU")
    return idle_s


def parse_cpu_ticks(text: bytes) -> tuple[int, ...]:
    """Ticks of all CPUs together in a /proc/stat, user to steal; empty: there are none in it."""
    for line in whole_lines(text):
        words = line.split()
        if words[:1] == [b"cpu"]:
            fields = words[1 : 1 + _CPU_FIELDS]
            return tuple(map(int, fields)) if all(map(bytes.isdigit, fields)) else ()
    return ()


class Meminfo(NamedTuple):
    """Usable memory (MemTotal), page cache that waits to be written and that is being written, and
    what can be had without swapping (MemAvailable; None before Linux 3.14).
    """

    total_bytes: int
    dirty_bytes: int
    writeback_bytes: int
    available_bytes: int | None = None


_MEMINFO: Final = re.compile(
    rb"^(MemTotal|MemAvailable|Dirty|Writeback): +(\d+) kB\n", re.MULTILINE
)


def parse_meminfo(text: bytes) -> Meminfo:
    """The gauges in a /proc/meminfo; without MemTotal, Dirty or Writeback it is ``NoData``."""
    values = {name: int(kb) * _KB_BYTES for name, kb in _MEMINFO.findall(text)}
    try:
        return Meminfo(
            values[b"MemTotal"],
            values[b"Dirty"],
            values[b"Writeback"],
            values.get(b"MemAvailable"),
        )
    except KeyError as error:
        raise NoData(f"meminfo: no line {error.args[0].decode()}") from error


def parse_refaults(text: bytes) -> int:
    """Pages in a /proc/vmstat that were read again shortly after they had been given up.

    A refault is a page that would still be in memory with a little more of it: page cache and, as
    of Linux 5.9, where they are counted apart, swap. They stand in the file's first 4 KiB.

    Raises:
        NoData: the kernel does not count refaults, or the text is cut short before them.
    """
    file, anon = (find_count(text, b"workingset_refault_" + kind) for kind in (b"file", b"anon"))
    if file is not None and anon is not None:
        return file + anon
    both = find_count(text, b"workingset_refault")
    if both is None:
        raise NoData("vmstat: no whole line of workingset_refault")
    return both


def parse_oom_kills(text: bytes) -> int | None:
    """Processes in a /proc/vmstat that were killed for memory: the machine's, or any cgroup's.

    None: the kernel does not count them (before Linux 4.13), or the text is cut short.
    """
    return find_count(text, b"oom_kill")


class Pressure(NamedTuple):
    """Since boot, or since the cgroup was made: time in which at least one task waited for the
    resource, and in which all tasks that were not idle did (None: not counted).
    """

    some_s: float
    full_s: float | None = None


_TOTALS: Final = re.compile(rb"^(\w+) .*total=(\d+)\n", re.MULTILINE)


def parse_pressure(text: bytes) -> Pressure:
    """The stall times in a pressure file, of the machine or of a cgroup."""
    found = _TOTALS.findall(text)
    totals_s = {kind: int(digits) / _US_PER_S for kind, digits in found}
    if b"some" not in totals_s:
        raise NoData("pressure: no total of some")
    return Pressure(totals_s[b"some"], totals_s.get(b"full"))


def find_holder(path: str) -> int | None:
    """The process that has an exclusive lock on this file (/proc/locks); None: no process.

    Each line is ``1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END``; a process that waits
    for a lock has ``->`` behind the number. A filesystem may give its device another number there
    than stat(2) does (btrfs), so that is not compared.

    Raises:
        OSError: the file cannot be looked at.
    """
    inode = os.stat(path).st_ino
    with open("/proc/locks") as file:
        for line in file:
            words = line.split()
            if len(words) < 6 or words[1] == "->" or words[3] != "WRITE":
                continue
            pid = int(words[4])
            if words[5].rpartition(":")[2] == str(inode) and pid > 0:
                return pid
    return None


# -- mounts ----------------------------------------------------------------------------------------

_OCTAL: Final = re.compile(rb"\\([0-7]{3})")
_FIXED_WORDS: Final = 6
"""Words before the optional fields, which end with a lone hyphen."""


class Mount(NamedTuple):
    """One line of mountinfo.

    Attributes:
        mount_id: number of this mount.
        parent_id: number of the mount it is mounted on; of one outside for the topmost.
        device_number: ``major:minor``; major 0 where there is no block device.
        subtree: the directory of the filesystem that is the root of this mount.
        mount_point: where it is, seen from the process's root.
        filesystem: type, for example ``ext4``.
        source: filesystem-specific: a device, ``host:/export``, or a word.
        options: of the filesystem (not of this mount), in their order, for example
            ``upperdir=/a``.
    """

    mount_id: int
    parent_id: int
    device_number: str
    subtree: str
    mount_point: str
    filesystem: str
    source: str
    options: tuple[str, ...] = ()


def parse_mountinfo(text: bytes) -> tuple[Mount, ...]:
    r"""All mounts, in the order of mounting; a line that is cut short is left out.

    Space, tab, line feed and backslash in a path are written as ``\ooo``.
    """
    mounts = tuple(mount for mount in map(parse_mount, whole_lines(text)) if mount is not None)
    if not mounts:
        raise NoData("mountinfo: no mount in it")
    return mounts


def parse_mount(line: bytes) -> Mount | None:
    """One line of mountinfo; None: it is none."""
    words = line.split(b" ")
    try:
        hyphen = words.index(b"-", _FIXED_WORDS)
        filesystem, source, options = words[hyphen + 1 : hyphen + 4]
        return Mount(
            mount_id=int(words[0]),
            parent_id=int(words[1]),
            device_number=words[2].decode(),
            subtree=_unescape(words[3]),
            mount_point=_unescape(words[4]),
            filesystem=_unescape(filesystem),
            source=_unescape(source),
            options=tuple(_unescape(option) for option in options.split(b",")),
        )
    except ValueError:
        return None


def _unescape(word: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), word))


def read_mounts(root: Path = Path("/"), pid: int | str = "self") -> tuple[Mount, ...]:
    """The mounts that a process sees, by default this one; empty where they cannot be read."""
    try:
        return parse_mountinfo(KeptFile(root / "proc" / str(pid) / "mountinfo").read())
    except NoData:
        return ()


def find_mount(mounts: Sequence[Mount], path: str) -> Mount | None:
    """The mount that a path without symbolic links is on; None: not below any of them.

    Walks down as the kernel does, because a later mount hides earlier ones below it.
    """
    ids = {mount.mount_id for mount in mounts}
    tops = [mount for mount in mounts if mount.parent_id not in ids and _holds(mount, path)]
    found = max(tops, key=lambda mount: len(mount.mount_point), default=None)
    while found is not None:
        step = _find_next(mounts, found, path)
        if step is None:
            break
        found = step
    return found


def _find_next(mounts: Iterable[Mount], above: Mount, path: str) -> Mount | None:
    below = (
        mount
        for mount in mounts
        if mount.parent_id == above.mount_id
        and mount.mount_id != above.mount_id
        and len(mount.mount_point) >= len(above.mount_point)
        and _holds(mount, path)
    )
    return min(below, key=lambda mount: len(mount.mount_point), default=None)


def _holds(mount: Mount, path: str) -> bool:
    point = mount.mount_point.rstrip("/")
    return path == point or path.startswith(point + "/")


# -- processes -------------------------------------------------------------------------------------

_IO_LABELS: Final = [
    b"rchar:",
    b"wchar:",
    b"syscr:",
    b"syscw:",
    b"read_bytes:",
    b"write_bytes:",
    b"cancelled_write_bytes:",
]
_IO_WORDS: Final = 2 * len(_IO_LABELS)


class ProcIo(NamedTuple):
    """One process with all threads and reaped children, since its start.

    Attributes:
        rchar_bytes: returned by read calls, from wherever (page cache, pipes, terminals).
        wchar_bytes: handed to write calls, to wherever.
        read_calls: read system calls (syscr).
        write_calls: write system calls (syscw).
        read_bytes: submitted to a device or network filesystem: readahead, page faults and
            swap-in included.
        write_bytes: dirtied in the page cache or written directly; no swap-out.
        cancelled_write_bytes: dirtied by anybody, then truncated by this process before it
            reached the disk; may exceed ``write_bytes``.
    """

    rchar_bytes: int
    wchar_bytes: int
    read_calls: int
    write_calls: int
    read_bytes: int
    write_bytes: int
    cancelled_write_bytes: int


def parse_proc_io(text: bytes) -> ProcIo:
    """The counters in a /proc/PID/io; ``NoData`` also of a kernel that does not count bytes."""
    words = text.split()
    if words[:_IO_WORDS:2] != _IO_LABELS or not text.endswith(b"\n"):
        raise NoData("io: not the seven lines of /proc/PID/io")
    try:
        return ProcIo._make(map(int, words[1:_IO_WORDS:2]))
    except (ValueError, TypeError) as error:
        raise NoData("io: a value is not a number") from error


class Statm(NamedTuple):
    """Address space, what of it is in memory (shared pages included), and the program."""

    size_bytes: int
    resident_bytes: int
    text_bytes: int


def parse_statm(text: bytes, *, page_bytes: int = PAGE_BYTES) -> Statm:
    """The sizes in a /proc/PID/statm; of many threads they may be off by some pages each."""
    words = b"".join(whole_lines(text)[:1]).split()
    try:
        size, resident, _, program = (int(word) * page_bytes for word in words[:4])
    except ValueError as error:
        raise NoData("statm: not four numbers") from error
    return Statm(size, resident, program)


def sum_resident_bytes(root: str, pids: Iterable[int]) -> int | None:
    """Resident memory of the processes, shared pages counted each time; None: all are gone."""
    sizes: list[int] = []
    for pid in dict.fromkeys(pids):
        try:
            sizes.append(parse_statm(read_seldom(f"{root}/proc/{pid}/statm")).resident_bytes)
        except NoData:
            continue
    return sum(sizes) if sizes else None


def parse_proc_cgroup(text: bytes) -> dict[str, str]:
    """The cgroup of a process by controller (``memory``), by name (``name=systemd``), or ``""``.

    The last is that of cgroup v2 (``0::PATH``, Linux 4.5). Paths are as seen from the reader's
    cgroup namespace: one outside of it begins with ``/..``.
    """
    paths: dict[str, str] = {}
    for line in whole_lines(text):
        words = os.fsdecode(line).split(":", 2)
        if len(words) == 3 and words[2].startswith("/"):
            for controller in words[1].split(","):
                paths[controller] = words[2]
    if not paths:
        raise NoData("cgroup: no line ID:CONTROLLERS:PATH")
    return paths


class Status(NamedTuple):
    """A process or one thread: state (R, S, D, T, Z ...), real user, effective group and the
    supplementary ones, NUMA nodes whose memory it may use (``0-3,8``; empty: not said).
    """

    state: str
    uid: int
    groups: frozenset[int]
    memory_nodes: str


def parse_status(text: bytes) -> Status:
    fields = dict(line.split(b":\t", 1) for line in whole_lines(text) if b":\t" in line)
    try:
        groups = fields[b"Gid"].split()[1:2] + fields[b"Groups"].split()
        return Status(
            state=fields[b"State"][:1].decode(),
            uid=int(fields[b"Uid"].split()[0]),
            groups=frozenset(map(int, groups)),
            memory_nodes=fields.get(b"Mems_allowed_list", b"").decode(),
        )
    except (KeyError, ValueError, IndexError) as error:
        raise NoData("status: no whole lines State, Uid, Gid and Groups") from error


def read_status(task: int | str) -> Status | None:
    """Of a process, or of a thread by ``PID/task/TID``; None: it is gone. This never blocks."""
    try:
        return parse_status(KeptFile(f"/proc/{task}/status").read())
    except NoData:
        return None


def find_state(pid: int) -> str | None:
    """Its one-letter state; None: the process is gone."""
    status = read_status(pid)
    return None if status is None else status.state


_LOOK_S: Final = 0.0002
_BLOCKED_LOOKS: Final = 5
"""A read from a disk (a page of this program) is such a wait as well, and a short one."""


def is_blocked(task: int | str) -> bool:
    """Whether a task (``read_status``) waits in the kernel, where only a fatal signal is heard."""
    for _ in range(_BLOCKED_LOOKS):
        status = read_status(task)
        if status is None or status.state != "D":
            return False
        time.sleep(_LOOK_S)
    return True


def is_executing(pid: int) -> bool:
    """Whether the process is inside execve(2): it has a new address space, without a program yet.

    This never blocks. One that hangs just before the new address space is its own is not seen.
    """
    try:
        memory = parse_statm(KeptFile(f"/proc/{pid}/statm").read_record())
    except (NoData, OSError):
        return False
    return memory.size_bytes > 0 and memory.text_bytes == 0


def children_of(pid: int, root: str = "") -> list[int]:
    """Children of all threads of the process, oldest first; ``root`` is before ``/proc``."""
    children: list[int] = []
    try:
        threads = os.listdir(f"{root}/proc/{pid}/task")
    except OSError:
        return children
    for thread in threads:
        try:
            with open(f"{root}/proc/{pid}/task/{thread}/children", "rb") as file:
                children.extend(int(word) for word in file.read().split())
        except OSError:
            continue
    return sorted(children)


def descendants_of(pid: int, root: str = "") -> Iterator[int]:
    """All processes below this one, parents before children; the process itself is not in it.

    Each is named once, also where it is handed on to another parent meanwhile; one that is forked
    meanwhile may be missed. 4 to 5 us a process.
    """
    found = {pid}
    level = children_of(pid, root)
    while new := [one for one in dict.fromkeys(level) if one not in found]:
        found.update(new)
        yield from new
        level = [child for parent in new for child in children_of(parent, root)]
