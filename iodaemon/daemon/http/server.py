"""HTTP on the unix socket (docs/api.md). A view of the state and a way to post events."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import web

import iodaemon.daemon.http.routes  # noqa: F401 - declares them
from iodaemon.daemon.http.access import (
    ACCESS,
    LARGEST_BODY_BYTES,
    Front,
    give_place,
    read_body,
)
from iodaemon.daemon.http.context import Context
from iodaemon.daemon.http.openapi import describe
from iodaemon.daemon.http.refusal import error_answer, error_text, find_status, refused
from iodaemon.daemon.http.route import ROUTES, Handler, Route
from iodaemon.daemon.telltale import request_log
from iodaemon.errors import JournalError, RequestError
from iodaemon.supervisor.failpoint import reach

_LAST_ANSWERS_S: Final = 2.0
"""What a request that is being answered still gets when the daemon stops."""
_SILENT_S: Final = 75.0
"""A connection without a whole request for so long is closed."""
_BACKLOG: Final = 512
"""Connections that wait to be accepted: twice as many as one user may have."""
_ACCEPTED_AT_ONCE: Final = 16
"""Connections that asyncio accepts in one round of the event loop: some 2 ms."""


class Server:
    """The routes and the socket they are reached by.

    Args:
        context: what they work on.
        further: routes that are declared elsewhere.
    """

    def __init__(self, context: Context, further: Sequence[Route] = ()) -> None:
        self.context = context
        openapi = Route("GET", "/v1/openapi.json", self._describe, dict[str, Any])
        self.routes = [*ROUTES, openapi, *further]
        self._described = b""
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None
        self._made: tuple[Path, int | None] | None = None  # the socket's file and its inode

    async def open(self, path: Path, handed: socket.socket | None = None) -> None:
        """Listen on the socket, which only its owner may reach, or on the one handed over.

        Raises:
            OSError: the socket cannot be made.
        """
        self._runner = web.AppRunner(
            self._make_app(),
            access_log=None,
            logger=request_log(),
            shutdown_timeout=_LAST_ANSWERS_S,
            handler_cancellation=True,  # nothing is done for a client that is gone
            keepalive_timeout=_SILENT_S,
        )
        await self._runner.setup()
        if handed is None:
            await self.listen(path)
        else:
            self._listening = await self._serve_on(handed)

    async def listen(self, path: Path) -> None:
        """Listen on a new socket and close the one before; its open connections stay.

        Raises:
            OSError: the socket cannot be made.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        before, self._listening = self._listening, await self._serve_on(_bind(path))
        self._made = (path, _inode_of(path))
        if before is not None:
            before.close()

    @property
    def has_lost_socket(self) -> bool:
        """Whether somebody removed the socket that was made.

        One in its place is systemd's, for the daemon that comes next.
        """
        return self._made is not None and _inode_of(self._made[0]) is None

    async def _serve_on(self, listener: socket.socket) -> asyncio.Server:
        assert self._runner is not None
        assert self._runner.server is not None
        make: Callable[[], Any] = self._runner.server
        access = self.context.access
        if access.rights.is_shared:
            make = Front(make, access.accounts)
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(make, sock=listener, backlog=_ACCEPTED_AT_ONCE)
        listener.listen(_BACKLOG)  # asyncio would accept as many at a time
        return listening

    async def close(self) -> None:
        """Answer no more; streams end, and the socket is gone."""
        self.context.ending.set()
        self.context.driver.watch.notify()
        if self._listening is not None:
            self._listening.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._made is not None and _inode_of(self._made[0]) == self._made[1]:
            self._made[0].unlink(missing_ok=True)

    def _make_app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=LARGEST_BODY_BYTES)
        app[ACCESS] = self.context.access
        app.on_response_prepare.append(_give_place)
        for route in self.routes:
            app.router.add_route(route.method, route.path, partial(self._answer, route))
        return app

    async def _answer(self, route: Route, request: web.Request) -> web.StreamResponse:
        """Check the request as its route declares it, and let the route answer."""
        route.check_query(request)
        what: list[Any] = []
        if "{id}" in route.path:
            what.append(await self.context.job(request))
        self.context.access.allow(request, route.right, *what)
        if route.body is not None and not route.reads_body:
            what.append(await read_body(request, route.body))
        return await route.handler(self.context, request, *what)

    async def _describe(self, *_: Any) -> web.Response:
        """This API."""
        if not self._described:
            self._described = await asyncio.to_thread(describe, self.routes)
        return web.Response(body=self._described, content_type="application/json")

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse strangers before anything is looked at; turn errors into one line."""
        try:
            async with self.context.access.admit(request):
                reach("api.heard", request.method)
                answer = await handler(request)
                reach("api.done", request.method)
                return answer
        except (RequestError, JournalError) as error:
            return error_answer(find_status(error), error_text(error))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            text = "too many files are open in the daemon or on this machine; ask again later"
            return error_answer(503, refused(text, "unavailable"))
        except web.RequestPayloadError:
            text = f"{request.method} {request.path}: the body is not encoded as its header says"
            return error_answer(400, refused(text))
        except web.HTTPException as error:
            code = "not_found" if error.status == web.HTTPNotFound.status_code else "refused"
            text = f"{request.method} {request.path}: {error.reason}; see docs/api.md"
            methods = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            return error_answer(error.status, refused(text, code), methods)


async def _give_place(_request: web.Request, _response: web.StreamResponse) -> None:
    """From its head on an answer goes as fast as it is read."""
    give_place()


def _bind(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    old_mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(old_mask)
    return listener


def _inode_of(path: Path) -> int | None:
    """None: there is nothing of this name."""
    try:
        return path.lstat().st_ino
    except OSError:
        return None
