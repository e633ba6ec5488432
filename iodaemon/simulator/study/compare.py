"""Policies side by side on one machine and one workload: the study that needs no code.

A file gives the machine (sockets, slots, one disk), the work (a random mix, a list of jobs, or
both) and policies by name; every policy meets the same jobs, once a seed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.backend.simulated import (
    Profile,
    SimulatedDisk,
    constant_scaling,
    default_platform,
    parse_profile,
    table_scaling,
)
from iodaemon.config import load_policy, policy_search
from iodaemon.core.job import Job, JobSpec, JobState
from iodaemon.core.measure import (
    jain_index,
    makespan_s,
    mean,
    mean_turnaround_s,
    stretch,
    turnaround_s,
)
from iodaemon.core.platform import Platform
from iodaemon.core.rule import Rules
from iodaemon.errors import ConfigError
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import none
from iodaemon.registry import nearest
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.run import Result, Submission, simulate
from iodaemon.simulator.workload import Mix, random_workload

DAY_S: Final = 86400.0
STEPS: Final = ("compute", "read", "write")
MEASURES: Final = ("makespan_s", "mean_turnaround_s", "mean_stretch", "jain", "suspended_s")
RELATIVE: Final = ("makespan_s", "mean_turnaround_s", "mean_stretch")
"""Less is better; shown relative to the first policy."""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """The disk below all sockets; the page cache is Linux's with 16 GiB of memory.

    Attributes:
        capacity_bytes_per_s: what one stream gets.
        scaling: the part of the capacity that is left, for all together, with 1, 2, 3 ...
            streams; the last one holds beyond. Empty: all of it, always.
        stream_cap_bytes_per_s: no job's stream is faster. None: no such bound.
    """

    capacity_bytes_per_s: float = 500e6
    scaling: tuple[float, ...] = ()
    stream_cap_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse a disk that delivers nothing."""
        if self.capacity_bytes_per_s <= 0.0:
            raise ValueError("capacity_bytes_per_s must be above 0")
        if self.scaling and min(self.scaling) <= 0.0:
            raise ValueError(f"scaling is {list(self.scaling)}; every part must be above 0")
        if self.stream_cap_bytes_per_s == 0.0:
            raise ValueError("stream_cap_bytes_per_s must be above 0")

    def simulated(self) -> SimulatedDisk:
        """The disk of the simulated node."""
        return SimulatedDisk(
            capacity_bytes_per_s=self.capacity_bytes_per_s,
            scaling=table_scaling(self.scaling) if self.scaling else constant_scaling,
            stream_cap_bytes_per_s=self.stream_cap_bytes_per_s,
        )


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one kind.

    Attributes:
        does: what each really does: ``compute=5s read=2GiB write=200MB``, in this order.
        repeat: so many times over.
        name: for people.
        count: how many jobs.
        submit_s: when the first one is submitted.
        every_s: time between two submits. 0: all at once.
        cpus: slots that each one asks for.
        walltime_s: bound on its run time. None: no bound.
        io_rate_bytes_per_s: I/O that it declares. None: unknown to the policies.
        no_suspend: it must not be suspended.
    """

    does: str
    repeat: int = 1
    name: str = ""
    count: int = 1
    submit_s: float = 0.0
    every_s: float = 0.0
    cpus: int = 1
    walltime_s: float | None = None
    io_rate_bytes_per_s: float | None = None
    no_suspend: bool = False

    def __post_init__(self) -> None:
        """Refuse steps that are none, and jobs that ask for nothing."""
        for key in ("repeat", "count", "cpus"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least 1")
        words = self.does.split()
        if not words:
            raise ValueError("does is empty; write for example 'compute=5s read=2GiB'")
        for word in words:
            kind, found, _ = word.partition("=")
            if not found or kind not in STEPS:
                raise ValueError(f"does: {word!r} is no step; {nearest(kind, STEPS)}")
        try:
            parse_profile(words)
        except ConfigError as error:
            raise ValueError(f"does: {error}") from error

    def submissions(self) -> list[Submission]:
        """The jobs."""
        steps = parse_profile(self.does.split()).steps * self.repeat
        return [
            (self.submit_s + number * self.every_s, self._spec(), Profile(steps=steps))
            for number in range(self.count)
        ]

    def _spec(self) -> JobSpec:
        return JobSpec(
            command=("simulated", *self.does.split()),
            name=self.name,
            cpus=self.cpus,
            walltime_s=self.walltime_s,
            io_rate_bytes_per_s=self.io_rate_bytes_per_s,
            no_suspend=self.no_suspend,
        )


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on the workload of one seed."""

    seed: int
    policy: str
    rules: Rules


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Policies side by side.

    Attributes:
        policies: names or files; the first one is what the others are compared with.
        sockets: of the machine.
        slots: of each socket.
        disk: below all sockets.
        workload: jobs drawn at random, others for every seed. None: only those listed.
        jobs: listed, the same for every seed.
        until_s: virtual time at which a run is cut off, for a policy that ends no job.
    """

    policies: tuple[str, ...]
    sockets: int = 2
    slots: int = 4
    disk: Disk = Disk()
    workload: Mix | None = None
    jobs: tuple[JobLine, ...] = ()
    until_s: float = 7 * DAY_S

    def __post_init__(self) -> None:
        """Refuse what has no policy, no machine or no work, and jobs that never fit."""
        if not self.policies:
            raise ValueError("policies is empty; 'iod policy list' shows them")
        for key in ("sockets", "slots"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if self.workload is None and not self.jobs:
            raise ValueError("no work: give a table workload, or jobs, or both")
        wanted = [line.cpus for line in self.jobs]
        wanted += [self.workload.cpus[1]] if self.workload else []
        if max(wanted) > self.slots:
            raise ValueError(
                f"a job of {max(wanted)} cpus never fits: each socket has slots = {self.slots}"
            )

    # -- the protocol -------------------------------------------------------------------------

    def tasks(self, seeds: Sequence[int]) -> Sequence[Task]:
        """A run each of every policy and seed.

        Raises:
            ConfigError: a policy is not found or wrong, or two have one name.
        """
        search = policy_search(os.environ)
        rules: dict[str, Rules] = {}
        for name in self.policies:
            policy = load_policy(name, overrides={}, search=search)
            if policy.name in rules:
                raise ConfigError(f"policies: {policy.name!r} is there twice; each has its name")
            rules[policy.name] = policy.rules
        return [
            Task(seed=seed, policy=name, rules=each)
            for seed in seeds
            for name, each in rules.items()
        ]

    def run(self, task: Task) -> Sequence[Row]:
        """The sums, then a row a job."""
        work = self._work(task.seed)
        platform, disk = default_platform(self.sockets, self.slots), self.disk.simulated()
        result = simulate(
            platform, task.rules, work, disk=disk, seed=task.seed, until_s=self.until_s
        )
        alone = _times_alone_s(platform, disk, work)
        rows = [
            {"kind": "job", "seed": task.seed, "policy": task.policy, **_job_row(job, alone_s)}
            for job, alone_s in zip(result.jobs, alone, strict=True)
        ]
        sums = _sums(result, rows)
        return [{"kind": "run", "seed": task.seed, "policy": task.policy, **sums}, *rows]

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float]:
        """Means over the seeds by ``POLICY.MEASURE``, such as ``bounded.mean_stretch``."""
        runs = _runs(rows)
        return {
            f"{policy}.{measure}": mean([float(row[measure]) for row in alike])
            for policy, alike in runs.items()
            for measure in MEASURES
        }

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """The policies relative to the first, and the stretch of every job."""
        runs = _runs(rows)
        first = next(iter(runs))
        relative = Figure(
            name="relative",
            title=f"Relative to policy {first}: mean, lowest and highest seed; less is better",
            x_label="",
            y_label=f"relative to {first}",
            kind="bar",
            series=tuple(
                _relative_series(policy, alike, runs[first]) for policy, alike in runs.items()
            ),
            line_y=1.0,
        )
        stretches = Figure(
            name="stretch",
            title="Stretch of every job that ended by itself, all seeds",
            x_label="policy",
            y_label="turnaround / time alone",
            kind="box",
            series=tuple(_stretch_series(policy, rows) for policy in runs),
            log_y=True,
        )
        return relative, stretches

    # -- beyond the protocol ------------------------------------------------------------------

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """A row a policy: means over the seeds, and how its turnaround compares."""
        runs = _runs(rows)
        first = next(iter(runs))
        return [_summary_row(policy, alike, runs[first]) for policy, alike in runs.items()]

    def _work(self, seed: int) -> list[Submission]:
        listed = [submission for line in self.jobs for submission in line.submissions()]
        drawn = random_workload(self.workload, seed) if self.workload else ()
        return sorted([*listed, *drawn], key=lambda submission: submission[0])


def _times_alone_s(
    platform: Platform, disk: SimulatedDisk, work: Sequence[Submission]
) -> list[float]:
    """How long each job takes on the idle machine, without a walltime; alike ones once."""
    rules = Rules(
        name="alone", admission=fcfs.Rule(), placement=least_io.Rule(), regulation=none.Rule()
    )
    known: dict[Profile, float] = {}
    for _, spec, profile in work:
        if profile not in known:
            free = msgspec.structs.replace(spec, walltime_s=None)
            known[profile] = makespan_s(
                simulate(platform, rules, [(0.0, free, profile)], disk=disk).jobs
            )
    return [known[profile] for _, _, profile in work]


def _job_row(job: Job, alone_s: float) -> Row:
    """One job; ``nan`` where it has not come so far."""
    took_s = turnaround_s(job) if job.state is JobState.COMPLETED else None
    return {
        "job": job.id,
        "name": job.spec.name,
        "cpus": job.spec.cpus,
        "state": str(job.state),
        "submitted_s": job.submitted_s,
        "started_s": math.nan if job.started_s is None else job.started_s,
        "ended_s": math.nan if job.ended_s is None else job.ended_s,
        "alone_s": alone_s,
        "stretch": math.nan if took_s is None or alone_s == 0.0 else stretch(took_s, alone_s),
        "suspended_s": job.suspended_io_s,
    }


def _sums(result: Result, rows: Sequence[Row]) -> Row:
    stretches = _stretches(rows)
    completed = [job for job in result.jobs if job.state is JobState.COMPLETED]
    return {
        "makespan_s": makespan_s(result.jobs),
        "mean_turnaround_s": mean_turnaround_s(completed),
        "mean_stretch": mean(stretches),
        "jain": jain_index(stretches),
        "suspended_s": sum(float(row["suspended_s"]) for row in rows),
        "jobs": len(rows),
        "not_completed": len(rows) - len(completed),
    }


def _stretches(rows: Sequence[Row]) -> list[float]:
    values = [float(row["stretch"]) for row in rows]
    return [value for value in values if not math.isnan(value)]


def _runs(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The sums by policy, in the order of the tasks."""
    runs: dict[str, list[Row]] = {}
    for row in rows:
        if row["kind"] == "run":
            runs.setdefault(str(row["policy"]), []).append(row)
    return runs


def _ratios(measure: str, alike: Sequence[Row], first: Sequence[Row]) -> list[float]:
    """By seed; seeds in which the first policy has 0 are left out."""
    pairs = [(float(a[measure]), float(b[measure])) for a, b in zip(alike, first, strict=True)]
    return [value / base for value, base in pairs if base > 0.0]


def _relative_series(policy: str, alike: Sequence[Row], first: Sequence[Row]) -> Series:
    ratios = {measure: _ratios(measure, alike, first) for measure in RELATIVE}
    kept = {measure: values for measure, values in ratios.items() if values}
    return Series(
        label=policy,
        x=tuple(_words(measure) for measure in kept),
        y=tuple(mean(values) for values in kept.values()),
        low=tuple(min(values) for values in kept.values()),
        high=tuple(max(values) for values in kept.values()),
    )


def _stretch_series(policy: str, rows: Sequence[Row]) -> Series:
    own = [row for row in rows if row["kind"] == "job" and row["policy"] == policy]
    values = tuple(_stretches(own))
    return Series(label=policy, x=(policy,) * len(values), y=values)


def _summary_row(policy: str, alike: Sequence[Row], first: Sequence[Row]) -> Row:
    row: Row = {"kind": "summary", "policy": policy}
    for measure in MEASURES:
        row[measure] = mean([float(one[measure]) for one in alike])
    row["not_completed"] = sum(int(one["not_completed"]) for one in alike)
    ratios = _ratios("mean_turnaround_s", alike, first)
    if ratios:
        row["turnaround_vs_first"] = f"{mean(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
    return row


def _words(measure: str) -> str:
    return measure.removesuffix("_s").replace("_", " ")
