"""One run of StorAlloc's simulation as rows of a table, and what is made of such rows."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from iodaemon.config import decode_table
from iodaemon.core.measure import cohens_d, mean, standard_deviation
from iodaemon.core.storage import Storage, StorageRequest
from iodaemon.errors import ConfigError
from iodaemon.registry import find_rule
from iodaemon.simulator.experiment import Row
from iodaemon.simulator.storalloc import GB, Bookkeeping, Placing, decide
from iodaemon.simulator.storalloc_file import read_requests
from iodaemon.simulator.storalloc_replay import Outcome, replay
from iodaemon.simulator.storalloc_trace import Trace, draw_requests
from iodaemon.simulator.table import levels, numbers, where

RULES: Final = ("random", "round_robin", "worst_fit", "best_bandwidth")
"""The paper's, in its order."""
OURS: Final = ("balanced",)
"""Beside them."""
REFUSING: Final = ("round_robin", "best_bandwidth")
"""Of the paper's, those that may refuse."""
BASE: Final = "best_bandwidth"
"""What Cohen's d is to."""
Tables = dict[str, dict[str, Any]]
"""Parameters of rules, by name, as in a policy file."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where the requests are from.

    Attributes:
        trace: laws.
        path: a file in place of them; empty: none.
        scheduler: the second file of a pair.
    """

    trace: Trace = Trace()
    path: str = ""
    scheduler: str = ""


@functools.lru_cache(maxsize=2)
def requests_of(source: Source, seed: int) -> tuple[StorageRequest, ...]:
    """The requests of a seed; those of a file are the same for all.

    Raises:
        RequestError: the file cannot be read.
    """
    if not source.path:
        return draw_requests(source.trace, seed)
    second = Path(source.scheduler) if source.scheduler else None
    return read_requests(Path(source.path), second).requests


def remarks_on(source: Source) -> tuple[str, ...]:
    """What of a file of requests was left out, one line each."""
    if not source.path:
        return ()
    second = Path(source.scheduler) if source.scheduler else None
    return read_requests(Path(source.path), second).problems


def placing_of(
    rule: str,
    tables: Mapping[str, Mapping[str, Any]],
    *,
    block_bytes: int | None,
    bookkeeping: Bookkeeping,
    retries: bool,
) -> Placing:
    """How requests are placed, with the rule of this name.

    Raises:
        ConfigError: there is no such rule, or it does not take its parameters.
    """
    type_ = find_rule("allocation", rule)
    made = decode_table(tables.get(rule, {}), type_, where=f"rules.{rule}")
    return Placing(
        rule=made,  # type: ignore[arg-type]
        block_bytes=block_bytes,
        bookkeeping=bookkeeping,
        retries=retries,
    )


def check_rules(names: Iterable[str], tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse rules that are none.

    Raises:
        ValueError: says which.
    """
    try:
        for name in names:
            placing_of(name, tables, block_bytes=None, bookkeeping="correct", retries=False)
    except ConfigError as error:
        raise ValueError(str(error)) from error


def outcome_of(
    storage: Storage, placing: Placing, requests: Sequence[StorageRequest], seed: int
) -> Outcome:
    """Both steps: place all, replay all."""
    return replay(storage, decide(storage, placing, requests, seed), placing.bookkeeping)


def run_rows(where: Row, outcome: Outcome) -> list[Row]:
    """A row of kind ``run``, and one of kind ``disk`` each.

    Args:
        where: what the run was of; begins every row.
        outcome: of it.
    """
    use = outcome.disks
    whole: Row = {
        "allocated_percent": outcome.allocated_percent,
        "served_percent": outcome.served_percent,
        "requests": outcome.requests,
        "parts": outcome.parts,
        "delayed": outcome.delayed,
        "requeued": outcome.requeued,
        "split_requests": outcome.split,
        "allocated": outcome.allocated,
        "refused": outcome.refused,
        "refused_parts": outcome.refused_parts,
        "refused_split": outcome.refused_split,
        "failed": outcome.failed,
        "failed_split": outcome.failed_split,
        "max_concurrent": outcome.max_concurrent,
        "mean_gb_per_s": outcome.mean_bytes_per_s / GB,
        "mean_disk_use": mean([disk.mean_disk_use for disk in use]),
        "max_disk_use": max(disk.max_disk_use for disk in use),
        "mean_alloc": mean([disk.mean_alloc for disk in use]),
        "max_alloc": mean([disk.max_alloc for disk in use]),
        "max_alloc_sd": standard_deviation([disk.max_alloc for disk in use]),
    }
    rows: list[Row] = [{"kind": "run", **where, **whole}]
    rows += (
        {
            "kind": "disk",
            **where,
            "disk": str(disk.disk),
            "node": disk.node,
            "mean_disk_use": disk.mean_disk_use,
            "max_disk_use": disk.max_disk_use,
            "mean_alloc": disk.mean_alloc,
            "max_alloc": disk.max_alloc,
        }
        for disk in use
    )
    return rows


def effect(rows: Sequence[Row], rule: str, key: str) -> float | None:
    """Cohen's d of a column of disks, this rule's to best-bandwidth's: of each seed, then the mean.

    Args:
        rows: of kind ``disk``, alike but for rule and seed.
        rule: whose.
        key: of which column.
    """
    found = []
    for seed in levels(rows, "seed"):
        of_seed = where(rows, kind="disk", seed=seed)
        ours = numbers(where(of_seed, rule=rule), key)
        base = numbers(where(of_seed, rule=BASE), key)
        d = cohens_d(ours, base)
        if d is not None:
            found.append(d)
    return mean(found) if found else None
