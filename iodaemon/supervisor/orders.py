"""The launcher process, and the orders that wait for it."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from typing import Final

from iodaemon.supervisor import anchor as root
from iodaemon.supervisor import syscalls
from iodaemon.supervisor.anchor import Config
from iodaemon.supervisor.cgroup import Cgroups
from iodaemon.supervisor.failpoint import reach
from iodaemon.supervisor.holder import Holders, fork_holder
from iodaemon.supervisor.launch import LAUNCHER, NO_ARGUMENTS, PROGRAM
from iodaemon.supervisor.ledger import Key
from iodaemon.supervisor.line import Loop
from iodaemon.supervisor.protocol import Limits
from iodaemon.supervisor.reap import read_state, send
from iodaemon.supervisor.syscalls import say

UNCOMPILED: Final = "IOD_PYTHON_LAUNCHER"
"""A variable of the environment: set, the launcher in Python is used in any case."""
_MOST_UNDER_WAY: Final = 64
"""Children between clone and ready. One that takes longer than ``_SLOW_S`` does not count."""
_SLOW_S: Final = 1.0
_RETRY_S: Final = 0.5
_RESERVED_FDS: Final = 12
_ORDER: Final = [b"1"]

Done = Callable[[socket.socket | OSError], None]
"""Gets the supervisor's end of the child's line, or why there is no child."""


def _is_compiled() -> bool:
    """Whether the launcher in C is there and runs here: one may be built for other machines."""
    if UNCOMPILED in os.environ or not os.path.exists(PROGRAM):
        return False
    with contextlib.suppress(OSError):
        _, status = os.waitpid(root.spawn([PROGRAM], []), 0)
        if os.waitstatus_to_exitcode(status) == NO_ARGUMENTS:
            return True
    say(f"{PROGRAM} does not run here; the launcher in Python takes its place")
    return False


def _is_stopped_launcher(pid: int) -> bool:
    state = read_state(pid)
    return state is not None and (state.letter, state.name) == ("T", LAUNCHER)


class Orders:
    """Keeps a launcher, and gives it orders as long as it takes them."""

    def __init__(self, config: Config, ledger: int, means: Cgroups | Holders, loop: Loop) -> None:
        self._config = config
        self._ledger = ledger
        self._means = means
        self._loop = loop
        self._launcher: socket.socket | None = None
        self._readers = "-1" if config.daemon_gid is None else str(config.daemon_gid)
        self._is_compiled = _is_compiled()
        self._launched_s, self._launcher_pid = 0.0, 0
        self._queue: dict[Key, tuple[Limits, Done]] = {}
        self._under_way: dict[Key, float] = {}
        self._most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._call_in(0.0)

    def add(self, key: Key, limits: Limits, done: Done) -> None:
        self._queue[key] = limits, done
        self._call_in(0.0)

    def _call_in(self, wait_s: float) -> None:
        self._loop.call_in(wait_s, self, self.work_off)

    def is_over(self, key: Key) -> None:
        """Its child is ready, or gone, or is not wanted any more."""
        self._queue.pop(key, None)
        if self._under_way.pop(key, None) and self._queue:
            self._call_in(0.0)

    def work_off(self) -> None:
        """Start a launcher where there is none, and give it what waits as long as it takes that
        and not too many are under way. Without cgroups there is none: this process forks a holder
        for each job.
        """
        now_s = time.monotonic()
        if self._is_launcher_missing:
            if now_s < self._launched_s + _RETRY_S:
                self._call_in(self._launched_s + _RETRY_S - now_s)
                return
            self._start_launcher()
        while self._queue and not self._is_launcher_missing:
            if len(self._under_way) >= _MOST_UNDER_WAY:
                slow = [key for key, s in self._under_way.items() if now_s - s >= _SLOW_S]
                for key in slow:
                    del self._under_way[key]
                if not slow:
                    self._call_in(min(self._under_way.values()) + _SLOW_S - now_s)
                    return
            key, (limits, done) = next(iter(self._queue.items()))
            made: socket.socket | OSError
            try:
                made = self._give(key, limits)
            except (BrokenPipeError, ConnectionResetError):
                self._launched_s = min(self._launched_s, now_s - _RETRY_S)
                self.close()
                return
            except OSError as error:
                if self._launcher is not None and isinstance(error, BlockingIOError):
                    self._loop.want(self._launcher.fileno(), write=True)
                    return
                made = error
            else:
                self._under_way[key] = time.monotonic()
                self._loop.call_in(_SLOW_S, LAUNCHER, self._look_after_launcher)
            del self._queue[key]
            done(made)

    @property
    def _is_launcher_missing(self) -> bool:
        return self._launcher is None and self._means.are_children

    def _start_launcher(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = [theirs.fileno(), self._ledger]
        self._launched_s = time.monotonic()
        try:
            words = [*map(str, fds), self._readers]
            if self._is_compiled:
                self._launcher_pid = root.spawn([PROGRAM, *words], fds)
            else:
                command = root.command("launcher", *words)
                self._launcher_pid = root.spawn(command, fds, syscalls.HEARD)
        except OSError as error:
            say(f"no launcher can be started ({error.strerror}); it is tried again")
            ours.close()
            while self._queue:
                _, done = self._queue.pop(next(iter(self._queue)))
                done(error)
            self._call_in(_RETRY_S)
            return
        finally:
            theirs.close()
        ours.setblocking(False)  # noqa: FBT003
        self._launcher = ours
        self._loop.add(ours.fileno(), self._on_launcher)

    def _look_after_launcher(self) -> None:
        """Continue one that was stopped: a job of a user's own daemon has the right to, and nobody
        else's would start. While children are under way it is looked at every ``_SLOW_S``.
        """
        if self._launcher is None or not self._under_way:
            return
        if _is_stopped_launcher(self._launcher_pid):
            say("somebody stopped the launcher; it goes on")
            send([self._launcher_pid], signal.SIGCONT, _is_stopped_launcher)
        self._loop.call_in(_SLOW_S, LAUNCHER, self._look_after_launcher)

    def _on_launcher(self) -> None:
        """It says nothing: the line has ended, or takes orders again."""
        assert self._launcher is not None
        try:
            self._launcher.recv(1)
        except BlockingIOError:
            self._loop.want(self._launcher.fileno())
            self._call_in(0.0)
            return
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        if self._launcher is not None:
            self._loop.remove(self._launcher.fileno())
            self._launcher.close()
            self._launcher = None
            self._call_in(0.0)

    def _give(self, key: Key, limits: Limits) -> socket.socket:
        """Make what the job's process needs, and order it; our end of its line.

        Raises:
            PlaceGoneError, OSError: not now.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            # The kernel gives the lowest free number, so the last one tells how many are left. Each
            # child under way will need one more, its pidfd, and so do the daemon and the anchor.
            if theirs.fileno() + len(self._under_way) + _RESERVED_FDS >= self._most_files:
                ours.close()
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            try:
                self._order(key, limits, theirs.fileno())
            except BaseException:
                ours.close()
                raise
        reach("supervisor.ordered")
        return ours

    def _order(self, key: Key, limits: Limits, line: int) -> None:
        cgroup, problems = self._means.prepare(key, limits)
        for problem in problems:
            say(f"job {key}: {problem}")
        reach("supervisor.cgroup_made")
        if cgroup is None:
            grace_s, is_compiled = self._config.grace_s, self._is_compiled
            fork_holder(key, line, self._ledger, self._readers, grace_s, is_compiled=is_compiled)
            return
        assert self._launcher is not None
        try:
            socket.send_fds(self._launcher, _ORDER, [line, cgroup])
        finally:
            os.close(cgroup)
