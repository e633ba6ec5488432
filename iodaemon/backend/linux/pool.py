"""The shims of one keeper: those that serve a job, and some that wait for the next.

A shim that is there already saves the next job a fork of a Python and the copies of the pages that
it writes to. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Final, NoReturn

from iodaemon.backend.linux.process import Identity, find_state, identify
from iodaemon.backend.linux.protocol import Message, encode, split_lines
from iodaemon.fault import reach

_LEAST_IDLE: Final = 4
_MOST_IDLE: Final = 16
"""Shims kept for later: as many as are busy, within these bounds."""
_LARGEST_ORDER_BYTES: Final = 65536
"""What an empty socket takes at once. A larger order goes to a shim that is forked with it, and
that ends with the job: it has grown."""
_END_WITHIN_S: Final = 2.0


class _Member:
    """One shim of the pool."""

    def __init__(self, pid: int, line: socket.socket, key: str | None) -> None:
        self.pid = pid
        self.identity = identify(pid)  # it is our child, and never executes
        self.line = line
        self.key = key
        self.unread = bytearray()


class Pool:
    """Hands jobs to shims and hears of them."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        fork: Callable[[], int],
        become: Callable[[int, Message | None], NoReturn],
        *,
        on_word: Callable[[str, Message], None],
        on_over: Callable[[str], None],
    ) -> None:
        """An empty pool.

        Args:
            selector: the keeper's.
            fork: as ``os.fork``, where shims belong.
            become: called in the forked child with its line to the keeper and its first job.
            on_word: what a shim says of the attempt with this key.
            on_over: the attempt is in no shim's hands any more.
        """
        self._selector = selector
        self._fork = fork
        self._become = become
        self._on_word = on_word
        self._on_over = on_over
        self._members: dict[int, _Member] = {}
        self._idle: list[_Member] = []
        self._looks_ahead = True

    @property
    def busy(self) -> int:
        """How many serve a job."""
        return sum(member.key is not None for member in self._members.values())

    def has(self, key: str) -> bool:
        """True while one of them serves this attempt."""
        return any(member.key == key for member in self._members.values())

    def has_shim(self, shim: Identity) -> bool:
        """Whether it is one of these, and lives; nobody else has its number before ``reap``."""
        member = self._members.get(shim.pid)
        if member is None or member.identity != shim:
            return False
        return find_state(shim.pid) not in (None, "Z", "X")

    def serve(self, key: str, launch: Message) -> None:
        """Have the job served.

        Raises:
            OSError: no shim can be had.
        """
        self._looks_ahead = True
        order = {"key": key, "launch": launch, "is_last": False}
        data = encode(order)
        if len(data) > _LARGEST_ORDER_BYTES:
            self._make({**order, "is_last": True})
            return
        while self._idle:
            member = self._idle.pop()
            if _send(member.line, data):
                member.key = key
                reach("keeper.ordered")
                return
            self._dismiss(member)
        self._make(order)

    def is_short(self) -> bool:
        """True when none is idle; where idle ones die, not before the next job has come."""
        return self._looks_ahead and not self._idle

    def make_ready(self) -> None:
        """Fork one that waits for a job; not now, where the machine refuses."""
        with contextlib.suppress(OSError):
            self._make(None)

    def reap(self) -> None:
        """Collect shims that have ended; what they said before is heard first."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (member := self._members.pop(pid, None)) is not None:
                self._hear(member)
                self._dismiss(member)
                if member.key is not None:
                    reach("keeper.reaped")
                    self._on_over(member.key)

    def end(self) -> None:
        """Send the idle ones away and wait until they are gone."""
        while self._idle:
            self._dismiss(self._idle[-1])
        until_s = time.monotonic() + _END_WITHIN_S
        while self._members and time.monotonic() < until_s:
            self.reap()
            time.sleep(0.001)

    def _make(self, order: Message | None) -> None:
        ours, theirs = socket.socketpair()
        try:
            pid = self._fork()
            if pid == 0:
                self._become(theirs.fileno(), order)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.settimeout(0)
        reach("keeper.forked")
        member = _Member(pid, ours, None if order is None else order["key"])
        self._members[pid] = member
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._hear(member))
        if order is None:
            self._idle.append(member)

    def _hear(self, member: _Member) -> None:
        while member.line.fileno() >= 0:
            try:
                data = member.line.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._looks_ahead &= member.key is not None
                self._dismiss(member)
                return
            member.unread += data
            for word in split_lines(member.unread):
                self._take(member, word)

    def _take(self, member: _Member, word: Message) -> None:
        key = member.key
        if key is None:
            return
        if "over" not in word:
            self._on_word(key, word)
            return
        member.key = None
        if len(self._idle) < min(_MOST_IDLE, max(_LEAST_IDLE, self.busy)):
            self._idle.append(member)
        else:
            self._dismiss(member)
        self._on_over(key)

    def _dismiss(self, member: _Member) -> None:
        """Hang up: a shim without a job ends."""
        if member in self._idle:
            self._idle.remove(member)
        if member.line.fileno() >= 0:
            self._selector.unregister(member.line)
            member.line.close()


def _send(line: socket.socket, data: bytes) -> bool:
    """True when all of it is on its way; a shim obeys whole lines only."""
    try:
        return line.send(data) == len(data)
    except OSError:
        return False
