"""Places to try things in, which are gone afterwards, however that comes about."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from iodaemon.ending import on_ending

PREFIX: Final = "iodaemon-doctor."
_NAME: Final = re.compile(rf"{re.escape(PREFIX)}(\d+)\.[0-9a-f]+")
"""With the process that made it: what a killed one left is found by the next."""

_GONE_WITHIN_S: Final = 1.0
_LOOK_S: Final = 0.002


@contextmanager
def ended_in_order() -> Iterator[Callable[[], None]]:
    """Signals that end are obeyed between two checks, when nothing is left to tidy up.

    An exception out of nowhere would tear holes into the tidying itself: one between a lock's
    being taken and its ``try`` leaves it locked (seen in ``Popen.wait``). A check takes a fraction
    of a second; who cannot wait for its end, and signals again, is obeyed at once.

    Yields:
        To be called between two checks. After SIGINT it raises KeyboardInterrupt, after SIGTERM
        and SIGHUP SystemExit, with the code of a shell.
    """
    received: list[int] = []

    def receive(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            raise _interruption(number)

    def stop_if_asked() -> None:
        if received:
            raise _interruption(received[0])

    with on_ending(receive):
        yield stop_if_asked


def _interruption(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


def existing_directory(path: str) -> str:
    """The directory itself, or the nearest one above it that exists."""
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


@contextmanager
def scratch_directory(near: str) -> Iterator[str]:
    """A directory in this one, or in the nearest above it that exists; its path while it is open.

    That path leads to it whatever is put at its name by who owns the directory around it.

    Raises:
        OSError: it cannot be made.
    """
    base = existing_directory(near)
    _sweep(base)
    path = os.path.join(base, _new_name())
    try:
        os.mkdir(path, 0o700)
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(directory).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "somebody else's directory is there now", path)
            yield f"/proc/{os.getpid()}/fd/{directory}"
        finally:
            os.close(directory)
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def scratch_cgroup(home: str) -> Iterator[str]:
    """A cgroup with an empty ``jobs`` in it, below this one; its processes are killed at the end.

    Raises:
        OSError: it cannot be made.
    """
    _sweep(home)
    path = os.path.join(home, _new_name())
    try:
        os.mkdir(path)
        os.mkdir(os.path.join(path, "jobs"))
        yield path
    finally:
        remove_cgroup(path)


def remove_cgroup(path: str) -> None:
    """Kill all that is in the cgroup and below, and remove it."""
    until_s = time.monotonic() + _GONE_WITHIN_S
    while not _try_to_remove(path) and time.monotonic() < until_s:
        time.sleep(_LOOK_S)


def _try_to_remove(path: str) -> bool:
    """True when it is gone; False while processes that were killed are still ending."""
    for directory, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            _write(os.path.join(directory, "cgroup.freeze"), "0")
        with contextlib.suppress(OSError):
            _write(os.path.join(directory, "cgroup.kill"), "1")
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
    return True


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _new_name() -> str:
    return f"{PREFIX}{os.getpid()}.{secrets.token_hex(4)}"


def _sweep(base: str) -> None:
    """Remove what one that was killed has left here; another user's is left to that user."""
    for name in os.listdir(base):
        match = _NAME.fullmatch(name)
        if match is None or os.path.exists(f"/proc/{match[1]}"):
            continue
        with contextlib.suppress(FileNotFoundError):  # somebody else sweeps as well
            _remove_if_own(os.path.join(base, name))


def _remove_if_own(path: str) -> None:
    if os.lstat(path).st_uid != os.geteuid():
        return
    if os.path.exists(os.path.join(path, "cgroup.procs")):
        remove_cgroup(path)
    else:
        shutil.rmtree(path, ignore_errors=True)
