"""What jobs are expected to move: by what was measured, by what they say, by what others did."""

from __future__ import annotations

from iodaemon.core.bandwidth import Meter
from iodaemon.core.experience import Experience
from iodaemon.core.job import Job, JobId
from iodaemon.core.prediction import UNKNOWN, Prediction


class Outlook:
    """Answers for jobs that wait or run. Hints are kept until something was learned.

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
            if known is None and self._experience is not None:
                known = self._experience.find(job)
            self._hints[job.id] = known
        return self._hints[job.id]

    def learn(self, job: Job) -> None:
        """The job has come to its end; those like it are seen in its light from now on."""
        if self._experience is not None:
            self._experience.learn(job)
            self._hints.clear()
            self.lessons += 1

    def forget(self, job_id: JobId) -> None:
        """Drop what is kept of a job that ended."""
        self._hints.pop(job_id, None)

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
