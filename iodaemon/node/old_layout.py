"""What releases before 0.2 left: a directory a job, in which a process of theirs holds a lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from iodaemon.errors import HopelessError


def refuse_old_jobs(state: Path) -> None:
    """Refuse to start beside jobs that an earlier release still runs.

    Raises:
        HopelessError: there are some.
    """
    running = find_old_jobs(state)
    if running:
        raise HopelessError(
            f"an earlier release of iodaemon runs jobs {' '.join(running)} (in {state / 'jobs'}), "
            "which this one cannot take over; install that one again and 'iod drain --wait' first"
        )


def find_old_jobs(state: Path) -> list[str]:
    """Attempts that an earlier release runs: whoever keeps one holds its lock."""
    running: list[str] = []
    for path in sorted((state / "jobs").glob("*.*/shim.lock")):
        if (path.parent / "status.json").exists():
            continue
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            running.append(path.parent.name)
        finally:
            os.close(fd)
    return running
