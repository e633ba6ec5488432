"""StorAlloc's simulation: requests for intermediate storage, placed by a rule, then replayed.

Source: Monniot, Tessier, Robert, Antoniu, "Supporting Dynamic Allocation of Heterogeneous Storage
Resources on HPC Systems", CCPE 2023. First every request is placed, in the order of the file, with
all earlier placements known; then the placements are replayed in the order of time
(``storalloc_replay``).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.job import DiskId
from iodaemon.core.storage import Disk, Storage, StorageLedger, StorageNode, StorageRequest
from iodaemon.policy.placing import Placed, Placing, place

GB: Final = 10**9
TB: Final = 10**12
Layout = Literal["1N1D", "1NnD", "nN1D", "nNnD"]
"""One or several nodes, with one or several disks each (table 3)."""
SHAPES: Final[dict[Layout, tuple[int, int]]] = {
    "1N1D": (1, 1),
    "1NnD": (1, 8),
    "nN1D": (8, 1),
    "nNnD": (4, 2),
}
"""Nodes, and disks of each."""
WRITE_BYTES_PER_S: Final = 2.93e9
READ_BYTES_PER_S: Final = 3.13e9
NETWORK_BYTES_PER_S: Final = 12.5e9
"""Of a disk, and of a node's link; the one disk of ``1N1D`` has half of it."""


class NodeClass(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that are alike.

    Attributes:
        name: before their numbers.
        nodes: how many.
        disks: of each.
        capacity_bytes: of a disk.
        read_bytes_per_s: of a disk.
        write_bytes_per_s: of a disk.
        network_bytes_per_s: of a node.
    """

    name: str
    nodes: int
    disks: int
    capacity_bytes: int
    read_bytes_per_s: float = READ_BYTES_PER_S
    write_bytes_per_s: float = WRITE_BYTES_PER_S
    network_bytes_per_s: float = NETWORK_BYTES_PER_S

    def __post_init__(self) -> None:
        """Refuse what is no node."""
        if self.nodes < 1 or self.disks < 1:
            raise ValueError(f"{self.name}: nodes and disks are at least 1")
        if self.capacity_bytes < 1:
            raise ValueError(f"{self.name}: capacity_bytes is {self.capacity_bytes}; above 0")


def storage_of(classes: Iterable[NodeClass]) -> Storage:
    """All nodes of these classes, behind one server. A disk is called ``node:disk``."""
    nodes = []
    for kind in classes:
        for number in range(kind.nodes):
            name = f"{kind.name}{number}"
            disks = tuple(
                Disk(
                    id=DiskId(f"{name}:{place}"),
                    capacity_bytes=kind.capacity_bytes,
                    read_bytes_per_s=kind.read_bytes_per_s,
                    write_bytes_per_s=kind.write_bytes_per_s,
                )
                for place in range(kind.disks)
            )
            nodes.append(
                StorageNode(id=name, disks=disks, network_bytes_per_s=kind.network_bytes_per_s)
            )
    return Storage(nodes=tuple(nodes))


def layout(name: Layout, capacity_tb: float) -> Storage:
    """The platforms of table 3: so much in all, evenly over the disks."""
    nodes, disks = SHAPES[name]
    part = 0.5 if name == "1N1D" else 1.0
    kind = NodeClass(
        name="node",
        nodes=nodes,
        disks=disks,
        capacity_bytes=round(capacity_tb * TB) // (nodes * disks),
        read_bytes_per_s=READ_BYTES_PER_S * part,
        write_bytes_per_s=WRITE_BYTES_PER_S * part,
    )
    return storage_of([kind])


class Decision(msgspec.Struct, frozen=True):
    """A request, and what the rule made of it."""

    request: StorageRequest
    placed: Placed


def decide(
    storage: Storage, placing: Placing, requests: Sequence[StorageRequest], seed: int
) -> list[Decision]:
    """Place all requests, one after the other.

    Args:
        storage: empty at first.
        placing: how.
        requests: in the order in which they are asked, whatever their times; what has ended before
            all that still come is forgotten, so that one in the order of time is fast.
        seed: of what is random.
    """
    rng = random.Random(f"storalloc rule {seed}")  # noqa: S311 - for experiments, no secrets
    ledger = StorageLedger(storage, rng)
    memory: Any = None
    decisions = []
    for request, earliest_s in zip(requests, earliest_starts_s(requests), strict=True):
        ledger.forget(earliest_s)
        placed, memory = place(placing, ledger, request, memory, unit_bytes=GB)
        decisions.append(Decision(request, placed))
    return decisions


def earliest_starts_s(requests: Sequence[StorageRequest]) -> list[float]:
    """For each the earliest start among it and all that come after it."""
    starts = [request.start_s for request in reversed(requests)]
    return list(itertools.accumulate(starts, min))[::-1]
