"""The disk that still writes fastest if all that is allocated does I/O all the time.

With D the length of the request, o the allocations of a disk that overlap it, m the longest single
overlap, W what the disk writes:

1. A disk with none offers W, another ((D - m) W + m W / (|o| + 1)) / D, rounded to MB/s.
2. A node offers its network less what its disks with an overlap can read together; if nothing is
   left, its network / (number of these disks + 1).
3. A disk is worth the smaller of both. Disks on which less is free than is wanted are no
   candidates; free is what all overlapping allocations leave.
4. The best candidate is taken, one of equals at random; without any the request is refused.

That a node's network is reckoned with reads and a disk with writes is the published simulator's.
An unknown end counts as the worst: m / D is 1 where something overlaps.

Source: Monniot, Tessier, Robert, Antoniu, CCPE 2023 (StorAlloc), section 4.2, and what the
published simulator does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from iodaemon.core.job import DiskId
from iodaemon.core.storage import Allocation, Refusal, StorageNode, StorageRequest, StorageView
from iodaemon.policy.allocation import no_room

_GB: Final = 1e9
_DIGITS: Final = 3
"""Of a bandwidth in GB/s: two disks within half a MB/s are often equal."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The best bandwidth in the worst case; it has no parameters."""

    def choose(
        self, view: StorageView, request: StorageRequest, memory: None
    ) -> tuple[DiskId | Refusal, None]:
        best = -math.inf
        chosen: list[DiskId] = []
        for node in view.storage.nodes:
            offered, rest = _offers(view, node, request)
            for disk, gb_per_s in offered:
                worth = gb_per_s if gb_per_s < rest else rest  # noqa: FURB136 - max() is slow
                if worth > best:
                    best, chosen = worth, [disk]
                elif worth == best:
                    chosen.append(disk)
        if not chosen:
            return no_room(request, "every disk"), memory
        return view.rng.choice(chosen), memory


def _offers(
    view: StorageView, node: StorageNode, request: StorageRequest
) -> tuple[list[tuple[DiskId, float]], float]:
    """The node's disks with room, what each offers by itself, and what the node offers, GB/s."""
    start_s, end_s, wanted = request.start_s, request.end_s, request.size_bytes
    busy, busy_gb_per_s = 0, 0.0
    offered: list[tuple[DiskId, float]] = []
    for disk in node.disks:
        others = view.overlapping(disk.id, start_s, end_s)
        write = disk.write_bytes_per_s / _GB
        if not others:
            if disk.capacity_bytes >= wanted:
                offered.append((disk.id, write))
            continue
        busy += 1
        busy_gb_per_s += disk.read_bytes_per_s / _GB
        if disk.capacity_bytes - sum([other.size_bytes for other in others]) >= wanted:
            offered.append((disk.id, worst_gb_per_s(write, others, request)))
    network = node.network_bytes_per_s / _GB
    return offered, network - busy_gb_per_s if busy_gb_per_s < network else network / (busy + 1)


def worst_gb_per_s(write: float, others: Sequence[Allocation], request: StorageRequest) -> float:
    """What a disk offers beside these others, GB/s.

    Args:
        write: what it writes alone, GB/s.
        others: those that overlap the request; at least one.
    """
    start_s, end_s = request.start_s, request.end_s
    shared = write / (len(others) + 1)
    length_s = end_s - start_s
    if length_s == math.inf:
        return round(shared, _DIGITS)
    longest_s = 0.0
    for other in others:
        from_s = other.start_s if other.start_s > start_s else start_s  # noqa: FURB136 - max() is slow
        beside_s = (other.end_s if other.end_s < end_s else end_s) - from_s  # noqa: FURB136 - max() is slow
        if beside_s > longest_s:
            longest_s = beside_s
    return round(((length_s - longest_s) * write + longest_s * shared) / length_s, _DIGITS)
