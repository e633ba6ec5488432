"""What each event does to a job: one function an event, nothing is decided by rules here."""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from iodaemon.core import event as ev
from iodaemon.core.decision import Grant, Resume, clearing_of
from iodaemon.core.job import (
    KEPT,
    SUSPENDED,
    WAITING,
    Exit,
    Job,
    JobId,
    JobState,
    Phase,
    QueuePlace,
    Reason,
    resume_command,
    suspended_state,
)
from iodaemon.core.limits import Drain
from iodaemon.core.rule import Rules
from iodaemon.core.sample import Sample
from iodaemon.core.similarity import kind_of
from iodaemon.core.state import TURN, with_fields
from iodaemon.core.step import Step
from iodaemon.core.words import duration, told_bytes

_STOP_DELAYED: Final = "StopDelayed"
_HOLD_DELAYED: Final = "HoldDelayed"
_DELAYED: Final = frozenset({_STOP_DELAYED, _HOLD_DELAYED})
"""Codes of reasons that end with the backend's answer."""
_HOLD: Final = ("user_hold", "user_hold_reason", "held_by_uid")
END_GRACE_S: Final = 10.0
"""From SIGTERM to SIGKILL for a job that has more in its space than it asked for."""
START_RETRY_S: Final = 10.0
"""A start that failed for now is tried again after this time: a lasting fault must not spin."""


def react(step: Step, event: ev.JobEvent) -> None:
    """Apply one event; one that concerns an ended job or an old attempt changes nothing."""
    state = step.state
    match event:
        case ev.JobSubmitted():
            step.add(event.job)
        case ev.SubmitRevoked():
            if event.job_id in state.jobs:
                step.remove(event.job_id)
        case ev.SampleTaken():
            _on_sample(step, event.sample)
        case ev.StartsBlocked():
            state.start_problems.pop(event.source, None)
            if event.problem:
                state.start_problems[event.source] = event.problem
        case ev.DrainBegun():
            since_s = event.at_s if state.drain is None else state.drain.since_s
            state.drain = Drain(since_s=since_s, by=event.by, reason=event.reason)
            state.reservations = {}  # no start is promised any more
        case ev.DrainEnded():
            state.drain = None
        case ev.LessonsForgotten():
            for kind in event.kinds:
                step.forget_lesson(kind)
        case ev.DiskSeen():
            state.stock.see(event.disk, event.problem)
        case ev.TimerFired():
            pass
        case ev.RequeueRequested():
            _on_requeue(step, event)
        case _:
            if isinstance(event, ev.StartFailed) and event.disk is not None:
                state.stock.see(event.disk, event.problem)  # whatever has become of the job
            job = state.jobs.get(event.job_id)
            if job is not None and _concerns(event, job):
                _react_of_job(step, event, job)


def _concerns(event: ev.OneJobEvent, job: Job) -> bool:
    """Whether it is about what the job is now. Of a job that runs no space is cleared."""
    match event:
        case ev.CancelRequested() | ev.SuspendRequested() | ev.ResumeRequested():
            return not job.state.is_final
        case ev.ScratchUnwanted():
            return bool(job.shares) and not job.is_live
        case ev.ScratchRemoved() | ev.ScratchKept():
            return bool(job.shares) and not job.is_live and event.attempt == job.attempt
        case ev.ScratchUsed():
            return bool(job.shares) and job.is_live and event.attempt == job.attempt
        case ev.JobStarted() | ev.StartFailed() | ev.JobExited():
            return job.is_live and event.attempt == job.attempt
        case _:
            return job.is_live


def _react_of_job(step: Step, event: ev.OneJobEvent, job: Job) -> None:
    match event:
        case ev.JobStarted():
            _on_started(step, job)
        case ev.StartFailed():
            _on_start_failed(step, event, job)
        case ev.JobExited():
            _on_exited(step, event, job)
        case ev.JobSuspended():
            _on_suspended(step, job)
        case ev.JobResumed():
            _on_resumed(step, job)
        case ev.SuspendFailed():
            _on_suspend_failed(step, event, job)
        case ev.StopDelayed():
            _on_delayed(step, event, job)
        case ev.CapFailed():
            step.state.caps.pop(job.id, None)  # nothing to take back
            step.state.uncappable[job.id] = None
        case ev.CancelRequested():
            _on_cancel(step, event, job)
        case ev.SuspendRequested():
            _on_user_suspend(step, event, job)
        case ev.ResumeRequested():
            _on_user_resume(step, job)
        case ev.PhaseAsked():
            if job.phase is None:  # asked twice, the first time counts
                asked = Phase(asked_s=event.at_s, expect_bytes=event.expect_bytes)
                step.put(with_fields(job, phase=asked, reason=_reason_left(job)))
        case ev.PhaseDone():
            if job.phase is not None:
                step.put(with_fields(job, phase=None, reason=_reason_left(job)))
        case ev.ScratchRemoved():
            step.put(with_fields(job, shares=(), scratch_kept=None, scratch_kept_since_s=None))
        case ev.ScratchKept():
            _on_scratch_kept(step, event, job)
        case ev.ScratchUsed():
            _on_scratch_used(step, event, job)
        case ev.ScratchUnwanted():
            why = Reason(code="ScratchRemove", text=f"'iod scratch remove' by {event.by}")
            _begin_clearing(step, job, why, event.by)
        case _:
            assert_never(event)


def _on_delayed(step: Step, event: ev.StopDelayed, job: Job) -> None:
    if job.state is JobState.STOPPING:
        step.put(with_fields(job, reason=Reason(code=_STOP_DELAYED, text=event.problem)))
    elif job.wants_freeze != job.frozen:
        step.put(with_fields(job, reason=Reason(code=_HOLD_DELAYED, text=event.problem)))


def _on_exited(step: Step, event: ev.JobExited, job: Job) -> None:
    peak_bytes = step.state.meter.peak_bytes(job.id)
    job = with_fields(job, exit=event.exit, io=event.io, staged=event.staged)
    again = job.stop_reason if job.stop is JobState.PENDING else None
    if event.by_reboot and job.spec.requeue and job.stop is None:
        again = Reason(code="Requeued", text=f"{event.note}; it asked to be run again then")
    if again is not None:
        step.requeue(job, again, happened_s=event.at_s)
        _keep_held(step, job)
    else:
        end, why = _end_of(job, event.exit, event.note)
        step.move(job, end, why, happened_s=event.at_s)
        step.state.outlook.learn(step.state.jobs[job.id])
    if peak_bytes is not None:
        is_whole = step.state.jobs[job.id].state is JobState.COMPLETED
        step.note_peak(kind_of(job), peak_bytes, is_whole=is_whole)


def _on_started(step: Step, job: Job) -> None:
    if job.state is JobState.STARTING:
        step.state.meter.begin(job.id)
        job = with_fields(job, started_s=step.now_s)
        step.move(with_fields(job, frozen=False), JobState.RUNNING)
        if job.frozen:  # its standstill was reported before its start
            _on_suspended(step, step.state.jobs[job.id])
    elif job.started_s is None:
        step.put(with_fields(job, started_s=step.now_s))


def _on_start_failed(step: Step, event: ev.StartFailed, job: Job) -> None:
    reason = Reason(code="StartFailed", text=event.problem)
    if job.stop is JobState.PENDING and job.stop_reason is not None:
        step.requeue(job, job.stop_reason)
    elif job.state is JobState.STOPPING:
        step.move(job, job.stop or JobState.CANCELLED, job.stop_reason)
    elif event.exit_code is not None:
        job = with_fields(job, exit=Exit(code=event.exit_code))
        step.move(job, JobState.FAILED, reason)
    elif event.holds:
        reason = msgspec.structs.replace(reason, cure=resume_command(job.id))
        job = with_fields(job, user_hold=True, user_hold_reason=reason)
        _try_again_later(step, job, reason)
    else:
        _try_again_later(step, job, reason)
        if event.disk in step.state.stock.unusable:  # nobody is sent there: it need not wait
            _end_delay(step, job.id)


def _try_again_later(step: Step, job: Job, reason: Reason) -> None:
    """It gives its slots back; a daemon that was restarted meanwhile had taken it for running."""
    if job.state is JobState.STARTING:
        job = with_fields(job, slots=(), partition=None, frozen=False)
        step.move(job, JobState.PENDING, reason)
    else:
        step.requeue(job, reason)
    step.put(with_fields(step.state.jobs[job.id], reason=reason))
    if not _keep_held(step, job):
        step.state.delayed[job.id] = step.now_s + START_RETRY_S


def _keep_held(step: Step, before: Job) -> bool:
    """A person's hold outlives the attempt: a job that waits again is held as it was."""
    if before.user_hold:
        held = {name: getattr(before, name) for name in _HOLD}
        step.move(
            with_fields(step.state.jobs[before.id], **held), JobState.HELD, before.user_hold_reason
        )
    return before.user_hold


def _end_delay(step: Step, job_id: JobId) -> None:
    if step.state.delayed.pop(job_id, None) is not None:
        step.put(with_fields(step.state.jobs[job_id], reason=None))


def _on_suspended(step: Step, job: Job) -> None:
    job = with_fields(job, frozen=True)
    if job.state is JobState.RUNNING:
        job = with_fields(job, freeze_asked=True)
        step.move(job, suspended_state(job), _hold_reason(job))
    elif job.state in SUSPENDED and job.reason is not None and job.reason.code in _DELAYED:
        step.put(with_fields(job, reason=_hold_reason(job)))
    else:
        step.put(job)


def _on_resumed(step: Step, job: Job) -> None:
    """A thaw nobody asked for (the supervisor went away) ends the regulation's hold as well."""
    step.uncap(job.id)  # its cap went as well; said once more, because one may be on its way
    unasked = job.frozen and job.freeze_asked
    job = with_fields(job, frozen=False)
    if unasked:
        job = with_fields(job, freeze_asked=False, io_hold=False, io_held_since_s=None)
    if job.state in SUSPENDED:
        why = job.release_reason if job.state is JobState.SUSPENDED_IO else None
        step.move(with_fields(job, release_reason=None), JobState.RUNNING, why)
        step.put(with_fields(step.state.jobs[job.id], reason=None))  # it runs: that needs none
    elif job.reason is not None and job.reason.code in _DELAYED:
        why = job.stop_reason if job.state is JobState.STOPPING else None
        step.put(with_fields(job, reason=why))
    else:
        step.put(job)


def _on_suspend_failed(step: Step, event: ev.SuspendFailed, job: Job) -> None:
    """The holds that could not be enforced are dropped, so that nothing is tried for ever."""
    reason = Reason(code="SuspendFailed", text=event.problem)
    job = with_fields(job, frozen=event.frozen)
    if job.state is JobState.STOPPING:
        step.put(job)
        return
    job = with_fields(job, freeze_asked=event.frozen)
    if not event.frozen:
        job = with_fields(job, user_hold=False, held_by_uid=None)
        job = with_fields(job, io_hold=False, io_held_since_s=None)
    if event.frozen and job.state is JobState.RUNNING:
        step.move(job, suspended_state(job), reason)
    elif not event.frozen and job.state in SUSPENDED:
        step.move(job, JobState.RUNNING, reason)
    else:
        step.put(with_fields(job, reason=reason))


def _on_cancel(step: Step, event: ev.CancelRequested, job: Job) -> None:
    reason = Reason(code="Cancelled", text=f"cancelled by {event.by}")
    if job.state in (JobState.PENDING, JobState.HELD):
        step.move(job, JobState.CANCELLED, reason)
    elif job.state is not JobState.STOPPING:
        step.stop(job, JobState.CANCELLED, reason, event.grace_s)
    else:
        if job.stop is JobState.PENDING:  # it was to run again; now it is not
            job = with_fields(job, stop=JobState.CANCELLED, stop_reason=reason)
        _kill_sooner(step, job, event.grace_s)


def _kill_sooner(step: Step, job: Job, grace_s: float) -> None:
    sooner_s = min(job.kill_at_s or step.now_s, step.now_s + grace_s)
    step.put(with_fields(job, kill_at_s=sooner_s))


def _on_requeue(step: Step, event: ev.RequeueRequested) -> None:
    """A job that waits, or that is being ended for another reason, is left alone.

    Waiting earns a place in the queue, and a start spends it: whoever has their job run again waits
    anew, behind all that are there. Whom the machine owes a run (LOST) keeps the old place, and so
    does a job that was running and that somebody else put back.
    """
    if event.job_id not in step.state.jobs and event.ended is not None:
        step.state.add(event.ended)
    job = step.state.jobs.get(event.job_id)
    reason = Reason(code="Requeued", text=f"requeued by {event.by}")
    if job is None:
        return
    is_owed = job.state is JobState.LOST
    is_put_back = job.is_live and event.by_uid not in (None, job.uid)
    if job.state in WAITING or job.state is JobState.STOPPING or is_owed or is_put_back:
        place = job.place
    else:
        place = QueuePlace(behind=JobId(step.state.next_id - 1), since_s=step.now_s)
    job = with_fields(job, place=place)
    if job.state.is_final:
        step.requeue(job, reason)
    elif job.is_live and job.state is not JobState.STOPPING:
        step.stop(job, JobState.PENDING, reason, event.grace_s)
    elif job.stop is JobState.PENDING:
        _kill_sooner(step, job, event.grace_s)


def _on_user_suspend(step: Step, event: ev.SuspendRequested, job: Job) -> None:
    """An administrator's hold stays one, whoever else suspends the job."""
    if job.state is JobState.STOPPING:
        return
    by_uid = None if event.by_uid == job.uid else event.by_uid
    if by_uid is None and job.held_by_uid is not None:
        return
    whose = "" if by_uid is None else "an administrator's "
    cure = whose + resume_command(job.id)
    reason = Reason(code="Suspended", text=f"suspended by {event.by}", cure=cure)
    job = with_fields(job, user_hold=True, user_hold_reason=reason, held_by_uid=by_uid)
    if job.state is JobState.PENDING:
        step.move(job, JobState.HELD, reason)
    elif job.state is JobState.SUSPENDED_IO:
        step.move(job, JobState.SUSPENDED_USER, reason)
    elif job.state in (JobState.HELD, JobState.SUSPENDED_USER):
        step.put(with_fields(job, reason=reason))
    else:
        step.put(job)


def _on_user_resume(step: Step, job: Job) -> None:
    is_free = not (job.user_hold or job.io_hold or job.freeze_asked or job.frozen)
    if job.state is JobState.RUNNING and is_free:  # it has stopped itself
        step.decisions.append(Resume(job_id=job.id))
    job = with_fields(job, user_hold=False, held_by_uid=None)
    if job.state is JobState.HELD:
        step.move(job, JobState.PENDING)
    elif job.state is JobState.SUSPENDED_USER and job.io_hold:
        step.move(job, JobState.SUSPENDED_IO, _hold_reason(job))
    else:
        step.put(job)


def _on_sample(step: Step, sample: Sample) -> None:
    state = step.state
    live = list(state.live)
    read = {job.id for job in live if job.is_counted_at(sample.at_s)}
    if not read.issuperset(sample.jobs):  # an attempt that ended while its counters were read
        jobs = {job_id: each for job_id, each in sample.jobs.items() if job_id in read}
        sample = msgspec.structs.replace(sample, jobs=jobs)
    run_s = {job.id: job.run_s_at(sample.at_s) for job in live}
    state.meter.take(sample, run_s=run_s)


def _hold_reason(job: Job) -> Reason:
    reason = job.user_hold_reason if job.user_hold else job.hold_reason
    if reason is not None and job.wants_freeze:
        return reason
    return Reason(code="Adopted", text="was found standing still; it is being resumed")


def _end_of(job: Job, ended: Exit, note: str) -> tuple[JobState, Reason | None]:
    """What its end is called, and why."""
    if ended.out_of_memory:
        text = note or "killed because memory ran out"
        return JobState.OUT_OF_MEMORY, Reason(code="OutOfMemory", text=text)
    if job.stop is not None:
        return job.stop, job.stop_reason
    if ended.signal is not None:
        text = note or f"ended by signal {ended.signal}"
        return JobState.FAILED, Reason(code="Signal", text=text)
    if ended.code is None:
        return JobState.LOST, Reason(code="Lost", text=note or "its exit could not be learned")
    if ended.code != 0:
        text = note or f"exit code {ended.code}"
        return JobState.FAILED, Reason(code="ExitCode", text=text)
    return JobState.COMPLETED, Reason(code="Note", text=note) if note else None


def grant(step: Step, job: Job) -> None:
    """The job has its turn from now on; nothing for one that does not wait for it."""
    if job.phase is None or job.phase.granted_s is not None:
        return
    step.put(with_fields(job, phase=msgspec.structs.replace(job.phase, granted_s=step.now_s)))
    step.decisions.append(Grant(job_id=job.id))


def revoke(step: Step, job: Job, why: Reason | None) -> None:
    """The job's phase counts as over, unless the controller itself let it go on."""
    if job.has_turn and not job.is_immune(step.now_s):
        reason = why if job.state is JobState.RUNNING else job.reason
        step.put(with_fields(job, phase=None, reason=reason))


def _reason_left(job: Job) -> Reason | None:
    """What is said of a turn that was lost is said until the next word of the job."""
    is_said = job.state is JobState.RUNNING and job.reason is not None and job.reason.code == TURN
    return None if is_said else job.reason


def wait_ends_s(rules: Rules, job: Job) -> float | None:
    """When a job that waits for its turn goes on in any case; None: it does not wait, or never.

    To wait for a turn is to stand still for others' I/O: the same guard stands before it.
    """
    limit_s = rules.longest_suspension_s(job)
    if job.phase is None or job.phase.granted_s is not None or limit_s is None:
        return None
    return job.phase.asked_s + limit_s


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


def _on_scratch_kept(step: Step, event: ev.ScratchKept, job: Job) -> None:
    """Since when is counted from the first word of it, whatever is told or tried later."""
    since_s = job.scratch_kept_since_s
    if event.is_result is not None:
        since_s = (event.at_s if since_s is None else since_s) if event.is_result else None
    kept = Reason(code=KEPT, text=event.problem)
    step.put(with_fields(job, scratch_kept=kept, scratch_kept_since_s=since_s))


def _begin_clearing(step: Step, job: Job, why: Reason, by: str = "") -> None:
    """Nobody wants it: also after a restart, and whatever keeps it then."""
    job = with_fields(job, scratch_unwanted=why, scratch_unwanted_by=by)
    step.put(with_fields(job, scratch_kept=None))
    step.decisions.append(clearing_of(job))


def _on_scratch_used(step: Step, event: ev.ScratchUsed, job: Job) -> None:
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


def end_overfull(step: Step, sample: Sample, most_bytes: int, grace_s: float) -> None:
    """Ask every started job whose output is larger to end, or end it sooner.

    Args:
        sample: what was read. One that began before the job did is of the attempt before.
    """
    for job_id, counters in sample.jobs.items():
        taken_bytes = counters.output_bytes
        if taken_bytes is None or taken_bytes <= most_bytes:
            continue
        job = step.state.jobs.get(job_id)
        if job is None or job.started_s is None or job.started_s > sample.at_s:
            continue
        if job.state is JobState.STOPPING:
            step.hasten(job, step.now_s + grace_s)
        elif job.state is JobState.RUNNING or job.state in SUSPENDED:
            taken, most = told_bytes(taken_bytes), told_bytes(most_bytes)
            text = (
                f"its output took {taken}, more than the {most} of output_max; "
                "'iod submit -o FILE' writes it elsewhere"
            )
            step.stop(job, JobState.FAILED, Reason(code="OutputMax", text=text), grace_s)
