"""The name of a process as ps(1), top(1) and pgrep(1) show it. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from typing import Final

_COMM_BYTES: Final = 15
"""TASK_COMM_LEN without the NUL; the kernel takes no more."""
_ARGUMENTS_AT: Final = 45
"""Where arg_start and arg_end are (fields 48 and 49 of proc_pid_stat(5)) after the name."""


def set_title(name: str, details: str = "") -> None:
    """Name the calling process, and show name and details as its command line.

    The command line is overwritten in place, as setproctitle(3bsd) does, within what the program
    was started with; what is longer is cut. Where the kernel does not say where that is, only the
    name is set.
    """
    with contextlib.suppress(OSError):
        _write_comm(os.fsencode(name)[:_COMM_BYTES])
    start, size = _argument_area()
    if size > 1:
        text = os.fsencode(f"{name} {details}".rstrip())[: size - 1]
        ctypes.memset(start, 0, size)
        ctypes.memmove(start, text, len(text))


def _write_comm(name: bytes) -> None:
    fd = os.open("/proc/self/comm", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, name)
    finally:
        os.close(fd)


@functools.cache
def _argument_area() -> tuple[int, int]:
    """Address and size of the arguments in memory, the same in every fork; (0, 0): unknown."""
    try:
        with open("/proc/self/stat", "rb") as file:
            words = file.read().rpartition(b") ")[2].split()
        start, end = int(words[_ARGUMENTS_AT]), int(words[_ARGUMENTS_AT + 1])
    except (OSError, IndexError, ValueError):
        return 0, 0
    return (start, end - start) if 0 < start < end else (0, 0)
