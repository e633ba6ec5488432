"""/proc/diskstats: what each block device completed since boot.

Linux 2.6 and newer (11 fields after the name; 15 with discards since Linux 4.18, 17 with flushes
since Linux 5.5). Documentation/admin-guide/iostats.rst, Documentation/ABI/testing/procfs-diskstats.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Final

from iodaemon.core.platform import DeviceId
from iodaemon.core.sample import DeviceCounters
from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, as_bytes, whole_lines

_NAME_WORDS: Final = 3
"""Major, minor and name come before the fields."""
_FIELD_COUNTS: Final = (17, 15, 11)
"""Fields after the name, newest kernel first; a later kernel's further ones are not read."""


def parse_diskstats(
    text: bytes | str, wanted: Container[DeviceId] | None = None
) -> dict[DeviceId, DeviceCounters]:
    """The counters of each device, in the kernel's order; partitions are devices here too.

    A line that is cut short, or of a format with fewer than 11 fields (partitions before
    Linux 2.6.25), is left out.

    Args:
        text: the file.
        wanted: only these; None: all.

    Raises:
        NoData: no device in the whole text.
    """
    counters: dict[DeviceId, DeviceCounters] = {}
    any_device = False
    for line in whole_lines(as_bytes(text)):
        words = line.split(None, _NAME_WORDS)
        if len(words) <= _NAME_WORDS:
            continue
        device_id = DeviceId(words[2].decode(errors="surrogateescape"))
        if wanted is not None and device_id not in wanted:
            any_device = True
            continue
        fields = _parse_fields(words[_NAME_WORDS].split())
        if fields is not None:
            any_device = True
            counters[device_id] = _name_fields(fields)
    if not any_device:
        raise NoData("diskstats: no device in it")
    return counters


def _parse_fields(words: list[bytes]) -> list[int] | None:
    """All 17 fields, 0 where the kernel has none; None when it is no such line."""
    count = next((count for count in _FIELD_COUNTS if len(words) >= count), 0)
    if not count:
        return None
    try:
        fields = [int(word) for word in words[:count]]
    except ValueError:
        return None
    return fields + [0] * (_FIELD_COUNTS[0] - count)


def _name_fields(fields: list[int]) -> DeviceCounters:
    return DeviceCounters(
        reads=fields[0],
        reads_merged=fields[1],
        read_sectors=fields[2],
        read_ms=fields[3],
        writes=fields[4],
        writes_merged=fields[5],
        written_sectors=fields[6],
        write_ms=fields[7],
        in_flight=fields[8],
        busy_ms=fields[9],
        queue_ms=fields[10],
        discards=fields[11],
        discards_merged=fields[12],
        discarded_sectors=fields[13],
        discard_ms=fields[14],
        flushes=fields[15],
        flush_ms=fields[16],
    )


class Sampler:
    """Reads /proc/diskstats.

    Args:
        root: ``/``, or a directory that looks like it.
        wanted: only these devices; None: all.
    """

    def __init__(self, root: Path, *, wanted: Container[DeviceId] | None = None) -> None:
        self._file = KeptFile(root / "proc/diskstats")
        self._wanted = wanted

    def read(self) -> dict[DeviceId, DeviceCounters]:
        """The counters now.

        Raises:
            NoData: no such file (a container with ProcSubset=pid), or no device in it.
        """
        return parse_diskstats(self._file.read(), self._wanted)

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
