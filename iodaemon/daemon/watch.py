"""Waiting for something to become true, without asking again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from iodaemon.core.decision import Transition

LONGEST_BACKLOG: Final = 100_000
"""Steps kept for a listener that does not listen; then its stream ends."""


class Watch:
    """Wakes those who wait whenever the state may have changed.

    Invariant: a condition is looked at once when waiting begins and once after each change.
    """

    def __init__(self) -> None:
        self._conditions: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._streams: set[asyncio.Queue[Transition | None]] = set()

    def notify(self, transitions: Sequence[Transition]) -> None:
        """The state may have changed; these are the steps that jobs have made."""
        for future, holds in list(self._conditions.items()):
            if not future.done() and holds():
                future.set_result(None)
        for stream in list(self._streams):
            if stream.qsize() + len(transitions) > LONGEST_BACKLOG:
                self._end(stream)
                continue
            for transition in transitions:
                stream.put_nowait(transition)

    def end_streams(self) -> None:
        """Nothing comes any more."""
        for stream in list(self._streams):
            self._end(stream)

    def _end(self, stream: asyncio.Queue[Transition | None]) -> None:
        self._streams.discard(stream)
        stream.put_nowait(None)

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

    async def transitions(self) -> AsyncGenerator[Transition, None]:
        """Every step that jobs make from now on; ends for a listener that falls far behind."""
        stream: asyncio.Queue[Transition | None] = asyncio.Queue()
        self._streams.add(stream)
        try:
            while (step := await stream.get()) is not None:
                yield step
        finally:
            self._streams.discard(stream)
