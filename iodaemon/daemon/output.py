"""Sends a job's output file, and goes on sending while the job writes it.

Files are the users' and the system's: one may be terabytes of nothing, or lie where nobody answers.
So they are read in threads of their own, and not more of them than a user's share of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import stat
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Final, ParamSpec, TypeVar

from aiohttp import web

from iodaemon.api.model import OUTPUT_BEGIN
from iodaemon.daemon.front import find_turn
from iodaemon.errors import RequestError

_PIECE_BYTES: Final = 256 * 1024
LONGEST_TAIL_BYTES: Final = 64 * 2**20
"""What is searched for the last lines; where it has fewer, all of it is sent."""
_THREADS: Final = 4
_LOOK_S: Final = 0.2
"""Between looks at a file that grows; the standard library has no inotify."""


Look = Callable[[], Awaitable[tuple[Path | None, bool]]]
_P = ParamSpec("_P")
_T = TypeVar("_T")


class OutputThreads:
    """Where output is read; nothing else waits there, and it makes nothing else wait."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="output")

    def start(
        self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> asyncio.Future[_T]:
        """Call the function in one of the threads; its result to come."""
        call = functools.partial(function, *args, **kwargs)
        return asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self) -> None:
        """Read no more; what waits for a disk is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Output:
    """A file that is opened and read in the threads, and closed when none of them is at it.

    A request may be cancelled while a disk does not answer. Closing the file then would wait for
    the thread that reads it, and the event loop with it.
    """

    def __init__(self, threads: OutputThreads) -> None:
        self._threads = threads
        self._work: asyncio.Future[Any] | None = None
        self._file: BinaryIO | None = None

    @property
    def file(self) -> BinaryIO:
        """The file, once it is open."""
        assert self._file is not None
        return self._file

    async def open(self, path: Path) -> None:
        """Open it; raises as ``_open_regular``."""
        await self._run(self._open, path)

    async def run(self, function: Callable[..., _T], *args: object) -> _T:
        """What the function returns, called with the file and these arguments."""
        return await self._run(function, self.file, *args)

    def close(self) -> None:
        """Close it, now or once the thread that is at it is done."""
        if self._work is not None and not self._work.done():
            self._work.add_done_callback(lambda _: self.close())
        elif self._file is not None:
            self._file.close()

    async def _run(self, function: Callable[..., _T], *args: object) -> _T:
        self._work = work = self._threads.start(function, *args)
        return await asyncio.shield(work)

    def _open(self, path: Path) -> None:
        self._file = _open_regular(path)


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
        request: the request to answer.
        response: not prepared yet.
        look: the file (None: the job has not started), and whether the job is over.
        threads: where it is read.
        follow: go on while the job is not over, and writes to this file.
        tail: begin this many lines before the end, or ``LONGEST_TAIL_BYTES``, what is nearer; None:
            at ``begin``.
        begin: leave out so many bytes; a file that is shorter now is sent from its beginning.

    Raises:
        RequestError: the file cannot be read.
    """
    with contextlib.closing(_Output(threads)) as output:
        path = await _open_when_there(output, look, follow=follow)
        if path is None:
            await response.prepare(request)
            return
        if tail is not None:
            async with find_turn(request, "search"):
                await output.run(_seek_to_tail, tail)
        elif begin <= os.fstat(output.file.fileno()).st_size:
            output.file.seek(begin)
        response.headers[OUTPUT_BEGIN] = str(output.file.tell())
        await response.prepare(request)
        try:
            size_bytes = os.fstat(output.file.fileno()).st_size
            most = None if follow else max(0, size_bytes - output.file.tell())
            await _pump(output, path, response, look, most=most)
        except ConnectionResetError:
            return


async def _open_when_there(output: _Output, look: Look, *, follow: bool) -> Path | None:
    """Open the file and return its path; None: the job is over and never wrote one."""
    while True:
        path, over = await look()
        try:
            if path is not None:
                await output.open(path)
                return path
        except FileNotFoundError as error:
            if over or not follow:
                raise RequestError(f"the output file {path} does not exist (any more)") from error
        except OSError as error:
            raise RequestError(f"the output file {path}: {error.strerror}") from error
        if over:
            return None
        await asyncio.sleep(_LOOK_S)


def _open_regular(path: Path) -> BinaryIO:
    """The file, if it is one: a pipe or a terminal would keep whoever reads it waiting for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return open(fd, "rb")
    os.close(fd)
    raise RequestError(f"the output goes to {path}, which is no regular file; look there")


async def _pump(
    output: _Output,
    path: Path,
    response: web.StreamResponse,
    look: Look,
    *,
    most: int | None,
) -> None:
    """Send so many bytes; None: all that come until the job is over or writes another file."""
    while True:
        over = most is not None
        if not over:  # before the read: nothing is missed
            now, is_ended = await look()
            over = is_ended or now != path
        while piece := await output.run(_read_piece, most):
            await response.write(piece)
            most = None if most is None else most - len(piece)
        if over:
            return
        await asyncio.sleep(_LOOK_S)


def _read_piece(file: BinaryIO, most: int | None) -> bytes:
    return file.read(_PIECE_BYTES if most is None else min(most, _PIECE_BYTES))


def _seek_to_tail(file: BinaryIO, lines: int) -> None:
    """Place the file so that this many lines are left to read."""
    position = end = file.seek(0, 2)
    if lines == 0:
        return
    first = max(0, end - LONGEST_TAIL_BYTES)
    found = 0
    while position > first:
        start = max(first, position - _PIECE_BYTES)
        file.seek(start)
        piece = file.read(position - start)
        if position == end and piece.endswith(b"\n"):
            piece = piece[:-1]
        here = piece.count(b"\n")
        if found + here >= lines:
            file.seek(start + _find_from_end(piece, lines - found) + 1)
            return
        found += here
        position = start
    file.seek(first)


def _find_from_end(piece: bytes, count: int) -> int:
    """Where the line feed is that has ``count - 1`` others behind it."""
    at = len(piece)
    for _ in range(count):
        at = piece.rfind(b"\n", 0, at)
    return at
