"""Which mounts a job's open files are on, as lines of mountinfo.

The daemon finds the disks below them (``devices.find_mount_devices``). The kernel answers
/proc/PID/fdinfo/FD with its ``mnt_id`` (Linux 3.15; man proc_pid_fdinfo(5)) and mountinfo from its
memory. The files themselves are never touched: a stat of one may wait for its server, for ever.

1. A job's open files count, without directories and descriptors 0, 1 and 2: the place of its
   output is not the place of its data.
2. If nothing else is open, 0, 1 and 2 count, as in ``sort < in > out``.
3. If those are no files either, the working directory counts.

Sockets, pipes and files in memory are on no disk. Files that were mapped and then closed are not
found: the list of mappings is long, and most of it is the program itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from iodaemon.errors import NoData
from iodaemon.node.sampler.job_io import Position, SilentError
from iodaemon.node.sampler.proc_files import (
    find_mount,
    known,
    parse_mount,
    read_file,
    whole_lines,
)

MOST_DESCRIPTORS: Final = 64
"""In one look at a job."""
MOST_PROCESSES: Final = 8
"""In one look at a job, the oldest: a pool of workers has the same files open."""
MOST_JOBS: Final = 8
"""In one sweep, about, in turn; 65 us each."""
PERIOD: Final = 4
"""The least number of sweeps between two looks at a job."""
_MOST_TABLES: Final = 8
"""Kept mount tables, one for each recent namespace."""
MOST_TABLE_BYTES: Final = 1 << 20
"""About 8,000 mounts. A job can make 100,000 in its own namespace, which take 1.9 s; the disks of a
job with more are unknown."""
_LAST_STANDARD: Final = 2
_FDINFO: Final = re.compile(rb"^flags:\s*(\d+)$.*?^mnt_id:\s*(\d+)$", re.MULTILINE | re.DOTALL)
_NO_PLACE: Final = frozenset(
    {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "devpts", "mqueue", "proc", "sysfs", "cgroup"}
    | {"cgroup2", "debugfs", "tracefs", "bpf", "securityfs", "configfs"}
)
"""Filesystems whose files are no data."""


class OpenFiles:
    """Looks at the open files of jobs.

    The kernel reuses the numbers of mounts, so each number belongs to the text of one table.
    """

    def __init__(self, root: Path, position: Position) -> None:
        self._proc = f"{root}/proc"
        self._position = position
        self._parse = lru_cache(_MOST_TABLES)(_Table)
        self._tables: dict[str, _Table] = {}

    def begin(self) -> None:
        """Begin a sweep: mounts may have changed."""
        self._tables.clear()

    def look(self, members: Sequence[int]) -> list[str] | None:
        """The mounts of one job now, or None if it is gone or may not be read."""
        left = MOST_DESCRIPTORS
        data: set[bytes] = set()
        words: set[bytes] = set()
        places: set[bytes] = set()
        is_known = False
        for pid in members[:MOST_PROCESSES]:
            try:
                table = self._find_table(pid)
                mounts = self._find_mounts(pid, left)
                found = {number: table.find(mount_id) for number, mount_id in mounts.items()}
                if not (data or words or any(found.values())):
                    places |= table.find_at(self._read_link(pid, "cwd"))
            except (NoData, OSError, SilentError):  # it is gone, or another user's
                continue
            is_known = True
            left -= len(mounts)
            for number, line in found.items():
                into = words if number <= _LAST_STANDARD else data
                into |= line
        return [line.decode("latin-1") for line in data or words or places] if is_known else None

    def _find_table(self, pid: int) -> _Table:
        """The mounts of its namespace, which are read once in a sweep."""
        namespace = self._read_link(pid, "ns/mnt")
        if namespace not in self._tables:
            text = read_file(f"{self._proc}/{pid}/mountinfo", MOST_TABLE_BYTES)
            self._tables[namespace] = self._parse(text)
        return self._tables[namespace]

    def _find_mounts(self, pid: int, most: int) -> dict[int, int]:
        """The mount of each of the first descriptors, without directories."""
        found = {}
        directory = f"{self._proc}/{pid}/fdinfo"
        for number in sorted(map(int, os.listdir(directory)))[:most]:
            said = known(f"{directory}/{number}", _FDINFO.search)
            if said is not None and not int(said[1], 8) & os.O_DIRECTORY:
                found[number] = int(said[2])
        return found

    def _read_link(self, pid: int, name: str) -> str:
        self._position.enter(pid)
        return os.readlink(f"{self._proc}/{pid}/{name}")


class _Table:
    """The mounts of one namespace, by number."""

    def __init__(self, text: bytes) -> None:
        parsed = ((parse_mount(line), line) for line in whole_lines(text))
        self._mounts = {mount.mount_id: (mount, line) for mount, line in parsed if mount}

    def find(self, mount_id: int) -> set[bytes]:
        """The mount's line, or nothing for a pipe, a socket, memory or /proc."""
        mount, line = self._mounts.get(mount_id, (None, b""))
        return set() if mount is None or mount.filesystem in _NO_PLACE else {line}

    def find_at(self, path: str) -> set[bytes]:
        """The same for the mount of a path without links."""
        mount = find_mount([mount for mount, _ in self._mounts.values()], path)
        return set() if mount is None else self.find(mount.mount_id)
