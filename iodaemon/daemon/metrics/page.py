"""``GET /metrics``: on the daemon's own socket, and by TCP on the loopback interface if wanted.

Anybody on the machine can reach the TCP port: it only reads, and what it costs is bounded.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from iodaemon.config import Config
from iodaemon.daemon.http.access import FairQueue
from iodaemon.daemon.http.answer import Cached
from iodaemon.daemon.http.route import Route
from iodaemon.daemon.metrics.table import Exporter, Scene
from iodaemon.daemon.telltale import request_log
from iodaemon.errors import ConfigError

_MOST_CONNECTIONS: Final = 16
"""More are refused: whoever opens thousands must not take the daemon's open files or time."""
_SWEEP_S: Final = 30.0
"""A connection that two sweeps found is closed, idle or not; Prometheus opens another one."""
_LAST_ANSWERS_S: Final = 1.0
_BY_TCP: Final = 0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class MetricsPage:
    """The route, and the TCP listener that serves nothing but this route."""

    def __init__(self, scene: Scene) -> None:
        self._page = Cached(Exporter(scene).page, scene.driver)
        self._queue = FairQueue()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    def routes(self) -> Sequence[Route]:
        """What is read where."""
        return [Route("GET", "/metrics", self._show, "text/plain")]

    async def open(self, config: Config) -> None:
        """Listen by TCP where the configuration says so.

        Raises:
            ConfigError: the address cannot be had.
        """
        if config.metrics_address is None:
            return
        app = web.Application(middlewares=[self._in_turn])
        app.router.add_get("/metrics", self._show)
        self._runner = web.AppRunner(
            app, access_log=None, logger=request_log(), shutdown_timeout=_LAST_ANSWERS_S
        )
        await self._runner.setup()
        bound = _bind(*config.metrics_address)
        self._listener = await asyncio.get_running_loop().create_server(self._accept, sock=bound)
        self._sweep(frozenset())

    async def close(self) -> None:
        """Answer no more."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _show(self, *_: object) -> web.Response:
        """Prometheus' text format."""
        return web.Response(body=self._page.get(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @web.middleware
    async def _in_turn(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """All who ask by TCP are one user: nobody knows more of them."""
        async with self._queue.place(_BY_TCP):
            return await handler(request)

    def _accept(self) -> asyncio.Protocol:
        if len(self._connections()) >= _MOST_CONNECTIONS:
            return _Refusal()
        assert self._runner is not None
        assert self._runner.server is not None
        return self._runner.server()

    def _sweep(self, seen: frozenset[web.RequestHandler]) -> None:
        """Close what the last sweep has seen already."""
        there = frozenset(self._connections())
        for connection in there & seen:
            if connection.transport is not None:
                connection.transport.close()
        self._sweeping = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep, there - seen)

    def _connections(self) -> list[web.RequestHandler]:
        server = None if self._runner is None else self._runner.server
        return [] if server is None else server.connections


class _Refusal(asyncio.Protocol):
    """Hangs up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Not one more."""
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        text = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(
            f"metrics_listen {host}:{port} cannot be used ({text}); free it, or set another "
            "metrics_listen"
        ) from error
