"""The fluid model held to another simulator: the same jobs, first come, first served, end by end.

The results of the other one come as CSV, one line a job (``COLUMNS``), as ElastiSim on SimGrid
gives them for rigid jobs that compute and then write to the parallel file system, in cycles, all
nodes of a job writing an equal part at once.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from iodaemon.backend.model.profile import Compute, Profile
from iodaemon.core.job import JobSpec
from iodaemon.core.rule import Rules
from iodaemon.errors import ConfigError, NotFound, RequestError
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import none
from iodaemon.simulator.cluster import Cluster
from iodaemon.simulator.run import Submission, simulate
from iodaemon.units import format_duration, parse_rate_bytes_per_s

COLUMNS: Final = (
    *("job", "submit_s", "nodes", "iterations", "compute_s", "io_bytes"),
    *("start_s", "end_s"),
)
"""``compute_s`` and ``io_bytes`` are one iteration's, the bytes those of all nodes together."""
MEDIAN_MOST: Final = 1e-3
P99_MOST: Final = 1e-2
"""Relative differences of the end times up to which both agree. SimGrid lets 97 % of a bandwidth
be used and adds latencies, so that they are not 0; a start in another order makes the largest."""
ELASTISIM: Final = Cluster(weights="nodes", caps="network")
"""Every node of a job is a flow there, and nothing but its network holds it back."""


class ReferenceJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job, and when the other simulator started and ended it."""

    name: str
    submit_s: float
    nodes: int
    iterations: int
    compute_s: float
    io_bytes: float
    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        """Refuse what is no job, or did not end."""
        if self.nodes < 1 or self.iterations < 1:
            raise ValueError("nodes and iterations are at least 1")
        sizes = (self.compute_s, self.io_bytes)
        if not (min(sizes) >= 0.0 and max(sizes) < math.inf):
            raise ValueError("compute_s and io_bytes are finite and not below 0")
        if not (0.0 <= self.submit_s < math.inf and 0.0 <= self.start_s < self.end_s < math.inf):
            raise ValueError("times are finite, not below 0, and end_s is after start_s")


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far our end times are from the other simulator's: |ours - theirs| / theirs.

    Attributes:
        jobs: how many.
        median: of the differences.
        p99: the 99th percentile.
        most: the largest, and ``worst`` is whose it is.
        worst: the name of that job.
        length_median: the median of the same of the lengths, from start to end.
        ended_s: when our last job ended.
        theirs_s: when theirs did.
        took_s: wall time of our simulation.
    """

    jobs: int
    median: float
    p99: float
    most: float
    worst: str
    length_median: float
    ended_s: float
    theirs_s: float
    took_s: float

    @property
    def is_near(self) -> bool:
        """Whether both bounds hold."""
        return self.median <= MEDIAN_MOST and self.p99 <= P99_MOST

    def document(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {**msgspec.structs.asdict(self), "agrees": self.is_near}

    def lines(self) -> list[str]:
        """All of it, for people."""
        verdict = "agrees" if self.is_near else "differs"
        took = format_duration(round(self.took_s, 2))
        ends = (
            f"median difference {self.median:.2e} (at most {MEDIAN_MOST:g}), 99th percentile "
            f"{self.p99:.2e} (at most {P99_MOST:g}), largest {self.most:.2e} of job {self.worst}"
        )
        return [
            f"{self.jobs} jobs, simulated in {took}: {verdict}",
            f"end times: {ends}",
            f"lengths: median difference {self.length_median:.2e}",
            f"last end: {self.ended_s:.1f} s here, {self.theirs_s:.1f} s there",
        ]


def named_cluster(
    *, nodes: str | None = None, file_system: str | None = None, network: str | None = None
) -> Cluster:
    """The cluster of these words, each as on the command line; None: as of ``ELASTISIM``.

    Raises:
        ConfigError: one is none.
    """
    changes: dict[str, Any] = {}
    if nodes is not None:
        if not (nodes.isascii() and nodes.isdigit() and int(nodes)):
            raise ConfigError(f"--nodes {nodes}: write a number of nodes, 1 or more")
        changes["nodes"] = int(nodes)
    for option, key, word in (
        ("--file-system", "file_system_bytes_per_s", file_system),
        ("--network", "node_bytes_per_s", network),
    ):
        if word is not None:
            try:
                changes[key] = parse_rate_bytes_per_s(word)
                msgspec.structs.replace(ELASTISIM, **{key: changes[key]})
            except (ConfigError, ValueError) as error:
                raise ConfigError(f"{option} {word}: {error}") from error
    return msgspec.structs.replace(ELASTISIM, **changes)


def read_reference(path: Path) -> tuple[ReferenceJob, ...]:
    """The jobs of a CSV file, plain or ``.gz``, ordered by submit time.

    Raises:
        NotFound: there is no such file.
        RequestError: it cannot be read, lacks a column, holds no job, or a line is none; one line.
    """
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        rows = csv.DictReader(io.StringIO(text, newline=""))
        lacking = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
        if lacking:
            raise RequestError(
                f"{path}: no column {', '.join(lacking)}; needed are {', '.join(COLUMNS)}"
            )
        jobs = [_job(row, f"{path}:{rows.line_num}") for row in rows]
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist") from error
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f"{path} cannot be read: {error}") from error
    if not jobs:
        raise RequestError(f"{path} holds no job")
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


def _job(row: Mapping[str, str | None], where: str) -> ReferenceJob:
    texts = {name: (row[name] or "").strip() for name in COLUMNS}
    try:
        return ReferenceJob(
            name=texts["job"],
            nodes=int(texts["nodes"]),
            iterations=int(texts["iterations"]),
            **{
                name: float(texts[name])
                for name in ("submit_s", "compute_s", "io_bytes", "start_s", "end_s")
            },
        )
    except ValueError as error:
        raise RequestError(f"{where}: this is no job: {error}") from error


def check_fluid(jobs: Sequence[ReferenceJob], cluster: Cluster = ELASTISIM) -> Agreement:
    """Run the jobs first come, first served, and compare.

    Args:
        jobs: ordered by submit time, at least one.
        cluster: the platform that the other simulator had.

    Raises:
        RequestError: a job never fits the cluster.
    """
    largest = max(jobs, key=lambda job: job.nodes)
    if largest.nodes > cluster.nodes:
        raise RequestError(
            f"job {largest.name} has {largest.nodes} nodes, the cluster {cluster.nodes}: name its "
            "size with --nodes"
        )
    rules = Rules(
        name="fcfs", admission=fcfs.Rule(), placement=least_io.Rule(), regulation=none.Rule()
    )
    work = [_submission(job, cluster) for job in jobs]
    begun_s = time.perf_counter()
    result = simulate(cluster.platform(), rules, work, model=cluster.model(), sampling=False)
    took_s = time.perf_counter() - begun_s
    lives = [(job.started_s or 0.0, job.ended_s or 0.0) for job in result.jobs]
    return _agreement(jobs, lives, took_s)


def _submission(job: ReferenceJob, cluster: Cluster) -> Submission:
    phase = cluster.transfer(job.nodes, job.io_bytes)
    profile = Profile(steps=(Compute(job.compute_s), phase), repeat=job.iterations)
    return job.submit_s, JobSpec(command=("simulated",), cpus=job.nodes, name=job.name), profile


def _agreement(
    jobs: Sequence[ReferenceJob], lives: Sequence[tuple[float, float]], took_s: float
) -> Agreement:
    """Of ours, start and end, beside theirs."""
    pairs = list(zip(jobs, lives, strict=True))
    ends = [abs(end_s - job.end_s) / job.end_s for job, (_, end_s) in pairs]
    lengths = [
        abs((end_s - start_s) / (job.end_s - job.start_s) - 1.0) for job, (start_s, end_s) in pairs
    ]
    worst = max(range(len(ends)), key=ends.__getitem__)
    return Agreement(
        jobs=len(jobs),
        median=quantile(ends, 0.5),
        p99=quantile(ends, 0.99),
        most=ends[worst],
        worst=jobs[worst].name,
        length_median=quantile(lengths, 0.5),
        ended_s=max(end_s for _, end_s in lives),
        theirs_s=max(job.end_s for job in jobs),
        took_s=took_s,
    )


def quantile(values: Iterable[float], part: float) -> float:
    """The least value that this part of all does not exceed; 0 for none."""
    held = sorted(values)
    return held[max(0, math.ceil(part * len(held)) - 1)] if held else 0.0
