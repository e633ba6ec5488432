"""One job's I/O over all processes it ever had, whatever they forked, orphaned and outlived.

/proc/PID/io of a process holds what its reaped children moved (kernel/exit.c,
wait_task_zombie), and the supervisor reaps every first process and orphan and says what they moved.
So the sum over its word and living processes misses only children whose parent ignores SIGCHLD: the
kernel reaps those itself and drops their counts.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import get_ident
from typing import Final

import msgspec

from iodaemon.backend.linux.allowance import MOST_OF_A_JOB, Allowance
from iodaemon.backend.linux.process import SilentError, is_executing
from iodaemon.backend.linux.reader_thread import GivenUpError, Position
from iodaemon.core.sample import JobCounters
from iodaemon.errors import NoData
from iodaemon.node.live_job import Reaped
from iodaemon.sampler import KeptFile
from iodaemon.sampler.cpu_stat import CpuStat
from iodaemon.sampler.proc_io import ProcIo, parse_proc_io
from iodaemon.sampler.statm import parse_statm

_UNREADABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE})
"""Not ours to read, or no descriptor left: the process is there, its I/O is unknown."""


class _Totals(msgspec.Struct, gc=False):
    """Sums over the job, as counted by the kernel."""

    read_bytes: int = 0
    write_bytes: int = 0
    cancelled_write_bytes: int = 0
    operations: int = 0
    logical_bytes: int = 0

    def add(self, io: ProcIo) -> None:
        self.read_bytes += io.read_bytes
        self.write_bytes += io.write_bytes
        self.cancelled_write_bytes += io.cancelled_write_bytes
        self.operations += io.read_calls + io.write_calls
        self.logical_bytes += io.rchar_bytes + io.wchar_bytes

    def add_reaped(self, reaped: Reaped) -> None:
        self.read_bytes += reaped.read_bytes
        self.write_bytes += reaped.written_bytes
        self.cancelled_write_bytes += reaped.cancelled_bytes
        self.operations += reaped.operations
        self.logical_bytes += reaped.logical_bytes

    def raise_to(self, other: _Totals) -> None:
        self.read_bytes = max(self.read_bytes, other.read_bytes)
        self.write_bytes = max(self.write_bytes, other.write_bytes)
        self.cancelled_write_bytes = max(self.cancelled_write_bytes, other.cancelled_write_bytes)
        self.operations = max(self.operations, other.operations)
        self.logical_bytes = max(self.logical_bytes, other.logical_bytes)


class _Unknown(Exception):
    """There is I/O that cannot be read."""


class JobIo:
    """Measures one job's cumulative I/O.

    Parents are read before their children, so that a child reaped in between is counted once or
    not at all, never twice; what is missed so is made up for by the next read, and totals never
    fall. Each of the kernel's counters is kept monotone by itself: ``written_bytes`` may still
    fall, when the job deletes what has not reached the disk.

    Invariant: at most one descriptor a process, and none of one that was seen to be gone; at most
    ``MOST_OF_A_JOB`` and what the allowance has. Of the processes beyond, files are opened for each
    reading; a zombie among them counts once it is reaped.

    Args:
        root: ``/``, or a directory that looks like it.
        reaped: what processes moved that were waited for outside the job; asked before the members.
            None: that is not known.
        members: the job's processes now, parents before children; may name one twice, or some
            that are gone. NoData: none.
        cpu: CPU times of the job, from its cgroup.
        resident_bytes: memory of the job now.
        io_stall_s: stall time of the job, from its cgroup.
        memory_stall_s: the same for memory.
        allowance: of descriptors, for all jobs; None: this job's own.
        position: tells which process is being read.

    Attributes:
        last_members: the job's processes at the last reading.
    """

    def __init__(
        self,
        root: Path,
        reaped: Callable[[], Reaped | None],
        members: Callable[[], Iterable[int]],
        *,
        cpu: Callable[[], CpuStat | None] | None = None,
        resident_bytes: Callable[[], int | None] | None = None,
        io_stall_s: Callable[[], float | None] | None = None,
        memory_stall_s: Callable[[], float | None] | None = None,
        allowance: Allowance | None = None,
        position: Position | None = None,
    ) -> None:
        self._position = Position() if position is None else position
        self._allowance = Allowance() if allowance is None else allowance
        self._proc = os.fspath(root / "proc")
        self._reaped = reaped
        self._members = members
        self.last_members: list[int] = []
        self._files: dict[int, KeptFile] = {}
        self._highest = _Totals()
        self._cpu = cpu
        self._resident_bytes = resident_bytes
        self._io_stall_s = io_stall_s
        self._memory_stall_s = memory_stall_s

    def _path(self, pid: int) -> str:
        return f"{self._proc}/{pid}/io"

    def read(self, silent_pid: int | None = None) -> JobCounters:
        """The counters now.

        I/O is None, which is not 0, while one of the processes may not be read (another user's,
        a set-uid program) or does not answer, and until it is known what was waited for. ``known``
        still has the last totals.

        Args:
            silent_pid: a process that is known not to answer: none is read.
        """
        known = JobCounters()
        try:
            if silent_pid is None:
                self._highest.raise_to(self._sum())
                known = self.known
        except SilentError as error:
            silent_pid = error.pid
        except _Unknown:
            pass
        cpu = None if self._cpu is None else self._cpu()
        return JobCounters(
            silent_pid=silent_pid,
            read_bytes=known.read_bytes,
            written_bytes=known.written_bytes,
            operations=known.operations,
            logical_bytes=known.logical_bytes,
            cpu_s=None if cpu is None else cpu.usage_s,
            user_s=None if cpu is None else cpu.user_s,
            resident_bytes=None if self._resident_bytes is None else self._resident_bytes(),
            io_stall_s=None if self._io_stall_s is None else self._io_stall_s(),
            memory_stall_s=None if self._memory_stall_s is None else self._memory_stall_s(),
        )

    @property
    def known(self) -> JobCounters:
        """The job's I/O as far as it could be read so far; a lower bound, 0 before any read."""
        highest = self._highest
        return JobCounters(
            read_bytes=highest.read_bytes,
            written_bytes=max(0, highest.write_bytes - highest.cancelled_write_bytes),
            operations=highest.operations,
            logical_bytes=highest.logical_bytes,
        )

    def _sum(self) -> _Totals:
        reaped = self._reaped()  # first: who is reaped meanwhile is missing, not doubled
        if reaped is None:
            raise _Unknown
        totals = _Totals()
        totals.add_reaped(reaped)
        try:
            members = list(self._members())
        except NoData:
            members = []
        self.last_members = members
        listed = set(members)
        # Those no longer listed but still readable are zombies. Their children were handed on,
        # so they are leaves and come after all others.
        for pid in dict.fromkeys([*members, *self._files]):
            io = self._read_member(pid, is_listed=pid in listed)
            if io is not None:
                totals.add(io)
        return totals

    def _read_member(self, pid: int, *, is_listed: bool) -> ProcIo | None:
        """Its I/O; None when it is gone. A descriptor that is outlived is replaced once."""
        file = self._files.get(pid)
        try:
            if file is not None:
                io = self._find(pid, file)
                if io is not None:
                    return io
                del self._files[pid]
                self._allowance.give()
            if not is_listed:
                return None
            file = KeptFile(self._path(pid))
            io = self._find(pid, file)
        except OSError as error:
            raise _judge(error) from error
        if io is not None:
            self._keep(pid, file)
        return io

    def _find(self, pid: int, file: KeptFile) -> ProcIo | None:
        """Its I/O; None when it is gone. ``Position.enter`` and ``leave``, but without calls."""
        position = self._position
        position.pid = pid
        position.steps += 1
        if position.is_careful and is_executing(pid):
            raise SilentError(pid)
        try:
            record = file.read_record()
        except NoData:
            record = b""
        finally:
            if position.reader is not None and position.reader != get_ident():
                raise GivenUpError
        try:
            return parse_proc_io(record)
        except NoData:
            file.close()
            return None

    def _keep(self, pid: int, file: KeptFile) -> None:
        """Keep it for the next reading where that is allowed."""
        if len(self._files) < MOST_OF_A_JOB and self._allowance.take():
            self._files[pid] = file
        else:
            file.close()

    def close(self) -> None:
        """Give all descriptors back; nothing may be read after that."""
        for file in self._files.values():
            file.close()
        self._allowance.give(len(self._files))
        self._files.clear()


def _judge(error: OSError) -> Exception:
    return _Unknown() if error.errno in _UNREADABLE else error


def sum_resident_bytes(root: Path, pids: Iterable[int]) -> int | None:
    """Resident memory of the processes together (/proc/PID/statm); shared pages count each time.

    For machines whose cgroup has no memory controller; about 3 us a process.

    Args:
        root: ``/``, or a directory that looks like it.
        pids: the processes; one that is gone counts nothing.

    Returns:
        None when all of them are gone.
    """
    sizes: list[int] = []
    for pid in dict.fromkeys(pids):
        try:
            text = KeptFile(f"{root}/proc/{pid}/statm").read_record()
            sizes.append(parse_statm(text).resident_bytes)
        except NoData:
            continue
    return sum(sizes) if sizes else None
