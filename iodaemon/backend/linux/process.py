"""Facts about processes.

A process that hangs in execve(2) holds its ``exec_update_lock`` for as long as the close of a
close-on-exec file takes: with a dead NFS or FUSE server, for ever. Whoever reads certain files of
that process waits as long, and only a fatal signal ends the wait. Seen on Linux 6.18:

- They wait: ``stat``, ``io``, ``personality``, ``stack``, ``syscall``, ``wchan``, also through a
  descriptor that was opened before, and of ``task/TID``; the open of ``auxv``, ``environ``,
  ``maps``, ``numa_maps``, ``smaps``; the links ``cwd``, ``exe``, ``root``, ``ns/*`` and ``fd/*``;
  kcmp(2), pidfd_getfd(2).
- They answer: ``status``, ``statm``, ``cgroup``, ``cmdline``, ``comm``, ``limits``, ``mountinfo``,
  ``sched``, ``schedstat``, ``task/TID/children``, the names in ``fd`` and ``fdinfo``,
  ``fdinfo/N``; stat(2) of ``/proc/PID`` itself; getsid(2), pidfd_open(2), the pidfd and its
  ``fdinfo``, signals.

So states and kinship come from ``status``.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

_SYS_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261}
_MPOL_PREFERRED: Final = 1  # include/uapi/linux/mempolicy.h
_MPOL_PREFERRED_MANY: Final = 5  # Linux 5.15
_MASK_BITS: Final = 1024
_MASK: Final = ctypes.c_ulong * (_MASK_BITS // (8 * ctypes.sizeof(ctypes.c_ulong)))
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LOOK_S: Final = 0.0002
_BLOCKED_LOOKS: Final = 5
"""A read from a disk (a page of this program) is such a wait as well, and a short one."""
_SMALL_BYTES: Final = 4096
"""More than most records of /proc that are read here."""


@functools.cache
def read_boot_id() -> str:
    """This boot's id (/proc/sys/kernel/random/boot_id)."""
    return _read_record("/proc/sys/kernel/random/boot_id").decode().strip()


def _read_record(path: str) -> bytes:
    """A file of /proc; where it is small, three system calls where ``open`` and ``read`` make nine.

    A process with hundreds of groups has a ``status`` that is not.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = part = os.read(fd, _SMALL_BYTES)
        while len(part) == _SMALL_BYTES:
            part = os.read(fd, _SMALL_BYTES)
            data += part
        return data
    finally:
        os.close(fd)


class SilentError(Exception):
    """A process does not answer: it hangs in execve(2).

    Attributes:
        pid: its number.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} does not answer")
        self.pid = pid


def is_blocked(task: int | str) -> bool:
    """Whether a process or a thread waits in the kernel, where only a fatal signal is heard.

    Args:
        task: as for ``read_status``.
    """
    for _ in range(_BLOCKED_LOOKS):
        status = read_status(task)
        if status is None or status.state != "D":
            return False
        time.sleep(_LOOK_S)
    return True


def is_executing(pid: int) -> bool:
    """Whether the process is inside execve(2): it has a new address space, without a program yet.

    This never blocks (/proc/PID/statm, fields size and text). One that hangs there just before the
    new address space is its own is not seen.
    """
    try:
        words = _read_record(f"/proc/{pid}/statm").split()
    except OSError:
        return False
    return words[0] != b"0" and words[3] == b"0"


class Status(NamedTuple):
    """What /proc/PID/status says of a process or of one thread. It never blocks.

    Attributes:
        state: one letter (R, S, D, T, Z ...).
        parent: number of its parent.
        threads: how many threads its process has.
        has_memory: it has an address space; a process that ends gives it up before its files.
        uid: its real user.
        is_stop_pending: it has been sent a SIGSTOP that it has not obeyed yet.
    """

    state: str
    parent: int
    threads: int
    has_memory: bool
    uid: int
    is_stop_pending: bool


def read_status(pid: int | str) -> Status | None:
    """Its status; None when it is gone.

    Args:
        pid: its number; of one of its threads ``PID/task/TID``.
    """
    try:
        text = _read_record(f"/proc/{pid}/status")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            return None
        raise
    fields = dict(line.split(b":\t", 1) for line in text.split(b"\n") if b":\t" in line)
    return Status(
        state=fields[b"State"][:1].decode(),
        parent=int(fields[b"PPid"]),
        threads=int(fields[b"Threads"]),
        has_memory=b"VmSize" in fields,
        uid=int(fields[b"Uid"].split()[0]),
        is_stop_pending=bool(int(fields[b"ShdPnd"], 16) >> (signal.SIGSTOP - 1) & 1),
    )


def find_state(pid: int) -> str | None:
    """The one-letter state (R, S, D, T, Z ...); None when the process is gone."""
    status = read_status(pid)
    return None if status is None else status.state


def children_of(pid: int, root: str = "") -> list[int]:
    """Children of all threads of the process, oldest first; below ``root`` as if that were ``/``.

    /proc/PID/task/TID/children (Linux 3.5, CONFIG_PROC_CHILDREN; man proc_tid_children(5)).
    """
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

    Each is named once, also where it is handed on to another parent meanwhile; what forks
    meanwhile may be missed. 4 to 5 us a process.
    """
    found = {pid}
    level = children_of(pid, root)
    while new := [one for one in dict.fromkeys(level) if one not in found]:
        found.update(new)
        yield from new
        level = [child for parent in new for child in children_of(parent, root)]


def find_holder(path: str) -> int | None:
    """The process that has an exclusive lock on this file (/proc/locks); None: none has.

    Each line is ``1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END`` (man proc_locks(5));
    who waits for a lock has ``->`` behind the number. A filesystem may give its device another
    number there than stat(2) does (btrfs), so that is not compared.

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


def prefer_memory_nodes(nodes: list[int]) -> bool:
    """Take memory from these NUMA nodes while they have some, elsewhere then (set_mempolicy(2)).

    MPOL_PREFERRED_MANY, which spills instead of killing; before Linux 5.15 MPOL_PREFERRED on the
    first node. Inherited over fork and exec.

    Returns:
        False where the kernel or the machine has no such call; nothing is changed then.
    """
    number = _SYS_SET_MEMPOLICY.get(os.uname().machine)
    if number is None or not nodes:
        return False
    words = _MASK()
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    for node in nodes:
        words[node // bits] |= 1 << (node % bits)
    if _LIBC.syscall(number, _MPOL_PREFERRED_MANY, words, _MASK_BITS + 1) == 0:
        return True
    first = _MASK()
    first[min(nodes) // bits] |= 1 << (min(nodes) % bits)
    return bool(_LIBC.syscall(number, _MPOL_PREFERRED, first, _MASK_BITS + 1) == 0)
