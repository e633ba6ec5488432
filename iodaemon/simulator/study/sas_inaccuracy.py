"""SAS where users are wrong about what their jobs move (figure 5; targets A8 and A9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from iodaemon.policy.admission import storage_aware
from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.sas import Load, Site
from iodaemon.simulator.sas_rows import HOUR_S, MAKESPAN, TURNAROUND, figure_5, fitted, used
from iodaemon.simulator.sas_run import RANDOM, SAS, SILENT, Point, run_point
from iodaemon.simulator.study.sas_random import steps
from iodaemon.simulator.table import means, where

SMALL: Final = 0.25
"""Up to here theta is small."""
_Values = dict[str, float | None]


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """A workload a seed; every theta several times, tiers at random for the band beside it.

    Attributes:
        load: how jobs are made.
        site: the cluster.
        gb: capacity of the fast tier.
        theta_steps: theta goes from 0 to 1 in so many.
        draws: repetitions of every theta.
        p_steps: p goes from 0 to 1 in so many.
        p_draws: repetitions of every p.
        ends: when jobs are expected to end.
        space: what jobs ask for: what they need, or what follows from what is said of them.
    """

    load: Load = Load()
    site: Site = Site()
    gb: float = 4096.0
    theta_steps: int = 40
    draws: int = 10
    p_steps: int = 20
    p_draws: int = 10
    ends: Literal["estimate", "walltime"] = "estimate"
    space: Literal["needed", "said"] = "needed"

    def __post_init__(self) -> None:
        """Refuse a study without runs."""
        if min(self.theta_steps, self.draws, self.p_steps, self.p_draws) < 1:
            raise ValueError("steps and draws are at least 1")

    def tasks(self, seeds: Sequence[int]) -> Sequence[Point]:
        """Every run."""
        found: list[Point] = []
        for seed in seeds:
            here = Point(seed=seed, gb=self.gb, k=self.site.stage_ratio, space=self.space)
            replace = msgspec.structs.replace
            found += [
                replace(here, theta=theta, draw=draw)
                for theta in steps(self.theta_steps)
                for draw in range(self.draws if theta else 1)
            ]
            found += [
                replace(here, way=RANDOM, p=p, draw=draw)
                for p in steps(self.p_steps)
                for draw in range(1 if p in (0.0, 1.0) else self.p_draws)
            ]
            found.append(replace(here, way=SILENT))
        return found

    def run(self, task: Point) -> Sequence[Row]:
        """Its measures."""
        return [run_point(self.load, self.site, task, storage_aware.Rule(ends=self.ends))]

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """Targets A8 and A9."""
        sas, drawn = where(rows, way=SAS), where(rows, way=RANDOM)
        found: _Values = {}
        for name, column in (("makespan", MAKESPAN), ("turnaround", TURNAROUND)):
            by_theta, by_p = means(sas, "theta", column), means(drawn, "p", column)
            best = min(by_p.values())
            found[f"A8-{name}"] = max(by_theta.values()) / best
            small = [value for theta, value in by_theta.items() if theta <= SMALL]
            large = [value for theta, value in by_theta.items() if theta > SMALL]
            found[f"A8-{name}-small"] = max(small) / best
            found[f"A8-{name}-large"] = max(large) / best
            found[f"A8-{name}-whole"] = max(by_theta.values()) / max(by_p.values())
        for name, column in (("hps-jobs", "fast_jobs"), ("lps-jobs", "slow_jobs")):
            found[f"A8-{name}"] = fitted(means(sas, "theta", column), 1).factors[-1]
        found["A8-hps"] = fitted(used(sas, "theta", "byte_s"), 1).factors[-1]
        nodes = used(sas, "theta", "node_s")
        found["A8-nodes"] = max(nodes.values()) - min(nodes.values())
        return found | _silent(rows)

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Means by theta."""
        sas = where(rows, way=SAS)
        columns = [means(sas, "theta", column) for column in (MAKESPAN, TURNAROUND, "fast_jobs")]
        uses = [used(sas, "theta", what) for what in ("node_s", "byte_s")]
        return [
            {
                "kind": "summary",
                "theta": theta,
                "makespan_h": columns[0][theta] / HOUR_S,
                "turnaround_h": columns[1][theta] / HOUR_S,
                "HPS_jobs": columns[2][theta],
                "nodes_used": uses[0][theta],
                "HPS_used": uses[1][theta],
            }
            for theta in columns[0]
        ]

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Figure 5."""
        return figure_5(rows)


def _silent(rows: Sequence[Row]) -> _Values:
    """A9: who says nothing is on the slow tier, and all goes as if there were no other."""
    silent, slow = where(rows, way=SILENT), where(rows, way=RANDOM, p=0.0)
    columns = (MAKESPAN, TURNAROUND, "node_s")
    pairs = zip(silent, slow, strict=True)
    return {
        "A9": float(sum(int(row["fast_jobs"]) for row in silent)),
        "A9-same": float(all(a[key] == b[key] for a, b in pairs for key in columns)),
    }
