"""The disk with the most left, of time and of bandwidth, by what is predicted for the interval.

1. A disk is a candidate if it has room at every instant of the interval: by the exact peak, not
   by the sum of all that overlaps, so that nothing is refused that would have fitted.
2. Its load is the mean number of allocations over the interval, each weighted by the time for which
   both are there, per bandwidth of the disk: the bytes/s that a newcomer must expect to lose. An
   allocation without known end is there all the time.
3. The least load is taken; of equal loads the disk of which the least part overlaps; of these
   one at random. A node whose link is less than its disks counts the link: its load is that
   of all its disks together, per bandwidth of the link, if that is more.
4. Without a candidate the request is refused.

Ours; beside the rules of StorAlloc in experiment ``storalloc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from iodaemon.core.job import DiskId
from iodaemon.core.storage import Allocation, Refusal, StorageNode, StorageRequest, StorageView
from iodaemon.policy.allocation import no_room

_Rank = tuple[float, float]
"""Load, then the part taken; the least is best."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The least predicted load; it has no parameters."""

    def choose(
        self, view: StorageView, request: StorageRequest, memory: None
    ) -> tuple[DiskId | Refusal, None]:
        best: _Rank = (math.inf, math.inf)
        chosen: list[DiskId] = []
        for node in view.storage.nodes:
            for disk, rank in _ranks(view, node, request):
                if rank < best:
                    best, chosen = rank, [disk]
                elif rank == best:
                    chosen.append(disk)
        if not chosen:
            return no_room(request, "every disk"), memory
        return view.rng.choice(chosen), memory


def _ranks(
    view: StorageView, node: StorageNode, request: StorageRequest
) -> list[tuple[DiskId, _Rank]]:
    """The node's disks with room."""
    start_s, end_s, wanted = request.start_s, request.end_s, request.size_bytes
    found: list[tuple[DiskId, float, float]] = []
    together = 1.0
    for disk in node.disks:
        others = view.overlapping(disk.id, start_s, end_s)
        if not others:
            if disk.capacity_bytes >= wanted:
                found.append((disk.id, 1.0 / disk.write_bytes_per_s, 0.0))
            continue
        shared = mean_count(others, request)
        together += shared
        taken = sum([other.size_bytes for other in others])
        if taken + wanted <= disk.capacity_bytes or (
            peak_bytes(others, start_s, end_s) + wanted <= disk.capacity_bytes
        ):
            load = (shared + 1.0) / disk.write_bytes_per_s
            found.append((disk.id, load, taken / disk.capacity_bytes))
    at_link = together / node.network_bytes_per_s
    return [(disk, (max(load, at_link), part)) for disk, load, part in found]


def mean_count(others: Sequence[Allocation], request: StorageRequest) -> float:
    """The mean number of these allocations over the interval of the request."""
    start_s, end_s = request.start_s, request.end_s
    length_s = end_s - start_s
    if length_s == math.inf:
        return float(len(others))
    beside_s = 0.0
    for other in others:
        from_s = other.start_s if other.start_s > start_s else start_s  # noqa: FURB136 - max() is slow
        beside_s += (other.end_s if other.end_s < end_s else end_s) - from_s  # noqa: FURB136 - max() is slow
    return beside_s / length_s


def peak_bytes(others: Sequence[Allocation], start_s: float, end_s: float) -> int:
    """The peak of these allocations, which overlap the interval, within it."""
    if len(others) < 2:
        return sum(other.size_bytes for other in others)
    changes = [(max(other.start_s, start_s), other.size_bytes) for other in others]
    changes += [(other.end_s, -other.size_bytes) for other in others if other.end_s < end_s]
    changes.sort()  # at one instant what ends goes first: its change is below 0
    most = taken = 0
    for _, change in changes:
        taken += change
        most = max(most, taken)
    return most
