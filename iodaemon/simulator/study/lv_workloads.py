"""Lv et al., table 3: fifteen workloads under the published rule, without it, and under ours."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.config import policy_search
from iodaemon.core.measure import mean
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.lv import Load, Server, Workload
from iodaemon.simulator.lv_run import Look, Way, averaged, find_ways, run_lv
from iodaemon.simulator.table import group, numbers, printed, ranged, where

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


POINTS = 120
"""So many points of a latency over time are kept."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One workload of one seed under one policy; of the first seed more is kept."""

    seed: int
    workload: Workload
    way: Way
    is_shown: bool


TOLD: Final = ("makespan_s", "waiting_ms", "serving_ms", "jain", "suspended_s")
"""Columns of a run whose means are in the summary."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Every workload under every policy.

    Attributes:
        policies: names or files; the first one is what the others are compared with. With
            ``+demand`` behind it the jobs' I/O is counted as demand.
        workloads: of table 3.
        load: the applications.
        server: the machine.
        jobs_of: of these workloads every job of the first seed is kept (figures 23, 24).
        latency_of: of these the latency over time (figures 18, 19, 21, 22).
        until_s: virtual time at which a run is cut off, for a policy that ends no job.
    """

    policies: tuple[str, ...]
    workloads: tuple[Workload, ...]
    load: Load
    server: Server = Server()
    jobs_of: tuple[int, ...] = ()
    latency_of: tuple[int, ...] = ()
    until_s: float = 60 * 86400.0

    def __post_init__(self) -> None:
        """Refuse what has no policy or no work, and applications that are not there."""
        if not self.policies or not self.workloads:
            raise ValueError("policies and workloads list at least one each")
        numbers = [workload.index for workload in self.workloads]
        if len(set(numbers)) < len(numbers):
            raise ValueError("workloads: each has its own index")
        for workload in self.workloads:
            self.load.check(workload)

    def tasks(self, seeds: Sequence[int]) -> Sequence[Task]:
        """A run each of every policy, workload and seed.

        Raises:
            ConfigError: a policy is not found or wrong, or two have one name.
        """
        ways = find_ways(self.policies, policy_search(os.environ))
        return [
            Task(seed=seed, workload=workload, way=way, is_shown=seed == seeds[0])
            for seed in seeds
            for workload in self.workloads
            for way in ways.values()
        ]

    def run(self, task: Task) -> Sequence[Row]:
        """The sums; of some workloads the jobs and the latency over time."""
        workload = task.workload
        outcome = run_lv(
            self.server,
            self.load.draw(workload, self.server, task.seed),
            task.way,
            timeslice_s=workload.timeslice_s,
            seed=task.seed,
            until_s=self.until_s,
        )
        head: Row = {"seed": task.seed, "workload": workload.index, "policy": task.way.label}
        rows: list[Row] = [{"kind": "run", **head, **outcome.sums}]
        if task.is_shown and workload.index in self.jobs_of:
            rows += [{"kind": "job", **head, **job} for job in outcome.jobs]
        if task.is_shown and workload.index in self.latency_of:
            rows += _latency_rows(head, outcome.looks)
        return rows

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float]:
        """Gains in percent, latencies, directions."""
        return measured(rows)

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Figures 16 to 24, and all policies beside each other."""
        return all_figures(rows)

    # -- beyond the protocol ------------------------------------------------------------------

    def remarks(self) -> Sequence[str]:
        """What each policy cannot do on this platform, one line each."""
        ways = find_ways(self.policies, policy_search(os.environ)).values()
        texts = (text for way in ways for text in way.rules.cautions(self.server.platform()))
        return list(dict.fromkeys(texts))

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """A row a workload and policy: means over the seeds."""
        runs = by_workload(rows)
        return [
            {
                "kind": "summary",
                "workload": workload,
                "policy": policy,
                "throughput": mean(increases(runs, workload, policy, "throughput_per_s")),
                "runtime": -mean(reductions(runs, workload, policy, "runtime_s")),
                "slowdown": mean(increases(runs, workload, policy, "slowdown")),
                **{key: mean(numbers(own, key)) for key in TOLD},
            }
            for (workload, policy), own in runs.items()
        ]


def _latency_rows(head: Row, looks: Sequence[Look]) -> list[Row]:
    return [{"kind": "latency", **head, **point} for point in averaged(looks, POINTS)]
