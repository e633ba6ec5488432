"""Which disks a job's open files lie on: descriptors, the mounts these are on, the disks below.

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
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from iodaemon.core.job import JobId
from iodaemon.core.platform import DeviceId
from iodaemon.errors import NoData
from iodaemon.node.devices import find_mount_devices
from iodaemon.node.sampler.kernel_file import KeptFile
from iodaemon.node.sampler.proc_files import Mount, find_mount, parse_mountinfo
from iodaemon.node.sampler.reader_thread import Position, SilentError

MOST_DESCRIPTORS: Final = 64
"""Looked at for one job at one time."""
MOST_PROCESSES: Final = 8
"""Of one job, the oldest: a pool of workers has the same files open."""
MOST_JOBS: Final = 8
"""Looked at in one slice, those longest not looked at first; 65 us each, measured."""
PERIOD: Final = 4
"""Slices from one look at a job to the next, at least."""
LOOKS: Final = 2
"""What was open at any of the last so many looks counts: programs close and reopen."""
_MOST_TABLES: Final = 8
"""Mount tables that are kept, one for each namespace seen lately."""
MOST_TABLE_BYTES: Final = 1 << 20
"""Of a namespace's mounts, some 8,000; a job may make 100,000 of them in its own, which take 1.9 s.
Where a job with more has files open is not known."""
_LAST_STANDARD: Final = 2
_NO_PLACE: Final = frozenset(
    {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "devpts", "mqueue", "proc", "sysfs", "cgroup"}
    | {"cgroup2", "debugfs", "tracefs", "bpf", "securityfs", "configfs"}
)
"""Filesystems whose files are no data."""

Devices = tuple[DeviceId, ...]
Members = Callable[[], Iterable[int]]


class OpenFiles:
    """Looks at jobs' open files, every few slices, at a bounded cost.

    Invariant: what is kept of a mount belongs to the table that it was read from; the number of a
    mount that is gone is used again, in another table.
    """

    def __init__(self, root: Path, position: Position | None = None) -> None:
        """Use ``/``, or a directory that looks like it; ``position`` tells what is looked at."""
        self._root = root
        self._position = Position() if position is None else position
        self._slice = 0
        self._looked_at: dict[JobId, int] = {}
        self._seen: dict[JobId, tuple[frozenset[DeviceId] | None, ...]] = {}
        self._tables: OrderedDict[bytes, _Table] = OrderedDict()
        self._of_namespace: dict[str, _Table] = {}

    def read(self, jobs: Mapping[JobId, Members]) -> dict[JobId, Devices | None]:
        """The devices of each job; None while they are unknown.

        Args:
            jobs: how to list the processes of every job that runs now.
        """
        self._slice += 1
        self._of_namespace.clear()
        for gone in [job_id for job_id in self._looked_at if job_id not in jobs]:
            del self._looked_at[gone]
            self._seen.pop(gone, None)
        due = [i for i in jobs if self._slice - self._looked_at.get(i, -PERIOD) >= PERIOD]
        due.sort(key=lambda job_id: (self._looked_at.get(job_id, -PERIOD), job_id))
        for job_id in due[:MOST_JOBS]:
            self._looked_at[job_id] = self._slice
            self._position.job = job_id
            found = self._look(jobs[job_id])
            self._seen[job_id] = (found, *self._seen.get(job_id, ()))[:LOOKS]
        return {job_id: _join(self._seen.get(job_id, ())) for job_id in jobs}

    def _look(self, members: Members) -> frozenset[DeviceId] | None:
        """The devices of one job now; None: it is gone, or may not be looked at."""
        try:
            pids = list(islice(members(), MOST_PROCESSES))
        except NoData:
            return None
        left = MOST_DESCRIPTORS
        data: set[Devices] = set()
        words: set[Devices] = set()
        places: set[Devices] = set()
        is_known = False
        for pid in pids:
            try:
                table = self._table(pid)
                mounts = _open_mounts(self._root, pid, left)
                if not (data or words or any(map(table.devices, mounts.values()))):
                    places |= _only(table.devices_at(self._read_link(pid, "cwd")))
            except (NoData, OSError, SilentError):  # it is gone, or another user's
                continue
            is_known = True
            left -= len(mounts)
            for number, mount_id in mounts.items():
                into = words if number <= _LAST_STANDARD else data
                into |= _only(table.devices(mount_id))
        if not is_known:
            return None
        return frozenset(device for group in data or words or places for device in group)

    def _table(self, pid: int) -> _Table:
        """The mounts that this process sees; read once a slice for all of its namespace."""
        namespace = self._read_link(pid, "ns/mnt")
        if namespace not in self._of_namespace:
            file = KeptFile(f"{self._root}/proc/{pid}/mountinfo")
            try:
                text = file.read(MOST_TABLE_BYTES)
            finally:
                file.close()
            if text not in self._tables:
                self._tables[text] = _Table(self._root, parse_mountinfo(text))
            self._tables.move_to_end(text)
            while len(self._tables) > _MOST_TABLES:
                self._tables.popitem(last=False)
            self._of_namespace[namespace] = self._tables[text]
        return self._of_namespace[namespace]

    def _read_link(self, pid: int, name: str) -> str:
        """A process that hangs in execve(2) does not answer."""
        self._position.enter(pid)
        try:
            return os.readlink(f"{self._root}/proc/{pid}/{name}")
        finally:
            self._position.leave()


class _Table:
    """The mounts of one namespace, and the disks below those that were asked for."""

    def __init__(self, root: Path, mounts: tuple[Mount, ...]) -> None:
        self._root = root
        self._mounts = mounts
        self._by_id = {mount.mount_id: mount for mount in mounts}
        self._devices: dict[int, Devices] = {}

    def devices(self, mount_id: int) -> Devices | None:
        """Leaf disks below the mount; None where no data lies: a pipe, a socket, memory, /proc."""
        mount = self._by_id.get(mount_id)
        if mount is None or mount.filesystem in _NO_PLACE:
            return None
        if mount_id not in self._devices:
            below = find_mount_devices(mount, self._mounts, self._root)
            self._devices[mount_id] = tuple(device.id for device in below.devices)
        return self._devices[mount_id]

    def devices_at(self, path: str) -> Devices | None:
        """The same for the mount that a path without links is on."""
        mount = find_mount(self._mounts, path)
        return None if mount is None else self.devices(mount.mount_id)


def _only(devices: Devices | None) -> set[Devices]:
    return set() if devices is None else {devices}


def _join(looks: Iterable[frozenset[DeviceId] | None]) -> Devices | None:
    known = [look for look in looks if look is not None]
    return tuple(sorted(frozenset().union(*known))) if known else None


def _open_mounts(root: Path, pid: int, most: int) -> dict[int, int]:
    """The mount of every descriptor that is not a directory's, the first so many of them."""
    numbers = sorted(int(name) for name in os.listdir(f"{root}/proc/{pid}/fdinfo"))
    found = ((number, _find_mount_id(root, pid, number)) for number in numbers[:most])
    return {number: mount_id for number, mount_id in found if mount_id is not None}


def _find_mount_id(root: Path, pid: int, number: int) -> int | None:
    """The mount of a descriptor; None for a directory's, and for one closed meanwhile."""
    file = KeptFile(f"{root}/proc/{pid}/fdinfo/{number}")
    try:
        lines = file.read_record().splitlines()
    except NoData:
        return None
    finally:
        file.close()
    fields = {words[0]: words[1] for line in lines if len(words := line.split()) == 2}
    is_directory = int(fields.get(b"flags:", b"0"), 8) & os.O_DIRECTORY
    return None if is_directory or b"mnt_id:" not in fields else int(fields[b"mnt_id:"])
