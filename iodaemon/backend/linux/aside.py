"""Work that would hold the keeper up, done by a process beside it that speaks over a line.

The process is the keeper's child, where shims are. It ends with its work, or when the keeper hangs
up or dies. Standard library only.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from iodaemon.backend.linux.process import close_all_but
from iodaemon.backend.linux.protocol import Message, encode, split_lines

Work = Callable[[int], None]
"""Takes the line: what it writes there the keeper hears, and its end is the keeper's end."""


class Aside:
    """One such process; ``close`` ends it, wherever it is."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        fork: Callable[[], int],
        work: Work,
        on_word: Callable[[Message | None], None],
    ) -> None:
        """Begin.

        Args:
            selector: the keeper's.
            fork: as ``os.fork``, where shims belong.
            work: what to do there.
            on_word: takes each word of it; None: it is gone, and has been closed.

        Raises:
            OSError: no process can be had.
        """
        self._selector = selector
        self._on_word = on_word
        self._unread = bytearray()
        self._line, theirs = socket.socketpair()
        try:
            pid = fork()
            if pid == 0:
                _become(theirs.fileno(), work)
            self._pidfd = os.pidfd_open(pid)  # nobody has waited for it yet
        except OSError:
            self._line.close()  # a process that is there already ends by that
            raise
        finally:
            theirs.close()
        self._line.settimeout(0)
        selector.register(self._line, selectors.EVENT_READ, self._hear)

    def close(self) -> None:
        """Hang up and kill it; nothing is heard of it any more."""
        if self._line.fileno() < 0:
            return
        self._selector.unregister(self._line)
        self._line.close()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)

    def _hear(self) -> None:
        if self._line.fileno() < 0:  # closed by what was heard of another in the same round
            return
        try:
            data = self._line.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self._on_word(None)
            return
        self._unread += data
        for word in split_lines(self._unread):
            self._on_word(word)


def tell(line: int, word: Message) -> None:
    """Say it to the keeper, should there be one."""
    with contextlib.suppress(OSError):
        os.write(line, encode(word))


def _become(line: int, work: Work) -> NoReturn:
    """In the forked child: forget all that is the keeper's, and work."""
    try:
        gc.disable()  # it would write to pages that are shared with the keeper
        signal.set_wakeup_fd(-1)
        close_all_but(line)
        work(line)
    except BaseException as error:  # noqa: BLE001 - a fork must not return into the keeper
        tell(line, {"error": repr(error)})
    finally:
        os._exit(0)
