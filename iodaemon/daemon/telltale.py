"""The daemon's log: lines on standard error, and nowhere else.

A thread writes them: what holds up standard error (a pipe that nobody reads, a disk that hangs)
holds up nothing else. Lines without room are lost, counted, and reported in their place.

Under systemd standard error is the journal's, which has the time of every line already; a line
there begins with ``<N>``, its priority as in syslog(3) (sd-daemon(3)). Anywhere else a line begins
with the time and its level. There is no log file of our own, and so none to rotate.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError

from iodaemon.systemd import is_journal_stream
from iodaemon.text import quoted

_PRIORITIES: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)
"""From which level on which priority; below all of them 7, debug."""
MOST_WAITING_BYTES: Final = 1024 * 1024
"""About 9,000 lines: more than a node of 1,000 jobs writes in one turn. What is being written comes
on top."""
_TOGETHER_S: Final = 0.01
"""For which the first line waits for others: one write, and one hand-over to the thread, for all
lines of one turn."""
DRAIN_S: Final = 1.0
"""For which a process that ends waits for its last lines to be written."""
_PLAIN: Final = "%(asctime)s level=%(levelname)s %(message)s"
_OURS: Final = "level=%(levelname)s %(message)s"


class _JournalLines(logging.Formatter):
    """Each line with its priority, those of a traceback too: journald reads line by line."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{priority_of(record.levelno)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines() or [""])


class _PlainLines(logging.Formatter):
    """Each second is put into words once."""

    _second = (0, "")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        """As the base class has it."""
        second = int(record.created)
        if self._second[0] != second:
            shown = super().formatTime(record, datefmt).partition(",")[0]
            self._second = (second, shown)
        return f"{self._second[1]},{int(record.msecs):03}"


class LogWriter(logging.Handler):
    """Writes lines to a file descriptor from a thread of its own; never blocks who logs.

    Attributes:
        lost: lines that were not written: there was no room, or the write failed.
    """

    def __init__(self, fd: int, *, most_bytes: int = MOST_WAITING_BYTES) -> None:
        super().__init__()
        self.lost = 0
        self._fd = fd
        self._most_bytes = most_bytes
        self._lines: list[bytes] = []
        self._waiting_bytes = 0
        self._unreported = 0
        self._is_writing = self._is_urgent = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record's lines, or count them as lost."""
        try:
            line = self._encoded(record)
        except Exception:  # noqa: BLE001 - as logging does: a bad record must not end its caller
            line = None
        with self._changed:
            if line is None or self._waiting_bytes + len(line) > self._most_bytes:
                self.lost += 1
                self._unreported += 1
                self._changed.notify_all()
            else:
                self._report_lost()
                self._queue(line)

    def flush(self) -> None:
        """Wait until all is written, for a second at most; called when the process ends."""
        self.drain(DRAIN_S)

    def drain(self, within_s: float) -> bool:
        """Whether all is written by then."""
        with self._changed:
            self._is_urgent = True
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: not (self._lines or self._unreported or self._is_writing), within_s
            )

    def takes_more(self) -> bool:
        """Whether all is written and more can be, in a second at most."""
        if not self.drain(DRAIN_S):
            return False
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(1000.0 * DRAIN_S))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._unreported)
                self._changed.wait_for(lambda: self._is_urgent, _TOGETHER_S)
                if not self._lines:
                    self._report_lost()
                lines, self._lines = self._lines, []
                self._waiting_bytes = 0
                self._is_writing = True
            is_written = _write_all(self._fd, b"".join(lines))
            with self._changed:
                self._is_writing = self._is_urgent = False
                if not is_written:
                    self.lost += len(lines)  # not reported: that could not be written either
                self._changed.notify_all()

    def _report_lost(self) -> None:
        """Queue a line that says how many are missing at this place."""
        if not self._unreported:
            return
        text, counts = "event=log_lines_lost lines=%d in_all=%d", (self._unreported, self.lost)
        record = logging.LogRecord(__name__, logging.WARNING, "", 0, text, counts, None)
        self._unreported = 0
        self._queue(self._encoded(record))

    def _queue(self, line: bytes) -> None:
        if not self._lines:
            self._changed.notify_all()
        self._lines.append(line)
        self._waiting_bytes += len(line)

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")


def _write_all(fd: int, data: bytes) -> bool:
    """Write it, however long that takes; False where it cannot be written."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # somebody else made the terminal or pipe non-blocking
            with contextlib.suppress(OSError):
                select.select([], [fd], [])
        except OSError:  # closed, full, gone: there is nowhere to say so
            return False
    return True


def begin_log(level: str, environ: Mapping[str, str]) -> LogWriter | None:
    """Log to standard error from this level on.

    Returns:
        What writes the lines; None where standard error is no file.
    """
    writer = None
    if sys.stderr is not None:
        with contextlib.suppress(ValueError):  # it is no file, so nothing can block it
            writer = LogWriter(sys.stderr.fileno())
    handler = writer or logging.StreamHandler()
    is_journal = sys.stderr is not None and is_journal_stream(sys.stderr, environ)
    handler.setFormatter(_JournalLines(_OURS) if is_journal else _PlainLines(_PLAIN))
    # What no line says is not looked for (docs.python.org/3/howto/logging.html#optimization).
    logging._srcfile = None  # noqa: SLF001
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.captureWarnings(True)  # noqa: FBT003 - the library's signature
    return writer


def set_level(level: str) -> None:
    """Tell more, or less, from now on."""
    logging.getLogger().setLevel(level.upper())


def priority_of(level: int) -> int:
    """Syslog's priority of a level of Python's."""
    return next((priority for least, priority in _PRIORITIES if level >= least), 7)


MALFORMED_EVERY_S: Final = 60.0
"""Least time between two lines about malformed requests: anybody can send thousands a second."""
_LONGEST_PROBLEM: Final = 200


@functools.cache
def request_log() -> logging.Logger:
    """The logger of the HTTP servers; all malformed requests of a minute are one line in it."""
    log = logging.getLogger("iodaemon.daemon.requests")
    log.addFilter(MalformedRequests())
    return log


class MalformedRequests(logging.Filter):
    """Turns errors about malformed requests into one line a minute, without a traceback.

    Other errors of the server are faults of ours: they pass as they are.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._next_s = 0.0
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged; one of a malformed request is rewritten."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        self._count += 1
        now_s = self._clock()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + MALFORMED_EVERY_S
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg = "event=malformed_requests count=%d last=%s"
        record.args = (self._count, quoted(" ".join(error.message.split())[:_LONGEST_PROBLEM]))
        record.exc_info = record.exc_text = None
        self._count = 0
        return True
