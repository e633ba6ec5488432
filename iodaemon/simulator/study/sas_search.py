"""SAS: which of the claims hold under which reading of what the paper leaves open; cell by cell.

A cell is one value of each axis. It is run with tiers drawn at random, for some p, and under SAS,
for each capacity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any, Final, Literal

import msgspec

from iodaemon.policy.admission import storage_aware
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.sas import CheckpointLaw, Load, Site
from iodaemon.simulator.sas_point import RANDOM, SAS, Point, run_point
from iodaemon.simulator.sas_rows import (
    MAKESPAN,
    TURNAROUND,
    along,
    falls,
    fitted,
    levels,
    ratio_at,
    ratio_to_best,
    those,
    used,
)

QUARTERS: Final = (0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0)
CLAIMS: Final = ("valley", "turnaround", "better", "use", "larger", "slump")
"""A1 to A6, each 1 or 0 a cell and capacity (A4 a cell)."""
_Values = tuple[Any, ...]
AXES: Final = ("slow", "io", "writes", "law", "unit", "power", "space", "nodes", "ends", "gap")


class Checkpoints(msgspec.Struct, frozen=True, kw_only=True):
    """A law for checkpoints.

    Attributes:
        share: part of a run.
        law: how many these are.
    """

    share: float = 0.1
    law: CheckpointLaw = "whole"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        cell: what it differs by, by axis.
        load: of the cell.
        site: of the cell.
        ends: of the rule.
        point: what is run.
    """

    cell: dict[str, str | float]
    load: Load
    site: Site
    ends: Literal["estimate", "walltime"]
    point: Point


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Axes; its cells are all combinations of their values.

    Attributes:
        slow_bytes_per_s: of the slow tier.
        io_shares: of the input, and of the output.
        checkpoints: how many are written.
        units_s: of the run times.
        powers: by how much powers of two are likelier.
        spaces: whether jobs without checkpoints ask for the space of one.
        nodes: whether a job keeps its nodes while its output is staged out.
        ends: when jobs are expected to end.
        gaps_s: between arrivals.
    """

    slow_bytes_per_s: tuple[float, ...] = (0.4e9,)
    io_shares: tuple[float, ...] = (0.025,)
    checkpoints: tuple[Checkpoints, ...] = (Checkpoints(),)
    units_s: tuple[float, ...] = (10800.0,)
    powers: tuple[float, ...] = (1.0,)
    spaces: tuple[Literal["always", "needed"], ...] = ("always",)
    nodes: tuple[Literal["held", "freed"], ...] = ("held",)
    ends: tuple[Literal["estimate", "walltime"], ...] = ("estimate",)
    gaps_s: tuple[float, ...] = (500.0,)

    def cells(self) -> list[_Values]:
        """A value of each axis."""
        return list(product(*(getattr(self, field) for field in self.__struct_fields__)))


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """The cells of some grids; one that is in two is run once.

    Attributes:
        grids: of cells.
        gb: capacities of the fast tier.
        ps: parts of the jobs on the fast tier, drawn.
        load: of all cells, as far as no axis says otherwise.
        site: likewise.
    """

    grids: tuple[Grid, ...] = (Grid(),)
    gb: tuple[float, ...] = (2048.0, 4096.0)
    ps: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    load: Load = Load()
    site: Site = Site()

    def tasks(self, seeds: Sequence[int]) -> Sequence[Task]:
        """Every p and SAS, in every cell, of every seed."""
        cells = dict.fromkeys(cell for grid in self.grids for cell in grid.cells())
        return [
            task
            for values in cells
            for seed in seeds
            for gb in self.gb
            for task in self._cell(values, seed, gb)
        ]

    def _cell(self, values: _Values, seed: int, gb: float) -> list[Task]:
        slow, io, checkpoints, unit_s, power, space, nodes, ends, gap_s = values
        replace = msgspec.structs.replace
        model = replace(self.load.model, unit_s=unit_s, power_of_two=power, gap_s=gap_s)
        load = replace(
            self.load,
            model=model,
            io_share=io,
            space=space,
            checkpoint_share=checkpoints.share,
            checkpoint_law=checkpoints.law,
        )
        site = replace(self.site, slow_bytes_per_s=slow, nodes_while_staging=nodes)
        told = (slow / 1e9, io, checkpoints.share, checkpoints.law, unit_s, power)
        cell = dict(zip(AXES, (*told, space, nodes, ends, gap_s), strict=True))
        k = site.stage_ratio
        points = [Point(seed=seed, gb=gb, k=k, way=RANDOM, p=p) for p in self.ps]
        points.append(Point(seed=seed, gb=gb, k=k))
        return [Task(cell=cell, load=load, site=site, ends=ends, point=at) for at in points]

    def run(self, task: Task) -> Sequence[Row]:
        """Its measures."""
        rule = storage_aware.Rule(ends=task.ends)
        return [{**run_point(task.load, task.site, task.point, rule), **task.cell}]

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """In how many cells, for one capacity at least, each claim holds; and all together."""
        lines = self.summary(rows)
        cells: dict[tuple[object, ...], list[Row]] = {}
        for line in lines:
            cells.setdefault(tuple(line[axis] for axis in AXES), []).append(line)
        found: dict[str, float | None] = {"cells": float(len(cells))}
        for claim in CLAIMS:
            held = sum(any(line[claim] for line in of) for of in cells.values())
            found[claim] = float(held)
        for name, claims in (("valley better use", ("valley", "better", "use")), ("all", CLAIMS)):
            found[name] = float(
                sum(any(all(line[c] for c in claims) for line in of) for of in cells.values())
            )
        return found

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """A line a cell and capacity, those with the most claims first."""
        cells: dict[tuple[object, ...], list[Row]] = {}
        for row in rows:
            cells.setdefault(tuple(row[axis] for axis in AXES), []).append(row)
        lines = [_line(of, gb) for of in cells.values() for gb in levels(of, "gb")]
        return sorted(lines, key=lambda line: -sum(float(line[claim]) for claim in CLAIMS))

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Where the minima are, of all cells."""
        series = [
            Series(
                label=f"{gb:g} GB",
                x=tuple(float(line["min_makespan"]) for line in of),
                y=tuple(float(line["min_turnaround"]) for line in of),
            )
            for gb in levels(rows, "gb")
            if (of := [line for line in self.summary(rows) if line["gb"] == gb])
        ]
        printed = Series(label="paper", x=(0.6, 0.8), y=(0.4, 0.4), is_published=True)
        return [
            Figure(
                name="minima",
                title="Where makespan and turnaround are least, a point a cell",
                x_label="p of the least makespan (fit)",
                y_label="p of the least mean turnaround (fit)",
                kind="point",
                series=(*series, printed),
            )
        ]


def _line(rows: Sequence[Row], gb: float) -> Row:
    """A cell: which claims hold for this capacity, and the figures that they hang on."""
    here = those(rows, gb=gb)
    at_random, sas = those(here, way=RANDOM), those(here, way=SAS)
    makespan = fitted(along(at_random, "p", MAKESPAN), 2)
    turnaround = fitted(along(at_random, "p", TURNAROUND), 2)
    ratios = [ratio_to_best(here, column) for column in (MAKESPAN, TURNAROUND)]
    ends = [ratio_at(here, column, p) or 0.0 for column in (MAKESPAN, TURNAROUND) for p in (0, 1)]
    nodes, space = used(sas, "gb", "node_s")[gb], used(sas, "gb", "byte_s")[gb]
    by_nodes, by_space = used(at_random, "p", "node_s"), used(at_random, "p", "byte_s")
    by_gb = along(those(rows, way=SAS), "gb", MAKESPAN)
    sizes = sorted(by_gb)
    claims = {
        "valley": makespan.has_valley and 0.6 <= makespan.lowest <= 0.8,
        "turnaround": turnaround.has_valley and 0.3 <= turnaround.lowest <= 0.5,
        "better": max(ratios) < 1.0,
        "use": 0.75 <= nodes <= 0.85 and 0.65 <= space <= 0.75,
        "larger": all(by_gb[b] < by_gb[a] for a, b in pairwise(sizes)),
        "slump": falls(by_nodes, QUARTERS, 1.0) and falls(by_space, QUARTERS, -1.0),
    }
    return {
        "kind": "summary",
        **{axis: rows[0][axis] for axis in AXES},
        "gb": gb,
        **{claim: int(holds) for claim, holds in claims.items()},
        "min_makespan": makespan.lowest,
        "min_turnaround": turnaround.lowest,
        "sas_makespan": ratios[0],
        "sas_turnaround": ratios[1],
        "sas_ends": max(ends),
        "use_nodes": nodes,
        "use_hps": space,
    }
