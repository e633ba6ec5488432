"""Series of a figure, of what was found at each place of its axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from iodaemon.core.measure import mean
from iodaemon.simulator.experiment import Series

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
