"""EquilibrIO by bytes and by requests, where the storage has a limit for each.

Source: Özden, Tarraf, Wolf, CLUSTER 2025, which leaves intensity in operations as future work.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from iodaemon.core.measure import equilibrio_io_slowdown, mean
from iodaemon.simulator.balanced import (
    Run,
    admission_rules,
    check_compared,
    every_run,
    figure,
    means,
    summary,
    sums,
)
from iodaemon.simulator.cluster import Cluster, Lived
from iodaemon.simulator.equilibrio import Mix
from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.small_requests import Requester, Small, draw_requesters, run_requesters
from iodaemon.simulator.table import numbers, where

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


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Policies by workloads.

    Attributes:
        policies: rules for admission by label; the first is the one to compare with.
        workloads: at least one.
        cluster: the machine.
        metadata_rate: requests/s that its metadata server answers.
    """

    policies: dict[str, dict[str, Any]]
    workloads: tuple[Workload, ...]
    cluster: Cluster = Cluster()
    metadata_rate: float = 200e3

    def __post_init__(self) -> None:
        """Refuse what compares nothing."""
        check_compared(self.policies, self.workloads)
        if not self.metadata_rate > 0.0:
            raise ValueError("metadata_rate must be above 0")

    def tasks(self, seeds: Sequence[int]) -> Sequence[Run]:
        """Every policy on every workload of every seed.

        Raises:
            ConfigError: a rule is not there, or does not take its parameters.
        """
        return every_run(self.policies, self.workloads, seeds)

    def run(self, task: Run) -> Sequence[Row]:
        """One row."""
        (workload,) = (each for each in self.workloads if each.id == task.workload)
        jobs = draw_requesters(workload.mix, workload.small, self.cluster, task.seed)
        rules = admission_rules(task.policy, self.policies[task.policy])
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
        made = summary(rows)
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
