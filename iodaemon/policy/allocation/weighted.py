"""As Lustre's allocator: in turn while the disks are about as full, else by weight and by chance.

1. While the emptiest and the fullest disk differ by less than ``threshold`` of the emptiest's free
   space, disks take turns (round_robin's turns); the next one with room is taken.
2. Past that a disk is drawn with a probability in proportion to its weight: the space it would have
   free at its peak over the interval, less its penalty, at least 0. Disks without room have none.
3. A disk that is taken gets a penalty of ``penalty`` of the mean weight, and so do, at half of it,
   the others of its node; all penalties fade by as much as one allocation in as many as there are
   disks, so that who was not taken for a round has none.
4. Without a disk with room the request is refused.

Ours, after Lustre's round-robin and QOS allocators (lustre/lod/lod_qos.c), whose threshold is
43/256, about 17 %. Lustre sees what is free now; this sees the interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from iodaemon.core.job import DiskId
from iodaemon.core.storage import Disk, Refusal, Storage, StorageRequest, StorageView
from iodaemon.policy.allocation.round_robin import Turns, next_disk
from iodaemon.policy.space import no_room, peak_bytes


class Past(msgspec.Struct, frozen=True):
    """What is remembered.

    Attributes:
        turns: of the disks.
        penalties: by disk, bytes; those that have none are not in it.
    """

    turns: Turns = Turns()
    penalties: dict[DiskId, float] = {}


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """In turn, or by free space.

    Attributes:
        threshold: the difference in free space up to which disks take turns, as a part of the most
            that is free, 0 to 1.
        penalty: of a disk that was just taken, as a part of the mean weight, 0 to 1.
    """

    threshold: float = 43 / 256
    penalty: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what is no part."""
        for key in ("threshold", "penalty"):
            if not 0.0 <= getattr(self, key) <= 1.0:
                raise ValueError(f"{key} is {getattr(self, key):g}; it must be from 0 to 1")

    def choose(
        self, view: StorageView, request: StorageRequest, memory: Past | None
    ) -> tuple[DiskId | Refusal, Past | None]:
        """A disk with room."""
        past = memory or Past()
        free = _free(view, request)
        if not any(left >= request.size_bytes for left in free.values()):
            return no_room(request, "every disk"), past
        parts = [free[disk.id] / disk.capacity_bytes for disk in view.storage.disks]
        if max(parts) - min(parts) <= self.threshold * max(parts):
            disk, turns = _in_turn(view.storage, request, free, past.turns)
            return disk.id, Past(turns, past.penalties)
        chosen, weights = _drawn(view, request, free, past.penalties)
        penalties = self._faded(view.storage, chosen, past.penalties, weights)
        return chosen, Past(past.turns, penalties)

    def _faded(
        self,
        storage: Storage,
        chosen: DiskId,
        before: Mapping[DiskId, float],
        weights: Sequence[float],
    ) -> dict[DiskId, float]:
        """The penalties after this choice."""
        count = len(storage.disks)
        full = self.penalty * sum(weights) / count
        left = {disk: amount - full / count for disk, amount in before.items()}
        left = {disk: amount for disk, amount in left.items() if amount > 0.0}
        for node in storage.nodes:
            if any(disk.id == chosen for disk in node.disks):
                for disk in node.disks:
                    added = full if disk.id == chosen else full / 2.0
                    left[disk.id] = left.get(disk.id, 0.0) + added
        return left


def _free(view: StorageView, request: StorageRequest) -> dict[DiskId, int]:
    """What is free of each disk at its peak over the interval."""
    start_s, end_s = request.start_s, request.end_s
    free: dict[DiskId, int] = {}
    for disk in view.storage.disks:
        others = view.overlapping(disk.id, start_s, end_s)
        free[disk.id] = disk.capacity_bytes
        if others:
            free[disk.id] -= peak_bytes(others, start_s, end_s)
    return free


def _in_turn(
    storage: Storage, request: StorageRequest, free: Mapping[DiskId, int], turns: Turns
) -> tuple[Disk, Turns]:
    """The next disk with room; one has it."""
    while True:
        disk, turns = next_disk(storage, turns)
        if free[disk.id] >= request.size_bytes:
            return disk, turns


def _drawn(
    view: StorageView,
    request: StorageRequest,
    free: Mapping[DiskId, int],
    penalties: Mapping[DiskId, float],
) -> tuple[DiskId, list[float]]:
    """A disk by chance, and the weights that it was drawn with; one has room."""
    fitting = [disk for disk, left in free.items() if left >= request.size_bytes]
    weights = [max(0.0, free[disk] - penalties.get(disk, 0.0)) for disk in fitting]
    if sum(weights) <= 0.0:
        weights = [1.0 + free[disk] for disk in fitting]
    return view.rng.choices(fitting, weights)[0], weights
