"""Facts about processes, and the few system calls Python has no name for.

Standard library only: the keeper and the shim import this.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import resource
import signal
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_PR_SET_CHILD_SUBREAPER: Final = 36  # include/uapi/linux/prctl.h, Linux 3.4
_SYS_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261}
_MPOL_PREFERRED: Final = 1  # include/uapi/linux/mempolicy.h
_MPOL_PREFERRED_MANY: Final = 5  # Linux 5.15
_MASK_BITS: Final = 1024
_MASK: Final = ctypes.c_ulong * (_MASK_BITS // (8 * ctypes.sizeof(ctypes.c_ulong)))
_SYS_CLONE3: Final = 435  # the same on every architecture, Linux 5.3
_CLONE_INTO_CGROUP: Final = 0x2_0000_0000  # include/uapi/linux/sched.h, Linux 5.7
_CLONE_ARGUMENTS: Final = struct.Struct("11Q")  # struct clone_args, the last one is the cgroup
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PRCTL: Final = _LIBC.prctl
_SYSCALL: Final = _LIBC.syscall
"""Looked up before any fork: a child that does it first copies pages for 0.3 ms."""
_LIBC_LOCKED: Final = ctypes.PyDLL(None, use_errno=True)
"""Keeps the interpreter's lock during a call, so that a forked child has it as well."""
_HIGHEST_FD: Final = 65536
"""Above every descriptor of a keeper, which holds a few dozen."""
_PF_EXITING: Final = 0x4
"""include/linux/sched.h; in the flags of /proc/PID/stat (field 9), also of a zombie."""
_SMALL_BYTES: Final = 4096
"""More than any of the records of /proc that are read here in one go."""


class Identity(NamedTuple):
    """One process, not to be mistaken for a later one with the same number.

    Attributes:
        pid: its number.
        start_ticks: when it started, clock ticks after boot (/proc/PID/stat field 22).
        boot_id: the boot it lived in.
    """

    pid: int
    start_ticks: int
    boot_id: str


@functools.cache
def read_boot_id() -> str:
    """This boot's id (/proc/sys/kernel/random/boot_id)."""
    return _read_record("/proc/sys/kernel/random/boot_id").decode().strip()


def _read_record(path: str) -> bytes:
    """A small file of /proc; three system calls where ``open`` and ``read`` make nine."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _SMALL_BYTES)
    finally:
        os.close(fd)


def _stat_fields(pid: int | str) -> list[str] | None:
    """Fields of /proc/PID/stat from the state (field 3) on; None when the process is gone.

    Args:
        pid: its number; of one of its threads ``PID/task/TID``.
    """
    try:
        text = _read_record(f"/proc/{pid}/stat").decode(errors="replace")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            return None
        raise
    return text[text.rindex(")") + 2 :].split()


def find_start_ticks(pid: int) -> int | None:
    """When the process started, ticks after boot; None when it is gone."""
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[19])


def find_state(pid: int) -> str | None:
    """The one-letter state (R, S, D, T, Z ...); None when the process is gone."""
    fields = _stat_fields(pid)
    return None if fields is None else fields[0]


def find_living_state(pid: int) -> str | None:
    """As ``find_state``; X from the moment on when all its threads are ending or have ended.

    Its first thread may have ended (Z) long before the others do.
    """
    fields = _stat_fields(pid)
    if fields is None:
        return None
    if not int(fields[6]) & _PF_EXITING:
        return fields[0]
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            other = _stat_fields(f"{pid}/task/{thread}")
            if other is not None and not int(other[6]) & _PF_EXITING:
                return other[0]
    return "X"


class Kin(NamedTuple):
    """To whom a process belongs: the numbers of its parent and of its session."""

    parent: int
    session: int


def find_kin(pid: int) -> Kin | None:
    """To whom the process belongs; None when it is gone."""
    fields = _stat_fields(pid)
    return None if fields is None else Kin(int(fields[1]), int(fields[3]))


def is_stop_pending(pid: int) -> bool:
    """True when it has been sent a SIGSTOP that it has not obeyed yet (/proc/PID/status ShdPnd)."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            pending = [line for line in file if line.startswith(b"ShdPnd:")]
    except OSError:
        return False
    return bool(pending) and bool(int(pending[0].split()[1], 16) >> (signal.SIGSTOP - 1) & 1)


def hear_signals(*harmless: signal.Signals) -> None:
    """Block and ignore no signal: those ignored so far, and these, are heard and do nothing.

    Exec resets a handler, but would hand on to the job what is ignored or blocked, be it by Python
    (SIGPIPE) or by whoever started the daemon. Signals 32 and 33 stay as they are: the C library
    lets nobody change them, and some parents leave them ignored.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    ignored = (n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN)
    for number in {*ignored, *harmless}:
        signal.signal(number, do_nothing)


def wake_on_signals() -> int:
    """The end to read, without waiting, of a pipe into which every signal heard writes a byte."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    return wake_read


def drain(wake: int) -> None:
    """Take out of that pipe what is in it."""
    with contextlib.suppress(BlockingIOError):
        while os.read(wake, _SMALL_BYTES):
            pass


def do_nothing(*_: object) -> None:
    """A handler for signals that are to be heard by nobody."""


def identify(pid: int) -> Identity | None:
    """The identity of a living (or zombie) process; None when it is gone."""
    ticks = find_start_ticks(pid)
    return None if ticks is None else Identity(pid, ticks, read_boot_id())


def is_alive(identity: Identity) -> bool:
    """True when this very process exists and is no zombie."""
    fields = _stat_fields(identity.pid)
    if fields is None or fields[0] in ("Z", "X"):
        return False
    return int(fields[19]) == identity.start_ticks and read_boot_id() == identity.boot_id


def open_pidfd(identity: Identity) -> int | None:
    """A descriptor of this very process (readable once it has exited); None when it is gone."""
    try:
        fd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    if find_start_ticks(identity.pid) != identity.start_ticks:
        os.close(fd)
        return None
    return fd


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


def survivors_of(main: Identity) -> list[int]:
    """A job's processes when its subreaper is dead: ``main``'s session and all below it.

    Parents come before children. The kernel gives a number to nobody else while it names a
    session, so another process under main's number means that the session is empty. A process
    that left the session and whose parent has ended is not found.
    """
    ticks = find_start_ticks(main.pid)
    if main.boot_id != read_boot_id() or ticks not in (None, main.start_ticks):
        return []
    stats = {pid: fields for pid in _all_pids() if (fields := _stat_fields(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[1]), []).append(pid)
    members = [pid for pid, fields in stats.items() if int(fields[3]) == main.pid]
    found = dict.fromkeys(sorted(members, key=lambda pid: int(stats[pid][19])))
    level = list(found)
    while level := [child for pid in level for child in children.get(pid, ())]:
        found.update(dict.fromkeys(level))
    return list(found)


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def become_subreaper() -> None:
    """Orphans below this process become its children (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def system_call(
    number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None
) -> tuple[int, int]:
    """What the kernel answers (-1: refused), and the error's number then; None is NULL."""
    answer = int(_SYSCALL(number, *arguments))
    return answer, 0 if answer >= 0 else ctypes.get_errno()


def control_process(option: int, value: int) -> int:
    """Set one attribute of this process (prctl(2)); the error's number, 0: it is set."""
    return 0 if _PRCTL(option, value, 0, 0, 0) == 0 else ctypes.get_errno()


def close_all_but(*kept: int) -> None:
    """Close every descriptor but the standard ones and these; for a forked child."""
    first = 3
    for fd in sorted(kept):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, _HIGHEST_FD)


def fork_into(cgroup: str) -> tuple[int, bool]:
    """As ``os.fork``, with a child that is in the cgroup from its first instruction where possible.

    Moving a process makes the kernel wait for all CPUs (cgroup_threadgroup_rwsem), 10 ms and more
    on a busy machine; clone3(2) with CLONE_INTO_CGROUP does not. For processes with one thread:
    what Python and libc do around a fork is for the others.

    Returns:
        What ``os.fork`` returns, and whether the child is there; else it has to move itself.
    """
    try:
        directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return os.fork(), False
    try:
        values = (_CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD.value, 0, 0, 0, 0, 0, directory)
        arguments = _CLONE_ARGUMENTS.pack(*values)
        pid = _LIBC_LOCKED.syscall(_SYS_CLONE3, arguments, len(arguments))
        # Before Linux 5.7 there is no such flag, and a sandbox may not know the call.
        return (pid, True) if pid >= 0 else (os.fork(), False)
    finally:
        os.close(directory)


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


def read_own_io() -> tuple[int, int, int]:
    """This process's (read_bytes, write_bytes - cancelled, syscr + syscw); zeros where hidden.

    The counters include every child that was waited for (kernel/exit.c, wait_task_zombie).
    """
    try:
        words = _read_record("/proc/self/io").split()
    except OSError:
        return 0, 0, 0
    values = {key: int(value) for key, value in zip(words[::2], words[1::2], strict=True)}
    written = values[b"write_bytes:"] - values[b"cancelled_write_bytes:"]
    return values[b"read_bytes:"], written, values[b"syscr:"] + values[b"syscw:"]


def children_cpu_s() -> float:
    """CPU time of all children that were waited for so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def exit_of(status: int | None) -> dict[str, int | None]:
    """``code`` and ``signal`` of what wait(2) says; None: nobody knows how it ended."""
    if status is None:
        return {"code": None, "signal": None}
    if os.WIFSIGNALED(status):
        return {"code": None, "signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status), "signal": None}
