"""Drives the controller in wall time: events in, decisions and rows out.

One turn, in this order (``Driver._turn``): all waiting events are one step of the controller.
Suspends and resumes are performed at once: they must not wait for the very disk they relieve.
Starts are prepared. What changed goes to the journal as one batch. Once that is durable, starts,
stops and kills are performed and clients are answered. The log comes last.

While the journal cannot be written, nothing starts and nothing is accepted. What was asked to end
is ended all the same, and its clients are answered. Every two seconds all that could not be written
is tried again, as one batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.core import event as ev
from iodaemon.core.backend import Backend, Timeline, Timer
from iodaemon.core.controller import Controller
from iodaemon.core.decision import (
    Decision,
    Free,
    Grant,
    Plan,
    Resume,
    Start,
    Suspend,
    Throttle,
)
from iodaemon.core.job import Job, JobId
from iodaemon.core.limits import Drain
from iodaemon.core.rule import Mode
from iodaemon.daemon.environments import Environments
from iodaemon.daemon.journal.record import (
    MOST_REQUESTS,
    MOST_STEPS,
    Batch,
    Note,
    Order,
    Request,
    RequestKey,
    join,
    note_of,
    note_of_clearing,
)
from iodaemon.daemon.journal.writer import Journal
from iodaemon.daemon.metrics.counts import Counts, Pace
from iodaemon.daemon.usage import Usage
from iodaemon.errors import Conflict, JournalError
from iodaemon.supervisor.failpoint import reach
from iodaemon.text import quoted

log = logging.getLogger(__name__)

JOURNAL_RETRY_S: Final = 2.0
"""Between attempts to write what a full disk did not take."""
_AT_ONCE: Final = (Suspend, Resume, Throttle, Grant)
"""Decisions that wait for no disk; the others are durable before they are performed."""
_NOTHING: Final = Batch()


class Watch:
    """Wakes those who wait whenever the state may have changed.

    Invariant: a condition is looked at once when waiting begins and once after each change.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._conditions: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def notify(self) -> None:
        self.changes += 1
        for future, holds in list(self._conditions.items()):
            if not future.done() and holds():
                future.set_result(None)

    async def until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Return True once the condition holds, False when the time is over first."""
        if holds():
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._conditions[future] = holds
        try:
            await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return False
        else:
            return True
        finally:
            del self._conditions[future]


class _Pending(msgspec.Struct, kw_only=True):
    """A batch on its way to the disk and what waits for it."""

    batch: Batch
    submitted: tuple[JobId, ...] = ()
    decisions: tuple[Decision, ...] = ()
    is_retry: bool = False


class Driver:
    """Owns the controller; everything here happens in one event loop.

    Attributes:
        problem: why the journal cannot be written; empty: it can.
        keeps_samples: raw samples go into the journal, for replay.
        after_sample: called after each sample.
    """

    def __init__(
        self,
        controller: Controller,
        journal: Journal,
        timeline: Timeline,
        environments: Mapping[str, Mapping[str, str]],
        *,
        requests: Sequence[Request] = (),
        keeps_samples: bool = False,
    ) -> None:
        """Drive this controller, whose state is as the journal has it.

        Args:
            environments: those of the waiting and live jobs, by id.
            requests: submissions that may be repeated.
        """
        self.controller = controller
        self.state = controller.state
        self.journal = journal
        self.timeline = timeline
        self.watch = Watch()
        self.counts = Counts(self.state.live, timeline.now_s)
        self.pace = Pace(self.counts.sampling)
        self.problem = ""
        self.keeps_samples = keeps_samples
        self._backend: Backend | None = None
        self.environments = Environments(environments, self.state.jobs.values())
        self._requests: dict[int, dict[str, Request]] = {}
        for each in requests:
            self._requests.setdefault(each.uid, {})[each.key] = each
        self._new_requests: dict[JobId, Request] = {}
        self._inbox: list[ev.Event] = []
        self._scheduled = False
        self._halted = False
        self._timer: Timer | None = None
        self._sampling: Timer | None = None
        self._retrying: Timer | None = None
        self.after_sample: Callable[[], None] = lambda: None
        self._unwritten: defaultdict[JobId, int] = defaultdict(int)
        self._refused: set[JobId] = set()
        self._owed: list[Batch] = []
        self.usage = Usage()
        self._next_id = self.state.next_id

    # -- for main ------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        assert self._backend is not None, "the driver is run before it has a backend"
        return self._backend

    def run(self, backend: Backend) -> None:
        """Begin to act and to sample. Events posted before are dealt with now.

        The first sample is taken at once: without it nothing is known of the first timeslice.
        """
        self._backend = backend
        unfreed = self.state.unfreed  # as the journal has it
        self._inbox.append(ev.TimerFired(at_s=self.timeline.now_s))  # what waits may start now
        self._turn()
        for free in unfreed:
            backend.perform(free)
        self._sample(self.timeline.now_s)

    def halt(self) -> None:
        """Decide and perform nothing any more; what is on its way to the disk still arrives there.

        What the disk owes is given to it once more.
        """
        for timer in (self._timer, self._sampling, self._retrying):
            if timer is not None:
                timer.cancel()
        self._timer = self._sampling = self._retrying = None
        self._halted = True
        if self._owed:
            self.journal.write(self._all_owed(), lambda _: None)

    # -- for the server --------------------------------------------------------------------------

    async def submit(
        self,
        jobs: Sequence[Callable[[JobId, float], Job]],
        environment: Mapping[str, str],
        environment_id: str,
        request: RequestKey | None = None,
    ) -> list[JobId]:
        """Accept jobs, all or none; returns their ids once they are durable.

        Each of ``jobs`` makes the job from its id and the time. A submission whose key is known is
        the earlier one, and makes no jobs.

        Raises:
            Conflict: as of ``find_submitted``.
            JournalError: they cannot be made durable; none of them exists.
        """
        if request is not None and (earlier := self._submitted_by(request)):
            return await self._once_durable(earlier)
        if self.problem:
            raise JournalError(self.problem)
        self.environments.bring(environment_id, environment)
        now_s = self.timeline.now_s
        ids = [JobId(self._next_id + offset) for offset in range(len(jobs))]
        self._next_id = JobId(self._next_id + len(jobs))
        for job_id, make in zip(ids, jobs, strict=True):
            job = make(job_id, now_s)
            self.environments.follow(job)
            self.post(ev.JobSubmitted(at_s=now_s, job=job))
            self._unwritten[job_id] += 1
        if request is not None:
            made = Request(first_id=ids[0], jobs=len(ids), **request._asdict())
            known = self._requests.setdefault(request.uid, {})
            known[request.key] = self._new_requests[ids[0]] = made
            if len(known) > MOST_REQUESTS:
                del known[next(iter(known))]
        return await self._once_durable(ids)

    async def find_submitted(self, request: RequestKey) -> list[JobId]:
        """The jobs of an earlier submission with this key, once durable; none: there was none.

        Raises:
            Conflict: it had another body.
            JournalError: as of ``submit``.
        """
        return await self._once_durable(self._submitted_by(request))

    def _submitted_by(self, request: RequestKey) -> Sequence[int]:
        """The jobs of the submission with this key; none: there was none, or it was refused."""
        made = self._requests.get(request.uid, {}).get(request.key)
        if made is None or made.first_id in self._refused:
            return ()
        ids = range(made.first_id, made.first_id + made.jobs)
        if made.digest != request.digest:
            raise Conflict(
                f"this key is that of another submission, of jobs {ids[0]} to {ids[-1]}; choose a "
                "new one for each submission"
            )
        return ids

    async def _once_durable(self, ids: Sequence[int]) -> list[JobId]:
        await self.watch.until(lambda: not any(i in self._unwritten for i in ids))
        if not self._refused.isdisjoint(ids):
            raise JournalError(self.problem or "the journal cannot be written")
        return [JobId(job_id) for job_id in ids]

    async def order(self, *orders: Order) -> None:
        """Write what is ordered, and a note of it; post the orders once that is durable.

        Raises:
            JournalError: it cannot be made durable now; nothing is ordered.
        """
        if self.problem:
            raise JournalError(self.problem)
        meta: dict[str, Mode | Drain | None] = {}
        for order in orders:
            match order:
                case ev.ModeChanged():
                    meta["mode"] = order.mode
                case ev.DrainBegun():
                    drain = self.state.drain
                    since_s = order.at_s if drain is None else drain.since_s
                    meta["drain"] = Drain(since_s=since_s, by=order.by, reason=order.reason)
                case ev.DrainEnded():
                    meta["drain"] = None
        batch = Batch(notes=tuple(map(note_of, orders)), meta=meta)

        def post_all() -> None:
            for order in orders:
                self.post(order)

        await self.journal.commit(batch, post_all)

    def waiting(self, uid: int) -> int:
        """How many jobs of this user wait, those included that arrived in this very instant."""
        arrived = 0
        for event in self._inbox:
            match event:
                case ev.JobSubmitted(job=job) | ev.RequeueRequested(ended=job) if job is not None:
                    arrived += job.uid == uid
        return self.state.users.waiting(uid) + arrived

    def is_durable(self, job_id: JobId) -> bool:
        """True when the job's present record is on the disk, or waits for a disk to be mended."""
        return job_id not in self._unwritten

    @property
    def is_at_rest(self) -> bool:
        """True when no job holds slots and nothing is on its way to the disk."""
        return not self._unwritten and not any(True for _ in self.state.live)

    def post(self, event: ev.Event) -> None:
        """Take an event; all events that arrive before the next turn are one step."""
        self._inbox.append(event)
        if not self._scheduled and not self._halted and self._backend is not None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    # -- one turn --------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._scheduled = False
        events = in_order(self._inbox)
        if self._halted or not events:
            return
        self._inbox = []
        with self.counts.step.time():
            plan = self.controller.step(events)

        later = []  # relief first: nothing else may delay it
        for decision in plan.decisions:
            if isinstance(decision, _AT_ONCE):
                self.backend.perform(decision)
            else:
                later.append(decision)
        self.backend.prepare([each for each in later if isinstance(each, Start)])

        self._write(events, plan, tuple(later))
        for event in events:
            if isinstance(event, ev.SampleTaken):
                self.pace.end(self.controller.rules.regulation.timeslice_s)
                self.after_sample()
        self._wake_at(plan.wake_at_s)
        self.watch.notify()
        # Not before the loop has waited once: what is to be sent is, and the journal's thread runs.
        asyncio.get_running_loop().call_soon(self._tell, plan)

    def _tell(self, plan: Plan) -> None:
        self.counts.take(plan, self.state.jobs)
        log_plan(plan)

    def _write(
        self, events: Sequence[ev.Event], plan: Plan, decisions: tuple[Decision, ...]
    ) -> None:
        """Hand what the step changed to the journal; ``decisions`` are performed after it."""
        jobs = tuple(
            job for job_id in plan.changed if (job := self.state.jobs.get(job_id)) is not None
        )
        for job in sorted(jobs, key=lambda job: job.state.is_final):  # who ends lets go last
            self.environments.follow(job)
        for job_id in plan.removed:
            self.environments.forget(job_id)
        submitted = tuple(e.job.id for e in events if isinstance(e, ev.JobSubmitted))
        samples = (event.sample for event in events if isinstance(event, ev.SampleTaken))
        batch = Batch(
            jobs=jobs,
            removed=plan.removed,
            transitions=plan.transitions,
            minutes=tuple(self.usage.follow(events, plan.transitions, self.state.jobs)),
            notes=self._notes(plan),
            samples=tuple(samples) if self.keeps_samples else (),
            lessons=plan.lessons,
            requests=tuple(self._new_requests.pop(i) for i in submitted if i in self._new_requests),
        )
        if decisions or batch != _NOTHING:
            self._send(_Pending(batch=batch, submitted=submitted, decisions=decisions))

    def _notes(self, plan: Plan) -> tuple[Note, ...]:
        """What the regulation saw, tried and would have done, and whose kept results go."""
        now_s = self.timeline.now_s
        frees = (each for each in plan.decisions if isinstance(each, Free) and each.is_wanted)
        gone = (note_of_clearing(self.state.jobs[free.job_id], now_s) for free in frees)
        return (
            *map(note_of, plan.evidence),
            *map(note_of, plan.shadow),
            *map(note_of, plan.trials),
            *gone,
        )

    def _send(self, pending: _Pending) -> None:
        new = set(pending.submitted)  # counted when they were posted
        for job in pending.batch.jobs:
            if job.id not in new:
                self._unwritten[job.id] += 1
        if self.problem and not pending.is_retry:
            self._suffer(pending, self.problem)
            self._settle(pending)
            return
        environments = dict(self.environments.unwritten)
        batch = pending.batch
        if environments:
            batch = msgspec.structs.replace(batch, environments=environments)
        loop = asyncio.get_running_loop()

        def done(error: JournalError | None) -> None:
            loop.call_soon_threadsafe(self._written, pending, tuple(environments), error)

        can_wait = batch.only_begins and not pending.decisions
        self.journal.write(batch, done, can_wait=can_wait)

    def _written(
        self, pending: _Pending, environments: Sequence[str], error: JournalError | None
    ) -> None:
        if error is not None:
            self._suffer(pending, str(error))
        else:
            self.environments.written(environments)
            if not self._halted:
                self.backend.settled(pending.batch.jobs)
                for decision in pending.decisions:
                    self.backend.perform(decision)
                    reach("driver.performed")
            if pending.is_retry:
                self._recover()
        self._settle(pending)
        self.watch.notify()

    def _settle(self, pending: _Pending) -> None:
        """The disk has answered for these records, one way or the other."""
        for job in pending.batch.jobs:
            self._unwritten[job.id] -= 1
            if self._unwritten[job.id] <= 0:
                del self._unwritten[job.id]

    # -- a journal that cannot be written ----------------------------------------------------------

    def _suffer(self, pending: _Pending, problem: str) -> None:
        """Nothing starts that could not be written down; nothing that was acknowledged is lost.

        New jobs never were; starts are taken back. What was asked to stop is stopped all the
        same: the supervisor's ledger is the durable word on that.
        """
        if self._halted:
            return
        now_s = self.timeline.now_s
        if problem != self.problem:
            log.error("event=journal_failed problem=%s", problem)
            self.problem = problem
            self.post(ev.StartsBlocked(at_s=now_s, problem=problem, source="journal"))
        self._owed.insert(0 if pending.is_retry else len(self._owed), pending.batch)
        if self._retrying is None:
            self._retrying = self.timeline.call_at(now_s + JOURNAL_RETRY_S, self._retry)
        for decision in pending.decisions:
            if not isinstance(decision, Start):
                self.backend.perform(decision)
                continue
            self.backend.take_back(decision)
            job_id, attempt = decision.job_id, decision.attempt
            failed = ev.StartFailed(
                at_s=now_s, job_id=job_id, attempt=attempt, problem=self.problem
            )
            self.post(failed)
            # nothing was made in its space
            self.post(ev.ScratchRemoved(at_s=now_s, job_id=job_id, attempt=attempt))
        for job_id in pending.submitted:
            self._refused.add(job_id)
            self.post(ev.SubmitRevoked(at_s=now_s, job_id=job_id))

    def _all_owed(self) -> Batch:
        """All that could not be written, as one batch.

        Of each job its present record, as far as it is in memory: a later one may have been
        written. Of refused submissions nothing; of the history at most ``MOST_STEPS`` rows of a
        kind, and no samples. Some record in any case: an empty batch would prove nothing.
        """
        batch = join([*self._owed, Batch(removed=tuple(self._refused))])
        self._owed = []
        jobs = tuple(self.state.jobs.get(job.id, job) for job in batch.jobs)
        if not jobs:
            written = (job for job in self.state.jobs.values() if job.id not in self._unwritten)
            jobs = tuple(written)[-1:]
        return msgspec.structs.replace(
            batch,
            jobs=jobs,
            transitions=batch.transitions[-MOST_STEPS:],
            minutes=batch.minutes[-MOST_STEPS:],
            notes=batch.notes[-MOST_STEPS:],
            samples=(),
        )

    def _retry(self) -> None:
        self._retrying = None
        self._send(_Pending(batch=self._all_owed(), is_retry=True))

    def _recover(self) -> None:
        """The disk took what it owed; what came meanwhile it is given at once."""
        if self._owed:
            if self._retrying is None:
                self._retry()
            return
        log.info("event=journal_recovered")
        self.problem = ""
        self.post(ev.StartsBlocked(at_s=self.timeline.now_s, problem="", source="journal"))

    # -- time ------------------------------------------------------------------------------------

    def _wake_at(self, time_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if time_s is None else self.timeline.call_at(time_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.post(ev.TimerFired(at_s=self.timeline.now_s))

    def _sample_at(self, due_s: float) -> None:
        """Samples keep to a grid of timeslices; a late one does not shift the next."""
        self._sampling = self.timeline.call_at(due_s, lambda: self._sample(due_s))

    def keep_another_pace(self) -> None:
        """The timeslice is another one now: the next sample does not wait for the end of the old.

        Only while it samples at all.
        """
        if self._sampling is not None:
            self._sampling.cancel()
            self._sample_at(self.timeline.now_s + self.controller.rules.regulation.timeslice_s)

    def _sample(self, due_s: float) -> None:
        self.pace.begin()
        self.backend.sample()
        slice_s = self.controller.rules.regulation.timeslice_s
        late_s = max(0.0, self.timeline.now_s - due_s)
        self._sample_at(due_s + slice_s * (1 + late_s // slice_s))


# -- order and log ---------------------------------------------------------------------------------


def in_order(events: Sequence[ev.Event]) -> list[ev.Event]:
    """By time, but never an effect before its cause.

    A job's end carries the time at which it ended, which may be before the time at which it was
    learned that it runs; of one job the events stay as they came.
    """
    reached_s: dict[JobId, float] = {}
    keys: list[float] = []
    for event in events:
        job_id: JobId | None = getattr(event, "job_id", None)
        if isinstance(event, ev.JobSubmitted):
            job_id = event.job.id
        at_s = event.at_s
        if job_id is not None:
            at_s = reached_s[job_id] = max(at_s, reached_s.get(job_id, at_s))
        keys.append(at_s)
    return [events[place] for place in sorted(range(len(events)), key=keys.__getitem__)]


def log_plan(plan: Plan) -> None:
    """One line an event or decision; many new jobs at once are one line."""
    born = [step.job_id for step in plan.transitions if step.before is None]
    if born:
        log.info("event=submitted jobs=%d first=%d last=%d", len(born), born[0], born[-1])
    for step in plan.transitions:
        if step.before is None:
            continue
        reason = ""
        if step.reason is not None:
            reason = f" reason={step.reason.code} text={quoted(step.reason.text)}"
        log.info("event=moved job=%d from=%s to=%s%s", step.job_id, step.before, step.after, reason)
    for trial in plan.trials:
        log.info(
            "event=trial resource=%s verdict=%s before=%s tried=%s gain=%s shadow=%s text=%s",
            quoted(trial.resource),
            trial.verdict,
            trial.before,
            trial.tried,
            "unknown" if trial.gain is None else f"{trial.gain:.3g}",
            "yes" if trial.is_shadow else "no",
            quoted(trial.text),
        )
    for fault in plan.faults:
        log.error("event=rule_set_aside text=%s", quoted(fault.text))
        if fault.trace:
            log.error("event=rule_traceback\n%s", fault.trace.rstrip())
    for decision in plan.decisions:
        if isinstance(decision, Start):
            continue  # its job has moved to STARTING
        log.info("decision=%s job=%d", type(decision).__name__.lower(), decision.job_id)
