"""The pictures of ``lv-workloads``: figures 16 to 24, with what the text prints of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.lv_rows import (
    EXPLICIT,
    IMPLICIT,
    MIXED,
    PUBLISHED,
    By,
    base_of,
    by_workload,
    increases,
    reductions,
)
from iodaemon.simulator.series import printed, ranged
from iodaemon.simulator.table import numbers, where

THROUGHPUT: Final = "throughput"
RUNTIME: Final = "average run time"
SLOWDOWN: Final = "slowdown"
_CUT: Final = {"figure-16": 120.0}
"""Percent at which an axis ends: slowdown of #1 and #2 is up to ten times all else."""
_LATENCY_FIGURES: Final = (
    ("figure-18", "waiting", 1, (696.0, 286.0)),
    ("figure-19", "serving", 1, (4.95, 3.9)),
    ("figure-21", "waiting", 11, (243.6, 98.0)),
    ("figure-22", "serving", 11, (3.05, 2.91)),
)
"""Name, latency, workload, means as printed without and with the dynamic scheduler, ms."""


def all_figures(rows: Sequence[Row]) -> list[Figure]:
    """As many as there are rows for."""
    runs = by_workload(rows)
    found = [
        *_gain_figures(runs),
        *_beside_figures(runs),
        *(_latency_figure(rows, runs, *each) for each in _LATENCY_FIGURES),
        _job_figure(rows, runs, "figure-23", 8),
        _job_figure(rows, runs, "figure-24", 15),
    ]
    return [figure for figure in found if any(not s.is_published for s in figure.series)]


def _words(name: str) -> str:
    return name.replace("-", " ").capitalize()


def _name(workload: int) -> str:
    return f"#{workload}"


def _gain_figures(runs: By) -> list[Figure]:
    of = (
        ("figure-16", EXPLICIT, "explicit I/O: 7.09 to 40.4, 6.7 to 67.9, 8.3 to 73.3 printed"),
        ("figure-17", IMPLICIT, "implicit I/O: 45 to 431, 45 to 82, 40 to 433 printed"),
        ("figure-20", MIXED, "mixed: 1.5 to 131.2, 9.3 to 56.2, 10.8 to 97.7 printed"),
    )
    return [_gain_figure(runs, name, workloads, title) for name, workloads, title in of]


def _gain_figure(runs: By, name: str, workloads: Sequence[int], title: str) -> Figure:
    here = [w for w in workloads if (w, PUBLISHED) in runs]
    series = [
        _over(THROUGHPUT, {w: increases(runs, w, PUBLISHED, "throughput_per_s") for w in here}),
        _over(RUNTIME, {w: reductions(runs, w, PUBLISHED, "runtime_s") for w in here}),
        _over(SLOWDOWN, {w: increases(runs, w, PUBLISHED, "slowdown") for w in here}),
    ]
    told = {(SLOWDOWN, 2): -2.9, (THROUGHPUT, 8): 431.0}
    series += [printed(label, {_name(w): value}) for (label, w), value in told.items() if w in here]
    return Figure(
        name=name,
        title=f"{_words(name)}: improvement, {title}",
        x_label="workload",
        y_label="improvement, %",
        kind="bar",
        series=tuple(each for each in series if each.x),
        line_y=0.0,
        cut_y=_CUT.get(name),
    )


def _over(label: str, values: dict[int, list[float]]) -> Series:
    return ranged(label, {_name(w): each for w, each in values.items()})


def _beside_figures(runs: By) -> list[Figure]:
    """All policies beside each other; not in the paper."""
    if not runs:
        return []
    base = base_of(runs)
    policies = list(dict.fromkeys(policy for _, policy in runs))
    workloads = list(dict.fromkeys(workload for workload, _ in runs))
    series = [
        _over(policy, {w: increases(runs, w, policy, "throughput_per_s") for w in here})
        for policy in policies
        if policy != base and (here := [w for w in workloads if (w, policy) in runs])
    ]
    title = f"Throughput relative to {base}: mean, lowest and highest seed"
    return [
        Figure(
            name="policies",
            title=title,
            x_label="workload",
            y_label="more throughput, %",
            kind="bar",
            series=tuple(series),
            line_y=0.0,
        )
    ]


def _latency_figure(
    rows: Sequence[Row],
    runs: By,
    name: str,
    latency: str,
    workload: int,
    means_ms: tuple[float, float],
) -> Figure:
    series: list[Series] = []
    for policy, mean_ms in zip((base_of(runs), PUBLISHED), means_ms, strict=True):
        if own := where(rows, kind="latency", workload=workload, policy=policy):
            at_s, y = tuple(numbers(own, "at_s")), tuple(numbers(own, f"{latency}_ms"))
            series.append(Series(label=policy, x=at_s, y=y))
            series.append(printed(policy, {max(at_s) / 2.0: mean_ms}))
    return Figure(
        name=name,
        title=f"{_words(name)}: {latency} time, workload #{workload}; printed are means",
        x_label="time, s",
        y_label=f"{latency}, ms",
        kind="line",
        series=tuple(series),
    )


def _job_figure(rows: Sequence[Row], runs: By, name: str, workload: int) -> Figure:
    series: list[Series] = []
    for policy in (base_of(runs), PUBLISHED):
        if own := where(rows, kind="job", workload=workload, policy=policy):
            x, y = tuple(numbers(own, "job")), tuple(numbers(own, "run_s"))
            series.append(Series(label=policy, x=x, y=y))
    return Figure(
        name=name,
        title=f"{_words(name)}: run time of every job, workload #{workload}",
        x_label="job",
        y_label="run time, s",
        kind="point",
        series=tuple(series),
    )
