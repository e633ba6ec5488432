"""The counters of the machine and its disks, and of the memory that jobs share.

What fits into the machine may not fit into a container or a slice. What counts is the limit of the
cgroups below which all jobs run; a job's own limit (``--mem``) is shared with no other job. cgroup
v1: memory.limit_in_bytes and memory.usage_in_bytes
(Documentation/admin-guide/cgroup-v1/memory.rst); cgroup v2: memory.max, memory.high and
memory.current (Documentation/admin-guide/cgroup-v2.rst, Linux 4.5).
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from iodaemon.errors import NoData
from iodaemon.node.sampler.cgroup_files import parse_memory_stat
from iodaemon.node.sampler.proc_files import (
    PAGE_BYTES,
    KeptFile,
    Mount,
    parse_idle,
    parse_meminfo,
    parse_oom_kills,
    parse_pressure,
    parse_proc_cgroup,
    parse_refaults,
    read_mounts,
    read_seldom,
)

_T = TypeVar("_T")

_LIMITS_LOOK_S: Final = 10.0


class Available(NamedTuple):
    """Memory that jobs share: how much there is, what of it can be had, pages read again although
    they had been in memory (None: not known), and the cgroup of which that is told; empty: the
    machine.
    """

    memory_bytes: int | None
    available_bytes: int | None
    refaulted_pages: int | None = None
    group: str = ""


class SharedMemory:
    """The limit of the cgroups below which all jobs run, and what is left of it.

    Jobs inherit the cgroups of the supervisor, whose child the sampler is as well. In version 2
    each has one of its own below ``jobs``, where that can be made.

    Args:
        jobs: the cgroup of version 2 below which each job has its own; None: there is none.
    """

    def __init__(self, root: Path, jobs: str | None = None) -> None:
        self._usage = ""
        self._groups: dict[str, tuple[str, ...]] = {}
        """Their directories, and the names of the files with their limits."""
        self._limits: dict[str, int] = {}
        self._limits_due_s = -math.inf
        for mount in read_mounts(root):
            point = f"{os.fspath(root).rstrip('/')}{mount.mount_point}"
            if mount.filesystem == "cgroup" and "memory" in mount.options:
                self._usage = "memory.usage_in_bytes"
                groups = _find_groups(root, "memory", mount, point)
                self._groups = dict.fromkeys(groups, ("memory.limit_in_bytes",))
                return
            if mount.filesystem == "cgroup2" and not self._usage:
                self._usage = "memory.current"
                if jobs is not None and jobs.startswith(f"{point}/"):
                    groups = _up(jobs, point)
                else:
                    groups = _find_groups(root, "", mount, point)
                self._groups = dict.fromkeys(groups, ("memory.max", "memory.high"))

    def read(self, at_s: float, machine: Available) -> Available:
        """What there is at this time; ``machine`` is what the whole machine has."""
        if machine.memory_bytes is None:
            return machine
        if at_s >= self._limits_due_s:
            read = {group: _read_limit(group, names) for group, names in self._groups.items()}
            self._limits = {group: limit for group, limit in read.items() if limit is not None}
            self._limits_due_s = at_s + _LIMITS_LOOK_S
        limits = {g: limit for g, limit in self._limits.items() if limit < machine.memory_bytes}
        if not limits:
            return machine
        found = {group: _read_use(group, self._usage, limit) for group, limit in limits.items()}
        tightest = min(limits, key=lambda group: (limits[group], group))
        left = [machine.available_bytes, *(left for left, _ in found.values())]
        known = [each for each in left if each is not None]
        refaulted = found[tightest][1]
        return Available(
            memory_bytes=limits[tightest],
            available_bytes=min(known) if len(known) == len(left) else None,
            refaulted_pages=machine.refaulted_pages if refaulted is None else refaulted,
            group="" if refaulted is None else tightest,
        )


def _find_groups(root: Path, controller: str, mount: Mount, point: str) -> list[str]:
    """The directories of this process's cgroup and of all above it that can be seen from here."""
    try:
        path = parse_proc_cgroup(read_seldom(f"{root}/proc/self/cgroup"))[controller]
    except (NoData, OSError, KeyError):
        return []
    top = mount.subtree.rstrip("/")
    is_below = not path.startswith("/..") and f"{path}/".startswith(f"{top}/")
    return _up(f"{point}{path[len(top) :]}".rstrip("/"), point) if is_below else []


def _up(group: str, point: str) -> list[str]:
    groups = [group]
    while groups[-1] != point:
        groups.append(groups[-1].rpartition("/")[0])
    return groups


def _read_limit(group: str, names: Iterable[str]) -> int | None:
    """The cgroup's limit, bytes: the lowest of these files; None: it has none."""
    limits: list[int] = []
    for name in names:
        with contextlib.suppress(NoData, OSError, ValueError):  # "max" is no number
            limits.append(int(read_seldom(f"{group}/{name}")))
    return min(limits, default=None)


def _read_use(group: str, usage: str, limit_bytes: int) -> tuple[int | None, int | None]:
    """What is left of the limit when all page cache below it is given up, and pages that were read
    again; None: not known.
    """
    try:
        used_bytes = int(read_seldom(f"{group}/{usage}"))
        stat = parse_memory_stat(read_seldom(f"{group}/memory.stat"))
    except (NoData, OSError, ValueError):
        return None, None
    left = limit_bytes - used_bytes + stat.cache_bytes
    return max(0, min(limit_bytes, left)), stat.refaulted_pages


# -- the machine -----------------------------------------------------------------------------------

_LINE_BYTES: Final = 256
"""Room for the line of a CPU in /proc/stat: ten numbers of up to 20 digits, in practice less than
100 bytes."""


class NodeCountersReader:
    """Reads the counters of the machine.

    Args:
        root: where /proc and /sys are.
        cpus: of each partition, by its number; their idle time is wanted.
        jobs: as of ``SharedMemory``.
    """

    def __init__(
        self, root: Path, cpus: Mapping[str, Iterable[int]], jobs: str | None = None
    ) -> None:
        self._io_pressure = KeptFile(root / "proc/pressure/io")
        self._memory_pressure = KeptFile(root / "proc/pressure/memory")
        self._meminfo = KeptFile(root / "proc/meminfo")
        self._vmstat = KeptFile(root / "proc/vmstat")
        self._stat = KeptFile(root / "proc/stat")
        self._stat_bytes = _LINE_BYTES * (os.sysconf("SC_NPROCESSORS_CONF") + 1)
        self._memory = SharedMemory(root, jobs)
        self._cpus = {partition: frozenset(each) for partition, each in cpus.items()}
        self._idle_s: dict[int, float] = {}

    def read(self, at_s: float) -> dict[str, Any]:
        """Fields of ``core.sample.NodeCounters`` now; ``at_s`` is the present."""
        memory = _known(self._meminfo.read_record, parse_meminfo)
        pages = _known(self._vmstat.read_record, parse_refaults)
        machine = Available(None, None, pages)
        if memory is not None:
            machine = Available(memory.total_bytes, memory.available_bytes, pages)
        shared = self._memory.read(at_s, machine)
        pages = shared.refaulted_pages
        return {
            "io_stall_s": _known(self._io_pressure.read_record, parse_pressure),
            "memory_stall_s": _known(self._memory_pressure.read_record, parse_pressure),
            "dirty_bytes": None if memory is None else memory.dirty_bytes,
            "writeback_bytes": None if memory is None else memory.writeback_bytes,
            "available_bytes": shared.available_bytes,
            "memory_bytes": shared.memory_bytes,
            "refault_bytes": None if pages is None else pages * PAGE_BYTES,
            "refaults_of": shared.group,
            "idle_s": self._read_idle(),
        }

    def _read_idle(self) -> dict[str, float]:
        """Each CPU's is kept from going back, also while it is offline, when it has no line."""
        highest = self._idle_s
        if self._cpus:
            found = _known(lambda: self._stat.read_record(self._stat_bytes), parse_idle) or {}
            for cpu, idle_s in found.items():
                highest[cpu] = max(idle_s, highest.get(cpu, 0.0))
        return {
            partition: sum(highest[cpu] for cpu in cpus)
            for partition, cpus in self._cpus.items()
            if highest.keys() >= cpus
        }


def _known(read: Callable[[], bytes], parse: Callable[[bytes], _T]) -> _T | None:
    """What a file says; None: it does not exist, may not be read, or is cut short."""
    try:
        return parse(read())
    except (NoData, OSError):
        return None


# -- processes killed for memory -------------------------------------------------------------------

_KILLED_WITHIN_S: Final = 10.0
"""From the kill to the end of the process, at most: what it had is given back first, about 10 GB/s.
"""
_APART_S: Final = 5.0
"""Between two readings that are kept; one takes 0.05 to 0.3 ms."""
_KEPT_COUNTS: Final = 8
"""Readings: an end that is told half a minute late is placed as well."""


def count_oom_kills(path: str = "/proc/vmstat") -> int | None:
    """Processes of the machine that were killed for memory; None: the kernel does not say."""
    return _known(KeptFile(path).read, parse_oom_kills)


class OomKills:
    """Remembers how many processes of the machine were killed for memory, and when.

    The kernel does not say whose process it was: beside an end by a SIGKILL that was not sent from
    here it makes want of memory the probable cause.

    Args:
        read: the count now; None: the kernel does not say.
    """

    def __init__(self, read: Callable[[], int | None] = count_oom_kills) -> None:
        self._read = read
        self._readings: deque[tuple[float, int]] = deque(maxlen=_KEPT_COUNTS)

    def look(self, at_s: float) -> None:
        """Read the count, unless it was read just now."""
        if self._readings and at_s - self._readings[-1][0] < _APART_S:
            return
        if (count := self._read()) is not None:
            self._readings.append((at_s, count))

    def count(self, ended_s: float) -> int:
        """How many were killed from shortly before this time until now; 0: none, or not known."""
        before = [kills for at_s, kills in self._readings if at_s <= ended_s - _KILLED_WITHIN_S]
        first = [kills for at_s, kills in self._readings if at_s <= ended_s]
        now = self._read()
        if now is None or not first:
            return 0
        return max(0, now - (before[-1] if before else first[0]))
