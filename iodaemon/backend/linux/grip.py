"""What a keeper can do to the processes of its jobs, whoever started them.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Container
from typing import Final, NamedTuple

from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.freezer import CgroupFreezer, Freezer
from iodaemon.backend.linux.means import freezer_of
from iodaemon.backend.linux.process import (
    Identity,
    descendants_of,
    find_starts,
    is_alive,
    open_pidfd,
    read_boot_id,
    session_of,
    survivors_of,
)
from iodaemon.backend.linux.protocol import Message, job_key
from iodaemon.backend.linux.sending import send
from iodaemon.backend.linux.service import say
from iodaemon.backend.linux.stopping import tell

_FIRST_LOOK_S: Final = 0.1
_LAST_LOOK_S: Final = 30.0
"""Between looks at an ended job's cgroup in which somebody is left, twice as long each time."""


class _Left(NamedTuple):
    """A cgroup that could not be removed, and when that is tried again."""

    freezer: Freezer
    due_s: float
    wait_s: float


class Grip:
    """Freezes, thaws, kills and tidies up attempts by their keys.

    Attributes:
        freezer: the means of the jobs started from now on.
        maybe_held: the attempts that may stand still or have a cap; to thaw when nobody is there
            who would.
    """

    def __init__(self, directories: JobDirectories, freezer: Freezer) -> None:
        self._directories = directories
        self.freezer = freezer
        self.maybe_held: set[str] = set()
        self._told: set[str] = set()
        self._stopped: dict[str, list[Identity]] = {}
        self._left: dict[str, _Left] = {}

    def freeze(self, key: str, shim: Identity) -> bool:
        """Ask for a standstill; True when it is complete by now.

        Raises:
            OSError: it cannot be had, and all runs on.
        """
        self.maybe_held.add(key)
        freezer = self._freezer_of(key)
        return self._hold(key, freezer, shim.pid, lambda: freezer.freeze(key, shim.pid))

    def cap(self, key: str, lines: list[str]) -> None:
        """Let it move no more than these lines of ``io.max`` say; none: what it can.

        Raises:
            OSError: the kernel does not take it, and no cap is left.
        """
        if lines:
            self.maybe_held.add(key)
        self._freezer_of(key).cap(key, lines)

    def look_again(self, key: str) -> Message | None:
        """What to answer who asked for the standstill; None: it is not complete yet."""
        freezer, shim_pid = self._freezer_of(key), self._shim_pid(key)
        if shim_pid == 0:
            return {"error": "the job ended"}
        try:
            is_still = self._hold(key, freezer, shim_pid, lambda: freezer.insist(key, shim_pid))
        except OSError as error:
            return {"error": str(error)}
        return {"ok": {"frozen": True}} if is_still else None

    def _hold(self, key: str, freezer: Freezer, shim_pid: int, hold: Callable[[], bool]) -> bool:
        try:
            self._note_stopped(key, freezer, shim_pid)
            is_still = hold()
            self._note_stopped(key, freezer, shim_pid)
        except OSError:  # one that left is another user's by now
            self.thaw(key)
            raise
        count = freezer.count_outside(key) if is_still else 0
        if count and key not in self._told:
            self._told.add(key)
            say(
                f"job {key}: {count} of its processes left its cgroup; they are held by signals, "
                "and no limit of the job's is theirs"
            )
        return is_still

    def _note_stopped(self, key: str, freezer: Freezer, shim_pid: int) -> None:
        """Note those that only the shim connects with the job: they outlive it, still stopped.

        Before they are stopped, because the shim may die at any moment; and afterwards, for those
        that were forked meanwhile.
        """
        pids = freezer.held_by_signals(key, shim_pid)
        main = self._directories.find_main(key)
        session = None if main is None else main.pid
        known = self._stopped.get(key, [])
        left = {pid for pid in pids if session_of(pid) not in (None, session)}
        new = left - {identity.pid for identity in known}
        if new:
            starts = find_starts(new).ticks.items()
            found = [Identity(pid, ticks, read_boot_id()) for pid, ticks in starts]
            self._stopped[key] = [*known, *found]
            self._directories.note_stopped(key, self._stopped[key])

    def _noted(self, key: str) -> list[Identity]:
        """Those that were noted, by this keeper or the one before."""
        return self._stopped.get(key) or self._directories.stopped(key)

    def _tell_noted(self, key: str, number: signal.Signals, told: Container[int]) -> int:
        """Send it to those that were noted and all below them; to how many.

        Those below may have been forked, and stopped, after the note was made.

        Args:
            key: of the attempt.
            number: what to send.
            told: who gets it otherwise.
        """
        count = 0
        for identity in self._noted(key):
            pidfd = None if identity.pid in told else open_pidfd(identity)
            if pidfd is None:
                continue
            below = list(descendants_of(identity.pid))
            children = [pid for pid in reversed(below) if pid not in told]
            with contextlib.suppress(PermissionError):
                count += tell(children, number, {identity.pid, *below})
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)
                count += 1
            os.close(pidfd)
        return count

    def thaw(self, key: str) -> None:
        """Let everything run on."""
        self.maybe_held.discard(key)
        freezer, shim_pid = self._freezer_of(key), self._shim_pid(key)
        self._tell_left_behind(key, freezer, shim_pid, signal.SIGCONT)
        freezer.thaw(key, shim_pid)
        if shim_pid and self._shim_pid(key):  # all were found below it
            self._stopped.pop(key, None)
            self._directories.note_stopped(key, ())

    def _tell_left_behind(
        self, key: str, freezer: Freezer, shim_pid: int, number: signal.Signals
    ) -> int:
        """Where the shim is dead, what it left outside of the job's cgroup; to how many."""
        if shim_pid:
            return 0
        others = [] if freezer.name != "cgroup" else self._left_behind(key, freezer)
        count = send(lambda: self._left_behind(key, freezer), number) if others else 0
        if self._noted(key):
            count += self._tell_noted(key, number, {*others, *freezer.pids(key, 0)})
        return count

    def _left_behind(self, key: str, freezer: Freezer) -> list[int]:
        """As far as it is known: those of the session of the job's first process."""
        inside = set(freezer.pids(key, 0))
        main = self._directories.find_main(key)
        is_inside = main is not None and main.pid in inside
        session = main.pid if main and is_inside else self._directories.find_session(key)
        return [] if session is None else [p for p in survivors_of(session) if p not in inside]

    def kill(self, key: str, number: signal.Signals) -> int:
        """SIGTERM and friends go to each process, then all run on to receive them; how many.

        All: also who was stopped by the job itself, or by a person, and would hear nothing.
        """
        freezer, shim_pid = self._freezer_of(key), self._shim_pid(key)
        try:
            if number is signal.SIGKILL:
                count = len(freezer.pids(key, shim_pid))
                self._note_stopped(key, freezer, shim_pid)  # what is killed is stopped first
                freezer.kill(key, shim_pid)
            else:
                count = send(lambda: freezer.pids(key, shim_pid), number)
                if freezer.name == "cgroup":  # by signals, all are let go anyway
                    send(lambda: freezer.pids(key, shim_pid), signal.SIGCONT)
            count += self._tell_left_behind(key, freezer, shim_pid, number)
        finally:
            self.thaw(key)
        return count

    def has_processes(self, key: str) -> bool:
        """True while one is known to be left of the attempt, also without a shim.

        Its first process may not have come to its own session or cgroup yet.
        """
        if self._directories.has_main(key):
            return True
        if any(is_alive(each, may_execute=True) for each in self._noted(key)):
            return True
        return bool(self._freezer_of(key).pids(key, self._shim_pid(key)))

    def describe(self, job: int, attempt: int, claimant: Identity) -> Message:
        """What is there of the attempt, and whether it stands still."""
        key = job_key(job, attempt)
        there = self._directories.describe(key, claimant)
        shim_pid = self._shim_pid(key)
        frozen = shim_pid != 0 and self._freezer_of(key).is_still(key, shim_pid)
        return {"job": job, "attempt": attempt, "frozen": frozen, **there}

    def lay_to_rest(self, key: str) -> None:
        """Its shim is gone: forget the job; if the shim was killed, what it left runs on."""
        if not self._directories.has_status(key):
            self.thaw(key)
        else:
            self._stopped.pop(key, None)
        self.maybe_held.discard(key)
        self._told.discard(key)
        self._discard(key, self._freezer_of(key))

    def drop_empty(self, *, besides: set[str]) -> None:
        """Remove the cgroups that nobody needs."""
        if isinstance(self.freezer, CgroupFreezer):
            for key in self.freezer.jobs():
                if key not in besides:
                    self._discard(key, self.freezer)

    def _discard(self, key: str, freezer: Freezer, wait_s: float = _FIRST_LOOK_S) -> None:
        """Remove its cgroup; while somebody is left in it, that is tried again."""
        if freezer.remove(key):
            self._left.pop(key, None)
        else:
            self._left[key] = _Left(freezer, time.monotonic() + wait_s, wait_s)

    def look_at_left(self) -> None:
        """Remove the cgroups whose last process has ended since."""
        now_s = time.monotonic()
        for key, left in list(self._left.items()):
            if left.due_s <= now_s:
                self._discard(key, left.freezer, min(2.0 * left.wait_s, _LAST_LOOK_S))

    def patience_s(self) -> float | None:
        """How long there is nothing to look at; None: until somebody says something."""
        due_s = min((left.due_s for left in self._left.values()), default=None)
        return None if due_s is None else max(0.0, due_s - time.monotonic())

    def _shim_pid(self, key: str) -> int:
        """Its living shim; 0: it has none."""
        shim = self._directories.find_shim(key)
        return 0 if shim is None else shim.pid

    def _freezer_of(self, key: str) -> Freezer:
        """A job started under another keeper keeps the means it was started with."""
        record = self._directories.shim_record(key)
        if record is None or record["freezer"] == self.freezer.name:
            return self.freezer
        return freezer_of(record, self._directories)
