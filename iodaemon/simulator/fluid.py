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

from iodaemon.core.job import JobSpec
from iodaemon.core.rule import Rules
from iodaemon.errors import ConfigError, NotFound, RequestError
from iodaemon.model.profile import Compute, Profile
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import none
from iodaemon.simulator.cluster import Cluster
from iodaemon.simulator.run import Submission, simulate
from iodaemon.units import format_duration, parse_duration_s, parse_rate_bytes_per_s

COLUMNS: Final = (
    *("job", "submit_s", "nodes", "iterations", "compute_s", "io_bytes"),
    *("start_s", "end_s"),
)
"""``compute_s`` and ``io_bytes`` are one iteration's, the bytes those of all nodes together."""
MEDIAN_MOST: Final = 1e-3
P99_MOST: Final = 1e-2
MOST: Final = 0.1
"""Relative differences up to which both agree, each of starts, ends and run lengths. They are not
0: a time has six digits there, and two jobs whose ends lie closer together than that may start
their successors in another order, which then share the file system with others."""
ELASTISIM: Final = Cluster(weights="nodes", caps="network", latency_s=0.55e-3)
"""Every node of a job is a flow there. Latencies are those of ElastiSim's example platform: 50 us
of a node's link and 500 us of the file system's."""
_COUNTED: Final = 1e-3
"""Run lengths that differ by more are counted."""


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


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How far our values of one kind are from theirs: |ours - theirs| / theirs, of each job.

    Attributes:
        median: of the differences.
        p99: the 99th percentile.
        most: the largest, and ``worst`` is the job that has it.
        worst: the name of that job.
    """

    median: float
    p99: float
    most: float
    worst: str

    @property
    def is_near(self) -> bool:
        """Whether all bounds hold."""
        return self.median <= MEDIAN_MOST and self.p99 <= P99_MOST and self.most <= MOST

    def words(self) -> str:
        """All of it, for people."""
        return (
            f"median difference {self.median:.2e}, 99th percentile {self.p99:.2e}, largest "
            f"{self.most:.2e} of job {self.worst}"
        )


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far our times are from the other simulator's, each kind by its own size.

    Attributes:
        jobs: how many.
        starts: times of start, on the clock of the simulation.
        ends: times of end, on the same clock.
        lengths: run lengths. A clock that has run for days hides what they show.
        longer: how many run lengths differ by more than a thousandth.
        ended_s: when our last job ended.
        theirs_s: when theirs did.
        took_s: wall time of our simulation.
    """

    jobs: int
    starts: Spread
    ends: Spread
    lengths: Spread
    longer: int
    ended_s: float
    theirs_s: float
    took_s: float

    @property
    def is_near(self) -> bool:
        """Whether the bounds hold for starts, ends and lengths."""
        return self.starts.is_near and self.ends.is_near and self.lengths.is_near

    def document(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {**msgspec.to_builtins(self), "agrees": self.is_near}

    def lines(self) -> list[str]:
        """All of it, for people."""
        verdict = "agrees" if self.is_near else "differs"
        took = format_duration(round(self.took_s, 2))
        return [
            f"{self.jobs} jobs, simulated in {took}: {verdict}",
            f"run lengths: {self.lengths.words()}; {self.longer} differ by more than {_COUNTED:g}",
            f"starts: {self.starts.words()}",
            f"ends: {self.ends.words()}",
            f"allowed: median {MEDIAN_MOST:g}, 99th percentile {P99_MOST:g}, largest {MOST:g}",
            f"last end: {self.ended_s:.1f} s here, {self.theirs_s:.1f} s there",
        ]


def named_cluster(
    *,
    nodes: str | None = None,
    file_system: str | None = None,
    network: str | None = None,
    latency: str | None = None,
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
    for option, key, word, parse in (
        ("--file-system", "file_system_bytes_per_s", file_system, parse_rate_bytes_per_s),
        ("--network", "node_bytes_per_s", network, parse_rate_bytes_per_s),
        ("--latency", "latency_s", latency, parse_duration_s),
    ):
        if word is not None:
            try:
                changes[key] = parse(word)
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
    begun_s = time.perf_counter()
    lives = lives_of(jobs, cluster)
    return _agreement(jobs, lives, time.perf_counter() - begun_s)


def lives_of(jobs: Sequence[ReferenceJob], cluster: Cluster) -> list[tuple[float, float]]:
    """When each job starts and ends here, first come, first served.

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
    result = simulate(cluster.platform(), rules, work, model=cluster.model(), sampling=False)
    return [(job.started_s or 0.0, job.ended_s or 0.0) for job in result.jobs]


def _submission(job: ReferenceJob, cluster: Cluster) -> Submission:
    phase = (*cluster.delay, cluster.transfer(job.nodes, job.io_bytes)) if job.io_bytes else ()
    profile = Profile(steps=(Compute(job.compute_s), *phase), repeat=job.iterations)
    return job.submit_s, JobSpec(command=("simulated",), cpus=job.nodes, name=job.name), profile


def _agreement(
    jobs: Sequence[ReferenceJob], lives: Sequence[tuple[float, float]], took_s: float
) -> Agreement:
    """Of ours, start and end, beside theirs."""
    names = [job.name for job in jobs]
    theirs = [(job.start_s, job.end_s) for job in jobs]
    starts, ends, lengths = zip(
        *(
            (
                _difference(start_s, start),
                _difference(end_s, end),
                _difference(end_s - start_s, end - start),
            )
            for (start_s, end_s), (start, end) in zip(lives, theirs, strict=True)
        ),
        strict=True,
    )
    return Agreement(
        jobs=len(jobs),
        starts=_spread(starts, names),
        ends=_spread(ends, names),
        lengths=_spread(lengths, names),
        longer=sum(length > _COUNTED for length in lengths),
        ended_s=max(end_s for _, end_s in lives),
        theirs_s=max(end_s for _, end_s in theirs),
        took_s=took_s,
    )


def _difference(ours_s: float, theirs_s: float) -> float:
    """Relative to theirs; of a start at 0, in seconds."""
    return abs(ours_s - theirs_s) / (theirs_s or 1.0)


def _spread(differences: Sequence[float], names: Sequence[str]) -> Spread:
    worst = max(range(len(differences)), key=differences.__getitem__)
    return Spread(
        median=quantile(differences, 0.5),
        p99=quantile(differences, 0.99),
        most=differences[worst],
        worst=names[worst],
    )


def quantile(values: Iterable[float], part: float) -> float:
    """The least value that this part of all does not exceed; 0 for none."""
    held = sorted(values)
    return held[max(0, math.ceil(part * len(held)) - 1)] if held else 0.0
