"""When there will be room for a job, by the walltimes of those that hold slots.

A job ends at the latest when its walltime is used up. Time for which it stands still does not count
against it: a suspended job has all of what was left still before it. A job without walltime
never ends, as far as is known; how long earlier runs of it took is an estimate, and no promise is
made by it. A job that outlasts its estimate is taken to need twice as much.

Source: Mu'alem and Feitelson, IEEE TPDS 2001, section 2 (EASY: shadow time and extra nodes);
Tsafrir, Etsion and Feitelson, IEEE TPDS 2007 (run times of earlier jobs in place of estimates, and
their correction once they have run out; that it doubles is ours).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from iodaemon.core.job import Job, JobState
from iodaemon.core.platform import PartitionId
from iodaemon.core.view import PlacementView
from iodaemon.policy.bandwidth import Budget

BACKFILL: Final = "Backfill"
"""The code of the reason why a job starts beside one that goes first and finds no room."""


class Shadow(msgspec.Struct, frozen=True, kw_only=True):
    """When and where there will be room for a job.

    Attributes:
        partition: there.
        at_s: at the latest then, if nothing else starts.
        spare: slots of the partition that are free then beside those of the job.
        spare_bytes_per_s: of the budget, likewise; infinite where there is none.
    """

    partition: PartitionId
    at_s: float
    spare: int
    spare_bytes_per_s: float = math.inf


def expected_end_s(
    job: Job,
    now_s: float,
    *,
    stops_at_once: bool = False,
    extra_s: float = 0.0,
    typical_s: float | None = None,
) -> float:
    """When a live job has ended at the latest; infinite where it has no walltime.

    Of a job that has not begun to run, if it did now. One that is being ended has ended when it
    will be killed, whatever its walltime was, and now if it has been. Never before ``now_s``.

    Args:
        job: which.
        now_s: the instant.
        stops_at_once: one that is being ended heeds it now: when it has ended at the soonest.
        extra_s: by how much it lasts longer than its walltime says.
        typical_s: how long it is taken to last where it has no walltime. None: not known.
    """
    walltime_s = job.spec.walltime_s
    if walltime_s is not None:
        walltime_s += extra_s
    elif typical_s:
        walltime_s = _corrected(typical_s, job.run_s_at(now_s))
    if job.state is JobState.STOPPING:
        end_s = now_s if job.kill_at_s is None or stops_at_once else job.kill_at_s
    elif walltime_s is None:
        end_s = math.inf
    elif job.state is JobState.RUNNING:
        end_s = job.since_s + walltime_s - job.run_s
    else:
        end_s = now_s + walltime_s - job.run_s
    return max(now_s, end_s)


def _corrected(typical_s: float, ran_s: float) -> float:
    """The estimate, doubled until it is more than the job has run for."""
    if ran_s < typical_s:
        return typical_s
    return float(typical_s * 2.0 ** (math.floor(math.log2(ran_s / typical_s)) + 1))


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


Typical = Callable[[Job], float | None]
"""How long a job without walltime is taken to run; None: not known."""


def _ends_in_order(
    jobs: Iterable[Job], now_s: float, *, stops_at_once: bool, typical: Typical | None
) -> list[tuple[float, Job]]:
    """When each of these is expected to have ended, those that never do left out; by that time."""

    def end_s(job: Job) -> float:
        typical_s = typical(job) if typical is not None and job.spec.walltime_s is None else None
        return expected_end_s(job, now_s, stops_at_once=stops_at_once, typical_s=typical_s)

    ends = ((end_s(job), job) for job in jobs)
    return sorted((end for end in ends if end[0] < math.inf), key=lambda end: (end[0], end[1].id))


def find_shadow(
    view: PlacementView,
    job: Job,
    now_s: float,
    budget: Budget | None = None,
    *,
    stops_at_once: bool = False,
    typical: Typical | None = None,
) -> Shadow | None:
    """The earliest room for a job, by the expected ends of those who hold slots.

    O(L log L) with L live jobs. Of two partitions at one time the one with more to spare, then the
    lower number.

    Args:
        view: a draft counts the jobs started on it.
        job: what is to fit.
        now_s: the instant.
        budget: its I/O has to fit in as well. None: it does not matter.
        stops_at_once: count on jobs that are being ended to heed it now, not when they are killed.
        typical: how long jobs without walltime are taken to run. None: for ever.

    Returns:
        None where it never fits, as far as is known.
    """
    free = {p.id: view.slots_free(p.id) for p in view.platform.partitions}
    sizes = {p.id: max(p.size, free[p.id]) for p in view.platform.partitions}
    ends = _ends_in_order(view.live, now_s, stops_at_once=stops_at_once, typical=typical)
    used = 0.0 if budget is None else budget.used_bytes_per_s
    rate = 0.0 if budget is None else budget.rate(job)
    at_s, ended = now_s, 0
    while True:
        while ended < len(ends) and ends[ended][0] <= at_s:
            other = ends[ended][1]
            home = other.partition
            if home in sizes:
                free[home] = min(sizes[home], free[home] + other.spec.cpus)
            used -= 0.0 if budget is None else budget.rate(other)
            ended += 1
        if budget is None or budget.fits(rate, used):
            most, partition = max((slots, -number) for number, slots in free.items())
            if most >= job.spec.cpus:
                limit = math.inf if budget is None else budget.limit_bytes_per_s
                return Shadow(
                    partition=PartitionId(-partition),
                    at_s=at_s,
                    spare=most - job.spec.cpus,
                    spare_bytes_per_s=max(0.0, limit - used - rate),
                )
        if ended == len(ends):
            return None
        at_s = ends[ended][0]
