"""What a step of staging has copied, one line a file, so that it can go on where it ended.

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Final, NamedTuple

_CHUNK_BYTES: Final = 1 << 20


class Copied(NamedTuple):
    """One file that is at its place.

    Attributes:
        name: below the top.
        size_bytes: of source and copy.
        mtime_ns: of source and copy.
        digest: SHA-256 of what was read.
        ctime_ns: of the copy when it was done, by the kernel's clock: any change changes it.
        place: which of several targets has it.
    """

    name: str
    size_bytes: int
    mtime_ns: int
    digest: str
    ctime_ns: int
    place: int


class Manifest:
    """The file, open; only appended to. A line that a death cut short counts for nothing."""

    def __init__(self, fd: int) -> None:
        """Read what is there.

        Args:
            fd: open for reading and appending.
        """
        self._fd = fd
        self.copied: dict[str, Copied] = {}
        self._is_cut = False
        os.lseek(fd, 0, os.SEEK_SET)
        data = b""
        while chunk := os.read(fd, _CHUNK_BYTES):
            *lines, data = (data + chunk).split(b"\n")
            for line in lines:
                self._take(line)
        self._is_cut = bool(data)

    def add(self, *copied: Copied) -> None:
        """Note them, in one write.

        Raises:
            OSError: the disk that it is on is full.
        """
        lines = [json.dumps(each) for each in copied]
        text = "\n" * self._is_cut + "".join(f"{line}\n" for line in lines)
        data = text.encode()
        self._is_cut = True
        while data:
            data = data[os.write(self._fd, data) :]
        self._is_cut = False
        self.copied.update({each.name: each for each in copied})

    def has(self, name: str, found: os.stat_result, place: int) -> bool:
        """Whether a file is as it was when it was copied.

        Args:
            name: below the top.
            found: what it is now.
            place: which of several targets has it.
        """
        known = self.copied.get(name)
        is_now = (found.st_size, found.st_ctime_ns, place)
        return known is not None and (known.size_bytes, known.ctime_ns, known.place) == is_now

    def _take(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, TypeError):
            copied = Copied(*json.loads(line))
            self.copied[copied.name] = copied


def open_manifest(directory: str, step: str) -> int:
    """The file of a step in the job's own directory, for a process that will not be able to."""
    path = os.path.join(directory, _name(step))
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def read_manifest(directory: str, step: str) -> Manifest | None:
    """What a step has copied, to be looked at; None: there was no such step.

    Raises:
        OSError: it cannot be read.
    """
    try:
        fd = os.open(os.path.join(directory, _name(step)), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return Manifest(fd)
    finally:
        os.close(fd)


def _name(step: str) -> str:
    return f"stage-{step}.manifest"
