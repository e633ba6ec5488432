"""What the living processes of a job moved, their reaped children included.

/proc/PID/io of a process holds what its reaped children moved (kernel/exit.c,
wait_task_zombie), and the supervisor reaps every first process and orphan and says what they moved.
So the sum over its word (``totals``) and living processes misses only children whose parent ignores
SIGCHLD: the kernel reaps those itself and drops their counts.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Sequence
from typing import Final, NamedTuple

from iodaemon.errors import NoData
from iodaemon.node.sampler.kernel_file import KeptFile
from iodaemon.node.sampler.proc_files import ProcIo, is_executing, parse_proc_io
from iodaemon.node.sampler.watch import Position, SilentError

MOST_OF_A_JOB: Final = 256
"""Processes of one job whose file is kept open: ranks and threads of one socket's CPUs are fewer.
Each further one is opened for each reading, 2 to 3 us more."""
_SHARE: Final = 3
"""Of the descriptors that this process may have one in so many: each job has another one."""
_MOST: Final = 1 << 63
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


class Moved(NamedTuple):
    """What processes moved together, as the kernel counts it; ``operations`` are read and write
    calls, ``logical_bytes`` what these returned and took.
    """

    read_bytes: int = 0
    written_bytes: int = 0
    cancelled_bytes: int = 0
    operations: int = 0
    logical_bytes: int = 0


class UnknownError(Exception):
    """There is I/O that cannot be read."""


class JobIo:
    """Reads what one job's processes moved.

    Parents are read before their children, so that a child reaped in between is counted once or
    not at all, never twice; what is missed so is made up for by the next read.

    Invariant: at most one descriptor a process, and none of one that was seen to be gone; at most
    ``MOST_OF_A_JOB`` and what the allowance has. Of the processes beyond, files are opened for each
    reading; a zombie among them counts once it is reaped.

    Args:
        root: ``/``, or a directory that looks like it.
        allowance: of descriptors, for all jobs.
        position: tells which process is being read.
    """

    __slots__ = ("_allowance", "_files", "_position", "_proc")

    def __init__(self, root: str, allowance: Allowance, position: Position) -> None:
        self._position = position
        self._allowance = allowance
        self._proc = f"{root.rstrip('/')}/proc"
        self._files: dict[int, KeptFile] = {}

    def read(self, members: Sequence[int]) -> Moved:
        """The sum now.

        Args:
            members: the job's processes, parents before children; may name one twice, or some that
                are gone.

        Raises:
            UnknownError: one may not be read (another user's, a set-uid program), or it cannot be
                so much.
            SilentError: one does not answer.
        """
        read = written = cancelled = calls = logical = 0
        listed = dict.fromkeys(members)
        # Those no longer listed but still readable are zombies. Their children were handed on,
        # so they are leaves and come after all others.
        gone = [pid for pid in self._files if pid not in listed]
        for pid in (*listed, *gone):
            io = self._read_member(pid, is_listed=pid in listed)
            if io is not None:
                read += io.read_bytes
                written += io.write_bytes
                cancelled += io.cancelled_write_bytes
                calls += io.read_calls + io.write_calls
                logical += io.rchar_bytes + io.wchar_bytes
        moved = (read, written, cancelled, calls, logical)
        if min(moved) < 0 or max(moved) > _MOST:
            raise UnknownError
        return Moved(*moved)

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
        """Its I/O; None when it is gone. ``Position.enter``, but without a call."""
        position = self._position
        position.pid = pid
        position.steps += 1
        if position.is_careful and is_executing(pid):
            raise SilentError(pid)
        try:
            return parse_proc_io(file.read_record())
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
    return UnknownError() if error.errno in _UNREADABLE else error
