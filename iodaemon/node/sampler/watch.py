"""Where a sweep is, and the end of a process that a read does not return to.

A process that hangs in execve(2) holds whoever reads its ``io`` in the kernel, for ever, and only a
fatal signal ends that (``proc_files``). So the process that reads has a second thread, which sends
it one, after it has told whom it was reading. What is noted for this costs two assignments a
process.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from iodaemon.node.sampler.proc_files import is_blocked, is_executing

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
