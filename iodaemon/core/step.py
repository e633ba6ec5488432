"""What one step has come to so far: the only hand that changes the state.

The handlers and the controller write through it, so that every change is in the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from iodaemon.core.decision import (
    ACTED,
    Cap,
    Capped,
    Decision,
    Evidence,
    Free,
    Lesson,
    Plan,
    ShadowStep,
    Stop,
    Throttle,
    Transition,
    TrialStep,
)
from iodaemon.core.job import FINAL, LIVE, Job, JobId, JobKind, JobState, Reason
from iodaemon.core.lessons import Changes
from iodaemon.core.lifecycle import moved, renewed
from iodaemon.core.rule_error import RuleFault
from iodaemon.core.state import State, with_fields
from iodaemon.core.storage import slow_tier_s

_NO_LESSONS: Mapping[JobKind, Lesson | None] = MappingProxyType({})


class Step:
    """One step under way: the state, the instant, and what goes into the plan.

    Attributes:
        decisions: for the backend.
        shadow: what regulation would have done.
        faults: of rules that are set aside.
        phases_changed: a job told of an I/O phase, or got or lost its turn.
    """

    def __init__(self, state: State, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.decisions: list[Decision] = []
        self._touched: set[JobId] = set()
        self._removed: list[JobId] = []
        self._transitions: list[Transition] = []
        self._evidence: list[Evidence] = []
        self.shadow: list[ShadowStep] = []
        self._trials: list[TrialStep] = []
        self.faults: list[RuleFault] = []
        self._lessons: Changes = {}
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
        self.state.add(job)
        self._touched.add(job.id)
        self._transitions.append(
            Transition(job_id=job.id, at_s=self.now_s, before=None, after=job.state)
        )

    def remove(self, job_id: JobId) -> None:
        self.state.remove(job_id)
        self._removed.append(job_id)

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
            happened_s: when, if that was before now: an end that became known late.

        Raises:
            TransitionError: its life does not allow it.
        """
        before = job.state
        if to is not JobState.RUNNING:
            self.uncap(job.id)
            if to not in LIVE:
                self.state.uncappable.pop(job.id, None)
        at_s = self.now_s if happened_s is None else min(self.now_s, max(happened_s, job.since_s))
        after = moved(job, to, at_s, reason)
        if job.tier is not None and to in FINAL:
            after = with_fields(after, charged_s=slow_tier_s(after, self.state.stock.tiers))
        self.put(after)
        self._transitions.append(
            Transition(job_id=job.id, at_s=at_s, before=before, after=to, reason=reason)
        )
        if job.shares and before in LIVE and to not in LIVE:
            self.decisions.append(Free(job_id=job.id, attempt=job.attempt, shares=job.shares))

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
        self.decisions.append(Stop(job_id=job.id))

    def hasten(self, job: Job, kill_at_s: float) -> None:
        """A job that is being ended is killed at this time, if it were killed later."""
        if job.kill_at_s is not None and kill_at_s < job.kill_at_s:
            self.put(with_fields(job, kill_at_s=kill_at_s))

    def requeue(self, job: Job, reason: Reason, *, happened_s: float | None = None) -> None:
        """Nothing of it is left to run: it waits in its place for a new attempt."""
        self.move(job, JobState.PENDING, reason, happened_s=happened_s)
        self.put(renewed(self.state.jobs[job.id]))

    def cap(self, job_id: JobId, cap: Cap, reason: Reason | None) -> None:
        known = self.state.caps.get(job_id)
        if known is not None and known.cap == cap:
            return
        since_s = self.now_s if known is None else known.since_s
        self.state.caps[job_id] = Capped(cap=cap, since_s=since_s, reason=reason)
        self.decisions.append(Throttle(job_id=job_id, cap=cap, reason=reason))

    def uncap(self, job_id: JobId, reason: Reason | None = None) -> None:
        """Let a job that was slowed down move what it can."""
        if self.state.caps.pop(job_id, None) is not None:
            self.decisions.append(Throttle(job_id=job_id, reason=reason))

    def show(self, evidence: Evidence) -> None:
        """What regulation saw; kept with every job that it was acted on for."""
        self._evidence.append(evidence)
        for row in evidence.jobs:
            if row.verdict in ACTED and not evidence.is_shadow:
                self.state.evidence[row.job_id] = evidence

    def tell_trial(self, trial: TrialStep, *, is_shadow: bool = False) -> None:
        """What the regulation tried, or would have; what was tried is kept for explanations."""
        trial = msgspec.structs.replace(trial, at_s=self.now_s, is_shadow=is_shadow)
        self._trials.append(trial)
        if not is_shadow:
            self.state.trials.append(trial)

    def learn(self, kind: JobKind, lesson: Lesson) -> None:
        self._note_lessons(self.state.lessons.learn(kind, lesson))

    def note_peak(self, kind: JobKind, peak_bytes: int, *, is_whole: bool) -> None:
        """What memory a job of the kind had at its most; ``is_whole``: it completed."""
        changes = self.state.lessons.note_peak(kind, peak_bytes, is_whole=is_whole)
        self._note_lessons(changes)

    def forget_lesson(self, kind: JobKind) -> None:
        if self.state.lessons.drop(kind):
            self._lessons[kind] = None

    def _note_lessons(self, changes: Changes) -> None:
        for kind, lesson in changes.items():
            self._lessons.pop(kind, None)  # the order is that in which they were learned
            self._lessons[kind] = lesson

    def plan(self, wake_at_s: float | None) -> Plan:
        return Plan(
            decisions=tuple(self.decisions),
            changed=tuple(sorted(self._touched - set(self._removed))),
            removed=tuple(self._removed),
            transitions=tuple(self._transitions),
            evidence=tuple(self._evidence),
            shadow=tuple(self.shadow),
            trials=tuple(self._trials),
            faults=tuple(self.faults),
            lessons=MappingProxyType(self._lessons) if self._lessons else _NO_LESSONS,
            wake_at_s=wake_at_s,
        )
