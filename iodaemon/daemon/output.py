"""Sends a job's output file, and goes on sending while the job writes it."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, Final

from aiohttp import web

from iodaemon.errors import RequestError

_PIECE_BYTES: Final = 256 * 1024
_LOOK_S: Final = 0.2
"""Between looks at a file that grows; the standard library has no inotify."""


Look = Callable[[], Awaitable[tuple[Path | None, bool]]]


async def stream_output(
    request: web.Request,
    response: web.StreamResponse,
    look: Look,
    *,
    follow: bool,
    tail: int | None,
) -> None:
    """Answer with the file's bytes; with ``follow`` until the job is over.

    Args:
        request: the request to answer.
        response: not prepared yet.
        look: the file (None: the job has not started), and whether the job is over.
        follow: go on while the job is not over.
        tail: begin this many lines before the end; None: at the beginning.

    Raises:
        RequestError: the file cannot be read.
    """
    file = await _open_when_there(look, follow=follow)
    if file is None:
        await response.prepare(request)
        return
    with file:
        if tail is not None:
            await asyncio.to_thread(_seek_to_tail, file, tail)
        await response.prepare(request)
        try:
            size_bytes = os.fstat(file.fileno()).st_size
            most = None if follow else max(0, size_bytes - file.tell())
            await _pump(file, response, look, most=most)
        except ConnectionResetError:
            return


async def _open_when_there(look: Look, *, follow: bool) -> BinaryIO | None:
    while True:
        path, over = await look()
        try:
            if path is not None:
                return await asyncio.to_thread(_open_regular, path)
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
    file: BinaryIO, response: web.StreamResponse, look: Look, *, most: int | None
) -> None:
    """Send so many bytes; None: all that come until the job is over."""
    while True:
        over = most is not None or (await look())[1]  # before the read: nothing is missed
        while piece := await asyncio.to_thread(_read_piece, file, most):
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
    found = 0
    while position > 0:
        start = max(0, position - _PIECE_BYTES)
        file.seek(start)
        piece = file.read(position - start)
        if position == end and piece.endswith(b"\n"):
            piece = piece[:-1]
        at = len(piece)
        while (at := piece.rfind(b"\n", 0, at)) >= 0:
            found += 1
            if found >= lines:
                file.seek(start + at + 1)
                return
        position = start
    file.seek(0)
