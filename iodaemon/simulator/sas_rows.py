"""The rows of SAS's runs: means and deviations, curves fitted to them, pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from iodaemon.core.measure import mean, standard_deviation
from iodaemon.errors import RequestError
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.sas_run import RANDOM, SAS
from iodaemon.simulator.table import levels, means, numbers, samples, where

MAKESPAN: Final = "makespan_s"
TURNAROUND: Final = "turnaround_s"
HOUR_S: Final = 3600.0


class Fit(msgspec.Struct, frozen=True):
    """A polynomial, fitted by least squares.

    Attributes:
        factors: of 1, x, x squared.
    """

    factors: tuple[float, ...]

    def at(self, x: float) -> float:
        """Its value."""
        return sum(factor * x**power for power, factor in enumerate(self.factors))

    @property
    def lowest(self) -> float:
        """Where it is least, of 0 to 1."""
        ends = min((self.at(0.0), 0.0), (self.at(1.0), 1.0))[1]
        if len(self.factors) < 3 or self.factors[2] <= 0.0:
            return ends
        return min(1.0, max(0.0, -self.factors[1] / (2.0 * self.factors[2])))

    @property
    def has_valley(self) -> bool:
        """Whether it is higher at both ends than somewhere between."""
        least = self.at(self.lowest)
        return self.at(0.0) > least and self.at(1.0) > least


def fitted(points: Mapping[float, float], degree: int) -> Fit:
    """The polynomial of this degree that is nearest; of fewer points one of less.

    Raises:
        RequestError: numpy is missing.
    """
    try:
        from numpy.polynomial import polynomial
    except ImportError as error:
        raise RequestError("curves are fitted by numpy: install iodaemon[sim]") from error
    factors = polynomial.polyfit([*points], [*points.values()], min(degree, len(points) - 1))
    return Fit(tuple(factors.tolist()))


def used(rows: Iterable[Row], axis: str, what: str) -> dict[float, float]:
    """What was used of all that there was, over all runs together (equation 3).

    Args:
        rows: of runs.
        axis: whose values are told apart.
        what: ``node_s`` or ``byte_s``.
    """
    of = {at: sum(values) for at, values in samples(rows, axis, f"of_{what}").items()}
    return {at: sum(v) / of[at] for at, v in samples(rows, axis, what).items()}


def bars(label: str, rows: Iterable[Row], axis: str, column: str, unit: float = 1.0) -> Series:
    """Means, with the standard deviation of all results as range."""
    found = samples(rows, axis, column)
    middle = [mean(values) / unit for values in found.values()]
    spread = [standard_deviation(values) / unit for values in found.values()]
    return Series(
        label=label,
        x=tuple(found),
        y=tuple(middle),
        low=tuple(y - d for y, d in zip(middle, spread, strict=True)),
        high=tuple(y + d for y, d in zip(middle, spread, strict=True)),
    )


def curve(label: str, points: Mapping[float, float], degree: int, unit: float = 1.0) -> Series:
    """The fit, drawn from the first to the last value on the axis."""
    fit = fitted({x: y / unit for x, y in points.items()}, degree)
    first, last = min(points), max(points)
    x = tuple(first + (last - first) * step / 40.0 for step in range(41))
    return Series(label=label, x=x, y=tuple(map(fit.at, x)), is_fit=True)


def ratio_to_best(rows: Sequence[Row], column: str) -> float:
    """SAS in parts of the best p, of means."""
    at_random = means(where(rows, way=RANDOM), "p", column)
    return mean(numbers(where(rows, way=SAS), column)) / min(at_random.values())


def ratio_at(rows: Sequence[Row], column: str, p: float) -> float | None:
    """SAS in parts of this p, of means; None: it was not run."""
    at_random = means(where(rows, way=RANDOM), "p", column).get(p)
    if at_random is None:
        return None
    return mean(numbers(where(rows, way=SAS), column)) / at_random


def falls(points: Mapping[float, float], marks: Sequence[float], sign: float) -> bool:
    """Whether the values fall (sign 1) or rise (-1) from mark to mark, of those there are."""
    values = [sign * points[mark] for mark in marks if mark in points]
    return all(late < early for early, late in pairwise(values))


TIMES: Final[tuple[tuple[str, str, str], ...]] = (
    ("makespan", MAKESPAN, "makespan, h"),
    ("turnaround", TURNAROUND, "mean turnaround, h"),
)
USES: Final[tuple[tuple[str, str, str], ...]] = (
    ("nodes", "node_s", "part of the node time used"),
    ("hps", "byte_s", "part of the space and time of HPS used"),
)
P_LABEL: Final = "p, part of the jobs on HPS drawn at random"
THETA_LABEL: Final = "theta, relative standard deviation of what users say"


def level_line(label: str, rows: Sequence[Row], column: str, ends: tuple[float, float]) -> Series:
    """SAS, which knows no p: its mean, and the deviation of all results, over the whole axis."""
    values = [value / HOUR_S for value in numbers(rows, column)]
    middle, spread = mean(values), standard_deviation(values)
    return Series(
        label=label,
        x=ends,
        y=(middle, middle),
        low=(middle - spread,) * 2,
        high=(middle + spread,) * 2,
    )


def over_p(name: str, title: str, rows: Sequence[Row], column: str, y_label: str) -> Figure:
    """Means and deviations by p with their fit, and SAS beside them, for each capacity."""
    series: list[Series] = []
    for gb in levels(rows, "gb"):
        here = where(rows, gb=gb)
        drawn, sas = where(here, way=RANDOM), where(here, way=SAS)
        points = means(drawn, "p", column)
        series.append(bars(f"random, {gb:g} GB", drawn, "p", column, HOUR_S))
        series.append(curve(f"fit, {gb:g} GB", points, 2, HOUR_S))
        flat = level_line(f"SAS, {gb:g} GB", sas, column, (min(points), max(points)))
        series += _as_line(flat)
    return Figure(
        name=name,
        title=title,
        x_label=P_LABEL,
        y_label=y_label,
        kind="point",
        series=tuple(series),
    )


def _as_line(flat: Series) -> list[Series]:
    """Its two ends as points, and the line between them with the deviation shaded."""
    ends = Series(label=flat.label, x=flat.x, y=flat.y)
    name = f"{flat.label}, deviation"
    return [ends, msgspec.structs.replace(flat, label=name, is_fit=True)]


def used_over_p(name: str, title: str, rows: Sequence[Row], what: str, y_label: str) -> Figure:
    """What is used by p, and under SAS, for each capacity."""
    series: list[Series] = []
    for gb in levels(rows, "gb"):
        here = where(rows, gb=gb)
        points = used(where(here, way=RANDOM), "p", what)
        level = used(where(here, way=SAS), "gb", what)[gb]
        series.append(Series(label=f"random, {gb:g} GB", x=tuple(points), y=tuple(points.values())))
        ends = (min(points), max(points))
        series.append(Series(label=f"SAS, {gb:g} GB", x=ends, y=(level, level)))
    return Figure(
        name=name, title=title, x_label=P_LABEL, y_label=y_label, kind="line", series=tuple(series)
    )


def figure_3(rows: Sequence[Row]) -> list[Figure]:
    """Figures 3a to 3d."""
    letters = iter("abcd")
    made = [
        over_p(f"figure-3{(at := next(letters))}-{name}", f"SAS and random tiers (Fig. 3{at})",
               rows, column, y_label)
        for name, column, y_label in TIMES
    ]  # fmt: skip
    made += [
        used_over_p(f"figure-3{(at := next(letters))}-{name}", f"Use (Fig. 3{at})",
                    rows, what, y_label)
        for name, what, y_label in USES
    ]  # fmt: skip
    return made


def figure_4(rows: Sequence[Row]) -> list[Figure]:
    """Figure 4: makespan and turnaround by p, a picture a ratio k."""
    return [
        over_p(
            f"figure-4-{name}-k{k:g}",
            f"Staging {k:g} times as fast as LPS (Fig. 4)",
            where(rows, k=k),
            column,
            y_label,
        )
        for name, column, y_label in TIMES
        for k in levels(rows, "k")
    ]


def figure_5(rows: Sequence[Row]) -> list[Figure]:
    """Figures 5a to 5d."""
    sas, drawn = where(rows, way=SAS), where(rows, way=RANDOM)
    made = [
        _over_theta(f"figure-5{letter}-{name}", f"Inaccurate input (Fig. 5{letter})", sas, drawn,
                    column, y_label)
        for letter, (name, column, y_label) in zip("ad", TIMES, strict=True)
    ]  # fmt: skip
    tiers: list[Series] = []
    for label, column in (("HPS", "fast_jobs"), ("LPS", "slow_jobs")):
        tiers += [
            bars(label, sas, "theta", column),
            curve(f"fit, {label}", means(sas, "theta", column), 1),
        ]
    uses: list[Series] = []
    for label, what in (("nodes", "node_s"), ("HPS", "byte_s")):
        points = used(sas, "theta", what)
        uses.append(Series(label=label, x=tuple(points), y=tuple(points.values())))
        uses.append(curve(f"fit, {label}", points, 1))
    made.insert(1, _plain("figure-5b-jobs", "Jobs by tier (Fig. 5b)", "jobs", tiers))
    made.insert(2, _plain("figure-5c-use", "Use (Fig. 5c)", "part of what there is", uses))
    return made


def _over_theta(
    name: str,
    title: str,
    sas: Sequence[Row],
    drawn: Sequence[Row],
    column: str,
    y_label: str,
) -> Figure:
    """SAS by theta with its fit, and the band of all p."""
    points = means(sas, "theta", column)
    series = [
        bars("SAS", sas, "theta", column, HOUR_S),
        curve("fit", points, 2, HOUR_S),
    ]
    band = means(drawn, "p", column)
    if band:
        low, high = min(band.values()) / HOUR_S, max(band.values()) / HOUR_S
        ends = (min(points), max(points))
        series += [
            Series(label="random, the best p", x=ends, y=(low, low)),
            Series(
                label="random, all p",
                x=ends,
                y=(low, low),
                low=(low, low),
                high=(high, high),
                is_fit=True,
            ),
        ]
    return _plain(name, title, y_label, series)


def _plain(name: str, title: str, y_label: str, series: Sequence[Series]) -> Figure:
    return Figure(
        name=name,
        title=title,
        x_label=THETA_LABEL,
        y_label=y_label,
        kind="point",
        series=tuple(series),
    )


def sweep_figure(rows: Sequence[Row]) -> Figure:
    """SAS's makespan by k, a line a capacity: how much staging which capacity can use."""
    by_gb: Mapping[float, dict[float, float]] = {
        gb: means(where(rows, gb=gb), "k", MAKESPAN) for gb in levels(rows, "gb")
    }
    return Figure(
        name="best-staging",
        title="SAS by bandwidth of the staging and capacity",
        x_label="k, staging in parts of LPS",
        y_label="mean makespan, h",
        kind="line",
        series=tuple(
            Series(
                label=f"{gb:g} GB",
                x=tuple(points),
                y=tuple(value / HOUR_S for value in points.values()),
            )
            for gb, points in by_gb.items()
        ),
        log_x=True,
    )
