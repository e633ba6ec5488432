"""The holder of a job, where no cgroup can be had: a fork of the supervisor's.

It has ``launcher.c``, or ``launcher`` where that is not, become the job's first process, reaps all
that is below it with the supervisor's code, and makes it stand still and go on (``process_tree``).
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from typing import Final, NoReturn

from iodaemon.supervisor import syscalls
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.launch import HOLDER, PROGRAM
from iodaemon.supervisor.launcher import become_first
from iodaemon.supervisor.ledger import (
    AT_LEAST,
    HOLD,
    RECORD_BYTES,
    Key,
    Ledger,
    Record,
    Use,
)
from iodaemon.supervisor.process_tree import (
    CONTINUE,
    GO_ON,
    STAND_STILL,
    children_of,
    find_moving,
    send,
    tree_of,
)
from iodaemon.supervisor.protocol import Silence, encode
from iodaemon.supervisor.reap import Reaper, is_stopped, parse_start_ticks, read_small

_AT_ONCE: Final = 64
_LOOKS_S: Final = (0.002, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Between looks at what was continued: script(1) stops itself once more when its child stopped."""
_AGAIN_S: Final = 0.002
_LOOK_S: Final = 1.0
"""Between looks whether anything lives, once the first process is dead."""
_TRACERS_S: Final = 0.2
"""For tracers to take in what has ended; the supervisor gives them as long."""


def fork_holder(
    key: Key, job_line: int, ledger_fd: int, readers: str, grace_s: float, *, is_compiled: bool
) -> None:
    """Have a job's process made, with a holder.

    Args:
        key: the attempt.
        job_line: the job's end of its socketpair; the caller's to close.
        ledger_fd: the ledger.
        readers: number of the group that reads own files; -1: none.
        grace_s: after so long without a word of a supervisor the job goes on.
        is_compiled: whether the launcher in C runs here.

    Raises:
        OSError: no process can be made.
    """

    def begin_first() -> int:
        fds = job_line, ledger_fd
        if not is_compiled:
            return syscalls.fork(lambda: become_first(str(key), *fds, int(readers)), *fds)
        for fd in fds:
            os.set_inheritable(fd, True)  # noqa: FBT003
        words = [PROGRAM, *map(str, fds), readers, str(key)]
        return os.posix_spawn(PROGRAM, words, os.environ, setsigmask=())

    def hold() -> None:
        syscalls.name_process(HOLDER)
        os.setsid()
        syscalls.become_subreaper()
        try:
            holder = Holder(Ledger(ledger_fd, from_end=True), key, grace_s)
            reach("holder.recorded")
            first = begin_first()
        except OSError as error:
            code = "ledger_full" if error.errno == errno.ENOSPC else "no_process"
            os.write(job_line, encode({"code": code, "of": "", "error": error.errno}))
        else:
            os.close(job_line)
            holder.run(first)

    syscalls.fork(hold, job_line, ledger_fd)


class Holder:
    """The process that holds one job. ``run`` never returns.

    Raises:
        OSError: the ledger has no room.
    """

    def __init__(self, ledger: Ledger, key: Key, grace_s: float) -> None:
        self._key = key
        self._ledger = ledger
        self._silence = Silence(grace_s)
        self._reaper = Reaper(ledger, lambda _: None, only=key)
        self._is_wanted_still = False
        self._stopped: set[int] = set()
        self._before: set[int] = set()
        self._looks: list[float] = []
        self._due_s = float("inf")
        self._look_s = self._over_s = float("inf")
        self._poll = select.poll()
        self._signals = syscalls.open_signals(signal.SIGCHLD, STAND_STILL, GO_ON, CONTINUE)
        self._poll.register(self._signals, select.POLLIN)
        ticks = parse_start_ticks(read_small("/proc/self/stat"))
        record = Record(HOLD, key, os.getpid(), values=(ticks, 0, 0, 0, 0))
        if os.write(ledger.fd, record.pack()) != RECORD_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def run(self, first: int) -> NoReturn:
        """Hold this child and all below it."""
        is_first_there = True
        pidfd = os.pidfd_open(first)
        self._poll.register(pidfd, select.POLLIN)
        while True:
            self._hear(syscalls.read_signals(self._signals))
            self._ledger.catch_up()
            taken, has_more = self._reaper.scan(_AT_ONCE)
            if not (taken or has_more or is_first_there) and self._is_over():
                self._end()
            if self._is_wanted_still and self._silence.begins():
                self._thaw()
            if time.monotonic() >= self._due_s:
                self._act()
            silence_s = self._silence.wait_s() if self._is_wanted_still else float("inf")
            due_s = min(self._due_s, self._look_s) - time.monotonic()
            wait_s = 0.0 if taken or has_more else max(0.0, min(due_s, silence_s, 3600.0))
            for fd, _ in self._poll.poll(wait_s * 1000 + 1):
                if fd == pidfd:
                    self._poll.unregister(pidfd)
                    is_first_there = False

    def _hear(self, numbers: set[int]) -> None:
        if GO_ON in numbers and self._is_wanted_still:
            self._thaw()
        elif STAND_STILL in numbers and GO_ON not in numbers:
            self._silence.heard()
            if not self._is_wanted_still:
                self._before = set()
            self._is_wanted_still, self._due_s = True, 0.0
        if CONTINUE in numbers and not self._is_wanted_still:
            self._stopped.update(tree_of(children_of(os.getpid())))
            self._thaw()

    def _is_over(self) -> bool:
        """Nothing lives: whether all is taken in, or tracers have had their time to do so."""
        children, now_s = children_of(os.getpid()), time.monotonic()
        if not all(map(_has_ended, children)):
            self._look_s, self._over_s = now_s + _LOOK_S, float("inf")
            return False
        self._look_s = self._over_s = min(self._over_s, now_s + _TRACERS_S)
        return not children or now_s >= self._over_s

    def _end(self) -> NoReturn:
        """What a process used that a tracer keeps from being reaped is not known."""
        self._ledger.catch_up()
        entry = self._ledger.entries.get(self._key)
        if children_of(os.getpid()) and entry is not None and entry.has_run:
            self._reaper.take_traced(self._key)
            self._ledger.add_use(self._key, Use(), AT_LEAST)
        os._exit(0)

    def _act(self) -> None:
        """One step towards what is wanted; says when the next one is due."""
        self._due_s = float("inf")
        if self._is_wanted_still:
            pids, moving = find_moving(os.getpid())
            told = [pid for pid, state in moving.items() if not state.is_stop_pending]
            self._stopped.update(told)
            send(told, signal.SIGSTOP, {os.getpid(), *pids})
            if moving or set(pids) != self._before:
                self._due_s = time.monotonic() + _AGAIN_S
            else:
                reach("holder.frozen")
            self._before = set(pids)
        elif self._looks:
            self._continue()
            self._due_s = time.monotonic() + self._looks.pop(0)
        else:
            self._stopped.clear()

    def _thaw(self) -> None:
        self._is_wanted_still = False
        self._looks = list(_LOOKS_S)
        self._due_s = 0.0

    def _continue(self) -> None:
        """SIGCONT, leaf first, to all that this holder stopped, and to what stopped because of it.

        Who stood still before was stopped by itself or by hand, and stays so.
        """
        pids = tree_of(children_of(os.getpid()))
        told = [pid for pid in pids if pid in self._stopped and is_stopped(pid)]
        send(told[::-1], signal.SIGCONT, {os.getpid(), *pids})


def _has_ended(pid: int) -> bool:
    """A zombie may be the first of several threads."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return syscalls.has_ended(pidfd)
    finally:
        os.close(pidfd)
