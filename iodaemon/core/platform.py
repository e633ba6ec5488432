"""The machine as the policies see it: partitions (sockets) of slots (cores), and devices."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final, NewType

import msgspec

from iodaemon.core.service import ServiceTimes

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
        """All logical CPUs of it, rising."""
        return sorted({cpu for slot in self.slots[: self.size] for cpu in slot.cpus})


def oversubscribe(partition: Partition, times: int) -> Partition:
    """The partition with every slot handed out this many times; jobs then share its cores.

    Args:
        partition: each slot once.
        times: at least 1.
    """
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

    Args:
        partition: each core once.
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
        """Slots of all partitions together."""
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
        """True when there is such a partition, and all of these slots are in it."""
        partition = self._by_id.get(partition_id)
        return partition is not None and {slot.id for slot in partition.slots}.issuperset(slots)

    def partition(self, partition_id: PartitionId) -> Partition:
        """The partition with this id.

        Raises:
            KeyError: there is none.
        """
        return self._by_id[partition_id]
