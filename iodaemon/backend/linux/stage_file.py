"""One file of a staging step, copied, and looked at again. As the job's user.

Standard library only.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from typing import Final

from iodaemon.fault import reach

_STEP: Final = 1024.0
_CHUNK_BYTES: Final = 1 << 20
_NOTHING: Final = bytes(_CHUNK_BYTES)
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class StageError(Exception):
    """A step of staging cannot be done; one line that says why."""


def copy_file(
    source: str, target: str, on_bytes: Callable[[int], None], *, at: int | None = None
) -> str:
    """Copy content, mode and time of one file; the SHA-256 of what was read.

    What is nothing but zeros becomes a hole. A target that is there is replaced, and none is left
    where it fails.

    Args:
        source: a file; no link is followed.
        target: where its directory is there.
        on_bytes: told of each piece.
        at: an open directory that the target is below; None: its path is whole.

    Raises:
        StageError: the source went or changed meanwhile.
        OSError: of the target, or the source cannot be read.
    """
    try:
        read = os.open(source, _READ)
    except OSError as error:
        raise _gone(source, error) from error
    try:
        remove_file(target, at=at)
        write = os.open(target, _WRITE, 0o600, dir_fd=at)
        try:
            return _copy(read, write, source, on_bytes)
        except BaseException as error:
            os.unlink(target, dir_fd=at)
            if isinstance(error, OSError) and error.filename is None:
                error.filename = target
            raise
        finally:
            os.close(write)
    finally:
        os.close(read)


def _copy(read: int, write: int, source: str, on_bytes: Callable[[int], None]) -> str:
    before = os.fstat(read)
    digest, size_bytes = ("", -1)
    if stat.S_ISREG(before.st_mode):
        digest, size_bytes = _pour(read, write, before.st_size, on_bytes)
    after = os.fstat(read)
    if version(before) != version(after) or size_bytes != after.st_size:
        raise StageError(f"{source!a} changed while it was copied")
    os.ftruncate(write, size_bytes)
    os.fchmod(write, before.st_mode & 0o777)
    os.utime(write, ns=(before.st_atime_ns, before.st_mtime_ns))
    return digest


def hash_file(path: str, *, from_disk: bool, at: int | None = None) -> str:
    """The SHA-256 of a file.

    Args:
        path: of it.
        from_disk: what memory has of it is forgotten first; it is on the disk already.
        at: an open directory that it is below; None: its path is whole.

    Raises:
        OSError: it cannot be read.
    """
    fd = os.open(path, _READ, dir_fd=at)
    try:
        if from_disk:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        digest = hashlib.sha256()
        while chunk := os.read(fd, _CHUNK_BYTES):
            digest.update(chunk)
        return digest.hexdigest()
    finally:
        os.close(fd)


def remove_file(path: str, *, at: int | None = None) -> None:
    """Remove it, should it be there."""
    try:
        os.unlink(path, dir_fd=at)
    except FileNotFoundError:
        return


def explain(error: OSError, total_bytes: int, done_bytes: int) -> str:
    """Why a copy did not go on, in words."""
    where = f"{error.filename!a}: " if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        limit = "no space is left" if error.errno == errno.ENOSPC else "the limit was reached"
        return f"{where}{limit} after {_told(done_bytes)} of {_told(total_bytes)} in all"
    return f"{where}{error.strerror or error}"


def _told(size_bytes: int) -> str:
    """As ``core.size.told_bytes``, which is not for the keeper."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= _STEP and len(units) > 1:
        size, units = size / _STEP, units[1:]
    return f"{size:.1f}".removesuffix(".0") + f" {units[0]}"


def _pour(
    read: int, write: int, most_bytes: int, on_bytes: Callable[[int], None]
) -> tuple[str, int]:
    """Stops where there is more: a file that grows would fill more space than there is for it."""
    digest, size_bytes = hashlib.sha256(), 0
    while chunk := os.read(read, _CHUNK_BYTES):
        digest.update(chunk)
        size_bytes += len(chunk)
        if size_bytes > most_bytes:
            break
        if chunk == _NOTHING[: len(chunk)]:
            os.lseek(write, len(chunk), os.SEEK_CUR)
        else:
            left = memoryview(chunk)
            while left:
                left = left[os.write(write, left) :]
        on_bytes(len(chunk))
        reach("stage.piece")
    return digest.hexdigest(), size_bytes


def version(found: os.stat_result) -> tuple[int, int, int]:
    """What is another where a file has changed."""
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _gone(path: str, error: OSError) -> Exception:
    if error.errno in (errno.ENOENT, errno.ESTALE):
        return StageError(f"{path!a} vanished while it was copied")
    if error.errno == errno.ELOOP:
        return StageError(f"{path!a} changed while it was copied")
    return error
