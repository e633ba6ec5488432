"""Lv et al., table 3: fifteen workloads under the published rule, without it, and under ours."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.config import policy_search
from iodaemon.core.measure import mean
from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.lv import Load, Server, Workload
from iodaemon.simulator.lv_figures import all_figures
from iodaemon.simulator.lv_rows import by_workload, increases, measured, reductions
from iodaemon.simulator.lv_run import Look, Way, averaged, find_ways, run_lv
from iodaemon.simulator.table import numbers

POINTS = 120
"""So many points of a latency over time are kept."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One workload of one seed under one policy; of the first seed more is kept."""

    seed: int
    workload: Workload
    way: Way
    is_shown: bool


TOLD: Final = ("makespan_s", "waiting_ms", "serving_ms", "jain", "suspended_s")
"""Columns of a run whose means are in the summary."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Every workload under every policy.

    Attributes:
        policies: names or files; the first one is what the others are compared with. With
            ``+demand`` behind it the jobs' I/O is counted as demand.
        workloads: of table 3.
        load: the applications.
        server: the machine.
        jobs_of: of these workloads every job of the first seed is kept (figures 23, 24).
        latency_of: of these the latency over time (figures 18, 19, 21, 22).
        until_s: virtual time at which a run is cut off, for a policy that ends no job.
    """

    policies: tuple[str, ...]
    workloads: tuple[Workload, ...]
    load: Load
    server: Server = Server()
    jobs_of: tuple[int, ...] = ()
    latency_of: tuple[int, ...] = ()
    until_s: float = 60 * 86400.0

    def __post_init__(self) -> None:
        """Refuse what has no policy or no work, and applications that are not there."""
        if not self.policies or not self.workloads:
            raise ValueError("policies and workloads list at least one each")
        numbers = [workload.index for workload in self.workloads]
        if len(set(numbers)) < len(numbers):
            raise ValueError("workloads: each has its own index")
        for workload in self.workloads:
            self.load.check(workload)

    def tasks(self, seeds: Sequence[int]) -> Sequence[Task]:
        """A run each of every policy, workload and seed.

        Raises:
            ConfigError: a policy is not found or wrong, or two have one name.
        """
        ways = find_ways(self.policies, policy_search(os.environ))
        return [
            Task(seed=seed, workload=workload, way=way, is_shown=seed == seeds[0])
            for seed in seeds
            for workload in self.workloads
            for way in ways.values()
        ]

    def run(self, task: Task) -> Sequence[Row]:
        """The sums; of some workloads the jobs and the latency over time."""
        workload = task.workload
        outcome = run_lv(
            self.server,
            self.load.draw(workload, self.server, task.seed),
            task.way,
            timeslice_s=workload.timeslice_s,
            seed=task.seed,
            until_s=self.until_s,
        )
        head: Row = {"seed": task.seed, "workload": workload.index, "policy": task.way.label}
        rows: list[Row] = [{"kind": "run", **head, **outcome.sums}]
        if task.is_shown and workload.index in self.jobs_of:
            rows += [{"kind": "job", **head, **job} for job in outcome.jobs]
        if task.is_shown and workload.index in self.latency_of:
            rows += _latency_rows(head, outcome.looks)
        return rows

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float]:
        """Gains in percent, latencies, directions (``lv_rows``)."""
        return measured(rows)

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Figures 16 to 24, and all policies beside each other."""
        return all_figures(rows)

    # -- beyond the protocol ------------------------------------------------------------------

    def remarks(self) -> Sequence[str]:
        """What each policy cannot do on this platform, one line each."""
        ways = find_ways(self.policies, policy_search(os.environ)).values()
        texts = (text for way in ways for text in way.rules.cautions(self.server.platform()))
        return list(dict.fromkeys(texts))

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """A row a workload and policy: means over the seeds."""
        runs = by_workload(rows)
        return [
            {
                "kind": "summary",
                "workload": workload,
                "policy": policy,
                "throughput": mean(increases(runs, workload, policy, "throughput_per_s")),
                "runtime": -mean(reductions(runs, workload, policy, "runtime_s")),
                "slowdown": mean(increases(runs, workload, policy, "slowdown")),
                **{key: mean(numbers(own, key)) for key in TOLD},
            }
            for (workload, policy), own in runs.items()
        ]


def _latency_rows(head: Row, looks: Sequence[Look]) -> list[Row]:
    return [{"kind": "latency", **head, **point} for point in averaged(looks, POINTS)]
