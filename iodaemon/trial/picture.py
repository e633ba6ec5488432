"""What a trial found, as figures; and as bars of text where no figure can be drawn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from iodaemon.simulator.experiment import Figure, Series
from iodaemon.simulator.series import ranged
from iodaemon.trial.comparing import Outcome
from iodaemon.trial.latency import Slice, Uncontended, latency_of
from iodaemon.trial.stacking import Stacked, Step, summarise
from iodaemon.trial.summary import MEASURES, Change, Run, change_of, values_of

BAR_WIDTH: Final = 40
_SHORT: Final[Mapping[str, str]] = {
    "throughput_per_s": "throughput",
    "slowdown": "slowdown",
    "average_runtime_s": "run time",
    "makespan_s": "makespan",
    "jain": "Jain index",
    "waiting_s": "waiting",
    "serving_s": "serving",
}
"""What is shown relative to the first policy; suspended time is 0 there."""
_LESS_IS_BETTER: Final = frozenset({"average_runtime_s", "makespan_s", "waiting_s", "serving_s"})


def comparison_figures(outcome: Outcome) -> tuple[Figure, ...]:
    """All measures relative to the first policy; what requests went through; each job's time."""
    figures = [_relative(outcome), *_traces(outcome), _job_times(outcome)]
    return tuple(figure for figure in figures if figure.series)


def _relative(outcome: Outcome) -> Figure:
    """Each policy has one colour where a difference is claimed, and others where it is not."""
    base, *others = outcome.policies
    series = []
    for policy in others:
        found = [
            (_axis_words(measure.key), change)
            for measure in MEASURES
            if measure.key in _SHORT
            and (change := change_of(measure, outcome.runs, base=base, policy=policy)).ratio
        ]
        for words in dict.fromkeys(_claim(change) for _, change in found):
            of_those = [(name, change) for name, change in found if _claim(change) == words]
            series.append(_bars_of(policy + words, of_those))
    return Figure(
        name="comparison",
        title=f"{outcome.workload}: relative to {base}, median and range of the rounds; (more) or "
        "(less) is better",
        x_label=series[0].label if len(series) == 1 else "",  # one alone has no legend
        y_label=f"times {base}",
        kind="bar",
        series=tuple(series),
        line_y=1.0,
    )


def _axis_words(key: str) -> str:
    """The measure, and which way is better."""
    return f"{_SHORT[key]} ({'less' if key in _LESS_IS_BETTER else 'more'})"


def _claim(change: Change) -> str:
    """What is said of the difference, after the policy's name; nothing where it is one."""
    match change.verdict:
        case "too few rounds":
            return ": too few rounds to tell"
        case "noise" | "same" | "unknown":
            return ": within the noise"
        case _:
            return ""


def _bars_of(label: str, found: Sequence[tuple[str, Change]]) -> Series:
    return Series(
        label=label,
        x=tuple(name for name, _ in found),
        y=tuple(change.ratio or 0.0 for _, change in found),
        low=tuple(change.low or 0.0 for _, change in found),
        high=tuple(change.high or 0.0 for _, change in found),
    )


def _traces(outcome: Outcome) -> tuple[Figure, ...]:
    """Over time, in the run of each policy with the middle makespan (figures 18 and 19)."""
    middle = {}
    for policy in outcome.policies:
        runs = sorted(
            (run.makespan_s, number)
            for number, run in enumerate(outcome.runs)
            if run.policy == policy
        )
        if runs:
            middle[policy] = outcome.slices[runs[(len(runs) - 1) // 2][1]]
    return tuple(
        Figure(
            name=name,
            title=f"{outcome.workload}: {name} time of requests, a run of the middle length",
            x_label="time, s",
            y_label=f"{name}, ms",
            kind="trace",
            series=tuple(
                _trace(policy, slices, name, outcome.alone)
                for policy, slices in middle.items()
                if any(each.is_telling for each in slices)
            ),
        )
        for name in ("waiting", "serving")
    )


def _trace(policy: str, slices: Sequence[Slice], name: str, base_s: Uncontended) -> Series:
    points = []
    for each in slices:
        latency = latency_of([each], base_s)
        if latency is not None and each.is_telling:
            value = latency.waiting_s if name == "waiting" else latency.serving_s
            points.append((each.at_s, 1000.0 * value))
    return Series(label=policy, x=tuple(at for at, _ in points), y=tuple(y for _, y in points))


def _job_times(outcome: Outcome) -> Figure:
    series = []
    for policy in outcome.policies:
        times: dict[str, list[float]] = {}
        for run in outcome.runs:
            for job in run.jobs if run.policy == policy else ():
                times.setdefault(job.name, []).append(job.run_s)
        if times:
            by_number = {float(number): each for number, each in enumerate(times.values(), start=1)}
            series.append(ranged(policy, by_number, statistics.median))
    return Figure(
        name="run-times",
        title=f"{outcome.workload}: run time of each job, median and range of the rounds",
        x_label="job, in the order of submission",
        y_label="run time, s",
        kind="point",
        series=tuple(series),
    )


def stack_figures(stacked: Stacked) -> tuple[Figure, ...]:
    """Figures 1 and 5 to 8 of Lv et al. for this machine."""
    steps = summarise(stacked.runs)
    kinds = tuple(dict.fromkeys(step.kind for step in steps))
    groups = {kind: [step for step in steps if step.kind == kind] for kind in kinds}
    figures = (
        Figure(
            name="figure-1",
            title=f"{stacked.workload}: normalized run time while sockets are added",
            x_label="sockets loaded",
            y_label="run time / run time on one socket",
            kind="line",
            series=tuple(
                Series(
                    label=kind,
                    x=tuple(float(step.sockets) for step in group),
                    y=tuple(step.normalized for step in group),
                    low=tuple(step.normalized_low for step in group),
                    high=tuple(step.normalized_high for step in group),
                )
                for kind, group in groups.items()
            ),
            line_y=1.0,
        ),
        _latency_figure("figure-5", "mean waiting time of requests", "waiting_s", groups),
        _latency_figure("figure-6", "mean serving time of requests", "serving_s", groups),
        _trend(groups),
        _memory(groups),
    )
    return tuple(figure for figure in figures if figure.series)


def _latency_figure(
    name: str, title: str, key: str, groups: Mapping[str, Sequence[Step]]
) -> Figure:
    return Figure(
        name=name,
        title=title,
        x_label="sockets loaded",
        y_label="ms",
        kind="line",
        series=tuple(
            series
            for kind, group in groups.items()
            if (series := _curve(kind, [(s.sockets, 1000.0 * v) for s, v in _known(group, key)])).x
        ),
    )


def _trend(groups: Mapping[str, Sequence[Step]]) -> Figure:
    """Both relative to one socket, on one axis."""
    series = []
    for kind, group in groups.items():
        for key, word in (("waiting_s", "waiting"), ("serving_s", "serving")):
            points = _known(group, key)
            if points and points[0][0].sockets == 1 and points[0][1] > 0.0:
                first = points[0][1]
                values = [(step.sockets, value / first) for step, value in points if value > 0.0]
                series.append(_curve(f"{kind}, {word}", values))
    return Figure(
        name="figure-7",
        title="waiting and serving time of requests, relative to one socket",
        x_label="sockets loaded",
        y_label="times one socket",
        kind="line",
        series=tuple(series),
        log_y=True,
        line_y=1.0,
    )


def _memory(groups: Mapping[str, Sequence[Step]]) -> Figure:
    series = []
    for kind, group in groups.items():
        points = [
            (round(100.0 * step.used_ratio, 1), round(100.0 * value, 1))
            for step, value in _known(group, "contended_ratio")
            if step.used_ratio is not None
        ]
        if points:
            series.append(_curve(kind, points))
    return Figure(
        name="figure-8",
        title="memory in use and contention at the disk",
        x_label="most memory in use, % of all",
        y_label="time in contention, %",
        kind="point",
        series=tuple(series),
    )


def _known(group: Iterable[Step], key: str) -> list[tuple[Step, float]]:
    return [(step, value) for step in group if (value := getattr(step, key)) is not None]


def _curve(label: str, points: Sequence[tuple[float, float]]) -> Series:
    return Series(
        label=label, x=tuple(float(x) for x, _ in points), y=tuple(float(y) for _, y in points)
    )


# -- bars of text ----------------------------------------------------------------------------------


def comparison_bars(outcome: Outcome) -> list[str]:
    """The median makespan and average run time of each policy as bars."""
    lines = []
    for measure in MEASURES:
        if measure.key in ("makespan_s", "average_runtime_s"):
            rows = {
                policy: statistics.median(values_of(_of(outcome.runs, policy), measure.key))
                for policy in outcome.policies
                if _of(outcome.runs, policy)
            }
            lines += [measure.label, *bars(rows)]
    return lines


def stack_bars(stacked: Stacked) -> list[str]:
    """The normalized run time of each kind and step as bars."""
    steps = summarise(stacked.runs)
    rows = {f"{step.kind} on {step.sockets}": step.normalized for step in steps}
    return ["run time / run time on one socket", *bars(rows)]


def bars(rows: Mapping[str, float]) -> list[str]:
    """One bar a line, the longest one 40 characters, with its value."""
    most = max((value for value in rows.values() if math.isfinite(value)), default=0.0)
    width = max(map(len, rows), default=0)
    return [
        f"  {name.ljust(width)} {'█' * _length(value, most)} {value:.2f}"
        for name, value in rows.items()
    ]


def _length(value: float, most: float) -> int:
    if most <= 0.0 or not math.isfinite(value):
        return 0
    return max(0, round(BAR_WIDTH * value / most))


def _of(runs: Iterable[Run], policy: str) -> list[Run]:
    return [run for run in runs if run.policy == policy]
