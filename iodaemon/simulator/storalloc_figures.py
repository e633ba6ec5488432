"""The pictures of experiments ``storalloc`` and ``storalloc-hetero``: figures 4 to 11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from iodaemon.core.measure import mean
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.storalloc_rows import MULTI, PERCENT
from iodaemon.simulator.storalloc_run import RULES, effect
from iodaemon.simulator.table import levels, numbers, printed, ranged, where

PUBLISHED_D: Final[Mapping[str, float]] = MappingProxyType(
    {"random": 0.24, "round_robin": 0.21, "worst_fit": 0.95}
)
"""Table 5, row 1: of max_alloc, to best-bandwidth."""


def all_figures(rows: Sequence[Row], books: str) -> list[Figure]:
    """Figures 4 to 9, as far as there are rows for them."""
    runs = where(rows, kind="run", books=books, retries=0)
    disks = where(rows, kind="disk", books=books, retries=0)
    made = [_figure_4(runs, tb, split) for split in (0, 1) for tb in levels(runs, "tb")]
    multi = where(disks, split=1, layout=MULTI)
    enough = where(multi, tb=32.0)
    made += [
        boxes("figure-5", "Most of a disk in use (Fig. 5)", "max_disk_use, %", multi, "tb"),
        boxes("figure-6-mean", "Mean allocations, 32 TB (Fig. 6)", "mean_alloc", enough, "rule"),
        boxes("figure-6-max", "Most allocations, 32 TB (Fig. 6)", "max_alloc", enough, "rule"),
        _effects("figure-7", "mean_alloc", where(disks, tb=32.0)),
        _effects("figure-8", "max_alloc", where(disks, tb=32.0)),
        _figure_9(where(runs, split=1)),
        boxes(
            "correct-books-max-alloc",
            "Most allocations, 32 TB, split, correct books, rules of ours beside the four",
            "max_alloc",
            where(rows, kind="disk", books="correct", tb=32.0, layout=MULTI),
            "rule",
        ),
    ]
    return [figure for figure in made if figure.series]


def _rules(rows: Sequence[Row]) -> list[str]:
    """In the order of the paper, others behind."""
    there = {str(row["rule"]) for row in rows}
    return [*(rule for rule in RULES if rule in there), *sorted(there.difference(RULES))]


def _figure_4(runs: Sequence[Row], tb: float, split: int) -> Figure:
    """Percent of sum_cap by layout, a series a rule; the range is over seeds."""
    here = where(runs, tb=tb, split=split)
    series = []
    for rule in _rules(here):
        of_rule = where(here, rule=rule)
        layouts = dict.fromkeys(str(row["layout"]) for row in of_rule)
        cells = {name: numbers(where(of_rule, layout=name), PERCENT) for name in layouts}
        series.append(ranged(rule, cells))
    words = "split" if split else "unsplit"
    return Figure(
        name=f"figure-4-{words}-{tb:g}TB",
        title=f"Allocated, {tb:g} TB, {words} (Fig. 4)",
        x_label="layout",
        y_label="% of sum_cap",
        kind="point",
        series=tuple(series),
    )


def boxes(name: str, title: str, y_label: str, rows: Sequence[Row], by: str) -> Figure:
    """One value a disk and seed; a box a rule, of figure 5 one each capacity.

    Args:
        name: of the figure.
        title: of it.
        y_label: begins with the column.
        rows: of kind ``disk``.
        by: the column by which boxes stand apart.
    """
    key = y_label.partition(",")[0]
    if by == "rule":
        groups = [(rule, where(rows, kind="disk", rule=rule)) for rule in _rules(rows)]
        series = [_box(rule, rule, of_rule, key) for rule, of_rule in groups]
    else:
        series = [
            Series(
                label=rule,
                x=tuple(_place(row, by) for row in where(rows, kind="disk", rule=rule)),
                y=tuple(numbers(where(rows, kind="disk", rule=rule), key)),
            )
            for rule in _rules(rows)
        ]
    return Figure(
        name=name, title=title, x_label="", y_label=y_label, kind="box", series=tuple(series)
    )


def _box(label: str, place: str, rows: Sequence[Row], key: str) -> Series:
    values = numbers(rows, key)
    return Series(label=label, x=(place,) * len(values), y=tuple(values))


def _place(row: Row, by: str) -> str:
    return f"{row[by]:g} TB" if by == "tb" else str(row[by])


def _effects(name: str, key: str, disks: Sequence[Row]) -> Figure:
    """Cohen's d to best-bandwidth, all runs at 32 TB, one value a disk."""
    rules = [rule for rule in _rules(disks) if rule != "best_bandwidth"]
    values = {rule: effect(disks, rule, key) for rule in rules}
    told = {rule: value for rule, value in values.items() if value is not None}
    series = [Series(label="ours", x=tuple(told), y=tuple(told.values()))] if told else []
    if told and key == "max_alloc":
        shown = {rule: d for rule, d in PUBLISHED_D.items() if rule in told}
        series.append(printed("published", shown))
    return Figure(
        name=name,
        title=f"Cohen's d of {key}, to best-bandwidth (Fig. {name[-1]})",
        x_label="",
        y_label="d",
        kind="point",
        series=tuple(series),
    )


def _figure_9(runs: Sequence[Row]) -> Figure:
    """The most split requests that failed or were refused, over the runs of a seed."""
    places: list[str] = []
    failed: list[float] = []
    refused: list[float] = []
    for tb in (8.0, 16.0, 32.0):
        for rule in _rules(runs):
            cell = where(runs, tb=tb, rule=rule)
            if cell:
                places.append(f"{tb:g} TB {rule}")
                failed.append(_most(cell, "failed_split"))
                refused.append(_most(cell, "refused_split"))
    series = [
        Series(label="failed", x=tuple(places), y=tuple(failed)),
        Series(label="refused", x=tuple(places), y=tuple(refused)),
    ]
    return Figure(
        name="figure-9",
        title="Split requests that failed or were refused, the most of all runs (Fig. 9)",
        x_label="",
        y_label="requests",
        kind="stack",
        series=tuple(series) if places else (),
    )


def _most(rows: Sequence[Row], key: str) -> float:
    return mean(
        [max(numbers(where(rows, kind="run", seed=seed), key)) for seed in levels(rows, "seed")]
    )
