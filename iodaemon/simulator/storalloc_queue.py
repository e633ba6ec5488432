"""Which job begins when, with compute nodes and storage decided apart or together.

First come, first served, with backfill past a promise to the head (as rule ``easy``): a later job
begins early if it ends before the head is believed to begin, or leaves what the head needs.

``apart``: nodes decide. Space is asked when a job begins; a no sends it to the file system.
``together``: a job begins only if it has nodes and space; the promise counts both, space by its sum
over the disks. What is larger than the storage, or finds no place on an empty one, goes to the file
system. Where the sum would do for the head and the rule still says no, nobody takes more space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from iodaemon.core.stock import split
from iodaemon.core.storage import Storage, StorageRequest
from iodaemon.simulator.storalloc import GB, Placing
from iodaemon.simulator.storalloc_feedback import Life, LiveStorage, Way

DEPTH: Final = 100
"""Jobs behind the head that are looked at for backfill."""


class _Promise(msgspec.Struct, frozen=True):
    """To the head: when, and what others may use beyond that time."""

    at_s: float
    nodes: int
    size_bytes: int


class _Queue:
    """Jobs that wait, first come first."""

    def __init__(self, storage: Storage, placing: Placing, way: Way, seed: int) -> None:
        self.platform = LiveStorage(storage, placing, way, seed)
        self.waiting: list[Life] = []
        self._way = way
        self._free = way.nodes
        self._capacity = storage.capacity_bytes
        self._block = placing.block_bytes

    def arrive(self, job: Life, now_s: float) -> None:
        """A job comes."""
        if self._way.admission == "open":
            self.platform.begin(job, self.platform.find_space(job, now_s), now_s)
            return
        job.sizes = split(job.request.size_bytes, self._block, GB)
        self.waiting.append(job)

    def leave(self, job: Life) -> None:
        """A job has ended."""
        self._free += job.nodes

    def pass_(self, now_s: float) -> None:
        """All that may begin begins."""
        while self.waiting and self._begin(self.waiting[0], now_s):
            del self.waiting[0]
        if len(self.waiting) < 2 or self._free == 0:
            return
        promise = self._promise(self.waiting[0], now_s)
        kept = self.waiting[:1]
        for job in self.waiting[1 : DEPTH + 1]:
            if not self._is_beside(job, promise, now_s) or not self._begin(job, now_s):
                kept.append(job)
            elif now_s + job.request.duration_s > promise.at_s:
                promise = _Promise(
                    promise.at_s,
                    promise.nodes - job.nodes,
                    promise.size_bytes - (sum(job.sizes) if job.fate == "served" else 0),
                )
        self.waiting = kept + self.waiting[DEPTH + 1 :]

    def _begin(self, job: Life, now_s: float) -> bool:
        """Whether it could begin, and has."""
        if job.nodes > self._free:
            return False
        placed = None
        if self._way.admission == "apart":
            placed = self.platform.find_space(job, now_s)
        elif self._may_hold(job):
            placed = self.platform.find_space(job, now_s)
            if placed is None and self.platform.used_bytes:
                return False
        else:
            job.fate = "refused"
        self._free -= job.nodes
        self.platform.begin(job, placed, now_s)
        return True

    def _may_hold(self, job: Life) -> bool:
        """Whether the storage is large enough for it at all."""
        return sum(job.sizes) <= self._capacity

    def _promise(self, head: Life, now_s: float) -> _Promise:
        """When the head has what it needs, if all end as they are believed to."""
        needs = 0
        if self._way.admission == "together" and self._may_hold(head):
            needs = sum(head.sizes)
        free, room = self._free, self._capacity - self.platform.used_bytes
        at_s = now_s
        if head.nodes > free or needs > room:
            for job in sorted(self.platform.running, key=_believed):
                free += job.nodes
                room += sum(part.size_bytes for part in job.parts)
                if head.nodes <= free and needs <= room:
                    at_s = job.believed_s
                    break
        elif needs:
            room = needs  # it is the rule that says no: nobody takes more space
        spare = room - needs if needs else self._capacity
        return _Promise(at_s, free - head.nodes, spare)

    def _is_beside(self, job: Life, promise: _Promise, now_s: float) -> bool:
        if now_s + job.request.duration_s <= promise.at_s:
            return True
        takes = sum(job.sizes) if self._may_hold(job) else 0
        return job.nodes <= promise.nodes and takes <= promise.size_bytes


def _believed(job: Life) -> float:
    return job.believed_s


def live(
    storage: Storage,
    placing: Placing,
    way: Way,
    requests: Sequence[StorageRequest],
    nodes: Sequence[int],
    seed: int,
) -> list[Life]:
    """Let all jobs live; each has begun and ended.

    Args:
        storage: empty at first.
        placing: how; requests are not requeued.
        way: how they live.
        requests: in any order; of two that come at one time the earlier goes first.
        nodes: compute nodes of each, not more than there are.
        seed: of what is random in the rule.
    """
    jobs = [Life(request, each) for request, each in zip(requests, nodes, strict=True)]
    coming = sorted(jobs, key=_comes)[::-1]
    queue = _Queue(storage, placing, way, seed)
    platform = queue.platform
    while True:
        now_s = min(platform.next_s, coming[-1].request.start_s if coming else math.inf)
        if now_s == math.inf:
            return jobs
        has_changed = False
        while platform.next_s <= now_s:
            for job in platform.happen()[1]:
                queue.leave(job)
                has_changed = True
        while coming and coming[-1].request.start_s <= now_s:
            queue.arrive(coming.pop(), now_s)
            has_changed = True
        if has_changed and queue.waiting:
            queue.pass_(now_s)


def _comes(job: Life) -> float:
    return job.request.start_s
