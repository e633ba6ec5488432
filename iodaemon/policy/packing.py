"""Which jobs run together: packs by processors and I/O, and packs over partitions.

Idea: a pack is a set of jobs that start together on one partition; the next one starts when the
last job of it has ended. Jobs of similar length share a pack, as long as the partition has the
slots and its I/O resource the bandwidth for all of them.

Source: Carretero, Jeannot, Pallez, Singh, Vidal, ICS 2020, section 5.2, algorithm 1 (Make-Pack)
and section 6.2.4 (LPT). Symbols: Q_i slots, T_i alone_s, V_i volume_bytes, P slots of a partition,
b its bandwidth, S stretch_bound; of a pack P_pack slots, T_pack alone_s, and
L_pack = volume_bytes / (b * T_pack).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

_ROUNDING: Final = 1e-9
"""Relative; sums of a thousand volumes err by 1e-13 at most."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """What packing needs to know of a job.

    Attributes:
        id: tells it from the others, and breaks ties.
        slots: Q_i.
        alone_s: T_i, its length without contention, above 0.
        volume_bytes: V_i, all that it reads and writes.
    """

    id: int
    slots: int
    alone_s: float
    volume_bytes: float


class Pack(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that run together.

    Attributes:
        items: in the order in which they were put in: never longer than the one before.
    """

    items: tuple[Item, ...]

    @property
    def slots(self) -> int:
        """P_pack: what all together hold."""
        return sum(item.slots for item in self.items)

    @property
    def alone_s(self) -> float:
        """T_pack: the longest of them without contention, s."""
        return max((item.alone_s for item in self.items), default=0.0)

    @property
    def volume_bytes(self) -> float:
        """What all together read and write."""
        return sum(item.volume_bytes for item in self.items)


def make_packs(
    items: Iterable[Item],
    *,
    slots: int,
    stretch_bound: float,
    bandwidth_bytes_per_s: float,
    fullest_first: bool = True,
) -> tuple[Pack, ...]:
    """Make-Pack(S): jobs by decreasing length, each into the first pack where it fits.

    It fits where Q_i <= P - P_pack (equation 5) and V_i <= (S - L_pack) * b * T_pack (equation 4,
    whose two sides count as equal where they differ by rounding alone: 0.57 * 100 is less than 57
    in floating point); where it fits nowhere it
    opens a pack, whatever its volume. S is infinite for First-Fit, which knows nothing of I/O.

    Args:
        items: in any order; equal lengths go by id.
        slots: P.
        stretch_bound: S, above 0; ``math.inf``: First-Fit.
        bandwidth_bytes_per_s: b, above 0.
        fullest_first: the packs are looked at by decreasing slots in use, the older first among
            equals, as printed; else in the order in which they were opened.

    Returns:
        The packs in the order in which they were opened, that is by decreasing T_pack.

    Raises:
        ValueError: a job needs more than P slots.
    """
    budget = stretch_bound * bandwidth_bytes_per_s
    opened: list[_Open] = []
    looked_at: list[_Open] = []
    for item in sorted(items, key=lambda item: (-item.alone_s, item.id)):
        if item.slots > slots:
            raise ValueError(f"job {item.id}: needs {item.slots} slots, a pack has {slots}")
        pack = _first_fit(looked_at, item)
        if pack is None:
            volume_bytes = math.inf if math.isinf(budget) else budget * item.alone_s
            pack = _Open(number=len(opened), slots_free=slots, volume_bytes=volume_bytes, items=[])
            opened.append(pack)
            looked_at.append(pack)
        pack.put(item)
        if fullest_first:
            looked_at.sort(key=lambda pack: (pack.slots_free, pack.number))
    return tuple(Pack(items=tuple(pack.items)) for pack in opened)


def assign(lengths_s: Sequence[float], bins: int) -> tuple[int, ...]:
    """LPT: the longest first, each to the bin that would be free soonest.

    Args:
        lengths_s: of the packs without contention; equal ones go by index.
        bins: how many partitions there are, at least 1; equal loads go to the smaller number.

    Returns:
        The bin of each pack, in the order given.
    """
    loads = [(0.0, number) for number in range(bins)]
    chosen = [0] * len(lengths_s)
    for index in sorted(range(len(lengths_s)), key=lambda index: (-lengths_s[index], index)):
        load_s, number = loads[0]
        heapq.heapreplace(loads, (load_s + lengths_s[index], number))
        chosen[index] = number
    return tuple(chosen)


class _Open(msgspec.Struct):
    """A pack that is being filled: what it still has room for."""

    number: int
    slots_free: int
    volume_bytes: float
    items: list[Item]
    taken_bytes: float = 0.0

    def put(self, item: Item) -> None:
        self.items.append(item)
        self.slots_free -= item.slots
        self.taken_bytes += item.volume_bytes


def _first_fit(packs: Iterable[_Open], item: Item) -> _Open | None:
    slots, volume_bytes = item.slots, item.volume_bytes
    for pack in packs:
        most_bytes = pack.volume_bytes * (1.0 + _ROUNDING)
        if slots <= pack.slots_free and pack.taken_bytes + volume_bytes <= most_bytes:
            return pack
    return None
