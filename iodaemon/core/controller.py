"""The component in the middle: events of one instant in, decisions out.

No clock, no I/O, no threads, no logging; randomness only from the seeded generator it is given.
The same controller runs the real server, the simulated one, and later a cluster.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from iodaemon.core import event as ev
from iodaemon.core.decision import (
    AdmissionPlan,
    Kill,
    Placed,
    Plan,
    Reject,
    Resume,
    Suspend,
    start_of,
)
from iodaemon.core.handlers import end_keeping, end_overfull, grant, react, wait_ends_s
from iodaemon.core.job import SUSPENDED, Job, JobId, JobState, Reason
from iodaemon.core.regulator import Regulator
from iodaemon.core.rule import Explaining, Limit, Mode, Rules, ask_admission, no_limit
from iodaemon.core.rule_error import FROM_A_RULE, RuleError, RuleFault, rule_error
from iodaemon.core.state import State, with_fields
from iodaemon.core.step import Step
from iodaemon.core.stock import NO_SPACE_AT_ALL, StockDraft
from iodaemon.core.view import StartGate, View

WALLTIME_GRACE_S: Final = 10.0
"""From SIGTERM to SIGKILL for a job past a limit (the CLI's default for cancel as well)."""


class Controller:
    """Applies events to the state, asks the rules, commits and returns what they decide."""

    def __init__(
        self,
        state: State,
        rules: Rules,
        *,
        seed: int = 0,
        mode: Mode = Mode.ON,
        output_max_bytes: int | None = None,
        scratch_keep_s: float | None = None,
        fallback: Rules | None = None,
        limit: Limit = no_limit,
    ) -> None:
        """Control this state.

        Args:
            output_max_bytes: room that a job's own output may take. None: any.
            scratch_keep_s: how long what could not be copied out of a job's space is kept. None:
                until somebody has it removed.
            fallback: goes on where one of the rules fails; they are set aside. None: the failure is
                raised.
            limit: on the time that a rule may take.
        """
        self.state = state
        self.rules = rules
        self.fallback = fallback
        self.faults: Mapping[str, RuleFault] = {}
        self._limit = limit
        self.state.let_choose(any_tier=rules.chooses_tier)
        self._rng = random.Random(seed)  # noqa: S311 - for policies, not for secrets
        self.regulator = Regulator(self._rng, mode, limit)
        self._output_max_bytes = output_max_bytes
        self.state.stock.keep_s = scratch_keep_s
        self._admission_memory: Any = None
        self._now_s = 0.0
        self._deadlines: dict[JobId, float] = {}
        self._knows_all = False

    def step(self, events: Sequence[ev.Event]) -> Plan:
        """Apply all events of one instant and decide.

        Args:
            events: in the order in which they happened; their latest time is the instant.

        Returns:
            What to do and what changed. The state already reflects it.

        Raises:
            RuleError: a rule failed, and there is no fallback.
            TransitionError, InvariantError: a bug here.
        """
        self.state.forget_finished()
        step = Step(self.state, self._now_s)
        for event in events:
            step.now_s = max(step.now_s, event.at_s)
            match event:
                case ev.ModeChanged():
                    self.regulator.switch(step, self.rules, event.mode)
                case ev.Reconfigured():
                    self._reconfigure(step, event)
                case _:
                    react(step, event)
        self._now_s = step.now_s
        self._enforce_limits(step)
        self._enforce_output(step, events)
        self._end_delays(step)
        end_keeping(step)
        try:
            self._ask_regulation(step, events)
        except RuleError as error:
            self._set_aside(step, error)
        if self.state.phases and not self.regulator.gives_turns(self.rules):
            self._grant_all(step)
        self._admit(step)
        self._agree_on_freezing(step)
        self._note_deadlines(step)
        return step.plan(self._next_deadline_s())

    def use(self, rules: Rules) -> None:
        """Go on under other rules; what the old ones remembered is forgotten."""
        self.rules = rules
        self.state.let_choose(any_tier=rules.chooses_tier)
        self._knows_all = False
        self._admission_memory = None
        self.regulator.forget()

    def begin_without(self, fault: RuleFault, now_s: float) -> None:
        """Set the policy aside before the first step: it failed under the program before."""
        assert self.fallback is not None
        self.use(self.fallback)
        self.faults = {fault.part: msgspec.structs.replace(fault, at_s=now_s)}

    def account(self, job: Job) -> str:
        """What the admission has to say of a job that waits, at length; empty: nothing more."""
        rule = self.rules.admission
        if job.state is not JobState.PENDING or not isinstance(rule, Explaining):
            return ""
        rng = random.Random(0)  # noqa: S311 - a question must not change what is decided next
        view = View(self.state, self.rules.placement, self._now_s, rng)
        try:
            with self._limit("admission"):
                return str(rule.explain(view, job, self._admission_memory))
        except FROM_A_RULE as error:  # it decides nothing
            return str(rule_error("admission", rule, rule.explain, error))

    def _reconfigure(self, step: Step, event: ev.Reconfigured) -> None:
        """Other rules, other limits: from now on; what has been given to anybody is kept.

        A rule that is the same goes on with what it remembers. What another regulation held is
        let go: the new one knows nothing of it, and may never let it go.
        """
        if event.sharing is not None:
            self.state.users.sharing = event.sharing
        if event.devices is not None:
            self.state.platform = msgspec.structs.replace(
                self.state.platform, devices=event.devices
            )
        if event.output_max_bytes is not msgspec.UNSET:
            self._output_max_bytes = event.output_max_bytes
        if event.scratch_keep_s is not msgspec.UNSET:
            self.state.stock.keep_s = event.scratch_keep_s
        if event.rules is not None:
            self.faults = {kind: fault for kind, fault in self.faults.items() if fault.tier}
            self._go_by(step, event.rules, "the policy was changed")

    def _go_by(self, step: Step, rules: Rules, why: str) -> None:
        before, self.rules = self.rules, rules
        self.state.let_choose(any_tier=rules.chooses_tier)
        self._knows_all = False  # walltimes and suspensions may end at other times
        if (before.admission, before.placement) != (self.rules.admission, self.rules.placement):
            self._admission_memory = None
            self.state.reservations = {}
        if before.regulation != self.rules.regulation:
            self.regulator.begin_anew(step, self.rules, why)

    def _set_aside(self, step: Step, error: RuleError) -> None:
        """Go on without what failed: the whole policy, or the rule of one tier.

        Raises:
            RuleError: there is nothing to go on with.
        """
        if self.fallback is None or (self.rules is self.fallback and not error.fault.tier):
            raise error
        fault = msgspec.structs.replace(error.fault, at_s=step.now_s)
        self.faults = {**self.faults, fault.part: fault}
        step.faults.append(fault)
        if fault.tier:
            self.state.stock.forget_rule(fault.tier)
        else:
            self._go_by(step, self.fallback, fault.text)

    def _ask_regulation(self, step: Step, events: Sequence[ev.Event]) -> None:
        kinds = set(map(type, events))
        if ev.Reconfigured in kinds:
            return  # what it has just let go is not held again before it has run at all
        if ev.SampleTaken in kinds:
            self.regulator.regulate(step, self.rules)
            return
        has_ended = ev.JobExited in kinds
        if has_ended:
            self.regulator.refill(step, self.rules)
        if has_ended or step.phases_changed:
            self.regulator.hear_phases(step, self.rules)

    # -- limits ------------------------------------------------------------------------------

    def _enforce_limits(self, step: Step) -> None:
        for job in self._live_of_concern(step):
            if job.state is JobState.STOPPING:
                self._hasten_overdue(step, job)
                self._enforce_kill(step, self.state.jobs[job.id])
            elif (end_s := self._walltime_ends_s(job)) is not None and end_s <= step.now_s:
                text = f"ran for its walltime of {job.spec.walltime_s:g} s"
                reason = Reason(code="Walltime", text=text)
                step.stop(job, JobState.TIMEOUT, reason, WALLTIME_GRACE_S)
            elif (until_s := self._hold_ends_s(job)) is not None and until_s <= step.now_s:
                self._release_and_protect(step, job)
            elif (until_s := wait_ends_s(self.rules, job)) is not None and until_s <= step.now_s:
                grant(step, job)
                self._release_and_protect(step, self.state.jobs[job.id])

    def _enforce_output(self, step: Step, events: Sequence[ev.Event]) -> None:
        most_bytes = self._output_max_bytes
        for event in events:
            if isinstance(event, ev.SampleTaken) and most_bytes is not None:
                end_overfull(step, event.sample, most_bytes, WALLTIME_GRACE_S)

    def _end_delays(self, step: Step) -> None:
        for job_id, until_s in list(self.state.delayed.items()):
            if until_s <= step.now_s:
                del self.state.delayed[job_id]
                step.put(with_fields(self.state.jobs[job_id], reason=None))

    def _hasten_overdue(self, step: Step, job: Job) -> None:
        """A grace time that was asked for does not outlast the walltime by more than its own."""
        if self.rules.ends_overdue and job.spec.walltime_s is not None:
            end_s = job.since_s + max(0.0, job.spec.walltime_s - job.run_s)
            step.hasten(job, end_s + WALLTIME_GRACE_S)

    def _enforce_kill(self, step: Step, job: Job) -> None:
        if job.kill_at_s is not None and job.kill_at_s <= step.now_s:
            step.put(with_fields(job, kill_at_s=None))
            step.decisions.append(Kill(job_id=job.id))

    def _release_and_protect(self, step: Step, job: Job) -> None:
        """The guard over every rule: suspended too long in a row, it runs, for as long at least."""
        limit_s = self.rules.longest_suspension_s(job)
        assert limit_s is not None
        why = Reason(code="MaxSuspend", text=f"stood still for {limit_s:g} s, the longest allowed")
        if job.io_hold:
            self.regulator.let_go(step, self.rules, [job], why)
        protected = {"immune_until_s": step.now_s + limit_s}
        step.put(with_fields(self.state.jobs[job.id], **protected))

    def _grant_all(self, step: Step) -> None:
        """No rule in force gives turns: nobody has to wait for one."""
        for job_id in sorted(self.state.phases):
            grant(step, self.state.jobs[job_id])

    def _hold_ends_s(self, job: Job) -> float | None:
        limit_s = self.rules.longest_suspension_s(job)
        if job.io_held_since_s is None or limit_s is None:
            return None
        return job.io_held_since_s + limit_s

    def _walltime_ends_s(self, job: Job) -> float | None:
        """When a running job will have run for its walltime; None: it has none or stands still."""
        if not self.rules.ends_overdue:
            return None
        if job.spec.walltime_s is None or job.state is not JobState.RUNNING:
            return None
        return job.since_s + job.spec.walltime_s - job.run_s

    def _live_of_concern(self, step: Step) -> list[Job]:
        """Live jobs that changed or have come to a limit, ordered by id: not all that there are."""
        if not self._knows_all:
            return list(self.state.live)
        jobs = {job.id: job for job in step.touched_live}
        for job_id, deadline_s in self._deadlines.items():
            if deadline_s <= step.now_s and (job := self.state.jobs.get(job_id)) is not None:
                jobs[job_id] = job
        return [job for _, job in sorted(jobs.items()) if job.is_live]

    def _note_deadlines(self, step: Step) -> None:
        """Find the next limit of each job that changed, or of all when these are new here."""
        jobs = self._live_of_concern(step)
        self._knows_all = True
        for job_id in step.touched:
            self._deadlines.pop(job_id, None)
        for job in jobs:
            limits = (
                self._walltime_ends_s(job),
                job.kill_at_s,
                self._hold_ends_s(job),
                wait_ends_s(self.rules, job),
            )
            if known := [time_s for time_s in limits if time_s is not None]:
                self._deadlines[job.id] = min(known)
            else:
                self._deadlines.pop(job.id, None)

    def _next_deadline_s(self) -> float | None:
        ends = [*self._deadlines.values(), *self.state.delayed.values()]
        kept_until_s = self.state.stock.next_end_s
        return min(ends if kept_until_s is None else [*ends, kept_until_s], default=None)

    # -- rules -------------------------------------------------------------------------------

    def _admit(self, step: Step) -> None:
        """Asked again where jobs ended that would wait for space and asked to fail instead."""
        while self.state.may_start:
            view = View(self.state, self.rules.placement, step.now_s, self._rng)
            rule, memory = self.rules.admission, self._admission_memory
            try:
                plan, memory = ask_admission(rule, view, memory, self.state, self._limit)
            except RuleError as error:
                self._set_aside(step, error)
                continue
            self._admission_memory = memory
            view.commit(plan)
            self._carry_out(step, plan, StartGate(view))
            if not self._end_for_want_of_space(step):
                return

    def _carry_out(self, step: Step, plan: AdmissionPlan, gate: StartGate) -> None:
        """What the rule decided, but for starts beyond what regulation lets start."""
        self.state.reservations = plan.reservations
        for job_id, reason in plan.rejects.items():
            self._reject(step, job_id, reason)
        lacking: dict[JobId, Reason] = {}
        for placed in plan.starts:
            job = self.state.jobs[placed.job_id]
            found = self._beyond_limit(job, placed, gate) or self._with_space(step, placed)
            if isinstance(found, Reason):
                lacking[placed.job_id] = found
            else:
                gate.take(job)
                self._start(step, found)
        self.state.reasons = {
            job_id: reason
            for job_id, reason in {**plan.reasons, **lacking}.items()
            if self.state.jobs[job_id].state is JobState.PENDING
        }
        self.state.reason_of_rest = plan.rest

    def _beyond_limit(self, job: Job, placed: Placed, gate: StartGate) -> Reason | None:
        """Why regulation does not let it start, whatever the rule wants; None: it does."""
        limit = self.state.start_limit
        if limit is not None and self.state.lacks_memory(job, placed.partition):
            return limit.why
        return gate.refusal(job)

    def _reject(self, step: Step, job_id: JobId, reason: Reason) -> None:
        step.move(self.state.jobs[job_id], JobState.FAILED, reason)
        step.decisions.append(Reject(job_id=job_id, reason=reason))

    def _end_for_want_of_space(self, step: Step) -> bool:
        reasons = self.state.reasons.items()
        ends = [(job_id, why) for job_id, why in reasons if why.code == NO_SPACE_AT_ALL]
        for job_id, reason in ends:
            self._reject(step, job_id, reason)
        return bool(ends)

    def _with_space(self, step: Step, placed: Placed) -> Placed | Reason:
        """The start with the space that its job asked for, or why there is none.

        It is found here where the rule did not look for any, or where what it found has gone to an
        earlier start for which it had not.
        """
        job = self.state.jobs[placed.job_id]
        is_found = placed.tier is not None and self.state.stock.has_room(placed.shares)
        if job.spec.scratch is None or is_found:
            return placed
        draft = StockDraft(self.state.stock, self._rng, step.now_s)
        try:
            with self._limit("allocation"):
                if isinstance(found := draft.find(job, placed.tier), Reason):
                    return found
                shares, where = draft.take(job, placed.tier)
        except RuleError as error:
            self._set_aside(step, error)
            return self._with_space(step, placed)
        draft.commit()
        return msgspec.structs.replace(placed, shares=shares, tier=where)

    def _start(self, step: Step, placed: Placed) -> None:
        job, shares = self.state.jobs[placed.job_id], placed.shares
        slots = self.state.choose_slots(
            placed.partition, job.spec.cpus, shares=job.spec.shares_cores
        )
        expected = self.state.outlook.hint(job)
        job = with_fields(job, attempt=job.attempt + 1, partition=placed.partition, slots=slots)
        job = with_fields(job, started_because=placed.why, expected=expected)
        if job.spec.scratch is not None:
            job = with_fields(job, shares=shares, tier=placed.tier)
            job = with_fields(job, scratch_unwanted=None, scratch_unwanted_by="")
        step.move(job, JobState.STARTING, placed.why)
        step.decisions.append(start_of(job))

    def _agree_on_freezing(self, step: Step) -> None:
        """Ask the world for what the two hold bits say, where that was not asked yet."""
        for job in step.touched_live if self._knows_all else list(self.state.live):
            if job.state not in (JobState.RUNNING, *SUSPENDED):
                continue
            if job.wants_freeze == job.freeze_asked:
                continue
            step.put(with_fields(job, freeze_asked=job.wants_freeze))
            step.decisions.append(
                Suspend(job_id=job.id) if job.wants_freeze else Resume(job_id=job.id)
            )
