"""One run with feedback as a row of a table, and what must hold of it whatever comes out."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final

import msgspec

from iodaemon.core.measure import mean
from iodaemon.core.storage import Storage, StorageRequest
from iodaemon.simulator.experiment import Row
from iodaemon.simulator.storalloc import GB, TB, NodeClass, Placing, decide, storage_of
from iodaemon.simulator.storalloc_feedback import Life, Way
from iodaemon.simulator.storalloc_queue import live
from iodaemon.simulator.storalloc_replay import replay

HUGE_BYTES: Final = 8 * TB
"""From then on a request is one of the few that hold a third of all bytes."""


class ComputeNodes(msgspec.Struct, frozen=True, kw_only=True):
    """ComputeNodes nodes of jobs, which no file of requests tells: powers of two, each as likely.

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
    """ComputeNodes nodes of each request's job."""
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
