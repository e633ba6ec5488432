"""The counters of the machine, and of the memory that jobs share.

What fits into the machine may not fit into a container or a slice. What counts is the limit of the
cgroups below which all jobs run; a job's own limit (``--mem``) is shared with no other job. cgroup
v1: memory.limit_in_bytes and memory.usage_in_bytes
(Documentation/admin-guide/cgroup-v1/memory.rst); cgroup v2: memory.max, memory.high and
memory.current (Documentation/admin-guide/cgroup-v2.rst, Linux 4.5).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from iodaemon.errors import NoData
from iodaemon.node.sampler.cgroup_files import parse_memory_stat
from iodaemon.node.sampler.proc_files import (
    PAGE_BYTES,
    Mount,
    known,
    parse_idle,
    parse_meminfo,
    parse_pressure,
    parse_proc_cgroup,
    parse_refaults,
    read_file,
    read_mounts,
    read_record,
)

_LIMITS_V1: Final[Sequence[str]] = ("memory.limit_in_bytes",)
_LIMITS_V2: Final[Sequence[str]] = ("memory.max", "memory.high")


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
        self._limits, self._usage = _LIMITS_V2, "memory.current"
        self._groups: list[str] = []
        for mount in read_mounts(root):
            point = f"{os.fspath(root).rstrip('/')}{mount.mount_point}"
            if mount.filesystem == "cgroup" and "memory" in mount.options:
                self._limits, self._usage = _LIMITS_V1, "memory.usage_in_bytes"
                self._groups = _find_groups(root, "memory", mount, point)
                return
            if mount.filesystem == "cgroup2" and not self._groups:
                is_above = jobs is not None and jobs.startswith(f"{point}/")
                self._groups = (
                    _up(jobs, point)
                    if jobs is not None and is_above
                    else _find_groups(root, "", mount, point)
                )

    def read(self, machine: Available) -> Available:
        """What there is now; ``machine`` is what the whole machine has."""
        if machine.memory_bytes is None:
            return machine
        read = {group: _read_limit(group, self._limits) for group in self._groups}
        limits = {
            group: limit
            for group, limit in read.items()
            if limit is not None and limit < machine.memory_bytes
        }
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
        path = parse_proc_cgroup(read_file(root / "proc/self/cgroup"))[controller]
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
            limits.append(int(read_record(f"{group}/{name}")))
    return min(limits, default=None)


def _read_use(group: str, usage: str, limit_bytes: int) -> tuple[int | None, int | None]:
    """What is left of the limit when all page cache below it is given up, and pages that were read
    again; None: not known.
    """
    try:
        used_bytes = int(read_record(f"{group}/{usage}"))
        stat = parse_memory_stat(read_file(f"{group}/memory.stat"))
    except (NoData, OSError, ValueError):
        return None, None
    left = limit_bytes - used_bytes + stat.cache_bytes
    return max(0, min(limit_bytes, left)), stat.refaulted_pages


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
        self._proc = f"{os.fspath(root).rstrip('/')}/proc"
        self._memory = SharedMemory(root, jobs)
        self._cpus = {partition: frozenset(each) for partition, each in cpus.items()}
        self._idle_s: dict[int, float] = {}

    def read(self) -> dict[str, Any]:
        """Fields of ``core.sample.NodeCounters`` now."""
        memory = known(f"{self._proc}/meminfo", parse_meminfo)
        pages = known(f"{self._proc}/vmstat", parse_refaults)  # they stand in its first page
        machine = Available(None, None, pages)
        if memory is not None:
            machine = Available(memory.total_bytes, memory.available_bytes, pages)
        shared = self._memory.read(machine)
        pages = shared.refaulted_pages
        return {
            "io_stall_s": known(f"{self._proc}/pressure/io", parse_pressure),
            "memory_stall_s": known(f"{self._proc}/pressure/memory", parse_pressure),
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
            for cpu, idle_s in (known(f"{self._proc}/stat", parse_idle, read_file) or {}).items():
                highest[cpu] = max(idle_s, highest.get(cpu, 0.0))
        return {
            partition: sum(highest[cpu] for cpu in cpus)
            for partition, cpus in self._cpus.items()
            if highest.keys() >= cpus
        }
