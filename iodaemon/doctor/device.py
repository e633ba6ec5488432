"""Which disks the paths are on, and whether the kernel counts what these do and what jobs need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.doctor.finding import Finding, judge, lacking, ok
from iodaemon.node.condition import not_counted
from iodaemon.node.devices import (
    PathDevice,
    find_device,
    leaf_devices,
    unaccounted_devices,
)
from iodaemon.node.feature import (
    AVAILABLE_MEMORY,
    COUNT_PRESSURE,
    IDLE_TIME,
    LOGICAL_BYTES,
    REFAULTS,
    USER_CPU,
    ProgressSource,
    find_sources,
)
from iodaemon.node.sampler.proc_files import known, parse_pressure, read_file

_FIELDS: Final = {17: "with discards and flushes", 15: "with discards", 11: "reads and writes"}
"""Fields of /proc/diskstats after the name: Linux 5.5, 4.18, and before."""
_NAME_WORDS: Final = 3


def probe_path(path: Path) -> PathDevice:
    """The layers below the path, which need not exist."""
    return find_device(path)


def judge_path(what: str, below: PathDevice) -> Finding:
    """Of a path: there is a disk whose load can be measured, or not.

    Args:
        what: which path this is.
        below: what was found.
    """
    shown = f"{below.path} is {below.description}"
    values = {"path": below.path, "disks": " ".join(device.id for device in below.devices)}
    return judge(
        bool(below.devices),
        what,
        shown,
        values,
        cost="the load of what lies below cannot be measured",
        remedy="keep the jobs' data on a disk of this machine",
    )


class Disks(msgspec.Struct, frozen=True, kw_only=True):
    """All leaf disks.

    Attributes:
        names: sorted.
        unaccounted: those whose I/O the kernel was told not to count.
        fields: of a line of /proc/diskstats, after the name; 0: there is no such file.
    """

    names: tuple[str, ...]
    unaccounted: tuple[str, ...]
    fields: int


def probe_disks() -> Disks:
    """Look at all of them."""
    lines = known("/proc/diskstats", bytes.splitlines, read_file) or []
    return Disks(
        names=tuple(device.id for device in leaf_devices()),
        unaccounted=unaccounted_devices(),
        fields=max((len(line.split()) - _NAME_WORDS for line in lines), default=0),
    )


def judge_disks(disks: Disks) -> Iterator[Finding]:
    """Whether they are counted, and how much is counted of each."""
    names = " ".join(disks.names) or "none"
    values = {"disks": names, "unaccounted": " ".join(disks.unaccounted)}
    if disks.unaccounted:
        fact, cure = not_counted(disks.unaccounted)
        yield lacking(
            "disk accounting",
            fact,
            values,
            cost="their load reads as nothing",
            remedy=cure,
        )
    elif disks.names:
        yield ok("disk accounting", f"{names}; switched on for all", values)
    else:
        yield lacking(
            "disk accounting",
            "no disk is to be seen here",
            values,
            cost="no rule that goes by the load of a disk acts",
            remedy="make /sys and /proc/diskstats visible (a container hides them)",
        )
    yield _judge_fields(disks.fields)


def _judge_fields(fields: int) -> Finding:
    known = next((count for count in _FIELDS if fields >= count), 0)
    shown = f"{fields} fields, {_FIELDS.get(known, 'too few to read')}"
    return judge(
        known >= 15,
        "diskstats",
        shown if fields else "there is no /proc/diskstats",
        {"fields": fields},
        cost="discards and flushes are not seen" if known else "no disk's load is measured",
        remedy="use Linux 5.5 or newer" if known else "systemd: leave ProcSubset= out",
    )


class Pressures(msgspec.Struct, frozen=True, kw_only=True):
    """Time lost by waiting since boot, s; None: not counted."""

    io_s: float | None
    memory_s: float | None


def probe_pressure() -> Pressures:
    """Read the stall times of the machine."""
    return Pressures(io_s=_read_stall("io"), memory_s=_read_stall("memory"))


def _read_stall(resource: str) -> float | None:
    return known(f"/proc/pressure/{resource}", parse_pressure)


def judge_pressure(found: Pressures) -> Finding:
    """Both are counted, or not.

    A machine that has read anything has waited for it: without any wait since boot it is hidden.
    """
    values = {"io_s": found.io_s, "memory_s": found.memory_s}
    if found.io_s == 0.0:
        return lacking(
            "pressure (PSI)",
            "/proc/pressure/io has counted no wait since boot (a container may hide it)",
            values,
            cost="rules that wait for pressure see none",
            remedy="make the machine's /proc/pressure visible",
        )
    if found.io_s is not None and found.memory_s is not None:
        shown = f"since boot {found.io_s:.1f} s for I/O, {found.memory_s:.1f} s for memory"
        return ok("pressure (PSI)", shown, values)
    return lacking(
        "pressure (PSI)",
        "/proc/pressure has nothing to say",
        values,
        cost="rules that wait for pressure see none",
        remedy=COUNT_PRESSURE,
    )


_CHECKED = REFAULTS, LOGICAL_BYTES, USER_CPU, IDLE_TIME, AVAILABLE_MEMORY
"""The stall times have a line of their own (``judge_pressure``)."""


def probe_progress(cgroup_home: str | None) -> frozenset[ProgressSource]:
    """Read each once; the cgroup is one in whose place jobs could have theirs."""
    return find_sources(Path("/"), cgroup_home)


def judge_progress(found: frozenset[ProgressSource]) -> Iterator[Finding]:
    """One finding a counter."""
    for source in _CHECKED:
        if source in found:
            yield ok(source.name, source.gives)
        else:
            yield lacking(source.name, "not counted", cost=source.cost, remedy=source.remedy)
