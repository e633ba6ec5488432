"""Tiers: classes of storage of which jobs get directories of their own for as long as they run."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from iodaemon.core.scratch import TierName
from iodaemon.core.storage import AllocationRule, Disk, Storage

DiskKind = Literal["nvme", "ssd", "hdd", "memory"]


class DiskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is found at the path of a disk.

    Attributes:
        problem: why it cannot be used, and the cure (``supervisor.disk_trouble``); empty: it can.
        obstacle: likewise, where the daemon starts nevertheless, and jobs wait.
        lack: likewise, that it is full; no fault where jobs were promised all of it.
        filesystem: the same for two paths on one filesystem.
        total_bytes: what users can have of the filesystem, when it is empty.
        free_bytes: what they can have of it now.
        is_on_root: it is the filesystem of ``/``.
        kind: of the slowest disk below.
        description: of what is below, for people.
    """

    problem: str = ""
    obstacle: str = ""
    lack: str = ""
    filesystem: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    is_on_root: bool = False
    kind: DiskKind = "hdd"
    description: str = ""


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """A class of storage.

    Attributes:
        name: unique.
        storage: its disks. None: a tier without space to hand out, whose capacity nobody counts.
        bandwidth_bytes_per_s: between the jobs and all of its disks together.
        staging_bytes_per_s: between it and the slowest tier; infinite for that one itself.
        split_bytes: a larger request is split over several disks. None: never.
        rule: which of its disks holds what. None: the first with room.
    """

    name: TierName
    storage: Storage | None
    bandwidth_bytes_per_s: float
    staging_bytes_per_s: float = math.inf
    split_bytes: int | None = None
    rule: AllocationRule[Any] | None = None

    def __post_init__(self) -> None:
        """Refuse what no data can pass."""
        if not min(self.bandwidth_bytes_per_s, self.staging_bytes_per_s) > 0.0:
            raise ValueError(f"tier {self.name}: its bandwidths must be above 0")
        if self.split_bytes is not None and self.split_bytes < 1:
            raise ValueError(f"tier {self.name}: split_bytes must be at least 1")

    @property
    def capacity_bytes(self) -> float:
        """Of all its disks; infinite where nobody counts."""
        return math.inf if self.storage is None else float(self.storage.capacity_bytes)

    @property
    def disks(self) -> tuple[Disk, ...]:
        """All of them; empty where nobody counts."""
        return () if self.storage is None else self.storage.disks
