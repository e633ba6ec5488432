"""The steps of a job's life: each gives the job's next record; none changes anything in place."""

from __future__ import annotations

from typing import Final

import msgspec

from iodaemon.core.error import TransitionError
from iodaemon.core.job import FINAL, LIVE, TRANSITIONS, IoTotals, Job, JobState, Reason


def moved(job: Job, to: JobState, now_s: float, reason: Reason | None = None) -> Job:
    """The job after the step to ``to`` at ``now_s``, with the time spent booked where it belongs.

    Raises:
        TransitionError: ``TRANSITIONS`` does not allow the step.
    """
    if to not in TRANSITIONS[job.state]:
        raise TransitionError(f"job {job.id}: no step leads from {job.state} to {to}")
    spent_s = max(0.0, now_s - job.since_s)
    match job.state:
        case JobState.RUNNING | JobState.STOPPING:
            job = msgspec.structs.replace(job, run_s=job.run_s + spent_s)
        case JobState.SUSPENDED_IO:
            job = msgspec.structs.replace(job, suspended_io_s=job.suspended_io_s + spent_s)
        case JobState.SUSPENDED_USER:
            job = msgspec.structs.replace(job, suspended_user_s=job.suspended_user_s + spent_s)
        case _:
            pass
    phase = job.phase if to in LIVE else None
    job = msgspec.structs.replace(job, state=to, since_s=now_s, reason=reason, phase=phase)
    return _ended(job, now_s) if to in FINAL else job


_TIMES: Final = (
    *("since_s", "submitted_s", "started_s"),
    *("io_held_since_s", "immune_until_s", "kill_at_s", "scratch_kept_since_s"),
)
"""The moments in the record of a job that has not ended."""
_TIMES_OF_ENDED: Final = ("scratch_kept_since_s",)
"""Those after which something happens to one that has."""


def shifted(job: Job, by_s: float) -> Job:
    """The job on a clock that has been set forward by so much; nothing lasts longer for that."""
    names = _TIMES_OF_ENDED if job.state in FINAL else _TIMES
    moments = {name: getattr(job, name) for name in names}
    told = {name: at_s + by_s for name, at_s in moments.items() if at_s is not None}
    place = job.place
    if place is not None and job.state not in FINAL:
        place = msgspec.structs.replace(place, since_s=place.since_s + by_s)
    return msgspec.structs.replace(job, **told, place=place)


def renewed(job: Job) -> Job:
    """The job as if it had not run yet, but for its attempts; what it did is in its history."""
    return msgspec.structs.replace(
        _let_go(job),
        partition=None,
        started_s=None,
        ended_s=None,
        run_s=0.0,
        suspended_io_s=0.0,
        suspended_user_s=0.0,
        reason=None,
        exit=None,
        io=IoTotals(),
        started_because=None,
        expected=None,
        tier=None,
        staged=None,
        charged_s=None,
        scratch_most_bytes=0,
    )


def released(job: Job, why: Reason | None) -> Job:
    """The job when the regulation no longer holds it."""
    return msgspec.structs.replace(job, io_hold=False, io_held_since_s=None, release_reason=why)


def _ended(job: Job, now_s: float) -> Job:
    return msgspec.structs.replace(_let_go(job), ended_s=now_s)


def _let_go(job: Job) -> Job:
    """It holds nothing and nobody holds it."""
    return msgspec.structs.replace(
        job,
        slots=(),
        user_hold=False,
        io_hold=False,
        frozen=False,
        freeze_asked=False,
        io_held_since_s=None,
        immune_until_s=None,
        hold_reason=None,
        release_reason=None,
        user_hold_reason=None,
        held_by_uid=None,
        stop=None,
        stop_reason=None,
        kill_at_s=None,
        scratch_over=None,
    )
