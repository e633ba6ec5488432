"""The emptiest disk: the one with the largest part of it free over the request's interval.

Free is what all allocations leave that are there at any time of the interval; the part is of the
disk's capacity, so that of two disks with one load the larger is taken. One of equals is taken at
random. It never refuses: where nothing fits, it is found out by whoever takes the space.

The paper's words ("disks are filled until no more space is available") are not what its simulator
does; this is. Source: Monniot, Tessier, Robert, Antoniu, CCPE 2023 (StorAlloc), section 4.2.
"""

from __future__ import annotations

import msgspec

from iodaemon.core.job import DiskId
from iodaemon.core.storage import Refusal, StorageRequest, StorageView
from iodaemon.policy.allocation import free_bytes


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The emptiest disk, in percent; it has no parameters."""

    def choose(
        self, view: StorageView, request: StorageRequest, memory: None
    ) -> tuple[DiskId | Refusal, None]:
        disks = view.storage.disks
        parts = [free_bytes(view, disk, request) * 100 / disk.capacity_bytes for disk in disks]
        most = max(parts)
        emptiest = [disk for disk, part in zip(disks, parts, strict=True) if part == most]
        return view.rng.choice(emptiest).id, memory
