"""Rules for allocation: which disk holds a request for space, one file a rule.

Rules take what is free of a disk on the safe side (``free_bytes``), or exactly (``balanced``).
"""

from __future__ import annotations

from iodaemon.core.job import Reason
from iodaemon.core.storage import Disk, Refusal, StorageRequest, StorageView


def free_bytes(view: StorageView, disk: Disk, request: StorageRequest) -> int:
    """The space left by all allocations that overlap the request; may be below 0.

    On the safe side: two allocations that never meet both count.
    """
    others = view.overlapping(disk.id, request.start_s, request.end_s)
    if not others:
        return disk.capacity_bytes
    return disk.capacity_bytes - sum([other.size_bytes for other in others])


def no_room(request: StorageRequest, asked: str) -> Refusal:
    """The refusal of a request for which no disk that was asked has room.

    Args:
        asked: in words, ``every disk``.
    """
    size = f"{request.size_bytes / 1e9:g} GB"
    text = f"needs {size} on one disk; less is free on {asked} in its time"
    return Refusal(reason=Reason(code="Storage", text=text))
