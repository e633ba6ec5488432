"""Which of the devices that io.stat names are leaf disks, and what a job moved on those."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from iodaemon.backend.linux import block
from iodaemon.core.platform import DeviceId
from iodaemon.sampler.io_stat import parse_io_stat


class Leaves:
    """Looks numbers up in sysfs, each once; a number that means nothing yet is asked again.

    Args:
        root: ``/``, or a directory that looks like it.
        known: names that count besides: loop devices below which no disk is to be seen.
    """

    def __init__(self, root: Path, known: Collection[DeviceId] = ()) -> None:
        self._root = root
        self._known = frozenset(known)
        self._is_leaf: dict[str, bool] = {}

    def sum(self, record: bytes) -> tuple[int, int]:
        """Bytes read and written on leaf disks: what lies upon them would count twice.

        Args:
            record: an io.stat; an empty one is of a cgroup that moved nothing yet.
        """
        read_bytes = written_bytes = 0
        for number, stat in parse_io_stat(record).items() if record.strip() else ():
            if self._look_up(number):
                read_bytes += stat.read_bytes
                written_bytes += stat.written_bytes
        return read_bytes, written_bytes

    def _look_up(self, number: str) -> bool:
        if (is_leaf := self._is_leaf.get(number)) is not None:
            return is_leaf
        directory = block.find_directory(self._root, number)
        if directory is None:
            return False
        is_leaf = block.device_id(directory) in self._known or block.is_disk(directory)
        self._is_leaf[number] = is_leaf
        return is_leaf
