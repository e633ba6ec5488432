"""I/O phases that jobs tell of: asked for, granted, over. Who gets the turn is a rule's to say."""

from __future__ import annotations

from iodaemon.core import event as ev
from iodaemon.core.decision import Grant
from iodaemon.core.job import Job, JobState, Phase, Reason
from iodaemon.core.rule import Rules
from iodaemon.core.state import TURN, with_fields
from iodaemon.core.step import Step


def hear(step: Step, event: ev.PhaseAsked | ev.PhaseDone, job: Job) -> None:
    """A live job asks for its turn, or is done with it; asked twice, the first time counts."""
    if isinstance(event, ev.PhaseDone):
        phase = None
    elif job.phase is None:
        phase = Phase(asked_s=event.at_s, expect_bytes=event.expect_bytes)
    else:
        return
    if phase is not job.phase:
        step.put(with_fields(job, phase=phase, reason=_reason_left(job)))


def grant(step: Step, job: Job) -> None:
    """The job has its turn from now on; nothing for one that does not wait for it."""
    if job.phase is None or job.phase.granted_s is not None:
        return
    step.put(with_fields(job, phase=with_turn(job.phase, step.now_s)))
    step.decide(Grant(job_id=job.id))


def revoke(step: Step, job: Job, why: Reason | None) -> None:
    """The job's phase counts as over, unless the controller itself let it go on."""
    if job.has_turn and not job.is_immune(step.now_s):
        reason = why if job.state is JobState.RUNNING else job.reason
        step.put(with_fields(job, phase=None, reason=reason))


def _reason_left(job: Job) -> Reason | None:
    """What is said of a turn that was lost is said until the next word of the job."""
    is_said = job.state is JobState.RUNNING and job.reason is not None and job.reason.code == TURN
    return None if is_said else job.reason


def with_turn(phase: Phase, granted_s: float) -> Phase:
    """The phase with the turn had since then."""
    return Phase(asked_s=phase.asked_s, expect_bytes=phase.expect_bytes, granted_s=granted_s)


def wait_ends_s(rules: Rules, job: Job) -> float | None:
    """When a job that waits for its turn goes on in any case; None: it does not wait, or never.

    To wait for a turn is to stand still for others' I/O: the same guard stands before it.
    """
    limit_s = rules.longest_suspension_s(job)
    if job.phase is None or job.phase.granted_s is not None or limit_s is None:
        return None
    return job.phase.asked_s + limit_s
