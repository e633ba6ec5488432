"""One job's I/O over all processes it ever had, whatever they forked, orphaned and outlived.

/proc/PID/io of a process holds what its reaped children moved (kernel/exit.c,
wait_task_zombie), and the supervisor reaps every first process and orphan and says what they moved.
So the sum over its word and living processes misses only children whose parent ignores SIGCHLD: the
kernel reaps those itself and drops their counts.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import get_ident
from typing import Final, NamedTuple

from iodaemon.errors import NoData
from iodaemon.node.live_job import Reaped
from iodaemon.node.sampler.kernel_file import KeptFile
from iodaemon.node.sampler.proc_files import ProcIo, is_executing, parse_proc_io
from iodaemon.node.sampler.reader_thread import GivenUpError, Position, SilentError

MOST_OF_A_JOB: Final = 256
"""Processes of one job whose file is kept open: ranks and threads of one socket's CPUs are fewer.
Each further one is opened for each reading, 2 to 3 us more."""
_SHARE: Final = 4
"""Of the descriptors that this process may have one in so many: the others are connections."""
_UNREADABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE})
"""Not ours to read, or no descriptor left: the process is there, its I/O is unknown."""


class Allowance:
    """Descriptors that all jobs together may keep open between readings, however many they fork.

    Invariant: as many were given back as were taken, less those that are kept; never more than
    ``most`` are kept.
    """

    def __init__(self, most: int | None = None) -> None:
        """Allow so many; None: a share of this process's limit of open files."""
        self._left = _share() if most is None else most

    def take(self) -> bool:
        """True when one more may be kept."""
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def give(self, count: int = 1) -> None:
        """So many are closed."""
        self._left += count


def _share() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // _SHARE


class _Totals(NamedTuple):
    """Sums over processes, as counted by the kernel."""

    read_bytes: int = 0
    write_bytes: int = 0
    cancelled_write_bytes: int = 0
    operations: int = 0
    logical_bytes: int = 0


class Moved(NamedTuple):
    """What a job moved, as ``core.sample.JobCounters``; all None, which is not 0: not known."""

    read_bytes: int | None = None
    written_bytes: int | None = None
    operations: int | None = None
    logical_bytes: int | None = None
    silent_pid: int | None = None


_NOTHING: Final = ProcIo(0, 0, 0, 0, 0, 0, 0)


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

    def read(self, silent_pid: int | None = None) -> Moved:
        """The totals now.

        They are not known while one of the processes may not be read (another user's, a set-uid
        program) or does not answer, and until it is known what was waited for.

        Args:
            silent_pid: a process that is known not to answer: none is read.
        """
        if silent_pid is not None:
            return Moved(silent_pid=silent_pid)
        try:
            self._highest = _Totals(*map(max, self._highest, self._sum()))
        except SilentError as error:
            return Moved(silent_pid=error.pid)
        except _Unknown:
            return Moved()
        highest = self._highest
        return Moved(
            read_bytes=highest.read_bytes,
            written_bytes=max(0, highest.write_bytes - highest.cancelled_write_bytes),
            operations=highest.operations,
            logical_bytes=highest.logical_bytes,
        )

    def _sum(self) -> _Totals:
        reaped = self._reaped()  # first: who is reaped meanwhile is missing, not doubled
        if reaped is None:
            raise _Unknown
        try:
            members = list(self._members())
        except NoData:
            members = []
        self.last_members = members
        listed = set(members)
        # Those no longer listed but still readable are zombies. Their children were handed on,
        # so they are leaves and come after all others.
        pids = dict.fromkeys([*members, *self._files])
        found = [self._read_member(pid, is_listed=pid in listed) for pid in pids]
        there = [_NOTHING, *(io for io in found if io is not None)]
        io = ProcIo._make(map(sum, zip(*there, strict=True)))
        return _Totals(
            reaped.read_bytes + io.read_bytes,
            reaped.written_bytes + io.write_bytes,
            reaped.cancelled_bytes + io.cancelled_write_bytes,
            reaped.operations + io.read_calls + io.write_calls,
            reaped.logical_bytes + io.rchar_bytes + io.wchar_bytes,
        )

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
            file = KeptFile(f"{self._proc}/{pid}/io")
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
