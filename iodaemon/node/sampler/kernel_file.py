"""A kernel file that is read many times, and what its parsers have in common."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from iodaemon.errors import NoData

_RECORD_BYTES: Final = 4096
"""Room for a file that is one record; the longest, /proc/meminfo, has about 1.6 KiB in 6.18."""
_CHUNK_BYTES: Final = 8192
"""One read of a file of many records gives at most a page or so (fs/seq_file.c)."""
_GONE: Final = frozenset(
    {
        errno.ENOENT,  # no such file: process reaped, kernel without the feature
        errno.ENOTDIR,
        errno.ESRCH,  # the descriptor's process was reaped, whatever has its number now
        errno.ENODEV,  # the descriptor's cgroup was removed
        errno.EOPNOTSUPP,  # pressure accounting is switched off
    }
)


def as_bytes(text: bytes | str) -> bytes:
    """The text as the kernel wrote it."""
    return text.encode(errors="surrogateescape") if isinstance(text, str) else text


def whole_lines(text: bytes | str) -> list[bytes]:
    """The lines of a text, less a last one that is cut short (has no line feed)."""
    return as_bytes(text).split(b"\n")[:-1]


def find_count(text: bytes, name: bytes) -> int | None:
    """The number on the line ``NAME NUMBER``; None: there is no such line, or it is cut short.

    For long files of which few lines are wanted: the others are not parsed.
    """
    at = 0 if text.startswith(name + b" ") else text.find(b"\n" + name + b" ") + 1
    if at == 0 and not text.startswith(name + b" "):
        return None
    start = at + len(name) + 1
    end = text.find(b"\n", start)
    digits = text[start:end]
    return int(digits) if end > start and digits.isdigit() else None


def read_once(path: str, size: int = _RECORD_BYTES) -> bytes:
    """The text of a file that is one record and read seldom; as ``KeptFile.read_record``."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, size)
        finally:
            os.close(fd)
    except OSError as error:
        raise _judge(path, error) from error


def read_file(path: str, most_bytes: int | None = None) -> bytes:
    """The text of a file that is read seldom; as ``KeptFile.read``.

    Args:
        path: the file.
        most_bytes: more than that is NoData; None: any length.
    """
    file = KeptFile(path)
    try:
        return file.read(most_bytes)
    finally:
        file.close()


def _judge(path: str, error: OSError) -> Exception:
    return NoData(f"{path}: {os.strerror(error.errno)}") if error.errno in _GONE else error


class KeptFile:
    """A kernel file that is read again and again through one descriptor.

    pread at offset 0 makes the kernel write the file afresh (fs/seq_file.c); it costs 0.7 to
    1 us where open, read and close cost 2.1 to 3.5 us. A descriptor of /proc/PID/... stays with
    its process: once that is reaped a read fails (ESRCH), even when the number is used again.

    Invariant: the descriptor is open from the first successful read until the file is found
    gone or ``close``, or the object is collected.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path | str) -> None:
        self._fd: int | None = None
        self.path = os.fspath(path)

    def read_record(self, size: int = _RECORD_BYTES, offset: int = 0) -> bytes:
        """The file's text now, for a file that the kernel writes as one record (up to 4 KiB).

        Args:
            size: of the beginning that is wanted, where the record may be longer.
            offset: of the first byte.

        Raises:
            NoData: it does not exist (any more).
            PermissionError: it exists, but may not be read.
        """
        try:
            if self._fd is None:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._fd, size, offset)
        except OSError as error:
            if error.errno in _GONE:
                self.close()
            raise _judge(self.path, error) from error

    def read(self, most_bytes: int | None = None) -> bytes:
        """The file's text now, however many records long; as ``read_record``, and ``read_file``."""
        text = chunk = self.read_record(_CHUNK_BYTES)
        while chunk:
            text += (chunk := self.read_record(_CHUNK_BYTES, len(text)))
            if most_bytes is not None and len(text) > most_bytes:
                raise NoData(f"{self.path}: longer than {most_bytes} bytes")
        return text

    def close(self) -> None:
        """Close the descriptor; a later read opens the file anew."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
