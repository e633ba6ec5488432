"""Runs with feedback: which job begins when, a run as a row, and what must hold of it in any case.

First come, first served, with backfill past a promise to the head (as rule ``easy``): a later job
begins early if it ends before the head is believed to begin, or leaves what the head needs.

``apart``: nodes decide. Space is asked when a job begins; a no sends it to the file system.
``together``: a job begins only if it has nodes and space; the promise counts both, space by its sum
over the disks. What is larger than the storage, or finds no place on an empty one, goes to the file
system. Where the sum would do for the head and the rule still says no, nobody takes more space.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final

import msgspec

from iodaemon.core.measure import mean
from iodaemon.core.stock import split
from iodaemon.core.storage import Storage, StorageRequest
from iodaemon.simulator.experiment import Row
from iodaemon.simulator.storalloc import GB, TB, NodeClass, Placing, decide, storage_of
from iodaemon.simulator.storalloc_feedback import Life, LiveStorage, Way
from iodaemon.simulator.storalloc_replay import replay

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


HUGE_BYTES: Final = 8 * TB
"""From then on a request is one of the few that hold a third of all bytes."""


class ComputeNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Compute nodes of jobs, which no file of requests tells: powers of two, each as likely.

    Attributes:
        large_bytes: a job with more than so much space is a large one.
        small_least: nodes of the others, at least.
        small_most: at most.
        large_least: nodes of the large ones, at least.
        large_most: at most.
    """

    large_bytes: int = 200 * GB
    small_least: int = 1
    small_most: int = 128
    large_least: int = 64
    large_most: int = 256

    def __post_init__(self) -> None:
        """Refuse what is no range."""
        ends = ((self.small_least, self.small_most), (self.large_least, self.large_most))
        for least, most in ends:
            if not 1 <= least <= most:
                raise ValueError(f"compute: {least} to {most} nodes are no range from 1 on")

    @property
    def most(self) -> int:
        """Of any job."""
        return max(self.small_most, self.large_most)


def draw_nodes(
    compute: ComputeNodes, requests: Sequence[StorageRequest], seed: int
) -> tuple[int, ...]:
    """Compute nodes of each request's job."""
    rng = random.Random(f"storalloc nodes {seed}")  # noqa: S311 - for experiments, no secrets

    def drawn(least: int, most: int) -> int:
        return least << rng.randint(0, (most // least).bit_length() - 1)

    return tuple(
        drawn(compute.large_least, compute.large_most)
        if request.size_bytes > compute.large_bytes
        else drawn(compute.small_least, compute.small_most)
        for request in requests
    )


def hastened(requests: Sequence[StorageRequest], factor: float) -> Sequence[StorageRequest]:
    """The same, but so many times as close to each other; lengths stay."""
    if factor == 1.0:
        return requests
    first_s = min(request.start_s for request in requests)
    found = []
    for request in requests:
        start_s = first_s + (request.start_s - first_s) / factor
        end_s = start_s + request.duration_s
        found.append(msgspec.structs.replace(request, start_s=start_s, end_s=end_s))
    return found


def platform(tb: float, nodes: int, disks: int) -> Storage:
    """So many TB, evenly over the disks; each disk and node as in the paper's table 3."""
    size = round(tb * TB) // (nodes * disks)
    return storage_of([NodeClass(name="node", nodes=nodes, disks=disks, capacity_bytes=size)])


def life_row(where: Row, jobs: Sequence[Life], storage: Storage, large_bytes: int) -> Row:
    """What a run came to.

    Args:
        where: what it was of; begins the row.
        jobs: all, each with begin and end; at least one.
        storage: that they were on.
        large_bytes: more than that wanted is large.
    """
    sum_cap = sum(sum(job.sizes) for job in jobs)
    served = [job for job in jobs if job.fate == "served"]
    large = [job for job in jobs if job.request.size_bytes > large_bytes]
    huge = [job for job in jobs if job.request.size_bytes > HUGE_BYTES]
    first_s = min(job.request.start_s for job in jobs)
    makespan_s = max(job.ended_s or 0.0 for job in jobs) - first_s
    held = sum(sum(job.sizes) * run_s(job) for job in served)
    runs = [run_stretch(job) for job in jobs]
    row: Row = {
        "served_percent": 100.0 * sum(sum(job.sizes) for job in served) / sum_cap,
        "fallback_percent": 100.0 * (1.0 - sum(sum(job.sizes) for job in served) / sum_cap),
        "refused": sum(job.fate == "refused" for job in jobs),
        "failed": sum(job.fate == "failed" for job in jobs),
        "stretch": mean([stretch(job) for job in jobs]),
        "large_stretch": mean([stretch(job) for job in large]) if large else 1.0,
        "run_stretch": mean(runs),
        "large_run_stretch": mean([run_stretch(job) for job in large]) if large else 1.0,
        "huge_run_stretch": mean([run_stretch(job) for job in huge]) if huge else 1.0,
        "least_run_stretch": min(runs),
        "most_run_stretch": max(runs),
        "wait_s": mean([(job.started_s or 0.0) - job.request.start_s for job in jobs]),
        "makespan_s": makespan_s,
        "lost_node_h": sum(job.nodes * (run_s(job) - job.request.duration_s) for job in jobs)
        / 3600.0,
        "mean_disk_use": 100.0 * held / (storage.capacity_bytes * makespan_s),
        "peak_tb": peak_bytes(served) / TB,
    }
    return {"kind": "life", **where, **row}


def run_s(job: Life) -> float:
    """From begin to end."""
    return (job.ended_s or 0.0) - (job.started_s or 0.0)


def run_stretch(job: Life) -> float:
    """How much longer than recorded it ran; exactly 1 where it lost nothing."""
    recorded_s = (job.started_s or 0.0) + job.request.duration_s
    return 1.0 if job.ended_s == recorded_s else run_s(job) / job.request.duration_s


def stretch(job: Life) -> float:
    """Turnaround by recorded length."""
    waited_s = (job.started_s or 0.0) - job.request.start_s
    return run_stretch(job) + waited_s / job.request.duration_s


def peak_bytes(jobs: Sequence[Life]) -> int:
    """The most that is held at one time; at one instant what ends goes first."""
    changes = [(job.started_s or 0.0, sum(job.sizes)) for job in jobs]
    changes += [(job.ended_s or 0.0, -sum(job.sizes)) for job in jobs]
    most = held = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most


def check_row(
    where: Row,
    storage: Storage,
    placing: Placing,
    requests: Sequence[StorageRequest],
    seed: int,
) -> Row:
    """Whether without contention nothing differs from no feedback, and from StorAlloc's own way.

    Disks that nobody can fill: the jobs' ends and places must be the same, digit for digit. And
    those of ``decide`` and ``replay``; where a request failed there, which stays in the books of
    StorAlloc's rules and not in ours, it cannot be: then 2.
    """
    endless = storage_of_rate(storage, math.inf)
    ways = (Way(fallback_bytes_per_s=math.inf), Way(has_feedback=False))
    alone = [1] * len(requests)
    free, fixed = (live(endless, placing, way, requests, alone, seed) for way in ways)
    real = live(storage, placing, ways[1], requests, alone, seed)
    decisions = decide(storage, placing, requests, seed)
    outcome = replay(storage, decisions)
    ours = [[part.disk for part in job.parts] for job in real]
    theirs = [[part.disk for part in each.placed.parts] for each in decisions]
    is_same = ours == theirs and outcome.served_bytes == sum(
        sum(job.sizes) for job in real if job.fate == "served"
    )
    return {
        "kind": "check",
        **where,
        "same_without_contention": int(lives(free) == lives(fixed)),
        "same_as_storalloc": 2 if outcome.failed else int(is_same),
    }


def storage_of_rate(storage: Storage, bytes_per_s: float) -> Storage:
    """The same disks, but so fast that nobody is in another's way."""
    nodes = [
        msgspec.structs.replace(
            node,
            network_bytes_per_s=bytes_per_s,
            disks=tuple(
                msgspec.structs.replace(
                    disk, read_bytes_per_s=bytes_per_s, write_bytes_per_s=bytes_per_s
                )
                for disk in node.disks
            ),
        )
        for node in storage.nodes
    ]
    return Storage(nodes=tuple(nodes))


def lives(jobs: Sequence[Life]) -> list[object]:
    """Where and when each was, to the last digit."""
    return [
        (job.fate, [part.disk for part in job.parts], job.started_s, job.ended_s) for job in jobs
    ]
