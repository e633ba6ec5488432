"""What the rounds say together: medians with ranges, and whether a difference is more than noise.

Whether it is: policies are compared within each round, where both met the same machine. If a policy
made no difference, it would be as likely to be above as below the other in every round, by as much.
The share of all such changes of signs under which the mean difference is at least as large as the
one seen is the chance p of seeing it without any effect; at p of at most 0.05 it is told as one.
Fewer than six rounds cannot come that far (2 of 2^5 is 0.06), and nothing is claimed of them.

Source: Fisher, The Design of Experiments, 1935, section 21 (randomisation test of paired data).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from operator import mul
from typing import Final, Literal

import msgspec

from iodaemon.core.measure import (
    jain_index,
    lv_average_runtime_s,
    lv_slowdown,
    lv_throughput_per_s,
)

SIGNIFICANCE: Final = 0.05
LEAST_ROUNDS: Final = 6
"""Fewer pairs have no change of signs so rare: 2 / 2^n is at most 0.05 from there on."""
_ALL_SIGNS: Final = 14
"""Up to so many pairs all changes of signs are tried, of more of them a sample."""
_SAMPLE: Final = 1 << _ALL_SIGNS
_TIE: Final = 1e-12
"""Sums of the same differences in another order differ by less, as a part."""

Verdict = Literal["better", "worse", "more", "less", "noise", "too few rounds", "same", "unknown"]


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One column.

    Attributes:
        key: the field of ``Run``.
        label: for people, with the unit in which it is shown.
        short: where it is shown relative to the first policy; empty: nowhere, for it is 0 there.
        per_unit: the shown unit in base units: 0.001 for ms.
        is_higher_better: which way is good. None: neither, it is what the others are had for.
    """

    key: str
    label: str
    short: str
    per_unit: float = 1.0
    is_higher_better: bool | None = False


MEASURES: Final = (
    Measure(
        key="throughput_per_s",
        label="throughput, jobs/min",
        short="throughput",
        per_unit=1.0 / 60.0,
        is_higher_better=True,
    ),
    Measure(
        key="slowdown",
        label="slowdown (sum of alone/shared)",
        short="slowdown",
        is_higher_better=True,
    ),
    Measure(key="average_runtime_s", label="average run time, s", short="run time"),
    Measure(key="makespan_s", label="makespan, s", short="makespan"),
    Measure(
        key="jain", label="Jain index of alone/shared", short="Jain index", is_higher_better=True
    ),
    Measure(key="waiting_s", label="waiting at the disk, ms", short="waiting", per_unit=0.001),
    Measure(key="serving_s", label="serving by the disk, ms", short="serving", per_unit=0.001),
    Measure(key="suspended_s", label="suspended, s in all", short="", is_higher_better=None),
)


class JobTime(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a run: of which kind, its times from start to end, and suspended of that."""

    name: str
    kind: str
    run_s: float
    suspended_s: float = 0.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a whole workload under one policy.

    Attributes:
        round: from 1.
        throughput_per_s: eq. 3 of Lv et al.
        slowdown: eq. 4, more is better: as many as there are jobs when nobody is slowed down.
        average_runtime_s: eq. 5; suspended time counts.
        jain: index of the jobs' alone / shared: 1 when all are slowed down alike.
        suspended_s: of all jobs together.
        moved_bytes: by all jobs, where that is known.
        waiting_s: as the next ones of ``latency``; None: no disk is known, or it had nothing to do.
        used_ratio: most memory in use, of all the machine's; None: not known.
    """

    policy: str
    round: int
    makespan_s: float
    throughput_per_s: float
    slowdown: float
    average_runtime_s: float
    jain: float
    suspended_s: float
    suspensions: int
    moved_bytes: int
    waiting_s: float | None = None
    serving_s: float | None = None
    busy_s: float | None = None
    contended_ratio: float | None = None
    used_ratio: float | None = None
    jobs: tuple[JobTime, ...] = ()


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Median and range of a measure over the rounds."""

    median: float
    low: float
    high: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One policy against another in one measure.

    Attributes:
        rounds: in which both are known.
        ratio: median of policy / base within the rounds, ``low`` and ``high`` its range; None where
            base is 0.
        p: chance of a difference as large without any effect; None: no rounds.
        verdict: ``noise`` and ``too few rounds`` claim nothing.
    """

    measure: str
    policy: str
    base: str
    rounds: int
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    verdict: Verdict


def job_measures(
    jobs: Sequence[JobTime], alone_s: Mapping[str, float], makespan_s: float
) -> dict[str, float]:
    """Equations 3, 4 and 5 of Lv et al., and the Jain index, of the jobs of one run.

    ``alone_s`` is the run time alone by kind.
    """
    shared_s = [job.run_s for job in jobs]
    alone = [alone_s[job.kind] for job in jobs]
    return {
        "makespan_s": makespan_s,
        "throughput_per_s": lv_throughput_per_s(len(jobs), makespan_s),
        "slowdown": lv_slowdown(alone, shared_s),
        "average_runtime_s": lv_average_runtime_s(shared_s),
        "jain": jain_index([a / s for a, s in zip(alone, shared_s, strict=True)]),
        "suspended_s": sum(job.suspended_s for job in jobs),
    }


def spread_of(values: Sequence[float]) -> Spread | None:
    """Median and range; None for no values."""
    if not values:
        return None
    return Spread(median=statistics.median(values), low=min(values), high=max(values))


def values_of(runs: Iterable[Run], policy: str, key: str) -> list[float]:
    """What is known of a measure under one policy, in the order of the runs."""
    values = (getattr(run, key) for run in runs if run.policy == policy)
    return [value for value in values if value is not None]


def complete_rounds(runs: Sequence[Run], policies: Sequence[str]) -> tuple[Run, ...]:
    """The runs of the rounds in which every policy has its run."""
    seen: dict[int, set[str]] = {}
    for run in runs:
        seen.setdefault(run.round, set()).add(run.policy)
    return tuple(run for run in runs if seen[run.round].issuperset(policies))


def changes(runs: Sequence[Run], policies: Sequence[str]) -> tuple[Change, ...]:
    """Every other policy against the first one, in every measure; none of no runs."""
    base, *others = policies
    return tuple(
        change_of(measure, runs, base=base, policy=policy)
        for policy in (others if runs else ())
        for measure in MEASURES
    )


def change_of(measure: Measure, runs: Sequence[Run], *, base: str, policy: str) -> Change:
    """One policy against another in one measure, by the rounds in which both are known."""
    by_round: dict[int, dict[str, float | None]] = {}
    for run in runs:
        by_round.setdefault(run.round, {})[run.policy] = getattr(run, measure.key)
    pairs = [
        (first, second)
        for _, values in sorted(by_round.items())
        if (first := values.get(base)) is not None and (second := values.get(policy)) is not None
    ]
    ratios = [value / other for other, value in pairs if other > 0.0]
    spread = spread_of(ratios) if len(ratios) == len(pairs) else None
    p = chance(_differences(pairs)) if pairs else None
    return Change(
        measure=measure.key,
        policy=policy,
        base=base,
        rounds=len(pairs),
        ratio=None if spread is None else spread.median,
        low=None if spread is None else spread.low,
        high=None if spread is None else spread.high,
        p=p,
        verdict=_verdict(measure, pairs, p),
    )


def chance(differences: Sequence[float]) -> float:
    """The share of all changes of signs with a sum at least as far from 0 as this one.

    Args:
        differences: of pairs, at least one. Of more than 14 a sample of the changes is tried, the
            same one every time.
    """
    enough = abs(math.fsum(differences)) * (1.0 - _TIE)
    is_all = len(differences) <= _ALL_SIGNS
    rng = random.Random(1)  # noqa: S311 - no secret; the same values give the same answer
    changed: Iterable[Sequence[float]] = (
        product((1.0, -1.0), repeat=len(differences))
        if is_all
        else (rng.choices((1.0, -1.0), k=len(differences)) for _ in range(_SAMPLE))
    )
    sums = [abs(math.fsum(map(mul, signs, differences))) for signs in changed]
    found = sum(each >= enough for each in sums)
    return found / len(sums) if is_all else (found + 1) / (len(sums) + 1)


def _differences(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Of logarithms, for effects are parts; plain ones where there is a zero."""
    if all(min(pair) > 0.0 for pair in pairs):
        return [math.log(value) - math.log(base) for base, value in pairs]
    return [value - base for base, value in pairs]


def _verdict(measure: Measure, pairs: Sequence[tuple[float, float]], p: float | None) -> Verdict:
    if p is None:
        return "unknown"
    if all(base == value for base, value in pairs):
        return "same"
    if len(pairs) < LEAST_ROUNDS:
        return "too few rounds"
    if p > SIGNIFICANCE:
        return "noise"
    is_higher = math.fsum(_differences(pairs)) > 0.0
    if measure.is_higher_better is None:
        return "more" if is_higher else "less"
    return "better" if is_higher == measure.is_higher_better else "worse"
