"""Files for a directory where others may write: never through a link that they have laid.

Each is made under a name of its own and gets its name whole, by rename, so that a link of that name
is replaced and not followed. It belongs to whom the directory does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from iodaemon.errors import ConfigError, RequestError
from iodaemon.files import whole_file

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_DIRECTORY: Final = frozenset({errno.ELOOP, errno.ENOTDIR})


def put(folder: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write the files, durably and each whole; others may read them.

    Args:
        folder: made where it is missing.
        files: by name.

    Raises:
        RequestError: the folder is a link, or no directory.
        OSError: it cannot be written.
    """
    with _opened(folder) as directory:
        for name, text in files.items():
            _put(directory, name, text)
        os.fsync(directory)
    return tuple(folder / name for name in files)


def read(file: Path, most_bytes: int) -> bytes:
    """What stands in it, of so many bytes at most; neither link nor pipe is followed or waited for.

    Raises:
        FileNotFoundError: there is none.
        ConfigError: it is no ordinary file.
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(file, _OLD)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(f"{file} is a link, and not followed; remove it") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(f"{file} is no ordinary file; remove it")
    with open(descriptor, "rb") as opened:
        return opened.read(most_bytes)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    try:
        with contextlib.suppress(FileExistsError):
            folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            folder.mkdir(mode=0o755)
            _give_to_owner_of(folder.parent, folder)
        descriptor = os.open(folder, _DIRECTORY)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY:
            raise
        raise RequestError(
            f"{folder} is a link, or no directory; name a directory itself"
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _give_to_owner_of(parent: Path, folder: Path) -> None:
    """The one that was just made; what lies in somebody's directory is theirs.

    Whose directory that is may have put another one there: none of root's with something in it is
    given away.
    """
    if os.geteuid() != 0:
        return
    owner = parent.stat()
    descriptor = os.open(folder, _DIRECTORY)
    try:
        if not os.listdir(descriptor):
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    finally:
        os.close(descriptor)


def _put(directory: int, name: str, text: bytes) -> None:
    with whole_file(directory, name, 0o600) as out:
        out.write(text)
        out.flush()
        if os.geteuid() == 0:
            owner = os.fstat(directory)
            os.fchown(out.fileno(), owner.st_uid, owner.st_gid)
        os.fchmod(out.fileno(), 0o644)
        os.fsync(out.fileno())
