"""Flows over a fair link, and the lanes that hold those of one pace."""

from __future__ import annotations

import heapq
import math
from typing import Any

Entry = tuple[float, int, int, Any]
"""When (on some clock), whose number (smaller first), a ticket, and the flow or lane."""


class Flow:
    """Bytes on their way over a link.

    Attributes:
        left_bytes: what has not arrived; true while it is on no link.
        waited_s: its last stay on a link, less what of it a tighter cap would explain; true while
            it is on none.
        number: of flows that arrive together the smaller one is told first.
        owner: whose it is; the link does not look at it.
    """

    __slots__ = ("entry", "lane", "left_bytes", "number", "owner", "pace", "waited_s", "weight")

    def __init__(
        self,
        left_bytes: float,
        *,
        number: int = 0,
        owner: Any = None,
        cap_bytes_per_s: float = math.inf,
        weight: float = 1.0,
    ) -> None:
        self.left_bytes = left_bytes
        self.waited_s = 0.0
        self.number = number
        self.owner = owner
        self.weight = weight
        self.pace = cap_bytes_per_s / weight
        self.lane: Lane | None = None
        self.entry: Entry | None = None


class Lane:
    """The flows of one pace, in a heap by their end on the lane's clock.

    The clock is ``base`` plus what has passed since ``mark``: virtual time while the lane is
    elastic, ``pace`` times the time while it is capped. ``waited`` likewise.
    """

    __slots__ = (
        "base",
        "count",
        "entry",
        "heap",
        "is_capped",
        "mark",
        "pace",
        "waited_base",
        "waited_mark",
        "weight",
    )

    def __init__(self, pace: float, *, is_capped: bool) -> None:
        self.pace = pace
        self.is_capped = is_capped
        self.weight = 0.0
        self.count = 0
        self.heap: list[Entry] = []
        self.entry: Entry | None = None
        self.base = self.mark = self.waited_base = self.waited_mark = 0.0

    def head(self) -> Entry:
        """Its next flow to arrive; it has one."""
        heap = self.heap
        while heap[0][3].entry is not heap[0]:
            heapq.heappop(heap)
        head: Entry = heap[0]
        return head

    def sweep(self) -> None:
        """Drop the entries of flows that have gone, and add up the weights of the others."""
        self.heap = [entry for entry in self.heap if entry[3].entry is entry]
        heapq.heapify(self.heap)
        self.weight = math.fsum(entry[3].weight for entry in self.heap)
