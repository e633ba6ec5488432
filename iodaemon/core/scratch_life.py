"""What the world tells of the space that jobs hold, and what people want of it."""

from __future__ import annotations

from iodaemon.core import event as ev
from iodaemon.core.decision import Free
from iodaemon.core.job import Job, Reason
from iodaemon.core.state import with_fields
from iodaemon.core.step import Step


def hear_of_scratch(
    step: Step, event: ev.ScratchRemoved | ev.ScratchKept | ev.ScratchUnwanted, job: Job
) -> None:
    """Apply it to a job that holds space; what is told of another attempt changes nothing.

    Of a job that runs nothing is removed, whoever says so.
    """
    if job.is_live:
        return
    match event:
        case ev.ScratchRemoved():
            if job.attempt == event.attempt:
                step.put(with_fields(job, shares=(), scratch_kept=None))
        case ev.ScratchKept():
            if job.attempt == event.attempt:
                kept = Reason(code="ScratchKept", text=event.problem)
                step.put(with_fields(job, scratch_kept=kept))
        case ev.ScratchUnwanted():
            step.decide(Free(job_id=job.id, attempt=job.attempt, is_wanted=True))
