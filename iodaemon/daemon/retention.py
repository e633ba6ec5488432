"""Finds the output files of jobs that ended long ago."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from iodaemon.core.job import Job, JobId
from iodaemon.errors import JournalError
from iodaemon.supervisor.ledger import Key, parse_key

KEEP_SAMPLES_S: Final = 86400.0
"""Raw samples are kept for a day: they are large, and only written when asked for."""


def find_old_outputs(
    outputs: Path, before_s: float, record_of: Callable[[JobId], Job | None]
) -> list[Key]:
    """Attempts whose output file, and report, were last written before this time, or seem so.

    The time of a file is the wall clock's, which may have been wrong. So an output stays for as
    long as the record of its job, where there is one.

    Args:
        outputs: their directory. Only names that are a key are looked at.
        before_s: what is older may go.
        record_of: the record of a job, read from the disk.
    """
    old: dict[Key, bool] = {}
    try:
        entries = os.scandir(outputs)
    except OSError:
        return []
    with entries:
        for entry in entries:
            try:
                key = parse_key(entry.name.removesuffix(".report"))
                is_old = entry.stat(follow_symlinks=False).st_mtime < before_s
            except (OSError, ValueError):
                continue
            old[key] = old.get(key, True) and is_old
    try:
        return sorted(
            key
            for key, is_old in old.items()
            if is_old and not _is_kept(record_of(JobId(key.job)), before_s)
        )
    except JournalError:
        return []


def _is_kept(job: Job | None, before_s: float) -> bool:
    """Whether the record is needed, as the journal says that prunes it."""
    if job is None:
        return False
    return job.ended_s is None or job.ended_s >= before_s or bool(job.shares)
