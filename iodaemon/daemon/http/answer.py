"""Answers that may be large: made and sent in portions, one of each user at a time.

What is not read is not made: an answer goes no further than its reader, holds up only its user's
other large ones, and ends when nothing of it is taken for ``UNREAD_S``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Self

import msgspec
from aiohttp import web

from iodaemon.daemon.driver import Driver
from iodaemon.daemon.http.access import ACCESS, UNREAD_S, give_place

AT_ONCE: Final = 500
"""Records made, or jobs looked at, between two looks at what else there is to do: some 10 ms."""
LINES: Final = "application/x-ndjson"
"""One JSON document a line."""
OUTPUT: Final = "application/octet-stream"
"""The bytes of a file."""
PIECE_BYTES: Final = 256 * 1024
"""What is made ahead of the reader; what fits is one plain answer."""
_NO_HEAD: Final[Mapping[str, Any]] = MappingProxyType({})


def json_answer(value: object, *, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


class Cached:
    """An answer that is made once for all who ask: anew when the state may have changed.

    Nothing is older than a timeslice.
    """

    def __init__(self, make: Callable[[], bytes], driver: Driver) -> None:
        self._make = make
        self._driver = driver
        self._made: tuple[int, float, bytes] | None = None

    def get(self) -> bytes:
        changes, now_s = self._driver.watch.changes, self._driver.timeline.now_s
        if self._made is not None:
            made_at, made_s, answer = self._made
            age_s = now_s - made_s
            if changes == made_at and age_s < self._driver.controller.rules.regulation.timeslice_s:
                return answer
        answer = self._make()
        self._made = (changes, now_s, answer)
        return answer


class Answer:
    """One answer to one request; ``async with`` gives its turn back.

    Attributes:
        headers: further ones of an answer in pieces.
    """

    def __init__(self, request: web.Request, content_type: str = "application/json") -> None:
        self._request = request
        self._turn = request.app[ACCESS].turn(request, "answer")
        self._has_turn = False
        self._response: web.StreamResponse | None = None
        self._content_type = content_type
        self.headers: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.give_turn()

    async def take_turn(self) -> None:
        """Wait for this user's other large answers; at once where the turn is had already.

        Whoever waits for this turn, or has it, holds up no small requests of the same user.
        """
        give_place()
        if not self._has_turn:
            await self._turn.acquire()
            self._has_turn = True

    def give_turn(self) -> None:
        if self._has_turn:
            self._turn.release()
        self._has_turn = False

    @property
    def is_begun(self) -> bool:
        """True once its head is sent: no other answer can be given any more."""
        return self._response is not None

    async def begin(self) -> web.StreamResponse:
        if self._response is None:
            self._response = web.StreamResponse(
                headers={"Content-Type": self._content_type, **self.headers}
            )
            await self._response.prepare(self._request)
        return self._response

    async def write(self, data: bytes | bytearray) -> None:
        """Send the next piece; returns when most of it is taken.

        Raises:
            ConnectionResetError: the reader is gone, or reads nothing.
        """
        response = await self.begin()
        if not data:
            return
        try:
            async with asyncio.timeout(UNREAD_S):
                await response.write(bytes(data))
        except TimeoutError as error:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("nothing of the answer is read") from error
        await asyncio.sleep(0)

    async def send(self, parts: Iterable[bytes]) -> web.StreamResponse:
        try:
            rest = await self._write_full(parts)
            if self._response is None:
                return web.Response(body=rest, content_type=self._content_type)
            await self.write(rest)
        except ConnectionResetError:
            pass  # nobody reads any more
        return await self.begin()

    async def write_all(self, parts: Iterable[bytes]) -> None:
        """All of it, with more to come.

        Raises:
            ConnectionResetError: the reader is gone, or reads nothing.
        """
        await self.write(await self._write_full(parts))

    async def _write_full(self, parts: Iterable[bytes]) -> bytes:
        """Write what fills pieces, when it is this user's turn; what is left at the end."""
        waiting = bytearray()
        for place, part in enumerate(parts, 1):
            waiting += part
            if len(waiting) >= PIECE_BYTES:
                await self.take_turn()
                await self.write(waiting)
                waiting.clear()
            elif place % AT_ONCE == 0:
                await asyncio.sleep(0)
        return bytes(waiting)

    async def send_rows(
        self, name: str, rows: Iterable[Mapping[str, Any]], head: Mapping[str, Any] = _NO_HEAD
    ) -> web.StreamResponse:
        """The object with what is in ``head`` and, under this name, the list of the rows."""
        return await self.send(_parts(name, rows, head))


def _parts(
    name: str, rows: Iterable[Mapping[str, Any]], head: Mapping[str, Any]
) -> Iterable[bytes]:
    before = msgspec.json.encode(dict(head))[:-1] + (b"," if head else b"") + f'"{name}":['.encode()
    for row in rows:
        yield before + msgspec.json.encode(row)
        before = b","
    yield b"]}" if before == b"," else before + b"]}"
