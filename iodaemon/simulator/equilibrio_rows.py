"""Reading the rows of EquilibrIO's runs: by alpha or knowledge, seed by seed, and as pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from iodaemon.core.measure import mean
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.table import group, numbers, ranged, where

Words = Callable[[float], str]
"""How a value of the axis is written."""
MEASURES: Final[Mapping[str, tuple[str, str, str]]] = {
    "job_slowdown_percent": ("job-slowdown", "Slowdown", "job slowdown, %"),
    "io_slowdown_percent": ("io-slowdown", "I/O slowdown", "I/O slowdown, %"),
    "utilisation": ("utilisation", "Utilisation", "part of a job's time out of I/O"),
}
"""Column of a job, the name of its figure, how its title begins, its axis."""


def percent_words(value: float) -> str:
    """0.25 as 25 %."""
    return f"{100.0 * value:g} %"


def by_seed(rows: Iterable[Row], axis: str, key: str) -> dict[int, dict[float, float]]:
    """A column of the runs, the mean of its draws: by seed, then by the value on the axis."""
    return {
        seed: {float(at): mean(numbers(own, key)) for at, own in group(each, axis).items()}
        for seed, each in group(where(rows, kind="run"), "seed").items()
    }


def by_place(rows: Iterable[Row], axis: str, key: str) -> dict[float, list[float]]:
    """A column of the runs: one value a seed, by the value on the axis."""
    seeds = by_seed(rows, axis, key).values()
    return {at: [each[at] for each in seeds] for at in next(iter(seeds), {})}


def means(rows: Iterable[Row], axis: str, key: str) -> dict[float, float]:
    """The mean over the seeds, by the value on the axis."""
    return {at: mean(values) for at, values in by_place(rows, axis, key).items()}


def line(label: str, rows: Sequence[Row], axis: str, key: str) -> Series:
    """Means over the seeds, and the range of the seeds, over the axis."""
    return ranged(label, by_place(rows, axis, key))


def bars(label: str, rows: Sequence[Row], axis: str, key: str, words: Words) -> Series:
    """The same for categories."""
    found = by_place(rows, axis, key)
    return ranged(label, {words(at): values for at, values in found.items()})


def box_figures(rows: Sequence[Row], axis: str, x_label: str, words: Words) -> list[Figure]:
    """Boxes of the three measures of the jobs with high I/O, all seeds together."""
    jobs = where(rows, kind="high")
    if not jobs:
        return []
    made = []
    for column, (name, measure, y_label) in MEASURES.items():
        series = [
            Series(label=words(at), x=(words(at),) * len(own), y=tuple(numbers(own, column)))
            for at, own in group(jobs, axis).items()
        ]
        made.append(
            Figure(
                name=name,
                title=f"{measure} of the jobs with high I/O, all seeds; whiskers to the extremes",
                x_label=x_label,
                y_label=y_label,
                kind="box",
                series=tuple(series),
            )
        )
    return made


def displacement_figure(rows: Sequence[Row], axis: str, x_label: str, words: Words) -> Figure:
    """Mean displacement of all jobs, and of those that started in their turn among themselves."""
    runs = where(rows, kind="run")
    return Figure(
        name="displacement",
        title="Displacement with and without the backfilled jobs; ranges over seeds",
        x_label=x_label,
        y_label="mean displacement, places",
        kind="bar",
        series=(
            bars("all jobs", runs, axis, "displacement", words),
            bars("without the backfilled", runs, axis, "displacement_in_turn", words),
        ),
    )


def course_figure(rows: Sequence[Row], *, name: str, title: str) -> Figure:
    """S and W over time in one run."""
    hours = tuple(numbers(rows, "hour"))
    return Figure(
        name=name,
        title=title,
        x_label="hours",
        y_label="mean I/O intensity, GB/s",
        kind="trace",
        series=tuple(
            Series(label=label, x=hours, y=tuple(numbers(rows, column)))
            for label, column in (
                ("S, what runs", "system_gb_per_s"),
                ("W, what runs or waits", "workload_gb_per_s"),
            )
        ),
    )
