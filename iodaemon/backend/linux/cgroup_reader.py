"""What the kernel says of one cgroup: its processes, CPU time, stall times, and its devices.

cgroup v2 needs no controller for any of these files but io.stat (``sampler.io_stat``).
Documentation/admin-guide/cgroup-v2.rst: cgroup.procs (Linux 4.5), cpu.stat (Linux 4.15),
io.pressure and memory.pressure (Linux 4.20).
"""

from __future__ import annotations

import os
from pathlib import Path

from iodaemon.errors import NoData
from iodaemon.node.live_job import read_members
from iodaemon.sampler import KeptFile
from iodaemon.sampler.cpu_stat import CpuStat, parse_cpu_stat
from iodaemon.sampler.pressure import parse_pressure


class CgroupReader:
    """Reads one cgroup through descriptors that it keeps, one a file.

    Once the directory was removed it answers NoData or None. One that is made anew at the same
    path is taken for the same; paths hold the attempt, so that does not happen.

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

        Once it was not there it is not looked for again.
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
        """Give the descriptors back."""
        pressures = (self._io_pressure, self._memory_pressure)
        for file in (self._procs, self._stat, self._cpu, self._io, *pressures):
            file.close()


def _stall_s(file: KeptFile) -> float | None:
    try:
        return parse_pressure(file.read_record()).some_s
    except NoData:
        return None
