"""Rules for admission side by side on a cluster: what each made of a workload, in figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from iodaemon.config import decode_table
from iodaemon.core.measure import displacements, equilibrio_io_slowdown, mean
from iodaemon.core.rule import Rules
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import none
from iodaemon.registry import find_rule
from iodaemon.simulator.cluster import Cluster, Lived
from iodaemon.simulator.equilibrio_run import (
    high_of,
    intensity_course,
    mean_distance_bytes_per_s,
    stays,
)
from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.table import group, numbers, ranged, where

MEASURES: Final = (
    "distance_gb_per_s",
    "io_slowdown",
    "wait_s",
    "high_wait_s",
    "max_wait_s",
    "turnaround_s",
    "displacement",
    "makespan_s",
)
HEAVIEST: Final = 0.1
"""The part of the jobs with the highest intensity that is looked at where none is made high."""


def admission_rules(label: str, table: Mapping[str, Any]) -> Rules:
    """The policy with this rule for admission alone.

    Raises:
        ConfigError: there is no such rule, or it does not take its parameters.
    """
    parameters = dict(table)
    type_ = find_rule("admission", str(parameters.pop("rule", label)))
    rule: Any = decode_table(parameters, type_, where=f"policies.{label}")
    return Rules(name=label, admission=rule, placement=least_io.Rule(), regulation=none.Rule())


def sums(lived: Sequence[Lived]) -> Row:
    """One line of the table.

    ``io_slowdown`` is the median over the jobs with high I/O, of a workload without such over the
    tenth with the highest intensity; ``high_wait_s`` the mean wait of the same. ``distance`` is
    the mean distance of S and W, by what the jobs really are. Others are means over all jobs.
    """
    heavy = _heavy(lived)
    slowdowns = [equilibrio_io_slowdown(each.io_s, each.io_alone_s) for each in heavy]
    waits_s = [each.start_s - each.job.submit_s for each in lived]
    return {
        "distance_gb_per_s": mean_distance_bytes_per_s(intensity_course(stays(lived))) / 1e9,
        "io_slowdown": statistics.median(slowdowns) if slowdowns else 0.0,
        "wait_s": mean(waits_s),
        "high_wait_s": mean([each.start_s - each.job.submit_s for each in heavy]),
        "max_wait_s": max(waits_s),
        "turnaround_s": mean([each.end_s - each.job.submit_s for each in lived]),
        "displacement": mean(displacements([each.start_s for each in lived])),
        "makespan_s": max(each.end_s for each in lived) - lived[0].job.submit_s,
        "jobs": len(lived),
    }


Values = dict[str, dict[str, dict[str, float]]]
"""By workload, by label, by measure."""


def means(rows: Sequence[Row]) -> Values:
    """Over the seeds, in the order of the rows."""
    found: Values = {}
    for (workload, policy), own in group(rows, "workload", "policy").items():
        found.setdefault(workload, {})[policy] = {
            measure: mean(numbers(own, measure)) for measure in MEASURES
        }
    return found


def figure(rows: Sequence[Row], measure: str, title: str, y_label: str) -> Figure:
    """Bars of every policy, side by side for each workload."""
    found = means(rows)
    labels = dict.fromkeys(label for each in found.values() for label in each)
    series = []
    for label in labels:
        own = group(where(rows, policy=label), "workload")
        values = {workload: numbers(own.get(workload, ()), measure) for workload in found}
        series.append(ranged(label, values))
    return Figure(
        name=measure.removesuffix("_s").replace("_", "-"),
        title=title,
        x_label="workload",
        y_label=y_label,
        kind="bar",
        series=tuple(series),
    )


def _heavy(lived: Sequence[Lived]) -> list[Lived]:
    if high := high_of(lived):
        return high
    doing = [each for each in lived if each.io_alone_s > 0.0]
    doing.sort(key=lambda each: -each.job.intensity_bytes_per_s)
    return doing[: max(1, round(HEAVIEST * len(lived)))]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on the workload of one seed."""

    seed: int
    workload: str
    policy: str

    @property
    def row(self) -> Row:
        """How its row of results begins."""
        return {
            "kind": "run",
            "seed": self.seed,
            "workload": self.workload,
            "policy": self.policy,
        }


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Policies by workloads.

    Attributes:
        policies: rules for admission by label, each as the table ``[admission]`` of a policy file
            has it; the first is the one to compare with.
        workloads: at least one, each with an ``id`` by which it is known in rows.
        cluster: the machine.
    """

    policies: dict[str, dict[str, Any]]
    workloads: tuple[Any, ...]
    cluster: Cluster = Cluster()

    def __post_init__(self) -> None:
        """Refuse what compares nothing."""
        if not self.policies or not self.workloads:
            raise ValueError("policies and workloads each list at least one")
        if len({workload.id for workload in self.workloads}) < len(self.workloads):
            raise ValueError("workloads: two have one id")

    def tasks(self, seeds: Sequence[int]) -> Sequence[Run]:
        """Every policy on every workload of every seed.

        Raises:
            ConfigError: a rule is not there, or does not take its parameters.
        """
        for label in self.policies:
            self.rules(label)
        return [
            Run(seed=seed, workload=workload.id, policy=label)
            for seed in seeds
            for workload in self.workloads
            for label in self.policies
        ]

    def rules(self, label: str) -> Rules:
        """The policy of this label."""
        return admission_rules(label, self.policies[label])

    def workload(self, task: Run) -> Any:
        """What the task is of."""
        return next(each for each in self.workloads if each.id == task.workload)

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """A row a workload and policy: the means."""
        return [
            {"kind": "summary", "workload": workload, "policy": label, **each}
            for workload, labels in means(rows).items()
            for label, each in labels.items()
        ]
