"""The supervisor's descriptors, and its line to the daemon.

One daemon speaks at a time: a new line takes the place of the old one.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from iodaemon.supervisor import anchor as root
from iodaemon.supervisor import protocol
from iodaemon.supervisor.anchor import Config, Shared
from iodaemon.supervisor.protocol import LineReader, Message, Silence
from iodaemon.supervisor.syscalls import peer_of, say

AT_ONCE: Final = 32
"""Events between two looks at the daemon's line."""
_READ_BYTES: Final = 1 << 16
_LONGEST_S: Final = 3600.0


class Loop:
    """An epoll whose events are calls, and calls that are due at some time."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}
        self.is_behind = False
        """Whether there may be more to do than ``AT_ONCE``."""

    def add(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def want(self, fd: int, *, read: bool = True, write: bool = False) -> None:
        """For what its handler is called from now on."""
        self._epoll.modify(fd, select.EPOLLIN * read | select.EPOLLOUT * write)

    def call_in(self, wait_s: float, name: object, work: Callable[[], None]) -> None:
        """Call it once, then; or earlier, where it is to be called under this name earlier."""
        due_s = time.monotonic() + wait_s
        if name not in self._due or due_s < self._due[name][0]:
            self._due[name] = due_s, work

    def drop(self, name: object) -> None:
        self._due.pop(name, None)

    def work_off(self) -> None:
        """At most ``AT_ONCE`` calls that are due."""
        now_s = time.monotonic()
        for name in [name for name, (due_s, _) in self._due.items() if due_s <= now_s][:AT_ONCE]:
            _, work = self._due.pop(name, (0.0, None))  # another one may have dropped it
            if work is not None:
                work()

    def turn(self) -> None:
        """Wait until something is due, and call at most ``AT_ONCE`` handlers of events."""
        due_s = min((due_s for due_s, _ in self._due.values()), default=float("inf"))
        events = self._epoll.poll(max(0.0, min(due_s - time.monotonic(), _LONGEST_S)), AT_ONCE)
        self.is_behind = len(events) == AT_ONCE
        for fd, _ in events:
            handler = self._handlers.get(fd)  # its number may be another's by now
            if handler is not None:
                handler()


class Line:
    """A connection that is never waited for.

    ``flush`` sends what is in ``unsent``. Where the other side does not take all of it, the handler
    is called once it takes more.
    """

    def __init__(self, line: socket.socket, loop: Loop, handler: Callable[[], None]) -> None:
        line.setblocking(False)  # noqa: FBT003
        self._socket, self._loop = line, loop
        self._is_blocked = False
        self.unsent = bytearray()
        self.reader = LineReader()
        loop.add(line.fileno(), handler)

    def flush(self) -> None:
        if not (self.unsent or self._is_blocked):
            return
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self.unsent:
                del self.unsent[: self._socket.send(self.unsent)]
        if self._is_blocked != bool(self.unsent):
            self._is_blocked = bool(self.unsent)
            self._loop.want(self._socket.fileno(), write=self._is_blocked)

    def receive(self) -> bytes | None:
        """What has come; empty: the end. None: nothing."""
        try:
            return self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def close(self) -> None:
        self._loop.remove(self._socket.fileno())
        self._socket.close()


class DaemonLine:
    """The listening sockets and at most one connection.

    Attributes:
        on_end: called where a connection has ended.
        speaks: whether the daemon said hello in this protocol.
    """

    def __init__(self, config: Config, shared: Shared, loop: Loop) -> None:
        self._config = config
        self.shared = shared
        self._loop = loop
        self.on_end: Callable[[], None] = lambda: None
        self._line: Line | None = None
        self._is_readable = self.speaks = False
        self.silence = Silence(config.grace_s)
        self._listener = socket.socket(fileno=shared.listener)
        self._listen(self._listener)
        if shared.second >= 0:
            self._listen(socket.socket(fileno=shared.second))

    @property
    def is_connected(self) -> bool:
        return self._line is not None

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
        self._line = Line(line, self._loop, self._on_event)
        self._is_readable, self.speaks = True, False

    def _on_event(self) -> None:
        self._is_readable = True

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
            self.on_end()

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
        """Send it at the end of this round."""
        if self._line is None:
            return
        if len(self._line.unsent) > protocol.MOST_UNSENT:
            say("the daemon reads nothing; its line is closed")
            self._hang_up()
            return
        self._line.unsent += protocol.encode(message)

    def flush(self) -> None:
        if self._line is not None:
            self._line.flush()

    def hear(self) -> Iterator[bytes]:
        """The lines that can be read now."""
        line = self._line
        if line is None or not (self._is_readable or self._loop.is_behind):
            return
        self._is_readable = False
        data = line.receive()
        if data is None:
            return
        if data:
            self.silence.heard()
            yield from line.reader.feed(data)
            if line.reader.is_broken:
                say("the daemon sent a line that is too long; its line is closed")
        if not data or line.reader.is_broken:
            self._hang_up()
