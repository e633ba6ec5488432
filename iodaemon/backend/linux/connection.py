"""The keeper's side of its connections: bytes in and out, and who may connect.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Collection
from typing import Final

from iodaemon.backend.linux import protocol
from iodaemon.backend.linux.protocol import Message

_LOCK_WITHIN_S: Final = 1.0
"""An ending keeper, or a shim that thaws its job, lets go of the lock sooner than this."""
_FREE_WITHIN_S: Final = 1.0
"""A shim that was just forked lets go of a killed keeper's listening socket sooner than this."""
_RETRY_S: Final = 0.01


class Client:
    """One connection and its unread and unsent bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.unread = bytearray()
        self.unsent = bytearray()


class Clients:
    """All connections of one keeper, in its selector."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        on_message: Callable[[Client, Message], None],
        on_gone: Callable[[Client], None],
        uids: Collection[int],
    ) -> None:
        self._selector = selector
        self._on_message = on_message
        self._on_gone = on_gone
        self._uids = uids
        self._open: set[Client] = set()

    def __len__(self) -> int:
        return len(self._open)

    def accept(self, listener: socket.socket) -> bool:
        """Take one connection of a user who is obeyed; False when there was none."""
        try:
            connection, _ = listener.accept()
        except OSError:
            return False
        credentials = connection.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )
        uid = struct.unpack("3i", credentials)[1]
        if uid not in self._uids:
            connection.close()
            return False
        connection.settimeout(0)
        client = Client(connection)
        self._open.add(client)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._exchange(client))
        return True

    def send(self, client: Client, message: Message) -> None:
        """Send it, now or when there is room; a client that is gone gets nothing."""
        if client not in self._open:
            return
        client.unsent += protocol.encode(message)
        try:
            self._flush(client)
        except OSError:
            self._drop(client)

    def _exchange(self, client: Client) -> None:
        try:
            if client.unsent:
                self._flush(client)
            data = client.connection.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        client.unread += data
        try:
            for message in protocol.split_lines(client.unread):
                self._on_message(client, message)
        except ValueError:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        if client not in self._open:
            return
        self._open.discard(client)
        self._selector.unregister(client.connection)
        client.connection.close()
        self._on_gone(client)

    def _flush(self, client: Client) -> None:
        try:
            while client.unsent:
                sent = client.connection.send(client.unsent)
                del client.unsent[:sent]
        except BlockingIOError:
            pass
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unsent else 0)
        key = self._selector.get_key(client.connection)
        if key.events != wanted:
            self._selector.modify(client.connection, wanted, key.data)


def be_the_only_one(path: str) -> bool:
    """Hold the keepers' lock until the end of this process; False when another keeper does.

    The time of the last change of the file tells one keeper's reign from the next: setting it
    needs no space on the disk.

    Raises:
        OSError: the file cannot be made or opened for writing.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until_s = time.monotonic() + _LOCK_WITHIN_S
    while True:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by the shims
        except OSError:
            if time.monotonic() > until_s:
                return False
            time.sleep(_RETRY_S)
        else:
            with contextlib.suppress(OSError):
                os.utime(lock)
            return True


def listen(path: str, gid: int | None = None) -> socket.socket:
    """A socket for its own user only, or for a group; the caller knows that no other keeper lives.

    Raises:
        OSError: EADDRINUSE when somebody answers there all the same.
    """
    until_s = time.monotonic() + _FREE_WITHIN_S
    while _is_answered(path):
        if time.monotonic() > until_s:
            raise OSError(errno.EADDRINUSE, "a keeper runs already", path)
        time.sleep(_RETRY_S)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old_mask = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(old_mask)
    if gid is not None:
        os.chown(path, -1, gid)
        os.chmod(path, 0o660)
    listener.listen(16)
    return listener


def _is_answered(path: str) -> bool:
    """True while somebody listens there; what nobody listens at is removed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(path)
        except BlockingIOError:  # more wait there than are taken
            return True
        except FileNotFoundError:
            return False
        except ConnectionRefusedError:
            os.unlink(path)
            return False
    return True
