"""What will be free when: slots and space, by the expected ends of those that hold them.

Nothing is ever taken in it but what is taken now, so that what is free only grows.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from iodaemon.core.job import DiskId, Job, JobId, Share, TierName
from iodaemon.core.platform import PartitionId
from iodaemon.core.storage import StorageView, Tier
from iodaemon.core.view import PlacementView
from iodaemon.policy.staging import have_room

NEVER = -1
"""In place of an index: as far as is known, never."""


class TieredView(PlacementView, Protocol):
    """Slots, jobs and tiers."""

    @property
    def tiers(self) -> Sequence[Tier]:
        """The fastest first."""
        ...

    def ledger(self, tier: TierName) -> StorageView:
        """What is taken of its disks."""
        ...


End = tuple[float, JobId, Job]
"""When a job that holds something is expected to have ended."""


def ends_of(jobs: Iterable[Job], end_of: Callable[[Job], float]) -> list[End]:
    """The expected ends of those that have one, in their order."""
    ends = [(end_of(job), job.id, job) for job in jobs]
    return sorted([each for each in ends if each[0] < math.inf])


class Prospect:
    """Moments from now on, at each of which more is free; found by their index.

    Moment 0 is now, with what is free; of those that are to end now as well, which have not yet,
    the room comes with moment 1.

    Args:
        view: what is free now; a draft is without what has started on it.
        now_s: the instant.
        ends: those that hold something and are expected to end, in that order (``ends_of``).

    Attributes:
        times_s: of the moments.
    """

    def __init__(self, view: TieredView, now_s: float, ends: Sequence[End]) -> None:
        self._ends = ends
        self.times_s = [now_s, *[each[0] for each in ends]]
        self._view = view
        self._slots = {p.id: self._slots_of(p.id, p.size) for p in view.platform.partitions}
        self._disks: dict[TierName, list[list[int]]] = {}

    def slots_from(self, cpus: int) -> int:
        """From which moment on one partition has so many slots; ``NEVER``."""
        first = len(self.times_s)
        for free in self._slots.values():
            first = min(first, bisect_left(free, cpus))
        return first if first < len(self.times_s) else NEVER

    def partition_at(self, moment: int) -> PartitionId:
        """That with the most free slots then; of equals the lowest number."""
        return max(self._slots, key=lambda number: (self._slots[number][moment], -number))

    def slots_at(self, moment: int, partition: PartitionId) -> int:
        """Free slots of the partition then."""
        return self._slots[partition][moment]

    def room_from(self, tier: TierName | None, parts: Sequence[int]) -> int:
        """From which moment on the tier's disks have room for the parts; ``NEVER``."""
        if not parts or tier is None:
            return 0
        disks = self._disks.get(tier) or self._free_of(tier)
        if len(disks) == 1 and len(parts) == 1:
            first = bisect_left(disks[0], parts[0])
        else:
            moments = range(len(self.times_s))
            first = bisect_left(
                moments, 1, key=lambda at: int(have_room([free[at] for free in disks], parts))
            )
        return first if first < len(self.times_s) else NEVER

    def most_now(self, tier: TierName) -> int:
        """What is free now of its disk that has most."""
        return max(free[0] for free in self._free_of(tier))

    def has_room_beside(
        self, moment: int, tier: TierName, parts: Sequence[int], shares: Iterable[Share]
    ) -> bool:
        """Whether the parts have room then if the shares are taken as well, and stay."""
        taken: dict[DiskId, int] = {}
        for share in shares:
            if share.tier == tier:
                taken[share.disk] = taken.get(share.disk, 0) + share.size_bytes
        names = self._names(tier)
        free = [
            held[moment] - taken.get(name, 0)
            for name, held in zip(names, self._free_of(tier), strict=True)
        ]
        return have_room(free, parts)

    def free_at(self, moment: int, tier: TierName) -> int:
        """Bytes of all its disks together that are free then."""
        return sum(free[moment] for free in self._free_of(tier))

    def last_until(self, time_s: float) -> int:
        """The last moment that is not after this time."""
        return max(0, bisect_right(self.times_s, time_s) - 1)

    def _slots_of(self, partition: PartitionId, size: int) -> list[int]:
        free = self._view.slots_free(partition)
        size, found = max(size, free), [free]  # more where regulation lets more share the cores
        for _, _, job in self._ends:
            if job.partition == partition:
                free = min(size, free + job.spec.cpus)
            found.append(free)
        return found

    def _names(self, tier: TierName) -> list[DiskId]:
        return [disk.id for disk in self._view.ledger(tier).storage.disks]

    def _free_of(self, tier: TierName) -> list[list[int]]:
        """A list a disk: free bytes by moment."""
        found = self._disks.get(tier)
        if found is None:
            found = self._disks[tier] = self._made(tier)
        return found

    def _made(self, tier: TierName) -> list[list[int]]:
        ledger, now_s = self._view.ledger(tier), self.times_s[0]
        free = {
            disk.id: disk.capacity_bytes
            - sum(each.size_bytes for each in ledger.overlapping(disk.id, now_s, math.inf))
            for disk in ledger.storage.disks
        }
        found = {name: [left] for name, left in free.items()}
        for _, _, job in self._ends:
            for share in job.shares:
                if share.tier == tier:
                    free[share.disk] += share.size_bytes
            for name, left in free.items():
                found[name].append(left)
        return list(found.values())
