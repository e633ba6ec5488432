"""The disks of the configured storage tiers: whether they can be used, and how full they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from iodaemon.backend.linux.tier_disk import probe_disk
from iodaemon.config.tier import (
    DiskTable,
    TierTable,
    describe_disk,
    find_problems,
    find_shortage,
    limit_bytes,
)
from iodaemon.core.tier import DiskFacts
from iodaemon.doctor.finding import Finding, broken, lacking, ok


def probe_disks(tables: Mapping[str, TierTable]) -> dict[str, DiskFacts]:
    """Look at the path of each."""
    return {disk.path: probe_disk(disk.path) for table in tables.values() for disk in table.disk}


def judge_disks(
    tables: Mapping[str, TierTable],
    facts: Mapping[str, DiskFacts],
    *,
    allocated: Mapping[str, int],
    obstacles: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> Iterator[Finding]:
    """Each disk: all that would keep a daemon from starting, and what is short of what it says.

    Args:
        tables: as configured.
        facts: what was found at each path.
        allocated: what the running daemon has promised of each, bytes.
        obstacles: what keeps jobs from using it though the daemon starts, and what to do.
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
            if disk.path in obstacles:
                shown, remedy = obstacles[disk.path]
                cost = "no job can use its space there"
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
    what = f"tier {tier}"
    shortage = find_shortage(disk, found, promised)
    if shortage is not None:
        return lacking(what, shown, values, cost=shortage.cost, remedy=shortage.remedy)
    return ok(what, shown, values)


def find_obstacle(path: str, *, is_shared: bool) -> tuple[str, str] | None:
    """What keeps jobs from having directories there, and what to do; None: nothing.

    The keeper makes them only where nobody else could lay something in their way, and a job's user
    has to pass through all that is above.

    Args:
        path: of a disk that can be looked at.
        is_shared: for jobs of all users.
    """
    found = os.stat(path)
    owners = {0} if is_shared else {0, os.geteuid()}
    is_sticky = bool(found.st_mode & stat.S_ISVTX)
    if found.st_uid not in owners or (found.st_mode & 0o022 and not is_sticky):
        mode = stat.S_IMODE(found.st_mode)
        shown = f"{path} belongs to uid {found.st_uid}, mode {mode:04o}: others may change it"
        return shown, f"chown {min(owners)} {path}; chmod go-w {path}"
    for place in (Path(path), *Path(path).parents) if is_shared else ():
        if not os.stat(place).st_mode & stat.S_IXOTH:
            return f"{path}: users may not pass through {place}", f"chmod o+x {place}"
    return None


def examine_tiers(
    tables: Mapping[str, TierTable], node: Mapping[str, Any] | None, *, is_shared: bool
) -> Iterator[Finding]:
    """All disks, as they are now.

    Args:
        tables: as configured.
        node: what the running daemon says of itself; None: none answers.
        is_shared: it has jobs of all users.
    """
    allocated: dict[str, int] = {}
    for row in (node or {}).get("allocated", ()):
        allocated[row["disk"]] = allocated.get(row["disk"], 0) + row["size_bytes"]
    facts, obstacles = probe_disks(tables), {}
    for path in (path for path, found in facts.items() if not found.problem):
        if (obstacle := find_obstacle(path, is_shared=is_shared)) is not None:
            obstacles[path] = obstacle
    yield from judge_disks(tables, facts, allocated=allocated, obstacles=obstacles)
