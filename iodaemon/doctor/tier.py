"""The disks of the configured storage tiers: whether they can be used, and how full they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from iodaemon.backend.linux.tier_disk import probe_disk
from iodaemon.config.tier import TierTable, find_problems
from iodaemon.core.tier import DiskFacts
from iodaemon.doctor.finding import Finding, broken, lacking, ok
from iodaemon.units import format_bytes


def probe_disks(tables: Mapping[str, TierTable]) -> dict[str, DiskFacts]:
    """Look at the path of each."""
    return {disk.path: probe_disk(disk.path) for table in tables.values() for disk in table.disk}


def judge_disks(
    tables: Mapping[str, TierTable],
    facts: Mapping[str, DiskFacts],
    *,
    root_filesystem: str,
    allocated: Mapping[str, int],
) -> Iterator[Finding]:
    """Each disk: all that would keep a daemon from starting, and what is short of what it says.

    Args:
        tables: as configured.
        facts: what was found at each path.
        root_filesystem: that of ``/``.
        allocated: what the running daemon has promised of each, bytes.
    """
    problems: dict[str, str] = {}
    for path, problem in find_problems(tables, facts):
        problems.setdefault(path, problem)
    for name, table in tables.items():
        for disk in table.disk:
            if disk.path in problems:
                shown, _, remedy = problems[disk.path].partition("; ")
                cost = "the daemon does not start with it"
                yield broken(f"tier {name}", shown, {"path": disk.path}, cost=cost, remedy=remedy)
                continue
            promised = allocated.get(os.path.normpath(disk.path), 0)
            found, capacity = facts[disk.path], disk.capacity_bytes
            yield _judge(name, disk.path, found, capacity, promised, root_filesystem)


def _judge(
    tier: str,
    path: str,
    found: DiskFacts,
    capacity: int | None,
    promised: int,
    root_filesystem: str,
) -> Finding:
    limit = found.total_bytes if capacity is None else capacity
    shown = (
        f"{path}: {found.kind}, {found.description}; {format_bytes(limit)} for jobs, "
        f"{format_bytes(found.free_bytes)} free"
    )
    values: dict[str, Any] = {
        "path": path,
        "kind": found.kind,
        "capacity_bytes": limit,
        "free_bytes": found.free_bytes,
        "promised_bytes": promised,
    }
    what = f"tier {tier}"
    if found.filesystem == root_filesystem:
        cost = "jobs' data fills the machine's own disk"
        remedy = "mount what belongs there, or lower its capacity"
        return lacking(
            what, f"{shown}; it is on the filesystem of /", values, cost=cost, remedy=remedy
        )
    if found.free_bytes < limit - promised:
        cost = "jobs are promised space that others' files take"
        remedy = f"remove them, or set capacity to what is left of {format_bytes(limit)}"
        return lacking(what, shown, values, cost=cost, remedy=remedy)
    return ok(what, shown, values)


def examine_tiers(
    tables: Mapping[str, TierTable], node: Mapping[str, Any] | None
) -> Iterator[Finding]:
    """All disks, as they are now.

    Args:
        tables: as configured.
        node: what the running daemon says of itself; None: none answers.
    """
    allocated: dict[str, int] = {}
    for row in (node or {}).get("allocated", ()):
        allocated[row["disk"]] = allocated.get(row["disk"], 0) + row["size_bytes"]
    root = str(os.stat("/").st_dev)
    yield from judge_disks(tables, probe_disks(tables), root_filesystem=root, allocated=allocated)
