"""One workload of EquilibrIO under its rule: the measures of a run, as rows.

Slowdowns are in percent and intensities in GB/s, as the slides have them. The intensity of a job
is the part of its time in I/O times its bandwidth then; S is the mean over the running jobs, W over
those that run or wait. Both change only when a job comes, starts or ends.

Source: EquilibrIO (Özden, Tarraf, Wolf, CLUSTER 2025).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.measure import (
    displacements,
    equilibrio_io_slowdown,
    equilibrio_job_slowdown,
    equilibrio_utilisation,
    mean,
)
from iodaemon.core.rule import Rules
from iodaemon.policy.admission import equilibrio
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import none
from iodaemon.simulator.cluster import Cluster, ClusterJob, Lived, run_cluster
from iodaemon.simulator.equilibrio import Mix, draw_workload, hinted_places
from iodaemon.simulator.experiment import Row
from iodaemon.simulator.record import Record, Records, read_records
from iodaemon.simulator.run import StepPer


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """A job's time in the system.

    Attributes:
        submit_s: when it came.
        start_s: when it started, not before that.
        end_s: when it ended, not before that.
        intensity_bytes_per_s: as it really is, whatever was known of it.
        weight: how much it counts in a mean.
    """

    submit_s: float
    start_s: float
    end_s: float
    intensity_bytes_per_s: float
    weight: float = 1.0


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What holds from a time until the next moment.

    Attributes:
        at_s: since when.
        system_bytes_per_s: S; 0 when nothing runs.
        workload_bytes_per_s: W; 0 when nothing is there.
        running: how many jobs run.
    """

    at_s: float
    system_bytes_per_s: float
    workload_bytes_per_s: float
    running: int


class _Mean:
    """A weighted mean that jobs enter and leave. Invariant: nobody is in it, its sums are 0."""

    def __init__(self) -> None:
        self.count = 0
        self._weight = 0.0
        self._sum = 0.0

    def add(self, stay: Stay, sign: int) -> None:
        """The job comes (1) or goes (-1)."""
        self.count += sign
        self._weight += sign * stay.weight
        self._sum += sign * stay.weight * stay.intensity_bytes_per_s
        if self.count == 0:  # what rounding has left
            self._weight = self._sum = 0.0

    @property
    def value(self) -> float:
        """The mean; 0 for none."""
        return max(0.0, self._sum / self._weight) if self.count else 0.0


def intensity_course(stays: Iterable[Stay]) -> tuple[Moment, ...]:
    """S and W over time, one moment each time that a job comes, starts or ends."""
    changes: dict[float, list[tuple[int, int, Stay]]] = {}
    for stay in stays:
        changes.setdefault(stay.submit_s, []).append((0, 1, stay))
        changes.setdefault(stay.start_s, []).append((1, 0, stay))
        changes.setdefault(stay.end_s, []).append((-1, -1, stay))
    system, workload = _Mean(), _Mean()
    course = []
    for at_s in sorted(changes):
        for in_system, in_workload, stay in changes[at_s]:
            if in_system:
                system.add(stay, in_system)
            if in_workload:
                workload.add(stay, in_workload)
        course.append(
            Moment(
                at_s=at_s,
                system_bytes_per_s=system.value,
                workload_bytes_per_s=workload.value,
                running=system.count,
            )
        )
    return tuple(course)


def mean_distance_bytes_per_s(course: Sequence[Moment]) -> float:
    """The mean of |S - W| over the time in which at least one job runs, bytes/s; 0 for none.

    Source: EquilibrIO (Özden, Tarraf, Wolf, CLUSTER 2025), "mean distance".
    """
    total = lasted_s = 0.0
    for moment, after in pairwise(course):
        if moment.running:
            span_s = after.at_s - moment.at_s
            total += abs(moment.system_bytes_per_s - moment.workload_bytes_per_s) * span_s
            lasted_s += span_s
    return total / lasted_s if lasted_s else 0.0


def mean_distance_of_moments(course: Iterable[Moment]) -> float:
    """The mean of |S - W| over the moments at which a job runs, however long each lasts, bytes/s.

    The slides do not say of what "average distance" is an average.
    """
    distances = [
        abs(moment.system_bytes_per_s - moment.workload_bytes_per_s)
        for moment in course
        if moment.running
    ]
    return mean(distances)


def mean_running(course: Sequence[Moment]) -> float:
    """How many jobs run, on average over the time in which at least one does; 0 for none."""
    total = lasted_s = 0.0
    for moment, after in pairwise(course):
        if moment.running:
            total += moment.running * (after.at_s - moment.at_s)
            lasted_s += after.at_s - moment.at_s
    return total / lasted_s if lasted_s else 0.0


def in_bins(course: Sequence[Moment], count: int) -> tuple[Moment, ...]:
    """The same in so many bins of equal length: each the mean over its time, to be drawn.

    Args:
        course: at least two moments.
        count: at least 1; ``running`` is that at the end of a bin.
    """
    from_s, to_s = course[0].at_s, course[-1].at_s
    width_s = (to_s - from_s) / count
    sums = [[0.0, 0.0] for _ in range(count)]
    running = [0] * count
    for moment, after in pairwise(course):
        first = _bin(moment.at_s, from_s, width_s, count)
        last = _bin(after.at_s, from_s, width_s, count)
        for number in range(first, last + 1):
            begin_s = max(moment.at_s, from_s + number * width_s)
            end_s = min(after.at_s, from_s + (number + 1) * width_s)
            part = max(0.0, end_s - begin_s) / width_s if width_s else 0.0
            sums[number][0] += part * moment.system_bytes_per_s
            sums[number][1] += part * moment.workload_bytes_per_s
            running[number] = moment.running
    return tuple(
        Moment(
            at_s=from_s + (number + 0.5) * width_s,
            system_bytes_per_s=system,
            workload_bytes_per_s=workload,
            running=running[number],
        )
        for number, (system, workload) in enumerate(sums)
    )


def _bin(at_s: float, from_s: float, width_s: float, count: int) -> int:
    return min(count - 1, int((at_s - from_s) / width_s)) if width_s else 0


Bound = Literal["max", "easy"]
Delta = Literal["system", "candidate"]
GB: Final = 1e9
BINS: Final = 600
"""Of a picture of S and W over time."""
TOLD: Final = 5
"""So many problems of a file of records are told, and how many more there are."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs of a study have in common: the parameters that both studies begin with.

    Attributes:
        mix: of the workload.
        cluster: the platform.
        records: a CSV file of real jobs for the low ones; empty: drawn from laws.
        bound: until when a backfilled job must have ended: as the last that runs, or before the
            first in the queue has room (EASY).
        intensity_delta: what is compared with W: S with the job, or the job's own.
        step_per: the rule is asked once for all that happens in one instant, or after each event.
    """

    mix: Mix = Mix()
    cluster: Cluster = Cluster()
    records: str = ""
    bound: Bound = "max"
    intensity_delta: Delta = "system"
    step_per: StepPer = "instant"

    def read(self) -> Records | None:
        """The records; None: none are wanted.

        Raises:
            RequestError: the file is none.
        """
        return read_records(Path(self.records)) if self.records else None

    def remarks(self) -> tuple[str, ...]:
        """What the user of a file of records should know, one line each."""
        read = self.read()
        if read is None:
            return ()
        more = len(read.problems) - TOLD
        rest = (f"{self.records}: {more} more rows like these",) if more > 0 else ()
        return (*read.problems[:TOLD], *rest)

    def jobs(self, seed: int) -> tuple[ClusterJob, ...]:
        """The workload of a seed."""
        read = self.read()
        records: Sequence[Record] = () if read is None else read.records
        return draw_workload(self.mix, self.cluster, seed, records=records)

    def rules(self, alpha: float) -> Rules:
        """The policy; nothing regulates."""
        rule = equilibrio.Rule(alpha=alpha, bound=self.bound, intensity_delta=self.intensity_delta)
        return Rules(
            name=f"equilibrio {alpha:g}",
            admission=rule,
            placement=least_io.Rule(),
            regulation=none.Rule(),
        )

    def live(
        self,
        jobs: Sequence[ClusterJob],
        *,
        alpha: float,
        knowledge: float = 1.0,
        seed: int = 0,
        draw: int = 0,
    ) -> tuple[Lived, ...]:
        """Run a workload.

        Args:
            jobs: ordered by submit time.
            alpha: of the rule.
            knowledge: the part of all jobs whose I/O is known to it.
            seed: of the choice of these.
            draw: which of the seed's choices.
        """
        hinted: Collection[int] | None = None
        if knowledge < 1.0:
            hinted = hinted_places(len(jobs), knowledge, seed, draw)
        return run_cluster(
            self.cluster,
            self.rules(alpha),
            jobs,
            hinted=hinted,
            seed=seed,
            step_per=self.step_per,
        )


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work: one run.

    Attributes:
        seed: of the workload.
        alpha: of the rule.
        knowledge: the part of the jobs whose I/O is known.
        draw: which choice of these.
        has_course: S and W over time are wanted as rows, for a picture.
    """

    seed: int
    alpha: float
    knowledge: float = 1.0
    draw: int = 0
    has_course: bool = False


def run_point(setup: Setup, point: Point) -> list[Row]:
    """The rows of one run: ``run``, a ``high`` for each job with high I/O, and ``course``."""
    jobs = setup.jobs(point.seed)
    lives = setup.live(
        jobs, alpha=point.alpha, knowledge=point.knowledge, seed=point.seed, draw=point.draw
    )
    where: Row = {
        "seed": point.seed,
        "alpha": point.alpha,
        "knowledge": point.knowledge,
        "draw": point.draw,
    }
    rows: list[Row] = [{"kind": "run", **where, **run_columns(lives)}]
    rows += ({"kind": "high", **where, **_job_columns(life)} for life in high_of(lives))
    if point.has_course:
        for moment in in_bins(intensity_course(stays(lives)), BINS):
            rows.append(
                {
                    "kind": "course",
                    **where,
                    "hour": moment.at_s / 3600.0,
                    "system_gb_per_s": moment.system_bytes_per_s / GB,
                    "workload_gb_per_s": moment.workload_bytes_per_s / GB,
                }
            )
    return rows


def high_of(lives: Iterable[Lived]) -> list[Lived]:
    """Those with high I/O; the slides speak of them."""
    return [life for life in lives if life.job.is_high]


def stays(lives: Iterable[Lived], *, by_nodes: bool = False) -> list[Stay]:
    """For S and W: as the jobs really are, whatever the rule knew."""
    return [
        Stay(
            submit_s=life.job.submit_s,
            start_s=life.start_s,
            end_s=life.end_s,
            intensity_bytes_per_s=life.job.intensity_bytes_per_s,
            weight=float(life.job.nodes) if by_nodes else 1.0,
        )
        for life in lives
    ]


def io_slowdowns(lives: Iterable[Lived]) -> list[float]:
    """In percent, of the jobs that do I/O."""
    return [
        100.0 * equilibrio_io_slowdown(life.io_s, life.io_alone_s)
        for life in lives
        if life.io_alone_s > 0.0
    ]


def job_slowdowns(lives: Iterable[Lived]) -> list[float]:
    """In percent."""
    return [100.0 * equilibrio_job_slowdown(life.run_s, life.alone_s) for life in lives]


def run_columns(lives: Sequence[Lived]) -> Row:
    """The measures of a run; medians and extremes are those of the jobs with high I/O."""
    course = intensity_course(stays(lives))
    by_nodes = intensity_course(stays(lives, by_nodes=True))
    high = high_of(lives)
    io, job = io_slowdowns(high) or [0.0], job_slowdowns(high) or [0.0]
    starts = [life.start_s for life in lives]
    in_turn = [life.start_s for life in lives if not life.is_backfilled]
    ended_s = max(life.end_s for life in lives)
    return {
        "jobs": len(lives),
        "distance_gb_per_s": mean_distance_bytes_per_s(course) / GB,
        "distance_by_nodes_gb_per_s": mean_distance_bytes_per_s(by_nodes) / GB,
        "distance_of_events_gb_per_s": mean_distance_of_moments(course) / GB,
        "running": mean_running(course),
        "io_slowdown_percent": median(io),
        "io_slowdown_most_percent": max(io),
        "io_slowdown_all_percent": median(io_slowdowns(lives) or [0.0]),
        "job_slowdown_percent": median(job),
        "job_slowdown_most_percent": max(job),
        "utilisation": median([_utilisation(life) for life in high] or [1.0]),
        "displacement": mean(displacements(starts)),
        "displacement_in_turn": mean(displacements(in_turn)),
        "backfilled": 1.0 - len(in_turn) / len(lives),
        "wait_s": mean([life.start_s - life.job.submit_s for life in lives]),
        "makespan_s": ended_s - min(life.job.submit_s for life in lives),
        "schedule": schedule_of(lives),
    }


def schedule_of(lives: Iterable[Lived]) -> str:
    """Start and end of every job, to the last bit, in one word."""
    digest = hashlib.sha256()
    for life in lives:
        digest.update(f"{life.start_s!r} {life.end_s!r}\n".encode())
    return digest.hexdigest()[:16]


def _job_columns(life: Lived) -> dict[str, Any]:
    return {
        "nodes": life.job.nodes,
        "wait_s": life.start_s - life.job.submit_s,
        "job_slowdown_percent": 100.0 * equilibrio_job_slowdown(life.run_s, life.alone_s),
        "io_slowdown_percent": 100.0 * equilibrio_io_slowdown(life.io_s, life.io_alone_s),
        "utilisation": _utilisation(life),
    }


def _utilisation(life: Lived) -> float:
    return equilibrio_utilisation(life.run_s, life.io_s)
