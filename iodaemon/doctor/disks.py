"""The disks: which ones paths are on, what is counted and was measured of them, what fits on them.

Those below the paths, all of the machine, the journal's, the output's, and those of storage tiers.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from iodaemon.calibration.record import Kept, find_problem, known_leaves
from iodaemon.calibration.store import AGAIN, load, why_unread
from iodaemon.config.tier import (
    SHORTAGE,
    TierTable,
    describe_disk,
    find_obstacles,
    find_problems,
    find_shortage,
    limit_bytes,
)
from iodaemon.core.storage import DiskFacts
from iodaemon.doctor.report import Finding, broken, judge, lacking, ok, parts_of
from iodaemon.doctor.scratch import existing_directory, scratch_directory
from iodaemon.errors import ConfigError
from iodaemon.node.condition import judge_free, not_counted
from iodaemon.node.devices import (
    MEMORY,
    NETWORK,
    PathDevice,
    find_device,
    find_identity,
    leaf_devices,
    unaccounted_devices,
)
from iodaemon.node.sampler.proc_files import known, read_file
from iodaemon.node.tier_disk import probe_disks
from iodaemon.units import format_bytes, format_rate

_FIELDS: Final = {17: "with discards and flushes", 15: "with discards", 11: "reads and writes"}
"""Fields of /proc/diskstats after the name: Linux 5.5, 4.18, and before."""
_NAME_WORDS: Final = 3
_COMMITS: Final = 20
_COMMIT_BYTES: Final = 4096
"""One page of SQLite's write-ahead log."""
_BUDGET_S: Final = 0.8
"""A disk under load may take a second for one commit; fewer of them are told then."""
_SLOW_MEDIAN_S: Final = 0.05
"""Twice the median beside four writers that fsync (28 ms, measured): a submit that is felt."""
_SLOW_WORST_S: Final = 0.5
_NO_FREE_BYTES: Final = 16 << 20
"""Below this a busy day's journal does not fit."""


def judge_path(what: str, below: PathDevice) -> Finding:
    """Whether the load of the disk below a path can be measured; ``what`` says which path."""
    return judge(
        bool(below.devices),
        what,
        f"{below.path} is {below.description}",
        {"path": below.path, "disks": " ".join(device.id for device in below.devices)},
        cost="the load of what lies below cannot be measured",
        remedy="keep the jobs' data on a disk of this machine",
    )


# -- what is counted of all disks ------------------------------------------------------------------


def check_disks() -> Iterator[Finding]:
    lines = known("/proc/diskstats", bytes.splitlines, read_file) or []
    fields = max((len(line.split()) - _NAME_WORDS for line in lines), default=0)
    names = [device.id for device in leaf_devices()]
    return judge_disks(names, unaccounted_devices(), fields)


def judge_disks(names: Sequence[str], unaccounted: Sequence[str], fields: int) -> Iterator[Finding]:
    """Whether they are counted, and how much is counted of each.

    Args:
        unaccounted: those whose I/O the kernel was told not to count.
        fields: of a line of /proc/diskstats, after the name; 0: there is no such file.
    """
    what, all_names = "disk accounting", " ".join(names) or "none"
    values = {"disks": all_names, "unaccounted": " ".join(unaccounted)}
    if unaccounted:
        fact, cure = not_counted(unaccounted)
        yield lacking(what, fact, values, cost="their load reads as nothing", remedy=cure)
    else:
        yield judge(
            bool(names),
            what,
            f"{all_names}; switched on for all" if names else "no disk is to be seen here",
            values,
            cost="no rule that goes by the load of a disk acts",
            remedy="make /sys and /proc/diskstats visible (a container hides them)",
        )
    level = next((count for count in _FIELDS if fields >= count), 0)
    shown = f"{fields} fields, {_FIELDS.get(level, 'too few to read')}"
    yield judge(
        level >= 15,
        "diskstats",
        shown if fields else "there is no /proc/diskstats",
        {"fields": fields},
        cost="discards and flushes are not seen" if level else "no disk's load is measured",
        remedy="use Linux 5.5 or newer" if level else "systemd: leave ProcSubset= out",
    )


# -- what was measured of them ---------------------------------------------------------------------

_WITHOUT: Final = "what a lone request takes is learned while jobs run, and guessed until then"
_RELOAD: Final = "'iod config reload'"


def check_calibration(state_dir: Path, node: Mapping[str, Any] | None) -> Iterator[Finding]:
    """By the word of the daemon that runs, else by what it would find."""
    if problem := (node or {}).get("calibration_problem"):
        shown, remedy = parts_of(problem)
        if _RELOAD not in remedy:
            remedy = f"{remedy}; then {_RELOAD}"
        shown = f"{shown}, when the daemon read it"
        yield broken("calibration", shown, cost=_WITHOUT, remedy=remedy)
        return
    kept = Kept()
    try:
        kept = load(state_dir)
    except PermissionError:
        if node is None:  # else it is that daemon's, which may read it
            raise
    except (ConfigError, OSError) as error:
        fact, remedy = parts_of(why_unread(state_dir, error))
        yield broken("calibration", fact, cost=_WITHOUT, remedy=remedy)
        return
    yield from judge_calibration(_probe(kept) if node is None else node.get("calibration", []))


def _probe(kept: Kept) -> list[dict[str, Any]]:
    """What is kept of the disks of this machine."""
    identities = {device.id: find_identity(device.id) for device in leaf_devices()}
    release = os.uname().release
    return [
        {
            "device": name,
            "measured_s": made.at_s,
            "loaded_bytes_per_s": made.loaded_bytes_per_s,
            "problem": find_problem(made, release),
        }
        for name, (made, _) in known_leaves(kept, identities).items()
    ]


def judge_calibration(rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Each disk that was measured, as in the answer of ``GET /v1/node``; that none was."""
    if not rows:
        yield lacking(
            "calibration",
            "no disk of this machine was measured",
            cost=_WITHOUT,
            remedy="'iod calibrate PATH' on a disk, when the machine is quiet",
        )
    for row in rows:
        when = time.strftime("%Y-%m-%d", time.localtime(row["measured_s"]))
        shown = f"{when}: {format_rate(row['loaded_bytes_per_s'])} with all sockets loaded"
        yield judge(
            not row["problem"],
            f"calibration of {row['device']}",
            f"{shown}; {row['problem']}" if row["problem"] else shown,
            {"device": row["device"], "measured_s": row["measured_s"]},
            cost="waits are held against what may not be so any more",
            remedy=AGAIN,
        )


# -- storage tiers ---------------------------------------------------------------------------------


def check_tiers(
    tables: Mapping[str, TierTable], node: Mapping[str, Any] | None, *, is_shared: bool
) -> Iterator[Finding]:
    """As they are now; beside a running daemon, by what it has promised of them."""
    paths = (disk.path for table in tables.values() for disk in table.disk)
    facts = probe_disks(paths, is_shared=is_shared)
    return judge_tiers(tables, facts, allocated=find_allocated(node or {}))


def find_allocated(node: Mapping[str, Any]) -> dict[str, int]:
    """What a daemon that says this of itself has promised of each disk, bytes."""
    allocated: dict[str, int] = {}
    for row in node.get("allocated", ()):
        allocated[row["disk"]] = allocated.get(row["disk"], 0) + row["size_bytes"]
    return allocated


def judge_tiers(
    tables: Mapping[str, TierTable],
    facts: Mapping[str, DiskFacts],
    *,
    allocated: Mapping[str, int],
) -> Iterator[Finding]:
    """Each disk: all that would keep a daemon from starting, and what is short of what it says.

    Args:
        allocated: what the running daemon has promised of each, bytes.
    """
    problems: dict[str, tuple[str, str]] = {}
    for cost, found in (
        ("the daemon does not start with it", find_problems(tables, facts)),
        ("no job can use its space there", find_obstacles(tables, facts, allocated)),
    ):
        for path, problem in found:
            problems.setdefault(path, (problem, cost))
    for name, disk in ((name, disk) for name, table in tables.items() for disk in table.disk):
        if disk.path in problems:
            problem, cost = problems[disk.path]
            shown, remedy = parts_of(problem)
            yield broken(f"tier {name}", shown, {"path": disk.path}, cost=cost, remedy=remedy)
            continue
        there, promised = facts[disk.path], allocated.get(os.path.normpath(disk.path), 0)
        shortage = find_shortage(disk, there, promised)
        yield judge(
            not shortage,
            f"tier {name}",
            describe_disk(disk, there),
            {
                "path": disk.path,
                "kind": there.kind,
                "capacity_bytes": limit_bytes(disk, there),
                "free_bytes": there.free_bytes,
                "promised_bytes": promised,
            },
            cost=SHORTAGE,
            remedy=shortage,
        )


# -- the journal's and the output's ----------------------------------------------------------------


def check_journal_disk(state_dir: Path) -> Iterator[Finding]:
    """Commit to a file in the directory, or above it while it does not exist."""
    commits_s: list[float] = []
    with scratch_directory(str(state_dir)) as directory:
        page = os.urandom(_COMMIT_BYTES)
        with open(f"{directory}/commits", "wb", buffering=0) as file:
            while len(commits_s) < _COMMITS and sum(commits_s) < _BUDGET_S:
                start_s = time.perf_counter()
                file.write(page)
                os.fdatasync(file.fileno())
                commits_s.append(time.perf_counter() - start_s)
        status = os.statvfs(directory)
        filesystem = find_device(directory).filesystem
    free_bytes = status.f_bavail * status.f_frsize
    yield from judge_journal_disk(state_dir, commits_s, free_bytes, filesystem)


def judge_journal_disk(
    state_dir: Path, commits_s: Sequence[float], free_bytes: int, filesystem: str
) -> Iterator[Finding]:
    """How long each commit took, the space that is left for this user, the kind of file system."""
    median_s, worst_s = statistics.median(commits_s), max(commits_s)
    yield judge(
        median_s <= _SLOW_MEDIAN_S and worst_s <= _SLOW_WORST_S,
        "journal commits",
        f"median {median_s * 1000:.2f} ms, worst {worst_s * 1000:.2f} ms "
        f"of {len(commits_s)} fdatasync commits",
        {"median_s": median_s, "worst_s": worst_s, "commits": len(commits_s)},
        cost="each submit, start and end of a job waits so long",
        remedy="set state_dir to a disk that the jobs do not use, best one with flash",
    )
    values = {"free_bytes": free_bytes}
    if (short := judge_free(state_dir, free_bytes)) is None:
        yield ok("journal space", f"{format_bytes(free_bytes)} free", values)
    else:
        tell = lacking if free_bytes >= _NO_FREE_BYTES else broken
        cost = "the journal and the jobs' output will not fit; then nothing is accepted any more"
        yield tell("journal space", short.fact, values, cost=cost, remedy=short.cure)
    in_memory = "the journal and the jobs' output are lost with the next boot"
    far = "its locks and its log in shared memory are not safe there, and commits are slow"
    yield judge(
        filesystem not in MEMORY | NETWORK,
        "journal filesystem",
        filesystem or "unknown",
        {"filesystem": filesystem},
        cost=in_memory if filesystem in MEMORY else far,
        remedy="set state_dir to a directory on a disk of this machine",
    )


def check_output_disk(state_dir: Path, supervisor_dir: Path) -> Finding:
    """Whether what jobs print can fill the journal's disk; of no directory: the one above."""
    journal, output = find_device(state_dir), find_device(supervisor_dir)
    # Subvolumes of one btrfs have device numbers of their own and share the room.
    is_same = bool(output.devices) and output.description == journal.description
    places = (state_dir, supervisor_dir)
    numbers = {os.stat(existing_directory(str(each))).st_dev for each in places}
    shared = is_same or len(numbers) == 1
    shown = f"{supervisor_dir} is {output.description}"
    return judge(
        not shared,
        "disk of the output",
        f"{shown}, which is the journal's filesystem" if shared else shown,
        {"shared": shared},
        cost="jobs may fill it, each with output_max at most; then nothing is accepted any more",
        remedy="set supervisor_dir to a directory on another file system, or give users quotas",
    )
