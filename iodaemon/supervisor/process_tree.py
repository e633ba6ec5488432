"""Jobs held by signals, where no cgroup can be had: one holder process a job.

The holder is a subreaper, so all that the job ever forks is below it. It reaps with the same code
as the supervisor. SIGSTOP goes root first and SIGCONT leaf first: in other orders a shell with job
control believes that its child ended. A signal goes to a pidfd of which it was seen, after it was
opened, that its process belongs to the tree.

The supervisor finds a holder by an abstract socket, whose random name the ledger records before
the holder is made: nobody can take it first, and the next supervisor finds it as well. A holder
that hears of no supervisor for the grace time lets its job go on. When nothing lives below it, it
ends. What is traced is the tracer's to take in, and a tracer may sleep: so the holder watches one
child that lives at a time, by a pidfd.

What a killed holder leaves becomes the supervisor's, or the anchor's. It goes on, and can be
signalled and killed, but not held any more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Container, Iterable, Mapping
from typing import Final, NoReturn

from iodaemon.supervisor import syscalls
from iodaemon.supervisor.cgroup import Look
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.identity import peer_of
from iodaemon.supervisor.ledger import AT_LEAST, HOLD, Key, Ledger, Record, Use
from iodaemon.supervisor.protocol import Limits, Silence
from iodaemon.supervisor.reap import Reaper, State, is_stopped, read_state

_STILL: Final = frozenset("TtZX")
LOOKS_S: Final = (0.002, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Between looks at what was continued: script(1) stops itself once more when its child stopped."""
_AGAIN_S: Final = 0.002
_AT_ONCE: Final = 64
_WORD_BYTES: Final = 64
_KILL_WAIT_S: Final = 0.5
"""At most, between two passes of a kill: for what hangs in the kernel, or is a tracer's."""
_MOST_PASSES: Final = 20
_TRACERS_S: Final = 0.2
"""For tracers to take in what has ended; the supervisor gives them as long."""


def children_of(pid: int) -> list[int]:
    """Children of all threads of a process (proc_tid_children(5))."""
    children: list[int] = []
    for thread in _threads_of(pid):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
            children += map(int, file.read().split())
    return sorted(children)


def _threads_of(pid: int) -> list[int]:
    try:
        return list(map(int, os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return []


def tree_of(tops: Iterable[int]) -> list[int]:
    """These processes and all below them, parents first."""
    found: dict[int, None] = {}
    level = list(tops)
    while level := [pid for pid in dict.fromkeys(level) if pid not in found]:
        found.update(dict.fromkeys(level))
        level = [child for pid in level for child in children_of(pid)]
    return list(found)


def find_living(pid: int) -> int | None:
    """A child of which a thread lives: a zombie may be the first of several threads.

    The dead make no threads and no children, so it is looked until none is new.
    """
    seen: set[int] = set()
    while new := {
        thread: child
        for child in children_of(pid)
        for thread in _threads_of(child)
        if thread not in seen
    }:
        for thread, child in new.items():
            state = read_state(thread)
            if state is not None and state.letter != "Z":
                return child
        seen.update(new)
    return None


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


class Holder:
    """The process that holds one job. ``run`` never returns."""

    def __init__(self, ledger: Ledger, key: Key, listener: socket.socket, grace_s: float) -> None:
        self._key = key
        self._ledger = ledger
        self._listener = listener
        self._line: socket.socket | None = None
        self._silence = Silence(grace_s)
        self._reaper = Reaper(ledger, lambda _: None, only=key)
        self._is_wanted_still = False
        self._is_killing = False
        self._stopped: set[int] = set()
        self._before: set[int] = set()
        self._kill_wait_s = _AGAIN_S
        self._looks: list[float] = []
        self._due_s = float("inf")
        self._told = b""
        self._watched = -1
        self._over_s = float("inf")
        self._poll = select.poll()

    def run(self) -> None:
        children = syscalls.open_signals(signal.SIGCHLD)
        for fd in (children, self._listener.fileno()):
            self._poll.register(fd, select.POLLIN)
        while True:
            syscalls.read_signals(children)
            has_more = self._reap()
            if not has_more and not self._watch_living():
                has_more = self._reap()  # what has ended since
                if not has_more and self._is_over():
                    self._end()
            if self._silence.begins() and self._is_wanted_still:
                self._thaw()
            if time.monotonic() >= self._due_s:
                self._act()
            self._tell()
            wait_s = min(self._due_s - time.monotonic(), self._silence.wait_s(), 3600.0)
            wait_s = 0.0 if has_more else max(0.0, wait_s)
            for fd, _ in self._poll.poll(wait_s * 1000 + 1):
                if fd == self._listener.fileno():
                    self._accept()
                elif self._line is not None and fd == self._line.fileno():
                    self._hear()
                elif fd == self._watched:
                    self._unwatch()

    def _reap(self) -> bool:
        """Take in a bounded number of children; whether there may be more."""
        taken, has_more = self._reaper.scan(_AT_ONCE)
        self._reaper.stopped.clear()
        if taken:
            self._told = b""  # there are news in the ledger
        return has_more

    def _watch_living(self) -> bool:
        """Whether anything lives below; one child that does is watched."""
        child = find_living(os.getpid()) if self._watched < 0 else None
        if child is not None:
            self._watched = os.pidfd_open(child)  # nobody else takes it in
            self._poll.register(self._watched, select.POLLIN)
        return self._watched >= 0

    def _unwatch(self) -> None:
        if self._watched >= 0:
            self._poll.unregister(self._watched)
            os.close(self._watched)
            self._watched = -1

    def _is_over(self) -> bool:
        """Nothing lives: whether all is taken in, or tracers have had their time to do so."""
        if not children_of(os.getpid()):
            return True
        if self._over_s == float("inf"):
            self._over_s = time.monotonic() + _TRACERS_S
        self._due_s = min(self._due_s, self._over_s)
        return time.monotonic() >= self._over_s

    def _end(self) -> NoReturn:
        """What a tracer keeps from being taken in used nobody knows how much."""
        self._ledger.catch_up()
        entry = self._ledger.entries.get(self._key)
        if children_of(os.getpid()) and entry is not None and entry.has_run:
            self._reaper.take_traced(self._key)
            self._ledger.add_use(self._key, Use(), AT_LEAST)
        os._exit(0)

    def _accept(self) -> None:
        line, _ = self._listener.accept()
        if peer_of(line)[1] != os.geteuid():
            line.close()
            return
        if self._line is not None:
            self._poll.unregister(self._line)
            self._line.close()
        line.setblocking(False)  # noqa: FBT003
        self._line = line
        self._told = b""
        self._silence.heard()
        self._poll.register(line, select.POLLIN)

    def _hear(self) -> None:
        assert self._line is not None
        word = syscalls.receive(self._line, _WORD_BYTES)
        if word is None:
            return
        if not word:
            self._poll.unregister(self._line)
            self._line.close()
            self._line = None
            return
        self._silence.heard()
        if word == b"freeze":
            if not self._is_wanted_still:
                self._before = set()
            self._is_wanted_still, self._due_s = True, 0.0
        elif word == b"thaw":
            self._thaw()
        elif word == b"kill":
            self._is_killing, self._due_s = True, 0.0
        elif word.startswith(b"signal "):
            number = int(word.split()[1])
            if number == signal.SIGCONT:
                self._stopped.update(self._below())
                self._thaw()
            else:
                self._send(self._below(), number)

    def _tell(self) -> None:
        self._ledger.catch_up()
        main = self._ledger.entries[self._key].pid if self._key in self._ledger.entries else 0
        state = read_state(main) if main else None
        has_stopped = state is not None and state.letter == "T" and main not in self._stopped
        is_frozen = self._is_wanted_still and self._due_s == float("inf")
        word = f"frozen {is_frozen:d} stopped {has_stopped:d}".encode()
        if self._line is not None and word != self._told:
            with contextlib.suppress(OSError):
                self._line.send(word)
                self._told = word

    def _act(self) -> None:
        """One step towards what is wanted; says when the next one is due."""
        self._due_s = float("inf")
        if self._is_killing:
            pids = self._stop_pass()[0]
            self._send(pids, signal.SIGKILL)
            self._unwatch()  # its pidfd tells nothing while a tracer keeps one of its threads
            is_new = set(pids) != self._before  # what a parent's end hands to this process is seen
            self._kill_wait_s = _AGAIN_S if is_new else min(2 * self._kill_wait_s, _KILL_WAIT_S)
            self._due_s = time.monotonic() + self._kill_wait_s
            self._before = set(pids)
        elif self._is_wanted_still:
            pids, are_still = self._stop_pass()
            if not are_still or set(pids) != self._before:
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
        self._looks = list(LOOKS_S)
        self._due_s = 0.0

    def _continue(self) -> None:
        """SIGCONT, leaf first, to all that this holder stopped, and to what stopped because of it.

        Who stood still before was stopped by itself or by hand, and stays so.
        """
        told = [pid for pid in self._below() if pid in self._stopped and is_stopped(pid)]
        self._send(told[::-1], signal.SIGCONT)

    def _below(self) -> list[int]:
        return tree_of(children_of(os.getpid()))

    def _stop_pass(self) -> tuple[list[int], bool]:
        """SIGSTOP to all whose parents stand still; all that was seen, and whether all do."""
        found: list[int] = []
        are_still = True
        level = children_of(os.getpid())
        while level:
            passed: list[int] = []
            for pid in dict.fromkeys(level):
                state = read_state(pid)
                if state is None or pid in found:
                    continue
                found.append(pid)
                if _is_still(pid, state):
                    passed.append(pid)
                    continue
                are_still = False
                if not state.is_stop_pending:
                    self._stopped.add(pid)
                    self._send([pid], signal.SIGSTOP)
                if state.letter == "D":  # it is in no wait4, and stops before it returns
                    passed.append(pid)
            level = [child for pid in passed for child in children_of(pid)]
        return found, are_still

    def _send(self, pids: Iterable[int], number: int) -> None:
        """To those that are still in the tree."""
        send(pids, number, {os.getpid(), *self._below()})


def _find_orphans() -> list[int]:
    """Children of this process, and of the anchor if that is its parent."""
    parent = read_state(os.getppid())
    is_anchor = parent is not None and parent.name == "iod-anchor"
    return [*children_of(os.getpid()), *(children_of(os.getppid()) if is_anchor else ())]


class Holders:
    """The supervisor's side: the same wishes as ``Cgroups``, sent to each job's holder."""

    name: Final = "processes"
    are_children: Final = False
    base: Final = None
    unit: Final = None

    def __init__(self, ledger: Ledger, lack: str = "", detail: str = "") -> None:
        self.lack, self.detail = lack, detail
        self.controls: tuple[str, ...] = ()
        self._ledger = ledger
        self._epoll = select.epoll()
        self.fd = self._epoll.fileno()
        self._lines: dict[Key, socket.socket] = {}
        self._keys: dict[int, Key] = {}
        self._looks: dict[Key, Look] = {}
        self._ending: dict[Key, int] = {}
        """Pidfds of holders whose line has ended."""
        self._left_alone: set[Key] = set()
        """Jobs that outlived their holders."""

    def key_of(self, text: bytes) -> Key | None:  # noqa: ARG002
        """No zombie's cgroup tells its job."""
        return None

    def find_jobs(self) -> list[Key]:
        """Those that a line leads to; others are found when they are asked for."""
        return sorted(self._lines)

    def prepare(self, key: Key, _: Limits) -> tuple[None, list[str]]:
        """Choose its holder's address; no limit but those that the process takes on itself."""
        name = (*struct.unpack("<2Q", os.urandom(16)), 0, 0, 0)
        self._ledger.append(Record(HOLD, key, values=name))
        return None, []

    def address_of(self, key: Key) -> str:
        """Where the holder of an attempt listens, but for the NUL; empty: it has none."""
        entry = self._ledger.entries.get(key)
        return "" if entry is None or not entry.hold else f"iod-holder-{entry.hold}"

    def adopt(self, key: Key) -> None:
        """Connect to its holder, if there is one."""
        address = self.address_of(key)
        if key in self._lines or not address:
            return
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.setblocking(False)  # noqa: FBT003
        try:
            line.connect("\0" + address)
            if peer_of(line)[1] != os.geteuid():
                raise PermissionError
            self._epoll.register(line, select.EPOLLIN)
        except OSError:
            line.close()
            return
        self._lines[key], self._keys[line.fileno()] = line, key
        self._looks[key] = Look(is_populated=True, is_frozen=False)

    def pids(self, key: Key) -> list[int]:
        """The first process, and what was left by parents that ended."""
        return children_of(peer_of(self._lines[key])[0]) if key in self._lines else []

    def changed(self, most: int) -> list[Key]:
        """Read what holders say, of a bounded number of jobs."""
        keys: list[Key] = []
        for fd, _ in self._epoll.poll(0, most):
            key = self._keys[fd]
            keys.append(key)
            if fd == self._ending.get(key):
                self._drop(key)
                continue
            word = syscalls.receive(self._lines[key], _WORD_BYTES)
            if word is None:
                continue
            if word:
                words = word.split()
                self._looks[key] = Look(True, words[1] == b"1", words[3] == b"1")  # noqa: FBT003
            else:
                self._await_end(key)
        return keys

    def _await_end(self, key: Key) -> None:
        """A process that ends closes its files first and hands on its children later."""
        line = self._lines[key]
        try:
            pidfd = os.pidfd_open(peer_of(line)[0])
        except OSError:  # it is gone
            self._drop(key)
            return
        self._epoll.unregister(line)
        self._ending[key], self._keys[pidfd] = pidfd, key
        self._epoll.register(pidfd, select.EPOLLIN)

    def _drop(self, key: Key) -> None:
        line, pidfd = self._lines.pop(key), self._ending.pop(key, -1)
        watched = line.fileno() if pidfd < 0 else pidfd
        self._epoll.unregister(watched)  # a forked child may have it open, so closing is not enough
        del self._keys[line.fileno()], self._looks[key]
        line.close()
        if pidfd >= 0:
            del self._keys[pidfd]
            os.close(pidfd)

    def look(self, key: Key) -> Look:
        """Where the holder was killed, what it left goes on."""
        self.adopt(key)
        found = self._looks.get(key)
        if found is not None:
            return found
        is_new = key not in self._left_alone
        self._left_alone.add(key)
        left = self._find_left(key)
        if is_new and left:
            self._tell_left(key, signal.SIGCONT)
        elif not left:
            self._left_alone.discard(key)
        return Look(is_populated=bool(left), is_frozen=False)

    def _find_left(self, key: Key) -> list[int]:
        """What a killed holder left of a job, parents first.

        By the session of the job's first process; what left that is the job's if no other one
        outlived its holder. The root side's own processes are in its session, or holders.
        """
        entry = self._ledger.entries.get(key)
        if key in self._lines or entry is None or not entry.pid:
            return []
        known = {os.getsid(0), *(other.pid for other in self._ledger.entries.values())}
        tops: list[int] = []
        for pid in _find_orphans():
            state = read_state(pid)
            if state is None or state.letter in "ZX":
                continue
            is_holder = state.name == "iod-holder" and state.uid == os.geteuid()
            is_stray = not is_holder and state.session not in known and self._left_alone == {key}
            if state.session == entry.pid or is_stray:
                tops.append(pid)
        return tree_of(tops)

    def _tell_left(self, key: Key, number: int) -> None:
        """A signal to each process once; leaf first, so that no shell believes that its child
        stopped. Bounded, should they fork meanwhile.
        """
        told: set[int] = set()
        for _ in range(_MOST_PASSES):
            new = [pid for pid in self._find_left(key) if pid not in told]
            if not new:
                return
            told.update(new)
            send(new[::-1], number, {os.getpid(), os.getppid(), *told})

    def is_held(self, key: Key) -> bool:
        return self.look(key).is_frozen

    def find_holder(self, key: Key) -> int | None:
        """Its pid; None: it was killed."""
        return peer_of(self._lines[key])[0] if key in self._lines else None

    def cap(self, key: Key, caps: Mapping[str, str]) -> None:  # noqa: ARG002
        """Raises OSError: nothing slows a process down but its cgroup."""
        if caps:
            raise OSError(errno.ENOTSUP, "a job without a cgroup cannot be slowed down")

    def let_go(self, key: Key) -> bool:
        """Let a job run on; whether it stood still."""
        is_held = self.is_held(key)
        if is_held:
            self.thaw(key)
        return is_held

    def _say(self, key: Key, word: str) -> None:
        self.adopt(key)
        if key in self._lines:
            with contextlib.suppress(OSError):  # it has ended, or reads nothing
                self._lines[key].send(word.encode())

    def freeze(self, key: Key) -> None:
        """Without its holder a job goes on: nobody would continue it if this process died."""
        self._say(key, "freeze")

    def thaw(self, key: Key) -> None:
        self._say(key, "thaw")

    def continue_stopped(self, key: Key) -> bool:
        """Also what stopped itself; its holder looks again by itself (False)."""
        self.signal(key, signal.SIGCONT)
        return key in self._left_alone

    def kill(self, key: Key) -> None:
        self.signal(key, signal.SIGKILL, word="kill")

    def signal(self, key: Key, number: int, word: str = "") -> None:
        self._say(key, word or f"signal {number}")
        if key not in self._lines:
            self._tell_left(key, number)

    def beat(self, keys: Iterable[Key]) -> None:
        """Tell the holders of these that the supervisor is there."""
        for key in keys:
            self._say(key, "beat")

    def thaw_these(self, keys: Iterable[Key]) -> int:
        """For a process that does nothing else: let these run on; how many stood still."""
        count = 0
        for key in keys:
            state = read_state(self._ledger.entries[key].pid)
            count += state is not None and state.letter == "T"
            self.thaw(key)
        for key in self.find_jobs():
            self._drop(key)
        self._epoll.close()
        return count

    def cpu_us(self, key: Key) -> int | None:  # noqa: ARG002
        """Unknown."""
        return None

    def is_being_stopped(self) -> None:
        """There is no scope."""

    def find_memory_end(self, key: Key) -> None:
        """Unknown."""

    def remove(self, key: Key) -> bool:
        """Whether its holder has ended."""
        return key not in self._lines
