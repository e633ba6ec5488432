"""Files of one cgroup: CPU time, memory, stall times, processes, and bytes on devices.

=================== ============ ========== ==================================================
file                since Linux  controller documentation
=================== ============ ========== ==================================================
cgroup.events       4.5          none       Documentation/admin-guide/cgroup-v2.rst
cgroup.procs        4.5          none       the same
cgroup.stat         4.14         none       the same
cpu.stat            4.15         none       the same, "CPU Interface Files"
io.stat             4.5          io         the same, "IO Interface Files"
*.pressure          4.20         none       Documentation/accounting/psi.rst
memory.stat         4.5          memory     the same, "Memory Interface Files"
memory.stat of v1   2.6.28       memory     Documentation/admin-guide/cgroup-v1/memory.rst 5.2
=================== ============ ========== ==================================================
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from iodaemon.errors import NoData
from iodaemon.node.sampler.proc_files import find_count, parse_refaults, read_file, read_record

_US_PER_S: Final = 1_000_000
_MOST_CGROUPS: Final = 64
"""Of one job: its own, and those that it made below that."""


def parse_cpu_stat(text: bytes) -> tuple[float | None, float | None]:
    """CPU time of all processes that are or were in a cgroup, s: all of it, and in user mode.

    None: not said, as in that of cgroup v1.
    """
    usage, user = find_count(text, b"usage_usec"), find_count(text, b"user_usec")
    return usage and usage / _US_PER_S, user and user / _US_PER_S


_MOVED: Final = re.compile(rb"(\d+:\d+) rbytes=(\d+) wbytes=(\d+) ")


def parse_io_stat(text: bytes) -> dict[str, tuple[int, int]]:
    """Bytes that a cgroup, processes that ended included, read from and wrote to each device, by
    ``major:minor``; none that it did not use.

    Counted when the device is given the request: pages that are written back are charged to the
    cgroup that made them dirty (ext2, ext4, btrfs, f2fs, xfs). Each layer counts for itself (a
    disk, the md array on it, the LVM volume on that), so only leaf disks may be summed. Network
    filesystems have no device.

    Some kernels name a device of which there is nothing to say without ending its line, so that
    the next one follows in the same (Linux 5.10).
    """
    found = _MOVED.findall(text)
    return {number.decode(): (int(read), int(written)) for number, read, written in found}


class MemoryStat(NamedTuple):
    """A cgroup and all below it.

    Attributes:
        cache_bytes: page cache on the lists that are reclaimed (inactive_file + active_file):
            without tmpfs and shared memory, which ``file`` and ``cache`` of the same file include.
        refaulted_pages: ``parse_refaults``. None: the kernel does not count them here.
    """

    cache_bytes: int
    refaulted_pages: int | None = None


def parse_memory_stat(text: bytes) -> MemoryStat:
    """The gauges in a memory.stat; v1 has them with ``total_`` for all that is below."""
    # v1 has its own lines first: where the text was cut before the totals they are too small.
    prefix = b"total_" if find_count(text, b"hierarchical_memory_limit") is not None else b""
    inactive, active = (
        find_count(text, prefix + name) for name in (b"inactive_file", b"active_file")
    )
    if inactive is None or active is None:
        raise NoData("memory.stat: no inactive_file and active_file")
    try:
        return MemoryStat(inactive + active, parse_refaults(text, prefix))
    except NoData:
        return MemoryStat(inactive + active)


def read_members(cgroup: str) -> list[int]:
    """The processes of a cgroup and of those that the job made below it; none if it is gone.

    In the kernel's order, which is that of forking: parents come first. One may be named twice;
    those of a foreign pid namespace (0) are left out.
    """
    pids: list[int] = []
    directories = [cgroup]
    for _ in range(_MOST_CGROUPS):
        if not directories:
            break
        directory = directories.pop(0)
        try:
            pids += parse_procs(read_file(f"{directory}/cgroup.procs"))
            if b"nr_descendants 0\n" in read_record(f"{directory}/cgroup.stat"):
                continue
            with os.scandir(directory) as entries:
                directories += [entry.path for entry in entries if entry.is_dir()]
        except (NoData, OSError):  # it is gone
            continue
    return pids


def is_frozen(cgroup: str) -> bool:
    """Whether all of it stands still; False if it is gone, or of a kernel before Linux 5.2."""
    try:
        return find_count(read_file(f"{cgroup}/cgroup.events"), b"frozen") == 1
    except (NoData, OSError):
        return False


def parse_procs(text: bytes) -> list[int]:
    """The numbers in a cgroup.procs, without those that cannot be seen from here."""
    return [int(word) for word in text.split() if word != b"0"]
