"""The workload of EquilibrIO: many jobs with little I/O, and a few waves of jobs with much of it.

Source: Özden, Tarraf, Wolf, CLUSTER 2025, "Experimental workload": 5,000 low-to-medium jobs by
Darshan logs of Theta, and four periods of 40 jobs that spend at least 10 % of their time in I/O and
reach 10 GB/s in it; the machine is Theta scaled down by 4. How jobs arrive, how large and how long
they are, how long a period is: the slides do not say. Each of these is a field of ``Mix``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from iodaemon.simulator.cluster import Cluster, ClusterJob
from iodaemon.simulator.record import Record, draw_records

HIGH_SHARE: Final = 0.1
HIGH_BYTES_PER_S: Final = 10e9
"""From both on a job's I/O is high, as the slides define it."""
Arrivals = Literal["poisson", "batches", "even"]
"""One job at a time at random; several at once, at random; one after the other, evenly."""


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """How a workload is made.

    Attributes:
        low_jobs: jobs with low to medium I/O, drawn from records.
        peaks: waves of jobs with high I/O, spread over the time in which the others come.
        peak_jobs: in each wave.
        peak_s: from the first arrival of a wave to its last, at random in between.
        load: node time of all jobs alone / node time of the cluster while the low ones come.
        arrivals: of the low jobs.
        batch: jobs in a batch, on average (geometric).
        scale: the records' machine is so many times as large: nodes are divided by it, rounded
            up, and bandwidths divided.
        run_s: lengths of the low jobs are cut to this range.
        low_io: bandwidths of the low jobs are multiplied by this.
        low_bytes_per_s: and then at most this.
        high_nodes: one of these each.
        high_run_s: from, to; uniform, as all ranges.
        high_walltime: walltime / length.
        high_share: of its time in I/O.
        high_bytes_per_s: in I/O, alone.
    """

    low_jobs: int = 5000
    peaks: int = 4
    peak_jobs: int = 40
    peak_s: float = 600.0
    load: float = 1.05
    arrivals: Arrivals = "poisson"
    batch: float = 10.0
    scale: int = 4
    run_s: tuple[float, float] = (60.0, 7200.0)
    low_io: float = 1.0
    low_bytes_per_s: float = HIGH_BYTES_PER_S
    high_nodes: tuple[int, ...] = (16, 32, 32, 64)
    high_run_s: tuple[float, float] = (3600.0, 14400.0)
    high_walltime: tuple[float, float] = (1.1, 2.0)
    high_share: tuple[float, float] = (0.1, 0.5)
    high_bytes_per_s: tuple[float, float] = (10e9, 20e9)

    def __post_init__(self) -> None:
        """Refuse what makes no workload."""
        for key in ("low_jobs", "scale"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least 1")
        for key in ("peaks", "peak_jobs", "peak_s"):
            if getattr(self, key) < 0:
                raise ValueError(f"{key} is {getattr(self, key)}; it must not be below 0")
        for key in ("load", "low_io", "low_bytes_per_s"):
            if not 0.0 < getattr(self, key) < math.inf:
                raise ValueError(f"{key} is {getattr(self, key):g}; it must be above 0")
        if not self.batch >= 1.0:
            raise ValueError(f"batch is {self.batch:g}; it must be at least 1")
        for key, least in (("run_s", 0.0), ("high_run_s", 0.0), ("high_walltime", 1.0)):
            _check_range(key, getattr(self, key), least)
        for key in ("high_share", "high_bytes_per_s"):
            _check_range(key, getattr(self, key), 0.0)
        if self.high_share[1] > 1.0:
            raise ValueError(f"high_share goes to {self.high_share[1]:g}; at most 1")
        if not self.high_nodes or min(self.high_nodes) < 1:
            raise ValueError("high_nodes: name at least one number from 1 on")


def _check_range(key: str, given: tuple[float, float], least: float) -> None:
    if not least <= given[0] <= given[1] < math.inf or given[1] <= 0.0:
        raise ValueError(f"{key} is {list(given)}; write [from, to], at least {least:g}")


def draw_workload(
    mix: Mix, cluster: Cluster, seed: int, *, records: Sequence[Record] = ()
) -> tuple[ClusterJob, ...]:
    """The jobs of a seed, ordered by submit time.

    Args:
        mix: what is wanted.
        cluster: they fit it.
        seed: same seed, same jobs.
        records: real ones, drawn with replacement. Empty: from laws fitted to such.

    Raises:
        ValueError: no record makes a job with low I/O.
    """
    rng = random.Random(f"equilibrio {seed}")  # noqa: S311 - for experiments, not for secrets
    source = _chosen(records, rng) if records else draw_records(rng)
    low = _low_jobs(mix, cluster, source)
    high = [_high_job(mix, cluster, rng) for _ in range(mix.peaks * mix.peak_jobs)]
    work = sum(job.nodes * job.run_s for job in (*low, *high))
    span_s = work / (mix.load * cluster.nodes)
    placed = [
        *_at(low, _arrivals(mix, span_s, rng)),
        *_at(high, _peak_arrivals(mix, span_s, rng)),
    ]
    return tuple(sorted(placed, key=lambda job: job.submit_s))


def hinted_places(count: int, knowledge: float, seed: int, draw: int = 0) -> frozenset[int]:
    """Places of the jobs whose I/O is known, of so many; of one draw more knowledge holds less.

    Args:
        count: jobs, those with low and high I/O alike.
        knowledge: the part of all jobs, 0 to 1.
        seed: of the workload.
        draw: which of its orders in which jobs come to be known.
    """
    order = list(range(count))
    named = f"knowledge {seed} {draw}" if draw else f"knowledge {seed}"
    random.Random(named).shuffle(order)  # noqa: S311 - no secret
    return frozenset(order[: round(knowledge * count)])


def scaled(record: Record, mix: Mix, cluster: Cluster) -> ClusterJob:
    """The recorded job on the smaller machine, at time 0."""
    nodes = min(cluster.nodes, math.ceil(record.nodes / mix.scale))
    run_s = min(mix.run_s[1], max(mix.run_s[0], record.run_s))
    share, rate = record.io_share, record.io_bytes_per_s
    fastest = min(mix.low_bytes_per_s, cluster.fastest_bytes_per_s(nodes))
    if share is not None:
        rate = min(fastest, (rate or fastest) / mix.scale * mix.low_io)
    walltime_s = record.walltime_s
    return ClusterJob(
        submit_s=0.0,
        nodes=nodes,
        run_s=run_s,
        walltime_s=None if walltime_s is None else max(walltime_s, run_s),
        io_share=share,
        io_bytes_per_s=rate,
    )


def _chosen(records: Sequence[Record], rng: random.Random) -> Iterator[Record]:
    while True:
        yield rng.choice(records)


def _low_jobs(mix: Mix, cluster: Cluster, source: Iterator[Record]) -> list[ClusterJob]:
    """So many of the records that are not high."""
    made: list[ClusterJob] = []
    in_vain = 0
    while len(made) < mix.low_jobs:
        record = next(source)
        if _is_high(record, mix):
            in_vain += 1
            if in_vain > 100 * (len(made) + 1):
                raise ValueError("the records have next to no jobs with low or medium I/O")
            continue
        made.append(scaled(record, mix, cluster))
    return made


def _is_high(record: Record, mix: Mix) -> bool:
    """Whether it would belong to a wave."""
    rate = (record.io_bytes_per_s or 0.0) / mix.scale
    return (record.io_share or 0.0) >= HIGH_SHARE and rate >= HIGH_BYTES_PER_S


def _high_job(mix: Mix, cluster: Cluster, rng: random.Random) -> ClusterJob:
    nodes = min(cluster.nodes, rng.choice(mix.high_nodes))
    run_s = rng.uniform(*mix.high_run_s)
    return ClusterJob(
        submit_s=0.0,
        nodes=nodes,
        run_s=run_s,
        walltime_s=run_s * rng.uniform(*mix.high_walltime),
        io_share=rng.uniform(*mix.high_share),
        io_bytes_per_s=min(cluster.fastest_bytes_per_s(nodes), rng.uniform(*mix.high_bytes_per_s)),
        is_high=True,
    )


def _at(jobs: Sequence[ClusterJob], times_s: Sequence[float]) -> Iterator[ClusterJob]:
    for job, submit_s in zip(jobs, times_s, strict=True):
        yield msgspec.structs.replace(job, submit_s=submit_s)


def _arrivals(mix: Mix, span_s: float, rng: random.Random) -> list[float]:
    """When the low jobs come, in rising order."""
    gap_s = span_s / mix.low_jobs
    if mix.arrivals == "even":
        return [gap_s * (place + 0.5) for place in range(mix.low_jobs)]
    times_s: list[float] = []
    batch = mix.batch if mix.arrivals == "batches" else 1.0
    now_s = 0.0
    while len(times_s) < mix.low_jobs:
        now_s += rng.expovariate(1.0 / (gap_s * batch))
        times_s.append(now_s)
        while batch > 1.0 and len(times_s) < mix.low_jobs and rng.random() >= 1.0 / batch:
            times_s.append(now_s)
    return times_s


def _peak_arrivals(mix: Mix, span_s: float, rng: random.Random) -> list[float]:
    """When the high jobs come: the waves begin at (k + 0.7) / (waves + 0.6) of the span."""
    return [
        span_s * (wave + 0.7) / (mix.peaks + 0.6) + rng.uniform(0.0, mix.peak_s)
        for wave in range(mix.peaks)
        for _ in range(mix.peak_jobs)
    ]
