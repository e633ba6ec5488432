"""Reading the rows of strategies: relative to a base, by class of I/O load, seed by seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.core.measure import geometric_mean
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.table import group, where

EDGES: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Bounds of the classes of realised I/O load in which lines are drawn and claims are read. Below 1
the I/O node has room for all, and nothing depends on the load."""
WORKLOAD: Final = ("seed", "wanted_load", "number")
"""What tells one workload from the others."""


class Pair(msgspec.Struct, frozen=True):
    """What a strategy made of a workload, and what the base made of it."""

    row: Row
    base: Row

    def ratio(self, key: str) -> float:
        """Of a column, relative to the base."""
        return float(self.row[key]) / float(self.base[key])


Value = Callable[[Pair], float]


def ratio_of(key: str) -> Value:
    """A column, relative to the base."""
    return lambda pair: pair.ratio(key)


def value_of(key: str) -> Value:
    """A column as it is."""
    return lambda pair: float(pair.row[key])


def pair_up(rows: Iterable[Row], base: str) -> dict[str, list[Pair]]:
    """Every strategy's rows beside those of the base, by its name; the base is there too."""
    held = where(rows, kind="workload")
    bases = {_workload(row): row for row in where(held, policy=base)}
    return {
        policy: [Pair(row, bases[_workload(row)]) for row in own]
        for policy, own in group(held, "policy").items()
    }


def mean_of(pairs: Iterable[Pair], value: Value) -> float:
    """The geometric mean, as everywhere with ratios."""
    return geometric_mean([value(pair) for pair in pairs])


def by_seed(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """One list a seed."""
    found: dict[object, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(pair.row["seed"], []).append(pair)
    return list(found.values())


def by_class(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """One list a class of load, by rising load; empty classes are left out."""
    classes: list[list[Pair]] = [[] for _ in range(len(EDGES) + 1)]
    for pair in pairs:
        load = float(pair.row["load"])
        classes[sum(load >= edge for edge in EDGES)].append(pair)
    return [each for each in classes if each]


def class_means(pairs: Iterable[Pair], value: Value) -> list[float]:
    """The mean in each class."""
    return [mean_of(each, value) for each in by_class(pairs)]


def steps(pairs: Iterable[Pair], value: Value) -> list[float]:
    """From class to class of each seed: the next mean relative to the one before.

    All below 1: it falls with the load on every seed; all above: it rises.
    """
    return [
        after / before
        for seed in by_seed(pairs)
        for before, after in itertools.pairwise(class_means(seed, value))
    ]


def line(label: str, pairs: Sequence[Pair], value: Value) -> Series:
    """Means by class of load over all seeds, and the range of the seeds' own means."""
    x, y, low, high = [], [], [], []
    for each in by_class(pairs):
        of_seeds = [mean_of(seed, value) for seed in by_seed(each)]
        x.append(geometric_mean([float(pair.row["load"]) for pair in each]))
        y.append(mean_of(each, value))
        low.append(min(of_seeds))
        high.append(max(of_seeds))
    return Series(label=label, x=tuple(x), y=tuple(y), low=tuple(low), high=tuple(high))


def load_figure(
    name: str, title: str, y_label: str, lines: Mapping[str, tuple[Sequence[Pair], Value]]
) -> Figure:
    """Lines over the realised load, with the base at 1."""
    return Figure(
        name=name,
        title=title,
        x_label="I/O load (alpha)",
        y_label=y_label,
        kind="line",
        series=tuple(line(label, *drawn) for label, drawn in lines.items()),
        log_x=True,
        line_y=1.0,
    )


def _workload(row: Row) -> tuple[str | int | float, ...]:
    return tuple(row[key] for key in WORKLOAD)
