"""A small process between the keeper and a job; outlives daemon and keeper.

It serves one job at a time: it forks the job's child, reaps everything below itself (child
subreaper) until the last descendant has ended, leaves ``status.json``, and only then takes the
next job from the keeper that forked it. It is not in the job's cgroup, so freezing or killing the
job never reaches it. When the keeper dies it thaws its own job (a job never stays frozen because
nobody is there to thaw it), finishes it, and ends; without a job it ends at once.

Nothing of a job sticks to its shim: what a job is to have, its child takes on after the fork.

Standard library only; forked from the keeper, so that its memory is shared with it. Each page that
it writes to is copied: that is what a fork costs, and why a shim serves more than one job.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
from typing import Final, NoReturn

from iodaemon.backend.linux.attempt import Attempt
from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.freezer import Freezer
from iodaemon.backend.linux.holder import find_exclusive_holder
from iodaemon.backend.linux.process import (
    Identity,
    become_subreaper,
    drain,
    identify,
    wake_on_signals,
)
from iodaemon.backend.linux.protocol import Message, encode, read_line
from iodaemon.backend.linux.pulse import Pulse
from iodaemon.backend.linux.title import set_title
from iodaemon.fault import reach

MOST_JOBS: Final = 100
"""A shim that has served so many ends: what it may have gathered goes with it."""
_RETRY_S: Final = 1.0
"""Between attempts to find the next keeper; between looks at what is left once the job's first
process has ended."""
_IDLE_TITLE: Final = "iod-shim idle"
_LEAST_WAIT_S: Final = 0.05
"""However short the grace time is."""
_BEATS: Final = 3
"""So often in the grace time it looks whether the keeper does anything. The keeper wakes as often
with nothing to do."""
_LOOK_S: Final = 30.0
"""Between looks at a job of which nothing is heard: who traces a thread may keep its end back."""


class Shim:
    """One shim. ``run`` never returns."""

    def __init__(
        self,
        directories: JobDirectories,
        freezer: Freezer,
        lock_file: str,
        line: int,
        *,
        grace_s: float,
    ) -> None:
        """Be the calling process.

        Args:
            directories: of the jobs.
            freezer: the keeper's.
            lock_file: locked by whichever keeper is alive.
            line: a stream socket to the keeper; its end is the keeper's end.
            grace_s: a keeper that does nothing for so long is as good as dead.
        """
        self._directories = directories
        self._freezer = freezer
        self._line: int | None = line
        self._next_keeper: int | None = None
        self._lock_file = lock_file
        self._thawed_after: int | None = None
        self._grace_s = grace_s
        self._pulse = Pulse(os.getppid())
        self._attempt: Attempt | None = None
        self._wake = _wake_on_children()
        me = identify(os.getpid())
        assert me is not None
        self._me: Identity = me
        signal.signal(signal.SIGTERM, self._on_term)
        set_title(_IDLE_TITLE)

    def _on_term(self, *_: object) -> None:
        """Whoever stops the jobs' unit, or the machine, tells every shim of it as well.

        The job has been told by itself; its end is waited for, and not held against it.
        """
        if self._attempt is None:
            os._exit(0)
        self._attempt.is_told_to_end = True

    def run(self, order: Message | None) -> NoReturn:
        """Serve this job, if any, then those that the keeper sends."""
        for _ in range(MOST_JOBS):
            order = order or self._await_order()
            if order is None:
                break
            reach("shim.begun")
            set_title(f"iod-shim {order['key']}")
            self._serve(order)
            if self._line is None or order["is_last"]:
                break
            order = None
            set_title(_IDLE_TITLE)
            self._tell({"over": True})
            reach("shim.over")
        os._exit(0)

    def _await_order(self) -> Message | None:
        """The next job; None: the keeper is gone, or needs this shim no more."""
        assert self._line is not None
        data = read_line(self._line)
        return json.loads(data) if data.endswith(b"\n") else None

    def _serve(self, order: Message) -> None:
        attempt = Attempt(
            order["key"],
            self._directories.of(order["key"]),
            order["launch"],
            freezer=self._freezer,
            shim=self._me,
            tell=self._tell,
        )
        self._attempt = attempt
        if not attempt.start():
            os._exit(1)  # it could not even fork
        self._wait_for(attempt)
        while attempt.begin_stage_out():
            self._wait_for(attempt)
        reach("shim.emptied")
        attempt.finish()
        if attempt.is_told_to_end or attempt.has_left:
            os._exit(0)
        self._attempt = None

    def _tell(self, message: Message) -> None:
        with contextlib.suppress(OSError):
            if self._line is not None:
                os.write(self._line, encode(message))

    # -- waiting ---------------------------------------------------------------------------------

    def _wait_for(self, attempt: Attempt) -> None:
        """Reap until no child is left: with a subreaper that means no descendant either."""
        poll = select.poll()
        watched: int | None = None
        news = None if attempt.news is None else attempt.news.fd
        main = attempt.open_main()
        for fd in (self._wake, news, main):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        while attempt.reap():
            if self._line is None and self._next_keeper is None:
                self._seek_keeper(attempt.key)
            keeper = self._next_keeper if self._line is None else self._line
            if watched is None and keeper is not None:
                poll.register(keeper, select.POLLIN)
                watched = keeper
            wait_s = _RETRY_S if watched is None or main is None else _LOOK_S
            wait_s = min(wait_s, max(self._grace_s / _BEATS, _LEAST_WAIT_S))
            ready = {fd for fd, _ in poll.poll(wait_s * 1000)}
            if not ready and attempt.leave():
                break
            self._feel_pulse(attempt.key)
            if self._wake in ready:
                drain(self._wake)
            if news is not None and news in ready and not attempt.hear():
                poll.unregister(news)
                news = None
            if main is not None and main in ready:
                poll.unregister(main)
                os.close(main)
                main = None
            if watched is not None and watched in ready:
                poll.unregister(watched)
                os.close(watched)
                self._line = self._next_keeper = watched = None
        if main is not None:
            os.close(main)

    def _feel_pulse(self, key: str) -> None:
        """Thaw the job when the keeper has done nothing for the grace time, stopped or stuck.

        The daemon could not have it thawed either: it acts through the keeper alone. A keeper that
        goes on learns from the kernel what stands still, as after any other thaw.
        """
        if self._pulse.is_silent_for(self._grace_s):
            with contextlib.suppress(OSError):
                self._freezer.thaw(key, os.getpid())

    def _seek_keeper(self, key: str) -> None:
        """Watch the next keeper, or thaw the job: without a keeper, only its shim can.

        The lock decides: a keeper that has it finds the job as it is and answers for it, and none
        can begin while the shim has it. The lock's time changes with each keeper, so the job is
        thawed once after each of them.
        """
        try:
            lock = os.open(self._lock_file, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        try:
            found = _open_holder(lock)
            if found is not None:
                self._pulse.close()
                self._next_keeper, self._pulse = found
                return
            began_ns = os.fstat(lock).st_mtime_ns
            if began_ns == self._thawed_after:
                return
            fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._freezer.thaw(key, os.getpid())
            self._thawed_after = began_ns
            reach("shim.thawed")
        except OSError:
            return
        finally:
            os.close(lock)


def _open_holder(lock: int) -> tuple[int, Pulse] | None:
    """A descriptor and the pulse of the process that holds this lock; None: there is none."""
    pid = find_exclusive_holder(lock)
    if pid is None:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    pulse = Pulse(pid)
    if find_exclusive_holder(lock) == pid:  # else the number may be another process's by now
        return pidfd, pulse
    os.close(pidfd)
    pulse.close()
    return None


def _wake_on_children() -> int:
    """Own session, orphans below come to it; returns the end to read when a child has ended."""
    os.setsid()
    become_subreaper()
    return wake_on_signals()
