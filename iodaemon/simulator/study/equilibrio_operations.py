"""EquilibrIO by bytes and by requests, where the storage has a limit for each.

The file system delivers so many bytes/s and its metadata server answers so many requests/s; each is
shared max-min fair. A job with large requests is held up by the first alone, one with many small
requests by the second alone: what its requests move is nothing to the file system.

Source: Özden, Tarraf, Wolf, CLUSTER 2025, which leaves intensity in operations as future work.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.core.job import JobSpec
from iodaemon.core.measure import equilibrio_io_slowdown, mean
from iodaemon.core.rule import Rules
from iodaemon.model.profile import Compute, Profile, Transfer
from iodaemon.model.spec import LinkSpec, Model
from iodaemon.simulator.balanced import Comparison, Run, figure, means, sums
from iodaemon.simulator.cluster import Cluster, ClusterJob, Lived, submission
from iodaemon.simulator.equilibrio import Mix, draw_workload
from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.run import Submission, simulate
from iodaemon.simulator.table import numbers, where

METADATA: Final = "metadata"
"""The link over which requests go."""
LARGE_REQUEST_BYTES: Final = (2**18, 2**24)
"""Of a job with large requests, from to; the logarithm is uniform."""
SMALL_REQUEST_BYTES: Final = 4096.0


class Small(msgspec.Struct, frozen=True, kw_only=True):
    """Waves of jobs with many small requests; ranges are drawn from uniformly.

    Attributes:
        peaks: waves, spread over the time in which the other jobs come.
        peak_jobs: in each wave.
        peak_s: from the first arrival of a wave to its last, at random in between.
        nodes: one of these each.
        run_s: length alone.
        walltime: walltime / length.
        share: of its time in I/O.
        operations: requests/s in that time, alone.
    """

    peaks: int = 0
    peak_jobs: int = 40
    peak_s: float = 600.0
    nodes: tuple[int, ...] = (16, 32, 32, 64)
    run_s: tuple[float, float] = (3600.0, 14400.0)
    walltime: tuple[float, float] = (1.1, 2.0)
    share: tuple[float, float] = (0.1, 0.5)
    operations: tuple[float, float] = (50e3, 100e3)

    def __post_init__(self) -> None:
        """Refuse what makes no jobs."""
        if self.peaks < 0 or self.peak_jobs < 1 or not self.peak_s >= 0.0:
            raise ValueError("peaks and peak_s are 0 or more, peak_jobs is 1 or more")
        if not self.nodes or min(self.nodes) < 1:
            raise ValueError("nodes: name at least one number from 1 on")
        for key, least in (("run_s", 0.0), ("walltime", 1.0), ("operations", 0.0)):
            low, high = getattr(self, key)
            if not least <= low <= high < math.inf or not low > 0.0:
                raise ValueError(f"{key} is {low:g} to {high:g}; write [from, to], above 0")
        if not 0.0 < self.share[0] <= self.share[1] <= 1.0:
            raise ValueError(f"share is {list(self.share)}; above 0, at most 1")


class Requester(msgspec.Struct, frozen=True, kw_only=True):
    """A job, and its requests while in I/O, alone.

    Attributes:
        job: as to bytes; ``is_high`` where either is high.
        operations_per_s: None: it does no I/O, or none is known.
        is_small: the requests are what holds it up.
    """

    job: ClusterJob
    operations_per_s: float | None
    is_small: bool = False


def draw_requesters(mix: Mix, small: Small, cluster: Cluster, seed: int) -> tuple[Requester, ...]:
    """The jobs of a seed, ordered by submit time."""
    rng = random.Random(f"requests {seed}")  # noqa: S311 - for experiments, not for secrets
    others = draw_workload(mix, cluster, seed)
    span_s = others[-1].submit_s
    made = [Requester(job=job, operations_per_s=_large(job, rng)) for job in others]
    for wave in range(small.peaks):
        begun_s = span_s * (wave + 0.35) / (small.peaks + 0.1)
        made += [_small(small, cluster, begun_s, rng) for _ in range(small.peak_jobs)]
    return tuple(sorted(made, key=lambda each: each.job.submit_s))


def _large(job: ClusterJob, rng: random.Random) -> float | None:
    low, high = (math.log(size) for size in LARGE_REQUEST_BYTES)
    size_bytes = math.exp(rng.uniform(low, high))
    return None if job.io_bytes_per_s is None else job.io_bytes_per_s / size_bytes


def _small(small: Small, cluster: Cluster, begun_s: float, rng: random.Random) -> Requester:
    run_s = rng.uniform(*small.run_s)
    operations = rng.uniform(*small.operations)
    job = ClusterJob(
        submit_s=begun_s + rng.uniform(0.0, small.peak_s),
        nodes=min(cluster.nodes, rng.choice(small.nodes)),
        run_s=run_s,
        walltime_s=run_s * rng.uniform(*small.walltime),
        io_share=rng.uniform(*small.share),
        io_bytes_per_s=operations * SMALL_REQUEST_BYTES,
        is_high=True,
    )
    return Requester(job=job, operations_per_s=operations, is_small=True)


def run_requesters(
    cluster: Cluster,
    metadata_per_s: float,
    rules: Rules,
    jobs: Sequence[Requester],
    *,
    seed: int = 0,
) -> tuple[Lived, ...]:
    """Run the jobs, all of which tell of bytes and requests; what became of each, in this order.

    Args:
        cluster: the platform.
        metadata_per_s: requests that the metadata server answers.
        rules: the policy; its regulation is not asked.
        jobs: ordered by submit time.
        seed: of the generator that rules may use.
    """
    link = LinkSpec(id=METADATA, capacity_bytes_per_s=metadata_per_s)
    model = Model(links=(*cluster.model().links, link), disk=None)
    result = simulate(
        cluster.platform(),
        msgspec.structs.replace(rules, ends_overdue=False),
        [_submission(cluster, each) for each in jobs],
        model=model,
        sampling=False,
        seed=seed,
    )
    return tuple(
        Lived(
            job=each.job,
            start_s=ended.started_s or 0.0,
            end_s=ended.ended_s or 0.0,
            io_alone_s=_io_alone_s(cluster, metadata_per_s, each),
            is_backfilled=False,
        )
        for each, ended in zip(jobs, result.jobs, strict=True)
    )


def _io_alone_s(cluster: Cluster, metadata_per_s: float, each: Requester) -> float:
    if not each.is_small:
        return cluster.io_alone_s(each.job)
    rate = each.operations_per_s or 0.0
    alone_s = each.job.run_s * (each.job.io_share or 0.0)
    return alone_s * max(1.0, rate / metadata_per_s)


def _submission(cluster: Cluster, each: Requester) -> Submission:
    submit_s, spec, profile = submission(cluster, each.job, is_hinted=True)
    told: JobSpec = msgspec.structs.replace(spec, io_operations_per_s=each.operations_per_s)
    if not each.is_small:
        return submit_s, told, profile
    cycles = cluster.cycles
    rate = each.operations_per_s or 0.0
    requests = rate * each.job.run_s * (each.job.io_share or 0.0) / cycles
    steps = (
        Compute(each.job.compute_s / cycles),
        Transfer(requests, METADATA, cap_bytes_per_s=rate),
    )
    return submit_s, told, Profile(steps=steps, repeat=cycles)


GROUPS: Final = ("large_io_slowdown", "small_io_slowdown")


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of jobs.

    Attributes:
        id: its name in the table.
        mix: jobs with large requests.
        small: jobs with small ones.
    """

    id: str
    mix: Mix = Mix()
    small: Small = Small()


class Study(Comparison, frozen=True, kw_only=True):
    """Policies by workloads.

    Attributes:
        metadata_rate: requests/s that its metadata server answers.
    """

    workloads: tuple[Workload, ...]
    metadata_rate: float = 200e3

    def __post_init__(self) -> None:
        """Refuse what compares nothing."""
        Comparison.__post_init__(self)
        if not self.metadata_rate > 0.0:
            raise ValueError("metadata_rate must be above 0")

    def run(self, task: Run) -> Sequence[Row]:
        """One row."""
        workload: Workload = self.workload(task)
        jobs = draw_requesters(workload.mix, workload.small, self.cluster, task.seed)
        rules = self.rules(task.policy)
        lived = run_requesters(self.cluster, self.metadata_rate, rules, jobs, seed=task.seed)
        return [{**task.row, **sums(lived), **_by_size(jobs, lived)}]

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """Of each workload and policy but the first, relative to the first.

        ``WORKLOAD.POLICY.io-slowdown``: median of the jobs with high I/O.
        ``WORKLOAD.POLICY.turnaround``: mean of all.
        """
        found: dict[str, float | None] = {}
        for workload, labels in means(rows).items():
            first = next(iter(labels.values()))
            for label, each in list(labels.items())[1:]:
                for key, measure in (
                    ("io-slowdown", "io_slowdown"),
                    ("turnaround", "turnaround_s"),
                ):
                    base = first[measure]
                    found[f"{workload}.{label}.{key}"] = each[measure] / base if base else None
        return found

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """I/O slowdown and turnaround of all policies."""
        which = "mean, lowest and highest seed"
        return [
            figure(
                rows,
                "io_slowdown",
                f"Median I/O slowdown of jobs with high I/O; {which}",
                "slowdown",
            ),
            figure(rows, "turnaround_s", f"Mean turnaround of all jobs; {which}", "s"),
        ]

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """A row a workload and policy, with both kinds of jobs."""
        made = list(Comparison.summary(self, rows))
        for row in made:
            own = where(rows, workload=row["workload"], policy=row["policy"])
            row.update({each: mean(numbers(own, each)) for each in GROUPS})
        return made


def _by_size(jobs: Sequence[Requester], lived: Sequence[Lived]) -> Row:
    """The median I/O slowdown of jobs with high I/O, by the size of their requests; 0 for none."""
    found: Row = {}
    for name, is_small in zip(GROUPS, (False, True), strict=True):
        slowdowns = [
            equilibrio_io_slowdown(each.io_s, each.io_alone_s)
            for job, each in zip(jobs, lived, strict=True)
            if job.job.is_high and job.is_small == is_small
        ]
        found[name] = statistics.median(slowdowns) if slowdowns else 0.0
    return found
