"""The folder with results: files are put into one's own, in place of whatever has their names."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.errors import RequestError
from iodaemon.files import whole_file
from iodaemon.trial.trust import name_of

_REMEDY: Final = "name another with --output"
_READABLE: Final = 0o666
"""As other files that one makes, by one's umask."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder, which need not be there yet.

    Attributes:
        path: of it.
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
        for part in reversed(self._own_parts):
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

        Args:
            files: their contents by their names.

        Raises:
            RequestError: as of ``check``.
            OSError: they cannot be written.
        """
        descriptor = self._open()
        try:
            for name, content in files.items():
                with whole_file(descriptor, name, _READABLE) as file:
                    file.write(content)
        finally:
            os.close(descriptor)

    @property
    def _own_parts(self) -> tuple[Path, ...]:
        """From the whole path upwards."""
        path = self.path.absolute()
        return (path, *path.parents)[: self.own]

    def _open(self) -> int:
        """The folder itself, made where it is missing."""
        *inner, first = self._own_parts
        first.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _enter(first, None)
        for part in reversed(inner):
            above = descriptor
            try:
                descriptor = _enter(part, above)
            finally:
                os.close(above)
        return descriptor


def _enter(part: Path, above: int | None) -> int:
    """A directory of this user's, made where it is missing.

    Args:
        part: its path.
        above: the directory that it is in. None: whatever its path leads to.
    """
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
        raise RequestError(f"{part} belongs to {name_of(status.st_uid)}, not to you: {_REMEDY}")
