"""Caps on what a job's cgroup moves: ``io.max`` of cgroup v2.

Documentation/admin-guide/cgroup-v2.rst, "IO Interface Files" (Linux 4.5; needs
CONFIG_BLK_DEV_THROTTLING). A line limits one whole disk; a partition is refused by the kernel. A
write cap also slows down who dirties pages, on file systems whose writeback the kernel charges to
the cgroup (ext4, btrfs, f2fs, xfs).

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from typing import Final

from iodaemon.backend.linux.protocol import Message

CAP: Final = "cap"
"""Stands beside the controllers where jobs' cgroups have ``io.max``."""
_FILE: Final = "io.max"
_DISK: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
_UNLIMITED: Final = "rbps=max wbps=max riops=max wiops=max"


def can_cap(jobs: str) -> bool:
    """Whether cgroups of jobs have the file.

    Args:
        jobs: the directory that they are made in. It has the file exactly where its own parent
            hands the io controller down, as it does itself.
    """
    return os.path.exists(os.path.join(jobs, _FILE))


def lines_of(caps: Message) -> list[str]:
    """What is written for these caps, one line a disk.

    Args:
        caps: by ``MAJOR:MINOR`` of a whole disk, [bytes/s read, bytes/s written], each None for no
            cap.

    Raises:
        TypeError, ValueError: they are no such caps.
    """
    lines = []
    for disk, (read, written) in sorted(caps.items()):
        if _DISK.fullmatch(disk) is None:
            raise ValueError(f"{disk!r} is not MAJOR:MINOR of a disk")
        lines.append(f"{disk} rbps={_rate(read)} wbps={_rate(written)}")
    return lines


def _rate(bytes_per_s: float | None) -> str:
    if bytes_per_s is None:
        return "max"
    if int(bytes_per_s) < 1:
        raise ValueError(f"a cap of {bytes_per_s} bytes/s would stop the job")
    return str(int(bytes_per_s))


def set_caps(cgroup: str, lines: list[str]) -> None:
    """Put these caps, and no others, on a job.

    Raises:
        OSError: the kernel takes one of them not; then none is left.
    """
    clear_caps(cgroup)
    try:
        for line in lines:
            _write(cgroup, line)
    except OSError:
        clear_caps(cgroup)
        raise


def clear_caps(cgroup: str) -> None:
    """Let the job move what it can; harmless where there is no cap, no controller, no cgroup."""
    for disk in _capped_disks(cgroup):
        with contextlib.suppress(OSError):  # the disk was taken away: so is its cap
            _write(cgroup, f"{disk} {_UNLIMITED}")


def _capped_disks(cgroup: str) -> list[str]:
    """Those with a line; a disk without a limit has none."""
    try:
        with open(os.path.join(cgroup, _FILE)) as file:
            return [line.split()[0] for line in file if line.strip()]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return []
        raise


def _write(cgroup: str, line: str) -> None:
    """One write(2) a line: the kernel reads no second one."""
    fd = os.open(os.path.join(cgroup, _FILE), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)
