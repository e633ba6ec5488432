"""Wall time: seconds since 1970 that never step, anchored once when the daemon starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from iodaemon.core.backend import Timer


class WallTimeline:
    """The event loop's monotonic clock, shifted to the wall clock's reading at the start.

    ``anchor_s`` is that shift; two daemons of one boot differ in it by how the wall clock was set.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.anchor_s = time.time() - loop.time()

    @property
    def now_s(self) -> float:
        """Seconds since 1970, as if nobody had set the clock since the start."""
        return self._loop.time() + self.anchor_s

    def call_at(self, time_s: float, call: Callable[[], None]) -> Timer:
        """Make the call in the event loop at that time."""
        return self._loop.call_at(time_s - self.anchor_s, call)
