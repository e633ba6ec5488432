r"""Kernel files of /proc and of cgroups: one parser for each, and how such a file is read.

A parser takes the file's bytes and raises ``NoData``, an ordinary result, if something is missing
or cut short. Counters are in base units. Standard library only. The supervisor reads ``io`` and
``status`` of a process as well, so ``supervisor.reap`` parses them.

========================== ============ ========================================================
file                       since Linux  documentation
========================== ============ ========================================================
/proc/diskstats            2.6          Documentation/admin-guide/iostats.rst
/proc/meminfo              2.6          Documentation/filesystems/proc.rst, man proc_meminfo(5)
/proc/pressure/{io,...}    4.20         Documentation/accounting/psi.rst; also a cgroup's *.pressure
/proc/stat                 2.6          Documentation/filesystems/proc.rst 1.7, man proc_stat(5)
/proc/vmstat               3.15         man proc_vmstat(5), mm/workingset.c
/proc/PID/cgroup           2.6.24       man cgroups(7)
/proc/PID/mountinfo        2.6.26       man proc_pid_mountinfo(5)
/proc/PID/statm            2.6          man proc_pid_statm(5)
cgroup.{events,procs}      4.5          Documentation/admin-guide/cgroup-v2.rst
cgroup.stat                4.14         the same
cpu.stat                   4.15         the same, "CPU Interface Files"
io.stat                    4.5          the same, "IO Interface Files"
memory.stat                4.5          the same, "Memory Interface Files"
memory.stat of v1          2.6.28       Documentation/admin-guide/cgroup-v1/memory.rst 5.2
========================== ============ ========================================================

A process in execve(2) holds its ``exec_update_lock`` while its close-on-exec files are closed: with
a dead NFS or FUSE server, for ever. A reader of certain files of that process waits as long, and
only a fatal signal ends the wait. Seen on Linux 6.18:

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
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from iodaemon.errors import NoData
from iodaemon.supervisor.reap import read_small, read_state

_T = TypeVar("_T")
Reader = Callable[[str], bytes]

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
"""/proc/stat counts in USER_HZ, which is 100 everywhere but on alpha."""
_US_PER_S: Final = 1_000_000
_KB_BYTES: Final = 1024
"""What /proc/meminfo calls kB."""

# -- reading ---------------------------------------------------------------------------------------

_RECORD_BYTES: Final = 4096
"""Room for a file of one record; the longest, /proc/meminfo, has about 1.6 KiB in 6.18."""
_CHUNK_BYTES: Final = 8192
"""One read of a file of many records returns about a page (fs/seq_file.c)."""
_GONE: Final = frozenset(
    {
        errno.ENOENT,  # no such file: process reaped, kernel without the feature
        errno.ENOTDIR,
        errno.ESRCH,  # the descriptor's process was reaped, whatever has its number now
        errno.ENODEV,  # the descriptor's cgroup was removed
        errno.EOPNOTSUPP,  # pressure accounting is switched off
    }
)


def read_file(path: str | Path, most_bytes: int | None = None) -> bytes:
    """The text of a file of many records.

    Raises:
        NoData: the file does not exist (any more), or is longer than ``most_bytes``.
        OSError: the file exists, but may not be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = part = os.read(fd, _CHUNK_BYTES)
            while part and (most_bytes is None or len(text) <= most_bytes):
                text += (part := os.read(fd, _CHUNK_BYTES))
        finally:
            os.close(fd)
    except OSError as error:
        raise _judge(path, error) from error
    if most_bytes is not None and len(text) > most_bytes:
        raise NoData(f"{path}: longer than {most_bytes} bytes")
    return text


class KeptFile:
    """A file of one record that is read repeatedly through one descriptor.

    pread at offset 0 makes the kernel generate the text again (fs/seq_file.c). It costs 0.7 to 1,
    open, read and close 2.1 to 3.5 us. A descriptor of /proc/PID/... stays with its process:
    after that is reaped a read fails (ESRCH), even if the pid is used again.

    The descriptor stays open until the file is gone or ``close``. It also stays open while the file
    may not be read: opened again, the path could be another process's.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: str) -> None:
        self._fd = -1
        self.path = path

    def read(self, size: int = _RECORD_BYTES) -> bytes:
        """The beginning of the file; raises as ``read_file`` does."""
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._fd, size, 0)
        except OSError as error:
            if error.errno in _GONE:
                self.close()
            raise _judge(self.path, error) from error

    def close(self) -> None:
        """Close the descriptor; a later read opens the file again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def known(path: str, parse: Callable[[bytes], _T], read: Reader = read_small) -> _T | None:
    """What a file says, or None if it is missing, unreadable or cut short.

    Of a file of many records ``read_small`` returns the first page.
    """
    try:
        return parse(read(path))
    except (NoData, OSError, ValueError):
        return None


def _judge(path: str | Path, error: OSError) -> Exception:
    return NoData(f"{path}: {os.strerror(error.errno)}") if error.errno in _GONE else error


def whole_lines(text: bytes) -> list[bytes]:
    """The lines without a last one that is cut short (has no line feed)."""
    return text.split(b"\n")[:-1]


def find_count(text: bytes, name: bytes) -> int | None:
    """The number on the line ``NAME NUMBER``, or None without such a whole line."""
    at = 0 if text.startswith(name + b" ") else text.find(b"\n" + name + b" ") + 1
    start = at + len(name) + 1
    end = text.find(b"\n", start)
    digits = text[start:end]
    is_there = end > start and text.startswith(name + b" ", at)
    return int(digits) if is_there and digits.isdigit() else None


# -- the machine -----------------------------------------------------------------------------------

_NAME_WORDS: Final = 3
"""Major, minor and name come before the fields of a disk."""
_DISK_FIELDS: Final = 17
"""After the name: since Linux 5.5 with flushes; 15 since 4.18 with discards, 11 before that."""
_LEAST_FIELDS: Final = 11


def parse_diskstats(
    text: bytes, wanted: Container[str] | None = None
) -> dict[str, tuple[int, ...]]:
    """The 17 fields of each device or partition (or of the wanted ones), in the kernel's order.

    Fields that an older kernel does not have are 0, additional ones of a newer kernel are ignored.
    Lines that are cut short or have fewer than 11 fields (partitions before Linux 2.6.25) are
    left out.
    """
    counters: dict[str, tuple[int, ...]] = {}
    for line in whole_lines(text):
        words = line.split(None, _NAME_WORDS)
        if len(words) <= _NAME_WORDS:
            continue
        name = words[2].decode(errors="surrogateescape")
        if wanted is None or name in wanted:
            fields = words[_NAME_WORDS].split()[:_DISK_FIELDS]
            if len(fields) >= _LEAST_FIELDS and all(map(bytes.isdigit, fields)):
                counters[name] = (*map(int, fields), *(0,) * (_DISK_FIELDS - len(fields)))
    return counters


_IDLE: Final = re.compile(rb"^cpu(\d+)(?: \d+){3} (\d+) (\d+)[ \n]", re.MULTILINE)
"""Behind user, nice and system; no line that is cut short."""


def parse_idle(text: bytes) -> dict[int, float]:
    """Idle and iowait since boot, s, by online CPU.

    Both may go back a little: iowait is charged to the CPU on which a waiting task last ran.
    """
    found = (tuple(map(int, numbers)) for numbers in _IDLE.findall(text))
    idle_s = {cpu: (idle + iowait) / _TICKS_PER_S for cpu, idle, iowait in found}
    if not idle_s:
        raise NoData("stat: no line of a CPU")
    return idle_s


class Meminfo(NamedTuple):
    """MemTotal, Dirty, Writeback, and MemAvailable (None before Linux 3.14)."""

    total_bytes: int
    dirty_bytes: int
    writeback_bytes: int
    available_bytes: int | None = None


_MEMINFO: Final = re.compile(
    rb"^(MemTotal|MemAvailable|Dirty|Writeback): +(\d+) kB\n", re.MULTILINE
)


def parse_meminfo(text: bytes) -> Meminfo:
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


def parse_refaults(text: bytes, prefix: bytes = b"") -> int:
    """Pages that were read again soon after they were evicted, in /proc/vmstat or (with the prefix
    of its names there) in a memory.stat; a little more memory would have kept them.

    Page cache and, since Linux 5.9 and in a line of its own, swap. Within the first 4 KiB.
    """
    name = prefix + b"workingset_refault"
    file, anon = (find_count(text, name + kind) for kind in (b"_file", b"_anon"))
    both = find_count(text, name) if file is None or anon is None else file + anon
    if both is None:
        raise NoData("vmstat: no whole line of workingset_refault")
    return both


_SOME: Final = re.compile(rb"^some .*total=(\d+)\n", re.MULTILINE)


def parse_pressure(text: bytes) -> float:
    """Time in which at least one task waited, s, since boot or since the cgroup was made."""
    if (found := _SOME.search(text)) is None:
        raise NoData("pressure: no total of some")
    return int(found[1]) / _US_PER_S


# -- mounts ----------------------------------------------------------------------------------------

_OCTAL: Final = re.compile(rb"\\([0-7]{3})")
_FIXED_WORDS: Final = 6
"""Words before the optional fields, which end with a lone hyphen."""


class Mount(NamedTuple):
    """One line of mountinfo.

    Attributes:
        parent_id: the mount below it; not in the list for the topmost.
        device_number: ``major:minor``; major 0 without a block device.
        subtree: the directory of the filesystem that is the root of this mount.
        mount_point: seen from the process's root.
        source: a device, ``host:/export``, or a word.
        options: of the filesystem (not of this mount), for example ``upperdir=/a``.
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
    """All mounts in the order of mounting, without a line that is cut short."""
    mounts = tuple(mount for mount in map(parse_mount, whole_lines(text)) if mount is not None)
    if not mounts:
        raise NoData("mountinfo: no mount in it")
    return mounts


def parse_mount(line: bytes) -> Mount | None:
    r"""One line of mountinfo, or None. Special characters in it are written as ``\ooo``."""
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


def read_mounts(root: Path = Path("/")) -> tuple[Mount, ...]:
    """The mounts that this process sees; empty if they cannot be read."""
    try:
        return parse_mountinfo(read_file(root / "proc/self/mountinfo"))
    except NoData:
        return ()


def find_mount(mounts: Sequence[Mount], path: str) -> Mount | None:
    """The mount of a path without symbolic links, or None.

    Walks down as the kernel does, because a later mount hides earlier ones below it.
    """
    ids = {mount.mount_id for mount in mounts}
    above = [
        mount for mount in mounts if f"{path}/".startswith(f"{mount.mount_point.rstrip('/')}/")
    ]
    tops = [mount for mount in above if mount.parent_id not in ids]
    found = max(tops, key=lambda mount: len(mount.mount_point), default=None)
    while found is not None:
        below = [
            mount
            for mount in above
            if mount.parent_id == found.mount_id != mount.mount_id
            and len(mount.mount_point) >= len(found.mount_point)
        ]
        if not below:
            break
        found = min(below, key=lambda mount: len(mount.mount_point))
    return found


# -- processes -------------------------------------------------------------------------------------


class Statm(NamedTuple):
    """Sizes of the address space, its pages in memory (shared ones included), and the program."""

    size_bytes: int
    resident_bytes: int
    text_bytes: int


def parse_statm(text: bytes) -> Statm:
    """The sizes in a /proc/PID/statm; wrong by up to some pages for each thread."""
    words = b"".join(whole_lines(text)[:1]).split()
    try:
        size, resident, _, program = (int(word) * PAGE_BYTES for word in words[:4])
    except ValueError as error:
        raise NoData("statm: not four numbers") from error
    return Statm(size, resident, program)


def sum_resident_bytes(root: str, pids: Iterable[int]) -> int | None:
    """Resident memory of the processes, shared pages counted each time; None if all are gone."""
    found = [known(f"{root}/proc/{pid}/statm", parse_statm) for pid in dict.fromkeys(pids)]
    sizes = [memory.resident_bytes for memory in found if memory is not None]
    return sum(sizes) if sizes else None


def parse_proc_cgroup(text: bytes) -> dict[str, str]:
    """The cgroup of a process by controller (``memory``) or name (``name=systemd``).

    The key of cgroup v2 is empty. A path outside the reader's namespace begins with ``/..``.
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


def find_state(task: int | str) -> str | None:
    """The state letter of a process or thread (``PID/task/TID``), or None. Never blocks."""
    state = read_state(task)
    return None if state is None else state.letter


_LOOK_S: Final = 0.0002
_BLOCKED_LOOKS: Final = 5
"""A read from a disk (a page of this program) is such a wait too, but a short one."""


def is_blocked(task: int | str) -> bool:
    """Whether a process or thread waits in the kernel, so that only a fatal signal ends it."""
    for _ in range(_BLOCKED_LOOKS):
        if find_state(task) != "D":
            return False
        time.sleep(_LOOK_S)
    return True


def is_executing(pid: int) -> bool:
    """Whether a process is in execve(2): its new address space has no program yet. Never blocks.

    A process that hangs just before it gets that address space is not recognised.
    """
    memory = known(f"/proc/{pid}/statm", parse_statm)
    return memory is not None and memory.size_bytes > 0 and memory.text_bytes == 0


# -- cgroups ---------------------------------------------------------------------------------------

NONE_BELOW: Final = b"nr_descendants 0\n"
"""In cgroup.stat."""
_MOST_CGROUPS: Final = 64
"""Of one job: its own, and the children that it made."""


def parse_cpu_stat(text: bytes) -> tuple[float | None, float | None]:
    """CPU time of all processes that are or were in a cgroup, s, and its part in user mode."""
    usage, user = find_count(text, b"usage_usec"), find_count(text, b"user_usec")
    return usage and usage / _US_PER_S, user and user / _US_PER_S


_MOVED: Final = re.compile(rb"(\d+:\d+) rbytes=(\d+) wbytes=(\d+) ")


def parse_io_stat(text: bytes) -> dict[str, tuple[int, int]]:
    """Bytes that a cgroup, ended processes included, read and wrote, by ``major:minor``.

    Counted when the device gets the request; written-back pages are charged to the cgroup that made
    them dirty (ext2, ext4, btrfs, f2fs, xfs). Each layer (a disk, the md array on it, the volume on
    that) counts the same bytes, so only leaf disks may be summed. Network filesystems have no
    device. Linux 5.10 does not end the line of a device without counters.
    """
    found = _MOVED.findall(text)
    return {number.decode(): (int(read), int(written)) for number, read, written in found}


def parse_memory_stat(text: bytes) -> tuple[int, int | None]:
    """Bytes of reclaimable page cache of a cgroup and its children, and ``parse_refaults``.

    inactive_file + active_file, because ``file`` and ``cache`` include tmpfs and shared memory. The
    names of v1 that include children begin with ``total_``.
    """
    # v1 has the lines without children first: a text that is cut before the totals is no data.
    prefix = b"total_" if find_count(text, b"hierarchical_memory_limit") is not None else b""
    inactive, active = (
        find_count(text, prefix + name) for name in (b"inactive_file", b"active_file")
    )
    if inactive is None or active is None:
        raise NoData("memory.stat: no inactive_file and active_file")
    try:
        return inactive + active, parse_refaults(text, prefix)
    except NoData:
        return inactive + active, None


def read_members(cgroup: str) -> list[int]:
    """The processes of a cgroup and of its children; empty if it is gone.

    In the kernel's order, which is that of forking: parents come first. One may be listed twice.
    """
    pids: list[int] = []
    directories = [cgroup]
    for _ in range(_MOST_CGROUPS):
        if not directories:
            break
        directory = directories.pop(0)
        try:
            pids += parse_procs(read_file(f"{directory}/cgroup.procs"))
            if NONE_BELOW in read_small(f"{directory}/cgroup.stat"):
                continue
            with os.scandir(directory) as entries:
                directories += [entry.path for entry in entries if entry.is_dir()]
        except (NoData, OSError):  # it is gone
            continue
    return pids


def is_frozen(cgroup: str) -> bool:
    """Whether all of it is frozen; False if it is gone, or before Linux 5.2."""
    return known(f"{cgroup}/cgroup.events", lambda text: find_count(text, b"frozen")) == 1


def parse_procs(text: bytes) -> list[int]:
    """The pids in a cgroup.procs, without those of foreign pid namespaces (0)."""
    return [int(word) for word in text.split() if word != b"0"]
