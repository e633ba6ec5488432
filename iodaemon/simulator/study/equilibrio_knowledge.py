"""EquilibrIO, experiment 2: less and less is known of the jobs' I/O (targets E5 and E6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from iodaemon.core.measure import mean
from iodaemon.simulator.equilibrio_rows import (
    box_figures,
    by_seed,
    displacement_figure,
    line,
    means,
    percent_words,
)
from iodaemon.simulator.equilibrio_run import Point, Setup, run_point
from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.study.equilibrio_alpha import summary_rows
from iodaemon.simulator.table import where

KNOWLEDGE: Final = (1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1, 0.0)
ALL, NOTHING = 1.0, 0.0


class Study(Setup, frozen=True, kw_only=True):
    """One workload a seed, with less and less knowledge; and first come, first served.

    Attributes:
        knowledge: the parts of all jobs, with low and high I/O alike, whose I/O is known; of a
            draw more holds all that less does.
        draws: so often is drawn, for each seed, which jobs these are; of 40 known jobs with high
            I/O among 160 one draw says little.
        alpha: of the rule.
    """

    knowledge: tuple[float, ...] = KNOWLEDGE
    draws: int = 3
    alpha: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what is no part, what gives nothing to compare with, what the rule refuses."""
        if not all(0.0 <= part <= 1.0 for part in self.knowledge):
            raise ValueError(f"knowledge is {list(self.knowledge)}; parts are from 0 to 1")
        if not {ALL, NOTHING} <= set(self.knowledge):
            raise ValueError("knowledge must have 1 and 0: all others are seen between these")
        if self.draws < 1:
            raise ValueError(f"draws is {self.draws}; it must be at least 1")
        if not self.alpha > 0.0:
            raise ValueError(
                f"alpha is {self.alpha:g}; it must be above 0: 0 asks for no knowledge"
            )
        self.rules(self.alpha)

    def tasks(self, seeds: Sequence[int]) -> Sequence[Point]:
        """A run each, and one with alpha 0 for the comparison of schedules."""
        return [
            *(
                Point(seed=seed, alpha=self.alpha, knowledge=part, draw=draw)
                for seed in seeds
                for part in self.knowledge
                for draw in range(self.draws if part not in (ALL, NOTHING) else 1)
            ),
            *(Point(seed=seed, alpha=0.0) for seed in seeds),
        ]

    def run(self, task: Point) -> Sequence[Row]:
        """Its measures; of alpha 0 the schedule alone."""
        rows = run_point(self, task)
        if task.alpha > 0.0:
            return rows
        return [{"kind": "arrival", "seed": task.seed, "schedule": rows[0]["schedule"]}]

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """Targets E5, as far as their parts were run, and E6."""
        found: dict[str, float | None] = {
            f"E5-{100.0 * part:g}": io
            for part, io in means(rows, "knowledge", "io_slowdown_percent").items()
        }
        for part, kept in kept_gains(rows).items():
            if part not in (ALL, NOTHING):
                found[f"E5-{100.0 * part:g}-kept"] = mean(kept)
                found[f"E5-{100.0 * part:g}-least"] = min(kept)
        return {**found, "E6": float(_is_by_arrival(rows))}

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The means over the seeds, a line a part."""
        return summary_rows(rows, "knowledge")

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Boxes, medians, displacement."""
        return [
            *box_figures(rows, "knowledge", "jobs whose I/O is known", percent_words),
            Figure(
                name="median-io-slowdown",
                title="Median I/O slowdown, jobs with high I/O, by knowledge; range over seeds",
                x_label="part of the jobs whose I/O is known",
                y_label="median I/O slowdown, %",
                kind="line",
                series=(line("median", rows, "knowledge", "io_slowdown_percent"),),
            ),
            displacement_figure(rows, "knowledge", "jobs whose I/O is known", percent_words),
        ]


def kept_gains(rows: Sequence[Row]) -> dict[float, list[float]]:
    """Of each part, seed by seed: what is left of the gain in median I/O slowdown.

    Of several draws their mean. The gain is from nothing known to all known; a seed without any
    keeps all of it.
    """
    found: dict[float, list[float]] = {}
    for each in by_seed(rows, "knowledge", "io_slowdown_percent").values():
        whole = each[NOTHING] - each[ALL]
        for part, io in each.items():
            gain = (each[NOTHING] - io) / whole if whole > 0.0 else 1.0
            found.setdefault(part, []).append(gain)
    return found


def _is_by_arrival(rows: Sequence[Row]) -> bool:
    """Whether nothing known and alpha 0 give the same schedules, to the last bit."""
    arrival = {row["seed"]: row["schedule"] for row in where(rows, kind="arrival")}
    unknown = {row["seed"]: row["schedule"] for row in where(rows, kind="run", knowledge=NOTHING)}
    return arrival == unknown
