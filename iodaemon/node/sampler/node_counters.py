"""The counters of the machine, and of the memory that jobs share.

In a container or a slice the cgroups above all jobs limit that memory: memory.limit_in_bytes of
version 1 (Documentation/admin-guide/cgroup-v1/memory.rst), memory.max and memory.high of version 2
(Documentation/admin-guide/cgroup-v2.rst, Linux 4.5). A job's own limit (``--mem``) is not shared.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from iodaemon.errors import NoData
from iodaemon.node.sampler.proc_files import (
    PAGE_BYTES,
    Meminfo,
    Mount,
    known,
    parse_idle,
    parse_meminfo,
    parse_memory_stat,
    parse_pressure,
    parse_proc_cgroup,
    parse_refaults,
    read_file,
    read_mounts,
)
from iodaemon.supervisor.reap import read_small

_FILES_V1: Final = ("memory.usage_in_bytes", "memory.limit_in_bytes")
_FILES_V2: Final = ("memory.current", "memory.max", "memory.high")
"""The file of the usage, and those of the limits."""


class NodeCountersReader:
    """Reads the counters of the machine.

    Args:
        cpus: the CPUs of each partition, for its idle time.
        jobs: the parent of the jobs' cgroups of version 2. Without one jobs inherit the cgroups of
            the supervisor, as the sampler does.
    """

    def __init__(
        self, root: Path, cpus: Mapping[str, Iterable[int]], jobs: str | None = None
    ) -> None:
        self._proc = f"{os.fspath(root).rstrip('/')}/proc"
        self._groups, (self._usage, *self._limits) = _find_groups(root, jobs)
        self._cpus = {partition: frozenset(each) for partition, each in cpus.items()}
        self._idle_s: dict[int, float] = {}

    def read(self) -> dict[str, Any]:
        """Fields of ``core.sample.NodeCounters`` now."""
        memory = known(f"{self._proc}/meminfo", parse_meminfo)
        pages = known(f"{self._proc}/vmstat", parse_refaults)  # they stand in its first page
        total = available = group = None
        if memory is not None:
            total, available, pages, group = self._read_shared(memory, pages)
        return {
            "io_stall_s": known(f"{self._proc}/pressure/io", parse_pressure),
            "memory_stall_s": known(f"{self._proc}/pressure/memory", parse_pressure),
            "dirty_bytes": None if memory is None else memory.dirty_bytes,
            "writeback_bytes": None if memory is None else memory.writeback_bytes,
            "available_bytes": available,
            "memory_bytes": total,
            "refault_bytes": None if pages is None else pages * PAGE_BYTES,
            "refaults_of": group or "",
            "idle_s": self._read_idle(),
        }

    def _read_shared(
        self, memory: Meminfo, pages: int | None
    ) -> tuple[int, int | None, int | None, str]:
        """The tightest limit above all jobs, else the machine.

        Returns:
            Memory, available memory, refaulted pages, and the cgroup of the latter (empty for the
            machine).
        """
        found = ((self._read_limit(group), group) for group in self._groups)
        limits = sorted(each for each in found if each[0] < memory.total_bytes)
        if not limits:
            return memory.total_bytes, memory.available_bytes, pages, ""
        uses = [self._read_use(group, limit_bytes) for limit_bytes, group in limits]
        left = [memory.available_bytes, *(left_bytes for left_bytes, _ in uses)]
        told = [each for each in left if each is not None]
        available = min(told) if len(told) == len(left) else None
        limit_bytes, group = limits[0]
        if uses[0][1] is None:
            return limit_bytes, available, pages, ""
        return limit_bytes, available, uses[0][1], group

    def _read_limit(self, group: str) -> int:
        """The cgroup's lowest limit, bytes; without one a number above any machine's memory."""
        limits = [1 << 63]
        for name in self._limits:
            with contextlib.suppress(OSError, ValueError):  # "max" is no number
                limits.append(int(read_small(f"{group}/{name}")))
        return min(limits)

    def _read_use(self, group: str, limit_bytes: int) -> tuple[int | None, int | None]:
        """Memory that is left if all page cache is dropped, and refaulted pages."""
        used_bytes = known(f"{group}/{self._usage}", int)
        stat = known(f"{group}/memory.stat", parse_memory_stat, read_file)
        if used_bytes is None or stat is None:
            return None, None
        cache_bytes, pages = stat
        return max(0, min(limit_bytes, limit_bytes - used_bytes + cache_bytes)), pages

    def _read_idle(self) -> dict[str, float]:
        """Idle time of each partition. That of a CPU never falls, and stays while it is offline."""
        highest = self._idle_s
        if self._cpus:
            for cpu, idle_s in (known(f"{self._proc}/stat", parse_idle, read_file) or {}).items():
                highest[cpu] = max(idle_s, highest.get(cpu, 0.0))
        return {
            partition: sum(highest[cpu] for cpu in cpus)
            for partition, cpus in self._cpus.items()
            if highest.keys() >= cpus
        }


def _find_groups(root: Path, jobs: str | None) -> tuple[list[str], tuple[str, ...]]:
    """The cgroups above all jobs, and the names of their files."""
    groups: list[str] = []
    for mount in read_mounts(root):
        point = f"{os.fspath(root).rstrip('/')}{mount.mount_point}"
        if mount.filesystem == "cgroup" and "memory" in mount.options:
            return _find_own(root, "memory", mount, point), _FILES_V1
        if mount.filesystem == "cgroup2" and not groups:
            is_above = jobs is not None and jobs.startswith(f"{point}/")
            groups = _up(str(jobs), point) if is_above else _find_own(root, "", mount, point)
    return groups, _FILES_V2


def _find_own(root: Path, controller: str, mount: Mount, point: str) -> list[str]:
    """The visible directories of this process's cgroup and of all its parents."""
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
