"""Virtual time: a heap of calls ordered by (time, priority, order of asking)."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Final

EARLY: Final = -1
"""Made before all other calls of the same instant that are not made yet."""
NORMAL: Final = 0
"""The priority of ordinary calls."""
LATE: Final = 1
"""Made after all ordinary calls of the same instant, those asked for meanwhile included."""
_COMPACT_ABOVE: Final = 64
"""Cancelled calls are swept out when there are more than this many and they are the majority."""


class Call:
    """A call that has not been made yet; ``cancel`` takes it back."""

    __slots__ = ("_call", "_on_cancel")

    def __init__(self, call: Callable[[], None], on_cancel: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call
        self._on_cancel = on_cancel

    @property
    def is_due(self) -> bool:
        """True until the call is made or cancelled."""
        return self._call is not None

    def cancel(self) -> None:
        """The call will not be made; harmless when it already was."""
        if self._call is not None:
            self._call = None
            self._on_cancel()

    def take(self) -> Callable[[], None] | None:
        """What to call, once; None when it was cancelled."""
        call, self._call = self._call, None
        return call


class VirtualTimeline:
    """A clock that jumps from call to call. Invariant: no call is due before ``now_s``."""

    def __init__(self, *, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._heap: list[tuple[float, int, int, Call]] = []
        self._order = itertools.count()
        self._cancelled = 0
        self._limit_s = -math.inf

    @property
    def now_s(self) -> float:
        """The present, s since 0; never backwards."""
        return self._now_s

    @property
    def free_until_s(self) -> float:
        """Before this time no call is made and nobody outside looks.

        It is the next call or the end of the present run; minus infinity outside a run.
        """
        heap = self._heap
        while heap and not heap[0][3].is_due:
            heapq.heappop(heap)
            self._cancelled -= 1
        return min(heap[0][0], self._limit_s) if heap else self._limit_s

    def call_at(self, time_s: float, call: Callable[[], None], *, priority: int = NORMAL) -> Call:
        """Make the call at that time, or as soon as possible when it has passed.

        Args:
            time_s: when, s.
            call: what to call.
            priority: within one instant lower ones are called first, then in order of asking.

        Raises:
            ValueError: the time is not a number.
        """
        if math.isnan(time_s):
            raise ValueError("a call at a time that is not a number")
        handle = Call(call, self._count_cancelled)
        due_s = max(time_s, self._now_s)
        heapq.heappush(self._heap, (due_s, priority, next(self._order), handle))
        return handle

    def step(self) -> bool:
        """Go to the next call and make it; False when there is none."""
        return self._step_until(math.inf)

    def run(self) -> None:
        """Make all calls, those that calls ask for included."""
        self._run(math.inf)

    def run_until(self, time_s: float) -> None:
        """Make all calls up to and including that time, and stand there."""
        self._run(time_s)
        self._now_s = max(self._now_s, time_s)

    def _run(self, limit_s: float) -> None:
        self._limit_s = limit_s
        try:
            while self._step_until(limit_s):
                pass
        finally:
            self._limit_s = -math.inf

    def _step_until(self, limit_s: float) -> bool:
        while self._heap and self._heap[0][0] <= limit_s:
            time_s, _, _, handle = heapq.heappop(self._heap)
            call = handle.take()
            if call is None:
                self._cancelled -= 1
                continue
            self._now_s = time_s
            call()
            return True
        return False

    def _count_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > max(_COMPACT_ABOVE, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[3].is_due]
            heapq.heapify(self._heap)
            self._cancelled = 0
