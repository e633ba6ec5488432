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
"""What is used, and the limits."""


class NodeCountersReader:
    """Reads the counters of the machine.

    Args:
        root: where /proc and /sys are.
        cpus: of each partition, by its number; their idle time is wanted.
        jobs: the cgroup of version 2 below which each job has its own; None: there is none, and
            jobs inherit the cgroups of the supervisor, whose child the sampler is as well.
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
        """Memory that jobs share: the tightest limit above all of them, or all of the machine.

        Returns:
            How much there is, what of it can be had, pages read again, and the cgroup of which the
            latter are told; empty: the machine.
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
        """The lowest of the cgroup's limits, bytes; without one more than any machine has."""
        limits = [1 << 63]
        for name in self._limits:
            with contextlib.suppress(OSError, ValueError):  # "max" is no number
                limits.append(int(read_small(f"{group}/{name}")))
        return min(limits)

    def _read_use(self, group: str, limit_bytes: int) -> tuple[int | None, int | None]:
        """What is left of the limit when all page cache below it is given up, and pages that were
        read again; None: not known.
        """
        used_bytes = known(f"{group}/{self._usage}", int)
        stat = known(f"{group}/memory.stat", parse_memory_stat, read_file)
        if used_bytes is None or stat is None:
            return None, None
        cache_bytes, pages = stat
        return max(0, min(limit_bytes, limit_bytes - used_bytes + cache_bytes)), pages

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


def _find_groups(root: Path, jobs: str | None) -> tuple[list[str], tuple[str, ...]]:
    """The cgroups below which all jobs run, and the names of their files."""
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
