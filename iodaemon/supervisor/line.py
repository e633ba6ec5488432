"""The supervisor's descriptors, and its line to the daemon.

One daemon speaks at a time: a new line takes the place of the old one.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from iodaemon.supervisor import anchor as root
from iodaemon.supervisor import protocol
from iodaemon.supervisor.anchor import Config, Shared
from iodaemon.supervisor.identity import peer_of
from iodaemon.supervisor.protocol import LineReader, Message, Silence
from iodaemon.supervisor.syscalls import say

AT_ONCE: Final = 32
"""Events between two looks at the daemon's line."""
_READ_BYTES: Final = 1 << 16


class Loop:
    """An epoll whose events are calls."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self.is_behind = False
        """Whether there may be more to do than ``AT_ONCE``."""

    def add(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def listen(self, fd: int, *, is_wanted: bool) -> None:
        """Call its handler again, or for the time being not."""
        self._epoll.modify(fd, select.EPOLLIN if is_wanted else 0)

    def want_write(self, fd: int, *, is_wanted: bool) -> None:
        self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if is_wanted else 0))

    def turn(self, wait_s: float) -> None:
        """Wait, and call at most ``AT_ONCE`` handlers."""
        events = self._epoll.poll(wait_s, AT_ONCE)
        self.is_behind = len(events) == AT_ONCE
        for fd, _ in events:
            handler = self._handlers.get(fd)  # its number may be another's by now
            if handler is not None:
                handler()


class DaemonLine:
    """The listening sockets and at most one connection."""

    def __init__(self, config: Config, shared: Shared, loop: Loop) -> None:
        self._config = config
        self.shared = shared
        self._loop = loop
        self.on_end: Callable[[], None] = lambda: None
        """Called where a connection has ended."""
        self._daemon: socket.socket | None = None
        self._reader = LineReader()
        self._unsent = bytearray()
        self._is_blocked = self._is_readable = False
        self.speaks = False
        """Whether it said hello in this protocol."""
        self.silence = Silence(config.grace_s)
        self._listener = socket.socket(fileno=shared.listener)
        self._second = socket.socket(fileno=shared.second) if shared.second >= 0 else None
        for listener in (self._listener, self._second):
            if listener is not None:
                self._listen(listener)

    @property
    def is_connected(self) -> bool:
        return self._daemon is not None

    def _listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)  # noqa: FBT003
        self._loop.add(listener.fileno(), partial(self._accept, listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            line, _ = listener.accept()
        except OSError:
            return
        if peer_of(line)[1] != self._config.daemon_uid:
            line.close()
            return
        self._hang_up()
        line.setblocking(False)  # noqa: FBT003
        self._reader, self.speaks = LineReader(), False
        self._daemon, self._is_blocked, self._is_readable = line, False, True
        self._loop.add(line.fileno(), self._on_event)

    def _on_event(self) -> None:
        self._is_readable = True

    def _hang_up(self) -> None:
        if self._daemon is not None:
            self._loop.remove(self._daemon.fileno())
            self._daemon.close()
            self._daemon = None
            self.on_end()
        self._unsent.clear()

    def keep_socket(self) -> bool:
        """Listen again where somebody removed the runtime directory, or the socket in it.

        Whether that was done.
        """
        path = os.path.join(self._config.runtime, root.SOCKET)
        found = 0
        with contextlib.suppress(OSError):
            found = os.stat(path).st_ino
        if found == self.shared.inode:
            return False
        with contextlib.suppress(OSError):
            listener, inode = root.listen(self._config)
            self.shared = self.shared._replace(inode=inode)
            self._loop.remove(self._listener.fileno())
            os.dup2(listener, self._listener.fileno(), inheritable=False)
            os.close(listener)
            self._listen(self._listener)
            say(f"{path} was removed, and is there again")
            return True
        return False

    def send(self, message: Message) -> None:
        if self._daemon is None:
            return
        if len(self._unsent) > protocol.MOST_UNSENT:
            say("the daemon reads nothing; its line is closed")
            self._hang_up()
            return
        self._unsent += protocol.encode(message)

    def flush(self) -> None:
        """Send what there is, now or once the daemon reads; called in every round."""
        if self._daemon is None or not (self._unsent or self._is_blocked):
            return
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._unsent:
                del self._unsent[: self._daemon.send(self._unsent)]
        if self._is_blocked != bool(self._unsent):
            self._is_blocked = bool(self._unsent)
            self._loop.want_write(self._daemon.fileno(), is_wanted=self._is_blocked)

    def hear(self) -> Iterator[bytes]:
        """The lines that can be read now."""
        if self._daemon is None or not (self._is_readable or self._loop.is_behind):
            return
        self._is_readable = False
        try:
            data = self._daemon.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.silence.heard()
            yield from self._reader.feed(data)
            if self._reader.is_broken:
                say("the daemon sent a line that is too long; its line is closed")
        if not data or self._reader.is_broken:
            self._hang_up()
