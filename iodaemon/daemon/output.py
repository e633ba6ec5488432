"""Sends a job's output file, and goes on sending while the job writes it.

Files are the users' and the system's: one may be terabytes of nothing, or lie where nobody answers.
So they are read in threads of their own, and not more of them than a user's share of the time.
"""

from __future__ import annotations

import asyncio
import functools
import os
import stat
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Final, ParamSpec, TypeVar

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

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """What the function returns, called in one of the threads."""
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self) -> None:
        """Read no more; what waits for a disk is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


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
    file, path = await _open_when_there(look, threads, follow=follow)
    if file is None:
        await response.prepare(request)
        return
    with file:
        if tail is not None:
            async with find_turn(request, "search"):
                await threads.run(_seek_to_tail, file, tail)
        elif begin <= os.fstat(file.fileno()).st_size:
            file.seek(begin)
        response.headers[OUTPUT_BEGIN] = str(file.tell())
        await response.prepare(request)
        try:
            size_bytes = os.fstat(file.fileno()).st_size
            most = None if follow else max(0, size_bytes - file.tell())
            await _pump(file, path, response, look, threads=threads, most=most)
        except ConnectionResetError:
            return


async def _open_when_there(
    look: Look, threads: OutputThreads, *, follow: bool
) -> tuple[BinaryIO | None, Path | None]:
    while True:
        path, over = await look()
        try:
            if path is not None:
                return await threads.run(_open_regular, path), path
        except FileNotFoundError as error:
            if over or not follow:
                raise RequestError(f"the output file {path} does not exist (any more)") from error
        except OSError as error:
            raise RequestError(f"the output file {path}: {error.strerror}") from error
        if over:
            return None, None
        await asyncio.sleep(_LOOK_S)


def _open_regular(path: Path) -> BinaryIO:
    """The file, if it is one: a pipe or a terminal would keep whoever reads it waiting for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return open(fd, "rb")
    os.close(fd)
    raise RequestError(f"the output goes to {path}, which is no regular file; look there")


async def _pump(
    file: BinaryIO,
    path: Path | None,
    response: web.StreamResponse,
    look: Look,
    *,
    threads: OutputThreads,
    most: int | None,
) -> None:
    """Send so many bytes; None: all that come until the job is over or writes another file."""
    while True:
        over = most is not None
        if not over:  # before the read: nothing is missed
            now, is_ended = await look()
            over = is_ended or now != path
        while piece := await threads.run(_read_piece, file, most):
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
