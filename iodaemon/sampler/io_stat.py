"""io.stat of a cgroup: what its processes, those that ended as well, moved on each block device.

cgroup v2 with the io controller, Linux 4.5 and newer; discards since Linux 4.19.
Documentation/admin-guide/cgroup-v2.rst, section "IO Interface Files". Counted when the device is
given the request: pages that are written back are charged to the cgroup that made them dirty
(ext2, ext4, btrfs, f2fs, xfs). Each layer counts for itself (a disk, the md array on it, the LVM
volume on that), so only leaf disks may be summed. Network filesystems have no device.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, as_bytes, whole_lines

_NUMBER: Final = re.compile(rb"\d+:\d+")
_FIELDS: Final = {
    b"rbytes": "read_bytes",
    b"wbytes": "written_bytes",
    b"rios": "reads",
    b"wios": "writes",
}
_CGROUP_ROOT: Final = Path("sys/fs/cgroup")


class IoStat(msgspec.Struct, frozen=True, kw_only=True):
    """One device's share, since the cgroup was made.

    Attributes:
        read_bytes: read from it.
        written_bytes: written to it.
        reads: requests to read.
        writes: requests to write.
    """

    read_bytes: int = 0
    written_bytes: int = 0
    reads: int = 0
    writes: int = 0


def parse_io_stat(text: bytes | str) -> dict[str, IoStat]:
    """What an io.stat says, by ``major:minor``.

    Some kernels name a device of which there is nothing to say without ending its line, so that
    the next one follows in the same (Linux 5.10); it then has zeros.

    Raises:
        NoData: it names no device; an empty one is that of a cgroup without any I/O.
    """
    devices: dict[str, dict[str, int]] = {}
    for line in whole_lines(as_bytes(text)):
        values: dict[str, int] | None = None
        for word in line.split():
            name, equals, digits = word.partition(b"=")
            if not equals and _NUMBER.fullmatch(word):
                values = devices.setdefault(word.decode(), {})
            elif values is not None and name in _FIELDS and digits.isdigit():
                values[_FIELDS[name]] = int(digits)
    if not devices:
        raise NoData("io_stat: no device")
    return {number: IoStat(**values) for number, values in devices.items()}


class Sampler:
    """Reads a cgroup's io.stat.

    Args:
        root: ``/``, or a directory that looks like it.
        cgroup: the cgroup's directory below root.
    """

    def __init__(self, root: Path, *, cgroup: Path = _CGROUP_ROOT) -> None:
        self._file = KeptFile(root / cgroup / "io.stat")

    def read(self) -> dict[str, IoStat]:
        """The devices now.

        Raises:
            NoData: no such file, or the cgroup is gone.
        """
        text = self._file.read()
        return parse_io_stat(text) if text.strip() else {}

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
