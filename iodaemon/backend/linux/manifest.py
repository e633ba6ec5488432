"""What a step of staging has copied, one line each, so that it can go on where it ended.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from typing import Final, NamedTuple

FILE: Final = "file"
LINK: Final = "link"
DIRECTORY: Final = "directory"
_CHUNK_BYTES: Final = 1 << 20
_WHOLE: Final = b"true"
"""The last line of a step that has done all."""
_LOOK_S: Final = 0.02


class Copied(NamedTuple):
    """One file, link or directory that is at its place.

    Attributes:
        name: below the top.
        size_bytes: of source and copy.
        mtime_ns: of the copy, and of a file's source.
        digest: SHA-256 of what was read of a file.
        ctime_ns: of the copy when it was done, by the kernel's clock: any change changes it.
        place: which of several targets has it; directories are in all.
        kind: which of the three.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    digest: str
    ctime_ns: int
    place: int
    kind: str = FILE


class Manifest:
    """The file, open; only appended to. A line that a death cut short counts for nothing.

    Attributes:
        copied: by name.
        is_whole: the step has done all.
    """

    def __init__(self, fd: int) -> None:
        """Read what is there.

        Args:
            fd: open for reading and appending.
        """
        self._fd = fd
        self.copied: dict[str, Copied] = {}
        self.is_whole = False
        self._is_cut = False
        os.lseek(fd, 0, os.SEEK_SET)
        data = b""
        while chunk := os.read(fd, _CHUNK_BYTES):
            *lines, data = (data + chunk).split(b"\n")
            for line in lines:
                self._take(line)
        self._is_cut = bool(data)

    def close(self) -> None:
        """Nothing more is noted; another process may go on with the step."""
        os.close(self._fd)

    def add(self, *copied: Copied) -> None:
        """Note them, in one write.

        Raises:
            OSError: the disk that it is on is full.
        """
        self._write(b"".join(json.dumps(each).encode() + b"\n" for each in copied))
        self.copied.update({each.name: each for each in copied})
        self.is_whole = False

    def complete(self) -> None:
        """Note that all is copied; it is on the disk on return.

        Raises:
            OSError: the disk that it is on is full.
        """
        self._write(_WHOLE + b"\n")
        os.fsync(self._fd)
        self.is_whole = True

    def _write(self, data: bytes) -> None:
        data = b"\n" * self._is_cut + data
        self._is_cut = True
        while data:
            data = data[os.write(self._fd, data) :]
        self._is_cut = False

    def has(self, name: str, found: os.stat_result, place: int) -> bool:
        """Whether a file or link is as it was when it was copied; of a directory: that it was.

        Args:
            name: below the top.
            found: what it is now.
            place: which of several targets has it.
        """
        known = self.copied.get(name)
        if known is None or known.kind != kind_of(found):
            return False
        # The kernel's clock may stand still between the copying and a change, not both times.
        was = (known.size_bytes, known.mtime_ns, known.ctime_ns, known.place)
        is_now = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, place)
        return known.kind == DIRECTORY or was == is_now

    def _take(self, line: bytes) -> None:
        self.is_whole = line == _WHOLE
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            copied = Copied(*json.loads(line))
            self.copied[copied.name] = copied


def kind_of(found: os.stat_result) -> str:
    """One of the three; empty for what is not copied: sockets, pipes, devices."""
    kinds = {stat.S_IFREG: FILE, stat.S_IFLNK: LINK, stat.S_IFDIR: DIRECTORY}
    return kinds.get(stat.S_IFMT(found.st_mode), "")


def open_manifest(directory: str, step: str) -> int:
    """The file of a step in the job's own directory, for a process that will not be able to."""
    return _open(directory, step, os.O_RDWR | os.O_CREAT | os.O_APPEND)


def read_manifest(directory: str, step: str) -> Manifest | None:
    """What a step has copied, to be looked at; None: there was no such step.

    Raises:
        OSError: it cannot be read.
    """
    try:
        fd = _open(directory, step, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return Manifest(fd)
    finally:
        os.close(fd)


def try_lock(book: int, patience_s: float = 0.0) -> bool:
    """Whether this process alone may go on with the step now; until the descriptor is closed.

    Args:
        book: open manifest of the step.
        patience_s: for so long another one may still have it, who is ending.
    """
    until_s = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(book, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(_LOOK_S)
        else:
            return True


def is_unfinished(directory: str, step: str) -> bool:
    """Whether the step was begun, and not all of it done."""
    return _read_end(directory, step) not in (None, _WHOLE + b"\n")


def is_whole(directory: str, step: str) -> bool:
    """Whether all of the step is done; it is on the disk then."""
    return _read_end(directory, step) == _WHOLE + b"\n"


def _read_end(directory: str, step: str) -> bytes | None:
    """Where the line would be that says so; None: the step was not begun."""
    try:
        with open(_open(directory, step, os.O_RDONLY), "rb") as file:
            file.seek(-min(len(_WHOLE) + 1, os.fstat(file.fileno()).st_size), os.SEEK_END)
            return file.read()
    except FileNotFoundError:
        return None


def is_at_work(directory: str, step: str) -> bool:
    """Whether a process goes on with the step now."""
    try:
        fd = _open(directory, step, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(fd)
    finally:
        os.close(fd)


def _open(directory: str, step: str, flags: int) -> int:
    """The step's file, which is a regular one: no link is followed, no pipe waited for.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    path = os.path.join(directory, _name(step))
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, f"{path} is no regular file")


def _name(step: str) -> str:
    return f"stage-{step}.manifest"
