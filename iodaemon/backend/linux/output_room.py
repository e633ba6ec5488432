"""What a job's own output takes of the filesystem that it lies on."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from iodaemon.node.live_job import LiveJob

_BLOCK_BYTES: Final = 512
"""Of st_blocks, whatever the filesystem's own are (inode(7))."""


class OutputRoom:
    """One attempt's output, and its report, to which its user may write as well.

    The files are their user's, who may make them large without writing to them.

    Args:
        outputs: with the jobs' own output files; None: nothing is looked at.
        job: the attempt.
    """

    def __init__(self, outputs: Path | None, job: LiveJob) -> None:
        names = (f"{job.key}", f"{job.key}.report")
        self._paths = [] if outputs is None else [outputs / name for name in names]

    def taken_bytes(self) -> int | None:
        """Room it takes, what was allocated beforehand included and holes not.

        None: there is no such file (the job writes to files that its submitter named), or it
        cannot be looked at.
        """
        taken = []
        for path in self._paths:
            with contextlib.suppress(OSError):
                taken.append(os.lstat(path).st_blocks * _BLOCK_BYTES)
        return sum(taken) if taken else None
