"""StorAlloc with feedback: placement moves the ends of jobs; nodes and space decided together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.core.measure import mean
from iodaemon.simulator.experiment import Figure, Row, Series
from iodaemon.simulator.storalloc import GB, Placing
from iodaemon.simulator.storalloc_feedback import Admission, Way
from iodaemon.simulator.storalloc_feedback_run import (
    ComputeNodes,
    check_row,
    draw_nodes,
    hastened,
    life_row,
    live,
    platform,
)
from iodaemon.simulator.storalloc_run import (
    OURS,
    RULES,
    Source,
    Tables,
    check_rules,
    placing_of,
    remarks_on,
    requests_of,
)
from iodaemon.simulator.table import group, levels, numbers, ranged, samples, where

SERVED: Final = "served_percent"
MARKS: Final = {
    ("open", 0): "fixed",
    ("open", 1): "open",
    ("apart", 0): "apart-fixed",
    ("apart", 1): "apart",
    ("together", 0): "together-fixed",
    ("together", 1): "together",
}
"""Admission and feedback of the main case: their names in ids and pictures."""
ENOUGH: Final = 100.0
"""Percent served of a capacity that suffices; and on every seed."""
_Values = dict[str, float | None]


def measured(rows: Sequence[Row], main: str) -> _Values:
    """Every value that the rows give.

    Args:
        rows: of all kinds.
        main: the id of the main case.
    """
    here = where(rows, kind="life", case=main)
    found = _invariants(rows)
    for (admission, feedback), mark in MARKS.items():
        ran = where(here, admission=admission, feedback=feedback)
        if not ran:
            continue
        found |= _of_way(ran, mark)
        for rule, of_rule in group(ran, "rule").items():
            found |= _of_rule(of_rule, rule, mark)
    for case, of_case in group(where(rows, kind="life"), "case").items():
        if case != main:
            found[f"case-{case}-served"] = mean(numbers(of_case, SERVED))
            found[f"case-{case}-huge"] = mean(numbers(of_case, "huge_run_stretch"))
    return found


def _invariants(rows: Sequence[Row]) -> _Values:
    """What must hold whatever comes out; 1: it does."""
    checks, ran = where(rows, kind="check"), where(rows, kind="life")
    found: _Values = {}
    if checks:
        same = numbers(checks, "same_without_contention")
        found["I-contention"] = float(all(same))
        storalloc = [value for value in numbers(checks, "same_as_storalloc") if value < 2.0]
        if storalloc:
            found["I-storalloc"] = float(all(storalloc))
            found["I-storalloc-runs"] = float(len(storalloc))
    if fixed := where(ran, feedback=0):
        found["I-fixed"] = float(all(row["most_run_stretch"] == 1.0 for row in fixed))
    if ran:
        found["I-later"] = min(numbers(ran, "least_run_stretch"))
        found["I-room"] = max(float(row["peak_tb"]) / float(row["tb"]) for row in ran)
        shares = [float(row[SERVED]) + float(row["fallback_percent"]) for row in ran]
        found["I-all"] = max(abs(share - 100.0) for share in shares)
    return found


def _of_way(rows: Sequence[Row], mark: str) -> _Values:
    """Means over rules and seeds, where the rules differ little; the peak is the most."""
    found: _Values = {f"makespan-{mark}": mean(numbers(rows, "makespan_s"))}
    sizes = levels(rows, "tb")
    for tb in sizes:
        cell = where(rows, tb=tb)
        if mark != "fixed":
            found[f"stretch-{mark}-{tb:g}"] = mean(numbers(cell, "stretch"))
        if not mark.endswith("fixed"):
            found[f"lost-{mark}-{tb:g}"] = mean(numbers(cell, "lost_node_h"))
    if not mark.endswith("-fixed"):
        found[f"peak-{mark}"] = max(numbers(where(rows, tb=sizes[-1]), "peak_tb"))
    return found


def _of_rule(rows: Sequence[Row], rule: str, mark: str) -> _Values:
    """By capacity, means over the seeds; the least capacity that suffices."""
    found: _Values = {}
    if mark.endswith("-fixed"):
        return found
    sizes = levels(rows, "tb")
    for tb in sizes:
        cell = where(rows, tb=tb)
        found[f"served-{mark}-{tb:g}-{rule}"] = mean(numbers(cell, SERVED))
        if mark == "open":
            found[f"run-{tb:g}-{rule}"] = mean(numbers(cell, "large_run_stretch"))
    enough = [tb for tb in sizes if min(numbers(where(rows, tb=tb), SERVED)) >= ENOUGH]
    found[f"enough-{mark}-{rule}"] = min(enough, default=None)
    return found


def summed(rows: Sequence[Row]) -> list[Row]:
    """A line a cell, means over the seeds."""
    keys = ("case", "rule", "tb", "admission", "feedback")
    columns = (
        *(SERVED, "refused", "failed", "stretch", "run_stretch", "large_run_stretch"),
        *("huge_run_stretch", "wait_s", "makespan_s", "lost_node_h", "peak_tb"),
    )
    return [
        {
            "kind": "summary",
            **{key: cell[0][key] for key in keys},
            **{column: mean(numbers(cell, column)) for column in columns},
        }
        for cell in group(where(rows, kind="life"), *keys).values()
    ]


def all_figures(rows: Sequence[Row], main: str) -> list[Figure]:
    """Those for which there are rows."""
    here = where(rows, kind="life", case=main)
    made = []
    for (admission, feedback), mark in MARKS.items():
        ran = where(here, admission=admission, feedback=feedback)
        if feedback or admission == "open":
            made.append(_by_size(f"served-{mark}", f"Served whole, {_words(mark)}", SERVED, ran))
        if feedback:
            title = f"How much longer those above 200 GB run, {_words(mark)}"
            made.append(_by_size(f"run-{mark}", title, "large_run_stretch", ran))
    made.append(_cases([row for row in rows if row["kind"] == "life" and row["case"] != main]))
    return [figure for figure in made if figure.series]


def _words(mark: str) -> str:
    """What a mark means."""
    return {
        "fixed": "all begin and end as recorded",
        "open": "all begin as recorded",
        "apart": "nodes first, then space",
        "together": "nodes and space together",
    }[mark]


def _by_size(name: str, title: str, key: str, rows: Sequence[Row]) -> Figure:
    """By capacity, a series a rule; the range is over seeds."""
    series = []
    for rule, of_rule in group(rows, "rule").items():
        cells = {f"{tb:g} TB": values for tb, values in samples(of_rule, "tb", key).items()}
        series.append(ranged(rule, cells))
    return Figure(
        name=name,
        title=title,
        x_label="capacity",
        y_label="% of sum_cap" if key == SERVED else "by recorded length",
        kind="point",
        series=tuple(series),
    )


def _cases(rows: Sequence[Row]) -> Figure:
    """How much longer the largest run, a bar a case; a series a rule and capacity."""
    series = []
    for (rule, tb), own in group(rows, "rule", "tb").items():
        cases = group(own, "case")
        means = [mean(numbers(each, "huge_run_stretch")) for each in cases.values()]
        series.append(Series(label=f"{rule}, {tb:g} TB", x=tuple(cases), y=tuple(means)))
    return Figure(
        name="cases",
        title="How much longer those above 8 TB run",
        x_label="",
        y_label="by recorded length",
        kind="bar",
        series=tuple(series),
        line_y=1.0,
    )


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A platform and a way of living.

    Attributes:
        id: for rows.
        storage_nodes: of the storage.
        disks: of each; whatever their number, the capacity is spread over them.
        tb: the capacity, where it is not one of several.
        haste: jobs come so many times as fast; their lengths stay.
        way: how jobs live.
    """

    id: str = "main"
    storage_nodes: int = 4
    disks: int = 2
    tb: float = 32.0
    haste: float = 1.0
    way: Way = Way()

    def __post_init__(self) -> None:
        """Refuse storage of nothing."""
        if self.storage_nodes < 1 or self.disks < 1:
            raise ValueError(f"case {self.id}: storage_nodes and disks must be at least 1")
        if not (0.0 < self.tb < math.inf and 0.0 < self.haste < math.inf):
            raise ValueError(f"case {self.id}: tb and haste must be above 0")


class Point(msgspec.Struct, frozen=True):
    """One run, or with ``is_check`` what must be the same."""

    seed: int
    case: str
    rule: str
    tb: float
    admission: Admission = "open"
    has_feedback: bool = True
    is_check: bool = False


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Every rule on every capacity, with and without feedback, by who begins when; and cases.

    Attributes:
        policies: rules for allocation.
        rules: parameters of rules, by name.
        capacities_tb: of the whole platform.
        admissions: who begins when.
        main: the platform of all that.
        cases: others, as they are.
        case_policies: rules of them.
        checks_tb: on these capacities it is checked that nothing differs where nothing should.
        block_bytes: of a split.
        compute: nodes of the jobs.
        source: of the requests.
    """

    policies: tuple[str, ...] = (*RULES, *OURS)
    rules: Tables = {}
    capacities_tb: tuple[float, ...] = (8.0, 16.0, 32.0, 64.0)
    admissions: tuple[Admission, ...] = ("open", "apart", "together")
    main: Case = Case()
    cases: tuple[Case, ...] = ()
    case_policies: tuple[str, ...] = ("best_bandwidth",)
    checks_tb: tuple[float, ...] = (32.0,)
    block_bytes: int = 200 * GB
    compute: ComputeNodes = ComputeNodes()
    source: Source = Source()

    def __post_init__(self) -> None:
        """Refuse rules that do not exist, and platforms of nothing."""
        check_rules((*self.policies, *self.case_policies), self.rules)
        for key in ("policies", "capacities_tb", "admissions"):
            if not getattr(self, key):
                raise ValueError(f"{key} must not be empty")
        sizes = (*self.capacities_tb, *self.checks_tb)
        if not all(0.0 < tb < 1e6 for tb in sizes):
            raise ValueError("capacities must be above 0 TB")
        names = [self.main.id, *(case.id for case in self.cases)]
        if len(set(names)) < len(names):
            raise ValueError("two cases have one id")
        if self.block_bytes < GB:
            raise ValueError("block_bytes must be at least 1 GB")
        for case in (self.main, *self.cases):
            if case.way.nodes < self.compute.most:
                raise ValueError(
                    f"case {case.id}: {case.way.nodes} nodes are less than a job may need, "
                    f"{self.compute.most}"
                )

    def remarks(self) -> Sequence[str]:
        """On the file of requests."""
        return remarks_on(self.source)

    def tasks(self, seeds: Sequence[int]) -> Sequence[Point]:
        """A run each, and the checks."""
        return [point for seed in seeds for point in self._points(seed)]

    def _points(self, seed: int) -> Iterator[Point]:
        main = self.main.id
        for rule in self.policies:
            for tb in self.capacities_tb:
                for admission in self.admissions:
                    for has_feedback in (False, True):
                        yield Point(seed, main, rule, tb, admission, has_feedback)
            for tb in self.checks_tb:
                yield Point(seed, main, rule, tb, is_check=True)
        for case in self.cases:
            for rule in self.case_policies:
                way = case.way
                yield Point(seed, case.id, rule, case.tb, way.admission, way.has_feedback)

    def run(self, task: Point) -> Sequence[Row]:
        """One row."""
        case = next(each for each in (self.main, *self.cases) if each.id == task.case)
        storage = platform(task.tb, case.storage_nodes, case.disks)
        requests = hastened(requests_of(self.source, task.seed), case.haste)
        placing = self._placing(task.rule)
        head: Row = {"seed": task.seed, "case": task.case, "rule": task.rule, "tb": task.tb}
        if task.is_check:
            return [check_row(head, storage, placing, requests, task.seed)]
        way = msgspec.structs.replace(
            case.way, admission=task.admission, has_feedback=task.has_feedback
        )
        nodes = draw_nodes(self.compute, requests, task.seed)
        jobs = live(storage, placing, way, requests, nodes, task.seed)
        head |= {"admission": task.admission, "feedback": int(task.has_feedback)}
        return [life_row(head, jobs, storage, self.block_bytes)]

    def _placing(self, rule: str) -> Placing:
        return placing_of(
            rule, self.rules, block_bytes=self.block_bytes, bookkeeping="correct", retries=False
        )

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """Rows of the table, as far as what they speak of was run."""
        return measured(rows, self.main.id)

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """A line a rule, capacity and admission; then one a case."""
        return summed(rows)

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Served share, how much longer jobs run, and what helps."""
        return all_figures(rows, self.main.id)
