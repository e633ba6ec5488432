"""Carretero et al., ICS 2020, section 6.2.4: the three printed means under every reading.

The paper leaves open the law of the number of nodes, how the list of loads goes on, whether 0.1 is
a variance or a standard deviation, and in which order the baseline takes the jobs. This study runs
all of it and says how far each reading is from 1.09, 0.71 and 0.53.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.core.measure import geometric_mean
from iodaemon.simulator.carretero import Law, Loads
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.kernel.run import Engine
from iodaemon.simulator.packed import PackOrder, PhaseOrder
from iodaemon.simulator.packed_rows import pair_up
from iodaemon.simulator.study import carretero_packs

PUBLISHED: Final = carretero_packs.PUBLISHED
BASES: Final = {"by-length": "first-fit/fifo", "as-submitted": "as-submitted/fifo"}
"""What First-Fit may be: by decreasing length as Make-Pack, or in the order of the list."""
OURS: Final = carretero_packs.BOUNDED


class Reading(msgspec.Struct, frozen=True):
    """One way to read the paper."""

    law: Law
    loads: Loads
    sigma: float
    pack_order: PackOrder = "best-fit"
    phase_order: PhaseOrder = "compute-first"

    @property
    def name(self) -> str:
        """All in one word."""
        parts = [self.law, self.loads, f"{self.sigma:g}"]
        parts += [self.pack_order] * (self.pack_order != "best-fit")
        parts += [self.phase_order] * (self.phase_order != "compute-first")
        return "/".join(parts)


class Task(msgspec.Struct, frozen=True):
    """All workloads of one reading and seed."""

    seed: int
    reading: Reading


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """S = 1 relative to First-Fit on 1, 3 and 5 I/O nodes, for every reading.

    Attributes:
        laws: of the number of nodes of an application.
        loads: how the list of alpha_gen goes on.
        sigmas: standard deviations of v / w.
        pack_orders: for the first law, list and sigma alone.
        phase_orders: likewise.
        workloads: of each load and seed.
        engine: how the packs are run.
    """

    laws: tuple[Law, ...] = ("binomial", "neighbours", "uniform", "entropy", "geometric")
    loads: tuple[Loads, ...] = ("integer", "quarter")
    sigmas: tuple[float, ...] = (0.1, 0.316)
    pack_orders: tuple[PackOrder, ...] = ("best-fit", "creation")
    phase_orders: tuple[PhaseOrder, ...] = ("compute-first", "io-first")
    workloads: int = 10
    engine: Engine = "auto"

    def __post_init__(self) -> None:
        """Refuse an empty list, and what a single reading refuses."""
        for key in ("laws", "loads", "sigmas", "pack_orders", "phase_orders"):
            if not getattr(self, key):
                raise ValueError(f"{key} is empty; name at least one")
        for reading in self.readings():
            self._packs(reading)

    def readings(self) -> list[Reading]:
        """Every law with every list and sigma; then the other orders of packs and of phases."""
        main = [Reading(*each) for each in itertools.product(self.laws, self.loads, self.sigmas)]
        first = main[0]
        orders = itertools.product(self.pack_orders, self.phase_orders)
        others = [Reading(first.law, first.loads, first.sigma, *each) for each in orders]
        return list(dict.fromkeys((*main, *others)))

    def tasks(self, seeds: Sequence[int]) -> Sequence[Task]:
        """Every reading of every seed."""
        return [Task(seed, reading) for seed in seeds for reading in self.readings()]

    def run(self, task: Task) -> Sequence[Row]:
        """One row a baseline: the geometric means over all workloads."""
        study = self._packs(task.reading)
        rows = [row for each in study.tasks([task.seed]) for row in study.run(each)]
        made: list[Row] = []
        for base, name in BASES.items():
            pairs = pair_up(rows, name)[OURS]
            ratios = {n: [pair.ratio(f"makespan_{n}_s") for pair in pairs] for n in PUBLISHED}
            made.append(
                {
                    "kind": "reading",
                    "seed": task.seed,
                    "reading": task.reading.name,
                    "baseline": base,
                    "workloads": len(pairs),
                    **{f"ratio_{n}": geometric_mean(values) for n, values in ratios.items()},
                }
            )
        return made

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float]:
        """The spread over the readings, what all agree on, and the nearest."""
        found: dict[str, float] = {}
        for base, prefix in (("by-length", "R"), ("as-submitted", "U")):
            held = [row for row in rows if row["baseline"] == base]
            means = reading_means(held)
            for n in PUBLISHED:
                values = [mean[n] for mean in means.values()]
                found |= {f"{prefix}{n}-least": min(values), f"{prefix}{n}-most": max(values)}
            found[f"{prefix}-agree"] = float(all(_agrees(row) for row in held))
            nearest = min(means.values(), key=distance)
            found[f"{prefix}-nearest"] = distance(nearest)
            found |= {f"{prefix}{n}-nearest": nearest[n] for n in PUBLISHED}
        return found

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """The three means of every reading, with what is printed."""
        return [_figure(rows, base) for base in BASES]

    def _packs(self, reading: Reading) -> carretero_packs.Study:
        return carretero_packs.Study(
            policies=(OURS, BASES["as-submitted"]),
            io_nodes=tuple(PUBLISHED),
            loads=reading.loads,
            workloads=self.workloads,
            law=reading.law,
            sigma=reading.sigma,
            pack_order=reading.pack_order,
            phase_order=reading.phase_order,
            engine=self.engine,
        )


Means = dict[int, float]
"""By count of I/O nodes."""


def reading_means(rows: Sequence[Row]) -> dict[str, Means]:
    """Geometric means over the seeds, by reading; the rows are of one baseline."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(str(row["reading"]), []).append(row)
    return {
        name: {n: geometric_mean([float(row[f"ratio_{n}"]) for row in held]) for n in PUBLISHED}
        for name, held in grouped.items()
    }


def distance(means: Means) -> float:
    """Sum of the absolute logarithms of ours / published."""
    return sum(abs(math.log(means[n] / published)) for n, published in PUBLISHED.items())


def _agrees(row: Row) -> bool:
    """S = 1 loses on 1 I/O node, wins on 3, and more on 5."""
    return float(row["ratio_1"]) > 1.0 > float(row["ratio_3"]) > float(row["ratio_5"])


def _figure(rows: Sequence[Row], base: str) -> Figure:
    means = reading_means([row for row in rows if row["baseline"] == base])
    names = sorted(means, key=lambda name: distance(means[name]))
    series = [
        Series(label=f"{n} I/O nodes", x=tuple(names), y=tuple(means[name][n] for name in names))
        for n in PUBLISHED
    ]
    series += [
        Series(
            label=f"figure 15, {n}",
            x=tuple(names),
            y=(published,) * len(names),
            is_published=True,
        )
        for n, published in PUBLISHED.items()
    ]
    return Figure(
        name=f"readings-{base}",
        title=f"Makespan with S = 1 by reading, First-Fit {base.replace('-', ' ')} (Fig. 15)",
        x_label="reading, the nearest first",
        y_label="makespan / First-Fit",
        kind="point",
        series=tuple(series),
        line_y=1.0,
    )
