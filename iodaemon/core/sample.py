"""Samples: cumulative counters read at one time. A value that could not be read is None, never 0.

The simulated node fills in the same counters under the same definitions as the Linux one, so
that what is proved in simulation is what runs. A counter may be missing, go backwards, or jump: a
container hides it, a device is replaced, a kernel has a bug. What cannot be true is not known, and
whoever asks does without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from iodaemon.core.job import JobId
from iodaemon.core.platform import DeviceId, PartitionId

_NONE: Mapping[Any, Any] = MappingProxyType({})


class JobCounters(msgspec.Struct, frozen=True, kw_only=True):
    """One job's counters from its start, over all processes it ever had.

    Attributes:
        read_bytes: submitted to a device or network filesystem (/proc/PID/io read_bytes).
        written_bytes: dirtied, less what was deleted before it reached the disk
            (/proc/PID/io write_bytes - cancelled_write_bytes); runs ahead of the device.
        operations: read and write system calls (syscr + syscw).
        logical_bytes: returned by read calls and handed to write calls, from and to wherever
            (/proc/PID/io rchar + wchar); page cache, pipes and terminals included, mmap not.
        device_read_bytes: read from leaf devices (cgroup io.stat).
        device_written_bytes: written to leaf devices (cgroup io.stat).
        cpu_s: CPU time of all its processes.
        user_s: the part of it in user mode; what the kernel does for the job is not in it.
        resident_bytes: memory now; a gauge.
        io_stall_s: time at least one process waited for I/O (cgroup io.pressure, some).
        memory_stall_s: the same for memory (cgroup memory.pressure, some).
        devices: leaf disks that its open files lie on, sorted; None where that is not known.
        output_bytes: room that the file of its own output takes, holes not counted (stat(2)
            st_blocks); a gauge. None: it has no such file.
        silent_pid: a process of the job that does not answer, so that its I/O is unknown; 0: what
            else of the job does not answer. None: all answers.
    """

    read_bytes: int | None = None
    written_bytes: int | None = None
    operations: int | None = None
    logical_bytes: int | None = None
    device_read_bytes: int | None = None
    device_written_bytes: int | None = None
    cpu_s: float | None = None
    user_s: float | None = None
    resident_bytes: int | None = None
    io_stall_s: float | None = None
    memory_stall_s: float | None = None
    devices: tuple[DeviceId, ...] | None = None
    output_bytes: int | None = None
    silent_pid: int | None = None

    @property
    def moved_bytes(self) -> int | None:
        if self.read_bytes is None and self.written_bytes is None:
            return None
        return (self.read_bytes or 0) + max(0, self.written_bytes or 0)

    def at_start(self) -> JobCounters:
        """These counters when the job started: those that are known, at 0; no gauges."""
        known = {name: 0 for name in _FROM_START if getattr(self, name) is not None}
        return msgspec.structs.replace(JobCounters(), **known)


_FROM_START: Final = (
    *("read_bytes", "written_bytes", "operations", "logical_bytes"),
    *("device_read_bytes", "device_written_bytes"),
    *("cpu_s", "user_s", "io_stall_s", "memory_stall_s"),
)
"""What of a job is counted from its start; all else is a gauge."""


class DeviceCounters(msgspec.Struct, frozen=True, kw_only=True):
    """One line of /proc/diskstats (Documentation/admin-guide/iostats.rst); times in ms, mod 2^32.

    Sectors are 512 bytes whatever the device's own. ``in_flight`` is a gauge. Discards exist
    since Linux 4.18, flushes since 5.5; older kernels leave them 0.
    """

    reads: int
    reads_merged: int
    read_sectors: int
    read_ms: int
    writes: int
    writes_merged: int
    written_sectors: int
    write_ms: int
    in_flight: int
    busy_ms: int
    queue_ms: int
    discards: int = 0
    discards_merged: int = 0
    discarded_sectors: int = 0
    discard_ms: int = 0
    flushes: int = 0
    flush_ms: int = 0


class NodeCounters(msgspec.Struct, frozen=True, kw_only=True):
    """The whole machine.

    Attributes:
        io_stall_s: time at least one task waited for I/O (/proc/pressure/io, some).
        memory_stall_s: the same for memory (/proc/pressure/memory, some).
        dirty_bytes: page cache waiting to be written (/proc/meminfo Dirty); a gauge.
        writeback_bytes: page cache being written (/proc/meminfo Writeback); a gauge.
        available_bytes: memory that can be had without swapping (MemAvailable); a gauge. Where all
            jobs run below one cgroup with a limit: what is left of that without its page cache.
        memory_bytes: memory that the jobs share: all of the machine (MemTotal), or the limit of
            the cgroup below which all of them run; a gauge.
        refault_bytes: read again although it had been in memory shortly before, page cache and
            swap (/proc/vmstat workingset_refault_file + workingset_refault_anon). Where all jobs
            run below one cgroup with a limit: by what runs there (the same in its memory.stat).
        refaults_of: that cgroup; empty: the machine.
        idle_s: by socket: time for which its CPUs had nothing to run, summed over its CPUs
            (/proc/stat idle + iowait).
    """

    io_stall_s: float | None = None
    memory_stall_s: float | None = None
    dirty_bytes: int | None = None
    writeback_bytes: int | None = None
    available_bytes: int | None = None
    memory_bytes: int | None = None
    refault_bytes: int | None = None
    refaults_of: str = ""
    idle_s: Mapping[PartitionId, float] = _NONE


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """All sources read at (nearly) one time; ``at_s`` is on the timeline's clock."""

    at_s: float
    jobs: Mapping[JobId, JobCounters] = _NONE
    devices: Mapping[DeviceId, DeviceCounters] = _NONE
    node: NodeCounters = NodeCounters()


MOST_BYTES_PER_S: Final = 1e13
"""No machine moves more: 256 cores that copy from their caches move half of it."""
MOST_REQUESTS_PER_S: Final = 1e9
"""No device completes more."""
MOST_CPUS: Final = 8192
"""No Linux has more (CONFIG_NR_CPUS)."""


def grown(before: float | None, now: float | None, most: float) -> float | None:
    """By how much a counter grew.

    Returns:
        None where it is missing, went backwards, or grew by more than ``most``.
    """
    if before is None or now is None:
        return None
    growth = float(now - before)
    return growth if 0.0 <= growth <= most else None


def known_memory(node: NodeCounters) -> tuple[float, float] | None:
    """Memory that can be had, and all that there is; None: not known, or more of it than all."""
    available, memory = node.available_bytes, node.memory_bytes
    if available is None or memory is None or not 0 <= available <= memory:
        return None
    return float(available), float(memory)
