"""How fast the state directory's disk makes things durable, and whether it is fit to."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.doctor.finding import Finding, broken, judge, lacking, ok
from iodaemon.doctor.scratch import existing_directory, scratch_directory
from iodaemon.node.condition import judge_free
from iodaemon.node.devices import MEMORY, NETWORK, find_device
from iodaemon.units import format_bytes

COMMITS: Final = 20
_COMMIT_BYTES: Final = 4096
"""One page of SQLite's write-ahead log."""
_BUDGET_S: Final = 0.8
"""A disk under load may take a second for one commit; fewer of them are told then."""
SLOW_MEDIAN_S: Final = 0.05
"""Twice the median beside four writers that fsync (28 ms, measured): a submit that is felt."""
SLOW_WORST_S: Final = 0.5
_NO_FREE_BYTES: Final = 16 << 20
"""Below this a busy day's journal does not fit."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What the disk does.

    Attributes:
        commits_s: how long each commit took, in order.
        state_dir: on which it was looked for.
        free_bytes: for this user.
        filesystem: its kind.
    """

    commits_s: tuple[float, ...]
    state_dir: Path
    free_bytes: int
    filesystem: str


def probe_journal_disk(state_dir: Path) -> Reading:
    """Commit to a file in the directory, or above it while it does not exist.

    Raises:
        OSError: the directory cannot be written.
    """
    commits_s: list[float] = []
    with scratch_directory(str(state_dir)) as directory:
        fd = os.open(f"{directory}/commits", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            page = os.urandom(_COMMIT_BYTES)
            while len(commits_s) < COMMITS and sum(commits_s) < _BUDGET_S:
                start_s = time.perf_counter()
                os.write(fd, page)
                os.fdatasync(fd)
                commits_s.append(time.perf_counter() - start_s)
        finally:
            os.close(fd)
        status = os.statvfs(directory)
        filesystem = find_device(directory).filesystem
    return Reading(
        commits_s=tuple(commits_s),
        state_dir=state_dir,
        free_bytes=status.f_bavail * status.f_frsize,
        filesystem=filesystem,
    )


def judge_journal_disk(reading: Reading) -> Iterator[Finding]:
    """The commits, the space, the kind."""
    yield _judge_commits(reading.commits_s)
    yield _judge_space(reading.state_dir, reading.free_bytes)
    yield _judge_filesystem(reading.filesystem)


def _judge_commits(commits_s: tuple[float, ...]) -> Finding:
    median_s, worst_s = statistics.median(commits_s), max(commits_s)
    shown = (
        f"median {median_s * 1000:.2f} ms, worst {worst_s * 1000:.2f} ms "
        f"of {len(commits_s)} fdatasync commits"
    )
    values = {"median_s": median_s, "worst_s": worst_s, "commits": len(commits_s)}
    return judge(
        median_s <= SLOW_MEDIAN_S and worst_s <= SLOW_WORST_S,
        "journal commits",
        shown,
        values,
        cost="each submit, start and end of a job waits so long",
        remedy="set state_dir to a disk that the jobs do not use, best one with flash",
    )


def _judge_space(state_dir: Path, free_bytes: int) -> Finding:
    values = {"free_bytes": free_bytes}
    if (short := judge_free(state_dir, free_bytes)) is None:
        return ok("journal space", f"{format_bytes(free_bytes)} free", values)
    tell = lacking if free_bytes >= _NO_FREE_BYTES else broken
    return tell(
        "journal space",
        short.fact,
        values,
        cost="the journal and the jobs' output will not fit; then nothing is accepted any more",
        remedy=short.cure,
    )


def _judge_filesystem(filesystem: str) -> Finding:
    in_memory = "the journal and the jobs' output are lost with the next boot"
    far = "its locks and its log in shared memory are not safe there, and commits are slow"
    return judge(
        filesystem not in MEMORY | NETWORK,
        "journal filesystem",
        filesystem or "unknown",
        {"filesystem": filesystem},
        cost=in_memory if filesystem in MEMORY else far,
        remedy="set state_dir to a directory on a disk of this machine",
    )


# -- whether what jobs print can fill it -----------------------------------------------------------


class OutputDisk(msgspec.Struct, frozen=True, kw_only=True):
    """Where both lie.

    Attributes:
        supervisor_dir: with the output of jobs that name no file.
        shared: with the journal.
        description: of what the output lies on, for people.
    """

    supervisor_dir: Path
    shared: bool
    description: str


def probe_output_disk(state_dir: Path, supervisor_dir: Path) -> OutputDisk:
    """Look at both, or at what is above them while they do not exist.

    Args:
        state_dir: where the journal is.
        supervisor_dir: where that output is.
    """
    journal, output = find_device(state_dir), find_device(supervisor_dir)
    # Subvolumes of one btrfs have device numbers of their own and share the room.
    is_same = bool(output.devices) and output.description == journal.description
    places = (state_dir, supervisor_dir)
    numbers = {os.stat(existing_directory(str(each))).st_dev for each in places}
    shared = is_same or len(numbers) == 1
    return OutputDisk(supervisor_dir=supervisor_dir, shared=shared, description=output.description)


def judge_output_disk(reading: OutputDisk) -> Finding:
    """Two filesystems are better."""
    shown = f"{reading.supervisor_dir} is {reading.description}"
    return judge(
        not reading.shared,
        "disk of the output",
        f"{shown}, which is the journal's filesystem" if reading.shared else shown,
        {"shared": reading.shared},
        cost="jobs may fill it, each with output_max at most; then nothing is accepted any more",
        remedy="set supervisor_dir to a directory on another file system, or give users quotas",
    )
