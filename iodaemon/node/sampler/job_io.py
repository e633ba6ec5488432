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

import os
import resource
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Final

from iodaemon.errors import NoData
from iodaemon.node.sampler.proc_files import KeptFile, is_blocked, is_executing
from iodaemon.supervisor.ledger import Use
from iodaemon.supervisor.reap import parse_io

DEADLINE_S: Final = 0.1
"""For one process. The kernel answers from its memory, in microseconds; that a busy machine does
not let the reader run is told from a wait in the kernel by the thread's state."""
_SHARE: Final = 3
"""One in so many of the descriptors that this process may have is for files of processes; each
job takes one more."""


class SilentError(Exception):
    """The process ``pid`` does not answer: it hangs in execve(2)."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} does not answer")
        self.pid = pid


class Position:
    """Where the reader is, and what it may keep open.

    Attributes:
        steps: grows with each process.
        job: whose process it is.
        pid: the process; 0: none.
        is_careful: a process is known that does not answer: before each file that such a process
            blocks, the process itself is looked at.
        spare: descriptors of processes that may be kept between readings, of all jobs together,
            however many they fork.
    """

    def __init__(self) -> None:
        self.steps = self.job = self.pid = 0
        self.is_careful = False
        self.spare = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE

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

    ``tell`` is called with job and process before.
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


class JobIo:
    """Reads what one job's processes moved.

    Parents are read before their children, so that a child reaped in between is counted once or
    not at all, never twice; what is missed so is made up for by the next read.

    Invariant: at most one descriptor a process, and none of one that was seen to be gone. Where
    none is to spare the file is opened for each reading, which takes 2 to 3 us more; a zombie
    among those counts once it is reaped.
    """

    def __init__(self, root: str, position: Position) -> None:
        self._position = position
        self._proc = f"{root.rstrip('/')}/proc"
        self._files: dict[int, KeptFile] = {}

    def read(self, members: Sequence[int]) -> Use:
        """The sum now, without a time.

        Args:
            members: parents before children; may name one twice, or some that are gone.

        Raises:
            OSError: one may not be read (another user's, a set-uid program).
            SilentError: one does not answer.
        """
        listed = dict.fromkeys(members)
        # Those no longer listed but still readable are zombies. Their children were handed on,
        # so they are leaves and come after all others.
        gone = [pid for pid in self._files if pid not in listed]
        found = [self._read(pid, is_listed=True) for pid in listed]
        found += [self._read(pid, is_listed=False) for pid in gone]
        return Use(*map(sum, zip(*filter(None, found), strict=True)))

    def _read(self, pid: int, *, is_listed: bool) -> Use | None:
        """Its I/O; None when it is gone. A descriptor that is outlived is replaced once."""
        if (file := self._files.get(pid)) is not None:
            if (use := self._parse(pid, file)) is not None:
                return use
            del self._files[pid]
            file.close()
            self._position.spare += 1
            if not is_listed:
                return None
        file, use = KeptFile(f"{self._proc}/{pid}/io"), None
        try:
            use = self._parse(pid, file)
        finally:
            if use is not None and self._position.spare > 0:
                self._position.spare -= 1
                self._files[pid] = file
            else:
                file.close()
        return use

    def _parse(self, pid: int, file: KeptFile) -> Use | None:
        self._position.enter(pid)
        try:
            return parse_io(file.read())
        except (NoData, ValueError):
            return None

    def close(self) -> None:
        """Give all descriptors back; nothing may be read after that."""
        for file in self._files.values():
            file.close()
        self._position.spare += len(self._files)
        self._files.clear()
