"""StorAlloc, table 4: SSDs and HDDs in one platform (targets S11, S12, table 5, rows 2 to 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.core.measure import mean
from iodaemon.simulator.experiment import Figure, Row
from iodaemon.simulator.storalloc import GB, Bookkeeping, NodeClass, storage_of
from iodaemon.simulator.storalloc_figures import boxes
from iodaemon.simulator.storalloc_run import (
    BASE,
    OURS,
    RULES,
    Source,
    Tables,
    check_rules,
    effect,
    outcome_of,
    placing_of,
    remarks_on,
    requests_of,
    run_rows,
)
from iodaemon.simulator.table import levels, numbers, where

SSD: Final = NodeClass(
    name="ssd", nodes=2, disks=5, capacity_bytes=1600 * GB, network_bytes_per_s=25e9
)
HDD: Final = NodeClass(
    name="hdd",
    nodes=4,
    disks=2,
    capacity_bytes=2000 * GB,
    read_bytes_per_s=0.10e9,
    write_bytes_per_s=0.05e9,
)
"""As in the published simulator's file; the paper's table 4 has 0.08 for both."""


class Point(msgspec.Struct, frozen=True):
    """One run."""

    seed: int
    books: Bookkeeping
    rule: str


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Every rule on two kinds of nodes, split, without requeuing, with both kinds of books.

    Attributes:
        policies: rules for allocation.
        rules: parameters of rules, by name.
        fast: nodes with the faster disks.
        slow: with the slower ones.
        block_bytes: of a split.
        books: that the targets are measured with.
        source: of the requests.
    """

    policies: tuple[str, ...] = (*RULES, *OURS)
    rules: Tables = {}
    fast: NodeClass = SSD
    slow: NodeClass = HDD
    block_bytes: int = 200 * GB
    books: Bookkeeping = "artefact"
    source: Source = Source()

    def __post_init__(self) -> None:
        """Refuse rules that do not exist."""
        check_rules(self.policies, self.rules)
        if not self.policies:
            raise ValueError("policies must not be empty")
        if self.fast.name == self.slow.name:
            raise ValueError("fast and slow must have names of their own")
        if self.block_bytes < GB:
            raise ValueError("block_bytes must be at least 1 GB")

    def remarks(self) -> Sequence[str]:
        """On the file of requests."""
        return remarks_on(self.source)

    def tasks(self, seeds: Sequence[int]) -> Sequence[Point]:
        """A run each."""
        kinds: tuple[Bookkeeping, ...] = ("artefact", "correct")
        return [
            Point(seed, books, rule) for seed in seeds for books in kinds for rule in self.policies
        ]

    def run(self, task: Point) -> Sequence[Row]:
        """Of the run, and of each disk."""
        placing = placing_of(
            task.rule,
            self.rules,
            block_bytes=self.block_bytes,
            bookkeeping=task.books,
            retries=False,
        )
        storage = storage_of((self.fast, self.slow))
        outcome = outcome_of(storage, placing, requests_of(self.source, task.seed), task.seed)
        return run_rows({"seed": task.seed, "books": task.books, "rule": task.rule}, outcome)

    def measure(self, rows: Sequence[Row]) -> Mapping[str, float | None]:
        """S11, S12, table 5; with correct books the same as report."""
        found: dict[str, float | None] = {}
        for books, mark in ((self.books, ""), ("correct", "-correct")):
            runs = where(rows, kind="run", books=books)
            disks = where(rows, kind="disk", books=books)
            for rule in self.policies:
                of_rule = where(runs, rule=rule)
                found[f"S11-{rule}{mark}"] = mean(numbers(of_rule, "allocated_percent"))
                found[f"R-{rule}{mark}"] = mean(numbers(of_rule, "mean_gb_per_s"))
                for name, kind in (("fast", self.fast), ("slow", self.slow)):
                    found[f"S12-{rule}-{name}{mark}"] = self._most(disks, rule, kind)
        disks = where(rows, kind="disk", books=self.books)
        if base := where(rows, kind="run", books=self.books, rule=BASE):
            found["S11-failed"] = mean(numbers(base, "failed_split"))
        return found | self._effects(disks) | self._preferences(disks)

    def _effects(self, disks: Sequence[Row]) -> dict[str, float | None]:
        """Table 5, rows 2 to 4."""
        found: dict[str, float | None] = {}
        parts = (("2", disks), ("3", self._of(disks, self.fast)), ("4", self._of(disks, self.slow)))
        for row, part in parts:
            for rule in self.policies:
                if rule in RULES and rule != BASE and BASE in self.policies:
                    found[f"T5-{row}-{rule}"] = effect(part, rule, "max_alloc")
        return found

    def _preferences(self, disks: Sequence[Row]) -> dict[str, float | None]:
        """S11's ratio, the least over the seeds; S12, on every seed."""
        found: dict[str, float | None] = {}
        means: dict[str, list[tuple[float, float]]] = {}
        for rule in self.policies:
            for seed in levels(disks, "seed"):
                here = where(disks, rule=rule, seed=seed)
                pair = [
                    mean(numbers(self._of(here, k), "max_alloc")) for k in (self.fast, self.slow)
                ]
                means.setdefault(rule, []).append((pair[0], pair[1]))
        if BASE in means:
            ratios = [fast / slow if slow else float("inf") for fast, slow in means[BASE]]
            found["S11-ratio"] = min((*ratios, 1e6))
        for rule, pairs in means.items():
            found[f"S12-{rule}"] = float(all(fast > slow for fast, slow in pairs))
        return found

    def _of(self, disks: Sequence[Row], kind: NodeClass) -> list[Row]:
        return [row for row in disks if str(row["node"]).startswith(kind.name)]

    def _most(self, disks: Sequence[Row], rule: str, kind: NodeClass) -> float | None:
        """The most allocations of a disk of this kind; the mean over the seeds."""
        of_rule = self._of(where(disks, rule=rule), kind)
        most = [
            max(numbers(where(of_rule, seed=seed), "max_alloc")) for seed in levels(of_rule, "seed")
        ]
        return mean(most) if most else None

    def summary(self, rows: Sequence[Row]) -> Sequence[Row]:
        """A line a rule and kind of books."""
        found: list[Row] = []
        for books in ("artefact", "correct"):
            disks = where(rows, kind="disk", books=books)
            for rule in self.policies:
                runs = where(rows, kind="run", books=books, rule=rule)
                found.append(
                    {
                        "kind": "summary",
                        "books": books,
                        "rule": rule,
                        "allocated": mean(numbers(runs, "allocated_percent")),
                        "served": mean(numbers(runs, "served_percent")),
                        "refused": mean(numbers(runs, "refused")),
                        "failed": mean(numbers(runs, "failed")),
                        "GB/s": mean(numbers(runs, "mean_gb_per_s")),
                        "most_fast": self._most(disks, rule, self.fast) or 0.0,
                        "most_slow": self._most(disks, rule, self.slow) or 0.0,
                    }
                )
        return found

    def figures(self, rows: Sequence[Row]) -> Sequence[Figure]:
        """Figures 10 and 11."""
        disks = where(rows, kind="disk", books=self.books)
        base = where(disks, rule=BASE)
        kinds: list[Row] = [
            {**row, "node": kind.name}
            for kind in (self.fast, self.slow)
            for row in self._of(disks, kind)
        ]
        made = [
            boxes(
                "figure-10-mean", "best-bandwidth, by node (Fig. 10)", "mean_alloc", base, "node"
            ),
            boxes("figure-10-max", "best-bandwidth, by node (Fig. 10)", "max_alloc", base, "node"),
            boxes("figure-11", "Most allocations, by kind (Fig. 11)", "max_alloc", kinds, "node"),
        ]
        return [figure for figure in made if figure.series]
