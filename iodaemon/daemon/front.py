"""What comes in before anybody is asked: connections of each user, and the bodies they send.

One user's flood, or slowness, is that user's own: others find room as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Literal

from aiohttp import web

from iodaemon.daemon.account import Accounts
from iodaemon.daemon.authorise import read_peer
from iodaemon.daemon.fair_queue import without_place
from iodaemon.errors import RequestError

MOST_OF_A_USER: Final = 256
"""Connections at once on a shared daemon; of its 65,536 files one user takes half a percent."""
MOST_IN_ALL: Final = 16 * 1024
"""Connections of all users but root together: a quarter of its 65,536 files; jobs have the rest."""
ACCOUNTS: Final = web.AppKey("accounts", Accounts)
"""As whom a user is counted."""
BODY_WITHIN_S: Final = 60.0
_SMALL_BYTES: Final = 64 * 1024
"""Bodies up to this are read beside each other: 256 connections hold 16 MiB of them at most."""
UNREAD_S: Final = 60.0
"""In which a client takes an answer that is large and made already; else it is hung up on."""
_UNREAD_BYTES: Final = 1024 * 1024
"""An answer that waits for its reader is large from here on; what is less may wait (a pager)."""
ASKING: Final = -2
"""Those of whom it is being asked, for two seconds at most, are counted apart: no user's number."""
_REFUSED_S: Final = 0.1
"""In which a connection that is one too many may ask, to be told so."""
Kind = Literal["body", "search", "answer", "import"]
TURNS: Final = web.AppKey("turns", dict[tuple[Kind, int], asyncio.Lock])
"""Of each user one large body is read at a time, one output searched, one large answer sent, one
import of hints written."""


async def read_bytes(request: web.Request) -> bytes:
    """The whole body of the request; raises as ``body_of``."""
    async with body_of(request) as body:
        return body


@contextlib.asynccontextmanager
async def body_of(request: web.Request) -> AsyncIterator[bytes]:
    """The whole body of the request; while it is dealt with no other large one of this user is.

    Raises:
        RequestError: it does not come, or comes drop by drop.
        web.HTTPRequestEntityTooLarge: it is too large.
    """
    length = request.content_length
    is_small = length is not None and length <= _SMALL_BYTES
    is_small &= "Content-Encoding" not in request.headers
    async with contextlib.AsyncExitStack() as held:
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                async with without_place():
                    if not is_small:
                        await held.enter_async_context(find_turn(request, "body"))
                    body = await request.read()
        except TimeoutError as error:
            raise RequestError(
                f"the body was not here within {BODY_WITHIN_S:g} s; send it at once"
            ) from error
        yield body


def find_turn(request: web.Request, kind: Kind) -> asyncio.Lock:
    """While this is held the user's other requests of this kind wait.

    Raises:
        RequestError: the connection is gone.
    """
    connection = None if request.transport is None else request.transport.get_extra_info("socket")
    if connection is None:
        raise RequestError("the connection is gone")
    pool = request.app[ACCOUNTS].pool(read_peer(connection).uid)
    return request.app[TURNS].setdefault((kind, pool), asyncio.Lock())


class Front:
    """Makes the protocol of each new connection; one that is too many is told so, and closed.

    Args:
        make: the protocol of a connection that is let in (``web.Server``).
        accounts: who has none is counted with all others who have none.
    """

    def __init__(self, make: Callable[[], Any], accounts: Accounts) -> None:
        self._make = make
        self.accounts = accounts
        self._open: Counter[int] = Counter()

    def __call__(self) -> Any:
        """A protocol, as ``create_unix_server`` wants them."""
        return _Connection(self)

    def enter(self, pool: int) -> bool:
        """Count a connection; False: it is one too many."""
        others = self._open.total() - self._open[0]
        if self._open[pool] >= MOST_OF_A_USER or (pool != 0 and others >= MOST_IN_ALL):
            return False
        self._open[pool] += 1
        return True

    def make(self) -> Any:
        """The protocol of one that is let in."""
        return self._make()

    def leave(self, pool: int) -> None:
        """A connection has ended."""
        self._open[pool] -= 1
        if not self._open[pool]:
            del self._open[pool]


class _Connection:
    """An asyncio protocol that hands everything on to the one it lets in."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._pool: int | None = None
        self._asking: asyncio.Task[None] | None = None
        self._lost = False
        self._inner: Any = None
        self._refused: asyncio.Transport | None = None
        self._transport: asyncio.Transport | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Let it in, or say that it is too many, once it is known who has an account."""
        uid = read_peer(transport.get_extra_info("socket")).uid
        if self._front.accounts.is_fresh(uid):
            self._begin(transport, self._front.accounts.pool(uid))
            return
        if not self._front.enter(ASKING):
            self._refuse(transport)
            return
        self._pool = ASKING
        loop = asyncio.get_running_loop()
        # Not at once: up to Python 3.11.3 asyncio begins to read after this, paused or not, and
        # what the client has sent already would be lost.
        loop.call_soon(transport.pause_reading)
        self._asking = loop.create_task(self._ask(transport, uid))

    async def _ask(self, transport: asyncio.Transport, uid: int) -> None:
        await self._front.accounts.ask(uid)
        if self._lost:  # just now; up to Python 3.11 ``wait_for`` may answer although cancelled
            return
        self._front.leave(ASKING)
        self._pool = None
        transport.resume_reading()
        self._begin(transport, self._front.accounts.pool(uid))

    def _begin(self, transport: asyncio.Transport, pool: int) -> None:
        if not self._front.enter(pool):
            self._refuse(transport)
            return
        self._pool, self._inner = pool, self._front.make()
        self._transport = transport
        self._inner.connection_made(transport)

    def _refuse(self, transport: asyncio.Transport) -> None:
        self._refused = transport
        asyncio.get_running_loop().call_later(_REFUSED_S, transport.close)

    def connection_lost(self, error: Exception | None) -> None:
        """It makes room for another."""
        self._lost = True
        self._stop_waiting()
        if self._asking is not None:
            self._asking.cancel()
        if self._pool is not None:
            self._front.leave(self._pool)
        if self._inner is not None:
            self._inner.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """What the client sends."""
        if self._inner is not None:
            self._inner.data_received(data)
        elif self._refused is not None:  # closed with its words unread, it would not hear ours
            self._refused.write(_REFUSAL)
            self._refused.close()
            self._refused = None

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        """The client does not read."""
        if self._inner is not None and self._transport is not None:
            self._inner.pause_writing()
            if self._transport.get_write_buffer_size() > _UNREAD_BYTES:
                loop = asyncio.get_running_loop()
                self._unread = loop.call_later(UNREAD_S, self._transport.abort)

    def resume_writing(self) -> None:
        """The client reads on."""
        self._stop_waiting()
        if self._inner is not None:
            self._inner.resume_writing()

    def _stop_waiting(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _refusal() -> bytes:
    text = "too many connections of this user; close some, or try again"
    body = json.dumps({"error": {"code": "unavailable", "message": text}}).encode()
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )


_REFUSAL: Final = _refusal()
