"""Hearing that a file has come into a directory: inotify(7), Linux 2.6.13.

A shim's status can be read as soon as it has its name; that the shim has made it durable as well
is known only when it ends, two waits for the disk later. What was read is made durable by the
journal, so there is no need to wait for both.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from typing import Final

_IN_MODIFY: Final = 0x2
_IN_MOVED_TO: Final = 0x80  # include/uapi/linux/inotify.h
_IN_Q_OVERFLOW: Final = 0x4000
_IN_ONLYDIR: Final = 0x0100_0000
_EVENT: Final = struct.Struct("iIII")  # struct inotify_event: wd, mask, cookie, length of the name
_READ_BYTES: Final = 65536
_LIBC: Final = ctypes.PyDLL(None, use_errno=True)
"""Keeps the interpreter's lock: these calls are shorter than getting it back from a thread."""


class Notices:
    """Calls back when a file of one name is renamed into a directory, or a file is modified.

    A convenience: where the kernel refuses (too many watches), nobody is called.
    """

    def __init__(self, name: str = "") -> None:
        """Look out for this name in directories, or without one for modified files.

        Use in one event loop, ``close`` at the end.
        """
        self._name = os.fsencode(name)
        self._mask = _IN_MOVED_TO | _IN_ONLYDIR if name else _IN_MODIFY
        self._fd: int | None = None
        self._watches: dict[int, Callable[[], object]] = {}

    def add(self, path: str, on_file: Callable[[], object]) -> int | None:
        """Watch; what ``remove`` takes, or None where that cannot be had."""
        if self._fd is None:
            fd = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if fd < 0:
                return None
            self._fd = fd
            asyncio.get_running_loop().add_reader(fd, self.read)
        watch: int = _LIBC.inotify_add_watch(self._fd, os.fsencode(path), self._mask)
        if watch < 0:
            return None
        self._watches[watch] = on_file
        return watch

    def remove(self, watch: int | None) -> None:
        """Watch no more; harmless for a directory that is gone, and once closed."""
        if watch is not None and self._watches.pop(watch, None) is not None:
            assert self._fd is not None
            _LIBC.inotify_rm_watch(self._fd, watch)

    def close(self) -> None:
        """Give the descriptor back; nobody is called any more."""
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
        self._fd = None
        self._watches.clear()

    def read(self) -> None:
        """Call back for what has come by now; for all, where the kernel has lost count."""
        while self._fd is not None:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return
            self._tell(data)

    def _tell(self, data: bytes) -> None:
        place = 0
        while place < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, place)
            place += _EVENT.size + length
            name = data[place - length : place].rstrip(b"\0")
            if mask & _IN_Q_OVERFLOW:
                for on_file in list(self._watches.values()):
                    on_file()
            elif name == self._name and watch in self._watches:
                self._watches[watch]()
