"""The life of a job: the steps that are allowed, the record after each, and what must always hold.

Every function returns the job's next record; none changes anything in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from iodaemon.core.error import InvariantError, TransitionError
from iodaemon.core.job import ENDS, FINAL, LIVE, SUSPENDED, Job, JobState, Reason

_S = JobState
TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = MappingProxyType(
    {
        # Before the start: nothing runs, so a cancel is final at once.
        _S.HELD: frozenset({_S.PENDING, _S.CANCELLED}),
        _S.PENDING: frozenset({_S.HELD, _S.STARTING, _S.CANCELLED, _S.FAILED}),
        # A start that provably never ran gives its slots back (PENDING); one that can never
        # succeed is FAILED; one whose fate is unknown is LOST.
        _S.STARTING: frozenset({_S.RUNNING, _S.PENDING, _S.STOPPING, _S.CANCELLED}) | ENDS,
        # PENDING again: the machine was restarted, and the job asked to be requeued then.
        _S.RUNNING: SUSPENDED | {_S.STOPPING, _S.PENDING} | ENDS,
        _S.SUSPENDED_IO: frozenset({_S.RUNNING, _S.SUSPENDED_USER, _S.STOPPING, _S.PENDING}) | ENDS,
        _S.SUSPENDED_USER: frozenset({_S.RUNNING, _S.SUSPENDED_IO, _S.STOPPING, _S.PENDING}) | ENDS,
        # FAILED: it took more than it may, and was ended for that.
        _S.STOPPING: frozenset(
            {_S.CANCELLED, _S.TIMEOUT, _S.FAILED, _S.LOST, _S.OUT_OF_MEMORY, _S.PENDING}
        ),
        # Only for a requeue: it runs again from its beginning, as a new attempt.
        **{state: frozenset({_S.PENDING}) for state in FINAL},
    }
)
"""The life of a job: from each state, the states it may step to."""


def moved(job: Job, to: JobState, now_s: float, reason: Reason | None = None) -> Job:
    """The job after the step to ``to`` at ``now_s``, with the time spent booked where it belongs.

    Raises:
        TransitionError: ``TRANSITIONS`` does not allow the step.
    """
    if to not in TRANSITIONS[job.state]:
        raise TransitionError(f"job {job.id}: no step leads from {job.state} to {to}")
    booked = _BOOKED_IN.get(job.state)
    if booked is not None:
        spent_s = max(0.0, now_s - job.since_s)
        job = msgspec.structs.replace(job, **{booked: getattr(job, booked) + spent_s})
    phase = job.phase if to in LIVE else None
    job = msgspec.structs.replace(job, state=to, since_s=now_s, reason=reason, phase=phase)
    return _ended(job, now_s) if to in FINAL else job


_BOOKED_IN: Final[Mapping[JobState, str]] = MappingProxyType(
    {
        _S.RUNNING: "run_s",
        _S.STOPPING: "run_s",
        _S.SUSPENDED_IO: "suspended_io_s",
        _S.SUSPENDED_USER: "suspended_user_s",
    }
)
"""The field in which the time spent in a state counts."""
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


_OUTLIVES_ATTEMPTS: Final = (
    *("id", "spec", "uid", "state", "since_s", "submitted_s", "place", "attempt"),
    *("shares", "scratch_kept", "scratch_kept_since_s"),
    *("scratch_unwanted", "scratch_unwanted_by"),
)
"""What a record keeps when the job waits for another attempt; the rest is in its history."""


def renewed(job: Job) -> Job:
    """The job as if it had not run yet, but for its attempts and what is left in its space."""
    return Job(**{name: getattr(job, name) for name in _OUTLIVES_ATTEMPTS})


def released(job: Job, why: Reason | None) -> Job:
    return msgspec.structs.replace(job, io_hold=False, io_held_since_s=None, release_reason=why)


def _ended(job: Job, now_s: float) -> Job:
    """It holds nothing and nobody holds it."""
    return msgspec.structs.replace(
        job,
        ended_s=now_s,
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
