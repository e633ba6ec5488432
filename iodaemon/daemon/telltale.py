"""The daemon's log: lines on standard error, and nowhere else.

Under systemd standard error is the journal's, which has the time of every line already; a line
there begins with ``<N>``, its priority as in syslog(3) (sd-daemon(3)). Anywhere else a line begins
with the time and its level. There is no log file of our own, and so none to rotate.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Final, TextIO

from iodaemon.systemd import is_journal_stream

_PRIORITIES: Final = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)
"""From which level on which priority; below all of them 7, debug."""
_PLAIN: Final = "%(asctime)s level=%(levelname)s %(message)s"
_OURS: Final = "level=%(levelname)s %(message)s"


class _JournalLines(logging.Formatter):
    """Each line with its priority, those of a traceback too: journald reads line by line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record, as lines for journald."""
        prefix = f"<{priority_of(record.levelno)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines() or [""])


def begin_log(level: str, environ: Mapping[str, str], stream: TextIO | None = None) -> None:
    """Tell all that happens from this level on.

    Args:
        level: ``debug``, ``info``, ``warning``, ``error``.
        environ: for ``JOURNAL_STREAM``.
        stream: where to; None: standard error.
    """
    to = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(to)
    is_journal = is_journal_stream(to, environ)
    handler.setFormatter(_JournalLines(_OURS) if is_journal else logging.Formatter(_PLAIN))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def set_level(level: str) -> None:
    """Tell more, or less, from now on."""
    logging.getLogger().setLevel(level.upper())


def priority_of(level: int) -> int:
    """Syslog's priority of a level of Python's."""
    return next((priority for least, priority in _PRIORITIES if level >= least), 7)
