"""Tiers of storage as the configuration declares them, and what must hold before they are used."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, cast

import msgspec
from msgspec import Meta

from iodaemon.core.job import DiskId, TierName
from iodaemon.core.storage import (
    AllocationRule,
    Disk,
    DiskFacts,
    DiskKind,
    Storage,
    StorageNode,
    Tier,
)
from iodaemon.errors import ConfigError
from iodaemon.registry import find_rule
from iodaemon.supervisor.disk_trouble import sentence
from iodaemon.units import format_bytes

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
RATES: Final[Mapping[DiskKind, tuple[float, float]]] = MappingProxyType(
    {
        "memory": (5e9, 5e9),
        "nvme": (3e9, 2e9),
        "ssd": (500e6, 450e6),
        "hdd": (150e6, 150e6),
    }
)
"""Read and write, bytes/s, of a usual one of its kind: what is assumed until it is configured."""
SIMULATED_BYTES: Final = 2**40
"""What a disk of the simulated backend has that does not say."""
SHORTAGE: Final = "jobs are promised space that others' files take"
"""What comes of it where a disk has not what jobs are promised of it."""
_OWN_RATIO: Final = 0.01
"""Of its size a filesystem may have for itself: lost+found, what xfs sets aside."""


Above0 = Annotated[float, Meta(gt=0)]
Above0Int = Annotated[int, Meta(gt=0)]


class DiskTable(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[[tier.NAME.disk]]``."""

    path: Annotated[str, Meta(description="a directory on a filesystem of its own")]
    capacity_bytes: Annotated[
        Above0Int | None,
        Meta(description="what jobs may have of it; none: what the filesystem has"),
    ] = None
    read_bytes_per_s: Annotated[
        Above0 | None, Meta(description="what it reads alone; none: as usual for its kind")
    ] = None
    write_bytes_per_s: Annotated[
        Above0 | None, Meta(description="what it writes alone; none: as usual for its kind")
    ] = None
    kind: Annotated[
        DiskKind | None,
        Meta(description="nvme, ssd, hdd or memory; none: as detected"),
    ] = None
    on_root: Annotated[
        bool, Meta(description="it is meant to be on the filesystem of /; else it is refused there")
    ] = False

    def __post_init__(self) -> None:
        """Refuse a place that depends on where the daemon was started."""
        if not self.path.startswith("/"):
            raise ValueError(f"path is {self.path!r}; write an absolute path")
        if "\0" in self.path:
            raise ValueError(f"path is {self.path!r}; no path has a NUL character, write another")
        if ":" in self.path:
            raise ValueError(
                f"path is {self.path!r}; choose one without ':', which parts the directories "
                "in $IOD_SCRATCH"
            )


class TierTable(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[tier.NAME]``."""

    rule: Annotated[
        str, Meta(description="which of its disks holds a job's space: the name of a rule")
    ] = "balanced"
    split_bytes: Annotated[
        Above0Int | None,
        Meta(description="a larger request is split into parts of so much; none: never"),
    ] = None
    bandwidth_bytes_per_s: Annotated[
        Above0 | None,
        Meta(description="between jobs and all its disks; none: what the disks write together"),
    ] = None
    staging_bytes_per_s: Annotated[
        Above0 | None,
        Meta(
            description="between it and the slowest tier; none: the lesser of their bandwidths",
        ),
    ] = None
    disk: Annotated[
        tuple[DiskTable, ...], Meta(description="[[tier.NAME.disk]]: where space is made")
    ] = ()


def check_tiers(tables: Mapping[str, TierTable]) -> None:
    """What can be said without a look at the machine.

    Raises:
        ValueError: names that cannot be, a tier without disks that is not the last, and the like.
    """
    seen: dict[str, str] = {}
    for number, (name, table) in enumerate(tables.items(), start=1):
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"[tier.{name}]: write a name of small letters, digits, - and _")
        if not table.disk and number < len(tables):
            raise ValueError(
                f"[tier.{name}] has no disk; only the last, the slowest, may be without"
            )
        if not table.disk and table.bandwidth_bytes_per_s is None:
            raise ValueError(f"[tier.{name}] has no disk, so it has to say its bandwidth")
        for disk in table.disk:
            path = os.path.normpath(disk.path)
            if path in seen:
                raise ValueError(
                    f"[tier.{name}] has disk {path}, which is in [tier.{seen[path]}] already"
                )
            seen[path] = name


def find_problems(
    tables: Mapping[str, TierTable], facts: Mapping[str, DiskFacts]
) -> Iterator[tuple[str, str]]:
    """What is wrong with the disks: the disk's path, and a line with what to do.

    Args:
        tables: as configured.
        facts: what was found at each path.
    """
    first: dict[str, str] = {}
    for name, table in tables.items():
        for disk in table.disk:
            found = facts[disk.path]
            troubles = [found.problem] if found.problem else _misfits(name, disk, found, first)
            for trouble in troubles:
                yield disk.path, sentence(disk.path, trouble, name)


def find_obstacles(
    tables: Mapping[str, TierTable],
    facts: Mapping[str, DiskFacts],
    promised: Mapping[str, int] = MappingProxyType({}),
) -> Iterator[tuple[str, str]]:
    """What keeps jobs from using disks with which the daemon starts; as ``find_problems``.

    Args:
        tables: as configured.
        facts: what was found at each path.
        promised: what jobs were promised of each disk, bytes. Who was promised all of it may fill
            it.
    """
    for name, table in tables.items():
        for disk in table.disk:
            found = facts[disk.path]
            has_more = promised.get(os.path.normpath(disk.path), 0) < limit_bytes(disk, found)
            if obstacle := found.obstacle or (found.lack if has_more else ""):
                yield disk.path, sentence(disk.path, obstacle, name)


def _misfits(name: str, disk: DiskTable, found: DiskFacts, first: dict[str, str]) -> Iterator[str]:
    """Why a disk that works is not the one that was meant.

    Args:
        name: of its tier.
        disk: as configured.
        found: what was found there.
        first: which disk was the first on each filesystem; this one is added.
    """
    if found.is_on_root and not disk.on_root:
        yield (
            "is on the filesystem of /; mount what belongs there, or write on_root = true for it"
        )
    other = first.setdefault(found.filesystem, f"disk {disk.path} of tier {name}")
    if not other.startswith(f"disk {disk.path} of"):
        yield (
            f"is on the same filesystem as {other}, whose space would be promised twice; give "
            "each disk a filesystem of its own"
        )
    if disk.capacity_bytes is not None and disk.capacity_bytes > found.total_bytes:
        has, wants = format_bytes(found.total_bytes), format_bytes(disk.capacity_bytes)
        yield (
            f"is to have {wants}, and its filesystem has {has}; write no more than that, or "
            "leave capacity out"
        )


def describe_disk(table: DiskTable, found: DiskFacts) -> str:
    """What it is, and has."""
    root = ", on the filesystem of /" if found.is_on_root else ""
    limit, free = format_bytes(limit_bytes(table, found)), format_bytes(found.free_bytes)
    what = f"{table.path}: {found.kind}, {found.description}"
    return f"{what}; {limit} for jobs, {free} free{root}"


def limit_bytes(table: DiskTable, found: DiskFacts) -> int:
    """What jobs may have of it."""
    return found.total_bytes if table.capacity_bytes is None else table.capacity_bytes


def others_bytes(table: DiskTable, found: DiskFacts, promised_bytes: int) -> int:
    """What others' files take of what jobs are promised, at least.

    Args:
        table: as configured.
        found: what was found there.
        promised_bytes: what jobs hold of it, written or not.
    """
    others = limit_bytes(table, found) - promised_bytes - found.free_bytes
    return others if others > _OWN_RATIO * found.total_bytes else 0


def find_shortage(table: DiskTable, found: DiskFacts, promised_bytes: int) -> str:
    """What to do where others' files take what jobs are promised; empty: they do not."""
    if not others_bytes(table, found, promised_bytes):
        return ""
    left = format_bytes(limit_bytes(table, found))
    return f"remove them, or set capacity to what is left of {left}"


def build_tiers(
    tables: dict[str, TierTable],
    facts: Mapping[str, DiskFacts] | None,
    promised: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Tier, ...]:
    """The tiers, fastest first.

    Args:
        tables: as configured.
        facts: what was found at each path; None: nothing is there, it is all pretended.
        promised: what jobs hold of each disk, bytes.

    Raises:
        ConfigError: a disk cannot be used, or a rule is not to be found.
    """
    if facts is not None:
        for _, problem in find_problems(tables, facts):
            raise ConfigError(problem)
    storages = {name: _storage(name, table, facts, promised) for name, table in tables.items()}
    bandwidths = {name: _bandwidth(table, storages[name]) for name, table in tables.items()}
    slowest = next(reversed(tables), None)
    return tuple(
        Tier(
            name=TierName(name),
            storage=storages[name],
            bandwidth_bytes_per_s=bandwidths[name],
            staging_bytes_per_s=_staging(table, bandwidths, name, slowest),
            split_bytes=table.split_bytes,
            rule=find_tier_rule(name, table),
        )
        for name, table in tables.items()
    )


def find_tier_rule(name: str, table: TierTable) -> AllocationRule[Any]:
    """The rule of a tier.

    Raises:
        ConfigError: there is none of this name.
    """
    try:
        return cast("AllocationRule[Any]", find_rule("allocation", table.rule)())
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"[tier.{name}]: rule: {error}") from error


def _storage(
    name: str,
    table: TierTable,
    facts: Mapping[str, DiskFacts] | None,
    promised: Mapping[str, int],
) -> Storage | None:
    if not table.disk:
        return None
    disks = tuple(
        _disk(disk, None if facts is None else facts[disk.path], promised) for disk in table.disk
    )
    return Storage(nodes=(StorageNode(id=name, disks=disks),))


def _disk(table: DiskTable, found: DiskFacts | None, promised: Mapping[str, int]) -> Disk:
    kind: DiskKind = table.kind or (found.kind if found is not None else "ssd")
    total = SIMULATED_BYTES if found is None else found.total_bytes
    read, write = RATES[kind]
    path = os.path.normpath(table.path)
    others = None if found is None else others_bytes(table, found, promised.get(path, 0))
    return Disk(
        id=DiskId(path),
        capacity_bytes=total if table.capacity_bytes is None else table.capacity_bytes,
        read_bytes_per_s=table.read_bytes_per_s or read,
        write_bytes_per_s=table.write_bytes_per_s or write,
        kind=kind,
        filesystem="" if found is None else found.filesystem,
        others_bytes=others,
    )


def _bandwidth(table: TierTable, storage: Storage | None) -> float:
    if table.bandwidth_bytes_per_s is not None:
        return table.bandwidth_bytes_per_s
    assert storage is not None, "a tier without disks says its bandwidth"
    return sum(disk.write_bytes_per_s for disk in storage.disks)


def _staging(
    table: TierTable, bandwidths: Mapping[str, float], name: str, slowest: str | None
) -> float:
    if table.staging_bytes_per_s is not None:
        return table.staging_bytes_per_s
    if slowest is None or name == slowest:
        return math.inf
    return min(bandwidths[name], bandwidths[slowest])
