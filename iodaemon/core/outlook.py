"""What jobs are expected to move: by what was measured, by what they say, by what others did."""

from __future__ import annotations

from collections.abc import Collection, Hashable

import msgspec

from iodaemon.core.bandwidth import Meter
from iodaemon.core.experience import Experience
from iodaemon.core.job import Job, JobId
from iodaemon.core.prediction import UNKNOWN, Prediction


def _with_run(declared: Prediction, found: Prediction | None) -> Prediction:
    """What was declared of the I/O, with how long earlier runs took."""
    if found is None or found.run_s is None:
        return declared
    return msgspec.structs.replace(declared, run_s=found.run_s)


class Outlook:
    """Answers for jobs that wait or run. A hint is kept until something was learned of its kind.

    Args:
        meter: what is measured.
        experience: what earlier jobs teach of later ones. None: nothing is learned.

    Attributes:
        lessons: counts up with everything that is learned.
    """

    def __init__(self, meter: Meter, experience: Experience | None = None) -> None:
        self._meter = meter
        self._experience = experience
        self._hints: dict[JobId, Prediction | None] = {}
        self.lessons = 0
        self._kinds: dict[JobId, Collection[Hashable]] = {}
        self._jobs_of: dict[Hashable, set[JobId]] = {}

    def predicted(self, job: Job) -> Prediction:
        """What it moves now, if it runs: as in the last slice that shows it, else as hinted."""
        measured = self._meter.active(job.id)
        if measured is not None:
            return Prediction(
                rate_bytes_per_s=measured.total_bytes_per_s, confidence=1.0, source="measured"
            )
        return self.hint(job) or UNKNOWN

    def expected(self, job: Job) -> Prediction:
        """The mean over its whole run: as hinted, else what it was until now, else unknown."""
        return self.hint(job) or self._mean_until_now(job) or UNKNOWN

    def hint(self, job: Job) -> Prediction | None:
        """What is known without looking at the job itself: declared, else by experience."""
        if job.id not in self._hints:
            known = job.spec.declared
            if self._experience is not None and (known is None or job.spec.walltime_s is None):
                found = self._experience.find(job)
                self._follow(job, self._experience.kinds(job))
                known = found if known is None else _with_run(known, found)
            self._hints[job.id] = known
        return self._hints[job.id]

    def learn(self, job: Job) -> None:
        """The job has come to its end; those like it are seen in its light from now on."""
        if self._experience is not None:
            self.renew(self._experience.learn(job))

    def renew(self, kinds: Collection[Hashable]) -> None:
        """Look again, when asked next, at what is known of jobs of these kinds."""
        for kind in kinds:
            for job_id in tuple(self._jobs_of.get(kind, ())):
                self.forget(job_id)
                self.lessons += 1

    def forget(self, job_id: JobId) -> None:
        """Drop what is kept of a job, for example because it ended."""
        self._hints.pop(job_id, None)
        for kind in self._kinds.pop(job_id, ()):
            jobs = self._jobs_of[kind]
            jobs.discard(job_id)
            if not jobs:
                del self._jobs_of[kind]

    def _follow(self, job: Job, kinds: Collection[Hashable]) -> None:
        self._kinds[job.id] = kinds
        for kind in kinds:
            self._jobs_of.setdefault(kind, set()).add(job.id)

    def _mean_until_now(self, job: Job) -> Prediction | None:
        """From its counters at the last sample."""
        counters, last = self._meter.counters(job.id), self._meter.last
        if counters is None or last is None or not job.is_live:
            return None
        run_s, moved_bytes = job.run_s_at(last.at_s), counters.moved_bytes
        if run_s <= 0.0 or moved_bytes is None:
            return None
        operations = None if counters.operations is None else counters.operations / run_s
        return Prediction(
            rate_bytes_per_s=moved_bytes / run_s,
            confidence=0.5,
            source="measured",
            operations_per_s=operations,
        )
