"""One disk after the other: servers in turn, nodes in turn, each node's disks in turn.

1. The servers alternate. Once all had their turn, the next node of each is asked.
2. A node that is asked offers its next disk: each counts for itself.
3. The disk is taken if what is free of it is more than what is wanted; free is what all
   allocations leave that are there at any time of the request's interval.
4. Else the next one is asked, ``attempts`` disks in all. Then the request is refused.

Free is reckoned on the safe side: two allocations that never meet both count. And what is exactly
as large as what is free is not taken.

Source: Monniot, Tessier, Robert, Antoniu, CCPE 2023 (StorAlloc), section 4.2, and what the
published simulator does.
"""

from __future__ import annotations

import msgspec

from iodaemon.core.job import DiskId
from iodaemon.core.storage import Disk, Refusal, Storage, StorageRequest, StorageView
from iodaemon.policy.allocation import free_bytes, no_room


class Turns(msgspec.Struct, frozen=True):
    """Where the turns stand.

    Attributes:
        asked: disks that were asked so far.
        disks: how often each node was, by its id.
    """

    asked: int = 0
    disks: dict[str, int] = {}


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The next disk with room.

    Attributes:
        attempts: disks that are asked for a request, at least 1.
    """

    attempts: int = 5

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; it must be at least 1")

    def choose(
        self, view: StorageView, request: StorageRequest, memory: Turns | None
    ) -> tuple[DiskId | Refusal, Turns | None]:
        turns = memory or Turns()
        for _ in range(self.attempts):
            disk, turns = next_disk(view.storage, turns)
            if free_bytes(view, disk, request) > request.size_bytes:
                return disk.id, turns
        return no_room(request, f"the next {self.attempts} disks"), turns


def next_disk(storage: Storage, turns: Turns) -> tuple[Disk, Turns]:
    """Whose turn it is, and where the turns stand then."""
    servers = storage.servers
    round_, place = divmod(turns.asked, len(servers))
    nodes = servers[place]
    node = nodes[round_ % len(nodes)]
    asked = turns.disks.get(node.id, 0)
    disks = {**turns.disks, node.id: asked + 1}
    return node.disks[asked % len(node.disks)], Turns(turns.asked + 1, disks)
