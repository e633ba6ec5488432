"""Remove a directory tree that belongs to another user, who may be changing it meanwhile.

Only what has a name below an open directory is removed, never what a path leads to. Files are not
opened. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import Final

from iodaemon.backend.linux.beneath import open_directory, unmount_fuse
from iodaemon.fault import reach

_DEEPEST: Final = 32
"""Directories that are open at one time; what lies deeper is moved to the top first."""
_MOUNTED: Final = frozenset({errno.EBUSY, errno.EXDEV})
_CHANGED: Final = frozenset({errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR})
"""Errors that a process which changes the tree causes; the next round finds the new state."""


class KeptError(Exception):
    """Something could not be removed; one line that says what and why. Trying again may help."""


class UnfinishedError(Exception):
    """The time is up and the tree is not yet empty."""


class _Level:
    """A directory on the way down, open."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd = fd
        self.name = name
        try:
            self.entries = os.scandir(fd)
        except OSError:
            os.close(fd)
            raise

    def close(self) -> None:
        self.entries.close()
        os.close(self.fd)


def remove_tree(parent: int, name: str, until_s: float) -> None:
    """Remove the directory of this name and all below it; do nothing if there is none.

    Each directory becomes the caller's, mode 0700, before it is emptied, so that a process of its
    former owner makes no more files in it.

    Args:
        parent: an open directory in which only the caller may change names.
        name: in it.
        until_s: on the monotonic clock.

    Raises:
        KeptError: something in it cannot be removed.
        UnfinishedError: the time is up.
        OSError: it cannot be opened.
    """
    unmount_fuse(parent, name)
    try:
        top = open_directory(parent, name)
    except FileNotFoundError:
        return
    try:
        os.fchmod(top, 0o700)
        os.fchown(top, os.geteuid(), os.getegid())
        reach("scratch.closed")
        while True:
            removed, problem = _empty(os.dup(top), until_s)
            try:
                os.rmdir(name, dir_fd=parent)
            except FileNotFoundError:  # another helper was faster
                return
            except OSError as error:
                problem = problem or _tell(name, error) * (error.errno not in _CHANGED)
            else:
                return
            if time.monotonic() > until_s:
                raise UnfinishedError
            if not removed:
                raise KeptError(problem or "a process makes files in it; end that process")
    finally:
        os.close(top)


def _empty(top: int, until_s: float) -> tuple[int, str]:
    """One round: how many names were removed or moved, and the first problem."""
    removed, problem = 0, ""
    stack = [_Level(top, "")]
    try:
        while stack and time.monotonic() < until_s:
            level = stack[-1]
            entry = next(level.entries, None)
            try:
                if entry is None:
                    stack.pop().close()
                    if stack:
                        os.rmdir(level.name, dir_fd=stack[-1].fd)
                        removed += 1
                elif not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=level.fd)
                    removed += 1
                    reach("scratch.unlinked")
                elif len(stack) >= _DEEPEST and _move_up(level.fd, entry.name, stack[0].fd):
                    removed += 1
                else:
                    stack.append(_enter(level.fd, entry.name))
            except OSError as error:
                if entry and error.errno in _MOUNTED and unmount_fuse(level.fd, entry.name):
                    removed += 1  # the next round finds what was below the mount
                elif error.errno not in _CHANGED and not problem:
                    problem = _tell(entry.name if entry else level.name, error)
    finally:
        while stack:
            stack.pop().close()
    return removed, problem


def _enter(parent: int, name: str) -> _Level:
    try:
        fd = open_directory(parent, name)
    except PermissionError:
        if os.geteuid() == 0:
            raise
        _allow(parent, name)
        fd = open_directory(parent, name)
    with contextlib.suppress(OSError):
        os.fchmod(fd, 0o700)
        os.fchown(fd, os.geteuid(), -1)
    return _Level(fd, name)


def _allow(parent: int, name: str) -> None:
    """Make a directory of the caller's own readable for the caller; a link is not followed."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def _move_up(parent: int, name: str, top: int) -> bool:
    """Move it into the top directory; False if that is refused (fscrypt without its key)."""
    try:
        os.rename(name, f"deep-{os.urandom(8).hex()}", src_dir_fd=parent, dst_dir_fd=top)
    except OSError:
        return False
    return True


def _tell(name: str, error: OSError) -> str:
    if error.errno in _MOUNTED:
        return f"something is mounted at {name!a} in it; unmount that"
    if error.errno in (errno.EPERM, errno.EACCES):
        return f"{name!a} in it cannot be removed ({error.strerror}); is it immutable?"
    return f"{name!a} in it cannot be removed ({error.strerror})"
