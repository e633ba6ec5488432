"""What a pair of rules made of a workload, in figures; and which pair to pick."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.core.job import Job, JobState
from iodaemon.core.measure import (
    bounded_slowdown,
    displacements,
    equilibrio_io_slowdown,
    jain_index,
    makespan_s,
    mean,
    mean_turnaround_s,
    mean_wait_s,
    stretch,
)
from iodaemon.core.platform import PartitionId, Platform
from iodaemon.simulator.experiment import Row
from iodaemon.simulator.mixed import Piece
from iodaemon.simulator.run import Result

MEASURES: Final = (
    "makespan_s",
    "turnaround_s",
    "slowdown",
    "worst",
    "stretch",
    "io_slowdown",
    "jain",
    "wait_s",
    "suspended_s",
    "displacement",
)


def sums(result: Result, work: Sequence[Piece], platform: Platform) -> Row:
    """One line of the table.

    ``turnaround_s``, ``wait_s``, ``stretch`` (turnaround / time alone), ``slowdown`` (the same with
    at least 10 s alone) and ``displacement`` (places between arrival and start) are means over the
    jobs; ``worst`` is the largest slowdown, ``jain`` the index of the slowdowns. ``io_slowdown``:
    all time of all jobs from start to end that is not computing, suspended or not, over the same
    alone, less 1.
    ``overdue`` counts jobs that ran for longer than their walltime, suspensions not counted: who
    would have been killed. ``overcommitted`` counts instants with more slots held than there are.
    """
    jobs = [job for job in result.jobs if job.state is JobState.COMPLETED]
    if len(jobs) < len(work):
        return {**dict.fromkeys(MEASURES, 0.0), **_faults(result, jobs, platform)}
    took_s = [_end_s(job) - job.submitted_s for job in jobs]
    pairs = list(zip(took_s, work, strict=True))
    slowdowns = [bounded_slowdown(each_s, piece.alone_s) for each_s, piece in pairs]
    return {
        "makespan_s": makespan_s(jobs),
        "turnaround_s": mean_turnaround_s(jobs),
        "slowdown": mean(slowdowns),
        "worst": max(slowdowns),
        "stretch": mean([stretch(each_s, piece.alone_s) for each_s, piece in pairs]),
        "io_slowdown": _io_slowdown(jobs, work),
        "jain": jain_index(slowdowns),
        "wait_s": mean_wait_s(jobs),
        "suspended_s": sum(job.suspended_io_s for job in jobs),
        "displacement": mean(displacements([_start_s(job) for job in jobs])),
        **_faults(result, jobs, platform),
    }


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """Which pair a user should pick, said before anything was run.

    Of the pairs whose makespan is at most ``makespan_slack`` above the least, and whose worst job
    has a slowdown at most ``worst_slack`` above that with the first pair, the one with the least
    turnaround; all are means over the seeds. With several machines of which the user does not
    know which one theirs is like: on each of them at most ``harm_slack`` above the first pair's
    makespan and turnaround, and the worst job as above; of these the least product of turnarounds.

    Attributes:
        makespan_slack: as a part.
        worst_slack: as a part.
        harm_slack: as a part.
    """

    makespan_slack: float = 0.05
    worst_slack: float = 0.5
    harm_slack: float = 0.03


Means = Mapping[str, Mapping[str, float]]
"""The means of a machine: by pair, by measure. The first pair is the one to compare with."""


def pick(means: Means, criterion: Criterion) -> str:
    """The pair to pick on one machine."""
    least_s = min(each["makespan_s"] for each in means.values())
    most_s = least_s * (1.0 + criterion.makespan_slack)
    fitting = [
        pair
        for pair, each in means.items()
        if each["makespan_s"] <= most_s and _is_bearable(means, pair, criterion)
    ]
    return min(fitting, key=lambda pair: means[pair]["turnaround_s"], default="")


def pick_everywhere(places: Mapping[str, Means], criterion: Criterion) -> str:
    """The pair to pick for all machines; empty: none is fit."""
    pairs = next(iter(places.values()))
    fitting = [pair for pair in pairs if is_harmless(places, pair, criterion)]
    return min(fitting, key=lambda pair: _product(places, pair), default="")


def is_harmless(places: Mapping[str, Means], pair: str, criterion: Criterion) -> bool:
    """Whether nowhere it costs more than the criterion allows."""
    most = 1.0 + criterion.harm_slack
    return all(
        relative(means, pair, "makespan_s") <= most
        and relative(means, pair, "turnaround_s") <= most
        and _is_bearable(means, pair, criterion)
        for means in places.values()
    )


def relative(means: Means, pair: str, measure: str) -> float:
    """A measure relative to that of the first pair; 1 where that one's is 0."""
    first = next(iter(means.values()))[measure]
    return means[pair][measure] / first if first else 1.0


def _is_bearable(means: Means, pair: str, criterion: Criterion) -> bool:
    return relative(means, pair, "worst") <= 1.0 + criterion.worst_slack


def _product(places: Mapping[str, Means], pair: str) -> float:
    product = 1.0
    for means in places.values():
        product *= relative(means, pair, "turnaround_s")
    return product


def _io_slowdown(jobs: Iterable[Job], work: Sequence[Piece]) -> float:
    alone_s = sum(piece.io_alone_s for piece in work)
    ran_s = sum(_end_s(job) - _start_s(job) for job in jobs)
    io_s = ran_s - sum(piece.compute_s for piece in work)
    return equilibrio_io_slowdown(io_s, alone_s) if alone_s > 0.0 else 0.0


def _faults(result: Result, completed: Sequence[Job], platform: Platform) -> Row:
    return {
        "jobs": len(result.jobs),
        "not_completed": len(result.jobs) - len(completed),
        "overdue": sum(_is_overdue(job) for job in completed),
        "overcommitted": overcommitted(result.jobs, platform),
    }


def _is_overdue(job: Job) -> bool:
    walltime_s = job.spec.walltime_s
    ran_s = _end_s(job) - _start_s(job) - job.suspended_io_s
    return walltime_s is not None and ran_s > walltime_s * (1.0 + 1e-9)


def overcommitted(jobs: Iterable[Job], platform: Platform) -> int:
    """At how many instants more slots of a partition are held than it has."""
    changes: list[tuple[float, int, PartitionId]] = []
    for job in jobs:
        if job.partition is not None and job.started_s is not None:
            changes.append((job.started_s, job.spec.cpus, job.partition))
            if job.ended_s is not None:
                changes.append((job.ended_s, -job.spec.cpus, job.partition))
    held = dict.fromkeys((partition.id for partition in platform.partitions), 0)
    faults = 0
    for _, change, partition_id in sorted(changes):
        held[partition_id] += change
        faults += held[partition_id] > len(platform.partition(partition_id).slots)
    return faults


def _start_s(job: Job) -> float:
    return job.submitted_s if job.started_s is None else job.started_s


def _end_s(job: Job) -> float:
    return _start_s(job) if job.ended_s is None else job.ended_s
