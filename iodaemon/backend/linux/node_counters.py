"""The counters of the whole machine, each None where the kernel does not count it or hides it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from iodaemon.backend.linux.shared_memory import Available, SharedMemory, Sharer
from iodaemon.core.job import JobId
from iodaemon.core.platform import Partition, PartitionId
from iodaemon.core.sample import NodeCounters
from iodaemon.errors import NoData
from iodaemon.sampler import cpu_time, meminfo, pressure, vmstat
from iodaemon.sampler.statm import PAGE_BYTES

_T = TypeVar("_T")


class NodeCountersReader:
    """Reads them through kept descriptors. Use from one thread at a time.

    Args:
        root: where /proc and /sys are.
        partitions: whose CPUs' idle time is wanted.
    """

    def __init__(self, root: Path, partitions: Iterable[Partition] = ()) -> None:
        self._io_pressure = pressure.Sampler(root)
        self._memory_pressure = pressure.Sampler(root, resource="memory")
        self._meminfo = meminfo.Sampler(root)
        self._vmstat = vmstat.Sampler(root)
        self._cpu_time = cpu_time.Sampler(root)
        self._memory = SharedMemory(root)
        # A set: slots of an oversubscribed core are copies with the same CPUs.
        self._cpus = {
            partition.id: sorted({cpu for slot in partition.slots for cpu in slot.cpus})
            for partition in partitions
        }
        self._idle_s: dict[int, float] = {}

    def read(self, at_s: float, jobs: Mapping[JobId, Sharer]) -> NodeCounters:
        """The counters now.

        Args:
            at_s: the present.
            jobs: those whose memory is looked at.
        """
        io, waits = _known(self._io_pressure.read), _known(self._memory_pressure.read)
        memory, vm = _known(self._meminfo.read), _known(self._vmstat.read)
        pages = None if vm is None else vm.refaulted_pages
        machine = Available(None, None, pages)
        if memory is not None:
            machine = Available(memory.total_bytes, memory.available_bytes, pages)
        shared = self._memory.read(at_s, jobs, machine)
        return NodeCounters(
            io_stall_s=None if io is None else io.some_s,
            memory_stall_s=None if waits is None else waits.some_s,
            dirty_bytes=None if memory is None else memory.dirty_bytes,
            writeback_bytes=None if memory is None else memory.writeback_bytes,
            available_bytes=shared.available_bytes,
            memory_bytes=shared.memory_bytes,
            refault_bytes=_pages_bytes(shared.refaulted_pages),
            refaults_of=shared.group,
            idle_s=self._read_idle(),
        )

    def _read_idle(self) -> dict[PartitionId, float]:
        """Idle time by partition; one with a CPU that was never seen is not in it.

        Each CPU's is kept from going back, also while it is offline, when it has no line.
        """
        if not self._cpus:
            return {}
        highest = self._idle_s
        for cpu, idle_s in (_known(self._cpu_time.read) or {}).items():
            if idle_s > highest.get(cpu, -1.0):
                highest[cpu] = idle_s
        return {
            partition: sum(highest[cpu] for cpu in cpus)
            for partition, cpus in self._cpus.items()
            if all(cpu in highest for cpu in cpus)
        }

    def close(self) -> None:
        """Give the descriptors back."""
        self._io_pressure.close()
        self._memory_pressure.close()
        for sampler in (self._meminfo, self._vmstat, self._cpu_time, self._memory):
            sampler.close()


def _pages_bytes(pages: int | None) -> int | None:
    return None if pages is None else pages * PAGE_BYTES


def _known(read: Callable[[], _T]) -> _T | None:
    """What is read; None: there is no such file, it may not be read, or it is cut short."""
    try:
        return read()
    except (NoData, PermissionError):
        return None
