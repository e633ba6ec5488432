"""What the file of a job's own output takes of the filesystem that the jobs' directories lie on."""

from __future__ import annotations

import os
from typing import Final

from iodaemon.backend.linux.protocol import OUTPUT_FILE, job_key
from iodaemon.backend.linux.track import Track

_BLOCK_BYTES: Final = 512
"""Of st_blocks, whatever the filesystem's own are (inode(7))."""


class OutputRoom:
    """One attempt's file. It is its user's, who may make it large without writing to it."""

    def __init__(self, jobs: str, track: Track) -> None:
        """Look at the file of this attempt.

        Args:
            jobs: the jobs' directories; empty: nothing is looked at.
            track: the attempt.
        """
        key = job_key(track.job_id, track.attempt)
        self._path = os.path.join(jobs, key, OUTPUT_FILE) if jobs else ""

    def taken_bytes(self) -> int | None:
        """Room it takes, what was allocated beforehand included and holes not.

        None: there is no such file (the job writes to files that its submitter named), or it
        cannot be looked at.
        """
        if not self._path:
            return None
        try:
            return os.lstat(self._path).st_blocks * _BLOCK_BYTES
        except OSError:
            return None
