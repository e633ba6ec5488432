"""Removes the directories of jobs that ended long ago, with their output."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from iodaemon.backend.linux.protocol import STATUS_FILE, parse_job_key

log = logging.getLogger(__name__)


def remove_old_directories(jobs: Path, before_s: float) -> int:
    """Remove job directories whose job ended before this time; returns how many.

    Only directories named ``<job>.<attempt>`` are looked at, and only those with a status file:
    what has no status is not known to have ended.
    """
    if not jobs.is_dir():
        return 0
    removed = 0
    with os.scandir(jobs) as entries:
        for entry in entries:
            if parse_job_key(entry.name) is None or not entry.is_dir(follow_symlinks=False):
                continue
            try:
                removed += _remove_if_old(entry.path, before_s)
            except OSError as error:  # for example read-only; it is tried again the next time
                log.warning("event=retire_failed directory=%s problem=%s", entry.path, error)
    if removed:
        log.info("event=retired directories=%d", removed)
    return removed


def _remove_if_old(directory: str, before_s: float) -> bool:
    try:
        ended_s = os.stat(os.path.join(directory, STATUS_FILE)).st_mtime
    except FileNotFoundError:
        return False
    if ended_s >= before_s:
        return False
    shutil.rmtree(directory)
    return True
