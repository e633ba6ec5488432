"""Lv et al., section 2 and figure 14: CMP stacking, memory in use, and paced readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.job import JobSpec
from iodaemon.core.measure import lv_average_runtime_s, makespan_s, mean
from iodaemon.core.rule import Rules
from iodaemon.model.profile import Profile, Read
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import none
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.lv import Load, Piece, Server, Workload, draw_job
from iodaemon.simulator.lv_run import FULL, Way, run_lv
from iodaemon.simulator.run import Submission, simulate
from iodaemon.simulator.table import group, numbers, printed, ranged, samples, where

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


RULES: Final = Rules(
    name="none",
    admission=fcfs.Rule(),
    placement=least_io.Rule(),
    regulation=none.Rule(),
    max_suspend_s=None,
)
PACED_BYTES_PER_JOB_S: Final = 60.0
"""A paced reader alone takes so long."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one experiment.

    Attributes:
        seed: of the jobs.
        what: ``stack``: so many full CMPs; ``memory``: a full machine with that part of its memory
            in use; ``paced``: so many CMPs of paced readers.
        label: of the curve.
        sockets: CMPs.
        value: part of the memory, or MB/s of a CMP.
    """

    seed: int
    what: Literal["stack", "memory", "paced"]
    label: str
    sockets: int
    value: float = 0.0


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Stacking up CMPs, without regulation.

    Attributes:
        load: the applications.
        curves: workloads of table 2, in their order; ``jobs`` says nothing: every core has one.
        uses: parts of the memory of figure 8.
        memory_app: whose working set is made so large.
        period_s: sampling period of figure 8.
        groups_mb: of figure 14: what the eight readers of a CMP move together, MB/s.
        steps: numbers of CMPs of figures 1, 5, 6, 7.
        server: the machine.
    """

    load: Load
    curves: tuple[Workload, ...]
    uses: tuple[float, ...]
    memory_app: str
    groups_mb: tuple[float, ...]
    period_s: float = 30_000.0
    steps: tuple[int, ...] = (1, 2, 4, 8)
    server: Server = Server()

    def __post_init__(self) -> None:
        """Refuse applications that are not there, and steps that are none."""
        for workload in self.curves:
            self.load.check(workload)
        if self.memory_app not in self.load.apps:
            raise ValueError(f"memory_app: there is no {self.memory_app!r}")
        if not self.curves or not self.steps or min(self.steps) < 1:
            raise ValueError("curves and steps list at least one each, steps from 1 on")

    def tasks(self, seeds: Sequence[int]) -> Sequence[Task]:
        """Every step; nothing of the paced readers is drawn, so they are run once."""
        made = [
            Task(seed=seed, what="stack", label=f"#{curve.index}", sockets=step)
            for seed in seeds
            for curve in self.curves
            for step in self.steps
        ]
        full = self.server.sockets
        made += [
            Task(seed=seed, what="memory", label="use", sockets=full, value=use)
            for seed in seeds
            for use in self.uses
        ]
        return made + [
            Task(seed=seeds[0], what="paced", label=f"{rate:g}", sockets=number, value=rate)
            for rate in self.groups_mb
            for number in range(1, full + 1)
        ]

    def run(self, task: Task) -> Sequence[Row]:
        """One row."""
        run: Mapping[str, Any] = {
            "stack": self._stack,
            "memory": self._memory,
            "paced": self._paced,
        }
        head: Row = {
            "kind": task.what,
            "seed": task.seed,
            "label": task.label,
            "sockets": task.sockets,
            "value": task.value,
        }
        return [{**head, **run[task.what](task)}]

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float]:
        """Run times, latencies and where they begin to rise."""
        return measured(rows)

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Figures 1, 5 to 8 and 14."""
        return stacking_figures(rows)

    def _stack(self, task: Task) -> Row:
        curve = next(each for each in self.curves if f"#{each.index}" == task.label)
        full = msgspec.structs.replace(curve, jobs=task.sockets * self.server.slots)
        work = self.load.draw(full, self.server, task.seed)
        outcome = self._watched(work, curve.timeslice_s, task)
        keys = ("runtime_s", "waiting_ms", "serving_ms", "contended", "not_completed")
        first = outcome.jobs[: self.server.slots * min(self.steps)]
        row: Row = {key: outcome.sums[key] for key in keys}
        return {**row, "first_s": lv_average_runtime_s([float(job["run_s"]) for job in first])}

    def _memory(self, task: Task) -> Row:
        jobs = self.server.sockets * self.server.slots
        app = msgspec.structs.replace(
            self.load.apps[self.memory_app],
            resident_bytes=round(task.value * self.server.memory_bytes / jobs),
        )
        key = f"lv memory {task.value} {task.seed}"
        work = [
            draw_job(self.memory_app, app, self.load, self.server, key, number)
            for number in range(1, jobs + 1)
        ]
        outcome = self._watched(work, 20.0, task)
        seen = [look for look in outcome.looks if look.at_s <= self.period_s]
        return {
            "contended": mean([float(look.busy >= FULL) for look in seen]),
            "runtime_s": outcome.sums["runtime_s"],
        }

    def _watched(self, work: Sequence[Piece], timeslice_s: float, task: Task) -> Any:
        return run_lv(
            self.server,
            work,
            Way(label="none", rules=RULES, counting="kernel"),
            timeslice_s=timeslice_s,
            seed=task.seed,
            until_s=365 * 86400.0,
            sockets=task.sockets,
        )

    def _paced(self, task: Task) -> Row:
        """Readers that hold themselves to a rate; each reads its file once."""
        rate = task.value * 1e6 / self.server.slots
        read = Read(round(rate * PACED_BYTES_PER_JOB_S), cap_bytes_per_s=rate)
        jobs: list[Submission] = [
            (0.0, JobSpec(command=("paced",)), Profile(steps=(read,)))
            for _ in range(task.sockets * self.server.slots)
        ]
        platform, model = self.server.platform(task.sockets), self.server.model("kernel")
        result = simulate(platform, RULES, jobs, model=model, sampling=False)
        times = [(job.ended_s or 0.0) - (job.started_s or 0.0) for job in result.jobs]
        return {"runtime_s": lv_average_runtime_s(times), "makespan_s": makespan_s(result.jobs)}
