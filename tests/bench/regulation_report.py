"""The table of ``make bench-regulation``, from the runs that were made."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from bench_figure import median_interval
from outcome import Outcome

BEST = "best k"
ALL = "all at once"
SECOND = " (second batch)"


def table(outcomes: Sequence[Outcome]) -> str:
    """Makespans, one line a bed: medians, and ranges in brackets where there are several runs."""
    rules = columns(outcomes)
    heads = ["bed", "oracle k", "oracle", "all at once"]
    for rule in rules:
        heads += [rule]
    for rule in rules:
        heads += [] if rule == "none" else [f"{rule} / oracle", f"{rule} / none"]
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for bed, size in beds(outcomes):
        mine = [one for one in outcomes if (one.bed, one.size) == (bed, size)]
        best, best_runs = oracle(mine)
        cells = [f"{bed} ({size})", best, spread(best_runs), spread(all_at_once(mine))]
        cells += [spread(of(mine, rule)) for rule in rules]
        for rule in rules:
            if rule != "none":
                cells += [ratio(of(mine, rule), best_runs), ratio(of(mine, rule), of(mine, "none"))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def details(outcomes: Sequence[Outcome]) -> str:
    """What else there is to say of each policy, one line a bed and policy."""
    heads = (
        *("bed", "policy", "runs", "mean turnaround s", "Jain index of slowdowns"),
        *("latest job / none", "suspensions", "most at once"),
    )
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for bed, size in beds(outcomes):
        mine = [one for one in outcomes if (one.bed, one.size) == (bed, size)]
        best, best_runs = oracle(mine)
        named = [(f"oracle, {best}", best_runs)] if best_runs else []
        named += [(rule, of(mine, rule)) for rule in columns(mine)]
        for rule, runs in named:
            if not runs:
                continue
            pairs = paired(runs, of(mine, "none"))
            cells = [
                *(f"{bed} ({size})", rule, str(len(runs))),
                spread(runs, lambda one: one.turnaround_s),
                values([one.fairness(free) for one, free in pairs], 2),
                values([one.latest_ratio(free) for one, free in pairs], 2),
                values([float(one.suspensions) for one in runs], 0),
                values([float(one.most_at_once) for one in runs], 0),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tried(outcomes: Sequence[Outcome]) -> str:
    """The makespans of all numbers that the oracle tried, one line a bed."""
    lines = []
    for bed, size in beds(outcomes):
        mine = [one for one in outcomes if (one.bed, one.size) == (bed, size)]
        numbers = sorted({int(one.rule[2:]) for one in mine if is_fixed(one)})
        if numbers:
            found = [f"{n}: {spread(of(mine, f'k={n}'))}" for n in numbers]
            lines.append(f"- {bed} ({size}): {', '.join(found)}")
    return "\n".join(lines)


def beds(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Name and size of each, in the order of their first runs."""
    return list(dict.fromkeys((one.bed, one.size) for one in outcomes))


def columns(outcomes: Sequence[Outcome]) -> list[str]:
    """The policies in the order of their first runs, ``none`` before all."""
    names = dict.fromkeys(name(one) for one in outcomes if not is_fixed(one))
    return sorted(names, key=lambda rule: rule != "none")


def name(outcome: Outcome) -> str:
    """The column that it belongs to."""
    return outcome.rule + (SECOND if outcome.batch > 1 else "")


def is_fixed(outcome: Outcome) -> bool:
    """Whether the oracle made it."""
    return outcome.rule.startswith("k=")


def of(outcomes: Sequence[Outcome], column: str) -> list[Outcome]:
    """The runs of this column."""
    return [one for one in outcomes if name(one) == column]


def oracle(outcomes: Sequence[Outcome]) -> tuple[str, list[Outcome]]:
    """The fixed number under which this bed has the least median makespan, and its runs."""
    complete = [one for one in outcomes if is_fixed(one) and not one.is_cut]
    rules = dict.fromkeys(one.rule for one in complete)
    runs = {rule: of(complete, rule) for rule in rules}
    if not runs:
        return "-", []
    best = min(runs, key=lambda rule: statistics.median(one.makespan_s for one in runs[rule]))
    return best, runs[best]


def all_at_once(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The oracle's runs with as many at a time as there are jobs."""
    return [one for one in outcomes if is_fixed(one) and int(one.rule[2:]) == len(one.spans)]


def paired(runs: Sequence[Outcome], others: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """Each run beside the other of its round, or where there is none, beside the median one.

    A policy that was measured apart has no round in common with the others.
    """
    others = sorted((one for one in others if one.spans), key=lambda one: one.makespan_s)
    by_round = {one.round: one for one in others}
    pairs = [
        (one, by_round.get(one.round, others[(len(others) - 1) // 2])) for one in runs if others
    ]
    return [(one, other) for one, other in pairs if len(one.spans) == len(other.spans)]


def ratio(runs: Sequence[Outcome], others: Sequence[Outcome]) -> str:
    """Median of the ratios of makespans (its 95 % interval, bootstrap).

    A run is compared with the other one of its round, or where there is none, with the median of
    the others.
    """
    if not runs or not others:
        return "-"
    middle_s = statistics.median(one.makespan_s for one in others)
    by_round = {one.round: one.makespan_s for one in others}
    found = [one.makespan_s / by_round.get(one.round, middle_s) for one in runs]
    middle = f"{statistics.median(found):.2f}"
    if len(found) == 1:
        return middle
    low, high = median_interval(found)
    return f"{middle} ({low:.2f} to {high:.2f})"


def spread(
    runs: Sequence[Outcome], value: Callable[[Outcome], float] = lambda one: one.makespan_s
) -> str:
    """Median [lowest, highest]; what was given up is marked."""
    if runs and all(one.is_cut for one in runs):
        return f"> {max(one.limit_s for one in runs):.1f}"
    return values([value(one) for one in runs if not one.is_cut], 1)


def values(numbers: Sequence[float], digits: int) -> str:
    """Median [lowest, highest], the range where it has one."""
    if not numbers:
        return "-"
    middle, low, high = (
        f"{value:.{digits}f}" for value in (statistics.median(numbers), min(numbers), max(numbers))
    )
    return middle if low == high else f"{middle} [{low}, {high}]"
