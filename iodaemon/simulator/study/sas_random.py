"""SAS beside tiers drawn at random, for two capacities (figure 3; targets A1 to A6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from iodaemon.policy.admission import storage_aware
from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.sas import Load, Site
from iodaemon.simulator.sas_rows import (
    HOUR_S,
    MAKESPAN,
    TURNAROUND,
    Fit,
    falls,
    figure_3,
    fitted,
    ratio_at,
    ratio_to_best,
    used,
)
from iodaemon.simulator.sas_run import RANDOM, SAS, Point, run_point
from iodaemon.simulator.table import group, levels, means, where

QUARTERS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
NEAR_MAKESPAN: Final = (0.35, 0.85)
"""Where the least makespan counts as the paper's in A1."""
NEAR_TURNAROUND: Final = (0.3, 0.85)
"""Likewise the least mean turnaround in A2."""
_Values = dict[str, float | None]


def steps(count: int) -> tuple[float, ...]:
    """From 0 to 1 in so many steps."""
    return tuple(round(step / count, 6) for step in range(count + 1))


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """A workload a seed; every p several times, SAS, which draws nothing, once.

    Attributes:
        load: how jobs are made.
        site: the cluster.
        gb: capacities of the fast tier.
        p_steps: p goes from 0 to 1 in so many.
        draws: repetitions of every p.
        ends: when jobs are expected to end.
    """

    load: Load = Load()
    site: Site = Site()
    gb: tuple[float, ...] = (2048.0, 4096.0)
    p_steps: int = 20
    draws: int = 10
    ends: Literal["estimate", "walltime"] = "estimate"

    def __post_init__(self) -> None:
        """Refuse a study without runs."""
        if self.p_steps < 1 or self.draws < 1 or not self.gb:
            raise ValueError("p_steps and draws are at least 1, and there is a capacity")

    def tasks(self, seeds: Sequence[int]) -> Sequence[Point]:
        """Every run."""
        return [
            point
            for seed in seeds
            for gb in self.gb
            for point in self.points(seed, gb, self.site.stage_ratio)
        ]

    def points(self, seed: int, gb: float, k: float) -> list[Point]:
        """The runs of a seed for a capacity and a staging."""
        drawn = [
            Point(seed=seed, gb=gb, k=k, way=RANDOM, p=p, draw=draw)
            for p in steps(self.p_steps)
            for draw in range(1 if p in (0.0, 1.0) else self.draws)
        ]
        return [*drawn, Point(seed=seed, gb=gb, k=k)]

    def run(self, task: Point) -> Sequence[Row]:
        """Its measures."""
        return [run_point(self.load, self.site, task, storage_aware.Rule(ends=self.ends))]

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """Targets A1 to A6."""
        found: _Values = {}
        near, later = [], []
        for gb in levels(rows, "gb"):
            here = where(rows, gb=gb)
            drawn = where(here, way=RANDOM)
            makespan = fitted(means(drawn, "p", MAKESPAN), 2)
            turnaround = fitted(means(drawn, "p", TURNAROUND), 2)
            found[f"A1-{gb:g}"] = makespan.lowest
            found[f"A1-ends-{gb:g}"] = float(makespan.has_valley)
            near.append(_is_near(makespan, NEAR_MAKESPAN))
            later.append(_is_near(turnaround, NEAR_TURNAROUND))
            found[f"A2-{gb:g}"] = turnaround.lowest
            found[f"A2-ends-{gb:g}"] = float(turnaround.has_valley)
            found |= _better(here, gb) | _use(here, gb)
        found["A1"], found["A2"] = float(any(near)), float(all(later))
        return found | _larger(rows)

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Means by capacity and p, SAS last."""
        lines: list[Row] = []
        for gb in levels(rows, "gb"):
            here = where(rows, gb=gb)
            for way in (RANDOM, SAS):
                of = where(here, way=way)
                columns = [means(of, "p", column) for column in (MAKESPAN, TURNAROUND, "fast_jobs")]
                uses = [used(of, "p", what) for what in ("node_s", "byte_s")]
                lines += [_line(gb, way, p, columns, uses) for p in columns[0]]
        return lines

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Figure 3."""
        return figure_3(rows)


def _line(
    gb: float,
    way: str,
    p: float,
    columns: Sequence[Mapping[float, float]],
    uses: Sequence[Mapping[float, float]],
) -> Row:
    return {
        "kind": "summary",
        "GB": gb,
        "tiers": way,
        "p": p if way == RANDOM else "-",
        "makespan_h": columns[0][p] / HOUR_S,
        "turnaround_h": columns[1][p] / HOUR_S,
        "HPS_jobs": columns[2][p],
        "nodes_used": uses[0][p],
        "HPS_used": uses[1][p],
    }


def _is_near(fit: Fit, band: tuple[float, float]) -> bool:
    """Whether it has its least there, and more at both ends."""
    return fit.has_valley and band[0] <= fit.lowest <= band[1]


def _better(rows: Sequence[Row], gb: float) -> _Values:
    """A3: SAS in parts of the best p, and of 0 and 1, the worst of both metrics."""
    ends = [ratio_at(rows, column, p) for column in (MAKESPAN, TURNAROUND) for p in (0.0, 1.0)]
    return {
        f"A3-makespan-{gb:g}": ratio_to_best(rows, MAKESPAN),
        f"A3-turnaround-{gb:g}": ratio_to_best(rows, TURNAROUND),
        f"A3-ends-{gb:g}": max(ratio for ratio in ends if ratio is not None),
    }


def _use(rows: Sequence[Row], gb: float) -> _Values:
    """A5 and A6."""
    drawn, sas = where(rows, way=RANDOM), where(rows, way=SAS)
    nodes, space = used(drawn, "p", "node_s"), used(drawn, "p", "byte_s")
    return {
        f"A5-nodes-{gb:g}": used(sas, "gb", "node_s")[gb],
        f"A5-hps-{gb:g}": used(sas, "gb", "byte_s")[gb],
        f"A6-hps-{gb:g}": float(falls(space, QUARTERS, -1.0)),
        f"A6-nodes-{gb:g}": float(falls(nodes, QUARTERS, 1.0)),
        f"A6-slump-{gb:g}": nodes[1.0] / nodes[0.0],
    }


def _larger(rows: Sequence[Row]) -> _Values:
    """A4: SAS with more capacity in parts of SAS with less."""
    sas = where(rows, way=SAS)
    found: _Values = {}
    for name, column in (("makespan", MAKESPAN), ("turnaround", TURNAROUND)):
        by_gb = list(means(sas, "gb", column).values())
        found[f"A4-{name}"] = by_gb[-1] / by_gb[0]
        each = [[*means(own, "gb", column).values()] for own in group(sas, "seed").values()]
        found[f"A4-{name}-every"] = max(values[-1] / values[0] for values in each)
    return found
