"""Jobs held by signals, where no cgroup can be had: one holder process a job.

The holder is a subreaper, so all that the job ever forks is below it. It reaps with the same code
as the supervisor. SIGSTOP goes root first and SIGCONT leaf first: in other orders a shell with job
control believes that its child ended. A signal goes to a pidfd of which it was seen, after it was
opened, that its process belongs to the tree.

The supervisor finds a holder by an abstract socket whose name has the ledger's identity and the
key, so the next supervisor finds it as well. A holder that hears of no supervisor for the grace
time lets its job go on. When nothing is left below it, it ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterable
from typing import Final

from iodaemon.supervisor import syscalls
from iodaemon.supervisor.cgroup import Look
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.identity import peer_of
from iodaemon.supervisor.ledger import Key, Ledger
from iodaemon.supervisor.protocol import Limits, Silence
from iodaemon.supervisor.reap import Reaper, has_started_at, read_small

_STILL: Final = frozenset("TtZX")
_LOOKS_S: Final = (0.002, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Between looks at what was continued: script(1) stops itself once more when its child stopped."""
_AGAIN_S: Final = 0.002
_AT_ONCE: Final = 64
_WORD_BYTES: Final = 64
_KILL_WAIT_S: Final = 0.5


def address_of(ledger: Ledger, key: Key) -> str:
    """Where the holder of an attempt listens."""
    return f"\0iod-holder-{ledger.identity}-{key}"


def read_state(pid: int) -> tuple[str, int, bool] | None:
    """State, parent, and whether a SIGSTOP is pending (/proc/PID/status); None: it is gone.

    This file answers also while the process hangs in ``execve``.
    """
    try:
        text = read_small(f"/proc/{pid}/status")
    except OSError:
        return None
    fields = dict(line.split(b":\t", 1) for line in text.split(b"\n") if b":\t" in line)
    pending = int(fields[b"ShdPnd"], 16) >> (signal.SIGSTOP - 1) & 1
    return fields[b"State"][:1].decode(), int(fields[b"PPid"]), bool(pending)


def children_of(pid: int) -> list[int]:
    """Children of all threads of a process (proc_tid_children(5))."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                children += map(int, file.read().split())
    return sorted(children)


def _is_still(pid: int, state: str, is_stop_pending: bool) -> bool:  # noqa: FBT001
    """Also one that waits in vfork(2) for a child that is stopped."""
    if state == "D" and is_stop_pending:
        states = map(read_state, children_of(pid))
        return any(child is not None and child[0] == "T" for child in states)
    return state in _STILL


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
        self._looks: list[float] = []
        self._due_s = float("inf")
        self._told = b""

    def run(self) -> None:
        wake = syscalls.wake_on_signals(signal.SIGCHLD)
        poll = select.poll()
        for fd in (wake, self._listener.fileno()):
            poll.register(fd, select.POLLIN)
        while True:
            with contextlib.suppress(BlockingIOError):
                while os.read(wake, 4096):
                    pass
            if not self._reap():
                os._exit(0)
            if self._silence.begins() and self._is_wanted_still:
                self._thaw()
            if time.monotonic() >= self._due_s:
                self._act()
            self._tell()
            wait_s = min(self._due_s - time.monotonic(), self._silence.wait_s(), 3600.0)
            for fd, _ in poll.poll(max(0.0, wait_s) * 1000 + 1):
                if fd == self._listener.fileno():
                    self._accept(poll)
                elif self._line is not None and fd == self._line.fileno():
                    self._hear(poll)

    def _reap(self) -> bool:
        """Whether there is a child left."""
        taken, _ = self._reaper.scan(_AT_ONCE)
        self._reaper.stopped.clear()
        if taken:
            self._told = b""  # there are news in the ledger
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        if len(taken) == _AT_ONCE:
            self._due_s = 0.0
        return True

    def _accept(self, poll: select.poll) -> None:
        line, _ = self._listener.accept()
        if peer_of(line)[1] != os.geteuid():
            line.close()
            return
        if self._line is not None:
            poll.unregister(self._line)
            self._line.close()
        line.setblocking(False)  # noqa: FBT003
        self._line = line
        self._told = b""
        self._silence.heard()
        poll.register(line, select.POLLIN)

    def _hear(self, poll: select.poll) -> None:
        assert self._line is not None
        try:
            word = self._line.recv(_WORD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            word = b""
        if not word:
            poll.unregister(self._line)
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
        is_stopped = state is not None and state[0] == "T" and main not in self._stopped
        is_frozen = self._is_wanted_still and self._due_s == float("inf")
        word = f"frozen {is_frozen:d} stopped {is_stopped:d}".encode()
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
            self._due_s = time.monotonic() + (_KILL_WAIT_S if not self._looks else _AGAIN_S)
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
        self._looks = list(_LOOKS_S)
        self._due_s = 0.0

    def _continue(self) -> None:
        """SIGCONT, leaf first, to all that this holder stopped, and to what stopped because of it.

        Who stood still before was stopped by itself or by hand, and stays so.
        """
        pids = self._below()
        states = {pid: state for pid in pids if (state := read_state(pid)) is not None}
        held = [pid for pid, state in states.items() if state[0] == "T" or state[2]]
        is_ours = self._stopped.intersection(pids)
        told = [pid for pid in held if pid in is_ours]
        self._send(told[::-1], signal.SIGCONT)

    def _below(self) -> list[int]:
        """All processes below, parents first."""
        found: dict[int, None] = {}
        level = children_of(os.getpid())
        while level := [pid for pid in dict.fromkeys(level) if pid not in found]:
            found.update(dict.fromkeys(level))
            level = [child for pid in level for child in children_of(pid)]
        return list(found)

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
                if _is_still(pid, state[0], state[2]):
                    passed.append(pid)
                    continue
                are_still = False
                if not state[2]:
                    self._stopped.add(pid)
                    self._send([pid], signal.SIGSTOP)
                if state[0] == "D":  # it is in no wait4, and stops before it returns
                    passed.append(pid)
            level = [child for pid in passed for child in children_of(pid)]
        return found, are_still

    def _send(self, pids: Iterable[int], number: int) -> None:
        """To those that are still in the tree."""
        parents = {os.getpid(), *self._below()}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                pidfd = os.pidfd_open(pid)
                try:
                    state = read_state(pid)
                    if state is not None and state[1] in parents:
                        signal.pidfd_send_signal(pidfd, number)
                finally:
                    os.close(pidfd)


class Holders:
    """The supervisor's side: the same wishes as ``Cgroups``, sent to each job's holder."""

    name: Final = "processes"
    are_children: Final = False

    def __init__(self, ledger: Ledger, why: str) -> None:
        self.detail = f"signals: {why}"
        self.controls: tuple[str, ...] = ()
        self._ledger = ledger
        self._epoll = select.epoll()
        self.fd = self._epoll.fileno()
        self._lines: dict[Key, socket.socket] = {}
        self._keys: dict[int, Key] = {}
        self._looks: dict[Key, Look] = {}

    def key_of(self, text: bytes) -> Key | None:  # noqa: ARG002
        """No zombie's cgroup tells its job."""
        return None

    def find_jobs(self) -> list[Key]:
        """Those that a line leads to; others are found when they are asked for."""
        return sorted(self._lines)

    def prepare(self, key: Key, limits: Limits) -> tuple[None, list[str]]:  # noqa: ARG002
        """Nothing to make, and no limit but those that the process takes on itself."""
        return None, []

    def adopt(self, key: Key) -> None:
        """Connect to its holder, if there is one."""
        if key in self._lines:
            return
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.setblocking(False)  # noqa: FBT003
        try:
            line.connect(address_of(self._ledger, key))
            if peer_of(line)[1] != os.geteuid():
                raise PermissionError
            self._epoll.register(line, select.EPOLLIN)
        except OSError:
            line.close()
            return
        self._lines[key], self._keys[line.fileno()] = line, key
        self._looks[key] = Look(is_populated=True, is_frozen=False)

    def changed(self, most: int) -> list[Key]:
        """Read what holders say, of a bounded number of jobs."""
        keys: list[Key] = []
        for fd, _ in self._epoll.poll(0, most):
            key = self._keys[fd]
            keys.append(key)
            try:
                word = self._lines[key].recv(_WORD_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                word = b""
            if word:
                words = word.split()
                self._looks[key] = Look(True, words[1] == b"1", words[3] == b"1")  # noqa: FBT003
            else:
                self._drop(key)
        return keys

    def _drop(self, key: Key) -> None:
        line = self._lines.pop(key)
        del self._keys[line.fileno()], self._looks[key]
        self._epoll.unregister(line)
        line.close()

    def look(self, key: Key) -> Look:
        """Where the holder was killed, the job is the session of its first process."""
        self.adopt(key)
        found = self._looks.get(key)
        return found or Look(is_populated=self._find_session(key) > 0, is_frozen=False)

    def _find_session(self, key: Key) -> int:
        """Of a job without a holder, by its first process; 0: it is gone."""
        entry = self._ledger.entries.get(key)
        if key in self._lines or entry is None or not entry.has_run or entry.status is not None:
            return 0
        return entry.pid if has_started_at(entry.pid, entry.ticks) else 0

    def _tell_session(self, key: Key, number: int) -> None:
        if session := self._find_session(key):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(session, number)

    def is_held(self, key: Key) -> bool:
        return self.look(key).is_frozen

    def _say(self, key: Key, word: str) -> None:
        self.adopt(key)
        if key in self._lines:
            with contextlib.suppress(OSError):  # it has ended, or reads nothing
                self._lines[key].send(word.encode())

    def freeze(self, key: Key) -> None:
        self._say(key, "freeze")
        self._tell_session(key, signal.SIGSTOP)

    def thaw(self, key: Key) -> None:
        self._say(key, "thaw")
        self._tell_session(key, signal.SIGCONT)

    def kill(self, key: Key) -> None:
        self._say(key, "kill")
        self._tell_session(key, signal.SIGKILL)

    def signal(self, key: Key, number: int) -> None:
        self._say(key, f"signal {number}")
        self._tell_session(key, number)

    def beat(self, keys: Iterable[Key]) -> None:
        """Tell the holders of these that the supervisor is there."""
        for key in keys:
            self._say(key, "beat")

    def thaw_all(self) -> int:
        for key in self.find_jobs():
            self.thaw(key)
        return len(self._lines)

    def cpu_us(self, key: Key) -> int | None:  # noqa: ARG002
        """Unknown."""
        return None

    def remove(self, key: Key) -> bool:
        """Whether its holder has ended."""
        return key not in self._lines
