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


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """The unit handed out: one core, with the logical CPUs (hardware threads) it consists of."""

    id: SlotId
    cpus: tuple[int, ...]


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of confinement: one CPU socket with its NUMA nodes, or one I/O node.

    Attributes:
        id: its number.
        slots: ordered by id.
        memory_nodes: NUMA nodes that have memory and belong to it; empty where unknown.
        near_devices: devices attached to one of its NUMA nodes; empty where unknown.
    """

    id: PartitionId
    slots: tuple[Slot, ...]
    memory_nodes: tuple[int, ...] = ()
    near_devices: tuple[DeviceId, ...] = ()


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
        return max((len(partition.slots) for partition in self.partitions), default=0)

    @cached_property
    def slot_count(self) -> int:
        """Slots of all partitions together."""
        return sum(len(partition.slots) for partition in self.partitions)

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
