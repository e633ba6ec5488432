"""Asks the regulation rule when it is its turn, guards what it decides, keeps the evidence.

In shadow mode regulation touches nothing: the rule sees its own decisions as if they had been
carried out, so that it goes on from them; what the jobs move is what they truly move, since none of
them stands still. The guards hold as they would: a job that may not be suspended is not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

import msgspec

from iodaemon.core.decision import ACTED, Evidence, RegulationPlan, ShadowStep, Weighed
from iodaemon.core.handlers import grant, revoke
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.lifecycle import released
from iodaemon.core.rule import Limit, Mode, Refilling, Rules, ask_regulation, no_limit
from iodaemon.core.state import State, with_fields
from iodaemon.core.step import Step
from iodaemon.core.view import View


class _Would(msgspec.Struct):
    """What would have become of a job; None: it would not stand still, or never was let go."""

    held_since_s: float | None = None
    why: Reason | None = None
    let_go_s: float | None = None
    immune_until_s: float | None = None
    stood_s: float = 0.0


class Shadow:
    """Who would be held, since when, and for how long in all.

    Invariant: after ``follow`` only live jobs are in it.
    """

    def __init__(self) -> None:
        self._jobs: dict[JobId, _Would] = {}

    @property
    def holds_any(self) -> bool:
        return bool(self._jobs) and bool(self._held())

    def stood_s(self, now_s: float) -> dict[JobId, float]:
        """How long each job that would have been held at all would have stood still until now."""
        total_s = {}
        for job_id, would in sorted(self._jobs.items()):
            since_s = now_s if would.held_since_s is None else would.held_since_s
            total_s[job_id] = would.stood_s + max(0.0, now_s - since_s)
        return total_s

    def held_for(self, job_id: JobId) -> tuple[float, str] | None:
        """Since when the job would stand still now, s, and why; None: it would run."""
        would = self._jobs.get(job_id)
        if would is None or would.held_since_s is None:
            return None
        return would.held_since_s, "" if would.why is None else would.why.text

    def overlay(self, job: Job) -> Job:
        """The job as it would be; what it told of its I/O means nothing where no job waits."""
        if job.phase is not None:
            job = with_fields(job, phase=None)
        would = self._jobs.get(job.id)
        if would is None:
            return job
        suspended_io_s = job.suspended_io_s + would.stood_s
        if would.held_since_s is not None:
            held = {"io_hold": True, "io_held_since_s": would.held_since_s}
            return with_fields(job, suspended_io_s=suspended_io_s, **held)
        since_s = max(job.since_s, would.let_go_s or 0.0)
        until_s = job.immune_until_s if would.immune_until_s is None else would.immune_until_s
        told = {"since_s": since_s, "immune_until_s": until_s}
        return with_fields(job, suspended_io_s=suspended_io_s, **told)

    def follow(self, state: State, now_s: float) -> Iterator[ShadowStep]:
        """Forget jobs that have ended; yields the end of what they would have stood still."""
        live = {job.id for job in state.live}
        for job_id in sorted(self._jobs.keys() - live):
            if self._jobs[job_id].held_since_s is not None:
                job = state.jobs.get(job_id)
                ended_s = now_s if job is None or job.ended_s is None else job.ended_s
                yield self._release(job_id, ended_s, Reason(code="Ended", text="the job ended"))
            del self._jobs[job_id]

    def end(self, now_s: float) -> Iterator[ShadowStep]:
        """Regulation is no longer in shadow: yields the end of what would have stood still."""
        for job_id, _ in self._held():
            yield self._release(job_id, now_s, Reason(code="Mode", text="no longer in shadow"))

    def apply(self, plan: RegulationPlan, state: State, now_s: float) -> Iterator[ShadowStep]:
        """Take in what the rule decided; yields what would have been done."""
        for job_id in plan.resumes:
            if self.held_for(job_id) is not None:
                yield self._release(job_id, now_s, plan.reasons.get(job_id))
        for job_id in plan.suspends:
            job = self.overlay(state.jobs[job_id])
            if job_id not in plan.resumes and state.may_hold(job, now_s):
                would = self._jobs.setdefault(job_id, _Would())
                would.held_since_s, would.why = now_s, plan.why_suspended(job_id)
                yield ShadowStep(job_id=job_id, at_s=now_s, verdict="suspend", reason=would.why)

    def release_overdue(self, state: State, rules: Rules, now_s: float) -> Iterator[ShadowStep]:
        """The controller's guard, as it would act."""
        for job_id, since_s in self._held():
            limit_s = rules.longest_suspension_s(state.jobs[job_id])
            if limit_s is not None and since_s + limit_s <= now_s:
                self._jobs[job_id].immune_until_s = now_s + limit_s
                reason = Reason(code="MaxSuspend", text=f"stood still for {limit_s:g} s")
                yield self._release(job_id, now_s, reason)

    def _held(self) -> list[tuple[JobId, float]]:
        """Who would stand still now, and since when, s."""
        jobs = sorted(self._jobs.items())
        return [(i, each.held_since_s) for i, each in jobs if each.held_since_s is not None]

    def _release(self, job_id: JobId, now_s: float, reason: Reason | None) -> ShadowStep:
        would = self._jobs[job_id]
        assert would.held_since_s is not None
        lasted_s = max(0.0, now_s - would.held_since_s)
        would.held_since_s, would.let_go_s = None, now_s
        would.stood_s += lasted_s
        return ShadowStep(
            job_id=job_id, at_s=now_s, verdict="resume", reason=reason, lasted_s=lasted_s
        )


_Decide = Callable[[View, Any], tuple[RegulationPlan, Any]]
_REFUSED: Final = "the rule wanted otherwise, but a guard of the controller stands before it"


class Regulator:
    """Regulation as the controller sees it: a rule, what it remembers, and a mode."""

    def __init__(self, rng: random.Random, mode: Mode = Mode.ON, limit: Limit = no_limit) -> None:
        self.mode = mode
        self._limit = limit
        self.shadow = Shadow()
        self._rng = rng
        self._memory: Any = None

    def forget(self) -> None:
        """Another rule is in force; what the old one remembered is nothing to it."""
        self._memory = None
        self.shadow = Shadow()

    def switch(self, step: Step, rules: Rules, mode: Mode) -> None:
        """Go over to another mode; what is held for I/O is let go by any mode but ``on``."""
        if mode is not self.mode:
            self.mode = mode
            self.begin_anew(step, rules, f"regulation was switched to {mode}")

    def begin_anew(self, step: Step, rules: Rules, why: str) -> None:
        """Remember nothing and hold nothing, as at the start of the daemon."""
        step.shadow.extend(self.shadow.end(step.now_s))
        self.forget()
        step.state.io_headroom_bytes_per_s = None
        step.state.start_limit, step.state.limits = None, ()
        step.state.trials.clear()
        step.state.uncappable.clear()
        for job_id in sorted(step.state.caps):
            step.uncap(job_id, Reason(code="Mode", text=why))
        held = [job for job in step.state.live if job.io_hold]
        if held:
            self.let_go(step, rules, held, Reason(code="Mode", text=why))

    def let_go(self, step: Step, rules: Rules, jobs: Iterable[Job], why: Reason) -> None:
        """The controller lets these go, whatever the rule says; what was seen is kept as well."""
        held = {job.id: job for job in jobs}
        plan = RegulationPlan(resumes=tuple(held), reasons=dict.fromkeys(held, why))
        tables = _evidence_of(View(step.state, rules.placement, step.now_s, self._rng), rules, plan)
        for job in held.values():
            step.put(released(job, why))
        for evidence in tables:
            step.show(evidence)

    def regulate(self, step: Step, rules: Rules) -> None:
        self._ask(step, rules, rules.regulation.decide)

    def refill(self, step: Step, rules: Rules) -> None:
        """A job has ended within a timeslice; where others are held, its place is free."""
        rule = rules.regulation
        holds = self.shadow.holds_any or any(job.io_hold for job in step.state.live)
        if holds and isinstance(rule, Refilling):
            self._ask(step, rules, rule.refill)

    def _ask(self, step: Step, rules: Rules, decide: _Decide) -> None:
        match self.mode:
            case Mode.OFF:
                return
            case Mode.SHADOW:
                self._pretend(step, rules, decide)
            case Mode.ON:
                self._act(step, rules, decide)

    def gives_turns(self, rules: Rules) -> bool:
        """True when the rule in force says whose turn it is to do I/O."""
        return self.mode is Mode.ON and getattr(rules.regulation, "hears_phases", False)

    def hear_phases(self, step: Step, rules: Rules) -> None:
        """A job told of an I/O phase, or its turn may be over; between two timeslices."""
        if self.gives_turns(rules):
            self._act(step, rules, rules.regulation.decide)

    def _act(self, step: Step, rules: Rules, decide: _Decide) -> None:
        view = View(step.state, rules.placement, step.now_s, self._rng)
        plan = self._plan(rules, decide, view, step)
        step.state.io_headroom_bytes_per_s = plan.io_headroom_bytes_per_s
        step.state.start_limit, step.state.limits = plan.starts, plan.limits
        for kind, lesson in plan.lessons.items():
            step.learn(kind, lesson)
        for trial in plan.trials:
            step.tell_trial(trial)
        tables = _evidence_of(view, rules, plan)
        acted: set[JobId] = set()
        for job_id in plan.resumes:
            job = step.state.jobs[job_id]
            if job.io_hold:
                step.put(released(job, plan.reasons.get(job_id)))
                acted.add(job_id)
        let_go = frozenset(plan.resumes)  # held again at once, its hold would never age
        for job_id in plan.suspends:
            if job_id not in let_go and _hold(step, step.state.jobs[job_id], plan):
                acted.add(job_id)
        _slow_down(step, plan)
        _give_turns(step, plan)
        for evidence in _truly(tables, acted):
            step.show(evidence)

    def _pretend(self, step: Step, rules: Rules, decide: _Decide) -> None:
        step.shadow.extend(self.shadow.follow(step.state, step.now_s))
        view = View(step.state, rules.placement, step.now_s, self._rng, seen=self.shadow.overlay)
        for shadow in self.shadow.release_overdue(step.state, rules, step.now_s):
            step.shadow.append(shadow)
            for evidence in _evidence_of(view, rules, _release_of(shadow)):
                step.show(msgspec.structs.replace(evidence, is_shadow=True))
        plan = self._plan(rules, decide, view, step)
        tables = _evidence_of(view, rules, plan)
        for trial in plan.trials:
            step.tell_trial(trial, is_shadow=True)
        done = tuple(self.shadow.apply(plan, step.state, step.now_s))
        for evidence in _truly(tables, {shadow.job_id for shadow in done}):
            step.show(msgspec.structs.replace(evidence, is_shadow=True))
        step.shadow.extend(done)

    def _plan(self, rules: Rules, decide: _Decide, view: View, step: Step) -> RegulationPlan:
        plan, self._memory = ask_regulation(
            rules.regulation, decide, view, self._memory, step.state, self._limit
        )
        return plan


def _give_turns(step: Step, plan: RegulationPlan) -> None:
    for job_id in plan.revokes:
        revoke(step, step.state.jobs[job_id], plan.reasons.get(job_id))
    for job_id in plan.grants:
        grant(step, step.state.jobs[job_id])
    step.state.waits = {
        job_id: plan.reasons[job_id]
        for job_id in sorted(step.state.phases)
        if job_id in plan.reasons and step.state.jobs[job_id].waits_for_turn
    }


def _slow_down(step: Step, plan: RegulationPlan) -> None:
    for job_id in sorted(step.state.caps.keys() - plan.caps.keys()):
        step.uncap(job_id, plan.reasons.get(job_id))
    for job_id, cap in sorted(plan.caps.items()):
        if step.state.may_cap(job_id):
            step.cap(job_id, cap, plan.reasons.get(job_id))


def _release_of(shadow: ShadowStep) -> RegulationPlan:
    """What a guard did, as if a rule had decided it."""
    reasons = {} if shadow.reason is None else {shadow.job_id: shadow.reason}
    return RegulationPlan(resumes=(shadow.job_id,), reasons=reasons)


def _hold(step: Step, job: Job, plan: RegulationPlan) -> bool:
    """Suspend, unless the job is protected from every rule; True when it is done."""
    if not step.state.may_hold(job, step.now_s):
        return False
    why = plan.why_suspended(job.id)
    held = {"io_held_since_s": step.now_s, "hold_reason": why, "release_reason": None}
    step.put(with_fields(job, io_hold=True, **held))
    return True


def _truly(tables: Iterable[Evidence], acted: Collection[JobId]) -> Iterator[Evidence]:
    """What the rule said, less what a guard refused; a table of which nothing is left is none."""
    for table in tables:
        rows = tuple(
            row
            if row.verdict not in ACTED or row.job_id in acted
            else msgspec.structs.replace(row, verdict="spared", why=_REFUSED)
            for row in table.jobs
        )
        if any(row.verdict in ACTED for row in rows):
            yield msgspec.structs.replace(table, jobs=rows)


def _evidence_of(view: View, rules: Rules, plan: RegulationPlan) -> tuple[Evidence, ...]:
    """The rule's own tables; of a rule that makes none, who moved how much when it acted."""
    if plan.evidence or not (plan.suspends or plan.resumes):
        return plan.evidence
    rows = tuple(_row(view, plan, job) for job in view.live)
    total = sum(row.rate_bytes_per_s or 0.0 for row in rows)
    running = {job.id for job in view.running}
    load = sum(row.load for row in rows if row.job_id in running)
    bound = getattr(rules.regulation, "io_bound_bytes_per_s", None) or 0.0
    return (
        Evidence(
            at_s=view.now_s,
            signal="total of all jobs",
            quantity="bandwidth",
            value=load,
            threshold=bound,
            load=load,
            allowed=bound,
            fits=None,
            total_bytes_per_s=total,
            jobs=rows,
        ),
    )


def _row(view: View, plan: RegulationPlan, job: Job) -> Weighed:
    rate = view.bandwidth(job.id)
    moved = None if rate is None else rate.total_bytes_per_s
    reason = plan.reasons.get(job.id)
    return Weighed(
        job_id=job.id,
        rate_bytes_per_s=moved,
        load=moved or 0.0,
        verdict=_verdict(plan, job.id, is_held=job.io_hold),
        why="" if reason is None else reason.text,
    )


def _verdict(plan: RegulationPlan, job_id: JobId, *, is_held: bool) -> str:
    if job_id in plan.suspends:
        return "suspend"
    if job_id in plan.resumes:
        return "resume"
    return "waits" if is_held else "spared"
