"""Looking at processes, signalling them, and taking in children that have ended.

One code for supervisor, anchor and holder. Of what lives only ``status``, ``children`` and
``cgroup`` of /proc/PID are read, which answer also behind an ``execve`` that hangs. For each child
that has ended: its job (the cgroup of the zombie, or the first process that the ledger names), the
``EXIT`` record, wait4(2), and the ``USE`` record. What a child used is the difference of
/proc/self/io around wait4 (kernel/exit.c, wait_task_zombie), which holds for children of any user
and includes what they had waited for.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from iodaemon.supervisor import ledger as records
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.ledger import Key, Ledger, Record, Use

_SMALL: Final = 4096
_SIGCHLD_BIT: Final = 1 << 16
_PEEK: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT
_EXIT_CODE: Final = 49
"""Field 52 of proc_pid_stat(5), counted from the state."""
_MOST_PASSES: Final = 20
_IO_LABELS: Final = [
    *(b"rchar:", b"wchar:", b"syscr:", b"syscw:"),
    *(b"read_bytes:", b"write_bytes:", b"cancelled_write_bytes:"),
]


def read_small(path: str) -> bytes:
    """A file of /proc or of a cgroup: the status of a process with hundreds of groups has pages."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = part = os.read(fd, _SMALL)
        while len(part) == _SMALL:
            part = os.read(fd, _SMALL)
            data += part
        return data
    finally:
        os.close(fd)


def parse_io(text: bytes) -> Use:
    """The counters of a /proc/PID/io (proc_pid_io(5), Linux 2.6.20), without a time.

    They are of one process with all threads and reaped children, since its start. Read are bytes
    submitted to a device or network filesystem: readahead, page faults and swap-in included;
    written are those made dirty in the page cache or written directly, no swap-out. Cancelled ones
    were made dirty by anybody, and may be more than were written.

    Raises:
        ValueError: it is none, or of a kernel that does not count bytes.
    """
    words = text.split()
    end = 2 * len(_IO_LABELS)
    if words[:end:2] != _IO_LABELS:
        raise ValueError("not the seven lines of /proc/PID/io")
    rchar, wchar, reads, writes, read, written, cancelled = map(int, words[1:end:2])
    return Use(read, written, reads + writes, 0, rchar + wchar, cancelled)


def parse_start_ticks(stat: bytes) -> int:
    """Field 22 of a /proc/PID/stat: ticks after boot at which the process started."""
    return int(stat.rpartition(b")")[2].split()[19])


class State(NamedTuple):
    """What /proc/PID/status says of a process.

    ``letter`` is as in ps(1), ``session`` the number of its session's first process.
    """

    letter: str
    parent: int
    is_stop_pending: bool
    session: int
    uid: int
    name: str


def read_status(task: int | str) -> dict[bytes, bytes]:
    """The status of a process, or of a thread by ``PID/task/TID``, by field; empty: it is gone."""
    try:
        text = read_small(f"/proc/{task}/status")
    except OSError:
        return {}
    return dict(line.split(b":\t", 1) for line in text.split(b"\n") if b":\t" in line)


def read_state(task: int | str) -> State | None:
    """None: it is gone."""
    fields = read_status(task)
    if not fields:
        return None
    return State(
        letter=fields[b"State"][:1].decode(),
        parent=int(fields[b"PPid"]),
        is_stop_pending=bool(int(fields[b"ShdPnd"], 16) >> (signal.SIGSTOP - 1) & 1),
        session=int(fields.get(b"NSsid", b"0").split()[0]),
        uid=int(fields[b"Uid"].split()[0]),
        name=fields[b"Name"].decode(errors="replace"),
    )


def is_stopped(pid: int) -> bool:
    """Whether it stands still by a signal, or is about to."""
    state = read_state(pid)
    return state is not None and (state.letter == "T" or state.is_stop_pending)


def has_started_at(pid: int, ticks: int) -> bool:
    """Whether a zombie started then; for a living process this may wait for its ``execve``."""
    try:
        return parse_start_ticks(read_small(f"/proc/{pid}/stat")) == ticks
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """Children of all threads of a process (proc_tid_children(5))."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                children += map(int, file.read().split())
    return sorted(children)


def tree_of(tops: Iterable[int]) -> list[int]:
    """These processes and all below them, parents first."""
    found: dict[int, None] = {}
    level = list(tops)
    while level := [pid for pid in dict.fromkeys(level) if pid not in found]:
        found.update(dict.fromkeys(level))
        level = [child for pid in level for child in children_of(pid)]
    return list(found)


def send(pids: Iterable[int], number: int, belongs: Callable[[int], bool]) -> None:
    """A signal to those that still belong: it is asked once the pidfd is open, so that the number
    cannot be another process's by then.
    """
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
            pidfd = os.pidfd_open(pid)
            try:
                if belongs(pid):
                    signal.pidfd_send_signal(pidfd, number)
            finally:
                os.close(pidfd)


def send_to_all(find: Callable[[], list[int]], number: int, belongs: Callable[[int], bool]) -> None:
    """A signal to each that is found once, also to what is forked meanwhile, in bounded passes.

    They are found parents first; SIGCONT goes leaf first, or a shell believes that its child
    stopped.
    """
    told: set[int] = set()
    for _ in range(_MOST_PASSES):
        new = [pid for pid in find() if pid not in told]
        if not new:
            return
        told.update(new)
        send(new[::-1] if number == signal.SIGCONT else new, number, belongs)


class Ended(NamedTuple):
    """A child that was taken in. ``key`` is None if it belonged to no job."""

    pid: int
    key: Key | None


class Reaper:
    """Takes in the caller's children and appends what is to be known of them to the ledger.

    Args:
        key_of_cgroup: the job of the text of a zombie's /proc/PID/cgroup; None: no job's.
        only: of a holder: the job that every child belongs to.
    """

    def __init__(
        self,
        ledger: Ledger,
        key_of_cgroup: Callable[[bytes], Key | None],
        only: Key | None = None,
    ) -> None:
        self._ledger = ledger
        self._key_of_cgroup = key_of_cgroup
        self._only = only
        self._own_io = _open_own_io(os.getpid())

    def take_pidfd(self, pidfd: int, key: Key | None) -> Ended | None:
        """Take in the child of this pidfd; None: not yet, for example because it is traced.

        ``key`` is the job whose first process it is. None: its cgroup says whose it is.
        """
        try:
            info = os.waitid(os.P_PIDFD, pidfd, _PEEK)
        except ChildProcessError:
            return None
        return None if info is None else self._take(info, key)

    def scan(self, most: int) -> tuple[list[Ended], bool]:
        """Take in at most so many children of any kind; and whether there may be more."""
        taken: list[Ended] = []
        with contextlib.suppress(ChildProcessError):
            while len(taken) < most and (info := os.waitid(os.P_ALL, 0, _PEEK)) is not None:
                taken.append(self._take(info))
        return taken, len(taken) == most

    def _take(self, info: os.waitid_result, known: Key | None = None) -> Ended:
        pid = info.si_pid
        key, is_main = self._find_key(pid, known)
        status = info.si_status << 8 if info.si_code == os.CLD_EXITED else info.si_status
        status |= 0x80 * (info.si_code == os.CLD_DUMPED)  # wait(2) has it so
        if key is not None and is_main:
            self._append_exit(key, pid, status & 0xFFFF)
            reach("reap.exit_recorded")
        flags = records.MAIN if is_main else 0
        if key is not None and _ignores_children(pid):
            flags |= records.AT_LEAST
        use = self._wait(pid)
        reach("reap.waited")
        if key is not None:
            self._ledger.add_use(key, use, flags)
            reach("reap.use_recorded")
        return Ended(pid, key)

    def _find_key(self, pid: int, known: Key | None) -> tuple[Key | None, bool]:
        """The job of a zombie, and whether it is its first process."""
        self._ledger.catch_up()
        named, found = self._ledger.running.get(pid), known or self._only
        if found is None:
            with contextlib.suppress(OSError):
                found = self._key_of_cgroup(read_small(f"/proc/{pid}/cgroup"))
        if found is None and named is not None:
            is_named = has_started_at(pid, self._ledger.entries[named].ticks)
            return named if is_named else None, is_named
        entry = None if found is None else self._ledger.entries.get(found)
        if entry is None or not entry.has_run:  # it never ran, or is forgotten
            return self._only, False
        return found, entry.pid == pid

    def _wait(self, pid: int) -> Use:
        before = self._read_own_io()
        try:
            _, _, usage = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:
            return Use()
        after = self._read_own_io()
        used = Use(cpu_us=round((usage.ru_utime + usage.ru_stime) * 1e6))
        if before and after:
            itself = Use(calls=1, logical_bytes=len(before))  # the read of the file
            values = zip(parse_io(after), parse_io(before), itself, strict=True)
            used = used.plus(Use(*(now - then - own for now, then, own in values)))
        return used

    def _read_own_io(self) -> bytes:
        try:
            return os.pread(self._own_io, _SMALL, 0)
        except OSError:
            return b""

    def take_traced(self, key: Key) -> bool:
        """Record how a first process ended that a tracer keeps from being waited for.

        The tracer is told first, and need never take it in (kernel/exit.c, wait_consider_task).
        Only for a job in which nothing lives any more.
        """
        entry = self._ledger.entries[key]
        try:
            fields = read_small(f"/proc/{entry.pid}/stat")
            words = fields.rpartition(b")")[2].split()
            if words[0] != b"Z" or int(words[19]) != entry.ticks:
                return False
            status = int(words[_EXIT_CODE])
        except (OSError, IndexError):
            return False
        self._append_exit(key, entry.pid, status)
        return True

    def _append_exit(self, key: Key, pid: int, status: int) -> None:
        values = status, records.now_us()
        self._ledger.append(Record(records.EXIT, key, pid, values=values))


def _ignores_children(pid: int) -> bool:
    """Whether a zombie ignored SIGCHLD: the kernel may have reaped children of it by itself."""
    with contextlib.suppress(OSError, ValueError):
        status = read_small(f"/proc/{pid}/status")
        at = status.index(b"SigIgn:\t") + 8
        return bool(int(status[at : at + 16], 16) & _SIGCHLD_BIT)
    return False


@functools.cache
def _open_own_io(pid: int) -> int:
    """The counters of this process, opened once in its life; -1: this kernel counts no bytes."""
    try:
        return os.open(f"/proc/{pid}/io", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
