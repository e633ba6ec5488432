"""Which counters of progress and thrash can be read here: for ``iod node`` and ``iod doctor``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from iodaemon.backend.linux.control import COUNT_PRESSURE
from iodaemon.errors import NoData
from iodaemon.sampler import cpu_stat, cpu_time, meminfo, pressure, proc_io, vmstat


class _Sampler(Protocol):
    def read(self) -> Any: ...

    def close(self) -> None: ...


class ProgressSource(NamedTuple):
    """One counter.

    Attributes:
        name: a stable name; ``io_pressure`` for ``I/O pressure`` in ``iod node``.
        gives: where it comes from.
        cost: what is lost without it.
        remedy: how to get it.
    """

    name: str
    gives: str
    cost: str
    remedy: str


REFAULTS: Final = ProgressSource(
    "refaults",
    "workingset_refault of /proc/vmstat, page cache and swap",
    "the rule cannot see page-cache thrash",
    "make /proc/vmstat visible (a container may hide it; Linux 3.15 or newer counts)",
)
LOGICAL_BYTES: Final = ProgressSource(
    "logical bytes",
    "rchar + wchar of /proc/PID/io, summed as the job's other I/O is",
    "the rule cannot compare how fast jobs get on with more or fewer at once",
    "take a kernel with CONFIG_TASK_IO_ACCOUNTING",
)
USER_CPU: Final = ProgressSource(
    "user CPU time",
    "user_usec in cpu.stat of the job's cgroup",
    "the rule cannot tell a job that computes from one that waits in the kernel",
    "give jobs a cgroup of version 2 (see the lines on cgroups)",
)
IO_PRESSURE: Final = ProgressSource(
    "I/O pressure",
    "some of /proc/pressure/io",
    "the rule cannot see that jobs wait for I/O",
    COUNT_PRESSURE,
)
IDLE_TIME: Final = ProgressSource(
    "idle time",
    "idle + iowait of /proc/stat, by CPU",
    "the rule starts no more jobs than there are cores, however idle these are",
    "make /proc/stat visible, with all CPUs of the jobs (a container may hide it)",
)
AVAILABLE_MEMORY: Final = ProgressSource(
    "available memory",
    "MemTotal and MemAvailable of /proc/meminfo",
    "the rule sees no contention for memory, and starts no more jobs than there are cores",
    "make /proc/meminfo visible (a container may hide it; Linux 3.14 or newer has MemAvailable)",
)
SOURCES: Final = (REFAULTS, LOGICAL_BYTES, USER_CPU, IO_PRESSURE, IDLE_TIME, AVAILABLE_MEMORY)


def find_sources(root: Path, cgroup: str | None) -> frozenset[ProgressSource]:
    """Those that can be read here.

    Args:
        root: ``/``, or a directory that looks like it.
        cgroup: one of version 2, in the place of a job's, below root; None: jobs have none.
    """
    found = {
        REFAULTS: _can(vmstat.Sampler(root)),
        LOGICAL_BYTES: _can(proc_io.Sampler(root)),
        IO_PRESSURE: _can(pressure.Sampler(root), lambda found: found.some_s > 0.0),
        IDLE_TIME: _can(cpu_time.Sampler(root)),
        AVAILABLE_MEMORY: _can(
            meminfo.Sampler(root), lambda found: found.available_bytes is not None
        ),
        USER_CPU: cgroup is not None
        and _can(cpu_stat.Sampler(root, cgroup=Path(cgroup.lstrip("/")))),
    }
    return frozenset(source for source, is_there in found.items() if is_there)


def words_of(found: frozenset[ProgressSource]) -> dict[str, str]:
    """Of each, where it comes from, or what is lost without it and how to get it."""
    return {
        source.name.lower().replace(" ", "_").replace("/", ""): (
            source.gives if source in found else f"not counted: {source.cost}; {source.remedy}"
        )
        for source in SOURCES
    }


def _can(sampler: _Sampler, tells: Callable[[Any], bool] = lambda _: True) -> bool:
    """Whether it reads anything, and what it reads tells something."""
    try:
        return tells(sampler.read())
    except (NoData, OSError):
        return False
    finally:
        sampler.close()
