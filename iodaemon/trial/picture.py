"""What a trial found, as figures; and as bars of text where no figure can be drawn."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from iodaemon.simulator.experiment import Figure, Series
from iodaemon.simulator.table import ranged
from iodaemon.trial.comparing import Outcome
from iodaemon.trial.latency import Slice, Uncontended, latency_of
from iodaemon.trial.summary import MEASURES, Change, change_of, values_of

_BAR_WIDTH: Final = 40


def comparison_figures(outcome: Outcome) -> tuple[Figure, ...]:
    """All measures relative to the first policy; what requests went through; each job's time."""
    figures = [_relative(outcome), *_traces(outcome), _job_times(outcome)]
    return tuple(figure for figure in figures if figure.series)


def _relative(outcome: Outcome) -> Figure:
    """Each policy has one colour where a difference is claimed, and others where it is not."""
    base, *others = outcome.policies
    series = []
    for policy in others:
        pairs = [
            (measure, change_of(measure, outcome.runs, base=base, policy=policy))
            for measure in MEASURES
            if measure.short
        ]
        found = [
            (f"{measure.short} ({'more' if measure.is_higher_better else 'less'})", change)
            for measure, change in pairs
            if change.ratio
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
    found = [
        (each.at_s, latency)
        for each in slices
        if each.is_telling and (latency := latency_of([each], base_s)) is not None
    ]
    waits = name == "waiting"
    return Series(
        label=policy,
        x=tuple(at_s for at_s, _ in found),
        y=tuple(1000.0 * (each.waiting_s if waits else each.serving_s) for _, each in found),
    )


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


# -- bars of text ----------------------------------------------------------------------------------


def comparison_bars(outcome: Outcome) -> list[str]:
    """The median makespan and average run time of each policy as bars."""
    lines = []
    for measure in MEASURES:
        if measure.key in ("makespan_s", "average_runtime_s"):
            rows = {
                policy: statistics.median(values)
                for policy in outcome.policies
                if (values := values_of(outcome.runs, policy, measure.key))
            }
            lines += [measure.label, *bars(rows)]
    return lines


def bars(rows: Mapping[str, float]) -> list[str]:
    """One bar a line, the longest one 40 characters, with its value."""
    most = max(rows.values(), default=0.0) or 1.0
    width = max(map(len, rows), default=0)
    return [
        f"  {name.ljust(width)} {'█' * round(_BAR_WIDTH * value / most)} {value:.2f}"
        for name, value in rows.items()
    ]
