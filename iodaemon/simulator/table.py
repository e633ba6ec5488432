"""Rows of a study as a table: filter, group, columns, means; and series of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from iodaemon.core.measure import mean
from iodaemon.simulator.experiment import Row, Series


def where(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """The rows with these values, asked in this order; a tuple stands for any of its values."""
    return [
        row
        for row in rows
        if all(
            row[key] in value if isinstance(value, tuple) else row[key] == value
            for key, value in wanted.items()
        )
    ]


def numbers(rows: Iterable[Row], key: str) -> list[float]:
    """The values of a column."""
    return [float(row[key]) for row in rows]


def levels(rows: Iterable[Row], key: str) -> list[float]:
    """The different numbers of a column, rising."""
    return sorted({float(row[key]) for row in rows})


def group(rows: Iterable[Row], *keys: str) -> dict[Any, list[Row]]:
    """The rows by the value of a column, or the values of several; in the order of the rows."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        values = tuple(row[key] for key in keys)
        found.setdefault(values if len(keys) > 1 else values[0], []).append(row)
    return found


def mean_of(rows: Iterable[Row], key: str) -> float | None:
    """The mean of a column; None: no rows."""
    values = numbers(rows, key)
    return mean(values) if values else None


def samples(rows: Iterable[Row], axis: str, key: str) -> dict[float, list[float]]:
    """The values of a column by the number on the axis, which rises."""
    alike = group(rows, axis)
    return {float(at): numbers(alike[at], key) for at in sorted(alike)}


def means(rows: Iterable[Row], axis: str, key: str) -> dict[float, float]:
    """The mean of a column by the number on the axis, which rises."""
    return {at: mean(values) for at, values in samples(rows, axis, key).items()}


Place = TypeVar("Place", bound=float | str)
"""Where on the axis: a number, or the name of a category."""


def ranged(
    label: str,
    found: Mapping[Place, Sequence[float]],
    middle: Callable[[Sequence[float]], float] = mean,
) -> Series:
    """The middle of the values at each place, of seeds or rounds, and their range.

    Args:
        label: for the legend.
        found: at least one value by place; the places are in the order of the figure.
        middle: of the values at a place.
    """
    return Series(
        label=label,
        x=tuple(found),
        y=tuple(middle(values) for values in found.values()),
        low=tuple(min(values) for values in found.values()),
        high=tuple(max(values) for values in found.values()),
    )


def printed(label: str, values: Mapping[Place, float]) -> Series:
    """What the paper prints, by place."""
    return Series(label=label, x=tuple(values), y=tuple(values.values()), is_published=True)
