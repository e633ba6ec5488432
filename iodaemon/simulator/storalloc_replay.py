"""The replay: allocations are taken and given back in the order of time, and statistics kept.

In the right way, at one instant what ends goes first; a request is taken whole or not at all, and
counted once; it holds its space until its end, or as long as it wanted from a delayed start.

``artefact`` does what the published simulator does, which its published numbers show:

- at one instant what begins goes first;
- the parts of a request are taken one by one; when one does not fit, those before it are given
  back, but they stay in ``allocated_bytes`` and in the maxima of their disks;
- a request holds its space for its length modulo 24 hours (``timedelta.seconds``).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from iodaemon.core.job import DiskId
from iodaemon.core.storage import Disk, Storage
from iodaemon.simulator.storalloc import Bookkeeping, Decision

DAY_S: Final = 86_400


class DiskUse(msgspec.Struct, frozen=True, kw_only=True):
    """Of one disk over the whole run.

    Attributes:
        disk: which.
        node: of which node.
        mean_disk_use: percent of its capacity, mean over time.
        max_disk_use: percent, the most at one time.
        mean_alloc: allocations, mean over time.
        max_alloc: the most at one time.
        last_s: when anything last began or ended on it; 0: never.
        busy_s: for how long anything was on it.
        write_bytes_per_s: of the disk.
    """

    disk: DiskId
    node: str
    mean_disk_use: float
    max_disk_use: float
    mean_alloc: float
    max_alloc: int
    last_s: float
    busy_s: float
    write_bytes_per_s: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run, in the paper's terms (section 4.4); sizes in bytes.

    Attributes:
        sum_cap: of all requests, rounded up.
        allocated_bytes: taken; with ``artefact`` also what was given back when another part failed.
        served_bytes: of requests that were taken whole; the same where the books are correct.
        requests: that were asked.
        parts: that they were split into.
        delayed: placed later than they wanted.
        requeued: tried again, with whatever end.
        delay_s: of the delayed, in all.
        split: in more than one part, and not refused.
        allocated: requests taken whole.
        refused: requests the rule refused; ``refused_parts`` as the published simulator counts.
        refused_parts: their parts.
        refused_split: those of them that are split.
        failed: requests that were placed and did not fit when their time came.
        failed_split: those of them that are split.
        max_concurrent: allocations of all disks, the most at one time.
        first_s: when the first was tried.
        last_s: when the last ended.
        disks: one each.
        node_max_alloc: by node, the most allocations at one time.
    """

    sum_cap: int
    allocated_bytes: int
    served_bytes: int
    requests: int
    parts: int
    delayed: int
    requeued: int
    delay_s: float
    split: int
    allocated: int
    refused: int
    refused_parts: int
    refused_split: int
    failed: int
    failed_split: int
    max_concurrent: int
    first_s: float
    last_s: float
    disks: tuple[DiskUse, ...]
    node_max_alloc: dict[str, int]

    @property
    def allocated_percent(self) -> float:
        """``allocated_bytes`` in percent of ``sum_cap``: figure 4."""
        return 100.0 * self.allocated_bytes / self.sum_cap if self.sum_cap else 100.0

    @property
    def served_percent(self) -> float:
        """``served_bytes`` in percent of ``sum_cap``."""
        return 100.0 * self.served_bytes / self.sum_cap if self.sum_cap else 100.0

    @property
    def mean_bytes_per_s(self) -> float:
        """What an allocation can write, mean over all and their time, if all write all the time.

        Disks share evenly among what is on them; the network is not looked at. Ours: the paper
        has the number of allocations for it.
        """
        written = sum(disk.busy_s * disk.write_bytes_per_s for disk in self.disks)
        held_s = sum(disk.mean_alloc for disk in self.disks) * max(1.0, self.duration_s)
        return written / held_s if held_s else 0.0

    @property
    def duration_s(self) -> float:
        """From the first allocation to the last end, s."""
        return self.last_s - self.first_s


class _Node:
    """A node in the replay: allocations now, and the most."""

    __slots__ = ("count", "id", "most")

    def __init__(self, name: str) -> None:
        self.id = name
        self.count = self.most = 0


class _Shelf:
    """A disk in the replay."""

    __slots__ = (
        *("area", "busy_s", "capacity", "count", "id", "last_s", "level", "most", "peak"),
        *("node", "since_s", "time", "write"),
    )

    def __init__(self, disk: Disk, node: _Node) -> None:
        self.id = disk.id
        self.node = node
        self.capacity = disk.capacity_bytes
        self.level = self.count = self.peak = self.most = 0
        self.area = self.time = 0.0
        self.last_s = self.since_s = self.busy_s = 0.0
        self.write = disk.write_bytes_per_s


class _Replay:
    """The state between two instants."""

    def __init__(self, storage: Storage, bookkeeping: Bookkeeping) -> None:
        self.shelves: dict[DiskId, _Shelf] = {}
        self.nodes = [_Node(node.id) for node in storage.nodes]
        for node, kept in zip(storage.nodes, self.nodes, strict=True):
            self.shelves |= {disk.id: _Shelf(disk, kept) for disk in node.disks}
        self.is_artefact = bookkeeping == "artefact"
        self.allocated = self.served = self.failed = self.failed_split = self.whole = 0
        self.count = self.most = 0
        self.last_s = 0.0

    def begin(self, decision: Decision, now_s: float) -> float | None:
        """Take the parts; when they end, or None where they did not fit."""
        parts = decision.placed.parts
        held_s = decision.request.duration_s
        if self.is_artefact:
            held_s %= DAY_S
        elif not self._fits(decision):
            parts = ()
        taken = 0
        for part in parts:
            shelf = self.shelves[part.disk]
            if shelf.level + part.size_bytes > shelf.capacity:
                break
            self._put(shelf, part.size_bytes, now_s)
            taken += 1
        if parts and taken == len(parts):
            self.whole += 1
            for part in parts:
                shelf = self.shelves[part.disk]
                shelf.area += part.size_bytes * held_s
                shelf.time += held_s
                self.served += part.size_bytes
            return now_s + held_s
        self.failed += 1
        self.failed_split += len(decision.placed.parts) > 1
        for part in parts[:taken]:
            self._get(self.shelves[part.disk], part.size_bytes, now_s)
        return None

    def _fits(self, decision: Decision) -> bool:
        parts = decision.placed.parts
        if len(parts) == 1:
            shelf = self.shelves[parts[0].disk]
            return shelf.level + parts[0].size_bytes <= shelf.capacity
        wanted: dict[DiskId, int] = {}
        for part in decision.placed.parts:
            wanted[part.disk] = wanted.get(part.disk, 0) + part.size_bytes
        shelves = self.shelves
        return all(shelves[d].level + size <= shelves[d].capacity for d, size in wanted.items())

    def end(self, decision: Decision, now_s: float) -> None:
        """Give all parts back."""
        for part in decision.placed.parts:
            self._get(self.shelves[part.disk], part.size_bytes, now_s)
        self.last_s = now_s

    def _put(self, shelf: _Shelf, size: int, now_s: float) -> None:
        if shelf.count == 0:
            shelf.since_s = now_s
        shelf.level += size
        shelf.count += 1
        shelf.last_s = now_s
        if shelf.level > shelf.peak:
            shelf.peak = shelf.level
        if shelf.count > shelf.most:
            shelf.most = shelf.count
        node = shelf.node
        node.count += 1
        if node.count > node.most:
            node.most = node.count
        self.count += 1
        if self.count > self.most:
            self.most = self.count
        self.allocated += size

    def _get(self, shelf: _Shelf, size: int, now_s: float) -> None:
        shelf.level -= size
        shelf.count -= 1
        if shelf.count == 0:
            shelf.busy_s += now_s - shelf.since_s
        shelf.last_s = now_s
        shelf.node.count -= 1
        self.count -= 1


def replay(
    storage: Storage,
    decisions: Sequence[Decision],
    bookkeeping: Bookkeeping = "correct",
) -> Outcome:
    """Take and give back what was decided, in the order of time.

    Args:
        storage: empty at first.
        decisions: in the order in which they were taken; of two that begin at one time the earlier
            goes first.
        bookkeeping: see above.
    """
    state = _Replay(storage, bookkeeping)
    for now_s, decision, ends in _instants(state, decisions):
        if ends:
            state.end(decision, now_s)
    return _outcome(state, decisions)


def _instants(
    state: _Replay, decisions: Sequence[Decision]
) -> Iterator[tuple[float, Decision, bool]]:
    """Every begin, done, and every end, to be done, in the order of time."""
    begins = sorted((each for each in decisions if each.placed.refusal is None), key=_start)
    ends: list[tuple[float, int, Decision]] = []
    for number, decision in enumerate(begins):
        start_s = _start(decision)
        while ends and (ends[0][0] < start_s or (ends[0][0] == start_s and not state.is_artefact)):
            now_s, _, ended = heapq.heappop(ends)
            yield now_s, ended, True
        end_s = state.begin(decision, start_s)
        if end_s is not None:
            heapq.heappush(ends, (end_s, number, decision))
        yield start_s, decision, False
    while ends:
        now_s, _, ended = heapq.heappop(ends)
        yield now_s, ended, True


def _start(decision: Decision) -> float:
    return decision.request.start_s + decision.placed.delay_s


def _outcome(state: _Replay, decisions: Sequence[Decision]) -> Outcome:
    placed = [each.placed for each in decisions]
    granted = [each for each in placed if each.refusal is None]
    refused = [each for each in placed if each.refusal is not None]
    first_s = min((_start(each) for each in decisions if each.placed.refusal is None), default=0.0)
    length_s = max(1.0, state.last_s - first_s)
    return Outcome(
        sum_cap=sum(sum(each.sizes) for each in placed),
        allocated_bytes=state.allocated,
        served_bytes=state.served,
        requests=len(placed),
        parts=sum(len(each.sizes) for each in placed),
        delayed=sum(each.delay_s > 0.0 for each in granted),
        requeued=sum(each.delay_s > 0.0 for each in placed),
        delay_s=sum(each.delay_s for each in granted),
        split=sum(len(each.sizes) > 1 for each in granted),
        allocated=state.whole,
        refused=len(refused),
        refused_parts=sum(len(each.sizes) for each in refused),
        refused_split=sum(len(each.sizes) > 1 for each in refused),
        failed=state.failed,
        failed_split=state.failed_split,
        max_concurrent=state.most,
        first_s=first_s,
        last_s=max(state.last_s, first_s),
        disks=tuple(_use(shelf, length_s) for shelf in state.shelves.values()),
        node_max_alloc={node.id: node.most for node in state.nodes},
    )


def _use(shelf: _Shelf, length_s: float) -> DiskUse:
    return DiskUse(
        disk=shelf.id,
        node=shelf.node.id,
        mean_disk_use=100.0 * shelf.area / (shelf.capacity * length_s),
        max_disk_use=100.0 * shelf.peak / shelf.capacity,
        mean_alloc=shelf.time / length_s,
        max_alloc=shelf.most,
        last_s=shelf.last_s,
        busy_s=shelf.busy_s,
        write_bytes_per_s=shelf.write,
    )
