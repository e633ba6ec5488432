"""EquilibrIO, experiment 1: the reordering intensity alpha from 0 to 0.6 (targets E1 to E4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from iodaemon.simulator.equilibrio_rows import (
    box_figures,
    by_seed,
    course_figure,
    displacement_figure,
    line,
    means,
)
from iodaemon.simulator.equilibrio_run import Point, Setup, run_point
from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.table import printed, where

PUBLISHED: Final = {0.0: 0.78, 0.1: 0.59, 0.2: 0.48, 0.3: 0.38, 0.4: 0.21, 0.5: 0.07, 0.6: 0.06}
"""Mean distance by alpha, as the slides print it, GB/s."""
FIRST, BALANCED = 0.0, 0.5


class Study(Setup, frozen=True, kw_only=True):
    """One workload a seed, under every alpha.

    Attributes:
        alphas: of the rule.
    """

    alphas: tuple[float, ...] = tuple(PUBLISHED)

    def __post_init__(self) -> None:
        """Refuse what the rule refuses."""
        if not self.alphas:
            raise ValueError("alphas is empty; name at least one")
        for alpha in self.alphas:
            self.rules(alpha)

    def tasks(self, seeds: Sequence[int]) -> Sequence[Point]:
        """A run each; the first seed is drawn."""
        return [
            Point(seed=seed, alpha=alpha, has_course=seed == seeds[0])
            for seed in seeds
            for alpha in self.alphas
        ]

    def run(self, task: Point) -> Sequence[Row]:
        """Its measures."""
        return run_point(self, task)

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """Targets E1 to E4, as far as their alphas were run."""
        found: dict[str, float | None] = {}
        for alpha, distance in means(rows, "alpha", "distance_gb_per_s").items():
            found[f"E1-{alpha:g}"] = distance
        if {FIRST, BALANCED} <= set(self.alphas):
            found |= _gains(rows)
        for alpha, io in means(rows, "alpha", "io_slowdown_percent").items():
            found[f"E2-{alpha:g}"] = io
        jobs = by_seed(rows, "alpha", "job_slowdown_most_percent")
        found["E3-job"] = max(max(each.values()) for each in jobs.values())
        ios = by_seed(rows, "alpha", "io_slowdown_most_percent")
        found["E3-io"] = max(max(each.values()) for each in ios.values())
        return found | _displaced(rows)

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The means over the seeds, a line an alpha."""
        return summary_rows(rows, "alpha")

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """S and W over time, the mean distance, boxes, displacement."""
        return [
            *(_course(rows, alpha) for alpha in self.alphas),
            _distance_figure(rows),
            *box_figures(rows, "alpha", "alpha", "{:g}".format),
            displacement_figure(rows, "alpha", "alpha", "{:g}".format),
        ]


SUMMARY: Final = {
    "distance_gb_per_s": "distance_GB/s",
    "io_slowdown_percent": "I/O_slowdown_%",
    "io_slowdown_most_percent": "most_%",
    "job_slowdown_percent": "job_slowdown_%",
    "job_slowdown_most_percent": "most_job_%",
    "utilisation": "utilisation",
    "displacement": "displaced",
    "displacement_in_turn": "in_turn",
    "backfilled": "backfilled",
    "wait_s": "wait_s",
}
"""Columns of the table for people."""


def summary_rows(rows: Sequence[Row], axis: str) -> list[Row]:
    """Means over the seeds of what a run is measured by."""
    columns = {title: means(rows, axis, column) for column, title in SUMMARY.items()}
    places = next(iter(columns.values()))
    return [
        {"kind": "summary", axis: at, **{title: held[at] for title, held in columns.items()}}
        for at in places
    ]


def _gains(rows: Sequence[Row]) -> dict[str, float]:
    """From alpha 0 to 0.5: of the means, and what holds on every seed."""
    distances = by_seed(rows, "alpha", "distance_gb_per_s")
    over_seeds = means(rows, "alpha", "distance_gb_per_s")
    ios = by_seed(rows, "alpha", "io_slowdown_percent")
    parts = [each[BALANCED] / each[FIRST] for each in distances.values()]
    return {
        "E1": 1.0 - over_seeds[BALANCED] / over_seeds[FIRST],
        "E1-factor": over_seeds[FIRST] / over_seeds[BALANCED],
        "E1-every": max(parts),
        "E2-every": max(each[BALANCED] / each[FIRST] for each in ios.values()),
    }


def _displaced(rows: Sequence[Row]) -> dict[str, float | None]:
    """Means of all jobs and without the backfilled, and how the two compare at worst."""
    whole = by_seed(rows, "alpha", "displacement")
    in_turn = by_seed(rows, "alpha", "displacement_in_turn")
    found: dict[str, float | None] = {}
    for alpha in (FIRST, 0.3, BALANCED):
        for id_, column in (("E4", "displacement"), ("E4-in-turn", "displacement_in_turn")):
            found[f"{id_}-{alpha:g}"] = means(rows, "alpha", column).get(alpha)
    found["E4-part"] = max(
        in_turn[seed][alpha] / most
        for seed, each in whole.items()
        for alpha, most in each.items()
        if most > 0.0
    )
    return {id_: value for id_, value in found.items() if value is not None}


def _course(rows: Sequence[Row], alpha: float) -> Figure:
    held = where(rows, kind="course", alpha=alpha)
    seed = held[0]["seed"]
    (run,) = where(rows, kind="run", seed=seed, alpha=alpha)
    return course_figure(
        held,
        name=f"course-{alpha:g}",
        title=f"S and W, alpha {alpha:g}, seed {seed}: mean distance "
        f"{float(run['distance_gb_per_s']):.2f} GB/s",
    )


def _distance_figure(rows: Sequence[Row]) -> Figure:
    ours = line("mean over the seeds", rows, "alpha", "distance_gb_per_s")
    return Figure(
        name="distance",
        title="Mean distance between S and W by alpha; range over seeds",
        x_label="alpha",
        y_label="mean distance, GB/s",
        kind="line",
        series=(ours, printed("slides", PUBLISHED)),
    )
