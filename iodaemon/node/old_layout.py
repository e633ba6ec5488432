"""What releases before 0.2 left: a directory an attempt, with two files while it has not ended.

A shim, the parent of the job, holds ``shim.lock``; ``shim.json`` says which processes are the
job's. ``status.json`` says how it ended.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Final

from iodaemon.errors import HopelessError
from iodaemon.node.sampler.proc_files import find_state
from iodaemon.supervisor.ledger import read_boot_id
from iodaemon.supervisor.reap import has_started_at

_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_RECORD_BYTES: Final = 1 << 16


def refuse_old_jobs(state: Path) -> None:
    """Refuse to start beside jobs that an earlier release left running.

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
    """Attempts that run, kept by a shim or, if that was killed, by nobody."""
    return [
        attempt.name
        for attempt in sorted((state / "jobs").glob("*.*"))
        if not (attempt / "status.json").exists()
        and (_is_locked(attempt / "shim.lock") or _has_processes(attempt / "shim.json"))
    ]


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, _OPEN)
    except OSError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _has_processes(path: Path) -> bool:
    """Whether anything is in the attempt's cgroup, or its first process lives."""
    try:
        with open(os.open(path, _OPEN), "rb") as file:
            record = json.loads(file.read(_RECORD_BYTES))
        if record["boot_id"] != read_boot_id():
            return False
        if record["cgroup"] is not None:
            return bool(Path(record["cgroup"], "cgroup.procs").read_bytes())
        pid = record["main_pid"]
        # In state D it may hang in execve, where to ask for its start would hang as well.
        return find_state(pid) == "D" or has_started_at(pid, record["main_start_ticks"])
    except (OSError, ValueError, KeyError, TypeError):  # it says nothing, or all are gone
        return False
