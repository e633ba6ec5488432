"""A job's output file, opened as its user, where others may have laid something in the way.

Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_EVERYBODYS: Final = stat.S_ISVTX | stat.S_IWOTH


def open_output(path: str) -> int:
    """The file, empty, as a shell of this user would open it, with two differences.

    A pipe without a reader is refused: open(2) would wait for one, and nobody hear of the job.
    In a directory where everybody may put files (/tmp), what somebody else put there is refused,
    as the kernel does where fs.protected_symlinks, _hardlinks and _regular are set (sysctl/fs.rst;
    proc(5)): a link leads to a file of this user's, a file is read by who made it. Nothing is
    emptied before that is known.

    Raises:
        OSError: it cannot be opened, or is another's.
    """
    _refuse_anothers(path, None)
    fd = os.open(path, _FLAGS, 0o666)
    try:
        found = os.fstat(fd)
        _refuse_anothers(path, found)
        if stat.S_ISREG(found.st_mode):
            os.ftruncate(fd, 0)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def problem_of(error: OSError) -> str:
    """What is the matter with an output file, in words."""
    if error.errno == errno.ENXIO:
        return "it is a pipe that nobody reads, or a device that is not there"
    return error.strerror or str(error)


def _refuse_anothers(path: str, opened: os.stat_result | None) -> None:
    directory = os.stat(os.path.dirname(path) or ".")
    if directory.st_mode & _EVERYBODYS != _EVERYBODYS:
        return
    try:
        named = os.lstat(path)
    except FileNotFoundError:
        if opened is None:
            return
        raise
    trusted = (os.geteuid(), directory.st_uid)
    is_link = stat.S_ISLNK(named.st_mode)
    is_swapped = not is_link and opened is not None and not os.path.samestat(named, opened)
    if named.st_uid not in trusted or is_swapped:
        raise PermissionError(errno.EACCES, "somebody else put it there", path)
    if stat.S_ISREG(named.st_mode) and named.st_nlink > 1:
        raise PermissionError(errno.EACCES, "it is a file with other names as well", path)
