"""Policies side by side on one machine and one workload: the study that needs no code.

A file gives the machine (sockets, slots, a disk, links), the work (a random mix, a list of jobs, or
both) and policies by name; every policy meets the same jobs, once a seed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.config import PolicyFile, load_policy, policy_search
from iodaemon.core.job import Job, JobState
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
from iodaemon.model.node import default_platform
from iodaemon.model.profile import Profile
from iodaemon.model.spec import Model
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import none
from iodaemon.registry import nearest
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.run import Result, Submission, simulate
from iodaemon.simulator.scenario import Disk, JobLine, Link, Room
from iodaemon.simulator.table import group, numbers, ranged, where
from iodaemon.simulator.workload import Mix, random_workload

DAY_S: Final = 86400.0
MEASURES: Final = ("makespan_s", "mean_turnaround_s", "mean_stretch", "jain", "suspended_s")
RELATIVE: Final = ("makespan_s", "mean_turnaround_s", "mean_stretch")
"""Less is better; shown relative to the first policy."""


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
        disk: below all sockets. None: there is none, and no job reads or writes.
        links: to storage elsewhere, for jobs that transfer or stage.
        stores: in which jobs hold room; who finds too little waits and is tried again.
        workload: jobs drawn at random, others for every seed. None: only those listed.
        jobs: listed, the same for every seed.
        until_s: virtual time at which a run is cut off, for a policy that ends no job.
    """

    policies: tuple[str, ...]
    sockets: int = 2
    slots: int = 4
    disk: Disk | None = Disk()
    links: tuple[Link, ...] = ()
    stores: tuple[Room, ...] = ()
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
        self._check_jobs()

    def _check_jobs(self) -> None:
        """A job that asks for what the machine lacks would wait for ever."""
        known = [link.id for link in self.links]
        stores = {store.id: store.capacity_bytes for store in self.stores}
        _check_ids("links", known)
        _check_ids("stores", [store.id for store in self.stores])
        for line in self.jobs:
            if line.holds_bytes and line.store not in stores:
                raise ValueError(f"jobs: no store {line.store!r}; {nearest(line.store, [*stores])}")
            if line.holds_bytes > stores.get(line.store, line.holds_bytes):
                raise ValueError(f"jobs: {line.holds_bytes} bytes never fit store {line.store!r}")
        for line in self.jobs:
            if line.uses_link and line.link not in known:
                raise ValueError(f"jobs: no link {line.link!r}; {nearest(line.link, known)}")
        if self.disk is None and (self.workload or any(line.uses_disk for line in self.jobs)):
            raise ValueError("disk is none, but jobs read and write")
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
        policies = self._policies()
        return [
            Task(seed=seed, policy=policy.name, rules=policy.rules)
            for seed in seeds
            for policy in policies
        ]

    def run(self, task: Task) -> Sequence[Row]:
        """The sums, then a row a job."""
        work = self._work(task.seed)
        platform, model = default_platform(self.sockets, self.slots), self._model()
        result = simulate(
            platform, task.rules, work, model=model, seed=task.seed, until_s=self.until_s
        )
        alone = _times_alone_s(platform, model, work)
        rows = [
            {"kind": "job", "seed": task.seed, "policy": task.policy, **_job_row(job, alone_s)}
            for job, alone_s in zip(result.jobs, alone, strict=True)
        ]
        sums = _sums(result, rows)
        return [{"kind": "run", "seed": task.seed, "policy": task.policy, **sums}, *rows]

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float]:
        """Means over the seeds by ``POLICY.MEASURE``, such as ``default.mean_stretch``."""
        runs = _runs(rows)
        return {
            f"{policy}.{measure}": mean(numbers(alike, measure))
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

    def remarks(self) -> Sequence[str]:
        """What each policy cannot do on this platform, one line each."""
        platform = default_platform(self.sockets, self.slots)
        return [text for policy in self._policies() for text in policy.cautions(platform)]

    def _policies(self) -> list[PolicyFile]:
        search = policy_search(os.environ)
        policies = [load_policy(name, overrides={}, search=search) for name in self.policies]
        names = [policy.name for policy in policies]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"policies: {name!r} is there twice; each has its name")
        return policies

    def _model(self) -> Model:
        return Model(
            links=tuple(link.simulated() for link in self.links),
            stores=tuple(store.simulated() for store in self.stores),
            disk=None if self.disk is None else self.disk.simulated(),
        )

    def _work(self, seed: int) -> list[Submission]:
        listed = [submission for line in self.jobs for submission in line.submissions()]
        drawn = random_workload(self.workload, seed) if self.workload else ()
        return sorted([*listed, *drawn], key=lambda submission: submission[0])


def _check_ids(key: str, ids: Sequence[str]) -> None:
    for name in ids:
        if ids.count(name) > 1:
            raise ValueError(f"{key}: {name!r} is there twice; each has its own id")


def _times_alone_s(platform: Platform, model: Model, work: Sequence[Submission]) -> list[float]:
    """How long each job takes on the idle machine, without a walltime; alike ones once."""
    rules = Rules(
        name="alone",
        admission=fcfs.Rule(),
        placement=least_io.Rule(),
        regulation=none.Rule(),
    )
    known: dict[tuple[Profile, int], float] = {}
    for _, spec, profile in work:
        if (profile, spec.cpus) not in known:
            job = (0.0, msgspec.structs.replace(spec, walltime_s=None), profile)
            result = simulate(platform, rules, [job], model=model, sampling=False)
            known[profile, spec.cpus] = makespan_s(result.jobs)
    return [known[profile, spec.cpus] for _, spec, profile in work]


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
        "suspended_s": sum(numbers(rows, "suspended_s")),
        "jobs": len(rows),
        "not_completed": len(rows) - len(completed),
    }


def _stretches(rows: Sequence[Row]) -> list[float]:
    return [value for value in numbers(rows, "stretch") if not math.isnan(value)]


def _runs(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The sums by policy, in the order of the tasks."""
    return group(where(rows, kind="run"), "policy")


def _ratios(measure: str, alike: Sequence[Row], first: Sequence[Row]) -> list[float]:
    """By seed; seeds in which the first policy has 0 are left out."""
    pairs = [(float(a[measure]), float(b[measure])) for a, b in zip(alike, first, strict=True)]
    return [value / base for value, base in pairs if base > 0.0]


def _relative_series(policy: str, alike: Sequence[Row], first: Sequence[Row]) -> Series:
    ratios = {measure: _ratios(measure, alike, first) for measure in RELATIVE}
    kept = {_words(measure): values for measure, values in ratios.items() if values}
    return ranged(policy, kept)


def _stretch_series(policy: str, rows: Sequence[Row]) -> Series:
    values = tuple(_stretches(where(rows, kind="job", policy=policy)))
    return Series(label=policy, x=(policy,) * len(values), y=values)


def _summary_row(policy: str, alike: Sequence[Row], first: Sequence[Row]) -> Row:
    row: Row = {"kind": "summary", "policy": policy}
    for measure in MEASURES:
        row[measure] = mean(numbers(alike, measure))
    row["not_completed"] = sum(int(one["not_completed"]) for one in alike)
    ratios = _ratios("mean_turnaround_s", alike, first)
    if ratios:
        row["turnaround_vs_first"] = f"{mean(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
    return row


def _words(measure: str) -> str:
    return measure.removesuffix("_s").replace("_", " ")
