"""The ledger as others read it: what runs, and how jobs ended before a shutdown in order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from iodaemon.supervisor.attempts import describe_end, may_be_by_stop
from iodaemon.supervisor.ledger import Key, Ledger
from iodaemon.supervisor.protocol import Message

_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _read(path: Path) -> Ledger | None:
    """None: there is none."""
    try:
        fd = os.open(path, _OPEN)
    except FileNotFoundError:
        return None
    try:
        return Ledger(fd)
    finally:
        os.close(fd)


def find_running(runtime_dir: Path) -> list[tuple[Key, int]]:
    """Attempts that run, as far as this boot's ledger knows, with their first pids.

    It may have the beginning of one that was forgotten, and its end no more.

    Raises:
        OSError: it may not be read.
    """
    ledger = _read(runtime_dir / "ledger")
    if ledger is None or not ledger.is_of_this_boot:
        return []
    running = ledger.running.items()
    return sorted((key, pid) for pid, key in running if os.path.exists(f"/proc/{pid}"))


def find_ends(outputs: Path) -> dict[Key, Message]:
    """How attempts ended, from the copy that the supervisor made at the shutdown; not when.

    What died as a stop kills is left out: the shutdown killed it, and it may be run again.
    """
    try:
        ledger = _read(outputs.parent / "ledger")
    except OSError:
        return {}
    if ledger is None:
        return {}
    return {
        key: {**describe_end(entry, is_over=True), "started_us": None, "ended_us": None}
        for key, entry in ledger.entries.items()
        if entry.status is not None and not may_be_by_stop(entry.status)
    }
