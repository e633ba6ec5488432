"""Whether each source counts what a process reads and writes.

A child writes and reads a known number of bytes in the state directory's filesystem, past the page
cache where that can be had; what each source says before and after is compared with it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from iodaemon.core.platform import DeviceId
from iodaemon.doctor.child import Child, a_child
from iodaemon.doctor.finding import Finding, Values, Verdict, judge, lacking
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

Means = Literal["O_DIRECT", "fsync"]


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What one source says was read and written."""

    read_bytes: int
    written_bytes: int


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What all sources say of the same bytes.

    Attributes:
        means: how they were moved past the page cache.
        place: the layers below the directory, for people.
        disks: the leaf disks below it; empty: memory, network, or not known.
        process: /proc/PID/io of the child; None: the kernel has no such file.
        disk: /proc/diskstats, sum of the disks; None: there are none, or it names none of them.
        cgroup: io.stat of the child's cgroup, sum of the disks; None: there is no such file.
    """

    means: Means
    place: str
    disks: tuple[DeviceId, ...]
    process: Counted | None
    disk: Counted | None
    cgroup: Counted | None


def probe_counting(state_dir: Path, cgroup_home: str | None) -> Reading:
    """Move the bytes and look at all sources.

    Args:
        state_dir: need not exist; then it is done above it.
        cgroup_home: where a cgroup may be made; None: nowhere.

    Raises:
        OSError: the directory cannot be written, or the disk does not answer.
    """
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(scratch_directory(str(state_dir)))
        below = find_device(directory)
        disks = tuple(device.id for device in below.devices)
        cgroup = None if cgroup_home is None else _accounted_cgroup(stack, cgroup_home)
        child = stack.enter_context(a_child())
        if cgroup is not None:
            child.ask("enter", procs=f"{cgroup}/cgroup.procs")
        before = _look(child, disks, cgroup)
        answer = child.ask("write", path=f"{directory}/data", blocks=BLOCKS)
        child.ask("read", blocks=BLOCKS)
        after = _look(child, disks, cgroup)
    process, disk, in_cgroup = (_grown(*pair) for pair in zip(before, after, strict=True))
    return Reading(
        means="O_DIRECT" if answer["is_direct"] else "fsync",
        place=below.description,
        disks=disks,
        process=process,
        disk=disk,
        cgroup=in_cgroup,
    )


def _accounted_cgroup(stack: contextlib.ExitStack, home: str) -> str | None:
    """A cgroup whose I/O is counted; None where the io controller cannot be had."""
    base = stack.enter_context(scratch_cgroup(home))
    cgroup = os.path.join(base, "jobs")
    with contextlib.suppress(OSError), open(f"{base}/cgroup.subtree_control", "w") as file:
        file.write("+io")
    return cgroup if os.path.exists(f"{cgroup}/io.stat") else None


Look = tuple[Counted | None, Counted | None, Counted | None]


def _look(child: Child, disks: tuple[DeviceId, ...], cgroup: str | None) -> Look:
    return _read_process(child.pid), _read_disks(disks), _read_cgroup(cgroup, disks)


def _grown(before: Counted | None, after: Counted | None) -> Counted | None:
    if before is None or after is None:
        return None
    return Counted(
        read_bytes=after.read_bytes - before.read_bytes,
        written_bytes=after.written_bytes - before.written_bytes,
    )


def _read_process(pid: int) -> Counted | None:
    io = known(f"/proc/{pid}/io", parse_io)
    if io is None:
        return None
    return Counted(read_bytes=io.read_bytes, written_bytes=io.written_bytes - io.cancelled_bytes)


def _read_disks(disks: tuple[DeviceId, ...]) -> Counted | None:
    found = read_disks(disks)
    if not found:
        return None
    return Counted(
        read_bytes=sum(counters.read_sectors for counters in found.values()) * _SECTOR_BYTES,
        written_bytes=sum(counters.written_sectors for counters in found.values()) * _SECTOR_BYTES,
    )


def _read_cgroup(cgroup: str | None, disks: tuple[DeviceId, ...]) -> Counted | None:
    found = None if cgroup is None else known(f"{cgroup}/io.stat", parse_io_stat, read_file)
    if found is None:
        return None
    moved = [found[number] for number in map(_device_number, disks) if number in found]
    return Counted(
        read_bytes=sum(read for read, _ in moved), written_bytes=sum(each for _, each in moved)
    )


def _device_number(disk: DeviceId) -> str:
    name = disk.replace("/", "!")
    with open(f"/sys/class/block/{name}/dev") as file:
        return file.read().strip()


# -- judging ---------------------------------------------------------------------------------------


def judge_counting(reading: Reading) -> Iterator[Finding]:
    """One finding a source."""
    yield _judge_process(reading)
    yield _judge_cgroup(reading)
    yield _judge_disk(reading)


def _judge_process(reading: Reading) -> Finding:
    what = "I/O of processes"
    if reading.process is None:
        return lacking(
            what,
            NO_PROCESS_IO.fact,
            cost="every job's I/O is unknown, and none is regulated",
            remedy=NO_PROCESS_IO.cure,
        )
    if not reading.disks and _is_nothing(reading.process):
        return lacking(
            what,
            f"/proc/PID/io counts nothing on {reading.place}",
            _values(reading.process),
            cost="it counts on disks and networks; here it could not be tried",
            remedy="set state_dir to a directory on a disk",
        )
    return _compare(what, "/proc/PID/io", reading.process, reading, most_ratio=MOST_RATIO)


def _judge_cgroup(reading: Reading) -> Finding:
    what = "I/O of cgroups"
    if reading.cgroup is None or not reading.disks:
        lacks = "no io.stat can be had" if reading.cgroup is None else "no disk to count on"
        return lacking(
            what,
            lacks,
            cost="what the page cache writes for a job later is charged when it was dirtied",
            remedy="see the line 'cgroup controllers' for io",
        )
    most_ratio = MOST_RATIO * len(reading.disks)  # mirrors count on each disk
    return _compare(what, "io.stat", reading.cgroup, reading, most_ratio=most_ratio)


def _judge_disk(reading: Reading) -> Finding:
    what = "I/O of disks"
    if reading.disk is None:
        return lacking(
            what,
            f"/proc/diskstats has no disk below {reading.place}",
            cost="its load cannot be measured: no rule that goes by the disk acts on it",
            remedy="keep the jobs' data on a disk of this machine",
        )
    values = _values(reading.disk)
    names = " and ".join(reading.disks)
    shown = f"{_pair(reading.disk)} counted on {names} by /proc/diskstats, {_expected(reading)}"
    least = min(reading.disk.read_bytes, reading.disk.written_bytes)
    return judge(
        least >= LEAST_RATIO * MOVED_BYTES,
        what,
        shown,
        values,
        cost="the disk's load is measured too low",
        remedy=not_counted(reading.disks).cure,
        verdict=Verdict.BROKEN,
    )


def _compare(
    what: str, source: str, counted: Counted, reading: Reading, *, most_ratio: float
) -> Finding:
    shown = f"{_pair(counted)} counted by {source}, {_expected(reading)}"
    ratios = [size / MOVED_BYTES for size in (counted.read_bytes, counted.written_bytes)]
    return judge(
        all(LEAST_RATIO <= ratio <= most_ratio for ratio in ratios),
        what,
        shown,
        _values(counted),
        cost=f"jobs on {reading.place} are charged wrongly",
        remedy="choose another file system for their data, and report this with the kernel version",
        verdict=Verdict.BROKEN,
    )


def _is_nothing(counted: Counted) -> bool:
    return max(counted.read_bytes, counted.written_bytes) < MOVED_BYTES / 2


def _pair(counted: Counted) -> str:
    read, written = (format_bytes(n) for n in (counted.read_bytes, counted.written_bytes))
    return f"{read} read and {written} written"


def _expected(reading: Reading) -> str:
    return f"{format_bytes(MOVED_BYTES)} each expected ({reading.means})"


def _values(counted: Counted) -> Values:
    return {
        "expected_bytes": MOVED_BYTES,
        "read_bytes": counted.read_bytes,
        "written_bytes": counted.written_bytes,
    }


# -- other users -----------------------------------------------------------------------------------


class Others(msgspec.Struct, frozen=True, kw_only=True):
    """A try to read another user's /proc/PID/io.

    Attributes:
        uid: of the process; None: there was none to try.
        is_readable: it could be read.
    """

    uid: int | None
    is_readable: bool


def probe_others() -> Others:
    """Try it on a process of nobody's that is made for this, or on one that is there."""
    with contextlib.suppress(PermissionError), _of_nobody() as pid:
        return Others(uid=_NOBODY, is_readable=_read_process(pid) is not None)
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            uid = os.stat(f"/proc/{name}").st_uid
            if uid != os.geteuid() and _is_program(name) and not is_executing(int(name)):
                return Others(uid=uid, is_readable=_read_process(int(name)) is not None)
    return Others(uid=None, is_readable=False)


def _is_program(pid: str) -> bool:
    """False for a kernel thread, which has no command line."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read(1) != b""


@contextlib.contextmanager
def _of_nobody() -> Iterator[int]:
    """A process of the user nobody.

    Raises:
        PermissionError: this process may not change its user.
    """
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


def judge_others(others: Others) -> Finding:
    """Only a daemon that serves several users needs it."""
    can = "can be read" if others.is_readable else "may not be read"
    shown = f"/proc/PID/io of a process of uid {others.uid} {can}"
    return judge(
        others.is_readable,
        "I/O of other users",
        "no process of another user is there to try" if others.uid is None else shown,
        {"uid": others.uid, "is_readable": others.is_readable},
        cost="a daemon run like this measures its own user's jobs alone, which are all it serves",
        remedy="'iod install' as root: the service's sampler may",
    )
