"""StorAlloc's simulation: requests for intermediate storage, placed by a rule, then replayed.

Source: Monniot, Tessier, Robert, Antoniu, "Supporting Dynamic Allocation of Heterogeneous Storage
Resources on HPC Systems", CCPE 2023. First every request is placed, in the order of the file, with
all earlier placements known; then the placements are replayed in the order of time
(``storalloc_replay``).

A request is split into parts, and the parts are placed one after another. Each part sees the
earlier ones. One that is refused refuses the whole request, and nothing of it is left behind.
``artefact`` keeps the books as the published simulator does: the parts of a split request are
written down with the size of the last one, and those of a refused request stay written down.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.job import DiskId
from iodaemon.core.stock import split
from iodaemon.core.storage import (
    Allocation,
    AllocationRule,
    Disk,
    Refusal,
    Storage,
    StorageLedger,
    StorageNode,
    StorageRequest,
    ask_allocation,
)

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


Bookkeeping = Literal["correct", "artefact"]
STEP_S: Final = 300.0
"""By which a refused request is put off, of StorAlloc's table 2."""
LONGEST_DELAY_S: Final = 3600.0
"""Up to which it is put off, of its table 3."""


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


# -- placing ---------------------------------------------------------------------------------------


class Placing(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are placed.

    Attributes:
        rule: who chooses the disk of a part.
        block_bytes: a larger request is split into blocks of so much, and the rest. None: never.
        bookkeeping: what is written down.
        retries: a refused request that is one part is tried again later and later: it begins later,
            its end stays. A split one is not, as in the published simulator.
    """

    rule: AllocationRule[Any]
    block_bytes: int | None = None
    bookkeeping: Bookkeeping = "correct"
    retries: bool = False

    def __post_init__(self) -> None:
        """Refuse blocks of nothing."""
        if self.block_bytes is not None and self.block_bytes < 1:
            raise ValueError(f"block_bytes is {self.block_bytes}; it must be at least 1")


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request.

    Attributes:
        parts: where it is, part by part, each with its own size; empty where refused.
        sizes: of the parts that it was split into, bytes.
        delay_s: by how much it begins later than it wanted.
        refusal: why not. None: it is placed.
        booked: what was written down, which the one who gives it back strikes out.
    """

    parts: tuple[Allocation, ...] = ()
    sizes: tuple[int, ...] = ()
    delay_s: float = 0.0
    refusal: Refusal | None = None
    booked: tuple[Allocation, ...] = ()


def place(
    placing: Placing,
    ledger: StorageLedger,
    request: StorageRequest,
    memory: Any,
    *,
    unit_bytes: int = 1,
) -> tuple[Placed, Any]:
    """Find disks for the request and write them down.

    Args:
        placing: how.
        ledger: what is taken; has what is placed afterwards.
        request: as it was asked.
        memory: of the rule.
        unit_bytes: parts are rounded up to a multiple of this.
    """
    sizes = split(request.size_bytes, placing.block_bytes, unit_bytes)
    if len(sizes) > 1:
        return _place_parts(placing, ledger, request, sizes, memory)
    wanted = _sized(request, sizes[0])
    while True:
        found, memory = ask_allocation(placing.rule, ledger, wanted, memory)
        delay_s = wanted.start_s - request.start_s
        if not isinstance(found, Refusal):
            part = Allocation(found, sizes[0], wanted.start_s, wanted.end_s)
            ledger.take(part)
            placed = Placed(parts=(part,), sizes=sizes, delay_s=delay_s, booked=(part,))
            return placed, memory
        later_s = wanted.start_s + STEP_S
        if not placing.retries or delay_s >= LONGEST_DELAY_S or later_s >= wanted.end_s:
            return Placed(sizes=sizes, delay_s=delay_s, refusal=found), memory
        wanted = msgspec.structs.replace(wanted, start_s=later_s)


def _sized(request: StorageRequest, size_bytes: int) -> StorageRequest:
    if size_bytes == request.size_bytes:
        return request
    return StorageRequest(
        id=request.id, size_bytes=size_bytes, start_s=request.start_s, end_s=request.end_s
    )


def _place_parts(
    placing: Placing,
    ledger: StorageLedger,
    request: StorageRequest,
    sizes: tuple[int, ...],
    memory: Any,
) -> tuple[Placed, Any]:
    is_correct = placing.bookkeeping == "correct"
    parts: list[Allocation] = []
    booked: list[Allocation] = []
    for size in sizes:
        wanted = _sized(request, size)
        found, memory = ask_allocation(placing.rule, ledger, wanted, memory)
        if isinstance(found, Refusal):
            if is_correct:
                for entry in booked:
                    ledger.give_back(entry)
            return Placed(sizes=sizes, refusal=found), memory
        part = Allocation(found, size, request.start_s, request.end_s)
        entry = part
        if not is_correct:
            entry = Allocation(found, sizes[-1], request.start_s, request.end_s)
        ledger.take(entry)
        parts.append(part)
        booked.append(entry)
    return Placed(parts=tuple(parts), sizes=sizes, booked=tuple(booked)), memory
