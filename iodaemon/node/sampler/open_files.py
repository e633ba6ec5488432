"""Which mounts a job's open files are on, as lines of mountinfo.

The daemon finds the disks below (``devices.find_mount_devices``).
/proc/PID/fdinfo/FD has ``mnt_id`` (Linux 3.15; man proc_pid_fdinfo(5)) and is answered from the
kernel's memory, as is mountinfo. The files themselves are never looked at (a stat of one waits
for its server, for ever where that is gone).

1. Files that a job's processes have open count, directories and descriptors 0, 1 and 2 apart:
   where a job's words go is not where its data is.
2. Where nothing else is open 0, 1 and 2 count, as in ``sort < in > out``.
3. Where those are no files either, the working directory counts.

Sockets, pipes and files in memory are on no disk. Files that were mapped and then closed are not
seen: the list of mappings is long, and most of it is the program itself.
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
"""Looked at for one job at one time."""
MOST_PROCESSES: Final = 8
"""Of one job, the oldest: a pool of workers has the same files open."""
MOST_JOBS: Final = 8
"""Looked at in one sweep, about, in turn; 65 us each, measured."""
PERIOD: Final = 4
"""Sweeps from one look at a job to the next, at least."""
_MOST_TABLES: Final = 8
"""Mount tables that are kept, one for each namespace seen lately."""
MOST_TABLE_BYTES: Final = 1 << 20
"""Of a namespace's mounts, some 8,000; a job may make 100,000 of them in its own, which take 1.9 s.
Where a job with more has files open is not known."""
_LAST_STANDARD: Final = 2
_FDINFO: Final = re.compile(rb"^flags:\s*(\d+)$.*?^mnt_id:\s*(\d+)$", re.MULTILINE | re.DOTALL)
_NO_PLACE: Final = frozenset(
    {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "devpts", "mqueue", "proc", "sysfs", "cgroup"}
    | {"cgroup2", "debugfs", "tracefs", "bpf", "securityfs", "configfs"}
)
"""Filesystems whose files are no data."""


class OpenFiles:
    """Looks at the open files of jobs.

    What is kept of a mount belongs to the table that it was read from; the number of a mount that
    is gone is used again, in another table.

    Args:
        position: tells which process is looked at.
    """

    def __init__(self, root: Path, position: Position) -> None:
        self._proc = f"{root}/proc"
        self._position = position
        self._parse = lru_cache(_MOST_TABLES)(_Table)
        self._tables: dict[str, _Table] = {}

    def begin(self) -> None:
        """A sweep begins: mounts may be others than in the last one."""
        self._tables.clear()

    def look(self, members: Sequence[int]) -> list[str] | None:
        """The mounts of one job now; None: it is gone, or may not be looked at."""
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
        """The mounts that this process sees; read once a sweep for all of its namespace."""
        namespace = self._read_link(pid, "ns/mnt")
        if namespace not in self._tables:
            text = read_file(f"{self._proc}/{pid}/mountinfo", MOST_TABLE_BYTES)
            self._tables[namespace] = self._parse(text)
        return self._tables[namespace]

    def _find_mounts(self, pid: int, most: int) -> dict[int, int]:
        """The mount of each of the first so many descriptors that is not a directory's."""
        found = {}
        directory = f"{self._proc}/{pid}/fdinfo"
        for number in sorted(map(int, os.listdir(directory)))[:most]:
            said = known(f"{directory}/{number}", _FDINFO.search)
            if said is not None and not int(said[1], 8) & os.O_DIRECTORY:
                found[number] = int(said[2])
        return found

    def _read_link(self, pid: int, name: str) -> str:
        """A process that hangs in execve(2) does not answer."""
        self._position.enter(pid)
        return os.readlink(f"{self._proc}/{pid}/{name}")


class _Table:
    """The mounts of one namespace, by number."""

    def __init__(self, text: bytes) -> None:
        parsed = ((parse_mount(line), line) for line in whole_lines(text))
        self._mounts = {mount.mount_id: (mount, line) for mount, line in parsed if mount}

    def find(self, mount_id: int) -> set[bytes]:
        """The mount's line; none where no data lies: a pipe, a socket, memory, /proc."""
        mount, line = self._mounts.get(mount_id, (None, b""))
        return set() if mount is None or mount.filesystem in _NO_PLACE else {line}

    def find_at(self, path: str) -> set[bytes]:
        """The same for the mount that a path without links is on."""
        mount = find_mount([mount for mount, _ in self._mounts.values()], path)
        return set() if mount is None else self.find(mount.mount_id)
