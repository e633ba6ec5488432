"""What is free of a disk, on the safe side and exactly; and how a refusal is said."""

from __future__ import annotations

from collections.abc import Sequence

from iodaemon.core.job import Reason
from iodaemon.core.storage import Allocation, Disk, Refusal, StorageRequest, StorageView


def free_bytes(view: StorageView, disk: Disk, request: StorageRequest) -> int:
    """What all allocations leave that are there at any time of the request; may be below 0.

    On the safe side: two that never meet both count.
    """
    others = view.overlapping(disk.id, request.start_s, request.end_s)
    if not others:
        return disk.capacity_bytes
    return disk.capacity_bytes - sum([other.size_bytes for other in others])


def peak_bytes(others: Sequence[Allocation], start_s: float, end_s: float) -> int:
    """The most that is taken at one time between; those that overlap the interval are given."""
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


def no_room(request: StorageRequest, asked: str) -> Refusal:
    """Nothing of what was asked has room.

    Args:
        request: which.
        asked: in words, ``every disk``.
    """
    size = f"{request.size_bytes / 1e9:g} GB"
    text = f"needs {size} on one disk; less is free on {asked} in its time"
    return Refusal(reason=Reason(code="Storage", text=text))
