"""Jobs' I/O counted as demand: what they moved, and what they were still waiting for.

No kernel counts so; ``/proc/PID/io`` counts what was done. It is for experiments on rules that
compare what jobs want with what a device can carry: what was done is never more than that.

In a slice of length T a job is counted with min(p T, d + w) bytes, and never with less than d: d is
what it moved in it, w what is left of the read or write that it is in the middle of, p what it
would move alone. A suspended job waits for nothing. With ``asked_bytes`` w is at most that of each
stream: of a file only what is read next, and ahead of it, has been asked for. What is paged in
(``Touch``) has no such bound.

Source: ours; Lv et al., JCST 29(4), 2014, section 3.2, speak of "the I/O requirement for each
batch job" and of "I/O requests", and read /proc/PID/io.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from iodaemon.core.job import JobId
from iodaemon.core.sample import JobCounters
from iodaemon.model.progress import Kind, Progress
from iodaemon.model.storage import Storage

_BLOCKING: Final = frozenset({Kind.READ, Kind.WRITE_DIRECT})
"""What a job waits for the disk in."""


class _Account(NamedTuple):
    """What a job's counters are ahead of what was done, and what was done at the last sample."""

    more_read: int = 0
    more_written: int = 0
    read: int = 0
    written: int = 0


class DemandCounters:
    """Counters that run ahead of those of the kernel; they never go back."""

    def __init__(self, asked_bytes: int | None = None) -> None:
        """``asked_bytes``: as in ``Model``."""
        self._asked = math.inf if asked_bytes is None else float(asked_bytes)
        self._at_s = 0.0
        self._accounts: dict[JobId, _Account] = {}

    def count(
        self, storage: Storage, jobs: Iterable[tuple[Progress, JobCounters]], now_s: float
    ) -> dict[JobId, JobCounters]:
        """The counters of all jobs at a sample, from those of what was done.

        Args:
            storage: what they read and write.
            jobs: all that have not ended.
            now_s: the present; a sample at the time of the last one changes nothing.
        """
        before, self._accounts = self._accounts, {}
        counted: dict[JobId, JobCounters] = {}
        for job, done in jobs:
            if done.read_bytes is None or done.written_bytes is None:
                counted[job.job_id] = done
                continue
            account = before.get(job.job_id, _Account())
            interval_s = now_s - max(self._at_s, job.started_s)
            ahead = self._ahead(storage, job, done, account, interval_s)
            self._accounts[job.job_id] = ahead
            counted[job.job_id] = msgspec.structs.replace(
                done,
                read_bytes=ahead.read + ahead.more_read,
                written_bytes=ahead.written + ahead.more_written,
            )
        self._at_s = now_s
        return counted

    def _ahead(
        self,
        storage: Storage,
        job: Progress,
        done: JobCounters,
        account: _Account,
        interval_s: float,
    ) -> _Account:
        read, written = done.read_bytes or 0, done.written_bytes or 0
        task = job.task
        more_read, more_written = account.more_read, account.more_written
        if task is not None and job.is_active and task.kind in _BLOCKING and interval_s > 0.0:
            is_read = task.kind is Kind.READ
            moved = read - account.read if is_read else written - account.written
            left = storage.left(job, storage.now_s)
            asked = left if task.touches else min(left, self._asked * task.weight)
            wanted = min(storage.peak(task) * interval_s, moved + asked)
            more = max(0, int(wanted) - moved)
            more_read += more if is_read else 0
            more_written += 0 if is_read else more
        return _Account(more_read, more_written, read, written)
