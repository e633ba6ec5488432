"""What makes a keeper a service of the system: whom it obeys, and whose jobs it runs.

Standard library only.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple

from iodaemon.backend.linux.fence import confine
from iodaemon.backend.linux.freezer import CgroupFreezer, Freezer
from iodaemon.backend.linux.protocol import Message
from iodaemon.systemd import is_journal_stream

_NOTICE: Final = 5
"""A priority of syslog(3): the keeper speaks seldom, and somebody should hear it."""

_MOST_BYTES: Final = select.PIPE_BUF
"""Of a line: a pipe takes so many whole or not at all (pipe(7))."""


class Service(NamedTuple):
    """What a keeper of its own unit knows: it runs as root, and jobs as their submitters.

    Attributes:
        daemon_uid: the one user, besides its own, whom it obeys.
        min_uid: it runs nothing as users below this one, whatever the daemon says.
        reopen: brings back the place of the jobs' cgroups once that is gone.
    """

    daemon_uid: int
    min_uid: int
    reopen: Callable[[], object]


def make_cgroup(service: Service | None, freezer: Freezer, key: str, launch: Message) -> None:
    """Prepare for a job; who stops the jobs' scope stops the jobs, not the service.

    Where its fence or its limit cannot be set it runs without.
    """
    try:
        freezer.make(key)
    except FileNotFoundError:
        if service is None:
            raise
        service.reopen()
        freezer.make(key)
    if isinstance(freezer, CgroupFreezer):
        for problem in confine(freezer.path(key), freezer.controls, launch):
            say(f"job {key}: {problem}")


def grant(service: Service | None, launch: Message) -> Message:
    """The launch with the least uid it may have; without a service, as the keeper's own user."""
    return {**launch, "min_uid": None if service is None else service.min_uid}


def say(text: str) -> None:
    """One line into keeper.log, or the unit's journal, which has time and process already.

    A pipe, a socket or a terminal that takes nothing does not hold up the keeper: the line is lost,
    and counted in the next one that is taken. A file can hold it up, where its disk hangs. Linux
    has no write to a file that never waits, and a keeper that forks shims has no threads. Its own
    file, keeper.log, is on the disk of the job directories, without which it can do nothing.
    """
    _messages.say(text)


def say_failure(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """As ``sys.excepthook``, which would wait for whoever reads standard error."""
    for part in traceback.format_exception(kind, error, trace):
        for line in part.splitlines():
            say(line)


class _Messages:
    """Lines on standard error; never waits for its reader."""

    def __init__(self) -> None:
        self._lost = 0

    def say(self, text: str) -> None:
        """Write the line, after a note of how many before it are lost; or count it as lost."""
        if self._lost:
            if not _write_line(f"{self._lost} lines were lost: nobody read this log"):
                self._lost += 1
                return
            self._lost = 0
        if not _write_line(text):
            self._lost += 1


_messages: Final = _Messages()


def _write_line(text: str) -> bool:
    if sys.stderr is None:
        return False
    if is_journal_stream(sys.stderr, os.environ):
        line = f"<{_NOTICE}>{text}"
    else:
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} keeper[{os.getpid()}]: {text}"
    try:
        _write_at_once(sys.stderr.fileno(), line.encode(errors="backslashreplace"))
    except (OSError, ValueError):  # ValueError: it is closed, or no file at all
        return False
    return True


def _write_at_once(fd: int, line: bytes) -> None:
    """Write it whole or not at all, by a way that leaves the flags of a shared descriptor alone.

    Raises:
        OSError: it cannot be written, or not now.
    """
    data = line[: _MOST_BYTES - 1] + b"\n"
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        os.write(fd, data)
        return
    if stat.S_ISSOCK(mode):
        with socket.socket(fileno=os.dup(fd)) as journal:
            journal.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        own = os.open(f"/proc/self/fd/{fd}", flags)
    except OSError:  # another user's pipe, as in some containers
        _write_if_ready(fd, data)
        return
    try:
        os.write(own, data)
    finally:
        os.close(own)


def _write_if_ready(fd: int, data: bytes) -> None:
    """Waits only where another process that shares the pipe takes the last room at this moment."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    if not poll.poll(0):
        raise BlockingIOError
    os.write(fd, data)
