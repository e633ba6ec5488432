"""What one step has come to so far: the only hand that changes the state.

Handlers (``react``) and the controller write through it, so that every change is in the plan.
"""

from __future__ import annotations

from iodaemon.core.charge import slow_tier_s
from iodaemon.core.decision import (
    ACTED,
    Decision,
    Evidence,
    Free,
    Plan,
    ShadowStep,
    Stop,
    Transition,
)
from iodaemon.core.job import FINAL, LIVE, Job, JobId, JobState, Reason
from iodaemon.core.life import moved, renewed
from iodaemon.core.rule_error import RuleFault
from iodaemon.core.state import State, with_fields


class Step:
    """One step under way: the state, the instant, and what goes into the plan."""

    def __init__(self, state: State, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self._decisions: list[Decision] = []
        self._touched: set[JobId] = set()
        self._removed: list[JobId] = []
        self._transitions: list[Transition] = []
        self._evidence: list[Evidence] = []
        self._shadow: list[ShadowStep] = []
        self._faults: list[RuleFault] = []
        self.phases_changed = False

    @property
    def touched(self) -> set[JobId]:
        """Jobs whose record changed in this step, or that never were."""
        return self._touched.union(self._removed)

    @property
    def touched_live(self) -> list[Job]:
        """Live jobs whose record changed in this step, ordered by id."""
        jobs = self.state.jobs
        return [jobs[i] for i in sorted(self._touched) if i in jobs and jobs[i].is_live]

    def add(self, job: Job) -> None:
        """A new job."""
        self.state.add(job)
        self._touched.add(job.id)
        self._transitions.append(
            Transition(job_id=job.id, at_s=self.now_s, before=None, after=job.state)
        )

    def remove(self, job_id: JobId) -> None:
        """A job that never was."""
        self.state.remove(job_id)
        self._removed.append(job_id)

    def recall(self, job: Job) -> None:
        """A job that ended long ago; it is about to live again."""
        self.state.add(job)

    def put(self, job: Job) -> None:
        """A newer record of a job, in the same state."""
        if job.phase is not self.state.jobs[job.id].phase:
            self.phases_changed = True
        self.state.put(job)
        self._touched.add(job.id)

    def move(
        self,
        job: Job,
        to: JobState,
        reason: Reason | None = None,
        *,
        happened_s: float | None = None,
    ) -> None:
        """A step in the job's life.

        Args:
            job: as it is.
            to: where it goes.
            reason: why.
            happened_s: when, if that was before now: an end that became known late.

        Raises:
            TransitionError: its life does not allow it.
        """
        before = job.state
        at_s = self.now_s if happened_s is None else min(self.now_s, max(happened_s, job.since_s))
        after = moved(job, to, at_s, reason)
        if job.tier is not None and to in FINAL:
            after = with_fields(after, charged_s=slow_tier_s(after, self.state.stock.tiers))
        self.put(after)
        self._transitions.append(
            Transition(job_id=job.id, at_s=at_s, before=before, after=to, reason=reason)
        )
        if job.shares and before in LIVE and to not in LIVE:
            self.decide(Free(job_id=job.id, attempt=job.attempt))

    def stop(self, job: Job, end: JobState, reason: Reason, grace_s: float) -> None:
        """Ask a live job to end; after the grace time it is killed, and its end is called so."""
        job = with_fields(
            job,
            stop=end,
            stop_reason=reason,
            kill_at_s=self.now_s + grace_s,
            user_hold=False,
            held_by_uid=None,
            io_hold=False,
            io_held_since_s=None,
            freeze_asked=False,
        )
        self.move(job, JobState.STOPPING, reason)
        self.decide(Stop(job_id=job.id))

    def hasten(self, job: Job, kill_at_s: float) -> None:
        """A job that is being ended is killed at this time, if it were killed later."""
        if job.kill_at_s is not None and kill_at_s < job.kill_at_s:
            self.put(with_fields(job, kill_at_s=kill_at_s))

    def requeue(self, job: Job, reason: Reason, *, happened_s: float | None = None) -> None:
        """Nothing of it is left to run: it waits in its place for a new attempt."""
        self.move(job, JobState.PENDING, reason, happened_s=happened_s)
        self.put(renewed(self.state.jobs[job.id]))

    def decide(self, decision: Decision) -> None:
        """Something for the backend."""
        self._decisions.append(decision)

    def show(self, evidence: Evidence) -> None:
        """What regulation saw; kept with every job that it was acted on for."""
        self._evidence.append(evidence)
        for row in evidence.jobs:
            if row.verdict in ACTED and not evidence.is_shadow:
                self.state.evidence[row.job_id] = evidence

    def pretend(self, shadow: ShadowStep) -> None:
        """What regulation would have done."""
        self._shadow.append(shadow)

    def set_aside(self, fault: RuleFault) -> None:
        """What failed in a rule, so that it is set aside."""
        self._faults.append(fault)

    def plan(self, wake_at_s: float | None) -> Plan:
        """All of it."""
        return Plan(
            decisions=tuple(self._decisions),
            changed=tuple(sorted(self._touched - set(self._removed))),
            removed=tuple(self._removed),
            transitions=tuple(self._transitions),
            evidence=tuple(self._evidence),
            shadow=tuple(self._shadow),
            faults=tuple(self._faults),
            wake_at_s=wake_at_s,
        )
