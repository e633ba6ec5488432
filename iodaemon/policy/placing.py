"""From a request for space to allocations: split into parts, the parts placed one after another.

Each part sees the earlier ones. One that is refused refuses the whole request, and nothing of it
is left behind. ``artefact`` keeps the books as the published simulator of StorAlloc does: the
parts of a split request are written down with the size of the last one, and those of a refused
request stay written down.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from iodaemon.core.stock import split
from iodaemon.core.storage import (
    Allocation,
    AllocationRule,
    Refusal,
    StorageLedger,
    StorageRequest,
    ask_allocation,
)

Bookkeeping = Literal["correct", "artefact"]
STEP_S: Final = 300.0
"""By which a refused request is put off, of StorAlloc's table 2."""
LONGEST_DELAY_S: Final = 3600.0
"""Up to which it is put off, of its table 3."""


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
