"""The arithmetic and the tables of the benchmarks: medians, ranges, ratios, targets."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

P95_NEEDS = 20
"""Fewer values than this have no 95th percentile worth a column."""

RESAMPLES = 10_000
"""Of a bootstrap: the ends of its interval then move by less than the third digit."""

T = TypeVar("T")


class Series(NamedTuple):
    """What was measured of one thing; the first of a section is ours, peers are compared to it."""

    name: str
    values: Sequence[float]
    unit: str
    is_peer: bool = False


class Check(NamedTuple):
    """A target: at most ``limit``, or at least if ``is_floor``."""

    what: str
    value: float
    limit: float
    unit: str
    is_floor: bool = False

    @property
    def is_met(self) -> bool:
        """True when the target is reached."""
        return self.value >= self.limit if self.is_floor else self.value <= self.limit


class Section(NamedTuple):
    """One target's measurements."""

    title: str
    series: Sequence[Series]
    checks: Sequence[Check]
    notes: Sequence[str] = ()


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def median_interval(values: Sequence[float], share: float = 0.95) -> tuple[float, float]:
    """Between these two the true median lies with this probability: percentile bootstrap.

    The same values give the same interval. Source: Efron, Annals of Statistics 7(1), 1979.
    """
    rng = random.Random(1)
    medians = [statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    rest = (1.0 - share) / 2.0
    return percentile(medians, rest), percentile(medians, 1.0 - rest)


def figure(value: float) -> str:
    """Three significant digits, no exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def alternate(
    variants: Mapping[str, Callable[[], T]], rounds: int, on_round: Callable[[int], object]
) -> dict[str, list[T]]:
    """Run all variants in turn, so many rounds; each round begins with another one."""
    names = list(variants)
    results: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        on_round(number)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(variants[name]())
    return results


def section_lines(section: Section) -> list[str]:
    """The section in Markdown: a table, its targets, its notes."""
    lines = [f"### {section.title}", ""]
    lines += ["| | median | p95 | min | max | ours : this |", "|---|---:|---:|---:|---:|---:|"]
    for series in section.series:
        lines.append(_row(series, section.series[0]))
    lines.append("")
    for check in section.checks:
        relation = ">=" if check.is_floor else "<="
        verdict = "met" if check.is_met else "**missed**"
        lines.append(
            f"- {check.what}: {figure(check.value)} {check.unit}, "
            f"target {relation} {figure(check.limit)}: {verdict}"
        )
    lines += [f"- {note}" for note in section.notes]
    return [*lines, ""]


def replace_section(page: str, section: Section, when: str) -> str:
    """The page with this section in the place of the one of its title; that one must be there.

    Args:
        page: Markdown.
        section: measured anew, alone.
        when: said below its table.
    """
    before, heading, rest = page.partition(f"### {section.title}\n")
    if not heading:
        raise ValueError(f"the page has no section {section.title!r}; write it as a whole first")
    ends = [place for mark in ("\n### ", "\n## ") if (place := rest.find(mark)) >= 0]
    lines = section_lines(section)
    new = "\n".join([*lines[:-1], f"- measured anew {when}", ""])
    return before + new + rest[min(ends, default=len(rest)) :]


def _row(series: Series, ours: Series) -> str:
    if not series.values:
        return f"| {series.name} | not measured | | | | |"
    median = statistics.median(series.values)
    has_p95 = len(series.values) >= P95_NEEDS
    ratio = ""
    if series.is_peer and ours.values and median:
        ratio = figure(statistics.median(ours.values) / median)
    cells = [
        f"{figure(median)} {series.unit}",
        figure(percentile(series.values, 0.95)) if has_p95 else "",
        figure(min(series.values)),
        figure(max(series.values)),
        ratio,
    ]
    return f"| {series.name} | {' | '.join(cells)} |"
