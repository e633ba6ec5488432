"""Facts about processes, and the few system calls Python has no name for.

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

So states and kinship come from ``status``. Only ``stat`` says when a process started; another's is
read by a child (``in_time``), which can be killed.

Standard library only: the keeper and the shim import this.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import gc
import os
import resource
import select
import signal
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, NoReturn

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
_PR_SET_PDEATHSIG: Final = 1
ANSWER_WITHIN_S: Final = 0.25
"""For what the kernel answers from its memory in microseconds. A process does not answer if whoever
reads it waits in the kernel (state D) after this time; on a busy machine the reader only waits for
a CPU, and gets more time."""
MOST_WAITS: Final = 40
"""So often; then it counts as silent all the same."""
_LOOK_S: Final = 0.0002
_BLOCKED_LOOKS: Final = 5
"""A read from a disk (a page of this program) is such a wait as well, and a short one."""
_END_WITHIN_S: Final = 1.0
"""A child that was killed while it waited for such a process is gone as soon as it gets a CPU."""
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


class SilentError(Exception):
    """A process does not answer: it hangs in execve(2).

    Attributes:
        pid: its number.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} does not answer")
        self.pid = pid


def in_time(work: Callable[[int], None], within_s: float) -> tuple[bytes, bool]:
    """Do work that may wait for another process in a child, which is killed when it is too late.

    For processes with one thread.

    Args:
        work: takes a descriptor to write its results to.
        within_s: for all of it; a child that does not wait in the kernel then gets as much again.

    Returns:
        What was written, and whether the work was done.
    """
    read, write = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _work_as_child(work, write, parent)
    os.close(write)
    until_s, waits = time.monotonic() + within_s, 0
    data, is_done = b"", False
    while not is_done:
        if is_readable(read, until_s - time.monotonic()):
            chunk = os.read(read, _SMALL_BYTES)
            is_done = not chunk
            data += chunk
        elif waits < MOST_WAITS and not is_blocked(pid):
            until_s, waits = time.monotonic() + within_s, waits + 1
        else:
            break
    os.close(read)
    if not is_done:
        os.kill(pid, signal.SIGKILL)
    until_s = time.monotonic() + _END_WITHIN_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < until_s:
        time.sleep(_LOOK_S)  # should the kernel not let it go, whoever reaps children does later
    return data, is_done


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


def _work_as_child(work: Callable[[int], None], write: int, parent: int) -> NoReturn:
    try:
        gc.disable()  # it would write to pages that are shared with the parent
        signal.set_wakeup_fd(-1)
        control_process(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            work(write)
    finally:
        os._exit(0)


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state (field 3) on; None when the process is gone.

    Not of a process that may hang in execve(2).
    """
    try:
        text = _read_record(f"/proc/{pid}/stat").decode(errors="replace")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            return None
        raise
    return text[text.rindex(")") + 2 :].split()


def find_start_ticks_here(pid: int) -> int | None:
    """As ``find_start_ticks``; waits for ever for a process that hangs in execve(2)."""
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[19])


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


class Starts(NamedTuple):
    """When processes started.

    Attributes:
        ticks: after boot, by the process's number; those that are gone are not in it.
        silent: the one that does not answer, and those that were not come to after it.
    """

    ticks: dict[int, int]
    silent: frozenset[int]

    def of(self, pid: int) -> int | None:
        """Of this one; None when it is gone.

        Raises:
            SilentError: it does not answer.
        """
        if pid in self.silent:
            raise SilentError(pid)
        return self.ticks.get(pid)


def find_starts(pids: Iterable[int]) -> Starts:
    """When these processes started. For one thread: a child reads it, which takes 0.6 ms."""
    executing, asked = split_executing(pids)

    def read(write: int) -> None:
        for pid in asked:
            ticks = find_start_ticks_here(pid)
            os.write(write, f"{pid} {-1 if ticks is None else ticks}\n".encode())

    data = in_time(read, ANSWER_WITHIN_S)[0] if asked else b""
    lines = [line.split() for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
    found = {int(pid): int(ticks) for pid, ticks in lines}
    ticks = {pid: ticks for pid, ticks in found.items() if ticks >= 0}
    return Starts(ticks, frozenset(executing).union(asked) - found.keys())


def split_executing(pids: Iterable[int]) -> tuple[list[int], list[int]]:
    """Those that are inside execve(2), and the others."""
    executing: list[int] = []
    others: list[int] = []
    for pid in pids:
        (executing if is_executing(pid) else others).append(pid)
    return executing, others


def find_start_ticks(pid: int) -> int | None:
    """When the process started, ticks after boot; None when it is gone. For one thread.

    Raises:
        SilentError: it does not answer.
    """
    return find_starts([pid]).of(pid)


FindTicks = Callable[[int], int | None]
"""As ``find_start_ticks``."""


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


def find_living_state(pid: int) -> str | None:
    """As ``find_state``; X from the moment on when all its threads are ending or have ended.

    Its first thread may have ended (Z) long before the others do. One that ends has no memory any
    more, while its files are still being closed.
    """
    status = read_status(pid)
    if status is None:
        return None
    if status.has_memory:
        return status.state
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task") if status.threads > 1 else ():
            other = read_status(f"{pid}/task/{thread}")
            if other is not None and other.has_memory:
                return other.state
    return "X"


class Kin(NamedTuple):
    """To whom a process belongs: the numbers of its parent and of its session."""

    parent: int
    session: int


def find_kin(pid: int) -> Kin | None:
    """To whom the process belongs; None when it is gone."""
    status = read_status(pid)
    if status is None:
        return None
    try:
        return Kin(status.parent, os.getsid(pid))
    except ProcessLookupError:
        return None


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
    """The identity of this process, or of a child that does not execute; None when it is gone."""
    ticks = find_start_ticks_here(pid)
    return None if ticks is None else Identity(pid, ticks, read_boot_id())


def is_alive(
    identity: Identity,
    find_ticks: FindTicks = find_start_ticks,
    *,
    may_execute: bool = False,
) -> bool:
    """True when this very process exists and is no zombie.

    Args:
        identity: the process.
        find_ticks: as ``find_start_ticks``, which is for one thread.
        may_execute: it may be in execve(2) now; then one that does not answer counts as it. A
            keeper or a shim is never there: what does not answer under its number is another.
    """
    if identity.boot_id != read_boot_id() or find_state(identity.pid) in (None, "Z", "X"):
        return False
    try:
        return find_ticks(identity.pid) == identity.start_ticks
    except SilentError:
        return may_execute


def open_pidfd(identity: Identity, find_ticks: FindTicks = find_start_ticks) -> int | None:
    """A descriptor of this very process (readable once it has exited).

    Args:
        identity: the process, which does not execute.
        find_ticks: as ``find_start_ticks``, which is for one thread.

    Returns:
        None: it is gone, or not known to be this one.
    """
    try:
        fd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    with contextlib.suppress(SilentError):
        if find_ticks(identity.pid) == identity.start_ticks:
            return fd
    os.close(fd)
    return None


def has_ended(pidfd: int) -> bool:
    """True once all threads of the process have ended."""
    return is_readable(pidfd)


def is_readable(fd: int, within_s: float = 0.0) -> bool:
    """Whether there is something to read, or the other end is closed, by then.

    Of any descriptor: select(2) takes none above 1023, and a keeper has more.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, within_s) * 1000.0))


def is_reaped(pidfd: int) -> bool:
    """True once its parent has waited for it: another process may have its number."""
    return b"\nPid:\t-1\n" in _read_record(f"/proc/self/fdinfo/{pidfd}")


def leads_session(pid: int, uid: int | None) -> bool:
    """Whether the process leads a session and is this user's. It never blocks.

    So may a job's first process be known that does not answer: none but the same user's is
    mistaken for it.
    """
    status = read_status(pid)
    return status is not None and status.uid == uid and session_of(pid) == pid


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


def survivors_of(session: int) -> list[int]:
    """A job's processes when its subreaper is dead: its session and all below it.

    Parents come before children. The kernel gives a number to nobody else while it names a
    session, so another process under the number of the job's first one means that the session is
    empty: the caller knows that it is none. A process that left the session and whose parent has
    ended is not found.
    """
    members = {pid for pid in _all_pids() if session_of(pid) == session}
    kin = {pid: status for pid in members if (status := read_status(pid)) is not None}
    level = sorted(pid for pid, status in kin.items() if status.parent not in members)
    found = dict.fromkeys(level)
    while level := [child for pid in level for child in children_of(pid) if child not in found]:
        found.update(dict.fromkeys(level))
    return list(dict.fromkeys([*found, *sorted(kin)]))


def session_of(pid: int) -> int | None:
    """The session of a process; None when it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


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


class OwnIo(NamedTuple):
    """What this process, and every child that it waited for, moved so far.

    Attributes:
        read_bytes: as in /proc/self/io.
        written_bytes: write_bytes - cancelled_write_bytes.
        operations: syscr + syscw.
        logical_bytes: rchar + wchar.
    """

    read_bytes: int = 0
    written_bytes: int = 0
    operations: int = 0
    logical_bytes: int = 0


def read_own_io() -> OwnIo:
    """This process's I/O; zeros where it is hidden.

    The counters include every child that was waited for (kernel/exit.c, wait_task_zombie).
    """
    try:
        words = _read_record("/proc/self/io").split()
    except OSError:
        return OwnIo()
    values = {key: int(value) for key, value in zip(words[::2], words[1::2], strict=True)}
    written = values[b"write_bytes:"] - values[b"cancelled_write_bytes:"]
    return OwnIo(
        values[b"read_bytes:"],
        written,
        values[b"syscr:"] + values[b"syscw:"],
        values[b"rchar:"] + values[b"wchar:"],
    )


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
