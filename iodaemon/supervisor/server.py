"""The supervisor: parent of every job. One thread, one epoll loop, no disk.

It holds no truth of its own: what an attempt is follows from the ledger, the cgroup (or holder)
and the socketpair of a child that has not executed yet. So a supervisor that was killed, or
replaced itself by ``execve``, begins by looking, and a wish or a report that is lost is made good
by the daemon's ``sync``. It reads /proc of zombies only, and never waits for any process.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from iodaemon.supervisor import anchor as root
from iodaemon.supervisor import ledger as records
from iodaemon.supervisor import protocol, syscalls
from iodaemon.supervisor.anchor import Config, Shared
from iodaemon.supervisor.cgroup import Cgroups, Look
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.identity import peer_of
from iodaemon.supervisor.launch import GO, LENGTH, Settings, format_settings
from iodaemon.supervisor.ledger import Key, Ledger, Record, parse_key
from iodaemon.supervisor.process_tree import Holders
from iodaemon.supervisor.protocol import BadInputError, LineReader, Message, Silence
from iodaemon.supervisor.reap import Reaper
from iodaemon.supervisor.scratch import Desk, copy_ledger
from iodaemon.supervisor.syscalls import say

AT_ONCE: Final = 32
"""Events between two looks at the daemon's line."""
_MOST_UNDER_WAY: Final = 64
"""Children between clone and ready. One that takes longer than ``_SLOW_S`` does not count."""
_SLOW_S: Final = 1.0
_SCAN_EVERY_S: Final = 0.05
"""Between scans for children that no pidfd stands for; the scan grows with the living children."""
_SOCKET_EVERY_S: Final = 1.0
_RETRY_S: Final = 0.5
_SETTLE_S: Final = 1.0
"""For an attempt without EXEC whose child may still have read ``go``; then it is killed."""
_LOOKS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_LOST_AFTER: Final = 7
"""Looks at an empty job without EXIT, after which, and after the anchor's word, it is lost."""
_GAP_LOOKS: Final = 8
_GAP_US: Final = 200
_GAP_RATIO: Final = 0.002
"""CPU time of the cgroup that no reaped process accounts for. Above that a zombie is still on its
way here, or the kernel reaped a child by itself; below it are rounding and the last moment of each
process (measured: at most 72 us of 173 ms for 200 processes beside a load of 12)."""
_RESERVED_FDS: Final = 12
_MOST_TRIES: Final = 3
_READ_BYTES: Final = 1 << 18
_MOST_FILES: Final = 1 << 18

SETTLING, QUEUED, PREPARING, PREPARED, GOING, RUNNING, ENDED, FAILED, LOST = (
    "settling", "queued", "preparing", "prepared", "going", "running", "ended", "failed", "lost",
)  # fmt: skip
_OVER: Final = (ENDED, FAILED, LOST)
_BEFORE: Final = (QUEUED, PREPARING, PREPARED)


class Attempt:
    """What the supervisor knows of one attempt, beyond ledger and cgroup."""

    __slots__ = ("began_s", "is_asked", "is_forgotten", "is_removed", "key", "limits", "line", "look",
                 "looks", "order", "pid", "pidfd", "problem", "stage", "tries", "unread",
                 "unsent", "wants_run", "wants_still")  # fmt: skip

    def __init__(self, key: Key, stage: str) -> None:
        self.key = key
        self.stage = stage
        self.order: bytes = b""
        self.limits = protocol.Limits()
        self.line: socket.socket | None = None
        self.unsent = bytearray()
        self.unread = LineReader()
        self.pid = 0
        self.pidfd = -1
        self.look = Look(is_populated=True, is_frozen=False)
        self.looks = self.tries = 0
        self.began_s = time.monotonic()
        self.wants_run = self.wants_still = False
        self.problem: Message = {}
        self.is_asked = self.is_forgotten = self.is_removed = False


class Server:
    """One supervisor. ``run`` returns when it has nothing left to do."""

    def __init__(self, config: Config, shared: Shared, anchor: int | None) -> None:
        self._config = config
        self._shared = shared
        self._ledger = Ledger(shared.ledger)
        self._means: Cgroups | Holders
        if config.cgroup == "none":
            self._means = Holders(self._ledger, config.why)
        else:
            self._means = Cgroups(config.cgroup)
            self._means.hand_down()
        self._reaper = Reaper(self._ledger, self._means.key_of)
        self._attempts: dict[Key, Attempt] = {}
        self._due: dict[Key, float] = {}
        self._queue: collections.deque[Attempt] = collections.deque()
        self._under_way: dict[Key, float] = {}
        self._used: set[Key] = set()
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._listener = socket.socket(fileno=shared.listener)
        self._second = socket.socket(fileno=shared.second) if shared.second >= 0 else None
        self._anchor = None if anchor is None else socket.socket(fileno=anchor)
        self._daemon: socket.socket | None = None
        self._reader = LineReader()
        self._unsent = bytearray()
        self._speaks = False
        self._silence = Silence(config.grace_s)
        self._launcher: socket.socket | None = None
        self._launched_s = 0.0
        self._beat_due_s = self._socket_due_s = 0.0
        self._scan_due_s, self._scanned_s = 0.0, 0.0
        self._clean_s = 0.0
        self._is_terminated = self._is_leaving = False
        self._desk = Desk(self._add, self._remove, self._send)
        self._wishes: dict[str, Callable[[Message], None]] = {
            "hello": self._hello, "prepare": self._prepare, "run": self._run_wish,
            "freeze": self._freeze, "thaw": self._thaw, "signal": self._signal,
            "kill": self._kill, "forget": self._forget, "sync": self._sync, "beat": self._beat,
            "scratch": self._desk.ask, "reexec": self._reexec,
        }  # fmt: skip

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> None:
        self._wake = syscalls.wake_on_signals(signal.SIGCHLD, signal.SIGHUP, signal.SIGINT)
        signal.signal(signal.SIGTERM, self._on_term)
        self._listen(self._listener)
        if self._second is not None:
            self._listen(self._second)
        if self._anchor is not None:
            self._anchor.setblocking(False)  # noqa: FBT003
            self._add(self._anchor.fileno(), self._on_anchor)
        self._add(self._wake, self._on_signal)
        self._add(self._means.fd, self._on_changes)
        self._take_over()
        self._start_launcher()
        reach("supervisor.ready")
        for line in self._reader.feed(b""):  # what was read before ``execve``
            self._take_wish(line)
        while not self._is_leaving:
            for fd, _ in self._epoll.poll(self._patience_s(), AT_ONCE):
                handler = self._handlers.get(fd)  # its number may be another's by now
                if handler is not None:
                    handler()
            self._hear()
            self._keep_time()
        self._leave()

    def _add(self, fd: int, handler: Callable[[], None], events: int = select.EPOLLIN) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def _remove(self, fd: int) -> None:
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def _patience_s(self) -> float:
        now_s = time.monotonic()
        due_s = min(self._beat_due_s, self._socket_due_s, self._desk.due_s())
        if self._scan_due_s:
            due_s = min(due_s, self._scan_due_s)
        if self._due:
            due_s = min(due_s, *self._due.values())
        if self._launcher is None:
            due_s = min(due_s, self._launched_s + _RETRY_S)
        if self._queue and len(self._under_way) >= _MOST_UNDER_WAY:
            due_s = min(due_s, *(began_s + _SLOW_S for began_s in self._under_way.values()))
        return max(0.0, min(due_s - now_s, self._silence.wait_s()))

    def _keep_time(self) -> None:
        now_s = time.monotonic()
        if self._scan_due_s and now_s >= self._scan_due_s:
            self._scan()
        for key in [key for key, due_s in self._due.items() if due_s <= now_s][:AT_ONCE]:
            del self._due[key]
            if key in self._attempts:
                self._look(self._attempts[key])
        if now_s >= self._beat_due_s:
            self._beat_due_s = now_s + self._config.grace_s / root.BEATS
            self._tell_anchor(b"beat")
            if isinstance(self._means, Holders):
                self._means.beat(key for key, a in self._attempts.items() if a.wants_still)
        if now_s >= self._socket_due_s:
            self._socket_due_s = now_s + _SOCKET_EVERY_S
            self._check_socket()
            self._check_idle()
        if self._silence.begins():
            self._let_all_go()
        self._desk.keep_time()
        if self._launcher is None and now_s >= self._launched_s + _RETRY_S:
            self._start_launcher()
        self._pump()

    def _on_signal(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass
        if not self._scan_due_s:
            self._scan_due_s = max(time.monotonic(), self._scanned_s + _SCAN_EVERY_S)

    def _on_term(self, *_: object) -> None:
        self._is_terminated = self._is_leaving = True

    def _let_all_go(self) -> None:
        """Nobody is there who would resume them."""
        held = [a for a in self._attempts.values() if a.wants_still or a.look.is_frozen]
        for attempt in held:
            attempt.wants_still = False
            self._means.thaw(attempt.key)
            self._look_in(attempt, 0.0)
        if held:
            say(f"no daemon for {self._config.grace_s:g} s; {len(held)} jobs run on")
            reach("supervisor.let_go")

    # -- beginning and end -------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Find what runs already, as an earlier supervisor left it."""
        for key, entry in self._ledger.entries.items():
            if entry.has_run:
                attempt = self._attempts[key] = Attempt(key, RUNNING)
                attempt.wants_still = self._means.is_held(key)
                if entry.status is None and self._means.are_children:
                    self._open_pidfd(attempt, entry.pid)
                self._look_in(attempt, 0.0)
        for key in self._means.keys():
            if key not in self._attempts:
                self._settle(key)
            self._means.adopt(key)
        self._scan_due_s = time.monotonic()

    def _settle(self, key: Key) -> Attempt:
        """Somebody is in the cgroup of an attempt without EXEC: it either executes, or ends."""
        attempt = self._attempts[key] = Attempt(key, SETTLING)
        self._look_in(attempt, 0.0)
        return attempt

    def _open_pidfd(self, attempt: Attempt, pid: int) -> None:
        """Watch a child; one that is the anchor's is told of by the anchor.

        Raises:
            OSError: there is no room for its descriptor.
        """
        attempt.pid = pid
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            pidfd = os.pidfd_open(pid)
        except (ChildProcessError, ProcessLookupError):
            return
        attempt.pidfd = pidfd
        self._add(pidfd, lambda: self._on_end(attempt))

    def _check_idle(self) -> None:
        is_idle = all(a.stage in _OVER for a in self._attempts.values()) and not self._desk.is_busy
        if is_idle and self._anchor is None:
            say("nothing runs; a new anchor takes over")
            reach("supervisor.anchoring")
            self._close_launcher()
            words = [self._config.dump(), json.dumps({"shared": list(self._shared_now())})]
            root.execute("anchor", words, self._shared_now().fds())
        is_alone = self._daemon is None and self._silence.lasts_s() > self._config.grace_s
        if is_idle and is_alone and not self._config.is_service:
            self._is_leaving = True

    def _shared_now(self) -> Shared:
        return self._shared._replace(listener=self._listener.fileno())

    def _leave(self) -> None:
        """Let all run on and say goodbye: jobs outlive this process, how they end is then lost."""
        for attempt in self._attempts.values():
            if attempt.wants_still:
                self._means.thaw(attempt.key)
        if self._is_terminated and self._config.outputs is not None:
            copy = os.path.join(os.path.dirname(self._config.outputs), "ledger")
            copy_ledger(self._shared.ledger, copy)
        self._close_launcher()
        self._scan()
        reach("supervisor.leaving")
        self._tell_anchor(b"over")

    def _reexec(self, _: Message) -> None:
        """Become the program that is installed now; children, line and ledger stay."""
        reach("supervisor.reexec")
        self._tell_anchor(b"reexec")
        self._close_launcher()
        state = {"unread": self._reader.unread.hex(), "unsent": self._unsent.hex()}
        memory = os.memfd_create("state")
        with open(memory, "w", closefd=False) as file:
            json.dump(state, file)
        fds = {"anchor": self._anchor, "daemon": self._daemon}
        numbers = {name: line.fileno() for name, line in fds.items() if line is not None}
        resume = {**numbers, "memory": memory, "shared": list(self._shared_now())}
        words = [self._config.dump(), json.dumps(resume)]
        root.execute("server", words, [*numbers.values(), memory, *self._shared_now().fds()])

    def resume(self, daemon: int, memory: int) -> None:
        """After ``execve``: the daemon's line, and what was half read and half written."""
        with open(memory, closefd=True) as file:
            file.seek(0)
            state = json.load(file)
        self._reader = LineReader(bytes.fromhex(state["unread"]))
        self._unsent += bytes.fromhex(state["unsent"])
        self._attach(socket.socket(fileno=daemon))
        self._hello({"protocol": protocol.VERSION})

    # -- the anchor --------------------------------------------------------------------------------

    def _tell_anchor(self, word: bytes) -> None:
        if self._anchor is not None:
            with contextlib.suppress(OSError):
                self._anchor.send(word)

    def _on_anchor(self) -> None:
        assert self._anchor is not None
        try:
            word = self._anchor.recv(64)
        except BlockingIOError:
            return
        except OSError:
            word = b""
        if not word:
            self._remove(self._anchor.fileno())
            self._anchor.close()
            self._anchor = None
            say("the anchor died; jobs are unprotected until none runs")
            self._send({"protected": False})
        elif word == b"clean":
            self._clean_s = time.monotonic()
            self._read_ledger()
        elif word == b"ledger":
            self._read_ledger()

    def _read_ledger(self) -> None:
        """What others recorded: anchor, holders, children."""
        self._ledger.catch_up()
        changed = self._ledger.changed.intersection(self._attempts)
        self._ledger.changed.clear()
        self._used |= changed
        for key in changed:
            self._look_in(self._attempts[key], 0.0)

    # -- the launcher ------------------------------------------------------------------------------

    def _start_launcher(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = Settings(self._config.min_uid, self._config.outputs, self._config.grace_s)
        fds = [theirs.fileno(), self._shared.ledger]
        words = [*map(str, fds), self._means.name, *format_settings(settings)]
        self._launched_s = time.monotonic()
        try:
            root.spawn("launch", words, fds)
        except OSError as error:
            say(f"no launcher can be started ({error.strerror}); it is tried again")
            ours.close()
            return
        finally:
            theirs.close()
        ours.setblocking(False)  # noqa: FBT003
        self._launcher = ours
        self._add(ours.fileno(), self._on_launcher)

    def _on_launcher(self) -> None:
        """It says nothing: the line has ended, or takes orders again."""
        assert self._launcher is not None
        is_gone = True
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            self._launcher.recv(1)
            self._close_launcher()
            return
        try:
            self._launcher.getpeername()
            is_gone = False
            self._epoll.modify(self._launcher.fileno(), select.EPOLLIN)
        except OSError:
            pass
        if is_gone:
            self._close_launcher()

    def _close_launcher(self) -> None:
        if self._launcher is not None:
            self._remove(self._launcher.fileno())
            self._launcher.close()
            self._launcher = None

    def _pump(self) -> None:
        """Send orders to the launcher, as long as it takes them and not too many are under way."""
        now_s = time.monotonic()
        while self._queue and self._launcher is not None:
            if len(self._under_way) >= _MOST_UNDER_WAY:
                slow = [key for key, s in self._under_way.items() if now_s - s >= _SLOW_S]
                for key in slow:
                    del self._under_way[key]
                if not slow:
                    return
            attempt = self._queue.popleft()
            try:
                self._order(attempt)
            except BlockingIOError:
                self._queue.appendleft(attempt)
                self._epoll.modify(self._launcher.fileno(), select.EPOLLIN | select.EPOLLOUT)
                return
            except (BrokenPipeError, ConnectionResetError):
                self._queue.appendleft(attempt)
                self._close_launcher()
                self._launched_s = min(self._launched_s, now_s - _RETRY_S)
                return
            except OSError as error:
                problem = f"it cannot be prepared ({error.strerror})"
                self._fail(attempt, "system", problem, is_lasting=False)

    def _order(self, attempt: Attempt) -> None:
        """Make what the job's process needs, and order it.

        Raises:
            OSError: not now.
        """
        assert self._launcher is not None
        ours, theirs = socket.socketpair()
        try:
            self._check_room(theirs.fileno())
            cgroup, problems = self._means.prepare(attempt.key, attempt.limits)
            for problem in problems:
                say(f"job {attempt.key}: {problem}")
            reach("supervisor.cgroup_made")
            fds = [theirs.fileno(), *([] if cgroup is None else [cgroup])]
            try:
                socket.send_fds(self._launcher, [str(attempt.key).encode()], fds)
            finally:
                if cgroup is not None:
                    os.close(cgroup)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reach("supervisor.ordered")
        attempt.stage, attempt.line = PREPARING, ours
        ours.setblocking(False)  # noqa: FBT003
        self._under_way[attempt.key] = time.monotonic()
        self._add(ours.fileno(), lambda: self._on_child(attempt))
        attempt.unread = LineReader()
        attempt.unsent += LENGTH.pack(len(attempt.order)) + attempt.order
        self._flush_child(attempt)

    def _check_room(self, highest: int) -> None:
        """The kernel gives the lowest free number: the last one tells how many are left.

        Raises:
            OSError: EMFILE: what runs, and the daemon's line, need the rest.
        """
        if highest + _RESERVED_FDS >= resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    # -- a child before it executes ----------------------------------------------------------------

    def _flush_child(self, attempt: Attempt) -> None:
        assert attempt.line is not None
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while attempt.unsent:
                del attempt.unsent[: attempt.line.send(attempt.unsent)]
        events = select.EPOLLIN | (select.EPOLLOUT if attempt.unsent else 0)
        self._epoll.modify(attempt.line.fileno(), events)

    def _on_child(self, attempt: Attempt) -> None:
        assert attempt.line is not None
        if attempt.unsent:
            self._flush_child(attempt)
        try:
            data = attempt.line.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for line in attempt.unread.feed(data):
            self._take_word(attempt, protocol.decode(line or b"{}"))
        if not data and attempt.line is not None:
            self._on_child_gone(attempt)

    def _take_word(self, attempt: Attempt, word: Message) -> None:
        if "pid" in word:
            try:
                if self._means.are_children:
                    self._open_pidfd(attempt, word["pid"])
                else:
                    self._means.adopt(attempt.key)
                attempt.pid = word["pid"]
            except OSError as error:
                self._cancel(attempt, "system", f"it cannot be prepared ({error.strerror})")
        elif "ready" in word:
            attempt.stage = PREPARED
            self._under_way.pop(attempt.key, None)
            if attempt.wants_run:
                self._go(attempt)
            else:
                self._report(attempt)
        else:
            attempt.problem = word

    def _go(self, attempt: Attempt) -> None:
        attempt.stage = GOING
        attempt.unsent += GO
        self._flush_child(attempt)
        reach("supervisor.go_sent")

    def _close_line(self, attempt: Attempt) -> None:
        self._under_way.pop(attempt.key, None)
        if attempt.line is not None:
            self._remove(attempt.line.fileno())
            attempt.line.close()
            attempt.line = None
        attempt.unsent.clear()

    def _on_child_gone(self, attempt: Attempt) -> None:
        """It has executed, or has ended; the ledger knows which."""
        self._close_line(attempt)
        self._ledger.catch_up()
        entry = self._ledger.entries.get(attempt.key)
        if entry is not None and entry.has_run:
            reach("supervisor.exec_seen")
            attempt.stage, attempt.order = RUNNING, b""
            if attempt.wants_still:
                self._means.freeze(attempt.key)
            self._report(attempt)
            self._look(attempt)
        elif attempt.problem:
            self._fail(attempt, **attempt.problem)
        elif not attempt.pid and attempt.tries < _MOST_TRIES:  # the launcher died with the order
            attempt.tries += 1
            attempt.stage = QUEUED
            self._queue.append(attempt)
        else:
            self._fail(attempt, "died", "its process died before it ran", is_lasting=False)

    def _fail(self, attempt: Attempt, code: str, problem: str, *, is_lasting: bool = False) -> None:
        """It never ran, and never will under this key unless it is prepared again."""
        self._close_line(attempt)
        attempt.stage, attempt.order = FAILED, b""
        attempt.problem = {"code": code, "problem": problem, "is_lasting": is_lasting}
        self._report(attempt)
        self._look(attempt)

    def _cancel(self, attempt: Attempt, code: str, problem: str) -> None:
        with contextlib.suppress(ValueError):
            self._queue.remove(attempt)
        self._close_line(attempt)
        self._means.kill(attempt.key)
        self._fail(attempt, code, problem, is_lasting=code == "killed")

    # -- children that have ended ------------------------------------------------------------------

    def _on_end(self, attempt: Attempt) -> None:
        """The first process has ended, to its last thread."""
        ended = self._reaper.take_pidfd(attempt.pidfd)
        self._close_pidfd(attempt)
        if ended is None:  # a tracer keeps it
            self._look_in(attempt, _LOOKS_S[0])
        self._look(attempt)

    def _close_pidfd(self, attempt: Attempt) -> None:
        if attempt.pidfd >= 0:
            self._remove(attempt.pidfd)
            os.close(attempt.pidfd)
            attempt.pidfd = -1

    def _scan(self) -> bool:
        """Take in a bounded number of children of any kind; whether none is left."""
        taken, more = self._reaper.scan(AT_ONCE)
        self._scanned_s = time.monotonic()
        self._scan_due_s = self._scanned_s if more else 0.0
        for pid, is_stopped in self._reaper.stopped.items():
            key = self._ledger.running.get(pid)
            if key in self._attempts:
                attempt = self._attempts[key]
                attempt.look = attempt.look._replace(is_stopped=is_stopped)
                self._report(attempt)
        self._reaper.stopped.clear()
        for ended in taken:
            if ended.key is not None and ended.key in self._attempts:
                attempt = self._attempts[ended.key]
                self._used.add(ended.key)
                if ended.pid == attempt.pid:
                    self._close_pidfd(attempt)
                self._look_in(attempt, 0.0)
        return not more

    def _on_changes(self) -> None:
        changed = self._means.changed(AT_ONCE)
        if changed is None:  # too many at once: look at all, a bounded number a round
            for attempt in self._attempts.values():
                self._look_in(attempt, 0.0)
            return
        if isinstance(self._means, Holders):
            self._read_ledger()
        for key in dict.fromkeys(changed):
            if key in self._attempts:
                self._look(self._attempts[key])

    # -- what an attempt is now --------------------------------------------------------------------

    def _look_in(self, attempt: Attempt, wait_s: float) -> None:
        due_s = time.monotonic() + wait_s
        self._due[attempt.key] = min(due_s, self._due.get(attempt.key, due_s))

    def _look_again(self, attempt: Attempt) -> None:
        """Later each time; the kernel says when there is something new, but perhaps 10 ms late."""
        self._look_in(attempt, _LOOKS_S[min(attempt.looks, len(_LOOKS_S) - 1)])
        attempt.looks += 1

    def _look(self, attempt: Attempt) -> None:
        if attempt.stage == SETTLING:
            self._look_at_settling(attempt)
        elif attempt.stage == RUNNING:
            self._look_at_running(attempt)
        elif attempt.stage in _OVER:
            self._tidy(attempt)

    def _look_at_settling(self, attempt: Attempt) -> None:
        is_populated = self._means.look(attempt.key).is_populated
        self._ledger.catch_up()
        entry = self._ledger.entries.get(attempt.key)
        if entry is not None and entry.has_run:
            attempt.stage = RUNNING
            self._report(attempt)
            self._look(attempt)
        elif is_populated or not self._means.remove(attempt.key):
            if time.monotonic() > attempt.began_s + _SETTLE_S:
                self._means.kill(attempt.key)
            self._look_again(attempt)
        elif attempt.order:  # it is to be prepared once more
            attempt.stage = QUEUED
            self._queue.append(attempt)
        else:
            del self._attempts[attempt.key]
            if attempt.is_asked:
                self._send({"key": str(attempt.key), "state": "absent"})

    def _look_at_running(self, attempt: Attempt) -> None:
        before, key = attempt.look, attempt.key
        found = self._means.look(key)
        if self._means.are_children:
            found = found._replace(is_stopped=before.is_stopped)
        attempt.look = found
        entry = self._ledger.entries[key]
        if found.is_populated:
            if found != before:
                attempt.looks = 0
                if found.is_frozen:
                    reach("supervisor.frozen")
                self._report(attempt)
            is_awaited = entry.status is not None or attempt.wants_still != found.is_frozen
            if is_awaited:
                self._look_again(attempt)
            return
        if before.is_populated:
            attempt.looks = 0
        if entry.status is None:
            self._seek_exit(attempt)
        elif self._scan():
            self._conclude(attempt)
        else:
            self._look_in(attempt, 0.0)

    def _seek_exit(self, attempt: Attempt) -> None:
        """Nothing lives, and nobody has said how it ended: a tracer, the anchor, or nobody."""
        self._scan()
        self._ledger.catch_up()
        is_late = attempt.looks >= _LOST_AFTER
        if self._ledger.entries[attempt.key].status is None and is_late:
            if attempt.pid and self._reaper.take_traced(attempt.key):
                self._look_in(attempt, 0.0)
                return
            if self._anchor is None or self._clean_s > attempt.began_s:
                attempt.stage = LOST
                self._report(attempt)
                self._tidy(attempt)
                return
        if attempt.looks == _LOST_AFTER - 1:
            attempt.began_s = time.monotonic()
            self._tell_anchor(b"ask")
        self._look_again(attempt)

    def _conclude(self, attempt: Attempt) -> None:
        """Nothing lives, all children are taken in: it has ended, unless CPU time is missing."""
        entry = self._ledger.entries[attempt.key]
        cpu_us = self._means.cpu_us(attempt.key)
        if cpu_us is not None and not entry.at_least:
            gap_us = cpu_us - entry.use.cpu_us
            if gap_us > _GAP_US + _GAP_RATIO * cpu_us:
                if attempt.looks < _GAP_LOOKS:  # a zombie may be on its way here
                    self._look_again(attempt)
                    return
                flagged = Record(records.USE, attempt.key, flags=records.AT_LEAST)
                self._ledger.append(flagged)
                self._ledger.catch_up()
        attempt.stage = ENDED
        reach("supervisor.ended")
        self._report(attempt)
        self._tidy(attempt)

    def _tidy(self, attempt: Attempt) -> None:
        """Remove what an attempt that is over leaves; tried again while somebody is in it."""
        self._due.pop(attempt.key, None)
        with contextlib.suppress(OSError):
            attempt.is_removed = attempt.is_removed or self._means.remove(attempt.key)
        if not attempt.is_removed:
            self._look_again(attempt)
        elif attempt.is_forgotten:
            self._close_pidfd(attempt)
            self._attempts.pop(attempt.key, None)

    # -- reports -----------------------------------------------------------------------------------

    def _report(self, attempt: Attempt) -> None:
        if attempt.is_forgotten or attempt.stage in (SETTLING, QUEUED, PREPARING, GOING):
            return
        self._send({"key": str(attempt.key), "state": attempt.stage, **self._describe(attempt)})

    def _describe(self, attempt: Attempt) -> Message:
        entry = self._ledger.entries.get(attempt.key)
        if attempt.stage == FAILED:
            return attempt.problem
        if entry is None:
            return {}
        if attempt.stage == RUNNING:
            return {
                "pid": entry.pid,
                "start_ticks": entry.ticks,
                "started_us": entry.started_us,
                "frozen": attempt.look.is_frozen,
                "stopped": attempt.look.is_stopped,
            }
        if attempt.stage not in (ENDED, LOST):
            return {}
        told: Message = {
            "use": entry.use._asdict(),
            "whole": entry.has_main_use and not entry.at_least and attempt.stage == ENDED,
            "started_us": entry.started_us,
            "ended_us": entry.exited_us or None,
        }
        if entry.status is not None:
            is_killed = os.WIFSIGNALED(entry.status)
            code = None if is_killed else os.WEXITSTATUS(entry.status)
            told["exit"] = {
                "code": code,
                "signal": os.WTERMSIG(entry.status) if is_killed else None,
            }
        if "problem" in attempt.problem:
            told["problem"] = attempt.problem["problem"]
        return told

    # -- the daemon's line -------------------------------------------------------------------------

    def _listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)  # noqa: FBT003
        self._add(listener.fileno(), lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            line, _ = listener.accept()
        except OSError:
            return
        if peer_of(line)[1] != self._config.daemon_uid:
            say(f"refused a connection of uid {peer_of(line)[1]}")
            line.close()
            return
        self._hang_up()
        self._reader, self._speaks = LineReader(), False
        self._attach(line)

    def _attach(self, line: socket.socket) -> None:
        line.setblocking(False)  # noqa: FBT003
        self._daemon = line
        self._add(line.fileno(), self._flush)
        self._flush()

    def _hang_up(self) -> None:
        if self._daemon is not None:
            self._remove(self._daemon.fileno())
            self._daemon.close()
            self._daemon = None
        self._unsent.clear()

    def _check_socket(self) -> None:
        """Listen again where somebody removed the runtime directory, or the socket in it."""
        path = os.path.join(self._config.runtime, root.SOCKET)
        with contextlib.suppress(OSError):
            if find_inode(path) == self._shared.inode:
                return
            listener, inode = root.listen(self._config)
            self._shared = self._shared._replace(inode=inode)
            self._remove(self._listener.fileno())
            os.dup2(listener.fileno(), self._listener.fileno(), inheritable=False)
            listener.close()
            self._listen(self._listener)
            say(f"{path} was removed, and is there again")

    def _send(self, message: Message) -> None:
        if self._daemon is None:
            return
        if len(self._unsent) > protocol.MOST_UNSENT:
            say("the daemon reads nothing; its line is closed")
            self._hang_up()
            return
        if not self._unsent:
            self._epoll.modify(self._daemon.fileno(), select.EPOLLIN | select.EPOLLOUT)
        self._unsent += protocol.encode(message)

    def _flush(self) -> None:
        if self._daemon is None:
            return
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._unsent:
                del self._unsent[: self._daemon.send(self._unsent)]
        events = select.EPOLLIN | (select.EPOLLOUT if self._unsent else 0)
        self._epoll.modify(self._daemon.fileno(), events)

    def _hear(self) -> None:
        """Look at the daemon's line, in every round."""
        if self._daemon is None:
            return
        try:
            data = self._daemon.recv(_READ_BYTES)
        except BlockingIOError:
            data = None
        except OSError:
            data = b""
        if data:
            self._silence.heard()
            for line in self._reader.feed(data):
                self._take_wish(line)
        elif data is not None:
            self._hang_up()
        self._pump()
        if self._unsent:
            self._flush()

    def _take_wish(self, line: bytes | None) -> None:
        wish: Message = {}
        try:
            if line is None:
                raise BadInputError(f"a line above {protocol.LONGEST_LINE} bytes")
            wish = protocol.decode(line)
            name = protocol.field(wish, "wish", str, "")
            if name not in self._wishes:
                raise BadInputError(f"no such wish: {name[:40]!r}")
            if not self._speaks and name not in ("hello", "reexec"):
                raise BadInputError("no hello, or one of another protocol")
            if name == "prepare":
                wish["line"] = line
            self._wishes[name](wish)
        except (BadInputError, ValueError) as error:
            self._refuse(wish, str(error))
        except OSError as error:
            self._refuse(wish, f"{error.strerror or error}")

    def _refuse(self, wish: Message, why: str) -> None:
        about: Message = {name: str(wish[name])[:64] for name in ("wish", "key") if name in wish}
        self._send({"error": why[:256], **about})

    def _find(self, wish: Message) -> tuple[Key, Attempt | None]:
        """The attempt; None: it is absent. Raises ValueError: no key."""
        key = parse_key(wish.get("key"))
        attempt = self._attempts.get(key)
        if attempt is None or attempt.is_forgotten:
            is_there = attempt is None and self._means.look(key).is_populated
            attempt = self._settle(key) if is_there else None
        return key, attempt

    # -- wishes ------------------------------------------------------------------------------------

    def _hello(self, wish: Message) -> None:
        self._speaks = wish.get("protocol") == protocol.VERSION
        self._send({
            "hello": {
                "protocol": protocol.VERSION,
                "pid": os.getpid(),
                "ledger": self._ledger.identity,
                "boot": records.read_boot_id(),
                "means": self._means.name,
                "detail": self._means.detail,
                "controls": list(self._means.controls),
                "protected": self._anchor is not None,
                "min_uid": self._config.min_uid,
                "grace_s": self._config.grace_s,
            }
        })  # fmt: skip

    def _prepare(self, wish: Message) -> None:
        key, attempt = self._find(wish)
        line = wish.pop("line")
        limits = protocol.parse_limits(protocol.field(wish, "launch", dict, {}))
        if attempt is not None and attempt.stage == SETTLING:
            attempt.order, attempt.limits, attempt.is_asked = line, limits, True
            return
        if attempt is not None and attempt.stage != FAILED:
            self._report(attempt)  # at most one start of an attempt
            return
        if attempt is not None and not attempt.is_removed:
            self._refuse(wish, "the last try is not gone yet")
            return
        attempt = self._attempts[key] = Attempt(key, QUEUED)
        if not self._ledger.has_room():
            self._fail(attempt, "ledger_full", "the ledger has no room", is_lasting=False)
            return
        attempt.order, attempt.limits = line, limits
        self._queue.append(attempt)

    def _run_wish(self, wish: Message) -> None:
        key, attempt = self._find(wish)
        if attempt is None:
            self._send({"key": str(key), "state": "absent"})
            return
        attempt.wants_run = True
        if attempt.stage == PREPARED:
            self._go(attempt)
        elif attempt.stage not in _BEFORE:
            self._report(attempt)

    def _freeze(self, wish: Message) -> None:
        self._hold(wish, is_still=True)

    def _thaw(self, wish: Message) -> None:
        self._hold(wish, is_still=False)

    def _hold(self, wish: Message, *, is_still: bool) -> None:
        key, attempt = self._find(wish)
        if attempt is None or attempt.stage in _OVER:
            self._tell(key, attempt)
            return
        attempt.wants_still = is_still
        if attempt.stage == RUNNING:
            (self._means.freeze if is_still else self._means.thaw)(key)
            reach("supervisor.held")
            attempt.looks = 0
            was = attempt.look
            self._look(attempt)
            if attempt.look == was:
                self._report(attempt)

    def _tell(self, key: Key, attempt: Attempt | None) -> None:
        if attempt is None:
            self._send({"key": str(key), "state": "absent"})
        else:
            self._report(attempt)

    def _signal(self, wish: Message) -> None:
        key, attempt = self._find(wish)
        number = protocol.number(wish, "number", 1, 64)
        if number is None:
            raise BadInputError("number is missing")
        if attempt is None or attempt.stage in _OVER:
            self._tell(key, attempt)
        elif attempt.stage in _BEFORE:
            raise BadInputError("it does not run yet")
        else:
            self._means.signal(key, number)

    def _kill(self, wish: Message) -> None:
        key, attempt = self._find(wish)
        if attempt is None or attempt.stage in _OVER:
            self._tell(key, attempt)
        elif attempt.stage in _BEFORE:
            self._cancel(attempt, "killed", "it was killed before it ran")
        else:
            self._means.kill(key)

    def _forget(self, wish: Message) -> None:
        key, attempt = self._find(wish)
        if attempt is None:
            return
        if attempt.stage not in _OVER:
            raise BadInputError("it has not ended")
        attempt.is_forgotten = True
        self._ledger.forget(key)
        self._used.discard(key)
        self._tidy(attempt)

    def _sync(self, wish: Message) -> None:
        """One report a key. What the daemon does not name and has ended is forgotten."""
        named: dict[Key, bool] = {}
        for pair in protocol.field(wish, "keys", list, []):
            if not isinstance(pair, list) or len(pair) != 2 or pair[1] not in ("run", "freeze"):
                raise BadInputError("keys are no pairs of key and run or freeze")
            named[parse_key(pair[0])] = pair[1] == "freeze"
        for key, is_still in named.items():
            _, attempt = self._find({"key": str(key)})
            if attempt is not None and attempt.stage in (SETTLING, RUNNING):
                attempt.is_asked = True
                self._hold({"key": str(key)}, is_still=is_still)
            else:
                self._tell(key, attempt)
        for key, attempt in list(self._attempts.items()):
            if key not in named and attempt.stage in _OVER:
                self._forget({"key": str(key)})
            elif key not in named:
                self._report(attempt)
        self._send({"synced": len(named)})

    def _beat(self, wish: Message) -> None:
        self._ledger.catch_up()
        used = {
            str(key): self._ledger.entries[key].use._asdict()
            for key in self._used
            if key in self._ledger.entries
        }
        self._used.clear()
        n = protocol.number(wish, "n", 0, 1 << 53)
        self._send({"beat": n, "use": used, "protected": self._anchor is not None})


def find_inode(path: str) -> int:
    """0: there is nothing."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0


def main() -> None:
    """Arguments: the configuration, and the descriptors of the anchor or of ``execve``."""
    config = root.load_config(sys.argv[1])
    resume: dict[str, Any] = json.loads(sys.argv[2])
    syscalls.name_process("iod-supervisor")
    syscalls.become_subreaper()
    shared = Shared(*resume["shared"])
    for fd in (
        *shared.fds(),
        *(resume[name] for name in ("anchor", "daemon", "memory") if name in resume),
    ):
        os.set_inheritable(fd, False)  # noqa: FBT003
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    server = Server(config, shared, resume.get("anchor"))
    if "daemon" in resume:
        server.resume(resume["daemon"], resume["memory"])
    server.run()
