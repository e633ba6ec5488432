"""Whether each source counts what a process reads and writes.

A child writes and reads a known number of bytes in the state directory's filesystem, past the page
cache where that can be had; what each source says before and after is compared with it.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from iodaemon.core.platform import DeviceId
from iodaemon.doctor.child import a_child
from iodaemon.doctor.report import Finding, Verdict, judge, lacking
from iodaemon.doctor.scratch import scratch_cgroup, scratch_directory
from iodaemon.node.condition import NO_PROCESS_IO, not_counted
from iodaemon.node.devices import find_device, read_disks
from iodaemon.node.sampler.proc_files import is_executing, known, parse_io_stat, read_file
from iodaemon.supervisor.reap import parse_io
from iodaemon.units import format_bytes

BLOCKS: Final = 8
MOVED_BYTES: Final = BLOCKS << 20
LEAST_RATIO: Final = 0.99
MOST_RATIO: Final = 1.05
"""The reading of 100 MiB over NFS was counted as 102.6 MiB: it asks in units of its own."""
_SECTOR_BYTES: Final = 512
_NOBODY: Final = 65534


class Counted(NamedTuple):
    """What one source says was read and written."""

    read_bytes: int
    written_bytes: int


def check_counting(state_dir: Path, cgroup_home: str | None) -> Iterator[Finding]:
    """Move the bytes in this directory, or above it while it does not exist."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(scratch_directory(str(state_dir)))
        below = find_device(directory)
        disks = tuple(device.id for device in below.devices)
        cgroup = None if cgroup_home is None else _accounted_cgroup(stack, cgroup_home)
        child = stack.enter_context(a_child())
        if cgroup is not None:
            child.ask("enter", procs=f"{cgroup}/cgroup.procs")
        before = _look(child.pid, cgroup, disks)
        is_direct = child.ask("move", path=f"{directory}/data", blocks=BLOCKS)["is_direct"]
        after = _look(child.pid, cgroup, disks)
    grown = (_grown(*pair) for pair in zip(before, after, strict=True))
    means = "O_DIRECT" if is_direct else "fsync"
    yield from judge_counting(means, below.description, disks, *grown)


def _accounted_cgroup(stack: contextlib.ExitStack, home: str) -> str | None:
    """A cgroup whose I/O is counted; None where the io controller cannot be had."""
    base = stack.enter_context(scratch_cgroup(home))
    cgroup = os.path.join(base, "jobs")
    with contextlib.suppress(OSError), open(f"{base}/cgroup.subtree_control", "w") as file:
        file.write("+io")
    return cgroup if os.path.exists(f"{cgroup}/io.stat") else None


def _look(pid: int, cgroup: str | None, disks: tuple[DeviceId, ...]) -> list[Counted | None]:
    """What process, cgroup and disks say."""
    stat = None if cgroup is None else known(f"{cgroup}/io.stat", parse_io_stat, read_file)
    in_cgroup = None if stat is None else [stat[n] for n in map(_number, disks) if n in stat]
    on_disks = [(c.read_sectors, c.written_sectors) for c in read_disks(disks).values()]
    return [_read_process(pid), _sum(in_cgroup, 1), _sum(on_disks or None, _SECTOR_BYTES)]


def _read_process(pid: int) -> Counted | None:
    io = known(f"/proc/{pid}/io", parse_io)
    return None if io is None else Counted(io.read_bytes, io.written_bytes - io.cancelled_bytes)


def _number(disk: DeviceId) -> str:
    name = disk.replace("/", "!")
    return Path(f"/sys/class/block/{name}/dev").read_text().strip()


def _sum(moved: list[tuple[int, int]] | None, unit_bytes: int) -> Counted | None:
    if moved is None:
        return None
    return Counted(unit_bytes * sum(r for r, _ in moved), unit_bytes * sum(w for _, w in moved))


def _grown(before: Counted | None, after: Counted | None) -> Counted | None:
    if before is None or after is None:
        return None
    return Counted(*(new - old for old, new in zip(before, after, strict=True)))


def judge_counting(
    means: str,
    place: str,
    disks: Sequence[DeviceId],
    process: Counted | None,
    cgroup: Counted | None,
    disk: Counted | None,
) -> Iterator[Finding]:
    """One finding per source: what each of them counted of the same bytes.

    Args:
        means: how they were moved past the page cache.
        place: the layers below the directory, for people.
        disks: the leaf disks below it; empty: memory, network, or not known.
        process: /proc/PID/io of the child; None: the kernel has no such file.
        cgroup: io.stat of the child's cgroup, sum of the disks; None: there is no such file.
        disk: /proc/diskstats, sum of the disks; None: there are none, or it names none of them.
    """
    charged = f"jobs on {place} are charged wrongly"
    elsewhere = "choose another file system for their data, and report this with the kernel version"
    what = "I/O of processes"
    if process is None:
        cost = "every job's I/O is unknown, and none is regulated"
        yield lacking(what, NO_PROCESS_IO.fact, cost=cost, remedy=NO_PROCESS_IO.cure)
    elif not disks and max(process) < MOVED_BYTES / 2:
        yield lacking(
            what,
            f"/proc/PID/io counts nothing on {place}",
            _values(process),
            cost="it counts on disks and networks; here it could not be tried",
            remedy="set state_dir to a directory on a disk",
        )
    else:
        yield _compare(what, "by /proc/PID/io", process, means, MOST_RATIO, charged, elsewhere)
    what = "I/O of cgroups"
    if cgroup is None or not disks:
        yield lacking(
            what,
            "no io.stat can be had" if cgroup is None else "no disk to count on",
            cost="what the page cache writes for a job later is charged when it was dirtied",
            remedy="see the line 'cgroup controllers' for io",
        )
    else:
        most = MOST_RATIO * len(disks)  # mirrors count on each disk
        yield _compare(what, "by io.stat", cgroup, means, most, charged, elsewhere)
    what = "I/O of disks"
    if disk is None:
        yield lacking(
            what,
            f"/proc/diskstats has no disk below {place}",
            cost="its load cannot be measured: no rule that goes by the disk acts on it",
            remedy="keep the jobs' data on a disk of this machine",
        )
    else:
        source = f"on {' and '.join(disks)} by /proc/diskstats"
        cost, cure = "the disk's load is measured too low", not_counted(disks).cure
        yield _compare(what, source, disk, means, math.inf, cost, cure)


def _compare(
    what: str,
    source: str,
    counted: Counted,
    means: str,
    most_ratio: float,
    cost: str,
    remedy: str,
) -> Finding:
    read, written, expected = map(format_bytes, (*counted, MOVED_BYTES))
    return judge(
        all(LEAST_RATIO <= size / MOVED_BYTES <= most_ratio for size in counted),
        what,
        f"{read} read and {written} written counted {source}, {expected} each expected ({means})",
        _values(counted),
        cost=cost,
        remedy=remedy,
        verdict=Verdict.BROKEN,
    )


def _values(counted: Counted) -> dict[str, int]:
    return {"expected_bytes": MOVED_BYTES, **counted._asdict()}


# -- other users -----------------------------------------------------------------------------------


def check_others() -> Finding:
    """Try to read /proc/PID/io of a process of nobody's that is made for this, or of another."""
    with contextlib.suppress(PermissionError), _of_nobody() as pid:
        return judge_others(_NOBODY, is_readable=_read_process(pid) is not None)
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            uid = os.stat(f"/proc/{name}").st_uid
            if uid != os.geteuid() and not is_executing(int(name)):
                return judge_others(uid, is_readable=_read_process(int(name)) is not None)
    return judge_others(None, is_readable=False)


@contextlib.contextmanager
def _of_nobody() -> Iterator[int]:
    """A process of nobody's; PermissionError: this process may not change its user."""
    with subprocess.Popen(
        ["/bin/cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        user=_NOBODY,
        group=_NOBODY,
        extra_groups=[],
        cwd="/",
    ) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def judge_others(uid: int | None, *, is_readable: bool) -> Finding:
    """Only a daemon that serves several users needs it; no uid: there was no process to try."""
    can = "can be read" if is_readable else "may not be read"
    shown = f"/proc/PID/io of a process of uid {uid} {can}"
    return judge(
        is_readable,
        "I/O of other users",
        "no process of another user is there to try" if uid is None else shown,
        {"uid": uid, "is_readable": is_readable},
        cost="a daemon run like this measures its own user's jobs alone, which are all it serves",
        remedy="'iod install' as root: the service's sampler may",
    )
