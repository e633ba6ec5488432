"""One run in virtual time: the very controller of the daemon over a simulated node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import msgspec

from iodaemon.core import event as ev
from iodaemon.core.backend import Timer
from iodaemon.core.controller import Controller
from iodaemon.core.decision import Plan, Start, Throttle, Transition
from iodaemon.core.forecast import Recollection
from iodaemon.core.job import Job, JobId, JobSpec, JobState
from iodaemon.core.platform import Platform
from iodaemon.core.rule import Limit, Mode, Rules, no_limit
from iodaemon.core.state import State
from iodaemon.core.storage import Tier
from iodaemon.model.node import DEFAULT_MODEL, Model, Profile, SimulatedNode
from iodaemon.simulator.timeline import EARLY, LATE, VirtualTimeline

Submission = tuple[float, JobSpec, Profile]
"""When a job is submitted (s), what is asked, and what it really does."""
StepPer = Literal["instant", "event"]
"""How often the controller decides: once for all that happens in one instant, as the daemon does,
or after each event, as a scheduler that is called at every submission and every completion."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """One timeslice, as it was when the regulation had decided at its end.

    Attributes:
        at_s: its end.
        jobs_bytes_per_s: what the jobs that are live at its end moved in it, as far as known.
        device_bytes_per_s: what all devices moved in it.
        running: jobs that go on, ordered by id.
        suspended: jobs that the regulation holds from now on, ordered by id.
    """

    at_s: float
    jobs_bytes_per_s: float
    device_bytes_per_s: float
    running: tuple[JobId, ...]
    suspended: tuple[JobId, ...]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a workload.

    Attributes:
        jobs: the last record of every job that was submitted, ordered by id; ids count from 1
            in the order of submit times, equal times in the order given.
        transitions: every step in their lives, in the order they were made.
        slices: one a timeslice in which a job held slots.
        ended_s: when the last thing happened, or ``until_s``.
    """

    jobs: tuple[Job, ...]
    transitions: tuple[Transition, ...]
    slices: tuple[Slice, ...]
    ended_s: float

    @property
    def finished(self) -> tuple[Job, ...]:
        """The jobs that came to an end, ordered by id."""
        return tuple(job for job in self.jobs if job.state.is_final)


def simulate(
    platform: Platform,
    rules: Rules,
    jobs: Sequence[Submission],
    *,
    tiers: Sequence[Tier] = (),
    model: Model = DEFAULT_MODEL,
    sampling: bool = True,
    seed: int = 0,
    mode: Mode = Mode.ON,
    until_s: float | None = None,
    on_step: Callable[[State, Plan], None] | None = None,
    events: Sequence[ev.Event] = (),
    experience: Recollection | None = None,
    step_per: StepPer = "instant",
    limit: Limit = no_limit,
) -> Result:
    """Run a workload to its end.

    Args:
        platform: what can be handed out.
        rules: the policy.
        jobs: in any order of time.
        tiers: of storage, fastest first; their space is handed out, what a job does with it is not
            modelled.
        model: the links, stores and the disk that jobs share.
        sampling: whether there are timeslices. Without them nothing is measured and regulation
            is never asked: for experiments without regulation.
        seed: of the generator that rules may use.
        mode: whether regulation acts, only decides, or rests.
        until_s: stop then, whatever is left. None: when nothing will happen any more; a rule
            that never resumes a job, with the guard lifted, would never get there.
        on_step: called after each step of the controller, to watch or to check.
        events: what else happens, each at its time: what an operator does, for example.
        experience: what is known of such jobs, which learns of these. None: nothing is.
        step_per: how often the controller decides.
        limit: on the time that a rule may take.

    Raises:
        RuleError: a rule failed; names its file and line.
    """
    state = State(platform, tiers, kept_finished=len(jobs), experience=experience)
    controller = Controller(state, rules, seed=seed, mode=mode, limit=limit)
    run = _Run(controller, jobs, model=model, sampling=sampling, on_step=on_step, step_per=step_per)
    for event in events:
        run.timeline.call_at(event.at_s, partial(run.post, event))
    if until_s is None:
        run.timeline.run()
    else:
        run.timeline.run_until(until_s)
    return run.result()


class _Run:
    """Driver: collects the events of one instant, steps the controller, performs its decisions."""

    def __init__(
        self,
        controller: Controller,
        jobs: Sequence[Submission],
        *,
        model: Model,
        sampling: bool,
        on_step: Callable[[State, Plan], None] | None,
        step_per: StepPer,
    ) -> None:
        self.timeline = VirtualTimeline()
        self._controller = controller
        self._state = controller.state
        self._profiles: dict[JobId, Profile] = {}
        self._node = SimulatedNode(
            self._state.platform,
            self.timeline,
            self.post,
            self._profiles.__getitem__,
            model=model,
            free_until_s=lambda: self.timeline.free_until_s,
        )
        self._state.can_cap = Throttle in self._node.offers
        self._on_step = on_step
        self._step_per = step_per
        self._inbox: list[ev.Event] = []
        self._wake: Timer | None = None
        self._samples = sampling
        self._is_sampling = False
        self._transitions: list[Transition] = []
        self._slices: list[Slice] = []
        by_time = sorted(jobs, key=lambda submission: submission[0])
        if by_time and not by_time[0][0] >= 0.0:
            raise ValueError(f"a job is submitted at {by_time[0][0]:g} s; time begins at 0")
        self._coming = enumerate(by_time, start=1)
        self._submit_next()

    def result(self) -> Result:
        """What has happened until now."""
        return Result(
            jobs=tuple(job for _, job in sorted(self._state.jobs.items())),
            transitions=tuple(self._transitions),
            slices=tuple(self._slices),
            ended_s=self.timeline.now_s,
        )

    def _submit_next(self) -> None:
        """Wait for the next job to come; those after it wait for it, not in the timeline."""
        coming = next(self._coming, None)
        if coming is None:
            return
        number, (submit_s, spec, profile) = coming
        self._profiles[JobId(number)] = profile
        job = Job(
            id=JobId(number),
            spec=spec,
            uid=0,
            state=JobState.PENDING,
            since_s=submit_s,
            submitted_s=submit_s,
        )
        event = ev.JobSubmitted(at_s=submit_s, job=job)
        self.timeline.call_at(submit_s, lambda: self._submit(event), priority=EARLY)

    def _submit(self, event: ev.JobSubmitted) -> None:
        self.post(event)
        self._submit_next()

    def post(self, event: ev.Event) -> None:
        """Something happened; the controller is told at the end of the instant."""
        if not self._inbox:
            self.timeline.call_at(self.timeline.now_s, self._end_instant, priority=LATE)
        self._inbox.append(event)

    def _end_instant(self) -> None:
        events, self._inbox = self._inbox, []
        if self._step_per == "instant":
            self._step(events)
            return
        for event in events:
            self._step([event])

    def _step(self, events: Sequence[ev.Event]) -> None:
        plan = self._controller.step(events)
        self._transitions += plan.transitions
        if any(isinstance(event, ev.SampleTaken) for event in events):
            self._slices.append(self._slice())
        self._begin_sampling(plan)
        for decision in plan.decisions:
            self._node.perform(decision)
        self._set_alarm(plan.wake_at_s)
        if self._on_step is not None:
            self._on_step(self._state, plan)

    def _begin_sampling(self, plan: Plan) -> None:
        """With the first start after an idle time comes a sample, from which the rates count."""
        if (
            not self._samples
            or self._is_sampling
            or not any(isinstance(d, Start) for d in plan.decisions)
        ):
            return
        self._is_sampling = True
        self._node.sample()
        self._tick_later()

    def _tick_later(self) -> None:
        """Timeslices end at whole multiples of their length."""
        timeslice_s = self._controller.rules.regulation.timeslice_s
        number = math.floor(self.timeline.now_s / timeslice_s) + 1
        if number * timeslice_s <= self.timeline.now_s:  # the quotient was rounded down
            number += 1
        self.timeline.call_at(number * timeslice_s, self._tick)

    def _tick(self) -> None:
        self._is_sampling = any(True for _ in self._state.live)
        if self._is_sampling:
            self._node.sample()
            self._tick_later()

    def _slice(self) -> Slice:
        meter = self._state.meter
        live = list(self._state.live)
        rates = [rate for job in live if (rate := meter.bandwidth(job.id)) is not None]
        running = (job.id for job in live if job.state is JobState.RUNNING and not job.wants_freeze)
        return Slice(
            at_s=self.timeline.now_s,
            jobs_bytes_per_s=sum(rate.total_bytes_per_s for rate in rates),
            device_bytes_per_s=sum(load.total_bytes_per_s for load in meter.devices.values()),
            running=tuple(running),
            suspended=tuple(job.id for job in live if job.io_hold),
        )

    def _set_alarm(self, wake_at_s: float | None) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = None
        if wake_at_s is not None:
            self._wake = self.timeline.call_at(wake_at_s, self._on_alarm)

    def _on_alarm(self) -> None:
        self.post(ev.TimerFired(at_s=self.timeline.now_s))
