"""A thread that reads files of processes, and is given up where one of them does not answer.

Such a thread waits in the kernel, and nothing but the end of this process ends the wait
(``proc_files``). Another thread takes its place, and the job that it was reading is set aside until
the first one comes back. What is published for this costs two assignments a process.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Final

from iodaemon.node.sampler.proc_files import is_blocked, is_executing

DEADLINE_S: Final = 0.1
"""For one process. The kernel answers from its memory, in microseconds; that a busy machine does
not let the thread run is told from a wait in the kernel by the thread's state."""
MOST_GIVEN_UP: Final = 16
"""Threads that wait at one time. Once there are so many, no more files of processes are read."""


class SilentError(Exception):
    """A process does not answer: it hangs in execve(2).

    Attributes:
        pid: its number.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} does not answer")
        self.pid = pid


class GivenUpError(Exception):
    """This thread has been given up, and came back."""


class Position:
    """Where the reading thread is; written by it alone, but for ``reader``.

    Attributes:
        reader: the only thread that may read (``threading.get_ident``); None: whoever calls.
        steps: grows with each process.
        job: whose process it is.
        pid: the process; 0: none.
        is_careful: a process is known that does not answer: before each file that such a process
            blocks, the process itself is looked at.
    """

    __slots__ = ("is_careful", "job", "pid", "reader", "steps")

    def __init__(self) -> None:
        self.reader: int | None = None
        self.steps = 0
        self.job = 0
        self.pid = 0
        self.is_careful = False

    def enter(self, pid: int) -> None:
        """Say that a file of this process is read next.

        Raises:
            SilentError: it would not answer.
        """
        self.pid = pid
        self.steps += 1
        if self.is_careful and is_executing(pid):
            raise SilentError(pid)

    def leave(self) -> None:
        """The file has been read.

        Raises:
            GivenUpError: too late.
        """
        if self.reader is not None and self.reader != threading.get_ident():
            raise GivenUpError


class ReaderThread(threading.Thread):
    """One thread. Nobody waits for it at the end of the interpreter."""

    def __init__(self) -> None:
        super().__init__(name="reading", daemon=True)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.start()

    def do(self, work: Callable[[], None]) -> None:
        """Do it after all that was asked for before."""
        self._work.put(work)

    def end(self) -> None:
        """End once all of it is done."""
        self._work.put(None)

    def run(self) -> None:
        """Work until it is to end, or has been given up."""
        with contextlib.suppress(GivenUpError):
            while (work := self._work.get()) is not None:
                work()

    def is_blocked(self) -> bool:
        """Whether it waits in the kernel where no signal is heard."""
        return is_blocked(f"self/task/{self.native_id}")
