"""From a request for space to shares of disks: split into parts, placed one after another.

Pure: what is taken is looked at, and nothing is written down. Each part sees the earlier ones;
one that is refused refuses the whole request. Space that a job holds is held until it is given
back, however long that takes: no allocation has an end.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Final

from iodaemon.core.job import Reason
from iodaemon.core.scratch import DiskId, ScratchRequest, Share, TierName
from iodaemon.core.size import told_bytes
from iodaemon.core.storage import (
    Allocation,
    Refusal,
    Storage,
    StorageRequest,
    StorageView,
    ask_allocation,
)
from iodaemon.core.tier import Tier

NO_SPACE: Final = "Storage"
"""The word for a job for which a tier has no room now."""
NO_SPACE_AT_ALL: Final = "StorageFull"
"""Likewise, of a job that asked to fail then."""
MOST_PARTS: Final = 1000
"""Of one request: each is placed beside all earlier ones, 0.1 s of CPU for so many."""


class Sketch:
    """What is taken of a storage, and what would be as well.

    Args:
        below: what is taken.
        rng: of this sketch. None: that of ``below``.
        without: of these it is as if they had been given back.
    """

    def __init__(
        self,
        below: StorageView,
        rng: random.Random | None = None,
        without: frozenset[Allocation] = frozenset(),
    ) -> None:
        self._below = below
        self._rng = rng
        self._without = without
        self._added: dict[DiskId, list[Allocation]] = {}

    @property
    def storage(self) -> Storage:
        """What can be handed out."""
        return self._below.storage

    @property
    def rng(self) -> random.Random:
        """Seeded."""
        return self._below.rng if self._rng is None else self._rng

    def overlapping(self, disk: DiskId, start_s: float, end_s: float) -> Sequence[Allocation]:
        """What of this disk is taken at any time between, and what would be."""
        taken = self._below.overlapping(disk, start_s, end_s)
        if self._without:
            taken = [each for each in taken if each not in self._without]
        added = self._added.get(disk)
        return taken if added is None else [*taken, *added]

    def take(self, share: Share) -> None:
        """From now on it would be taken."""
        self._added.setdefault(share.disk, []).append(held(share))


def held(share: Share) -> Allocation:
    """What a share takes of its disk: for as long as anybody knows."""
    return Allocation(share.disk, share.size_bytes, -math.inf, math.inf)


def split(size_bytes: int, block_bytes: int | None, unit_bytes: int = 1) -> tuple[int, ...]:
    """The sizes of the parts: as many whole blocks as there are, and the rest.

    Args:
        size_bytes: above 0.
        block_bytes: None: one part.
        unit_bytes: each part is rounded up to a multiple of this.
    """
    if block_bytes is None or size_bytes <= block_bytes:
        return (-(-size_bytes // unit_bytes) * unit_bytes,)
    blocks, rest = divmod(size_bytes, block_bytes)
    sizes = [block_bytes] * blocks + [rest] * (rest > 0)
    return tuple(-(-size // unit_bytes) * unit_bytes for size in sizes)


def allot(
    tier: Tier, view: StorageView, request: StorageRequest, memory: Any
) -> tuple[tuple[Share, ...] | Refusal, Any]:
    """Shares of the tier's disks for the request, one for each disk; or why not.

    A rule may choose a disk without looking at what is free of it, or refuse though one has room:
    then it is the first that has. So on disks with room for all parts nobody is refused.

    Args:
        tier: with disks.
        view: what is taken of them.
        request: as it was asked.
        memory: of the tier's rule.
    """
    if not could_ever_fit(tier, request.size_bytes):
        return Refusal(reason=_lacks("no disk has room for it")), memory
    sketch = Sketch(view)
    sizes: dict[DiskId, int] = {}
    for size in split(request.size_bytes, tier.split_bytes):
        part = StorageRequest(
            id=request.id, size_bytes=size, start_s=request.start_s, end_s=request.end_s
        )
        found: DiskId | Refusal
        if tier.rule is None:
            found = _first_with_room(sketch, part)
        else:
            found, memory = ask_allocation(tier.rule, sketch, part, memory, tier=tier.name)
        if isinstance(found, Refusal) or free_of(sketch, found) < size:
            found = _first_with_room(sketch, part)
        if isinstance(found, Refusal):
            return found, memory
        sketch.take(Share(tier=tier.name, disk=found, size_bytes=size))
        sizes[found] = sizes.get(found, 0) + size
    shares = (Share(tier=tier.name, disk=disk, size_bytes=size) for disk, size in sizes.items())
    return tuple(shares), memory


def free_of(view: StorageView, disk: DiskId) -> int:
    """What is not taken of a disk, bytes; below 0 where it was more once."""
    taken = sum(each.size_bytes for each in view.overlapping(disk, -math.inf, math.inf))
    return view.storage.by_id[disk].capacity_bytes - taken


def could_ever_fit(tier: Tier, size_bytes: int) -> bool:
    """Whether so much fits the tier when all of it is free, split as it splits.

    Blocks fill any disk to the same rest, whatever the order; so this is exact. More parts than
    ``MOST_PARTS`` never do. No part is looked at, however large the request is.
    """
    if tier.storage is None:
        return True
    block = tier.split_bytes
    capacities = [disk.capacity_bytes for disk in tier.storage.disks]
    if block is None or size_bytes <= block:
        return size_bytes <= max(capacities)
    if size_bytes > block * MOST_PARTS:
        return False
    blocks, rest = divmod(size_bytes, block)
    room = sum(capacity // block for capacity in capacities)
    return blocks < room or (
        blocks == room and rest <= max(capacity % block for capacity in capacities)
    )


def largest_directory_bytes(tier: Tier, size_bytes: int) -> int:
    """What the largest directory of a request has at least, wherever the rule puts its parts.

    Parts on one disk are one directory. They are spread most evenly where no disk has more than
    the smallest number of blocks with which all of them find room.
    """
    block = tier.split_bytes
    if tier.storage is None or block is None or size_bytes <= block:
        return size_bytes
    left, rest = divmod(size_bytes, block)
    rooms = sorted(disk.capacity_bytes // block for disk in tier.storage.disks)
    for place, room in enumerate(rooms):
        most, over = divmod(left, len(rooms) - place)
        if room > most or (room == most and not over):
            is_level = not place and not over  # whichever disk has the rest has as many blocks
            return (most + (over > 0)) * block + (rest if is_level else 0)
        left -= room
    return size_bytes  # it never fits


def could_ever_hold(tier: Tier, request: ScratchRequest) -> bool:
    """Whether the request fits when all of the tier is free, and its input one directory."""
    return could_ever_fit(tier, request.size_bytes) and _takes_input(tier, request)


def _takes_input(tier: Tier, request: ScratchRequest) -> bool:
    """Whether one directory surely has room for all that is copied in."""
    return request.whole_bytes <= largest_directory_bytes(tier, request.size_bytes)


def candidates(
    tiers: Sequence[Tier], request: ScratchRequest, named: TierName | None = None
) -> list[Tier]:
    """The tiers that may serve the request, in this order; empty where there is none.

    One that names no tier gets the fastest that has disks large enough for it. One that may not
    hold its input in one directory is left out if another tier may.

    Args:
        tiers: fastest first.
        request: as it was asked.
        named: the one that the admission rule wants, and no other.
    """
    name = named or request.tier
    wanted = [tier for tier in tiers if tier.name == name] if name else _fastest(tiers, request)
    if named is None and request.fallback == "slow" and tiers and tiers[-1] not in wanted:
        wanted.append(tiers[-1])
    return [tier for tier in wanted if _takes_input(tier, request)] or wanted


def _fastest(tiers: Sequence[Tier], request: ScratchRequest) -> list[Tier]:
    with_disks = [tier for tier in tiers if tier.storage is not None]
    large = [tier for tier in with_disks if could_ever_fit(tier, request.size_bytes)]
    whole = [tier for tier in large if could_ever_hold(tier, request)]
    return (whole or large or list(tiers))[:1]


def why_never(
    tiers: Sequence[Tier], request: ScratchRequest, *, any_tier: bool = False
) -> str | None:
    """Why the request can never be met on these tiers, and what to do; None: it can.

    Args:
        tiers: fastest first.
        request: as it was asked.
        any_tier: the admission rule chooses among all for who names none.
    """
    if request.tier is not None and all(tier.name != request.tier for tier in tiers):
        names = ", ".join(tier.name for tier in tiers) or "none"
        return f"asks for tier {request.tier}, which is not configured; there are: {names}"
    asked = candidates(tiers, request)
    if any_tier and request.tier is None:
        asked = [*asked, *(tier for tier in tiers if tier not in asked)]
    if any(could_ever_hold(tier, request) for tier in asked):
        return None
    if not asked:
        return "asks for scratch space, and no tier of storage is configured; go without"
    if large := [tier for tier in asked if could_ever_fit(tier, request.size_bytes)]:
        return _too_large_an_input(large[0], request)
    size = told_bytes(request.size_bytes)
    most = _most(asked[0], request.size_bytes)
    return f"asks for {size} of tier {most}; ask for less, or of another tier"


def no_space(
    tier: Tier, view: StorageView, request: ScratchRequest, *, ends: bool, out: str = ""
) -> Reason:
    """That the tier has no room for the request now.

    Args:
        tier: with disks.
        view: what is taken of them.
        request: which.
        ends: the job asked to fail then.
        out: which of its disks are of no use now, and why.
    """
    free = [max(0, free_of(view, disk.id)) for disk in view.storage.disks]
    size = told_bytes(request.size_bytes)
    is_split = tier.split_bytes is not None and request.size_bytes > tier.split_bytes
    parts = f" in parts of {told_bytes(tier.split_bytes or 0)}" if is_split else " on one disk"
    left = f"{told_bytes(sum(free))} of it are free"
    if len(free) > 1:
        left += f", at most {told_bytes(max(free))} on one disk"
    left += f"; not usable: {out}" if out else ""
    reason = _lacks(f"needs {size} of tier {tier.name}{parts}; {left}")
    if not ends:
        return reason
    text = f"{reason.text}; it asked to fail then (--scratch-fallback)"
    return Reason(code=NO_SPACE_AT_ALL, text=text)


def _lacks(text: str) -> Reason:
    return Reason(code=NO_SPACE, text=text)


def _most(tier: Tier, size_bytes: int) -> str:
    assert tier.storage is not None
    capacities = [disk.capacity_bytes for disk in tier.storage.disks]
    block = tier.split_bytes
    if block is not None and block * MOST_PARTS < size_bytes <= sum(capacities):
        return f"{tier.name}, which is split into {MOST_PARTS} parts of {told_bytes(block)} at most"
    if len(capacities) == 1:
        return f"{tier.name}, which has {told_bytes(capacities[0])}"
    if tier.split_bytes is None:
        largest = told_bytes(max(capacities))
        return f"{tier.name}, whose largest disk has {largest} and which is not split"
    return f"{tier.name}, which has {told_bytes(sum(capacities))} on {len(capacities)} disks"


def _too_large_an_input(tier: Tier, request: ScratchRequest) -> str:
    has, size = told_bytes(request.input_bytes), request.size_bytes
    most = told_bytes(largest_directory_bytes(tier, size))
    return (
        f"its input has {has}, and of {told_bytes(size)} on tier {tier.name}, which come in parts "
        f"of {told_bytes(tier.split_bytes or 0)}, one directory may have no more than {most}; ask "
        "for more, or for a tier that is not split, or read the input where it is"
    )


def _first_with_room(view: StorageView, request: StorageRequest) -> DiskId | Refusal:
    for disk in view.storage.disks:
        if free_of(view, disk.id) >= request.size_bytes:
            return disk.id
    return Refusal(reason=_lacks("no disk has room for it"))
