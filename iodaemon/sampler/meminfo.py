"""/proc/meminfo: memory of the machine, and page cache on its way to the disk.

Linux 2.6 and newer; MemAvailable since Linux 3.14. Documentation/filesystems/proc.rst, man
proc_meminfo(5).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, as_bytes, whole_lines

_KB_BYTES: Final = 1024
"""What the file calls kB (man proc_meminfo(5))."""


class Meminfo(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges of the whole machine.

    Attributes:
        total_bytes: usable memory (MemTotal).
        available_bytes: can be had without swapping (MemAvailable); None before Linux 3.14.
        dirty_bytes: page cache waiting to be written (Dirty).
        writeback_bytes: page cache being written (Writeback).
    """

    total_bytes: int
    dirty_bytes: int
    writeback_bytes: int
    available_bytes: int | None = None


def parse_meminfo(text: bytes | str) -> Meminfo:
    """The gauges in a /proc/meminfo.

    Raises:
        NoData: MemTotal, Dirty or Writeback is missing, as in a text that is cut short.
    """
    values: dict[bytes, int] = {}
    for line in whole_lines(as_bytes(text)):
        name, _, rest = line.partition(b":")
        words = rest.split()
        if len(words) == 2 and words[0].isdigit():
            values[name] = int(words[0]) * _KB_BYTES
    try:
        return Meminfo(
            total_bytes=values[b"MemTotal"],
            dirty_bytes=values[b"Dirty"],
            writeback_bytes=values[b"Writeback"],
            available_bytes=values.get(b"MemAvailable"),
        )
    except KeyError as error:
        raise NoData(f"meminfo: no line {error.args[0].decode()}") from error


class Sampler:
    """Reads /proc/meminfo.

    Args:
        root: ``/``, or a directory that looks like it.
    """

    def __init__(self, root: Path) -> None:
        self._file = KeptFile(root / "proc/meminfo")

    def read(self) -> Meminfo:
        """The gauges now.

        Raises:
            NoData: no such file.
        """
        return parse_meminfo(self._file.read_record())

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
