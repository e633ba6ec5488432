"""What must hold of every job, whatever happened to it."""

from __future__ import annotations

from iodaemon.core.error import InvariantError
from iodaemon.core.job import FINAL, LIVE, SUSPENDED, Job, JobState


def check_job(job: Job) -> None:
    """Verify that the record does not contradict itself.

    Raises:
        InvariantError: names the first contradiction found.
    """
    name = f"job {job.id} ({job.state})"
    claim((job.ended_s is not None) == (job.state in FINAL), f"{name}: an end has a time")
    claim(bool(job.slots) == (job.state in LIVE), f"{name}: live jobs hold slots, others none")
    claim(job.state in LIVE or not job.io_hold, f"{name}: only live jobs are held for I/O")
    claim(job.state in LIVE or job.phase is None, f"{name}: only live jobs have I/O phases")
    claim((job.io_held_since_s is not None) == job.io_hold, f"{name}: an I/O hold has a time")
    claim((job.stop is not None) == (job.state is JobState.STOPPING), f"{name}: stop has a cause")
    claim(job.state not in SUSPENDED or job.frozen, f"{name}: a suspended job stands still")
    claim(job.state is not JobState.RUNNING or not job.frozen, f"{name}: a running job does not")
    waits = job.state in (JobState.HELD, *SUSPENDED, JobState.STOPPING)
    claim(not waits or job.reason is not None, f"{name}: has a reason")
    claim(job.held_by_uid is None or job.user_hold, f"{name}: who holds it does")
    times = (job.run_s, job.suspended_io_s, job.suspended_user_s)
    claim(job.scratch_kept is None or bool(job.shares), f"{name}: what is kept takes space")
    since_s = job.scratch_kept_since_s
    claim(since_s is None or bool(job.shares), f"{name}: what is kept for long takes space")
    claim(min(times) >= 0.0, f"{name}: no time is negative")


def claim(holds: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence at the call
    """Verify it.

    Raises:
        InvariantError: it does not hold.
    """
    if not holds:
        raise InvariantError(f"broken: {what}")
