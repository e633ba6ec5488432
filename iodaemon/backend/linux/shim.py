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
from iodaemon.backend.linux.process import (
    Identity,
    become_subreaper,
    drain,
    identify,
    is_alive,
    open_pidfd,
    wake_on_signals,
)
from iodaemon.backend.linux.protocol import LOCK_FILE, Message, encode, read_json, read_line
from iodaemon.fault import reach

MOST_JOBS: Final = 100
"""A shim that has served so many ends: what it may have gathered goes with it."""
_RETRY_S: Final = 1.0
"""Between attempts to find the next keeper; between looks at what is left once the job's first
process has ended."""
_LOOK_S: Final = 30.0
"""Between looks at a job of which nothing is heard: who traces a thread may keep its end back."""


class Shim:
    """One shim. ``run`` never returns."""

    def __init__(
        self, directories: JobDirectories, freezer: Freezer, keeper_file: str, line: int
    ) -> None:
        """Be the calling process.

        Args:
            directories: of the jobs.
            freezer: the keeper's.
            keeper_file: where the next keeper will say who it is.
            line: a stream socket to the keeper; its end is the keeper's end.
        """
        self._directories = directories
        self._freezer = freezer
        self._line: int | None = line
        self._next_keeper: int | None = None
        self._keeper_file = keeper_file
        self._thawed_for: Identity | None = None
        self._attempt: Attempt | None = None
        self._wake = _wake_on_children()
        me = identify(os.getpid())
        assert me is not None
        self._me: Identity = me
        signal.signal(signal.SIGTERM, self._on_term)

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
            self._serve(order)
            if self._line is None or order["is_last"]:
                break
            order = None
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
            ready = {fd for fd, _ in poll.poll(wait_s * 1000)}
            if not ready and attempt.leave():
                break
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

    def _seek_keeper(self, key: str) -> None:
        """Watch the next keeper; while there is none, nobody would thaw the job but its shim."""
        record = read_json(self._keeper_file)
        last = record and Identity(record["pid"], record["start_ticks"], record["boot_id"])
        if last and is_alive(last):
            self._next_keeper = open_pidfd(last)
            self._thawed_for = None
        elif last and last != self._thawed_for and self._thaw(key):
            self._thawed_for = last
            reach("shim.thawed")

    def _thaw(self, key: str) -> bool:
        """Thaw the job unless a keeper lives, also one that is only just beginning.

        The keeper's lock makes sure of it: one that has it finds the job as it is and answers for
        it, and none can begin while the shim has it.
        """
        path = os.path.join(os.path.dirname(self._keeper_file), LOCK_FILE)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._freezer.thaw(key, os.getpid())
        except OSError:
            return False
        finally:
            os.close(lock)
        return True


def _wake_on_children() -> int:
    """Own session, orphans below come to it; returns the end to read when a child has ended."""
    os.setsid()
    become_subreaper()
    return wake_on_signals()
