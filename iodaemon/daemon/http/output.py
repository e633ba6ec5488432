"""Sends a job's output file, and goes on sending while the job writes it.

Files are the users' and the system's: one may be terabytes of nothing, or lie where nobody answers.
So whatever asks a disk for one happens in threads, and not in more of them than a user's share of
the time. Nobody waits for those at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Awaitable, Callable, Coroutine
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
    """Where output is opened, read and closed; nothing else waits there, and nobody for it."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_THREADS)
        self._closing: set[asyncio.Task[None]] = set()

    async def begin(self, function: Callable[..., _T], *args: object) -> asyncio.Future[_T]:
        """Call the function as soon as a thread is free; its result to come.

        Nothing is called for a caller that is cancelled before that.
        """
        await self._free.acquire()
        work = asyncio.wrap_future(in_thread(function, *args))
        work.add_done_callback(lambda _: self._free.release())
        return work

    def begin_to_close(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _Output:
    """A file. Its descriptor is used in the threads alone, by one of them at a time.

    A request may be cancelled while a disk does not answer; the file is closed once it has.
    """

    def __init__(self, threads: OutputThreads) -> None:
        self._threads = threads
        self._work: asyncio.Future[Any] | None = None
        self._fd: int | None = None

    async def open(self, path: Path) -> int:
        """Open it; returns its size in bytes; raises as ``_open_regular``."""

        def work() -> int:
            self._fd, size_bytes = _open_regular(path)
            return size_bytes

        return await self._run(work)

    async def run(self, function: Callable[..., _T], *args: object) -> _T:
        """What the function returns, called with the descriptor and these arguments."""
        return await self._run(function, self._fd, *args)

    def close(self) -> None:
        """Close it, once no thread is at it; nobody waits for that."""
        self._threads.begin_to_close(self._close())

    async def _run(self, function: Callable[..., _T], *args: object) -> _T:
        self._work = await self._threads.begin(function, *args)
        return await asyncio.shield(self._work)

    async def _close(self) -> None:
        if self._work is not None:
            await asyncio.wait([self._work])
        if self._fd is not None:
            with contextlib.suppress(OSError):  # it was only read
                await (await self._threads.begin(os.close, self._fd))


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
    with contextlib.closing(_Output(threads)) as output:
        path, size_bytes = await _open_when_there(output, look, follow=follow)
        if path is None:
            await response.prepare(request)
            return
        if tail is not None:
            async with request.app[ACCESS].turn(request, "search"):
                begin = await output.run(_find_tail, size_bytes, tail)
        elif begin > size_bytes:
            begin = 0
        response.headers[OUTPUT_BEGIN] = str(begin)
        await response.prepare(request)
        end = None if follow else size_bytes
        with contextlib.suppress(ConnectionResetError):
            await _pump(output, path, response, look, begin=begin, end=end)


async def _open_when_there(output: _Output, look: Look, *, follow: bool) -> tuple[Path | None, int]:
    """Open the file; its path and size. None: the job is over and never wrote one."""
    while True:
        path, over = await look()
        try:
            if path is not None:
                return path, await output.open(path)
        except FileNotFoundError as error:
            if over or not follow:
                raise RequestError(f"the output file {path} does not exist (any more)") from error
        except OSError as error:
            raise RequestError(f"the output file {path}: {error.strerror}") from error
        if over:
            return None, 0
        await asyncio.sleep(_LOOK_S)


def _open_regular(path: Path) -> tuple[int, int]:
    """The file's descriptor and size, if it is one: a pipe or a terminal would never be read."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with contextlib.ExitStack() as opened:
        opened.callback(os.close, fd)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RequestError(f"the output goes to {path}, which is no regular file; look there")
        opened.pop_all()
    return fd, status.st_size


async def _pump(
    output: _Output,
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
        while piece := await output.run(_read, begin, end):
            await response.write(piece)
            begin += len(piece)
        if over:
            return
        await asyncio.sleep(_LOOK_S)


def _read(fd: int, begin: int, end: int | None) -> bytes:
    """A piece of what is there between these."""
    return os.pread(fd, _PIECE_BYTES if end is None else min(end - begin, _PIECE_BYTES), begin)


def _find_tail(fd: int, end: int, lines: int) -> int:
    """Where the last lines of the file begin, of which so many bytes count."""
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
