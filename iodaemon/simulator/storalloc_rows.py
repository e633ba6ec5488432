"""What the targets of experiment ``storalloc`` are measured by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from iodaemon.core.measure import mean, standard_deviation
from iodaemon.simulator.experiment import Row
from iodaemon.simulator.storalloc_run import OURS, REFUSING, RULES, effect
from iodaemon.simulator.table import levels, mean_of, numbers, where

MULTI: Final = ("1NnD", "nN1D", "nNnD")
"""All layouts but the baseline."""
USUAL: Final = "nNnD"
PERCENT: Final = "allocated_percent"
SERVED: Final = "served_percent"
FAR: Final = 1.5
"""So many times the others' mean is "much more" (S9)."""
FAR_SD: Final = 2.0
"""And so many times their deviation."""
NEAR: Final = 3.0
"""Points within which two rules are about the same (S3)."""
_Values = dict[str, float | None]


def at(
    rows: Sequence[Row], rule: str, tb: float, layout: str = USUAL, *, is_split: bool = True
) -> list[Row]:
    """The runs of a rule on a platform, one a seed where the rest is alike."""
    return where(rows, kind="run", rule=rule, tb=tb, layout=layout, split=int(is_split))


def measured(rows: Sequence[Row], books: str) -> _Values:
    """Every value that the rows give.

    Args:
        rows: of all kinds.
        books: those of the runs that the paper has.
    """
    ran = where(rows, kind="run", books=books)
    first = where(ran, retries=0)
    found = {**_sizing(first), **_ordered(first), **_refusals(ran), **_fairness(rows, books)}
    found |= _given_back(first) | beside(where(rows, kind="run", books="correct"))
    return {id_: value for id_, value in found.items() if value is not None}


def _least(rows: Sequence[Row], key: str) -> float | None:
    return min(numbers(rows, key), default=None)


def _most(rows: Sequence[Row], key: str) -> float | None:
    return max(numbers(rows, key), default=None)


def _sizing(rows: Sequence[Row]) -> _Values:
    """S1 to S6, S10: how much is allocated."""
    found: _Values = {}
    baseline = where(rows, kind="run", rule=("random", "worst_fit"), layout="1N1D", split=0)
    for tb in (8, 16, 32, 64):
        found[f"S1-{tb}"] = mean_of(at(rows, "round_robin", tb, is_split=False), PERCENT)
    for tb in (32, 64):
        found[f"S2-{tb}"] = _least(where(baseline, tb=tb), PERCENT)
    for rule in RULES:
        found[f"S3-{rule}"] = mean_of(at(rows, rule, 8.0), PERCENT)
        found[f"S4-{rule}"] = mean_of(at(rows, rule, 16.0), PERCENT)
        take = _least if rule in REFUSING else mean_of
        found[f"S5-{rule}"] = take(at(rows, rule, 32.0), PERCENT)
    enough = where(rows, kind="run", tb=32.0, split=1, layout=USUAL)
    found["S5-refusing-failed"] = _most(where(enough, rule=REFUSING), "failed")
    found["S5-others-failed"] = _most(where(enough, rule=("random", "worst_fit")), "failed")
    found["S6"] = _least(where(rows, kind="run", tb=64.0, split=1), PERCENT)
    return {**found, **_layouts(rows)}


def _layouts(rows: Sequence[Row]) -> _Values:
    """S10, and what section 5.2 says of 16 TB on them."""
    found: _Values = {}
    multi = where(rows, kind="run", layout=MULTI)
    spreads = []
    for tb in levels(multi, "tb"):
        for rule in RULES:
            for split in (0, 1):
                cells = where(multi, tb=tb, rule=rule, split=split)
                means = [mean_of(where(cells, layout=name), PERCENT) for name in MULTI]
                some = [value for value in means if value is not None]
                if len(some) == len(MULTI):
                    spreads.append(max(some) - min(some))
    found["S10"] = max(spreads, default=None)
    middle = where(multi, tb=16.0, split=1)
    cells_of = [mean_of(where(middle, rule=rule), PERCENT) for rule in RULES]
    told = [value for value in cells_of if value is not None]
    found["F4-16-least"], found["F4-16-most"] = min(told, default=None), max(told, default=None)
    return found


def _ordered(rows: Sequence[Row]) -> _Values:
    """S3, S4, S9: what must hold on every seed."""
    found: _Values = {}
    checks: dict[str, tuple[float, Callable[[Mapping[str, Row]], bool]]] = {
        "S3-order": (8.0, _rises),
        "S4-order": (16.0, _random_is_least),
        "S9-order": (32.0, _is_fair),
    }
    for id_, (tb, check) in checks.items():
        held = []
        for seed in levels(rows, "seed"):
            runs = {rule: at(where(rows, kind="run", seed=seed), rule, tb) for rule in RULES}
            if all(runs.values()):
                held.append(check({rule: of_rule[0] for rule, of_rule in runs.items()}))
        if held:
            found[id_] = float(all(held))
    for rule in RULES:
        found[f"S9-{rule}"] = mean_of(at(rows, rule, 32.0), "max_alloc")
        found[f"S9-sd-{rule}"] = mean_of(at(rows, rule, 32.0), "max_alloc_sd")
    return found


def _rises(of: Mapping[str, Row]) -> bool:
    """Random < round-robin, about as best-bandwidth, < worst-fit."""
    random, turns, fit, bandwidth = (float(of[rule][PERCENT]) for rule in RULES)
    between = sorted((turns, bandwidth))
    return random < between[0] and between[1] < fit and between[1] - between[0] <= NEAR


def _random_is_least(of: Mapping[str, Row]) -> bool:
    values = [float(of[rule][PERCENT]) for rule in RULES]
    return values[0] < min(values[1:])


def _is_fair(of: Mapping[str, Row]) -> bool:
    """Best-bandwidth < round-robin <= random, and worst-fit far from all."""
    random, turns, fit, bandwidth = (float(of[rule]["max_alloc"]) for rule in RULES)
    deviation = [float(of[rule]["max_alloc_sd"]) for rule in RULES]
    others = max(deviation[0], deviation[1], deviation[3])
    return bandwidth < turns <= random and fit >= FAR * random and deviation[2] >= FAR_SD * others


def _refusals(rows: Sequence[Row]) -> _Values:
    """S7, S8, figure 9."""
    found: _Values = {}
    for_sure = where(rows, kind="run", rule=("random", "worst_fit"))
    refusing = where(rows, kind="run", rule=REFUSING, tb=8.0)
    if for_sure and refusing:
        never = not any(numbers(for_sure, "refused"))
        found["S7"] = float(never and all(numbers(refusing, "refused")))
    found["S8"], found["S8-delayed"] = _requeued(rows)
    split = where(rows, kind="run", split=1)
    for tb in (8, 16, 32):
        for rule in RULES:
            cell = where(split, tb=tb, rule=rule)
            found[f"F9-{tb}-{rule}-failed"] = _most_by_seed(cell, "failed_split")
            if rule in REFUSING:
                found[f"F9-{tb}-{rule}-refused"] = _most_by_seed(cell, "refused_split")
    return found


def _most_by_seed(rows: Sequence[Row], key: str) -> float | None:
    """The most over the runs of a seed, as figure 9 has it; the mean over the seeds."""
    most = [max(numbers(where(rows, kind="run", seed=seed), key)) for seed in levels(rows, "seed")]
    return mean(most) if most else None


def _requeued(rows: Sequence[Row]) -> tuple[float | None, float | None]:
    """The largest change of a mean by requeuing, in points, and the most requests put off."""
    keys = ("seed", "rule", "tb", "layout", "split")
    without = {
        tuple(row[key] for key in keys): float(row[PERCENT])
        for row in where(rows, kind="run", retries=0)
    }
    again = where(rows, kind="run", retries=1)
    changes = [abs(float(row[PERCENT]) - without[tuple(row[key] for key in keys)]) for row in again]
    return max(changes, default=None), _most(again, "delayed")


def _fairness(rows: Sequence[Row], books: str) -> _Values:
    """Figures 5 to 8 and table 5, row 1."""
    found: _Values = {}
    disks = where(rows, kind="disk", books=books, retries=0)
    for rule in RULES:
        multi = where(disks, rule=rule, split=1, layout=MULTI)
        for tb in (32, 64):
            found[f"F5-{tb}-{rule}"] = _mean_most(where(multi, tb=tb), "max_disk_use")
        enough = where(multi, tb=32.0)
        found[f"F6-mean-{rule}"] = mean_of(enough, "mean_alloc")
        found[f"F6-max-{rule}"] = mean_of(enough, "max_alloc")
        deviations = [
            standard_deviation(numbers(where(enough, seed=seed), "max_alloc"))
            for seed in levels(enough, "seed")
        ]
        found[f"F6-sd-{rule}"] = mean(deviations) if deviations else None
    whole = where(rows, kind="disk", books=books, tb=32.0)
    for rule in RULES[:3]:
        found[f"T5-1-{rule}"] = effect(whole, rule, "max_alloc")
        found[f"F7-{rule}"] = effect(whole, rule, "mean_alloc")
    return found


def _mean_most(rows: Sequence[Row], key: str) -> float | None:
    """The most of a seed's disks, the mean over the seeds."""
    most = [max(numbers(where(rows, kind="disk", seed=seed), key)) for seed in levels(rows, "seed")]
    return mean(most) if most else None


def _given_back(rows: Sequence[Row]) -> _Values:
    """How much of what counts as allocated was given back at once, another part having failed."""
    found: _Values = {}
    for tb in (8, 16):
        baseline = at(rows, "worst_fit", tb, "1N1D")
        found[f"G-{tb}-1N1D"] = _given(baseline)
        for rule in RULES:
            found[f"G-{tb}-{rule}"] = _given(at(rows, rule, tb))
    return found


def _given(rows: Sequence[Row]) -> float | None:
    whole, served = mean_of(rows, PERCENT), mean_of(rows, SERVED)
    return None if whole is None or served is None else whole - served


def beside(rows: Sequence[Row]) -> _Values:
    """With correct books: what is served, how fair it is, and whether a rule of ours is better."""
    found: _Values = {}
    for rule in (*RULES, *OURS):
        for tb in (8, 16, 32):
            found[f"C-{tb}-{rule}"] = mean_of(at(rows, rule, tb), SERVED)
        found[f"C-max-{rule}"] = mean_of(at(rows, rule, 32.0), "max_alloc")
        found[f"C-rate-{rule}"] = mean_of(at(rows, rule, 32.0), "mean_gb_per_s")
    for rule in OURS:
        for tb in (8, 16):
            found[f"B-{tb}-{rule}"] = _ahead(rows, rule, tb, SERVED, sign=1.0)
        found[f"B-rate-{rule}"] = _ahead(rows, rule, 32.0, "mean_gb_per_s", sign=1.0)
        found[f"B-max-{rule}"] = _ahead(rows, rule, 32.0, "max_alloc", sign=-1.0)
    return found


def _ahead(rows: Sequence[Row], rule: str, tb: float, key: str, *, sign: float) -> float | None:
    """By how much a rule is better than the best of the paper's four, the least over the seeds."""
    gains = []
    for seed in levels(rows, "seed"):
        of_seed = where(rows, kind="run", seed=seed)
        ours = numbers(at(of_seed, rule, tb), key)
        theirs = [value for each in RULES for value in numbers(at(of_seed, each, tb), key)]
        if ours and theirs:
            gains.append(sign * ours[0] - max(sign * value for value in theirs))
    return min(gains, default=None)
