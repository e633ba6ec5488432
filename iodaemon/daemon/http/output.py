"""Sends a job's output file, and goes on sending while the job writes it.

Files are the users' and the system's: one may be terabytes of nothing, or lie where nobody answers.
So whatever asks a disk for one happens in a few threads, in which each piece is opened, read and
closed. Nobody waits for those at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from aiohttp import web

from iodaemon.api.model import OUTPUT_BEGIN
from iodaemon.daemon.http.access import ACCESS
from iodaemon.errors import RequestError
from iodaemon.thread import in_thread

_PIECE_BYTES: Final = 256 * 1024
LONGEST_TAIL_BYTES: Final = 64 * 2**20
"""What is searched for the last lines; where it has fewer, all of it is sent."""
_THREADS: Final = 4
_LOOK_S: Final = 0.2
"""Between looks at a file that grows; the standard library has no inotify."""


Look = Callable[[], Awaitable[tuple[Path | None, bool]]]
_T = TypeVar("_T")


class OutputThreads:
    """Where output is read; nothing else waits there, and nobody for it."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_THREADS)

    async def run(self, function: Callable[..., _T], *args: object) -> _T:
        """What the function returns, called as soon as a thread is free.

        Nothing is called for a caller that is cancelled before that.
        """
        await self._free.acquire()
        work = asyncio.wrap_future(in_thread(function, *args))
        work.add_done_callback(self._let_go)
        return await asyncio.shield(work)

    def _let_go(self, work: asyncio.Future[Any]) -> None:
        self._free.release()
        if not work.cancelled():
            work.exception()  # its caller may be gone


async def stream_output(
    request: web.Request,
    response: web.StreamResponse,
    look: Look,
    *,
    threads: OutputThreads,
    follow: bool,
    tail: int | None,
    begin: int = 0,
) -> None:
    """Answer with the file's bytes; with ``follow`` until the job is over.

    Args:
        response: not prepared yet.
        look: the file (None: the job has not started), and whether the job is over.
        follow: go on while the job is not over, and writes to this file.
        tail: begin this many lines before the end, or ``LONGEST_TAIL_BYTES``, what is nearer; None:
            at ``begin``.
        begin: leave out so many bytes; a file that is shorter now is sent from its beginning.

    Raises:
        RequestError: the file cannot be read.
    """
    path, size_bytes = await _find_when_there(threads, look, follow=follow)
    if path is None:
        await response.prepare(request)
        return
    if tail is not None:
        async with request.app[ACCESS].turn(request, "search"):
            begin = await threads.run(_find_tail, path, size_bytes, tail)
    elif begin > size_bytes:
        begin = 0
    response.headers[OUTPUT_BEGIN] = str(begin)
    await response.prepare(request)
    end = None if follow else size_bytes
    # Nobody reads any more, or the file went, or another thing came in its place.
    with contextlib.suppress(ConnectionResetError, FileNotFoundError, RequestError):
        await _pump(threads, path, response, look, begin=begin, end=end)


async def _find_when_there(
    threads: OutputThreads, look: Look, *, follow: bool
) -> tuple[Path | None, int]:
    """The file and its size. None: the job is over and never wrote one."""
    while True:
        path, over = await look()
        try:
            if path is not None:
                return path, await threads.run(_find_size, path)
        except FileNotFoundError as error:
            if over or not follow:
                raise RequestError(f"the output file {path} does not exist (any more)") from error
        except OSError as error:
            raise RequestError(f"the output file {path}: {error.strerror}") from error
        if over:
            return None, 0
        await asyncio.sleep(_LOOK_S)


async def _pump(
    threads: OutputThreads,
    path: Path,
    response: web.StreamResponse,
    look: Look,
    *,
    begin: int,
    end: int | None,
) -> None:
    """Send what is between these; None: all that comes until the job is over or writes elsewhere.

    What ends before is sent as far as it goes.
    """
    while True:
        over = end is not None
        if not over:  # before the read: nothing is missed
            now, is_ended = await look()
            over = is_ended or now != path
        while piece := await threads.run(_read, path, begin, end):
            await response.write(piece)
            begin += len(piece)
        if over:
            return
        await asyncio.sleep(_LOOK_S)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The file's descriptor, if it is one: a pipe or a terminal would never be read."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise RequestError(f"the output goes to {path}, which is no regular file; look there")
        yield fd
    finally:
        os.close(fd)


def _find_size(path: Path) -> int:
    with _opened(path) as fd:
        return os.fstat(fd).st_size


def _read(path: Path, begin: int, end: int | None) -> bytes:
    """A piece of what is there between these."""
    size_bytes = _PIECE_BYTES if end is None else min(end - begin, _PIECE_BYTES)
    with _opened(path) as fd:
        return os.pread(fd, size_bytes, begin)


def _find_tail(path: Path, end: int, lines: int) -> int:
    """Where the last lines of the file begin, of which so many bytes count."""
    with _opened(path) as fd:
        return _search(fd, end, lines)


def _search(fd: int, end: int, lines: int) -> int:
    first = max(0, end - LONGEST_TAIL_BYTES)
    if lines == 0:
        return end
    position, found = end, 0
    while position > first:
        start = max(first, position - _PIECE_BYTES)
        piece = os.pread(fd, position - start, start)
        if position == end and piece.endswith(b"\n"):
            piece = piece[:-1]
        here = piece.count(b"\n")
        if found + here >= lines:
            return start + _find_from_end(piece, lines - found) + 1
        found += here
        position = start
    return first


def _find_from_end(piece: bytes, count: int) -> int:
    """Where the line feed is that has ``count - 1`` others behind it."""
    at = len(piece)
    for _ in range(count):
        at = piece.rfind(b"\n", 0, at)
    return at
