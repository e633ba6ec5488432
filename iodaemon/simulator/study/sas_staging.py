"""SAS and the bandwidth of the staging (figure 4; target A7), and how much of it is enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal

import msgspec

from iodaemon.policy.admission import storage_aware
from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.sas import Load, Site
from iodaemon.simulator.sas_rows import (
    HOUR_S,
    MAKESPAN,
    TURNAROUND,
    figure_4,
    ratio_to_best,
    sweep_figure,
)
from iodaemon.simulator.sas_run import SAS, Point, run_point
from iodaemon.simulator.study import sas_random
from iodaemon.simulator.table import levels, means, where

ENOUGH: Final = 1.02
"""A staging is enough with which the makespan is at most so many times that with the most."""
SWEEP: Final = "sweep"
_Values = dict[str, float | None]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run; of the sweep or of the figure."""

    point: Point
    is_sweep: bool


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Each k as in ``sas_random``; and SAS alone for more of them and more capacities.

    Attributes:
        load: how jobs are made.
        site: the cluster, but for its staging.
        gb: capacities of the fast tier.
        ks: bandwidths of the staging, in parts of the slow tier's.
        p_steps: p goes from 0 to 1 in so many.
        draws: repetitions of every p.
        ends: when jobs are expected to end.
        sweep_gb: capacities for which the best staging is looked for.
        sweep_ks: among these.
    """

    load: Load = Load()
    site: Site = Site()
    gb: tuple[float, ...] = (2048.0, 4096.0)
    ks: tuple[float, ...] = (1.0, 2.0, 10.0)
    p_steps: int = 20
    draws: int = 10
    ends: Literal["estimate", "walltime"] = "estimate"
    sweep_gb: tuple[float, ...] = (1024.0, 2048.0, 4096.0, 8192.0)
    sweep_ks: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)

    def __post_init__(self) -> None:
        """Refuse stagings that are none."""
        if min([*self.ks, *self.sweep_ks], default=0.0) <= 0.0:
            raise ValueError("ks and sweep_ks are above 0, and there is one")

    def tasks(self, seeds: Sequence[int]) -> Sequence[Task]:
        """Every run."""
        base = sas_random.Study(
            load=self.load, site=self.site, gb=self.gb, p_steps=self.p_steps, draws=self.draws
        )
        found = [
            Task(point=point, is_sweep=False)
            for seed in seeds
            for gb in self.gb
            for k in self.ks
            for point in base.points(seed, gb, k)
        ]
        found += [
            Task(point=Point(seed=seed, gb=gb, k=k), is_sweep=True)
            for seed in seeds
            for gb in self.sweep_gb
            for k in self.sweep_ks
        ]
        return found

    def run(self, task: Task) -> Sequence[Row]:
        """Its measures."""
        row = run_point(self.load, self.site, task.point, storage_aware.Rule(ends=self.ends))
        return [{**row, "kind": SWEEP} if task.is_sweep else row]

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """Target A7, and the least staging that is enough, by capacity."""
        runs, sweep = where(rows, kind="run"), where(rows, kind=SWEEP)
        found: _Values = {}
        better = []
        for k in levels(runs, "k"):
            here = where(runs, k=k)
            sas = where(here, way=SAS)
            for name, column in (("makespan", MAKESPAN), ("turnaround", TURNAROUND)):
                by_gb = means(sas, "gb", column)
                found[f"A7-{name}-k{k:g}"] = by_gb[max(by_gb)] / by_gb[min(by_gb)]
                ratios = [ratio_to_best(where(here, gb=gb), column) for gb in by_gb]
                better += [ratio < 1.0 for ratio in ratios]
                for gb, ratio in zip(by_gb, ratios, strict=True):
                    found[f"A7-{name}-k{k:g}-{gb:g}"] = ratio
        found["A7-mostly"] = sum(better) / len(better)
        found |= _slow(runs) | _worse(sweep)
        return found | {f"B-{gb:g}": enough_k(where(sweep, gb=gb)) for gb in levels(sweep, "gb")}

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The sweep: hours of makespan and turnaround, and jobs on the fast tier."""
        sweep = where(rows, kind=SWEEP)
        lines: list[Row] = []
        for gb in levels(sweep, "gb"):
            here = where(sweep, gb=gb)
            columns = [means(here, "k", column) for column in (MAKESPAN, TURNAROUND, "fast_jobs")]
            lines += [
                {
                    "kind": "summary",
                    "GB": gb,
                    "k": k,
                    "makespan_h": columns[0][k] / HOUR_S,
                    "turnaround_h": columns[1][k] / HOUR_S,
                    "HPS_jobs": columns[2][k],
                }
                for k in columns[0]
            ]
        return lines

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Figure 4, and the sweep."""
        return [*figure_4(where(rows, kind="run")), sweep_figure(where(rows, kind=SWEEP))]


def enough_k(rows: Sequence[Row]) -> float:
    """The least k from which on more makes the makespan shorter by next to nothing."""
    by_k = means(rows, "k", MAKESPAN)
    most = by_k[max(by_k)]
    found = max(by_k)
    for k in sorted(by_k, reverse=True):
        if by_k[k] > ENOUGH * most:
            break
        found = k
    return found


def _slow(runs: Sequence[Row]) -> _Values:
    """SAS with the slowest staging in parts of that with the fastest, the least of all."""
    ratios = []
    for gb in levels(runs, "gb"):
        for column in (MAKESPAN, TURNAROUND):
            by_k = list(means(where(runs, gb=gb, way=SAS), "k", column).values())
            ratios.append(by_k[0] / by_k[-1])
    return {"A7-slower": min(ratios)}


def _worse(sweep: Sequence[Row]) -> _Values:
    """SAS with the next larger capacity in parts of the smaller, the most, by the least k's."""
    found: _Values = {}
    for name, k in zip(("slowest", "next"), levels(sweep, "k"), strict=False):
        by_gb = list(means(where(sweep, k=k), "gb", MAKESPAN).values())
        ratios = [large / small for small, large in pairwise(by_gb)]
        found[f"A7-sweep-{name}"] = max(ratios, default=None)
    return found
