"""The machine as the policies see it: partitions (sockets) of slots (cores), and devices.

Of a device that was measured while nothing else used it, it says how long a lone request takes:
the base of the size-normalised wait (``core.meter``). That depends on where on the disk the
requests go, which no counter tells: in order it is the least, at random places the most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, NewType

import msgspec

Points = tuple[tuple[float, float], ...]
"""Size of a request, bytes, and its time, s; by size."""


class LoneTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Of reads, or of writes; empty where none was measured.

    Attributes:
        in_order: one after the other, as they lie on the disk.
        at_random: anywhere on it.
    """

    in_order: Points = ()
    at_random: Points = ()

    def range_s(self, size_bytes: float) -> tuple[float, float] | None:
        """The least and the most that a lone request of this size takes; None: not measured."""
        known = [time_s(points, size_bytes) for points in (self.in_order, self.at_random) if points]
        return (min(known), max(known)) if known else None


class ServiceTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one device.

    Attributes:
        reads: lone ones.
        writes: lone ones.
        width: how many times as much many readers had as one, 1 or more. A device that serves
            several at once is not full because a request takes as many times longer.
    """

    reads: LoneTimes = LoneTimes()
    writes: LoneTimes = LoneTimes()
    width: float = 1.0


def time_s(points: Sequence[tuple[float, float]], size_bytes: float) -> float:
    """What a request of this size takes, s, between and beyond the sizes that were measured.

    Between two sizes it grows along a power of the size. Smaller requests than any take as long as
    the smallest; larger ones are moved as fast as the largest.

    Args:
        points: one at least, by size; sizes and times above 0.
        size_bytes: above 0; 0 counts as a byte.
    """
    size_bytes = max(1.0, size_bytes)
    first, last = points[0], points[-1]
    if size_bytes <= first[0]:
        return first[1]
    if size_bytes >= last[0]:
        return last[1] * size_bytes / last[0]
    upper = next(place for place, (size, _) in enumerate(points) if size >= size_bytes)
    (low, low_s), (high, high_s) = points[upper - 1], points[upper]
    if high <= low:
        return high_s
    share = math.log(size_bytes / low) / math.log(high / low)
    return float(low_s * (high_s / low_s) ** share)


PartitionId = NewType("PartitionId", int)
"""A socket's number on a server; an I/O node's number in a simulated cluster."""
SlotId = NewType("SlotId", int)
"""The lowest logical CPU of the slot on a server (copies of an oversubscribed core follow at
``COPY_STRIDE``); a compute node's number in a cluster."""
DeviceId = NewType("DeviceId", str)
"""The kernel's name of a whole leaf disk, for example ``sda``."""


COPY_STRIDE: Final = 1 << 16
"""Between the slot ids of one core that is handed out several times; above any CPU number."""
_PLACES_PER_CORE: Final = 32
_LEAST_PLACES: Final = 64
_MOST_PLACES: Final = 1024
"""Of one socket, for jobs that share its cores: bounded, as each is an entry of several tables."""


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """The unit handed out: one core, with the logical CPUs (hardware threads) it consists of."""

    id: SlotId
    cpus: tuple[int, ...]


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of confinement: one CPU socket with its NUMA nodes, or one I/O node.

    Attributes:
        id: its number.
        slots: ordered by id.
        cores: the first so many slots are cores that a job has for its own; all others are places
            for jobs that share all of them. None: any job gets any slots.
        memory_nodes: NUMA nodes that have memory and belong to it; empty where unknown.
        near_devices: devices attached to one of its NUMA nodes; empty where unknown.
    """

    id: PartitionId
    slots: tuple[Slot, ...]
    cores: int | None = None
    memory_nodes: tuple[int, ...] = ()
    near_devices: tuple[DeviceId, ...] = ()

    @property
    def size(self) -> int:
        """Slots that may be held at once: more only where regulation lets more share the cores."""
        return len(self.slots) if self.cores is None else self.cores

    @property
    def cpus(self) -> list[int]:
        return sorted({cpu for slot in self.slots[: self.size] for cpu in slot.cpus})


def oversubscribe(partition: Partition, times: int) -> Partition:
    """The partition with every slot handed out this many times; jobs then share its cores."""
    slots = tuple(
        msgspec.structs.replace(slot, id=SlotId(slot.id + copy * COPY_STRIDE))
        for copy in range(times)
        for slot in partition.slots
    )
    return msgspec.structs.replace(partition, slots=slots)


def share_cores(partition: Partition) -> Partition:
    """The partition with places for jobs that share its cores, beside these cores themselves.

    A place has the id of a copy of a core, so that jobs outlive a change to ``oversubscribe``, and
    all CPUs of the partition.
    """
    cores = partition.slots
    if not cores:
        return partition
    count = max(_LEAST_PLACES, min(_PLACES_PER_CORE * len(cores), _MOST_PLACES), len(cores))
    cpus = tuple(partition.cpus)
    places = tuple(
        Slot(id=SlotId(cores[at % len(cores)].id + (1 + at // len(cores)) * COPY_STRIDE), cpus=cpus)
        for at in range(count)
    )
    return msgspec.structs.replace(partition, slots=(*cores, *places), cores=len(cores))


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf disk that the jobs' I/O ends up on.

    Attributes:
        id: the kernel's name.
        model: for people.
        rotational: True for a disk with an arm; None where unknown.
        capacity_bytes_per_s: what it delivers to many, once measured. None: not known.
        service: how long lone requests take there, once measured. None: not known.
    """

    id: DeviceId
    model: str = ""
    rotational: bool | None = None
    capacity_bytes_per_s: float | None = None
    service: ServiceTimes | None = None


class Platform(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One machine (or simulated cluster): what can be handed out, and what can get congested."""

    partitions: tuple[Partition, ...]
    devices: tuple[Device, ...] = ()

    @cached_property
    def largest_partition(self) -> int:
        """Slots of the partition with the most slots: the largest job that can ever start."""
        return max((partition.size for partition in self.partitions), default=0)

    @cached_property
    def slot_count(self) -> int:
        return sum(partition.size for partition in self.partitions)

    @cached_property
    def shares_cores(self) -> bool:
        """Whether jobs that ask for no cores of their own share those of their partition."""
        return any(partition.cores is not None for partition in self.partitions)

    @cached_property
    def capacity_bytes_per_s(self) -> float | None:
        """What all devices together deliver, as far as it is known; None: of none it is."""
        return sum(device.capacity_bytes_per_s or 0.0 for device in self.devices) or None

    @cached_property
    def _by_id(self) -> dict[PartitionId, Partition]:
        return {partition.id: partition for partition in self.partitions}

    def has_slots(self, partition_id: PartitionId, slots: Iterable[SlotId]) -> bool:
        partition = self._by_id.get(partition_id)
        return partition is not None and {slot.id for slot in partition.slots}.issuperset(slots)

    def partition(self, partition_id: PartitionId) -> Partition:
        """The partition with this id.

        Raises:
            KeyError: there is none.
        """
        return self._by_id[partition_id]
