"""Fixed reordering intensities of EquilibrIO beside one that adapts itself, on several workloads.

Source: Özden, Tarraf, Wolf, CLUSTER 2025, which leaves an adapting alpha as future work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.simulator.balanced import Comparison, Run, figure, means, sums
from iodaemon.simulator.cluster import Cluster, ClusterJob, run_cluster
from iodaemon.simulator.equilibrio import Mix, draw_workload
from iodaemon.simulator.experiment import Figure, Row

AUTO: Final = "auto"
"""The label of the policy that is judged."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of jobs, or two one after the other.

    Attributes:
        id: its name in the table.
        mix: the jobs.
        then: others that come once all of ``mix`` have come. None: none do.
    """

    id: str
    mix: Mix = Mix()
    then: Mix | None = None

    def draw(self, cluster: Cluster, seed: int) -> tuple[ClusterJob, ...]:
        """The jobs of a seed, ordered by submit time."""
        first = draw_workload(self.mix, cluster, seed)
        if self.then is None:
            return first
        change_s = first[-1].submit_s
        later = draw_workload(self.then, cluster, seed)
        moved = (msgspec.structs.replace(job, submit_s=change_s + job.submit_s) for job in later)
        return (*first, *moved)


class Study(Comparison, frozen=True, kw_only=True):
    """Policies by workloads; ``auto`` is the one that is judged."""

    workloads: tuple[Workload, ...]

    def run(self, task: Run) -> Sequence[Row]:
        """One row."""
        workload: Workload = self.workload(task)
        rules = self.rules(task.policy)
        lived = run_cluster(
            self.cluster, rules, workload.draw(self.cluster, task.seed), seed=task.seed
        )
        return [{**task.row, **sums(lived)}]

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """What ``auto`` is worth on each workload.

        ``WORKLOAD.gain``: the part of the fall of the I/O slowdown from the first policy to the
        best fixed one that it keeps. ``WORKLOAD.distance``, ``WORKLOAD.displacement``,
        ``WORKLOAD.wait`` and ``WORKLOAD.max-wait``: relative to the first policy's. None where
        there is nothing to be relative to.
        """
        found: dict[str, float | None] = {}
        for workload, labels in means(rows).items():
            if AUTO not in labels:
                continue
            first, auto = next(iter(labels.values())), labels[AUTO]
            best = min(each["io_slowdown"] for name, each in labels.items() if name != AUTO)
            found[f"{workload}.gain"] = _ratio(
                first["io_slowdown"] - auto["io_slowdown"], first["io_slowdown"] - best
            )
            for key, measure in (
                ("io-slowdown", "io_slowdown"),
                ("distance", "distance_gb_per_s"),
                ("displacement", "displacement"),
                ("wait", "wait_s"),
                ("max-wait", "max_wait_s"),
            ):
                found[f"{workload}.{key}"] = _ratio(auto[measure], first[measure])
        return found

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Distance, I/O slowdown, wait and displacement of all policies."""
        which = "mean, lowest and highest seed"
        return [
            figure(rows, "distance_gb_per_s", f"Mean distance of S and W; {which}", "GB/s"),
            figure(
                rows,
                "io_slowdown",
                f"Median I/O slowdown of jobs with high I/O; {which}",
                "slowdown",
            ),
            figure(rows, "wait_s", f"Mean wait; {which}", "s"),
            figure(rows, "displacement", f"Mean displacement; {which}", "places"),
        ]


_LITTLE: Final = 1e-3
"""A slowdown of one in a thousand, or less, is none."""


def _ratio(value: float, base: float) -> float | None:
    return value / base if base > _LITTLE else None
