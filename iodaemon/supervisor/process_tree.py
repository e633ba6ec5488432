"""Jobs held by signals, where no cgroup can be had: one holder process a job.

The holder is a subreaper, so all that the job ever forks is below it. It reaps with the same code
as the supervisor. SIGSTOP goes root first and SIGCONT leaf first: in other orders a shell with job
control believes that its child ended. A signal goes to a pidfd of which it was seen, after it was
opened, that its process belongs to the tree.

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
import signal
from collections.abc import Container, Iterable, Mapping
from typing import Final

from iodaemon.supervisor.cgroup import Look
from iodaemon.supervisor.launch import HOLDER
from iodaemon.supervisor.ledger import Key, Ledger
from iodaemon.supervisor.protocol import Limits
from iodaemon.supervisor.reap import (
    State,
    has_started_at,
    read_state,
)

_STILL: Final = frozenset("TtZX")
_MOST_PASSES: Final = 20
STAND_STILL, GO_ON, CONTINUE = range(signal.SIGRTMIN, signal.SIGRTMIN + 3)
"""What a holder is told; the last one is for what stopped itself, too."""


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


def send(pids: Iterable[int], number: int, parents: Container[int]) -> None:
    """A signal to those whose parent is still one of these."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            pidfd = os.pidfd_open(pid)
            try:
                state = read_state(pid)
                if state is not None and state.parent in parents:
                    signal.pidfd_send_signal(pidfd, number)
            finally:
                os.close(pidfd)


def _is_still(pid: int, state: State) -> bool:
    """Also one that waits in vfork(2) for a child that is stopped."""
    if state.letter == "D" and state.is_stop_pending:
        states = map(read_state, children_of(pid))
        return any(child is not None and child.letter == "T" for child in states)
    return state.letter in _STILL


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


def _find_orphans() -> list[int]:
    """Children of this process, and of the anchor if that is its parent."""
    parent = read_state(os.getppid())
    is_anchor = parent is not None and parent.name == "iod-anchor"
    return [*children_of(os.getpid()), *(children_of(os.getppid()) if is_anchor else ())]


class Holders:
    """The supervisor's side: the same wishes as ``Cgroups``, made to each job's holder."""

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

    def key_of(self, text: bytes) -> Key | None:  # noqa: ARG002
        """No zombie's cgroup tells its job."""
        return None

    def find_holder(self, key: Key) -> int | None:
        """Its pid; None: it has ended, or was never made."""
        entry = self._ledger.entries.get(key)
        if entry is None or not entry.holder:
            return None
        pid, ticks = entry.holder
        state = read_state(pid)
        is_one = state is not None and state.name == HOLDER and state.letter not in "ZX"
        is_ours = is_one and state is not None and state.uid == os.geteuid()
        return pid if is_ours and has_started_at(pid, ticks) else None

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
        """What is wanted is said again where it is not so yet.

        Where the holder was killed, what it left goes on.
        """
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
        """What a killed holder left of a job, parents first.

        By the session of the job's first process; what left that is the job's if no other one
        outlived its holder. The root side's own processes are in its session, or holders.
        """
        entry = self._ledger.entries.get(key)
        if entry is None or not entry.pid:
            return []
        known = {os.getsid(0), *(other.pid for other in self._ledger.entries.values())}
        tops: list[int] = []
        for pid in _find_orphans():
            state = read_state(pid)
            if state is None or state.letter in "ZX":
                continue
            is_holder = state.name == HOLDER and state.uid == os.geteuid()
            is_stray = not is_holder and state.session not in known and self._left_alone == {key}
            if state.session == entry.pid or is_stray:
                tops.append(pid)
        return tree_of(tops)

    def _tell_all(self, key: Key, number: int) -> None:
        """A signal to each process once; SIGCONT leaf first, so that no shell believes that its
        child stopped. Bounded, should they fork meanwhile.
        """
        told: set[int] = set()
        for _ in range(_MOST_PASSES):
            holder = self.find_holder(key)
            found = self._find_left(key) if holder is None else tree_of(children_of(holder))
            new = [pid for pid in found if pid not in told]
            if not new:
                return
            told.update(new)
            parents = {os.getpid(), os.getppid()} if holder is None else {holder}
            send(new[::-1] if number == signal.SIGCONT else new, number, parents | told)

    def _say(self, key: Key, number: int) -> None:
        holder = self.find_holder(key)
        if holder is not None:
            with contextlib.suppress(OSError):  # it has ended, or reads nothing
                pidfd = os.pidfd_open(holder)
                try:
                    if self.find_holder(key) == holder:
                        signal.pidfd_send_signal(pidfd, number)
                finally:
                    os.close(pidfd)

    def is_held(self, key: Key) -> bool:
        """Whether it is to stand still, or does; also where an earlier supervisor wanted it."""
        holder = self.find_holder(key)
        if holder is None or key in self._held:
            return holder is not None
        pids, moving = find_moving(holder)
        return bool(pids) and not moving

    def freeze(self, key: Key) -> None:
        """Without its holder a job goes on: nobody would continue it if this process died."""
        if key not in self._held:
            self._held[key] = set()
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

    def beat(self, keys: Iterable[Key]) -> None:
        """Tell the holders of these that the supervisor is there."""
        for key in keys:
            self._say(key, STAND_STILL)

    def cap(self, key: Key, caps: Mapping[str, str]) -> None:  # noqa: ARG002
        """Raises OSError: nothing slows a process down but its cgroup."""
        if caps:
            raise OSError(errno.ENOTSUP, "a job without a cgroup cannot be slowed down")

    def cpu_us(self, key: Key) -> int | None:  # noqa: ARG002
        """Unknown."""
        return None

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
