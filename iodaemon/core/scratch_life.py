"""What the world tells of the space that jobs hold, and what people want of it."""

from __future__ import annotations

from typing import Final

from iodaemon.core import event as ev
from iodaemon.core.decision import clearing_of
from iodaemon.core.explanation import duration
from iodaemon.core.job import Job, JobState, Reason
from iodaemon.core.scratch import KEPT
from iodaemon.core.size import told_bytes
from iodaemon.core.state import with_fields
from iodaemon.core.step import Step

END_GRACE_S: Final = 10.0
"""From SIGTERM to SIGKILL for a job that has more in its space than it asked for."""


def hear_of_scratch(
    step: Step,
    event: ev.ScratchRemoved | ev.ScratchKept | ev.ScratchUsed | ev.ScratchUnwanted,
    job: Job,
) -> None:
    """Apply it to a job that holds space; what is told of another attempt changes nothing.

    Of a job that runs nothing is removed, whoever says so.
    """
    if isinstance(event, ev.ScratchUnwanted):
        if not job.is_live:
            _hear_of_wish(step, event, job)
    elif event.attempt != job.attempt:
        return
    elif isinstance(event, ev.ScratchUsed):
        if job.is_live:
            _hear_of_use(step, event, job)
    elif not job.is_live:
        if isinstance(event, ev.ScratchRemoved):
            kept = {"scratch_kept": None, "scratch_kept_since_s": None}
            step.put(with_fields(job, shares=(), **kept))
        else:
            _hear_of_kept(step, event, job)


def end_keeping(step: Step) -> None:
    """Have removed what could not be copied out and has been kept for as long as it may be."""
    keep_s = step.state.stock.keep_s
    if keep_s is None:
        return
    kept = step.state.stock.kept_since_s.items()
    ended = [job_id for job_id, since_s in kept if since_s + keep_s <= step.now_s]
    why = Reason(
        code="ScratchKeep", text=f"nobody had it copied for {duration(keep_s)} (scratch_keep)"
    )
    for job_id in sorted(ended):
        _begin_clearing(step, step.state.jobs[job_id], why)


def _hear_of_kept(step: Step, event: ev.ScratchKept, job: Job) -> None:
    """Since when is counted from the first word of it, whatever is told or tried later."""
    since_s = job.scratch_kept_since_s
    if event.is_result is not None:
        since_s = (event.at_s if since_s is None else since_s) if event.is_result else None
    kept = Reason(code=KEPT, text=event.problem)
    step.put(with_fields(job, scratch_kept=kept, scratch_kept_since_s=since_s))


def _hear_of_wish(step: Step, event: ev.ScratchUnwanted, job: Job) -> None:
    why = Reason(code="ScratchRemove", text=f"'iod scratch remove' by {event.by}")
    _begin_clearing(step, job, why, event.by)


def _begin_clearing(step: Step, job: Job, why: Reason, by: str = "") -> None:
    """Nobody wants it: also after a restart, and whatever keeps it then."""
    job = with_fields(job, scratch_unwanted=why, scratch_unwanted_by=by)
    step.put(with_fields(job, scratch_kept=None))
    step.decide(clearing_of(job))


def _hear_of_use(step: Step, event: ev.ScratchUsed, job: Job) -> None:
    if not event.is_over:
        if job.scratch_over is not None:
            step.put(with_fields(job, scratch_over=None))
        return
    asked = sum(share.size_bytes for share in job.shares)
    used = ("" if event.is_all else "at least ") + told_bytes(event.used_bytes)
    text = f"has {used} in its scratch space and asked for {told_bytes(asked)}"
    if not event.is_all and event.used_bytes <= asked:
        text += "; what else it has cannot be measured: something may be mounted there"
    reason = Reason(code="ScratchOver", text=text)
    most = max(job.scratch_most_bytes, event.used_bytes if event.used_bytes > asked else 0)
    step.put(with_fields(job, scratch_over=reason, scratch_most_bytes=most))
    if not event.ends:
        return
    job = step.state.jobs[job.id]
    if job.state is JobState.STOPPING:
        step.hasten(job, step.now_s + END_GRACE_S)
    else:
        step.stop(job, JobState.CANCELLED, reason, END_GRACE_S)
