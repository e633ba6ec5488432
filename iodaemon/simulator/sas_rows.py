"""Reading the rows of SAS's runs: means and deviations along an axis, and curves fitted to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from iodaemon.core.measure import mean, standard_deviation
from iodaemon.errors import RequestError
from iodaemon.simulator.experiment import Row, Series
from iodaemon.simulator.sas_point import RANDOM, SAS
from iodaemon.simulator.table import means, numbers, samples, where

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
