"""How long a step of staging has worked: a clock that stands still while its job does.

A job that is suspended does not run, and neither does the step that copies for it: that time is
no part of its run time, and so none of this. A thread that ticks, and stands still with its
process, tells the one from the other: of the time between two ticks no more counts than
``_MOST_S``. A tick comes also while the process waits for a disk. Standard library only.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Final

_TICK_S: Final = 0.1
_MOST_S: Final = 0.5
"""What a suspension counts for at most; a busy machine lets a thread that slept run sooner."""


class Clock:
    """Ticks from when it is made until ``stop``."""

    def __init__(self) -> None:
        """Begin; where no thread can be had (a limit of processes) it knows nothing."""
        self._running = threading.Lock()
        self._running.acquire()
        self._last_s, self._worked_s = time.monotonic(), 0.0
        self._counting = threading.Lock()
        self._thread: threading.Thread | None = threading.Thread(target=self._tick, daemon=True)
        with _no_signals():  # they are for the thread that copies
            try:
                self._thread.start()
            except RuntimeError:
                self._thread = None

    def took_s(self) -> float | None:
        """So long until now, s; None: it is not known."""
        if self._thread is None:
            return None
        self._count()
        return self._worked_s

    def stop(self) -> None:
        """End the thread; the process has one less then, and may go on to be another program."""
        if self._running.locked() and self._thread is not None:
            self._running.release()
            self._thread.join()

    def _tick(self) -> None:
        while not self._running.acquire(timeout=_TICK_S):
            self._count()
        self._running.release()

    def _count(self) -> None:
        with self._counting:
            now_s = time.monotonic()
            self._worked_s += min(now_s - self._last_s, _MOST_S)
            self._last_s = now_s


@contextlib.contextmanager
def _no_signals() -> Iterator[None]:
    """What is begun meanwhile is never interrupted by one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
