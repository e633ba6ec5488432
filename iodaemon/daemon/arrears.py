"""What the disk owes: batches that it did not take, made into the one that is tried next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from iodaemon.core.job import Job, JobId
from iodaemon.daemon.batch import Batch

MOST_STEPS: Final = 100_000
"""Of the history only so much is kept for later: a disk may stay full for weeks."""


class Arrears:
    """Batches that failed, oldest first.

    Invariant: of every job that was acknowledged the newest record is here or on the disk; of
    jobs that never were nothing is written. Raw samples are not kept for later.
    """

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def __bool__(self) -> bool:
        """True while something waits for the disk."""
        return bool(self._batches)

    def add(self, batch: Batch) -> None:
        """The disk did not take this one; it is newer than all that are here."""
        self._batches.append(batch)

    def put_back(self, batch: Batch) -> None:
        """One that ``take`` gave failed again; it is older than all that are here."""
        self._batches.insert(0, batch)

    def take(self, newest: Mapping[JobId, Job], never_were: Collection[JobId]) -> Batch:
        """All of it as one batch; nothing is left here.

        Args:
            newest: the jobs' present records, as far as they are in memory.
            never_were: jobs whose submission was refused.
        """
        batches, self._batches = self._batches, []
        jobs = {job.id: newest.get(job.id, job) for batch in batches for job in batch.jobs}
        steps = [step for batch in batches for step in batch.transitions]
        rows = [row for batch in batches for row in batch.minutes]
        notes = [note for batch in batches for note in batch.notes]
        lessons = {kind: each for batch in batches for kind, each in batch.lessons.items()}
        return Batch(
            jobs=tuple(job for job_id, job in sorted(jobs.items()) if job_id not in never_were),
            removed=tuple(sorted({job_id for batch in batches for job_id in batch.removed})),
            transitions=tuple(s for s in steps if s.job_id not in never_were)[-MOST_STEPS:],
            minutes=tuple(r for r in rows if r.job_id not in never_were)[-MOST_STEPS:],
            notes=tuple(notes)[-MOST_STEPS:],
            lessons=lessons,
        )
