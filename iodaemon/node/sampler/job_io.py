"""The I/O of a job's living processes, and the end of a read that does not return.

/proc/PID/io of a process includes its reaped children (kernel/exit.c, wait_task_zombie), and the
supervisor reports the I/O of all first processes and orphans, which it reaps. The sum of both
misses only children whose parent ignores SIGCHLD: the kernel reaps them and drops their counts.

A reader of the ``io`` of a process that hangs in execve(2) waits for ever, and only a fatal signal
ends that (``proc_files``). So the sampler has a second thread, which reports the process and sends
that signal. This costs two assignments for each process that is read.
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
"""For one process. The kernel answers from its memory, in microseconds. On a busy machine the state
of the thread tells a reader that waits in the kernel from one that does not get a CPU."""
_SHARE: Final = 3
"""One in so many of this process's descriptors may be a process's file; each job takes one more."""


class SilentError(Exception):
    """The process ``pid`` does not answer: it hangs in execve(2)."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} does not answer")
        self.pid = pid


class Position:
    """What the reader reads, and how many files it may keep open.

    Attributes:
        steps: grows with each process.
        job: the job of the process.
        pid: the process; 0 if none is read.
        is_careful: whether some process does not answer. Then each process is checked before a
            file of it that could block is read.
        spare: how many more descriptors of processes may be kept between readings, for all jobs.
    """

    def __init__(self) -> None:
        self.steps = self.job = self.pid = 0
        self.is_careful = False
        self.spare = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE

    def enter(self, pid: int) -> None:
        """Note that a file of this process is read next; SilentError if it would not answer."""
        self.pid = pid
        self.steps += 1
        if self.is_careful and is_executing(pid):
            raise SilentError(pid)


class Watch(threading.Thread):
    """Kills its own process if a sweep stays with one process for ``DEADLINE_S``.

    Before that it calls ``tell`` with the job and the process.
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
    """Reads the I/O of one job's processes.

    Parents are read before their children, so a child that is reaped in between is never counted
    twice; if it is missed, the next read includes it.

    At most one descriptor a process is kept. If no more may be kept, the file is opened for each
    reading, which takes 2 to 3 us more, and a zombie counts only when it is reaped.
    """

    def __init__(self, root: str, position: Position) -> None:
        self._position = position
        self._proc = f"{root.rstrip('/')}/proc"
        self._files: dict[int, KeptFile] = {}

    def read(self, members: Sequence[int]) -> Use:
        """The sum now, without a time, over ``members`` (parents before children).

        Raises:
            OSError: a process may not be read (another user's, a set-uid program).
            SilentError: a process does not answer.
        """
        listed = dict.fromkeys(members)
        # Processes that are no longer listed but still readable are zombies. Their children have
        # other parents now, so they are leaves and come last.
        gone = [pid for pid in self._files if pid not in listed]
        found = [self._read(pid, is_listed=True) for pid in listed]
        found += [self._read(pid, is_listed=False) for pid in gone]
        return Use(*map(sum, zip(*filter(None, found), strict=True)))

    def _read(self, pid: int, *, is_listed: bool) -> Use | None:
        """Its I/O, or None if it is gone. The descriptor of an earlier process is replaced."""
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
        """Close all descriptors."""
        for file in self._files.values():
            file.close()
        self._position.spare += len(self._files)
        self._files.clear()
