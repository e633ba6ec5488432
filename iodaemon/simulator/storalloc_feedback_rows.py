"""What the rows of experiment ``storalloc-feedback`` come to: values, a summary, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from iodaemon.core.measure import mean
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.series import ranged
from iodaemon.simulator.table import group, levels, numbers, samples, where

SERVED: Final = "served_percent"
MARKS: Final = {
    ("open", 0): "fixed",
    ("open", 1): "open",
    ("apart", 0): "apart-fixed",
    ("apart", 1): "apart",
    ("together", 0): "together-fixed",
    ("together", 1): "together",
}
"""Admission and feedback of the main case: their names in ids and pictures."""
ENOUGH: Final = 100.0
"""Percent served of a capacity that suffices; and on every seed."""
_Values = dict[str, float | None]


def measured(rows: Sequence[Row], main: str) -> _Values:
    """Every value that the rows give.

    Args:
        rows: of all kinds.
        main: the id of the main case.
    """
    here = where(rows, kind="life", case=main)
    found = _invariants(rows)
    for (admission, feedback), mark in MARKS.items():
        ran = where(here, admission=admission, feedback=feedback)
        if not ran:
            continue
        found |= _of_way(ran, mark)
        for rule, of_rule in group(ran, "rule").items():
            found |= _of_rule(of_rule, rule, mark)
    for case, of_case in group(where(rows, kind="life"), "case").items():
        if case != main:
            found[f"case-{case}-served"] = mean(numbers(of_case, SERVED))
            found[f"case-{case}-huge"] = mean(numbers(of_case, "huge_run_stretch"))
    return found


def _invariants(rows: Sequence[Row]) -> _Values:
    """What must hold whatever comes out; 1: it does."""
    checks, ran = where(rows, kind="check"), where(rows, kind="life")
    found: _Values = {}
    if checks:
        same = numbers(checks, "same_without_contention")
        found["I-contention"] = float(all(same))
        storalloc = [value for value in numbers(checks, "same_as_storalloc") if value < 2.0]
        if storalloc:
            found["I-storalloc"] = float(all(storalloc))
            found["I-storalloc-runs"] = float(len(storalloc))
    if fixed := where(ran, feedback=0):
        found["I-fixed"] = float(all(row["most_run_stretch"] == 1.0 for row in fixed))
    if ran:
        found["I-later"] = min(numbers(ran, "least_run_stretch"))
        found["I-room"] = max(float(row["peak_tb"]) / float(row["tb"]) for row in ran)
        shares = [float(row[SERVED]) + float(row["fallback_percent"]) for row in ran]
        found["I-all"] = max(abs(share - 100.0) for share in shares)
    return found


def _of_way(rows: Sequence[Row], mark: str) -> _Values:
    """Means over rules and seeds, where the rules differ little; the peak is the most."""
    found: _Values = {f"makespan-{mark}": mean(numbers(rows, "makespan_s"))}
    sizes = levels(rows, "tb")
    for tb in sizes:
        cell = where(rows, tb=tb)
        if mark != "fixed":
            found[f"stretch-{mark}-{tb:g}"] = mean(numbers(cell, "stretch"))
        if not mark.endswith("fixed"):
            found[f"lost-{mark}-{tb:g}"] = mean(numbers(cell, "lost_node_h"))
    if not mark.endswith("-fixed"):
        found[f"peak-{mark}"] = max(numbers(where(rows, tb=sizes[-1]), "peak_tb"))
    return found


def _of_rule(rows: Sequence[Row], rule: str, mark: str) -> _Values:
    """By capacity, means over the seeds; the least capacity that suffices."""
    found: _Values = {}
    if mark.endswith("-fixed"):
        return found
    sizes = levels(rows, "tb")
    for tb in sizes:
        cell = where(rows, tb=tb)
        found[f"served-{mark}-{tb:g}-{rule}"] = mean(numbers(cell, SERVED))
        if mark == "open":
            found[f"run-{tb:g}-{rule}"] = mean(numbers(cell, "large_run_stretch"))
    enough = [tb for tb in sizes if min(numbers(where(rows, tb=tb), SERVED)) >= ENOUGH]
    found[f"enough-{mark}-{rule}"] = min(enough, default=None)
    return found


def summed(rows: Sequence[Row]) -> list[Row]:
    """A line a cell, means over the seeds."""
    keys = ("case", "rule", "tb", "admission", "feedback")
    columns = (
        *(SERVED, "refused", "failed", "stretch", "run_stretch", "large_run_stretch"),
        *("huge_run_stretch", "wait_s", "makespan_s", "lost_node_h", "peak_tb"),
    )
    return [
        {
            "kind": "summary",
            **{key: cell[0][key] for key in keys},
            **{column: mean(numbers(cell, column)) for column in columns},
        }
        for cell in group(where(rows, kind="life"), *keys).values()
    ]


def all_figures(rows: Sequence[Row], main: str) -> list[Figure]:
    """Those for which there are rows."""
    here = where(rows, kind="life", case=main)
    made = []
    for (admission, feedback), mark in MARKS.items():
        ran = where(here, admission=admission, feedback=feedback)
        if feedback or admission == "open":
            made.append(_by_size(f"served-{mark}", f"Served whole, {_words(mark)}", SERVED, ran))
        if feedback:
            title = f"How much longer those above 200 GB run, {_words(mark)}"
            made.append(_by_size(f"run-{mark}", title, "large_run_stretch", ran))
    made.append(_cases([row for row in rows if row["kind"] == "life" and row["case"] != main]))
    return [figure for figure in made if figure.series]


def _words(mark: str) -> str:
    """What a mark means."""
    return {
        "fixed": "all begin and end as recorded",
        "open": "all begin as recorded",
        "apart": "nodes first, then space",
        "together": "nodes and space together",
    }[mark]


def _by_size(name: str, title: str, key: str, rows: Sequence[Row]) -> Figure:
    """By capacity, a series a rule; the range is over seeds."""
    series = []
    for rule, of_rule in group(rows, "rule").items():
        cells = {f"{tb:g} TB": values for tb, values in samples(of_rule, "tb", key).items()}
        series.append(ranged(rule, cells))
    return Figure(
        name=name,
        title=title,
        x_label="capacity",
        y_label="% of sum_cap" if key == SERVED else "by recorded length",
        kind="point",
        series=tuple(series),
    )


def _cases(rows: Sequence[Row]) -> Figure:
    """How much longer the largest run, a bar a case; a series a rule and capacity."""
    series = []
    for (rule, tb), own in group(rows, "rule", "tb").items():
        cases = group(own, "case")
        means = [mean(numbers(each, "huge_run_stretch")) for each in cases.values()]
        series.append(Series(label=f"{rule}, {tb:g} TB", x=tuple(cases), y=tuple(means)))
    return Figure(
        name="cases",
        title="How much longer those above 8 TB run",
        x_label="",
        y_label="by recorded length",
        kind="bar",
        series=tuple(series),
        line_y=1.0,
    )
