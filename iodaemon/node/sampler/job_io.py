"""What the living processes of a job moved, and the end of a read that does not return.

/proc/PID/io of a process holds what its reaped children moved (kernel/exit.c,
wait_task_zombie), and the supervisor reaps every first process and orphan and says what they moved.
So the sum over its word and living processes misses only children whose parent ignores SIGCHLD: the
kernel reaps those itself and drops their counts.

A process that hangs in execve(2) holds whoever reads its ``io`` in the kernel, for ever, and only a
fatal signal ends that (``proc_files``). So the process that reads has a second thread, which sends
it one, after it has told whom it was reading. What is noted for this costs two assignments a
process.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from iodaemon.errors import NoData
from iodaemon.node.sampler.proc_files import (
    KeptFile,
    ProcIo,
    is_blocked,
    is_executing,
    parse_proc_io,
)

DEADLINE_S: Final = 0.1
"""For one process. The kernel answers from its memory, in microseconds; that a busy machine does
not let the reader run is told from a wait in the kernel by the thread's state."""


class SilentError(Exception):
    """A process does not answer: it hangs in execve(2).

    Attributes:
        pid: its number.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} does not answer")
        self.pid = pid


class Position:
    """Where the reader is.

    Attributes:
        steps: grows with each process.
        job: whose process it is.
        pid: the process; 0: none.
        is_careful: a process is known that does not answer: before each file that such a process
            blocks, the process itself is looked at.
    """

    __slots__ = ("is_careful", "job", "pid", "steps")

    def __init__(self) -> None:
        self.steps = self.job = self.pid = 0
        self.is_careful = False

    def enter(self, pid: int) -> None:
        """Note that a file of this process is read next.

        Raises:
            SilentError: it would not answer.
        """
        self.pid = pid
        self.steps += 1
        if self.is_careful and is_executing(pid):
            raise SilentError(pid)


class Watch(threading.Thread):
    """Ends this process where a sweep stays with one process for ``DEADLINE_S``.

    Args:
        position: where the sweep is.
        tell: called with job and process, before the end.
    """

    def __init__(self, position: Position, tell: Callable[[int, int], None]) -> None:
        super().__init__(name="watch", daemon=True)
        self._position = position
        self._tell = tell
        self._reader = f"self/task/{threading.get_native_id()}"
        self._begun = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self.start()

    def __enter__(self) -> None:
        self._begun.release()

    def __exit__(self, *_: object) -> None:
        self._done.release()

    def run(self) -> None:
        position = self._position
        while True:
            self._begun.acquire()
            steps = position.steps
            while not self._done.acquire(timeout=DEADLINE_S):
                if position.steps == steps and is_blocked(self._reader):
                    self._tell(position.job, position.pid)
                    os.kill(os.getpid(), signal.SIGKILL)
                steps = position.steps


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

    Args:
        most: that may be kept; None: a share of this process's limit of open files.
    """

    def __init__(self, most: int | None = None) -> None:
        self._left = (
            resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE if most is None else most
        )

    def take(self) -> bool:
        """True when one more may be kept."""
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def give(self, count: int = 1) -> None:
        """So many are closed."""
        self._left += count


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
            if error.errno in _UNREADABLE:
                raise UnknownError from error
            raise
        if io is not None:
            self._keep(pid, file)
        return io

    def _find(self, pid: int, file: KeptFile) -> ProcIo | None:
        self._position.enter(pid)
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
