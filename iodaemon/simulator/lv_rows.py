"""What the rows of ``lv-workloads`` say, by target: gains against the first policy, by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from iodaemon.core.measure import mean
from iodaemon.simulator.experiment import Row
from iodaemon.simulator.table import group, numbers, where

PUBLISHED: Final = "dynamic+demand"
"""The published rule, told what the jobs want: what its printed values are held against."""
KERNEL: Final = "dynamic"
"""The same, told what the kernel counts."""
OURS: Final = "default"
EXPLICIT: Final = (1, 2, 3, 4, 5, 6)
IMPLICIT: Final = (7, 8, 9)
MIXED: Final = (10, 11, 12, 13, 14, 15)
NO_GAIN: Final = (3, 6, 10)
"""Workloads of whose throughput the paper says that there is no obvious benefit."""
LATENCY: Final = (1, 11)
"""Workloads of which the paper prints the latency."""
PERCENT: Final = 100.0
EQUAL: Final = 2.0
"""Up to so many percent of throughput two policies count as equal."""

By = Mapping[tuple[int, str], Sequence[Row]]
"""The sums of all seeds, by workload and policy."""


def by_workload(rows: Sequence[Row]) -> dict[tuple[int, str], list[Row]]:
    """The rows of kind ``run``, in the order of the tasks."""
    return group(where(rows, kind="run"), "workload", "policy")


def base_of(runs: By) -> str:
    """The policy that the others are compared with: the first."""
    return next(iter(runs))[1]


def ratios(runs: By, workload: int, policy: str, measure: str) -> list[float]:
    """The measure under the policy / under the first one, seed by seed; empty: not run."""
    base = runs.get((workload, base_of(runs)), ())
    own = runs.get((workload, policy), ())
    pairs = [(float(a[measure]), float(b[measure])) for a, b in zip(own, base, strict=False)]
    return [value / before for value, before in pairs if before > 0.0]


def increases(runs: By, workload: int, policy: str, measure: str) -> list[float]:
    """By how many percent it is more: throughput (eq. 3) and slowdown (eq. 4)."""
    return [PERCENT * (ratio - 1.0) for ratio in ratios(runs, workload, policy, measure)]


def reductions(runs: By, workload: int, policy: str, measure: str) -> list[float]:
    """By how many percent it is less: average run time (eq. 5) and latencies."""
    return [PERCENT * (1.0 - ratio) for ratio in ratios(runs, workload, policy, measure)]


def measured(rows: Sequence[Row]) -> dict[str, float]:
    """Our value of each target, as far as its workloads and policies have run."""
    runs = by_workload(rows)
    values: dict[str, float] = {
        "not-completed": sum(numbers(where(rows, kind="run"), "not_completed"))
    }
    for workload in (*EXPLICIT, *IMPLICIT, *MIXED):
        values |= _gains(runs, workload)
        values |= _beside(runs, workload)
    values |= _sheet(runs, values)
    for workload in LATENCY:
        values |= _latencies(runs, workload)
    values |= _fairness(runs)
    values |= _verdicts(runs)
    return values


def _gains(runs: By, workload: int) -> dict[str, float]:
    """Of the published rule: means, and the throughput of the seed with the least or the most."""
    throughput = increases(runs, workload, PUBLISHED, "throughput_per_s")
    if not throughput:
        return {}
    values = {
        f"T{workload}": mean(throughput),
        f"R{workload}": mean(reductions(runs, workload, PUBLISHED, "runtime_s")),
        f"S{workload}": mean(increases(runs, workload, PUBLISHED, "slowdown")),
    }
    if workload in NO_GAIN:
        values[f"T{workload}-every"] = max(throughput)
    else:
        values[f"T{workload}-every"] = min(throughput)
    return values


def _beside(runs: By, workload: int) -> dict[str, float]:
    """Told what the kernel counts; and ours."""
    values: dict[str, float] = {}
    if kernel := increases(runs, workload, KERNEL, "throughput_per_s"):
        values[f"K{workload}"] = mean(kernel)
    if ours := increases(runs, workload, OURS, "throughput_per_s"):
        values[f"B{workload}"] = mean(ours)
        values[f"B{workload}-runtime"] = mean(reductions(runs, workload, OURS, "runtime_s"))
    return values


def _sheet(runs: By, values: Mapping[str, float]) -> dict[str, float]:
    """Rows that speak of several workloads, or of one with another band."""
    same = {
        "L1": "T1",
        "L2": "R1",
        "L3": "T3",
        "L4-7": "T7",
        "L4-8": "T8",
        "L5": "T15",
        "L5-runtime": "R15",
    }
    found = {id_: values[of] for id_, of in same.items() if of in values}
    gains = {w: values[f"T{w}"] for w in (*EXPLICIT, *IMPLICIT, *MIXED) if f"T{w}" in values}
    if len(gains) == len(EXPLICIT) + len(IMPLICIT) + len(MIXED):
        found["L0-most"] = max(gains.values())
        found["L0-fewer"] = sum(gain < 0.0 for w, gain in gains.items() if w not in NO_GAIN)
    graphs = [increases(runs, w, PUBLISHED, "throughput_per_s") for w in IMPLICIT]
    if all(graphs):
        found["L4-order"] = float(
            all(eight > max(seven, nine) for seven, eight, nine in zip(*graphs, strict=True))
        )
    return found


def _latencies(runs: By, workload: int) -> dict[str, float]:
    waiting = reductions(runs, workload, PUBLISHED, "waiting_ms")
    serving = reductions(runs, workload, PUBLISHED, "serving_ms")
    if not waiting:
        return {}
    values = {
        f"W{workload}-fall": mean(waiting),
        f"V{workload}-fall": mean(serving),
        f"L7-{workload}": min(w - v for w, v in zip(waiting, serving, strict=True)),
    }
    for letter, measure in (("W", "waiting_ms"), ("V", "serving_ms")):
        for word, policy in (("os", base_of(runs)), ("dynamic", PUBLISHED)):
            values[f"{letter}{workload}-{word}"] = mean(numbers(runs[workload, policy], measure))
    return values


def _fairness(runs: By) -> dict[str, float]:
    """The largest change of Jain's index over seeds: below 0 it is hurt on every seed."""
    base, values = base_of(runs), {}
    for name, workloads in (("explicit", EXPLICIT), ("implicit", IMPLICIT), ("mixed", MIXED)):
        changes = [
            float(after["jain"]) - float(before["jain"])
            for w in workloads
            for after, before in zip(
                runs.get((w, PUBLISHED), ()), runs.get((w, base), ()), strict=False
            )
        ]
        if changes:
            values[f"L8-{name}"] = max(changes)
    heavier = [
        float(row["held_heavy"]) - float(row["held_light"])
        for w in MIXED
        for row in runs.get((w, PUBLISHED), ())
    ]
    if heavier:
        values["L8-heavy"] = min(heavier)
    return values


def _verdicts(runs: By) -> dict[str, float]:
    """In how many workloads ours has more, as much, and less throughput than no regulation."""
    gains = [
        mean(found)
        for w in (*EXPLICIT, *IMPLICIT, *MIXED)
        if (found := increases(runs, w, OURS, "throughput_per_s"))
    ]
    if not gains:
        return {}
    return {
        "B-better": float(sum(gain > EQUAL for gain in gains)),
        "B-equal": float(sum(abs(gain) <= EQUAL for gain in gains)),
        "B-worse": float(sum(gain < -EQUAL for gain in gains)),
    }
