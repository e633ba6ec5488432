"""Jobs held by signals, where no cgroup can be had: one holder process a job.

A holder is a fork of the supervisor's and a subreaper, so all that the job ever forks is below it.
It has ``launcher.c``, or ``launcher`` where that is not, become the job's first process, and reaps
with the supervisor's code. SIGSTOP goes root first and SIGCONT leaf first: in other orders a shell
with job control believes that its child ended.

The ledger records a holder (``HOLD``) before it forks the job's process, so the next supervisor
finds it as well. The supervisor says by signals what it wants, as often as it likes, and sees for
itself what is: the files of /proc that answer in any case tell it. Signals of different numbers
come in no order, so two opposite ones that are found together say nothing. A holder that is to
stand still and hears nothing for the grace time lets its job go on. When nothing lives below it,
it ends. What is traced is the tracer's to take in, and a tracer may sleep: so the holder looks for
itself once its first child is dead.

What a killed holder leaves becomes the supervisor's, or the anchor's. It goes on, and can be
signalled and killed, but not held any more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Mapping
from typing import Final, NoReturn

from iodaemon.supervisor import syscalls
from iodaemon.supervisor.cgroup import Look
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.launch import HOLDER, PROGRAM
from iodaemon.supervisor.launcher import become_first
from iodaemon.supervisor.ledger import AT_LEAST, HOLD, RECORD_BYTES, Key, Ledger, Record, Use
from iodaemon.supervisor.protocol import Limits, Silence, encode
from iodaemon.supervisor.reap import (
    Reaper,
    State,
    children_of,
    has_started_at,
    is_stopped,
    parse_start_ticks,
    read_small,
    read_state,
    send,
    send_to_all,
    tree_of,
)  # fmt: skip

_STILL: Final = frozenset("TtZX")
STAND_STILL, GO_ON, CONTINUE = range(signal.SIGRTMIN, signal.SIGRTMIN + 3)
"""What a holder is told; the last one is for what stopped itself, too."""
_AT_ONCE: Final = 64
_LOOKS_S: Final = (0.002, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Between looks at what was continued: script(1) stops itself once more when its child stopped."""
_AGAIN_S: Final = 0.002
_LOOK_S: Final = 1.0
"""Between looks whether anything lives, once the first process is dead."""
_TRACERS_S: Final = 0.2
"""For tracers to take in what has ended; the supervisor gives them as long."""


def find_moving(holder: int) -> tuple[list[int], dict[int, State]]:
    """All below a holder whose parents stand still, and those of them that do not."""
    found: dict[int, None] = {}
    moving: dict[int, State] = {}
    level = children_of(holder)
    while level:
        passed: list[int] = []
        for pid in level:
            state = read_state(pid)
            if state is None or pid in found:
                continue
            found[pid] = None
            if not _is_still(pid, state):
                moving[pid] = state
            if pid not in moving or state.letter == "D":  # it is in no wait4, and stops before
                passed.append(pid)
        level = [child for pid in passed for child in children_of(pid)]
    return list(found), moving


def _is_still(pid: int, state: State) -> bool:
    """Also one that waits in vfork(2) for a child that is stopped."""
    if state.letter == "D" and state.is_stop_pending:
        states = map(read_state, children_of(pid))
        return any(child is not None and child.letter == "T" for child in states)
    return state.letter in _STILL


# -- the holder's side -----------------------------------------------------------------------------


def fork_holder(
    key: Key, job_line: int, ledger_fd: int, readers: str, grace_s: float, *, is_compiled: bool
) -> None:
    """Have a job's process made, with a holder. The job's end of its line stays the caller's to
    close.
    """

    def begin_first() -> int:
        fds = job_line, ledger_fd
        if not is_compiled:
            return syscalls.fork(lambda: become_first(*fds, int(readers)), *fds)
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
    """The process that holds one job; OSError: the ledger has no room. ``run`` never returns."""

    def __init__(self, ledger: Ledger, key: Key, grace_s: float) -> None:
        self._key = key
        self._ledger = ledger
        self._silence = Silence(grace_s)
        self._reaper = Reaper(ledger, lambda _: None, only=key)
        self._is_wanted_still = False
        self._stopped: set[int] = set()
        self._before: set[int] = set()
        self._looks: list[float] = []
        self._due_s = self._look_s = self._over_s = float("inf")
        self._poll = select.poll()
        self._signals = syscalls.open_signals(signal.SIGCHLD, STAND_STILL, GO_ON, CONTINUE)
        self._poll.register(self._signals, select.POLLIN)
        ticks = parse_start_ticks(read_small("/proc/self/stat"))
        record = Record(HOLD, key, os.getpid(), values=(ticks,))
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
            _send_below({os.getpid(), *pids}, told, signal.SIGSTOP)
            if moving or set(pids) != self._before:
                self._due_s = time.monotonic() + _AGAIN_S
            else:
                reach("holder.frozen")
            self._before = set(pids)
        elif self._looks:
            # To what this holder stopped, and what stopped because of it. What stood still before
            # was stopped by itself or by hand, and stays so.
            pids = tree_of(children_of(os.getpid()))
            told = [pid for pid in pids if pid in self._stopped and is_stopped(pid)]
            _send_below({os.getpid(), *pids}, told[::-1], signal.SIGCONT)
            self._due_s = time.monotonic() + self._looks.pop(0)
        else:
            self._stopped.clear()

    def _thaw(self) -> None:
        self._is_wanted_still = False
        self._looks = list(_LOOKS_S)
        self._due_s = 0.0


def _send_below(parents: set[int], pids: list[int], number: int) -> None:
    send(pids, number, lambda pid: _is_below(parents, pid))


def _is_below(parents: set[int], pid: int) -> bool:
    state = read_state(pid)
    return state is not None and state.parent in parents


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


# -- the supervisor's side -------------------------------------------------------------------------


class Holders:
    """The same wishes as of ``Cgroups``, made to each job's holder."""

    name: Final = "processes"
    are_children: Final = False
    base: Final = None
    unit: Final = None

    def __init__(self, ledger: Ledger, lack: str = "", detail: str = "") -> None:
        self.lack, self.detail = lack, detail
        self.controls: tuple[str, ...] = ()
        self._ledger = ledger
        self._held: dict[Key, set[int]] = {}
        """Of jobs that are to stand still: who was seen last."""
        self._killed: set[Key] = set()
        self._left_alone: set[Key] = set()
        """Jobs that outlived their holders."""

    def key_of(self, text: bytes) -> None:
        """No zombie's cgroup tells its job."""

    def find_holder(self, key: Key) -> int | None:
        """Its pid; None: it has ended, or was never made. One that its job stopped goes on."""
        entry = self._ledger.entries.get(key)
        if entry is None or not entry.holder:
            return None
        pid, ticks = entry.holder
        state = read_state(pid)
        is_one = state is not None and state.name == HOLDER and state.letter not in "ZX"
        is_ours = is_one and state is not None and state.uid == os.geteuid()
        if not (is_ours and has_started_at(pid, ticks)):
            return None
        if state is not None and state.letter == "T":
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return pid

    def find_jobs(self) -> list[Key]:
        """Those that are held."""
        return sorted(key for key in self._ledger.entries if self.find_holder(key) is not None)

    def prepare(self, key: Key, limits: Limits) -> tuple[None, list[str]]:  # noqa: ARG002
        """No limit but those that the process takes on itself."""
        return None, []

    def adopt(self, key: Key) -> None:
        """Nothing tells of a change; all are looked at now and then."""

    def pids(self, key: Key) -> list[int]:
        """The first process, and what was left by parents that ended."""
        holder = self.find_holder(key)
        return [] if holder is None else children_of(holder)

    def look(self, key: Key) -> Look:
        """What is wanted is said again where it is not so yet."""
        if key in self._killed:
            self._tell_all(key, signal.SIGKILL)
        holder = self.find_holder(key)
        if holder is None:
            return Look(is_populated=self._see_left(key), is_frozen=False)
        if key not in self._held:
            return Look(is_populated=True, is_frozen=False)
        pids, moving = find_moving(holder)
        is_frozen = not moving and set(pids) == self._held[key]
        self._held[key] = set(pids)
        if moving:
            self._say(key, STAND_STILL)
        return Look(is_populated=True, is_frozen=is_frozen)

    def _see_left(self, key: Key) -> bool:
        """Whether a killed holder left anything; it goes on."""
        is_new = key not in self._left_alone
        self._left_alone.add(key)
        left = self._find_left(key)
        if is_new and left:
            self._tell_all(key, signal.SIGCONT)
        elif not left:
            self._left_alone.discard(key)
        return bool(left)

    def _find_left(self, key: Key) -> list[int]:
        """What a killed holder left of a job, parents first: children of this process, and of the
        anchor if that is its parent.

        By the session of the job's first process; what left that is the job's if no other one
        outlived its holder. The root side's own processes are in its session, or holders.
        """
        entry = self._ledger.entries.get(key)
        if entry is None or not entry.pid:
            return []
        known = {os.getsid(0), *(other.pid for other in self._ledger.entries.values())}
        orphans, parent = children_of(os.getpid()), read_state(os.getppid())
        if parent is not None and parent.name == "iod-anchor":
            orphans += children_of(os.getppid())
        tops: list[int] = []
        for pid in orphans:
            state = read_state(pid)
            if state is None or state.letter in "ZX":
                continue
            is_holder = state.name == HOLDER and state.uid == os.geteuid()
            is_stray = not is_holder and state.session not in known and self._left_alone == {key}
            if state.session == entry.pid or is_stray:
                tops.append(pid)
        return tree_of(tops)

    def _tell_all(self, key: Key, number: int) -> None:
        parents: set[int] = set()

        def find() -> list[int]:
            holder = self.find_holder(key)
            found = self._find_left(key) if holder is None else tree_of(children_of(holder))
            parents.update(found, (os.getpid(), os.getppid()) if holder is None else (holder,))
            return found

        send_to_all(find, number, lambda pid: _is_below(parents, pid))

    def _say(self, key: Key, number: int) -> None:
        holder = self.find_holder(key)
        if holder is not None:
            send([holder], number, lambda pid: self.find_holder(key) == pid)

    def is_held(self, key: Key) -> bool:
        """Whether it is to stand still, or does; also where an earlier supervisor wanted it."""
        holder = self.find_holder(key)
        if holder is None or key in self._held:
            return holder is not None
        pids, moving = find_moving(holder)
        return bool(pids) and not moving

    def freeze(self, key: Key) -> None:
        """Also the word that a supervisor is there. Without its holder a job goes on: nobody would
        continue it if this process died.
        """
        self._held.setdefault(key, set())
        self._say(key, STAND_STILL)

    def thaw(self, key: Key) -> None:
        self._held.pop(key, None)
        self._say(key, GO_ON)

    def continue_stopped(self, key: Key) -> bool:
        """Also what stopped itself; its holder looks again by itself (False)."""
        self._say(key, CONTINUE)
        if key in self._left_alone:
            self._tell_all(key, signal.SIGCONT)
        return key in self._left_alone

    def let_go(self, key: Key) -> bool:
        """Let a job run on; whether it stood still, or was to."""
        is_held = self.is_held(key)
        if is_held:
            self.thaw(key)
        return is_held

    def kill(self, key: Key) -> None:
        """Again at each look, for what is forked meanwhile."""
        self._killed.add(key)
        self._tell_all(key, signal.SIGKILL)

    def signal(self, key: Key, number: int) -> None:
        if number == signal.SIGCONT:
            self.continue_stopped(key)
        else:
            self._tell_all(key, number)

    def cap(self, key: Key, caps: Mapping[str, str]) -> None:  # noqa: ARG002
        """Raises OSError: nothing slows a process down but its cgroup."""
        if caps:
            raise OSError(errno.ENOTSUP, "a job without a cgroup cannot be slowed down")

    def cpu_us(self, key: Key) -> None:
        """Unknown."""

    def is_being_stopped(self) -> None:
        """There is no scope."""

    def find_memory_end(self, key: Key) -> None:
        """Unknown."""

    def remove(self, key: Key) -> bool:
        """Whether its holder has ended."""
        has_ended = self.find_holder(key) is None
        if has_ended:
            self._held.pop(key, None)
            self._killed.discard(key)
            self._left_alone.discard(key)
        return has_ended
