"""What each attempt is, from prepare to its end, and what is told of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Final

from iodaemon.supervisor import ledger as records
from iodaemon.supervisor import protocol, syscalls
from iodaemon.supervisor.cgroup import Cgroups, Look
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.holder import Holders
from iodaemon.supervisor.launch import HOLDER, LAUNCHER, Launch, explain, pack
from iodaemon.supervisor.ledger import EXEC, Entry, Key, Ledger, Record, Use
from iodaemon.supervisor.line import AT_ONCE, Line, Loop
from iodaemon.supervisor.orders import Orders
from iodaemon.supervisor.protocol import Message
from iodaemon.supervisor.reap import Reaper, read_state

_SCAN_EVERY_S: Final = 0.05
"""Between scans for children that no pidfd stands for; the scan grows with the living children."""
_TELL_WITHIN_S: Final = 0.002
"""After it has begun. A job that has ended by then is told of once."""
_SETTLE_S: Final = 1.0
"""How long a child that may have read its EXEC record has to append it; then it is killed."""
_LOOKS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_CONTINUE_S: Final = 6.0
"""script(1) stops itself once more when its child stopped."""
_LOST_AFTER: Final = 7
"""Looks at an empty job without EXIT, after which, and after the anchor's word, it is lost."""
_GAP_LOOKS: Final = 8
_GAP_US: Final = 200
_GAP_RATIO: Final = 0.002
"""CPU time of the cgroup that no reaped process accounts for. Above that a zombie is still on its
way here, or the kernel reaped a child by itself; below it are rounding and the last moment of each
process (measured: at most 72 us of 173 ms for 200 processes beside a load of 12)."""
_MOST_TRIES: Final = 3
_STOP_WITHIN_US: Final = 2_000_000
"""Between the first and the last process of a unit that gets its SIGTERM; milliseconds."""
_LOOK_FOR_STOP_S: Final = 0.05
_BY_STOP: Final = (signal.SIGTERM, signal.SIGKILL, (128 + signal.SIGTERM) << 8)
"""As wait(2) has it; the last one is a shell whose last command died of SIGTERM."""

ENDS: Final = "ends.json"
"""Beside the directory of outputs: ``describe_ends`` at the last shutdown."""
SETTLING, PREPARING, PREPARED, GOING, RUNNING, ENDED, FAILED, LOST = (
    "settling", "preparing", "prepared", "going", "running", "ended", "failed", "lost",
)  # fmt: skip
OVER: Final = (ENDED, FAILED, LOST)
BEFORE: Final = (PREPARING, PREPARED)


class Attempt:
    """What the supervisor knows of one attempt, beyond ledger and cgroup."""

    def __init__(self, key: Key, stage: str) -> None:
        self.key = key
        self.stage = stage
        self.launch: Launch | None = None
        """What is to run; None: it runs, or is not to."""
        self.limits = protocol.Limits()
        self.line: Line | None = None
        self.pid = self.ticks = 0
        self.pidfd = -1
        self.look = Look(is_populated=True, is_frozen=False)
        self.looks = self.tries = 0
        self.continue_until_s = 0.0
        """Until then each look continues what has stopped itself once more."""
        self.began_s = time.monotonic()
        self.wants_run = self.wants_still = False
        self.problem: Message = {}
        self.memory: Message | None = None
        self.was_told = self.is_killed = self.is_from_outside = False
        """Whether the daemon sent it a signal; SIGKILL; whether it died with all jobs' unit."""
        self.is_told = True
        """Whether the daemon knows that it runs; it hears of one that ends at once only then."""
        self.is_asked = self.is_forgotten = self.is_removed = False


def describe_end(entry: Entry, *, is_over: bool) -> Message:
    """What the ledger says of an attempt that has ended; ``is_over`` is False of a lost one."""
    told: Message = {
        "use": entry.use._asdict(),
        "whole": entry.flags & (records.MAIN | records.AT_LEAST) == records.MAIN and is_over,
        "started_us": entry.started_us or None,
        "ended_us": entry.exited_us or None,
    }
    if entry.status is not None:
        is_killed = os.WIFSIGNALED(entry.status)
        told["exit"] = {
            "code": None if is_killed else os.WEXITSTATUS(entry.status),
            "signal": os.WTERMSIG(entry.status) if is_killed else None,
        }
    return told


def describe_ends(ledger: Ledger) -> Message:
    """How attempts ended, by their keys, for the daemon of the next boot.

    What died as a stop kills is left out: the shutdown killed it, and it may be run again.
    """
    return {
        str(key): {**describe_end(entry, is_over=True), "started_us": None, "ended_us": None}
        for key, entry in ledger.entries.items()
        if entry.status is not None and not _may_be_by_stop(entry.status)
    }


def _may_be_by_stop(status: int | None) -> bool:
    """Whether it may have ended because systemd stopped the unit that it was in."""
    return status is not None and (status & 0x7F or status) in _BY_STOP


class Attempts:
    """All attempts of one supervisor.

    Attributes:
        all: by their keys.
        used: those of which more was used since the daemon asked.
        clean_s: when the anchor last said that it had taken in its children; inf: there is none.
    """

    def __init__(
        self,
        ledger: Ledger,
        means: Cgroups | Holders,
        orders: Orders,
        loop: Loop,
        *,
        send: Callable[[Message], None],
        ask_anchor: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._means = means
        self._orders = orders
        self._loop = loop
        self._send = send
        self._ask_anchor = ask_anchor
        self._reaper = Reaper(ledger, means.key_of)
        self.all: dict[Key, Attempt] = {}
        self.used: set[Key] = set()
        self._scanned_s = self.clean_s = 0.0

    def _on_children(self) -> None:
        """A child of some kind has ended; the next scan finds all that have.

        Signals of children are listened for again only after that: many ends are few scans.
        """
        syscalls.read_signals(self._children)
        self._loop.want(self._children, read=False)
        wait_s = self._scanned_s + _SCAN_EVERY_S - time.monotonic()
        self._loop.call_in(max(0.0, wait_s), self, self._scan_all)

    def _scan_all(self) -> None:
        if self.scan():
            self._loop.want(self._children)
        else:
            self._loop.call_in(0.0, self, self._scan_all)

    def begin(self, key: Key) -> Attempt:
        """In place of one that failed, if there was one."""
        if key in self.all:
            self._close_pidfd(self.all[key])
        attempt = self.all[key] = Attempt(key, SETTLING)
        return attempt

    def order(self, attempt: Attempt) -> None:
        """Have its process made."""
        self._close_pidfd(attempt)  # of one that was made before
        attempt.stage = PREPARING
        self._orders.add(attempt.key, attempt.limits, lambda made: self._attach(attempt, made))

    def _attach(self, attempt: Attempt, made: socket.socket | OSError) -> None:
        if isinstance(made, OSError):
            self.fail(attempt, "system", f"it cannot be prepared ({made.strerror})")
            return
        assert attempt.launch is not None
        attempt.line = Line(made, self._loop, lambda: self._on_child(attempt))
        attempt.line.unsent += pack(attempt.launch)
        attempt.line.flush()

    def take_over(self) -> None:
        """Find what runs already, as an earlier supervisor left it."""
        self._children = syscalls.open_signals(signal.SIGCHLD)
        self._loop.add(self._children, self._on_children)
        if isinstance(self._means, Cgroups):
            self._loop.add(self._means.fd, self._on_changes)
        for key, entry in self._ledger.entries.items():
            if entry.has_run:
                attempt = self.all[key] = Attempt(key, RUNNING)
                attempt.wants_still = self._means.is_held(key)
                if attempt.wants_still:
                    self._means.freeze(key)
                if entry.status is None and entry.pid:
                    self._watch(attempt, entry.pid, is_known=False)
                self.look_in(attempt, 0.0)
        for key in self._means.find_jobs():
            if key not in self.all:
                self.settle(key)
            self._means.adopt(key)
        self._loop.call_in(0.0, self, self._scan_all)

    def settle(self, key: Key) -> Attempt:
        """An attempt without EXEC whose cgroup is there, with a child of a supervisor that died,
        which either executes or ends, or with a job whose ledger is gone.
        """
        attempt = self.begin(key)
        attempt.wants_still = self._means.is_held(key)
        self.look_in(attempt, 0.0)
        return attempt

    def _watch(self, attempt: Attempt, pid: int, *, is_known: bool) -> None:
        """Watch its first process, which may be the anchor's to tell of, or its holder.

        ``is_known``: the process itself said its number, which else may be another one's by now.
        Raises OSError: there is no room for its descriptor.
        """
        self._ledger.catch_up()
        watched = self._means.find_holder(attempt.key) or pid
        try:
            if watched == pid:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            pidfd = os.pidfd_open(watched)
        except (ChildProcessError, ProcessLookupError):
            return
        attempt.pid, attempt.pidfd = pid, pidfd
        known = attempt.key if is_known and watched == pid else None
        self._loop.add(pidfd, lambda: self._on_end(attempt, known))

    def _on_child(self, attempt: Attempt) -> None:
        assert attempt.line is not None
        attempt.line.flush()
        data = attempt.line.receive()
        if data is None:
            return
        for line in attempt.line.reader.feed(data):
            self._take_word(attempt, protocol.decode(line))
        if not data and attempt.line is not None:
            self._on_child_gone(attempt)

    def _take_word(self, attempt: Attempt, word: Message) -> None:
        if "ticks" not in word:
            assert attempt.launch is not None
            attempt.problem = explain(attempt.launch, word) if word else {}
            return
        try:
            self._watch(attempt, word["pid"], is_known=True)
        except OSError as error:
            self.cancel(attempt, "system", f"it cannot be prepared ({error.strerror})")
            return
        attempt.pid, attempt.ticks, attempt.stage = word["pid"], word["ticks"], PREPARED
        self._orders.is_over(attempt.key)
        if attempt.wants_run:
            self.go(attempt)

    def go(self, attempt: Attempt) -> None:
        """Let it run: it records what it is given here just before it executes."""
        assert attempt.line is not None
        attempt.stage = GOING
        values = attempt.ticks, records.now_us()
        attempt.line.unsent += Record(EXEC, attempt.key, attempt.pid, values=values).pack()
        attempt.line.flush()
        reach("supervisor.go_sent")

    def _close_line(self, attempt: Attempt) -> None:
        self._orders.is_over(attempt.key)
        if attempt.line is not None:
            attempt.line.close()
            attempt.line = None

    def _on_child_gone(self, attempt: Attempt) -> None:
        """It has executed, or has ended; the ledger knows which."""
        self._close_line(attempt)
        self._ledger.catch_up()
        entry = self._ledger.entries.get(attempt.key)
        if entry is not None and entry.has_run:
            reach("supervisor.exec_seen")
            self._begin_running(attempt)
        elif attempt.problem:
            self.fail(attempt, **attempt.problem)
        elif not attempt.pid and attempt.tries < _MOST_TRIES:  # the launcher died with the order
            attempt.tries += 1
            self.order(attempt)
        else:
            self.fail(attempt, "died", "its process died before it ran")

    def _begin_running(self, attempt: Attempt) -> None:
        is_urgent = bool(attempt.problem) or attempt.wants_still
        attempt.stage, attempt.launch, attempt.is_told = RUNNING, None, is_urgent
        if attempt.wants_still:
            self._means.freeze(attempt.key)
        self.look_in(attempt, 0.0 if is_urgent else _TELL_WITHIN_S)

    def fail(self, attempt: Attempt, code: str, problem: str, *, is_lasting: bool = False) -> None:
        """It never ran, and never will under this key unless it is prepared again."""
        self._close_line(attempt)
        attempt.stage, attempt.launch = FAILED, None
        attempt.problem = {"code": code, "problem": problem, "is_lasting": is_lasting}
        self.report(attempt)
        self.look(attempt)

    def cancel(self, attempt: Attempt, code: str, problem: str) -> None:
        self._close_line(attempt)  # killing may need a descriptor
        self._means.kill(attempt.key)
        self.fail(attempt, code, problem, is_lasting=code == "killed")

    def take_back(self) -> None:
        """The line on which they were prepared has ended: what was not let run is absent. The next
        daemon may count on other CPUs, or know nothing of them.
        """
        for attempt in list(self.all.values()):
            if attempt.wants_run or attempt.stage not in (SETTLING, *BEFORE):
                continue
            attempt.launch, attempt.is_asked = None, False
            if attempt.stage != SETTLING:
                self._close_line(attempt)
                self._means.kill(attempt.key)
                self.look_in(self.begin(attempt.key), 0.0)

    def _on_end(self, attempt: Attempt, known: Key | None) -> None:
        """The first process has ended, to its last thread."""
        ended = self._reaper.take_pidfd(attempt.pidfd, known)
        self._close_pidfd(attempt)
        if ended is None:  # a tracer keeps it
            self.look_in(attempt, _LOOKS_S[0])
        if not self._means.are_children:
            self.read_ledger()
        self.look(attempt)

    def _close_pidfd(self, attempt: Attempt) -> None:
        if attempt.pidfd >= 0:
            self._loop.remove(attempt.pidfd)
            os.close(attempt.pidfd)
            attempt.pidfd = -1

    def scan(self) -> bool:
        """Take in a bounded number of children of any kind; whether none is left."""
        taken, more = self._reaper.scan(AT_ONCE)
        self._scanned_s = time.monotonic()
        for ended in taken:
            if ended.key is not None and ended.key in self.all:
                attempt = self.all[ended.key]
                self.used.add(ended.key)
                if ended.pid == attempt.pid:
                    self._close_pidfd(attempt)
                self.look_in(attempt, 0.0)
        return not more

    def _on_changes(self) -> None:
        assert isinstance(self._means, Cgroups)
        changed = self._means.changed(AT_ONCE)
        if changed is None:  # too many at once
            self.look_at_all()
            return
        for key in dict.fromkeys(changed):
            if key in self.all:
                self.look(self.all[key])

    def look_at_all(self) -> None:
        for attempt in self.all.values():
            self.look_in(attempt, 0.0)

    def read_ledger(self) -> None:
        """What others recorded: anchor, holders, children."""
        self._ledger.catch_up()
        changed = self._ledger.changed.intersection(self.all)
        self._ledger.changed.clear()
        self.used |= changed
        for key in changed:
            self.look_in(self.all[key], 0.0)

    def look_in(self, attempt: Attempt, wait_s: float) -> None:
        key = attempt.key

        def look() -> None:
            if key in self.all:
                self.look(self.all[key])

        self._loop.call_in(wait_s, key, look)

    def _look_again(self, attempt: Attempt) -> None:
        """Later each time; the kernel says when there is something new, but perhaps 10 ms late."""
        self.look_in(attempt, _LOOKS_S[min(attempt.looks, len(_LOOKS_S) - 1)])
        attempt.looks += 1

    def look(self, attempt: Attempt) -> None:
        if attempt.stage == SETTLING:
            self._look_at_settling(attempt)
        elif attempt.stage == RUNNING:
            self._look_at_running(attempt)
        elif attempt.stage in OVER:
            self.tidy(attempt)

    def _look_at_settling(self, attempt: Attempt) -> None:
        is_populated = self._means.look(attempt.key).is_populated
        # What has executed has another name. A job that names itself so deceives its user alone.
        states = map(read_state, self._means.pids(attempt.key))
        is_job = any(state and state.name not in (LAUNCHER, HOLDER) for state in states)
        self._ledger.catch_up()  # after that: who has executed has recorded it
        entry = self._ledger.entries.get(attempt.key)
        if is_job and (entry is None or not entry.has_run):
            self._ledger.append(Record(EXEC, attempt.key))
            entry = self._ledger.entries[attempt.key]
        if entry is not None and entry.has_run:
            if not attempt.wants_still:
                self._means.thaw(attempt.key)
            self._begin_running(attempt)
        elif is_populated or not self._means.remove(attempt.key):
            if time.monotonic() > attempt.began_s + _SETTLE_S:
                self._means.kill(attempt.key)
            self._look_again(attempt)
        elif attempt.launch is not None:  # it is to be prepared once more
            self.order(attempt)
        else:
            self._loop.drop(attempt.key)
            del self.all[attempt.key]
            if attempt.is_asked:
                self._send({"key": str(attempt.key), "state": "absent"})

    def _look_at_running(self, attempt: Attempt) -> None:
        before, key = attempt.look, attempt.key
        found = attempt.look = self._means.look(key)
        entry = self._ledger.entries[key]
        if found.is_populated:
            if found != before or not attempt.is_told:
                attempt.looks = 0
                if found.is_frozen:
                    reach("supervisor.frozen")
                self.report(attempt)
            is_continued = time.monotonic() < attempt.continue_until_s
            if is_continued:
                self._means.continue_stopped(key)
            is_as_wanted = attempt.wants_still == found.is_frozen and not attempt.is_killed
            if entry.status is not None or is_continued or not is_as_wanted:
                self._means.adopt(key)
                self._look_again(attempt)
            return
        if before.is_populated:
            attempt.looks = 0
        if entry.status is None:
            self._seek_exit(attempt)
        elif self.scan():
            self._conclude(attempt)
        else:
            self.look_in(attempt, 0.0)

    def continue_stopped(self, attempt: Attempt) -> None:
        """What stopped itself goes on, and so does what then stops once more."""
        if self._means.continue_stopped(attempt.key):
            attempt.continue_until_s = time.monotonic() + _CONTINUE_S
            attempt.looks = 0
            self._look_again(attempt)

    def _seek_exit(self, attempt: Attempt) -> None:
        """Nothing lives in it, and nobody has said how it ended: a tracer, the anchor, or nobody.

        A first process that was taken out of its cgroup says so itself, unless it was to be killed.
        """
        self.scan()
        if attempt.pidfd >= 0 and not attempt.is_killed:
            return
        self._ledger.catch_up()
        is_late = attempt.looks >= _LOST_AFTER
        if self._ledger.entries[attempt.key].status is None and is_late:
            if attempt.pid and self._means.are_children and self._reaper.take_traced(attempt.key):
                self.look_in(attempt, 0.0)
                return
            if self.clean_s > attempt.began_s:
                attempt.is_from_outside = bool(self._means.is_being_stopped())
                self._end(attempt, LOST)
                return
        if attempt.looks == _LOST_AFTER - 1:
            attempt.began_s = time.monotonic()
            self._ask_anchor()
        self._look_again(attempt)

    def _conclude(self, attempt: Attempt) -> None:
        """Nothing lives, all children are taken in: it has ended, unless CPU time is missing."""
        self._ledger.catch_up()  # others record how it ended first, and then what it used
        entry = self._ledger.entries[attempt.key]
        cpu_us = self._means.cpu_us(attempt.key)
        if cpu_us is not None and not entry.flags & records.AT_LEAST:
            gap_us = cpu_us - entry.use.cpu_us
            if gap_us > _GAP_US + _GAP_RATIO * cpu_us:
                if attempt.looks < _GAP_LOOKS:  # a zombie may be on its way here
                    self._look_again(attempt)
                    return
                self._ledger.add_use(attempt.key, Use(), records.AT_LEAST)
        if self._awaits_stop(attempt, entry):
            self.look_in(attempt, _LOOK_FOR_STOP_S)
        else:
            self._end(attempt, ENDED)

    def _awaits_stop(self, attempt: Attempt, entry: Entry) -> bool:
        """Whether the sign that the unit of all jobs is being stopped may follow this death.

        systemd signals its processes one after the other, the job or the placeholder first.
        """
        is_stopped = self._means.is_being_stopped()
        if is_stopped is None or attempt.was_told or not _may_be_by_stop(entry.status):
            return False
        attempt.is_from_outside = is_stopped
        return not is_stopped and records.now_us() < entry.exited_us + _STOP_WITHIN_US

    def _end(self, attempt: Attempt, stage: str) -> None:
        """What only the cgroup tells is read before it is removed."""
        attempt.stage, attempt.memory = stage, self._means.find_memory_end(attempt.key)
        reach("supervisor.ended")
        self.report(attempt)
        self.tidy(attempt)

    def tidy(self, attempt: Attempt) -> None:
        """Remove what an attempt that is over leaves; tried again while somebody is in it."""
        self._loop.drop(attempt.key)
        with contextlib.suppress(OSError):
            attempt.is_removed = attempt.is_removed or self._means.remove(attempt.key)
        if not attempt.is_removed:
            self._look_again(attempt)
        elif attempt.is_forgotten:
            self._close_pidfd(attempt)
            self.all.pop(attempt.key, None)

    def report(self, attempt: Attempt) -> None:
        if attempt.is_forgotten or attempt.stage in (SETTLING, PREPARING, GOING):
            return
        attempt.is_told = True
        self._send({"key": str(attempt.key), "state": attempt.stage, **self._describe(attempt)})

    def _describe(self, attempt: Attempt) -> Message:
        entry = self._ledger.entries.get(attempt.key)
        if attempt.stage == FAILED:
            return attempt.problem
        if entry is None or attempt.stage == PREPARED:
            return {}
        if attempt.stage == RUNNING:
            return {
                "pid": entry.pid,
                "start_ticks": entry.ticks,
                "started_us": entry.started_us or None,
                "frozen": attempt.look.is_frozen,
                "holder": self._means.find_holder(attempt.key),
            }
        told = describe_end(entry, is_over=attempt.stage == ENDED)
        told["memory"], told["from_outside"] = attempt.memory, attempt.is_from_outside
        if "problem" in attempt.problem:
            told["problem"] = attempt.problem["problem"]
        return told
