"""Files of one cgroup: CPU time, memory, stall times, processes, and bytes on devices.

=================== ============ ========== ==================================================
file                since Linux  controller documentation
=================== ============ ========== ==================================================
cgroup.procs        4.5          none       Documentation/admin-guide/cgroup-v2.rst
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
from pathlib import Path
from typing import Final, NamedTuple

from iodaemon.errors import NoData
from iodaemon.node.live_job import read_members
from iodaemon.node.sampler.kernel_file import KeptFile, as_bytes, find_count, whole_lines
from iodaemon.node.sampler.proc_files import parse_pressure

_US_PER_S: Final = 1_000_000
_NUMBER: Final = re.compile(rb"\d+:\d+")
_REFAULTS: Final = (b"anon", b"file")


class CpuStat(NamedTuple):
    """CPU time of all processes that are or were in a cgroup, s.

    Attributes:
        usage_s: in user mode and in the kernel.
        user_s: in user mode.
    """

    usage_s: float
    user_s: float


def parse_cpu_stat(text: bytes | str) -> CpuStat:
    """The CPU times in a cpu.stat.

    Raises:
        NoData: one of the two is missing (cgroup v1, or a text that is cut short).
    """
    values_s: dict[bytes, float] = {}
    for line in whole_lines(text):
        name, _, digits = line.partition(b" ")
        if digits.isdigit():
            values_s[name] = int(digits) / _US_PER_S
    try:
        return CpuStat(values_s[b"usage_usec"], values_s[b"user_usec"])
    except KeyError as error:
        raise NoData(f"cpu.stat: no line {error.args[0].decode()}") from error


class IoStat(NamedTuple):
    """What a cgroup, processes that ended included, moved on one device."""

    read_bytes: int = 0
    written_bytes: int = 0


def parse_io_stat(text: bytes | str) -> dict[str, IoStat]:
    """What an io.stat says, by ``major:minor``; an empty one is of a cgroup without any I/O.

    Counted when the device is given the request: pages that are written back are charged to the
    cgroup that made them dirty (ext2, ext4, btrfs, f2fs, xfs). Each layer counts for itself (a
    disk, the md array on it, the LVM volume on that), so only leaf disks may be summed. Network
    filesystems have no device.

    Some kernels name a device of which there is nothing to say without ending its line, so that
    the next one follows in the same (Linux 5.10); it then has zeros.

    Raises:
        NoData: there is a text, and it names no device.
    """
    devices: dict[str, dict[bytes, int]] = {}
    for line in whole_lines(text):
        values: dict[bytes, int] | None = None
        for word in line.split():
            name, equals, digits = word.partition(b"=")
            if not equals and _NUMBER.fullmatch(word):
                values = devices.setdefault(word.decode(), {})
            elif values is not None and digits.isdigit():
                values[name] = int(digits)
    if not devices and text.strip():
        raise NoData("io.stat: no device")
    return {
        number: IoStat(values.get(b"rbytes", 0), values.get(b"wbytes", 0))
        for number, values in devices.items()
    }


class MemoryStat(NamedTuple):
    """A cgroup and all below it.

    Attributes:
        cache_bytes: page cache on the lists that are reclaimed (inactive_file + active_file):
            without tmpfs and shared memory, which ``file`` and ``cache`` of the same file include.
        refaulted_pages: read again although they had been in memory shortly before, page cache and
            anonymous memory (workingset_refault_file + workingset_refault_anon, Linux 5.9); a
            counter. None: the kernel does not count them here.
    """

    cache_bytes: int
    refaulted_pages: int | None = None


def parse_memory_stat(text: bytes | str) -> MemoryStat:
    """The gauges in a memory.stat; v1 has them with ``total_`` for all that is below.

    Raises:
        NoData: one is missing, as in a text that is cut short.
    """
    text = as_bytes(text)
    # v1 has its own lines first: where the text was cut before the totals they are too small.
    prefix = b"total_" if find_count(text, b"hierarchical_memory_limit") is not None else b""
    inactive, active = (
        find_count(text, prefix + name) for name in (b"inactive_file", b"active_file")
    )
    if inactive is None or active is None:
        raise NoData("memory.stat: no inactive_file and active_file")
    anon, file = (find_count(text, prefix + b"workingset_refault_" + name) for name in _REFAULTS)
    refaulted = None if anon is None or file is None else anon + file
    return MemoryStat(inactive + active, refaulted)


class CgroupReader:
    """Reads one cgroup through descriptors that it keeps, one a file.

    Once the directory was removed it returns None or raises NoData. A directory that is made anew
    at the same path is taken for the same; paths contain the attempt, so that does not happen.

    Args:
        directory: the cgroup, for example ``/sys/fs/cgroup/jobs/12.1``.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = os.fspath(directory)
        self._procs = KeptFile(directory / "cgroup.procs")
        self._stat = KeptFile(directory / "cgroup.stat")
        self._cpu = KeptFile(directory / "cpu.stat")
        self._io = KeptFile(directory / "io.stat")
        self._has_io = True
        self._io_pressure = KeptFile(directory / "io.pressure")
        self._memory_pressure = KeptFile(directory / "memory.pressure")

    def pids(self) -> list[int]:
        """Live processes in the kernel's order, which is that of forking: parents come first.

        Those of cgroups that the job made below its own are among them.

        The kernel may name one twice; those of a foreign pid namespace (0) are left out.

        Raises:
            NoData: the cgroup is gone.
        """
        if b"nr_descendants 0\n" not in self._stat.read_record():
            return read_members(self._directory)
        return [int(word) for word in self._procs.read().split() if word != b"0"]

    def cpu_record(self) -> bytes:
        """``cpu.stat`` as it is: while it stays the same, no process of the cgroup has run.

        Raises:
            NoData: the cgroup is gone.
        """
        return self._cpu.read_record()

    def cpu(self) -> CpuStat | None:
        """CPU times of all processes that are or were in it; None: not known."""
        try:
            return parse_cpu_stat(self._cpu.read_record())
        except NoData:
            return None

    def io_record(self) -> bytes | None:
        """``io.stat`` as it is; None: there is no io controller, or the cgroup is gone.

        A file that was missing once is not looked for again.
        """
        if not self._has_io:
            return None
        try:
            return self._io.read()
        except NoData:
            self._has_io = False
            return None

    def io_stall_s(self) -> float | None:
        """Time at least one of its tasks waited for I/O; None: the kernel does not count it."""
        return _stall_s(self._io_pressure)

    def memory_stall_s(self) -> float | None:
        """Time at least one of its tasks waited for memory; None: the kernel does not count it."""
        return _stall_s(self._memory_pressure)

    def close(self) -> None:
        """Close the descriptors."""
        pressures = (self._io_pressure, self._memory_pressure)
        for file in (self._procs, self._stat, self._cpu, self._io, *pressures):
            file.close()


def _stall_s(file: KeptFile) -> float | None:
    try:
        return parse_pressure(file.read_record()).some_s
    except NoData:
        return None
