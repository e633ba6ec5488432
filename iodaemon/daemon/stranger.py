"""What the jobs' directories know that the journal may not: after an older one was restored.

Ids are never used twice: a keeper that is asked to start an attempt whose directory is there
answers with that, and a new job would be taken for an old one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.protocol import parse_job_key
from iodaemon.core.job import Job

_LARGEST_ID: Final = 2**62
"""No journal ever counted so far, and all of them can; a directory of such a name is nobody's."""
STRANGER: Final = "it runs and the journal does not know it; it is left alone, end it by hand"


def highest_job(jobs_directory: Path) -> int:
    """The highest id that a directory was ever made for and not removed; 0: there is none."""
    try:
        names = os.listdir(jobs_directory)
    except FileNotFoundError:
        return 0
    keys = (parse_job_key(name) for name in names)
    return max((key[0] for key in keys if key is not None and key[0] < _LARGEST_ID), default=0)


def find_strangers(jobs_directory: Path, jobs: Iterable[Job]) -> list[tuple[str, int | None]]:
    """Attempts that run now and that no job of the journal stands for, with their first pids.

    A job that waits takes up its next attempt where that runs already: it is not among them.

    Args:
        jobs_directory: of the keeper.
        jobs: all that have not ended, as the journal has them.
    """
    known = {(job.id, job.attempt) for job in jobs if job.is_live}
    known |= {(job.id, job.attempt + 1) for job in jobs if not job.is_live}
    directories = JobDirectories(str(jobs_directory))
    if not jobs_directory.is_dir():
        return []
    found: list[tuple[str, int | None]] = []
    for key in directories.unfinished():
        if parse_job_key(key) in known or directories.find_shim(key) is None:
            continue
        main = directories.find_main(key)
        found.append((key, None if main is None else main.pid))
    return found
