"""Waiting for something to become true, without asking again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watch:
    """Wakes those who wait whenever the state may have changed.

    Invariant: a condition is looked at once when waiting begins and once after each change.

    Attributes:
        changes: how often the state may have changed.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._conditions: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def notify(self) -> None:
        """The state may have changed."""
        self.changes += 1
        for future, holds in list(self._conditions.items()):
            if not future.done() and holds():
                future.set_result(None)

    async def until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Return True once the condition holds, False when the time is over first."""
        if holds():
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._conditions[future] = holds
        try:
            await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return False
        else:
            return True
        finally:
            del self._conditions[future]
