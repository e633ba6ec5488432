"""Regulation that touches nothing: whom it would hold, since when, and for how long in all.

In shadow mode the rule sees its own decisions as if they had been carried out, so that it goes on
from them; what the jobs move is what they truly move, since none of them stands still. The
controller's guards hold as they would: a job that may not be suspended is not.
"""

from __future__ import annotations

from collections.abc import Iterator

from iodaemon.core.decision import RegulationPlan, ShadowStep
from iodaemon.core.job import Job, JobId, JobState, Reason
from iodaemon.core.rule import Rules
from iodaemon.core.state import State, with_fields


class Shadow:
    """Who would be held.

    Invariant: after ``follow`` only live jobs are in it.
    """

    def __init__(self) -> None:
        self._held_since_s: dict[JobId, float] = {}
        self._held_why: dict[JobId, Reason] = {}
        self._let_go_s: dict[JobId, float] = {}
        self._immune_until_s: dict[JobId, float] = {}
        self._stood_s: dict[JobId, float] = {}

    @property
    def holds_any(self) -> bool:
        """True while a job would stand still."""
        return bool(self._held_since_s)

    def stood_s(self, now_s: float) -> dict[JobId, float]:
        """How long each job that would have been held at all would have stood still until now."""
        total_s = dict(self._stood_s)
        for job_id, since_s in self._held_since_s.items():
            total_s[job_id] = total_s.get(job_id, 0.0) + max(0.0, now_s - since_s)
        return dict(sorted(total_s.items()))

    def held_for(self, job_id: JobId) -> tuple[float, Reason] | None:
        """Since when the job would stand still now, s, and why; None: it would run."""
        since_s = self._held_since_s.get(job_id)
        return None if since_s is None else (since_s, self._held_why[job_id])

    def overlay(self, job: Job) -> Job:
        """The job as it would be; what it told of its I/O means nothing where no job waits."""
        if job.phase is not None:
            job = with_fields(job, phase=None)
        since_s = self._held_since_s.get(job.id)
        before_s = self._stood_s.get(job.id, 0.0)
        if since_s is not None:
            return with_fields(
                job,
                io_hold=True,
                io_held_since_s=since_s,
                suspended_io_s=job.suspended_io_s + before_s,
            )
        if job.id in self._let_go_s:
            return with_fields(
                job,
                since_s=max(job.since_s, self._let_go_s[job.id]),
                suspended_io_s=job.suspended_io_s + before_s,
                immune_until_s=self._immune_until_s.get(job.id, job.immune_until_s),
            )
        return job

    def follow(self, state: State, now_s: float) -> Iterator[ShadowStep]:
        """Forget jobs that have ended; yields the end of what they would have stood still."""
        live = {job.id for job in state.live}
        for job_id in sorted(self._held_since_s.keys() - live):
            job = state.jobs.get(job_id)
            ended_s = now_s if job is None or job.ended_s is None else job.ended_s
            yield self._release(job_id, ended_s, Reason(code="Ended", text="the job ended"))
        for book in (self._let_go_s, self._immune_until_s, self._stood_s):
            for job_id in [job_id for job_id in book if job_id not in live]:
                del book[job_id]

    def end(self, now_s: float) -> Iterator[ShadowStep]:
        """Regulation is no longer in shadow: yields the end of what would have stood still."""
        for job_id in sorted(self._held_since_s):
            yield self._release(job_id, now_s, Reason(code="Mode", text="no longer in shadow"))

    def apply(self, plan: RegulationPlan, state: State, now_s: float) -> Iterator[ShadowStep]:
        """Take in what the rule decided; yields what would have been done."""
        for job_id in plan.resumes:
            if job_id in self._held_since_s:
                yield self._release(job_id, now_s, plan.reasons.get(job_id))
        for job_id in plan.suspends:
            if job_id not in plan.resumes and self._may_be_held(state, job_id, now_s):
                self._held_since_s[job_id] = now_s
                reason = plan.why_suspended(job_id)
                self._held_why[job_id] = reason
                yield ShadowStep(job_id=job_id, at_s=now_s, verdict="suspend", reason=reason)

    def release_overdue(self, state: State, rules: Rules, now_s: float) -> Iterator[ShadowStep]:
        """The controller's guard, as it would act."""
        for job_id, since_s in sorted(self._held_since_s.items()):
            limit_s = rules.longest_suspension_s(state.jobs[job_id])
            if limit_s is not None and since_s + limit_s <= now_s:
                self._immune_until_s[job_id] = now_s + limit_s
                reason = Reason(code="MaxSuspend", text=f"stood still for {limit_s:g} s")
                yield self._release(job_id, now_s, reason)

    def _may_be_held(self, state: State, job_id: JobId, now_s: float) -> bool:
        job = self.overlay(state.jobs[job_id])
        unknown = state.meter.bandwidth(job_id) is None
        runs = job.state is JobState.RUNNING and not job.wants_freeze
        return runs and not (job.spec.no_suspend or job.is_immune(now_s) or unknown)

    def _release(self, job_id: JobId, now_s: float, reason: Reason | None) -> ShadowStep:
        lasted_s = max(0.0, now_s - self._held_since_s.pop(job_id))
        del self._held_why[job_id]
        self._let_go_s[job_id] = now_s
        self._stood_s[job_id] = self._stood_s.get(job_id, 0.0) + lasted_s
        return ShadowStep(
            job_id=job_id, at_s=now_s, verdict="resume", reason=reason, lasted_s=lasted_s
        )
