"""What the supervisor's records know that the journal may not: after an older one was restored.

Ids are never used twice: the output of an earlier job of that number would be written over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from iodaemon.core.job import Job
from iodaemon.node.outcome import read_ledger
from iodaemon.supervisor.ledger import Key, parse_key

_LARGEST_ID: Final = 2**62
"""No journal ever counted so far, and all of them can; a file of such a name is nobody's."""


def find_running(runtime_dir: Path) -> list[tuple[Key, int]]:
    """Attempts that run, as far as this boot's ledger knows, with their first pids.

    It may have the beginning of one that was forgotten, and its end no more.

    Raises:
        OSError: it may not be read.
    """
    ledger = read_ledger(runtime_dir / "ledger")
    if ledger is None or not ledger.is_of_this_boot:
        return []
    running = ledger.running.items()
    return sorted((key, pid) for pid, key in running if os.path.exists(f"/proc/{pid}"))


def highest_job(outputs: Path, runtime_dir: Path) -> int:
    """The highest id that has output or runs; 0: there is none.

    An empty file may be that of a job whose start was prepared and never written down.

    Raises:
        PermissionError: it may not be looked at.
    """
    ids = [key.job for key, _ in find_running(runtime_dir)]
    with contextlib.suppress(FileNotFoundError), os.scandir(outputs) as entries:
        for entry in entries:
            with contextlib.suppress(ValueError, FileNotFoundError):
                key = parse_key(entry.name.removesuffix(".report"))
                if entry.stat(follow_symlinks=False).st_size:
                    ids.append(key.job)
    return max((number for number in ids if number < _LARGEST_ID), default=0)


def find_strangers(runtime_dir: Path, jobs: Iterable[Job]) -> list[tuple[Key, int]]:
    """Attempts that run now and that no job of the journal stands for, with their first pids.

    A job that waits takes up its next attempt where that runs already: it is not among them.

    Args:
        runtime_dir: with the ledger.
        jobs: all that have not ended, as the journal has them.

    Raises:
        PermissionError: it may not be looked at.
    """
    known = {(job.id, job.attempt) for job in jobs if job.is_live}
    known |= {(job.id, job.attempt + 1) for job in jobs if not job.is_live}
    return [(key, pid) for key, pid in find_running(runtime_dir) if tuple(key) not in known]
