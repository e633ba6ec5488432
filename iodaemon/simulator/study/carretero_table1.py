"""Carretero et al., ICS 2020, Table 1: eight list orders on one I/O node (figures 5 to 9)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.core.measure import stretch
from iodaemon.policy.list_order import ORDERS
from iodaemon.simulator.carretero import Application
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.kernel import Batch, Engine, finish_times
from iodaemon.simulator.packed import find_order
from iodaemon.simulator.table import group, where

BASE: Final = "fifo"
"""What makespans are relative to (figures 6 and 8)."""
FAIR: Final = ("stretch_oriented", "shortest_io", "longest_remaining", "bandwidth_oriented")
"""C1d: those with a much better maximum stretch than FIFO (section 6.1.2)."""
BEST: Final = ("stretch_oriented", "shortest_io", "longest_remaining")
"""C1f: "very good results" in makespan (section 6.1.2)."""
WORST_FIRST: Final = (
    "shortest_remaining",
    "longest_io",
    "fifo",
    "lowest_id",
    "bandwidth_oriented",
)
"""C1f-order: by falling makespan; then come the three of ``BEST``."""
MOST_DELAYED: Final = (3, 4)
"""C1g: the applications with the largest stretch (section 6.1.2)."""
DELAYING: Final = ("fifo", "lowest_id", "longest_io")
"""C1g: the orders for which it is asked; the paper says it of all "in general"."""


class Task(msgspec.Struct, frozen=True):
    """One order at one length of the workload."""

    policy: str
    batch: float


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """All applications at once on one I/O node, for each order and each number of batches.

    Attributes:
        jobs: Table 1.
        policies: list orders by name; one's own is ``my.module:function``.
        batches: factors of all iterations ("iteration batches"), each of which leaves every
            application whole ones; the measures are taken at 1.
        step_s: phases are rounded up to whole steps, as in a simulator with fixed increments;
            0: exact times.
        engine: how it is run.
    """

    jobs: tuple[Application, ...]
    policies: tuple[str, ...] = tuple(ORDERS)
    batches: tuple[float, ...] = (0.004, 0.02, 0.1, 0.5, 1.0, 4.0, 16.0, 64.0)
    step_s: float = 0.0
    engine: Engine = "auto"

    def __post_init__(self) -> None:
        """Refuse orders that do not exist, and batches that are none."""
        for policy in self.policies:
            try:
                find_order(policy)
            except ValueError as error:
                raise ValueError(f"policies: {error}") from error
        if not self.jobs or not self.policies or not self.batches:
            raise ValueError("jobs, policies and batches must not be empty")
        if not all(0.0 < batch < math.inf for batch in self.batches):
            raise ValueError("batches: every factor must be above 0")
        for batch in self.batches:
            for job in self.jobs:
                _whole_iterations(job, batch)
        if not 0.0 <= self.step_s < math.inf:
            raise ValueError(f"step_s is {self.step_s:g}; it must not be negative")

    def tasks(self, seeds: Sequence[int]) -> Sequence[Task]:
        """Every order at every length. Nothing is random: the seeds do not matter."""
        del seeds
        names = dict.fromkeys((*self.policies, BASE))
        return [Task(policy=name, batch=batch) for batch in self.batches for name in names]

    def run(self, task: Task) -> Sequence[Row]:
        """One row an application, and one for the run."""
        batch = Batch()
        for job in self.jobs:
            iterations = _whole_iterations(job, task.batch)
            batch.add_job(self._whole(job.compute_s), self._whole(job.io_s), iterations)
        batch.end_pack()
        order = find_order(task.policy)
        ends_s = finish_times(batch, order, engine=self.engine)
        phases = zip(batch.compute_s, batch.io_s, batch.iterations, strict=True)
        alone_s = [n * (w + v) for w, v, n in phases]
        stretches = [stretch(end, alone) for end, alone in zip(ends_s, alone_s, strict=True)]
        where: Row = {"policy": task.policy, "batch": task.batch}
        rows: list[Row] = [
            {"kind": "application", **where, "application": number, "end_s": end, "stretch": value}
            for number, (end, value) in enumerate(zip(ends_s, stretches, strict=True), start=1)
        ]
        rows.append(
            {"kind": "run", **where, "makespan_s": max(ends_s), "max_stretch": max(stretches)}
        )
        return rows

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """Targets C1, for the orders that were run and at one batch; C1i is not to be had."""
        worst = _table(rows, "max_stretch")
        ratio = _relative(_table(rows, "makespan_s"))
        at_one = {name: by_batch[1.0] for name, by_batch in worst.items() if 1.0 in by_batch}
        ratio_at_one = {name: by_batch[1.0] for name, by_batch in ratio.items() if 1.0 in by_batch}
        found: dict[str, float | None] = {"C1i": None}
        for key, name in (
            ("C1a", "shortest_remaining"),
            ("C1b", "longest_io"),
            ("C1c", "fifo"),
            ("C1e", "lowest_id"),
        ):
            if name in at_one:
                found[key] = at_one[name]
        if set(FAIR) <= at_one.keys():
            found["C1d"] = max(at_one[name] for name in FAIR)
        if ratio_at_one.keys() == ORDERS.keys():
            found |= _makespans(ratio_at_one)
        if set(DELAYING) <= at_one.keys():
            found["C1g"] = float(all(_delays_them(rows, name) for name in DELAYING))
        return found | _changes(worst)

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Figures 5 to 9; the one of the real machine has our line alone."""
        worst, ratio = _table(rows, "max_stretch"), _relative(_table(rows, "makespan_s"))
        made = [
            _lines("figure-5", "Maximum stretch (Fig. 5)", "maximum stretch", worst),
            _lines("figure-6", "Makespan relative to FIFO (Fig. 6)", "makespan / FIFO", ratio),
        ]
        made += [
            _applications(
                rows, f"figure-7-{name.replace(':', '-')}", f"Stretch, {name} (Fig. 7)", name
            )
            for name in self.policies
        ]
        longest = max(self.batches)
        bars = Series(
            label=f"{longest:g} batches",
            x=tuple(ratio),
            y=tuple(by_batch[longest] for by_batch in ratio.values()),
        )
        made.append(
            Figure(
                name="figure-8",
                title="Makespan relative to FIFO (Fig. 8)",
                x_label="",
                y_label="makespan / FIFO",
                kind="bar",
                series=(bars,),
                line_y=1.0,
            )
        )
        if "longest_io" in self.policies:
            title = "Stretch with longest I/O, simulated (Fig. 9)"
            made.append(_applications(rows, "figure-9", title, "longest_io"))
        return made

    def _whole(self, length_s: float) -> float:
        """The length in whole steps."""
        if self.step_s == 0.0:
            return length_s
        return math.ceil(length_s / self.step_s) * self.step_s


Table = dict[str, dict[float, float]]
"""A value by policy and batch."""


def _whole_iterations(job: Application, batch: float) -> int:
    """The iterations of so many batches: with a part of one the applications' lengths differ."""
    wanted = job.iterations * batch
    iterations = round(wanted)
    if iterations < 1 or not math.isclose(wanted, iterations, rel_tol=1e-9):
        raise ValueError(
            f"batches: {batch:g} of {job.iterations} iterations is {wanted:g}; "
            "it must be a whole number"
        )
    return iterations


def _table(rows: Sequence[Row], key: str) -> Table:
    return {
        policy: {float(row["batch"]): float(row[key]) for row in own}
        for policy, own in group(where(rows, kind="run"), "policy").items()
    }


def _relative(table: Table) -> Table:
    return {
        name: {batch: value / table[BASE][batch] for batch, value in by_batch.items()}
        for name, by_batch in table.items()
    }


def _makespans(ratio: Mapping[str, float]) -> dict[str, float]:
    """C1f: the two that are worse than FIFO, the three that are very good, and their order."""
    best = max(ratio[name] for name in BEST)
    others = [value for name, value in ratio.items() if name not in BEST]
    worse = min(ratio["shortest_remaining"], ratio["longest_io"])
    falling = [ratio[name] for name in WORST_FIRST]
    return {
        "C1f": float(worse > 1.0 and best <= min(others)),
        "C1f-order": float(all(a > b for a, b in itertools.pairwise([*falling, best]))),
        "C1f-shortest-remaining": ratio["shortest_remaining"],
        "C1f-longest-io": ratio["longest_io"],
        "C1f-lowest-id": ratio["lowest_id"],
        "C1f-bandwidth": ratio["bandwidth_oriented"],
        "C1f-best": best,
    }


def _changes(worst: Table) -> dict[str, float]:
    """C1h: the largest change of a maximum stretch from one batch, to more and to less."""
    found: dict[str, float] = {}
    if not all(1.0 in by_batch for by_batch in worst.values()):
        return found
    changes = {
        batch: max(abs(by_batch[batch] / by_batch[1.0] - 1.0) for by_batch in worst.values())
        for batch in next(iter(worst.values()))
    }
    if more := [change for batch, change in changes.items() if batch > 1.0]:
        found["C1h"] = max(more)
    if less := [change for batch, change in changes.items() if batch < 1.0]:
        found["C1h-below"] = max(less)
    return found


def _stretches(rows: Sequence[Row], policy: str) -> dict[int, dict[float, float]]:
    """By application, then by batch."""
    return {
        number: {float(row["batch"]): float(row["stretch"]) for row in own}
        for number, own in group(
            where(rows, kind="application", policy=policy), "application"
        ).items()
    }


def _delays_them(rows: Sequence[Row], policy: str) -> bool:
    """Whether applications 3 and 4 have the two largest stretches, at one batch."""
    stretches = {number: b[1.0] for number, b in _stretches(rows, policy).items()}
    others = [value for number, value in stretches.items() if number not in MOST_DELAYED]
    return all(stretches[number] > max(others) for number in MOST_DELAYED)


def _lines(
    name: str, title: str, y_label: str, table: Mapping[str, Mapping[float, float]]
) -> Figure:
    series = (
        Series(label=label, x=tuple(by_batch), y=tuple(by_batch.values()))
        for label, by_batch in table.items()
    )
    return Figure(
        name=name,
        title=title,
        x_label="iteration batches",
        y_label=y_label,
        kind="line",
        series=tuple(series),
        log_x=True,
    )


def _applications(rows: Sequence[Row], name: str, title: str, policy: str) -> Figure:
    table = {f"application {n}": b for n, b in _stretches(rows, policy).items()}
    return _lines(name, title, "stretch", table)
