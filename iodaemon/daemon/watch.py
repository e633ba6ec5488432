"""Waiting for something to become true, without asking again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from iodaemon.core.decision import Transition
from iodaemon.daemon.notebook import Note

News = Transition | Note
"""A step in a job's life, or what regulation saw, would have done, or was told."""

LONGEST_BACKLOG: Final = 100_000
"""Steps kept for a listener that does not listen; then its stream ends."""


class Watch:
    """Wakes those who wait whenever the state may have changed.

    Invariant: a condition is looked at once when waiting begins and once after each change.
    """

    def __init__(self) -> None:
        self._conditions: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._streams: set[asyncio.Queue[News | None]] = set()

    def notify(self, news: Sequence[News]) -> None:
        """The state may have changed; this is what happened."""
        for future, holds in list(self._conditions.items()):
            if not future.done() and holds():
                future.set_result(None)
        for stream in list(self._streams):
            if stream.qsize() + len(news) > LONGEST_BACKLOG:
                self._end(stream)
                continue
            for item in news:
                stream.put_nowait(item)

    def end_streams(self) -> None:
        """Nothing comes any more."""
        for stream in list(self._streams):
            self._end(stream)

    def _end(self, stream: asyncio.Queue[News | None]) -> None:
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

    @contextmanager
    def listening(self) -> Iterator[AsyncGenerator[News, None]]:
        """All that happens from now on; ends for a listener that falls far behind."""
        stream: asyncio.Queue[News | None] = asyncio.Queue()
        self._streams.add(stream)
        try:
            yield _items(stream)
        finally:
            self._streams.discard(stream)


async def _items(stream: asyncio.Queue[News | None]) -> AsyncGenerator[News, None]:
    while (item := await stream.get()) is not None:
        yield item
