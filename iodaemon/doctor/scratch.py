"""Places to try things in, which are gone afterwards, however that comes about."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from iodaemon.ending import on_ending
from iodaemon.files import (
    find_left,
    make_directory,
    new_name,
    open_directory,
    remove_directory,
)

PREFIX: Final = "iodaemon-doctor"
_MARK: Final = "mark"
"""A link in the directory, with the name that it was made with: it takes no room on a full disk."""
_GONE_WITHIN_S: Final = 1.0
_LOOK_S: Final = 0.002


@contextmanager
def ended_in_order() -> Iterator[Callable[[], None]]:
    """Obey SIGINT, SIGTERM and SIGHUP between two checks, when nothing is left to remove.

    An exception at any other moment could interrupt the removal itself: one between the taking of
    a lock and its ``try`` leaves it locked (seen in ``Popen.wait``). A check takes a fraction of a
    second; a second signal is obeyed at once.

    Yields:
        A function to call between two checks. After SIGINT it raises KeyboardInterrupt, after
        SIGTERM and SIGHUP SystemExit, with the code of a shell.
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
    """
    base = existing_directory(near)
    _sweep_directories(base)
    name = new_name(PREFIX)
    directory = make_directory(os.path.join(base, name))
    try:
        with contextlib.suppress(OSError):  # without links: one that is killed leaves it for good
            os.symlink(name, _MARK, dir_fd=directory)
        yield f"/proc/{os.getpid()}/fd/{directory}"
    finally:
        with contextlib.suppress(OSError):  # what the examination came to is what is to be told
            _remove_and_close(directory)


@contextmanager
def scratch_cgroup(home: str) -> Iterator[str]:
    """A cgroup with an empty ``jobs`` in it, below this one; no process may be in it at the end."""
    for left in find_left(home, PREFIX):
        with contextlib.suppress(FileNotFoundError):  # somebody else sweeps as well
            if left.lstat().st_uid == os.geteuid():
                _remove_cgroup(str(left))
    path = os.path.join(home, new_name(PREFIX))
    try:
        os.mkdir(path)
        os.mkdir(os.path.join(path, "jobs"))
        yield path
    finally:
        _remove_cgroup(path)


def _remove_cgroup(path: str) -> None:
    """Remove it and those below it; a process that was killed is in it a moment longer."""
    until_s = time.monotonic() + _GONE_WITHIN_S
    for directory, _, _ in os.walk(path, topdown=False):
        while time.monotonic() < until_s:
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                time.sleep(_LOOK_S)


def _sweep_directories(base: str) -> None:
    """Remove what a killed examination of this user's left here.

    A user who may rename in this directory can give such a name to any directory of this user's:
    only one that an examination marked as its own under that very name is emptied. An empty one,
    which it had not marked yet, is removed too: a user who may rename it may also remove it.
    """
    for path in find_left(base, PREFIX):
        with contextlib.suppress(OSError):  # another user's, or somebody else sweeps as well
            directory = open_directory(path)
            if _is_marked(directory, path.name):
                _remove_and_close(directory)
            else:
                os.close(directory)
                os.rmdir(path)


def _is_marked(directory: int, name: str) -> bool:
    try:
        owner = os.stat(_MARK, dir_fd=directory, follow_symlinks=False).st_uid
        return owner == os.geteuid() and os.readlink(_MARK, dir_fd=directory) == name
    except OSError:  # none, or no link
        return False


def _remove_and_close(directory: int) -> None:
    try:
        remove_directory(directory)
    finally:
        os.close(directory)
