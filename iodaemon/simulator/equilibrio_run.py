"""One workload of EquilibrIO under its rule: the measures of a run, as rows.

Slowdowns are in percent and intensities in GB/s, as the slides have them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
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
from iodaemon.simulator.intensity import (
    Stay,
    in_bins,
    intensity_course,
    mean_distance_bytes_per_s,
    mean_distance_of_moments,
    mean_running,
)
from iodaemon.simulator.record import Record, Records, read_records
from iodaemon.simulator.run import StepPer

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
