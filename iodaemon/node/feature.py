"""What a kernel may offer, what each feature gives, and what is lost without it, for ``iod node``
and ``iod doctor``: the controllers and files of a job's cgroup, and the counters by which rules
tell progress from thrashing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, NamedTuple

from iodaemon.node.sampler.proc_files import (
    known,
    parse_cpu_stat,
    parse_idle,
    parse_meminfo,
    parse_pressure,
    parse_refaults,
    read_file,
)
from iodaemon.supervisor.cgroup import CAP, PRESSURE
from iodaemon.supervisor.reap import parse_io


class Control(NamedTuple):
    """One thing that jobs' cgroups may have.

    Attributes:
        name: of the controller, or ``pressure``.
        what: a stable name of the feature.
        gives: what is done with it; ``instead`` is done without it, at this ``cost``.
    """

    name: str
    what: str
    gives: str
    instead: str
    cost: str


CONTROLS: Final = (
    Control(
        "cpuset",
        "socket fence",
        "cpuset of the job's cgroup: it stays in what [topology] fence says, but by a scope of its "
        "user's own systemd",
        "none: a job is put on its socket, and may leave it",
        "a job can move to other sockets' CPUs and memory (taskset, numactl)",
    ),
    Control(
        "io",
        "job disk bytes",
        "io.stat of the job's cgroup, leaf disks: written back and swapped pages included",
        "not counted",
        "what reaches the disks later than it was written (write-back, swap) is nobody's",
    ),
    Control(
        "memory",
        "memory limit",
        "memory.max of the job's cgroup, as --mem says; memory.events tell OUT_OF_MEMORY",
        "--mem limits nothing here; a job that the kernel kills for memory ends as FAILED",
        "one job can take the memory of all, and its end does not say why",
    ),
    Control(
        "pids",
        "process limit",
        "pids.max of the job's cgroup, as max_processes says; at most a quarter of the machine's",
        "none: a job may have as many processes as its user",
        "one job that forks without end leaves other jobs no process",
    ),
    Control(
        PRESSURE,
        "job pressure",
        "io.pressure and memory.pressure of the job's cgroup",
        "not counted",
        "how long a job waits for its disk is not known",
    ),
    Control(
        CAP,
        "job disk cap",
        "io.max of the job's cgroup: a job with --no-suspend that is one too many for a disk is "
        "slowed down",
        "none: a job with --no-suspend is not regulated",
        "such a job keeps all it can get of a disk that others wait for",
    ),
)


COUNT_PRESSURE: Final = "boot with psi=1 (Linux 4.20 or newer, CONFIG_PSI)"
"""How to make the kernel count stall times."""


def words_of(controls: Collection[str]) -> dict[str, str]:
    """What is done with or without each control, by its stable name with underscores."""
    return {
        control.what.replace(" ", "_"): control.gives
        if control.name in controls
        else control.instead
        for control in CONTROLS
    }


def flags_of(controls: Collection[str]) -> dict[str, bool]:
    """Whether each control is there, by its name."""
    return {control.name: control.name in controls for control in CONTROLS}


class ProgressSource(NamedTuple):
    """One counter.

    Attributes:
        name: a stable name; ``io_pressure`` for ``I/O pressure`` in ``iod node``.
        path: its file; without ``/`` a file of a job's cgroup.
        tells: whether the file's text has it. Not if it raises ``NoData`` or ValueError; a pressure
            of 0 since boot is hidden by a container.
        gives: where it comes from; without it there is this ``cost`` and this ``remedy``.
    """

    name: str
    path: str
    tells: Callable[[bytes], Any]
    gives: str
    cost: str
    remedy: str


REFAULTS: Final = ProgressSource(
    "refaults",
    "proc/vmstat",
    lambda text: parse_refaults(text) >= 0,
    "workingset_refault of /proc/vmstat, page cache and swap",
    "the rule cannot see page-cache thrash",
    "make /proc/vmstat visible (a container may hide it; Linux 3.15 or newer counts)",
)
LOGICAL_BYTES: Final = ProgressSource(
    "logical bytes",
    "proc/self/io",
    parse_io,
    "rchar + wchar of /proc/PID/io, summed as the job's other I/O is",
    "the rule cannot compare how fast jobs get on with more or fewer at once",
    "take a kernel with CONFIG_TASK_IO_ACCOUNTING",
)
USER_CPU: Final = ProgressSource(
    "user CPU time",
    "cpu.stat",
    lambda text: parse_cpu_stat(text)[1] is not None,
    "user_usec in cpu.stat of the job's cgroup",
    "the rule cannot tell a job that computes from one that waits in the kernel",
    "give jobs a cgroup of version 2 (see the lines on cgroups)",
)
IO_PRESSURE: Final = ProgressSource(
    "I/O pressure",
    "proc/pressure/io",
    parse_pressure,
    "some of /proc/pressure/io",
    "the rule cannot see that jobs wait for I/O",
    COUNT_PRESSURE,
)
IDLE_TIME: Final = ProgressSource(
    "idle time",
    "proc/stat",
    parse_idle,
    "idle + iowait of /proc/stat, by CPU",
    "the rule starts no more jobs than there are cores, however idle these are",
    "make /proc/stat visible, with all CPUs of the jobs (a container may hide it)",
)
AVAILABLE_MEMORY: Final = ProgressSource(
    "available memory",
    "proc/meminfo",
    lambda text: parse_meminfo(text).available_bytes is not None,
    "MemTotal and MemAvailable of /proc/meminfo",
    "the rule sees no contention for memory, and starts no more jobs than there are cores",
    "make /proc/meminfo visible (a container may hide it; Linux 3.14 or newer has MemAvailable)",
)
SOURCES: Final = (REFAULTS, LOGICAL_BYTES, USER_CPU, IO_PRESSURE, IDLE_TIME, AVAILABLE_MEMORY)


def find_sources(root: Path, cgroup: str | None) -> frozenset[ProgressSource]:
    """Those that can be read here; ``cgroup`` is one of version 2, as jobs have it, or None."""
    found = set()
    for source in SOURCES:
        path = source.path if "/" in source.path else f"{cgroup}/{source.path}".lstrip("/")
        is_there = cgroup is not None or source is not USER_CPU
        if is_there and known(f"{root}/{path}", source.tells, read_file):
            found.add(source)
    return frozenset(found)


def words_of_sources(found: frozenset[ProgressSource]) -> dict[str, str]:
    """Where each comes from, or what is lost without it and how to get it."""
    return {
        source.name.lower().replace(" ", "_").replace("/", ""): (
            source.gives if source in found else f"not counted: {source.cost}; {source.remedy}"
        )
        for source in SOURCES
    }
