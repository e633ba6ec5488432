"""The counters of the machine and its disks, and of the memory that jobs share.

What fits into the machine may not fit into a container, a slice, or a group that a job's own script
enters. What counts is the limit that all jobs have in common; a job's own limit (``--mem``) is
shared with no other job. cgroup v1: memory.limit_in_bytes and memory.usage_in_bytes
(Documentation/admin-guide/cgroup-v1/memory.rst); cgroup v2: memory.max, memory.high and
memory.current (Documentation/admin-guide/cgroup-v2.rst, Linux 4.5).
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from iodaemon.errors import NoData
from iodaemon.node.sampler.cgroup_files import parse_memory_stat
from iodaemon.node.sampler.proc_files import (
    PAGE_BYTES,
    KeptFile,
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
_FIRST_LOOKS: Final = 3
"""At each reading: a script that enters a group does so at its beginning."""
_SETTLED_LOOKS: Final = 2
"""What was seen of a job only once does not count beside others: it may be about to enter."""
_MOST_LOOKS: Final = 4
"""In one reading, at new jobs, and one at the others in turn; 5 to 40 us each, by machine."""


class Available(NamedTuple):
    """Memory that jobs share: how much there is, what of it can be had, pages read again although
    they had been in memory (None: not known), and the cgroup of which that is told; empty: the
    machine.
    """

    memory_bytes: int | None
    available_bytes: int | None
    refaulted_pages: int | None = None
    group: str = ""


class _Hierarchy(NamedTuple):
    """Where memory is limited.

    Attributes:
        controller: as in /proc/PID/cgroup.
        mount_point: of the hierarchy.
        subtree: the cgroup that is mounted there.
        limits: names of the files; the lowest of them holds.
        usage: name of the file.
    """

    controller: str
    mount_point: str
    subtree: str
    limits: tuple[str, ...]
    usage: str

    def ancestors(self, path: str) -> Iterator[str]:
        """The directories of a cgroup and of all above it that can be seen from here."""
        top = self.subtree.rstrip("/")
        if path.startswith("/..") or not f"{path}/".startswith(f"{top}/"):
            return
        within = path[len(top) :].rstrip("/")
        while within:
            yield self.mount_point + within
            within = within.rpartition("/")[0]
        yield self.mount_point


class _Sharer:
    """A job, as far as its memory is concerned.

    Attributes:
        members: its processes when they were last read, the newest last.
        own: the job's own cgroup, whose limit is its own; None: it has none.
        turns: how often it was its turn.
        looks: that told something.
        groups: directories of the cgroups that it runs below.
    """

    __slots__ = ("groups", "looks", "members", "number", "own", "turns")

    def __init__(self, number: int, members: Callable[[], Sequence[int]], own: str | None) -> None:
        self.number, self.members, self.own = number, members, own
        self.turns = self.looks = 0
        self.groups: frozenset[str] = frozenset()


class SharedMemory:
    """Finds the limit that all jobs have in common, and what is left of it.

    Args:
        root: ``/``, or a directory that looks like it.
    """

    def __init__(self, root: Path) -> None:
        self._proc = os.fspath(root / "proc")
        self._hierarchy = _find_hierarchy(root)
        self._jobs: dict[int, _Sharer] = {}
        self._new: deque[_Sharer] = deque()
        self._others: deque[_Sharer] = deque()
        self._common: frozenset[str] | None = None
        self._limits: dict[str, int | None] = {}
        self._limits_due_s = -math.inf

    def add(self, job: int, members: Callable[[], Sequence[int]], own: str | None) -> None:
        """Look at this job from now on; arguments as of ``_Sharer``."""
        self._jobs[job] = _Sharer(job, members, own)
        self._new.append(self._jobs[job])
        self._common = None

    def remove(self, job: int) -> None:
        """Look at it no more."""
        if self._jobs.pop(job, None) is not None:
            self._common = None

    def read(self, at_s: float, machine: Available) -> Available:
        """What there is now.

        Args:
            at_s: the present.
            machine: what the whole machine has.
        """
        if machine.memory_bytes is None or self._hierarchy is None:
            return machine
        turns = self._new or self._others
        for _ in range(min(len(turns), _MOST_LOOKS if self._new else 1)):
            self._look(self._hierarchy, turns.popleft())
        limits = self._find_limits(self._hierarchy, at_s, machine.memory_bytes)
        if not limits:
            return machine
        usage = self._hierarchy.usage
        found = {group: _read_use(group, usage, limit) for group, limit in limits.items()}
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

    def _look(self, hierarchy: _Hierarchy, job: _Sharer) -> None:
        if self._jobs.get(job.number) is not job:
            return
        job.turns += 1
        (self._new if job.turns < _FIRST_LOOKS else self._others).append(job)
        try:
            groups = self._find_groups(hierarchy, job)
        except (NoData, OSError):  # it ends, or may not be looked at: what was seen holds
            return
        job.looks += 1
        if groups != job.groups or job.looks <= _SETTLED_LOOKS:
            job.groups, self._common = groups, None

    def _find_groups(self, hierarchy: _Hierarchy, job: _Sharer) -> frozenset[str]:
        """The cgroups that the job's newest process is in, without the job's own.

        Raises:
            NoData: it is gone.
        """
        members = job.members()
        if not members:
            raise NoData("the job has no process")
        text = KeptFile(f"{self._proc}/{members[-1]}/cgroup").read()
        path = parse_proc_cgroup(text).get(hierarchy.controller)
        groups = () if path is None else hierarchy.ancestors(path)
        own = job.own
        return frozenset(g for g in groups if own is None or not f"{g}/".startswith(f"{own}/"))

    def _find_limits(self, hierarchy: _Hierarchy, at_s: float, total_bytes: int) -> dict[str, int]:
        """Limits below the machine's memory that hold for all jobs, as far as that is known."""
        if self._common is None:
            self._common = self._find_common()
        if self._common != self._limits.keys() or at_s >= self._limits_due_s:
            self._limits = {group: _read_limit(hierarchy, group) for group in self._common}
            self._limits_due_s = at_s + _LIMITS_LOOK_S
        limits = self._limits.items()
        return {group: at for group, at in limits if at is not None and at < total_bytes}

    def _find_common(self) -> frozenset[str]:
        known = [each for each in self._jobs.values() if each.looks]
        settled = [each.groups for each in known if each.looks >= _SETTLED_LOOKS]
        groups = settled or [each.groups for each in known]
        return frozenset.intersection(*groups) if groups else frozenset()


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


def _read_limit(hierarchy: _Hierarchy, group: str) -> int | None:
    """The cgroup's limit, bytes; None: it has none."""
    limits: list[int] = []
    for name in hierarchy.limits:
        try:
            digits = read_seldom(f"{group}/{name}").strip()
        except (NoData, OSError):
            continue
        if digits.isdigit():
            limits.append(int(digits))
    return min(limits, default=None)


def _find_hierarchy(root: Path) -> _Hierarchy | None:
    """Where memory is limited: v1 where its memory controller is mounted, else v2."""
    version_2 = None
    for mount in read_mounts(root):
        point = f"{os.fspath(root).rstrip('/')}{mount.mount_point}"
        if mount.filesystem == "cgroup" and "memory" in mount.options:
            names = ("memory.limit_in_bytes",), "memory.usage_in_bytes"
            return _Hierarchy("memory", point, mount.subtree, *names)
        if mount.filesystem == "cgroup2" and version_2 is None:
            names_2 = ("memory.max", "memory.high"), "memory.current"
            version_2 = _Hierarchy("", point, mount.subtree, *names_2)
    return version_2


# -- the machine -----------------------------------------------------------------------------------

_LINE_BYTES: Final = 256
"""Room for the line of a CPU in /proc/stat: ten numbers of up to 20 digits, in practice less than
100 bytes."""


class NodeCountersReader:
    """Reads the counters of the machine.

    Args:
        root: where /proc and /sys are.
        cpus: of each partition, by its number; their idle time is wanted.

    Attributes:
        memory: which jobs share memory.
    """

    def __init__(self, root: Path, cpus: Mapping[str, Iterable[int]]) -> None:
        self._io_pressure = KeptFile(root / "proc/pressure/io")
        self._memory_pressure = KeptFile(root / "proc/pressure/memory")
        self._meminfo = KeptFile(root / "proc/meminfo")
        self._vmstat = KeptFile(root / "proc/vmstat")
        self._stat = KeptFile(root / "proc/stat")
        self._stat_bytes = _LINE_BYTES * (os.sysconf("SC_NPROCESSORS_CONF") + 1)
        self.memory = SharedMemory(root)
        self._cpus = {partition: frozenset(each) for partition, each in cpus.items()}
        self._idle_s: dict[int, float] = {}

    def read(self, at_s: float) -> dict[str, Any]:
        """Fields of ``core.sample.NodeCounters`` now; ``at_s`` is the present."""
        io = _known(self._io_pressure.read_record, parse_pressure)
        waits = _known(self._memory_pressure.read_record, parse_pressure)
        memory = _known(self._meminfo.read_record, parse_meminfo)
        pages = _known(self._vmstat.read_record, parse_refaults)
        machine = Available(None, None, pages)
        if memory is not None:
            machine = Available(memory.total_bytes, memory.available_bytes, pages)
        shared = self.memory.read(at_s, machine)
        pages = shared.refaulted_pages
        return {
            "io_stall_s": None if io is None else io.some_s,
            "memory_stall_s": None if waits is None else waits.some_s,
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
