"""What the rows of ``lv-stacking`` say, and their pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from iodaemon.core.measure import mean
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.series import printed, ranged
from iodaemon.simulator.table import group, numbers, samples, where

PRINTED_USE: Final[Mapping[float, float]] = {0.484: 1.0 / 250.0, 0.686: 0.75}
"""Part of the memory in use: part of the time in contention (section 2.4.2)."""
DEGRADED: Final = 1.05
"""From this normalised run time on a group counts as degraded."""
NEVER: Final = 99.0
"""Where a group is not degraded on any number of CMPs."""
SAFE_MB_PER_S: Final = 5.63
"""Up to this rate of a CMP nothing was degraded (section 3.3.2)."""

Curve = dict[int, list[float]]
"""Values of all seeds by the number of CMPs."""


def curves_of(rows: Sequence[Row], kind: str, key: str) -> dict[str, Curve]:
    """The column by label and number of CMPs, both in the order of the tasks."""
    return {
        label: {sockets: numbers(own, key) for sockets, own in group(alike, "sockets").items()}
        for label, alike in group(where(rows, kind=kind), "label").items()
    }


def normalised(curve: Curve) -> Curve:
    """Equation 1, seed by seed: T on k CMPs / T on the fewest."""
    first = curve[min(curve)]
    return {k: [v / f for v, f in zip(values, first, strict=True)] for k, values in curve.items()}


def measured(rows: Sequence[Row]) -> dict[str, float]:
    """Our value of each target, as far as it has run."""
    values: dict[str, float] = {}
    firsts = curves_of(rows, "stack", "first_s")
    for label, curve in curves_of(rows, "stack", "runtime_s").items():
        values |= _curve_values(label.removeprefix("#"), curve, normalised(firsts[label]))
    values |= _latency_values(rows)
    values |= _memory_values(rows)
    values |= _paced_values(curves_of(rows, "paced", "runtime_s"))
    return values


def _curve_values(index: str, curve: Curve, norm: Curve) -> dict[str, float]:
    """Means of all jobs, and equation 1 for the jobs that are there on every number of CMPs."""
    most = max(curve)
    steps = sorted(norm)
    rises = (
        later / earlier
        for before, after in pairwise(steps)
        for earlier, later in zip(norm[before], norm[after], strict=True)
    )
    values = {
        f"L6-{index}-first": mean(curve[min(curve)]),
        f"L6-{index}-last": mean(curve[most]),
        f"L6-{index}": mean(norm[most]),
        f"L6-{index}-rises": min(rises, default=1.0),
    }
    if 2 in norm:
        values[f"F1-{index}-two"] = max(norm[2])
    if 4 in norm and most > 4:
        values[f"F1-{index}-last-step"] = min(
            last / four for last, four in zip(norm[most], norm[4], strict=True)
        )
    return values


def _latency_values(rows: Sequence[Row]) -> dict[str, float]:
    waiting = curves_of(rows, "stack", "waiting_ms").get("#1")
    serving = curves_of(rows, "stack", "serving_ms").get("#1")
    if waiting is None or serving is None:
        return {}
    first, last = min(waiting), max(waiting)
    wait, serve = normalised(waiting)[last], normalised(serving)[last]
    return {
        "F5-first": mean(waiting[first]),
        "F5-last": mean(waiting[last]),
        "F5": mean(wait),
        "F6-first": mean(serving[first]),
        "F6-last": mean(serving[last]),
        "F6": mean(serve),
        "F7": min(w / s for w, s in zip(wait, serve, strict=True)),
    }


def _memory_values(rows: Sequence[Row]) -> dict[str, float]:
    by_use = samples(where(rows, kind="memory"), "value", "contended")
    values = {f"F8-{100.0 * use:.1f}": mean(by_use[use]) for use in PRINTED_USE if use in by_use}
    if len(by_use) > 1:
        shares = [by_use[use] for use in sorted(by_use)]
        values["F8-rises"] = float(
            all(
                earlier <= later
                for before, after in pairwise(shares)
                for earlier, later in zip(before, after, strict=True)
            )
        )
    return values


def _paced_values(curves: Mapping[str, Curve]) -> dict[str, float]:
    """Of figure 14: on how many CMPs each group is first degraded."""
    if not curves:
        return {}
    norms = {float(label): normalised(curve) for label, curve in curves.items()}
    starts = {rate: _start(norm) for rate, norm in norms.items()}
    ordered = [starts[rate] for rate in sorted(starts)]
    safe = [norm[k][0] for rate, norm in norms.items() if rate <= SAFE_MB_PER_S for k in norm]
    values = {
        "F14-most": starts[max(starts)],
        "F14-order": float(all(a >= b for a, b in pairwise(ordered))),
    }
    if safe:
        values["F14-safe"] = max(safe)
    return values


def _start(norm: Curve) -> float:
    return next((float(k) for k in sorted(norm) if norm[k][0] > DEGRADED), NEVER)


# -- pictures --------------------------------------------------------------------------------------


def stacking_figures(rows: Sequence[Row]) -> list[Figure]:
    """Figures 1, 5 to 8 and 14, as many as there are rows for."""
    found = [
        _figure_1(curves_of(rows, "stack", "first_s")),
        _latency_figure(rows, "figure-5", "waiting", {1.0: 4.55, 8.0: 590.0}),
        _latency_figure(rows, "figure-6", "serving", {}),
        _figure_7(rows),
        _figure_8(samples(where(rows, kind="memory"), "value", "contended")),
        _figure_14(curves_of(rows, "paced", "runtime_s")),
    ]
    return [figure for figure in found if figure.series]


def _line(label: str, curve: Curve) -> Series:
    return ranged(label, {float(k): values for k, values in curve.items()})


def _figure_1(curves: Mapping[str, Curve]) -> Figure:
    series = [_line(label, normalised(curve)) for label, curve in curves.items()]
    if "#1" in curves:
        series.append(printed("#1", {1.0: 1.0, 8.0: 122.0 / 7.0}))
    return Figure(
        name="figure-1",
        title="Figure 1: normalised run time with k CMPs; 2x to 16x printed",
        x_label="CMPs",
        y_label="T(k) / T(1)",
        kind="line",
        series=tuple(series),
    )


def _latency_figure(
    rows: Sequence[Row], name: str, latency: str, told_ms: Mapping[float, float]
) -> Figure:
    curve = curves_of(rows, "stack", f"{latency}_ms").get("#1")
    series = [] if curve is None else [_line("#1", curve)]
    if curve is not None and told_ms:
        series.append(printed("#1", told_ms))
    return Figure(
        name=name,
        title=f"{name.replace('-', ' ').capitalize()}: mean {latency} time, workload #1",
        x_label="CMPs",
        y_label=f"{latency}, ms",
        kind="line",
        series=tuple(series),
        log_y=latency == "waiting",
    )


def _figure_7(rows: Sequence[Row]) -> Figure:
    of = {name: curves_of(rows, "stack", f"{name}_ms").get("#1") for name in ("waiting", "serving")}
    series = [_line(name, normalised(curve)) for name, curve in of.items() if curve is not None]
    if series:
        series.append(printed("waiting", {8.0: 128.0}))
    return Figure(
        name="figure-7",
        title="Figure 7: waiting and serving relative to one CMP, workload #1",
        x_label="CMPs",
        y_label="relative to one CMP",
        kind="line",
        series=tuple(series),
        log_y=True,
    )


def _figure_8(by_use: Mapping[float, list[float]]) -> Figure:
    series: list[Series] = []
    if by_use:
        x = tuple(100.0 * use for use in by_use)
        y = tuple(mean(values) for values in by_use.values())
        told = {100.0 * use: part for use, part in PRINTED_USE.items()}
        series = [
            Series(label="64 Graph jobs", x=x, y=y),
            printed("64 Graph jobs", told),
        ]
    return Figure(
        name="figure-8",
        title="Figure 8: part of the time in contention, by memory in use",
        x_label="memory in use, %",
        y_label="part of the slices in which the disk is busy",
        kind="line",
        series=tuple(series),
    )


def _figure_14(curves: Mapping[str, Curve]) -> Figure:
    return Figure(
        name="figure-14",
        title="Figure 14: paced readers, normalised run time, by MB/s of a CMP",
        x_label="CMPs",
        y_label="T(k) / T(1)",
        kind="line",
        series=tuple(_line(f"{label} MB/s", normalised(c)) for label, c in curves.items()),
    )
