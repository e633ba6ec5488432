"""StorAlloc, table 3: 256 configurations (targets S1 to S10), and a rule of ours beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from iodaemon.core.measure import mean
from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.storalloc import GB, SHAPES, Bookkeeping, Layout, layout
from iodaemon.simulator.storalloc_figures import all_figures
from iodaemon.simulator.storalloc_replay import Outcome
from iodaemon.simulator.storalloc_rows import PERCENT, at, measured
from iodaemon.simulator.storalloc_run import (
    OURS,
    RULES,
    Source,
    Tables,
    check_rules,
    outcome_of,
    placing_of,
    remarks_on,
    requests_of,
    run_rows,
)
from iodaemon.simulator.table import numbers, where


class Point(msgspec.Struct, frozen=True):
    """One configuration, with and without requeuing as far as both are wanted."""

    seed: int
    books: Bookkeeping
    rule: str
    tb: float
    layout: Layout
    is_split: bool
    retries: tuple[bool, ...]


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Every rule on every platform, split and unsplit, with and without requeuing.

    Attributes:
        policies: rules for allocation, with the books of the published simulator.
        beside: with correct books these are run as well, and ``policies``, split, without
            requeuing.
        rules: parameters of rules, by name.
        capacities_tb: of the whole platform.
        layouts: of it.
        block_bytes: of a split.
        splits: whether requests are split.
        retries: whether refused ones are requeued.
        books: of the rules in ``policies``.
        source: of the requests.
    """

    policies: tuple[str, ...] = RULES
    beside: tuple[str, ...] = OURS
    rules: Tables = {}
    capacities_tb: tuple[float, ...] = (8.0, 16.0, 32.0, 64.0)
    layouts: tuple[Layout, ...] = tuple(SHAPES)
    block_bytes: int = 200 * GB
    splits: tuple[bool, ...] = (False, True)
    retries: tuple[bool, ...] = (False, True)
    books: Bookkeeping = "artefact"
    source: Source = Source()

    def __post_init__(self) -> None:
        """Refuse rules that do not exist, and platforms of nothing."""
        check_rules((*self.policies, *self.beside), self.rules)
        if sorted(set(self.retries)) != list(self.retries):
            raise ValueError("retries must be false, true, or false and then true")
        for key in ("policies", "capacities_tb", "layouts", "splits", "retries"):
            if not getattr(self, key):
                raise ValueError(f"{key} must not be empty")
        if not all(0.0 < tb < 1e6 for tb in self.capacities_tb):
            raise ValueError("capacities_tb must be above 0")
        if self.block_bytes < GB:
            raise ValueError("block_bytes must be at least 1 GB")

    def remarks(self) -> Sequence[str]:
        """On the file of requests."""
        return remarks_on(self.source)

    def tasks(self, seeds: Sequence[int]) -> Sequence[Point]:
        """A platform, a rule, split or not: each."""
        return [point for seed in seeds for point in self._points(seed)]

    def _points(self, seed: int) -> Iterator[Point]:
        for tb in self.capacities_tb:
            for name in self.layouts:
                for rule in self.policies:
                    for is_split in self.splits:
                        yield Point(seed, self.books, rule, tb, name, is_split, self.retries)
                if self.beside and True in self.splits:
                    for rule in (*self.policies, *self.beside):
                        yield Point(seed, "correct", rule, tb, name, True, (False,))  # noqa: FBT003

    def run(self, task: Point) -> Sequence[Row]:
        """Of each run, and of each of its disks.

        Only a refused request in one part is requeued: where there is none, the run without
        requeuing is the one with it, to the last bit, and is not run twice.
        """
        rows: list[Row] = []
        outcome = self._outcome(task, retries=False)
        for retries in task.retries:
            if retries and outcome.refused > outcome.refused_split:
                outcome = self._outcome(task, retries=True)
            where: Row = {
                "seed": task.seed,
                "books": task.books,
                "rule": task.rule,
                "tb": task.tb,
                "layout": task.layout,
                "split": int(task.is_split),
                "retries": int(retries),
            }
            rows += run_rows(where, outcome)
        return rows

    def _outcome(self, task: Point, *, retries: bool) -> Outcome:
        placing = placing_of(
            task.rule,
            self.rules,
            block_bytes=self.block_bytes if task.is_split else None,
            bookkeeping=task.books,
            retries=retries,
        )
        requests = requests_of(self.source, task.seed)
        return outcome_of(layout(task.layout, task.tb), placing, requests, task.seed)

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """Targets S1 to S10, as far as what they speak of was run."""
        return measured(rows, self.books)

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Percent of sum_cap by platform, a column a rule: figure 4 in numbers."""
        ran = where(rows, kind="run", books=self.books, retries=0)
        return [
            {
                "kind": "summary",
                "split": "200 GB" if is_split else "no",
                "TB": tb,
                "layout": name,
                **{
                    rule: mean(numbers(at(ran, rule, tb, name, is_split=is_split), PERCENT))
                    for rule in self.policies
                },
            }
            for is_split in self.splits
            for tb in self.capacities_tb
            for name in self.layouts
        ]

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Figures 4 to 9, and one of ours."""
        return all_figures(rows, self.books)
