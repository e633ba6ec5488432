"""/proc/PID/statm: memory of a process, in pages.

Linux 2.6 and newer. Documentation/filesystems/proc.rst, man proc_pid_statm(5). Values of a
process with many threads may be off by some pages a thread (the kernel sums them lazily).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, as_bytes, whole_lines

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
"""Size of a page of this machine."""


class Statm(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one process now.

    Attributes:
        size_bytes: address space.
        resident_bytes: in memory, shared pages included.
        shared_bytes: resident pages backed by a file or shared memory.
    """

    size_bytes: int
    resident_bytes: int
    shared_bytes: int


def parse_statm(text: bytes | str, *, page_bytes: int = PAGE_BYTES) -> Statm:
    """The sizes in a /proc/PID/statm.

    Raises:
        NoData: cut short or empty.
    """
    lines = whole_lines(as_bytes(text))
    words = lines[0].split() if lines else []
    try:
        size, resident, shared = (int(word) * page_bytes for word in words[:3])
    except ValueError as error:
        raise NoData("statm: not three numbers") from error
    return Statm(size_bytes=size, resident_bytes=resident, shared_bytes=shared)


class Sampler:
    """Reads one process's /proc/PID/statm.

    Args:
        root: ``/``, or a directory that looks like it.
        pid: the process; None: this one.
    """

    def __init__(self, root: Path, *, pid: int | None = None) -> None:
        self._file = KeptFile(root / "proc" / ("self" if pid is None else str(pid)) / "statm")

    def read(self) -> Statm:
        """The sizes now.

        Raises:
            NoData: the process is gone.
        """
        return parse_statm(self._file.read_record())

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
