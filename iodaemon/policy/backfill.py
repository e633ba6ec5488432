"""When enough slots will be free for a job, by the walltimes of those that hold them.

A job ends at the latest when its walltime is used up. Time for which it stands still does not count
against it: a suspended job has all of what was left still before it. A job without walltime
never ends, as far as is known.

Source: Mu'alem and Feitelson, IEEE TPDS 2001, section 2 (EASY: shadow time and extra nodes).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from iodaemon.core.job import Job, JobState
from iodaemon.core.platform import PartitionId
from iodaemon.core.view import PlacementView

BACKFILL: Final = "Backfill"
"""The code of the reason why a job starts beside one that goes first and finds no room."""


class Shadow(msgspec.Struct, frozen=True, kw_only=True):
    """When and where there will be room for a job.

    Attributes:
        partition: there.
        at_s: at the latest then, if nothing else starts.
        spare: slots of the partition that are free then beside those of the job.
    """

    partition: PartitionId
    at_s: float
    spare: int


def expected_end_s(job: Job, now_s: float) -> float:
    """When a live job has ended at the latest; infinite where it has no walltime.

    Of a job that has not begun to run, if it did now. Never before ``now_s``.
    """
    if job.state is JobState.STOPPING:
        end_s = job.kill_at_s or now_s
    elif (walltime_s := job.spec.walltime_s) is None:
        return math.inf
    elif job.state is JobState.RUNNING:
        end_s = job.since_s + walltime_s - job.run_s
    else:
        end_s = now_s + walltime_s - job.run_s
    return max(now_s, end_s)


def latest_end_s(jobs: Iterable[Job], now_s: float) -> float | None:
    """When the last of these has ended, those without walltime left out; None: there are none."""
    latest_s = -math.inf
    for job in jobs:
        end_s = expected_end_s(job, now_s)
        if latest_s < end_s < math.inf:
            latest_s = end_s
    return latest_s if latest_s > -math.inf else None


def most_free(view: PlacementView) -> int:
    """Free slots of the partition that has most of them."""
    most = 0
    for partition in view.platform.partitions:
        free = view.slots_free(partition.id)
        if free > most:
            most = free
    return most


def find_shadow(view: PlacementView, job: Job, now_s: float) -> Shadow | None:
    """The earliest room for a job that finds none now, by the expected ends of those who run.

    O(L log L) with L live jobs. Of two partitions at one time the one with more to spare, then the
    lower number.

    Args:
        view: a draft counts the jobs started on it.
        job: what is to fit.
        now_s: the instant.

    Returns:
        None where it never fits, as far as is known.
    """
    ends: dict[PartitionId, list[tuple[float, int]]] = {}
    for other in view.live:
        if other.partition is not None:
            end = (expected_end_s(other, now_s), other.spec.cpus)
            ends.setdefault(other.partition, []).append(end)
    shadows = list(_shadows(view, job, now_s, ends))
    return min(shadows, key=lambda s: (s.at_s, -s.spare, s.partition), default=None)


def _shadows(
    view: PlacementView,
    job: Job,
    now_s: float,
    ends: dict[PartitionId, list[tuple[float, int]]],
) -> Iterator[Shadow]:
    """The earliest room in each partition that will have it."""
    for partition in view.platform.partitions:
        size = len(partition.slots)
        if size < job.spec.cpus:
            continue
        free = view.slots_free(partition.id)
        at_s = now_s
        for end_s, slots in sorted(ends.get(partition.id, ())):
            if end_s == math.inf or (free >= job.spec.cpus and end_s > at_s):
                break
            free += slots
            at_s = end_s
        if free >= job.spec.cpus:
            spare = min(free, size) - job.spec.cpus
            yield Shadow(partition=partition.id, at_s=at_s, spare=spare)
