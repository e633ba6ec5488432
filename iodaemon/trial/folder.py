"""The folder with results, and whose a directory is.

Files are put into a folder of one's own, in place of whatever has their names.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.errors import RequestError
from iodaemon.files import whole_file

_ROOT: Final = 0
_REMEDY: Final = "name another with --output"
_READABLE: Final = 0o666
"""As other files that one makes, by one's umask."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder, which need not be there yet.

    Attributes:
        own: so many of its last parts, at least one, must be directories of this user's, not links.
    """

    path: Path
    own: int = 1

    def check(self) -> None:
        """Refuse what could not be written to later; make nothing.

        Raises:
            RequestError: a part is a link, no directory, somebody else's, or not to be written to.
        """
        there = self.path.absolute()
        for part in self._own_parts:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                _refuse(part, part.lstat())
        while not os.path.lexists(there):
            there = there.parent
        if not there.is_dir():
            raise RequestError(f"{there} is no directory: {_REMEDY}")
        if not os.access(there, os.W_OK | os.X_OK):
            raise RequestError(f"{there} cannot be written to: {_REMEDY}")

    def keep(self, files: Mapping[str, bytes]) -> None:
        """Write files, each whole: one of the same name is replaced, a link is not followed.

        Raises:
            RequestError: as of ``check``.
            OSError: they cannot be written.
        """
        self._own_parts[0].parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as opened:
            above = None
            for part in self._own_parts:
                above = _enter(part, above)
                opened.callback(os.close, above)
            assert above is not None, "there is one part at least"
            for name, content in files.items():
                with whole_file(above, name, _READABLE) as file:
                    file.write(content)

    @property
    def _own_parts(self) -> tuple[Path, ...]:
        """From above down to the whole path."""
        path = self.path.absolute()
        return (path, *path.parents)[: self.own][::-1]


def _enter(part: Path, above: int | None) -> int:
    """A directory of this user's, made where it is missing: in the one above, or by its path."""
    name = str(part) if above is None else part.name
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=above)
    _refuse(part, os.stat(name, dir_fd=above, follow_symlinks=False))
    descriptor = os.open(name, _DIRECTORY, dir_fd=above)
    try:
        _refuse(part, os.fstat(descriptor))
    except RequestError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse(part: Path, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise RequestError(f"{part} is a link, and results are not written through one: {_REMEDY}")
    if not stat.S_ISDIR(status.st_mode):
        raise RequestError(f"{part} is no directory: {_REMEDY}")
    if status.st_uid != os.geteuid():
        name = f"user {status.st_uid}"
        with contextlib.suppress(KeyError):
            name = pwd.getpwuid(status.st_uid).pw_name
        raise RequestError(f"{part} belongs to {name}, not to you: {_REMEDY}")


def has_meddlers(directory: Path, user: int | None = None) -> bool:
    """Whether others than this user and root could put another directory in the place of this one.

    That is whoever owns a directory of the path, or may write to one that is not sticky: in such
    a one files can be renamed whoever owns them (rename(2)). Access lists need no look: the group's
    bits of a directory that has one say the most that it grants (acl(5)). Links are followed first.
    """
    user = os.geteuid() if user is None else user
    whole = directory.resolve()
    for part in (whole, *whole.parents):
        status = part.stat()
        if status.st_uid not in (_ROOT, user):
            return True
        is_shared = status.st_mode & stat.S_IWGRP and not _is_of_one(status.st_gid, user)
        if (status.st_mode & stat.S_IWOTH or is_shared) and not status.st_mode & stat.S_ISVTX:
            return True
    return False


def _is_of_one(group: int, user: int) -> bool:
    """Root's group, or that of the user alone, which many systems give everybody."""
    if group == _ROOT:
        return True
    with contextlib.suppress(KeyError):
        found = grp.getgrgid(group)
        name = pwd.getpwuid(user).pw_name
        return found.gr_name == name and set(found.gr_mem) <= {name}
    return False
