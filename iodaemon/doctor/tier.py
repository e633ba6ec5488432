"""The disks of the configured storage tiers: whether they can be used, and how full they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from iodaemon.config.tier import (
    SHORTAGE,
    DiskTable,
    TierTable,
    describe_disk,
    find_obstacles,
    find_problems,
    find_shortage,
    limit_bytes,
)
from iodaemon.core.storage import DiskFacts
from iodaemon.doctor.finding import Finding, broken, judge
from iodaemon.node.tier_disk import probe_disks


def judge_disks(
    tables: Mapping[str, TierTable],
    facts: Mapping[str, DiskFacts],
    *,
    allocated: Mapping[str, int],
) -> Iterator[Finding]:
    """Each disk: all that would keep a daemon from starting, and what is short of what it says.

    Args:
        tables: as configured.
        facts: what was found at each path.
        allocated: what the running daemon has promised of each, bytes.
    """
    problems: dict[str, tuple[str, str]] = {}
    for cost, found in (
        ("the daemon does not start with it", find_problems(tables, facts)),
        ("no job can use its space there", find_obstacles(tables, facts, allocated)),
    ):
        for path, problem in found:
            problems.setdefault(path, (problem, cost))
    for name, table in tables.items():
        for disk in table.disk:
            if disk.path in problems:
                problem, cost = problems[disk.path]
                shown, _, remedy = problem.partition("; ")
                yield broken(f"tier {name}", shown, {"path": disk.path}, cost=cost, remedy=remedy)
                continue
            promised = allocated.get(os.path.normpath(disk.path), 0)
            yield _judge(name, disk, facts[disk.path], promised)


def _judge(tier: str, disk: DiskTable, found: DiskFacts, promised: int) -> Finding:
    shown = describe_disk(disk, found)
    values: dict[str, Any] = {
        "path": disk.path,
        "kind": found.kind,
        "capacity_bytes": limit_bytes(disk, found),
        "free_bytes": found.free_bytes,
        "promised_bytes": promised,
    }
    remedy = find_shortage(disk, found, promised)
    return judge(not remedy, f"tier {tier}", shown, values, cost=SHORTAGE, remedy=remedy)


def examine_tiers(
    tables: Mapping[str, TierTable], node: Mapping[str, Any] | None, *, is_shared: bool
) -> Iterator[Finding]:
    """All disks, as they are now.

    Args:
        tables: as configured.
        node: what the running daemon says of itself; None: none answers.
        is_shared: it has jobs of all users.
    """
    facts = _look(tables, is_shared=is_shared)
    yield from judge_disks(tables, facts, allocated=find_allocated(node or {}))


def find_allocated(node: Mapping[str, Any]) -> dict[str, int]:
    """What a daemon that says this of itself has promised of each disk, bytes."""
    allocated: dict[str, int] = {}
    for row in node.get("allocated", ()):
        allocated[row["disk"]] = allocated.get(row["disk"], 0) + row["size_bytes"]
    return allocated


def _look(tables: Mapping[str, TierTable], *, is_shared: bool) -> dict[str, DiskFacts]:
    paths = (disk.path for table in tables.values() for disk in table.disk)
    return probe_disks(paths, is_shared=is_shared)
