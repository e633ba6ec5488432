"""A directory that is copied to, and those in it, by descriptors: others may be at work there.

Where another user may change names, a directory may become a link between any two steps. So each
is entered from the one above, no link is followed below the top, and modes and times are given to
what was entered. As the job's user. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Final, Self

from iodaemon.backend.linux.stage_file import StageError

_LINK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = _LINK | os.O_DIRECTORY
"""To go through it is enough, it need not be readable."""
_MOST_LINKS: Final = 40
"""On the way to a directory (path_resolution(7))."""


class Place:
    """One such directory, open until ``close``.

    Attributes:
        path: of it.
        fd: of it.
    """

    def __init__(self, path: str, *, makes: bool = False) -> None:
        """Open it.

        Args:
            path: of it.
            makes: it, and those above, where they are not there.

        Raises:
            StageError: somebody else put it where everybody may put something.
            OSError: it cannot be had.
        """
        self.path = path
        with named(path):
            self.fd = _find(path, makes=makes)
        self._last, self._last_fd = "", self.fd
        self._held: dict[str, os.stat_result] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        os.close(self.fd)

    def locate(self, path: str) -> tuple[int, str]:
        """Where something below it is: the directory, until another is asked for, and the name.

        Raises:
            StageError, OSError: that directory is not there.
        """
        directory, name = os.path.split(os.path.relpath(path, self.path))
        return self.enter(directory), name

    def enter(self, name: str) -> int:
        """The directory of this name below it, until another is asked for.

        Raises:
            StageError: another one is there, or none, or somebody else's.
            OSError: it is gone, or may not be entered.
        """
        if name != self._last:
            self.leave()
            self._last_fd, self._last = self._open(name), name
        return self._last_fd

    def hold(self, name: str) -> None:
        """From now on it is to be the very directory that it is now."""
        self._held[name] = os.fstat(self.enter(name))

    def leave(self) -> None:
        """Have whatever is asked for next entered anew."""
        if self._last_fd != self.fd:
            os.close(self._last_fd)
        self._last, self._last_fd = "", self.fd

    def _open(self, name: str) -> int:
        fd, shown = os.dup(self.fd), ""
        for part in name.split("/") if name else ():
            shown = os.path.join(shown, part)
            path = os.path.join(self.path, shown)
            above = fd
            try:
                with named(path):
                    fd = _enter(above, part, path)
            finally:
                os.close(above)
            held = self._held.get(shown)
            if held is not None and not os.path.samestat(held, os.fstat(fd)):
                os.close(fd)
                raise StageError(f"{path!a} became another directory while it was copied to")
        return fd


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
    """Have an error tell of this path, where it knows no whole one."""
    try:
        yield
    except OSError as error:
        if not str(error.filename).startswith("/"):
            error.filename = path
        raise


def _enter(above: int, name: str, path: str) -> int:
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise StageError(f"{path!a} is there and is no directory; move it away") from error
        raise
    _check(above, fd, path)
    return fd


def _find(path: str, *, makes: bool) -> int:
    """Go there as the kernel would, and look at each step whose it is."""
    waiting = path.split("/")[::-1]
    fd, links = os.open("/" if path.startswith("/") else ".", _DIRECTORY), 0
    try:
        while waiting:
            name = waiting.pop()
            if name in ("", "."):
                continue
            node = _open_node(fd, name, path if makes else "")
            if name != "..":
                _check(fd, node, path)
            if not stat.S_ISLNK(os.fstat(node).st_mode):
                os.close(fd)
                fd = node
                continue
            links += 1
            text = _read_link(node, links)
            waiting += text.split("/")[::-1]
            if text.startswith("/"):
                os.close(fd)
                fd = os.open("/", _DIRECTORY)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _read_link(node: int, number: int) -> str:
    """Close it."""
    try:
        if number > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return os.readlink("", dir_fd=node)
    finally:
        os.close(node)


def _open_node(above: int, name: str, made: str) -> int:
    """A directory, by which it is mounted should it be by autofs, or a link.

    Args:
        above: what it is in.
        name: of it.
        made: on the way to this, which is made where it is not there; empty: nothing is.

    Raises:
        StageError: it cannot be made.
    """
    try:
        return os.open(name, _DIRECTORY, dir_fd=above)
    except FileNotFoundError:
        if not made:
            raise
        with contextlib.suppress(FileExistsError):
            _make(above, name, made)
        return os.open(name, _DIRECTORY, dir_fd=above)
    except NotADirectoryError:
        fd = os.open(name, _LINK, dir_fd=above)
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise


def _make(above: int, name: str, path: str) -> None:
    try:
        os.mkdir(name, dir_fd=above)
    except FileNotFoundError as error:  # as in /proc; or what it is in was removed meanwhile
        raise StageError(
            f"{path!a} cannot be made: {name!a} can be in no such directory"
        ) from error


def _check(above: int, node: int, path: str) -> None:
    """Close what is another's."""
    try:
        _refuse_anothers(above, node, path)
    except BaseException:
        os.close(node)
        raise


def _refuse_anothers(above: int, node: int, path: str) -> None:
    """As ``output_file`` does for a file: what others laid where everybody may is not followed.

    Raises:
        StageError: that is so.
    """
    directory, found = os.fstat(above), os.fstat(node)
    trusted = (0, os.geteuid(), directory.st_uid)
    if directory.st_mode & stat.S_IWOTH and found.st_uid not in trusted:
        raise StageError(
            f"{path!a}: somebody else put it, or what leads to it, where everybody may put "
            "something; choose another directory"
        )


__all__ = ["Place", "named"]
