"""StorAlloc with feedback: placement moves the ends of jobs; nodes and space decided together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.storalloc import GB, Placing
from iodaemon.simulator.storalloc_feedback import Admission, Way
from iodaemon.simulator.storalloc_feedback_rows import all_figures, measured, summed
from iodaemon.simulator.storalloc_feedback_run import (
    ComputeNodes,
    check_row,
    draw_nodes,
    hastened,
    life_row,
    platform,
)
from iodaemon.simulator.storalloc_queue import live
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
        where: Row = {"seed": task.seed, "case": task.case, "rule": task.rule, "tb": task.tb}
        if task.is_check:
            return [check_row(where, storage, placing, requests, task.seed)]
        way = msgspec.structs.replace(
            case.way, admission=task.admission, has_feedback=task.has_feedback
        )
        nodes = draw_nodes(self.compute, requests, task.seed)
        jobs = live(storage, placing, way, requests, nodes, task.seed)
        where |= {"admission": task.admission, "feedback": int(task.has_feedback)}
        return [life_row(where, jobs, storage, self.block_bytes)]

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
