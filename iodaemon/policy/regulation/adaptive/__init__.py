"""Finds out how many jobs should contend at once, and lets the others wait in the queue.

1. As many jobs start as there are cores. While cores idle and nobody loses by it there may be more:
   twice as many where next to nothing is read, half as many again where what is read cannot be kept
   in memory, else one more once what the others keep there is in.
2. For the memory, and for each device, a limiter finds how many jobs should contend there: by proof
   (what is read had been in memory shortly before), or by trial where a device only shows that
   requests wait. What is compared is what the jobs get done.
3. Those beyond the limit wait in the queue. If they run already they stand still, and come back as
   soon as there is room: for the memory whoever started first runs on, for a device whoever puts
   least on it, and users take turns.
4. Nobody is stopped who asked not to be, who stood still for the longest time allowed, whose
   progress cannot be measured, who computes or sleeps; and one always runs.
   A job that asked not to be, and is one too many for a device, is slowed down where that can be
   done (``selector``).
5. What was learned of a kind of job is kept: the next ones of that kind begin with that number.
6. ``io_bound`` is the operator's cap: jobs are stopped while all together move more.

Needs: Suspend, Resume.
Source: ours; see docs/regulation.md. Load control by the number of jobs: Denning, "Working sets
past and present", IEEE TSE 1980; Heiss and Wagner, VLDB 1991; Schroeder et al., ICDE 2006. Slow
start after Jacobson, "Congestion avoidance and control", SIGCOMM 1988.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

import msgspec

from iodaemon.core.decision import (
    Cap,
    Lesson,
    LimitState,
    RegulationPlan,
    Resume,
    StartLimit,
    Suspend,
    TrialStep,
    TrialVerdict,
)
from iodaemon.core.job import Job, JobId, JobKind, Reason
from iodaemon.core.platform import DeviceId
from iodaemon.core.sample import NodeCounters, known_memory
from iodaemon.core.state import CONTENTION
from iodaemon.core.view import View
from iodaemon.policy.regulation.adaptive.contender import (
    A_SLICE,
    MEMORY,
    Seen,
    find_contenders,
    seen,
)
from iodaemon.policy.regulation.adaptive.evidence import (
    LONGEST_LOAD_S,
    SUSTAIN,
    TRICKLE_BYTES_PER_S,
    Reads,
    Signs,
    look_on,
    read_on,
)
from iodaemon.policy.regulation.adaptive.limiter import (
    LEAST_SLICES,
    MOST_SLICES,
    Limiter,
    Trial,
    Window,
    begin,
    end,
    gain,
    is_decided,
    told_limit,
    told_trial,
    with_slice,
)
from iodaemon.policy.regulation.adaptive.selector import (
    CAP,
    SUSTAIN_CAP,
    RunOrder,
    fitting,
    headroom_bytes_per_s,
    moved_bytes_per_s,
    slow_down,
    surplus,
)
from iodaemon.policy.regulation.adaptive.slow_start import (
    count_cores,
    fits,
    idle_cores,
    memory_left,
    most_for_idle,
    working_sets,
)

KINDS: Final = 64
"""Of each user so many kinds, those learned of last, begin with what was learned."""
_EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """From one slice to the next.

    Attributes:
        at_s: when it was made.
        since_s: when there was last nothing to do: the batch began.
        node: the node's counters then.
        jobs: the live jobs then.
        reads: since the number of jobs at once last changed.
        signs: of the devices.
        many: jobs that contended for anything.
        limiters: by resource.
        held: what each suspended job stands still for.
        crew: who runs on and contends for each resource.
        limits: what was told of them.
        most: so many slots may be in use.
        grown_s: since when.
        over: slices in a row in which the operator's cap was exceeded.
    """

    at_s: float
    since_s: float
    node: NodeCounters = NodeCounters()
    jobs: Mapping[JobId, Seen] = _EMPTY
    reads: Reads
    signs: Signs = Signs()
    many: int = 0
    limiters: Mapping[str, Limiter] = _EMPTY
    held: Mapping[JobId, str] = _EMPTY
    crew: Mapping[str, frozenset[JobId]] = _EMPTY
    limits: tuple[LimitState, ...] = ()
    most: int = 0
    grown_s: float = 0.0
    over: int = 0


def _nothing(at_s: float) -> Memory:
    return Memory(at_s=at_s, since_s=at_s, reads=Reads(since_s=at_s))


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Regulation by progress.

    Attributes:
        timeslice_s: how often it samples and decides, s.
        io_bound_bytes_per_s: the operator's cap on what all jobs move. None: none.
        high_wait: times a request may take longer than alone before fewer jobs are tried.
        reread_share: part of the reads that had been in memory shortly before: from here on
            memory is contended for.
        stall_share: part of the time for which a task has to wait for I/O then.
        budget: part of the time that trials may cost which do not pay, beyond the first.
    """

    needs: ClassVar[frozenset[type]] = frozenset({Suspend, Resume})

    timeslice_s: float = 1.0
    io_bound_bytes_per_s: float | None = None
    high_wait: float = 3.0
    reread_share: float = 0.3
    stall_share: float = 0.2
    budget: float = 0.02

    def __post_init__(self) -> None:
        if not 0.0 < self.timeslice_s < math.inf:
            text = "write a finite number above 0"
            raise ValueError(f"timeslice_s is {self.timeslice_s:g}; {text}")
        bound = self.io_bound_bytes_per_s
        if bound is not None and not 0.0 < bound < math.inf:
            text = "write a finite number above 0, or leave it out to go by evidence alone"
            raise ValueError(f"io_bound_bytes_per_s is {bound:g}; {text}")
        if not 1.0 < self.high_wait < math.inf:
            text = "write a finite number above 1, what a request takes alone"
            raise ValueError(f"high_wait is {self.high_wait:g}; {text}")
        for name in ("reread_share", "stall_share", "budget"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                text = "write a part, from 0 to 1"
                raise ValueError(f"{name} is {getattr(self, name):g}; {text}")

    def decide(self, view: View, memory: Memory | None) -> tuple[RegulationPlan, Memory | None]:
        """Look at the slice, go on with what is tried, and keep the limits.

        Within an instant nothing changes; what was remembered at a later time is forgotten.
        """
        if memory is not None and view.now_s == memory.at_s:
            return self.refill(view, memory)
        if memory is not None and view.now_s < memory.at_s:
            memory = None
        now = _Timeslice(self, view, memory or _nothing(view.now_s - self.timeslice_s))
        now.look()
        now.learn_from_kinds()
        now.go_on()
        plan = now.plan()
        return plan, now.memory()

    def refill(self, view: View, memory: Memory | None) -> tuple[RegulationPlan, Memory | None]:
        """Let those come back for whom there is room, and leave everything else as it is.

        One comes back in any case when no other job runs. Measured: without it jobs of a second or
        two leave a disk idle for half a timeslice each.
        """
        if memory is None:
            return RegulationPlan(starts=view.start_limit), None
        order = RunOrder(view)
        running = {job.id for job in view.running}
        fresh = running - memory.jobs.keys()
        resumes: dict[JobId, Reason] = {}
        for resource, limiter in memory.limiters.items():
            waiting = order.in_order(resource, _waiting(view, memory, resource))
            if limiter.target is not None:
                here = len(running & memory.crew.get(resource, frozenset()) | fresh)
                waiting = waiting[: max(0, limiter.target - here)]
            why = Reason(code="Fits", text=_told_room(resource))
            resumes |= {job.id: why for job in waiting}
        if not running and not resumes:
            still = [job for job in view.suspended if job.id in memory.held and not job.user_hold]
            alone = Reason(code="Fits", text="no other job runs")
            resumes = {job.id: alone for job in order.in_order(MEMORY, still)[:1]}
        plan = RegulationPlan(
            resumes=tuple(resumes),
            caps=view.caps,
            reasons=resumes,
            starts=view.start_limit,
            io_headroom_bytes_per_s=view.io_headroom_bytes_per_s,
            limits=memory.limits,
        )
        back = frozenset(resumes)
        crew = {
            resource: jobs | {i for i in back if memory.held[i] == resource}
            for resource, jobs in memory.crew.items()
        }
        held = {i: r for i, r in memory.held.items() if i not in back}
        return plan, msgspec.structs.replace(memory, held=held, crew=crew)


class _Timeslice:
    """One decision, while it is made. Each method is called once, in their order."""

    def __init__(self, rule: Rule, view: View, before: Memory) -> None:
        self._rule = rule
        self._view = view
        self._before = before
        self._now_s = view.now_s
        self._interval_s = max(1e-3, view.now_s - before.at_s)
        self._resources = (MEMORY, *(device.id for device in view.platform.devices))
        self._limiters = {r: before.limiters.get(r, Limiter()) for r in self._resources}
        held = {job.id for job in view.suspended}
        known = {*self._resources, CAP} if rule.io_bound_bytes_per_s else {*self._resources}
        self._held = {i: r for i, r in before.held.items() if i in held and r in known}
        self._crew = find_contenders(view, before.jobs, self._interval_s)
        self._signs = look_on(before.signs, view, self._interval_s, rule.high_wait)
        self._reads = before.reads
        self._many = 0
        self._most = before.most
        self._grown_s = before.grown_s
        self._over = before.over
        self._trials: list[TrialStep] = []
        self._lessons: dict[JobKind, Lesson] = {}
        self._suspends: dict[JobId, Reason] = {}
        self._resumes: dict[JobId, Reason] = {}
        self._caps: dict[JobId, Cap] = {}
        self._why_capped: dict[JobId, Reason] = {}
        self._order = RunOrder(view)
        self._slots = sum(part.size for part in view.platform.partitions)
        self._used = sum(job.spec.cpus for job in view.live)
        self._is_waiting = next(iter(view.pending), None) is not None

    # -- what there is -----------------------------------------------------------------------

    def look(self) -> None:
        """Take in the slice that is over."""
        before = self._before
        self._many = len({job.id for jobs in self._crew.running.values() for job in jobs})
        is_same = self._many <= before.many
        self._reads = read_on(
            before.reads,
            before.node,
            self._view,
            self._interval_s,
            own_bytes=self._crew.read_bytes,
            counts=is_same,
        )
        for resource in self._resources:
            limiter = self._limiters[resource]
            doing = self._crew.doing_at(resource)
            window = with_slice(limiter.window, doing) if is_same else Window()
            trial = limiter.trial
            if trial is not None and trial.window is not None:
                trial = msgspec.structs.replace(trial, window=with_slice(trial.window, doing))
            self._limiters[resource] = msgspec.structs.replace(limiter, window=window, trial=trial)

    def learn_from_kinds(self) -> None:
        """Begin with the limits that were found for the kinds of jobs that contend now."""
        for resource in self._resources:
            limiter, jobs = self._limiters[resource], self._crew.of(resource)
            if limiter.limit is not None or limiter.trial is not None or limiter.tries or not jobs:
                continue
            found = [self._view.lesson(self._view.kind(job.id)) for job in jobs]
            known = [each for each in found if each is not None and each.resource == resource]
            limits = [each.limit for each in known if each.limit is not None]
            if not limits:
                continue
            limit = max(1, round(len(limits) / sum(1.0 / each for each in limits)))
            self._limiters[resource] = Limiter(
                limit=limit,
                good=limit,
                too_many=min((each.too_many for each in known if each.too_many), default=None),
                gain=max(each.gain for each in known),
                tries=max(each.tries for each in known),
                failures=1,
                since_s=self._now_s,
                last_s=LONGEST_LOAD_S,
                fewer_s=self._now_s,
                more_s=self._now_s,
                lasted_s=LONGEST_LOAD_S,
            )

    # -- what is tried -----------------------------------------------------------------------

    def go_on(self) -> None:
        """Go on with the trial under way, or begin one."""
        for resource, limiter in list(self._limiters.items()):
            if limiter.trial is not None:
                self._follow(resource, limiter, limiter.trial)
                return
        for resource in self._resources:
            if self._try_fewer(resource) or self._try_more(resource):
                return
        self._grow()

    def _follow(self, resource: str, limiter: Limiter, trial: Trial) -> None:
        if trial.window is None:
            if trial.is_up and resource == MEMORY and self._is_thrash(self._load_bytes(trial)):
                self._end(resource, limiter, trial, None)
            elif self._is_settled(resource, trial):
                trial = msgspec.structs.replace(trial, window=Window())
                self._limiters[resource] = msgspec.structs.replace(limiter, trial=trial)
            return
        found = gain(trial.had, trial.window)
        if is_decided(trial, found):
            self._end(resource, limiter, trial, found)

    def _load_bytes(self, trial: Trial) -> float:
        """What those may read who are there for the trial alone."""
        _, largest = working_sets(self._view, self._crew.of(MEMORY))
        return (trial.tried - trial.before) * largest

    def _is_settled(self, resource: str, trial: Trial) -> bool:
        """What was under way is done, and what is kept in memory is in."""
        if self._now_s - trial.began_s < A_SLICE * self._interval_s:
            return False
        return resource != MEMORY or self._reads.is_in(self._now_s)

    def _end(self, resource: str, limiter: Limiter, trial: Trial, found: float | None) -> None:
        known, verdict = end(limiter, found, self._now_s)
        self._limiters[resource] = known
        self._tell(resource, verdict, trial, found)
        if known.limit is not None:
            for job in self._crew.of(resource):
                self._learn(self._view.kind(job.id), resource, known)

    def _learn(self, kind: JobKind, resource: str, limiter: Limiter) -> None:
        known = self._view.lesson(kind) or Lesson()
        self._lessons[kind] = msgspec.structs.replace(
            known,
            resource=resource,
            limit=limiter.limit,
            too_many=limiter.too_many,
            gain=limiter.gain,
            tries=limiter.tries,
            at_s=self._now_s,
        )

    def _try_fewer(self, resource: str) -> bool:
        limiter = self._limiters[resource]
        many = len(self._crew.of(resource))
        is_known = self._is_known_good(resource, many)
        load_bytes = (self._reads.cache_bytes or 0.0) if is_known else 0.0
        is_proven = resource == MEMORY and self._is_thrash(load_bytes)
        if not is_proven and not self._signs.is_full(DeviceId(resource)):
            if resource == MEMORY and many > limiter.good and self._reads.is_in(self._now_s):
                self._limiters[resource] = msgspec.structs.replace(limiter, good=many)
                if len(limiter.window.slices) >= LEAST_SLICES:
                    self._learn_seen(many)
            return False
        tried = limiter.fewer(many, self._now_s, self._rule.budget) if many > 1 else None
        if tried is None or len(limiter.window.slices) < LEAST_SLICES:
            return False
        if not is_proven and not limiter.may_try(self._now_s, self._rule.budget):
            return False
        if is_known and not is_proven and self._reads.is_loading(self._now_s):
            return False
        self._begin(resource, limiter, tried, is_proven=is_proven)
        return True

    def _try_more(self, resource: str) -> bool:
        limiter = self._limiters[resource]
        tried = limiter.more(self._now_s, self._rule.budget)
        waits = self._is_waiting or resource in self._held.values()
        if tried is None or limiter.limit is None or not waits:
            return False
        running = self._crew.of(resource)
        if not limiter.limit <= len(running) < tried or len(limiter.window.slices) < MOST_SLICES:
            return False
        if resource == MEMORY and not fits(self._view, running, tried - limiter.limit):
            return False
        if not limiter.may_try(self._now_s, self._rule.budget):
            return False
        self._begin(resource, limiter, tried, is_proven=False)
        return True

    def _begin(self, resource: str, limiter: Limiter, tried: int, *, is_proven: bool) -> None:
        many = len(self._crew.of(resource))
        begun = begin(limiter, tried, before=many, now_s=self._now_s, is_proven=is_proven)
        self._limiters[resource] = begun
        assert begun.trial is not None
        if is_proven:
            known = msgspec.structs.replace(begun, limit=tried, too_many=many)
            for job in self._crew.of(resource):
                self._learn(self._view.kind(job.id), resource, known)
        self._tell(resource, "began", begun.trial, None)

    def _grow(self) -> None:
        """Slow start: let more jobs run while that does no harm."""
        self._most = max(self._most, self._slots)
        if self._used < self._most or not self._is_waiting or not self._is_seen():
            return
        idle = idle_cores(self._before.node, self._view.node, self._interval_s)
        if idle is None or known_memory(self._view.node) is None:
            return
        cores = count_cores(self._view.platform)
        idle = min(idle, cores - self._crew.computed_s / self._interval_s)
        most = most_for_idle(self._used, cores, idle)
        is_slow = any(
            self._signs.is_rising(r) and self._limiters[r].good < len(self._crew.of(r))
            for r in self._signs.senses
        )
        if most <= self._used or is_slow or self._held or self._is_thrash():
            return
        reads = self._reads
        if reads.peak_bytes_per_s < TRICKLE_BYTES_PER_S:
            step = self._used
        elif self._now_s - reads.since_s < SUSTAIN * A_SLICE * self._interval_s:
            return
        elif reads.has_room():
            step = max(1, self._used // 2)
        elif reads.is_streaming() or (
            reads.is_in(self._now_s) and fits(self._view, self._crew.of(MEMORY), 1)
        ):
            step = 1
        else:
            return
        self._most = min(most, self._used + step)
        self._grown_s = self._now_s
        self._learn_seen(self._used)

    def _is_seen(self) -> bool:
        """Those who run now did so for a whole slice."""
        whole_s = A_SLICE * self._interval_s
        longest_s = max((job.run_s_at(self._now_s) for job in self._view.running), default=0.0)
        return longest_s >= whole_s and self._now_s - self._grown_s >= whole_s

    def _learn_seen(self, many: int) -> None:
        """So many at once do no harm."""
        for job in self._view.running:
            kind = self._view.kind(job.id)
            known = self._lessons.get(kind) or self._view.lesson(kind) or Lesson()
            if known.seen < many:
                found = msgspec.structs.replace(known, seen=many, at_s=self._now_s)
                self._lessons[kind] = found

    def _is_known_good(self, resource: str, many: int) -> bool:
        """Whether so many of the kinds that contend did no harm in earlier batches.

        What they read first they keep, as others of their kind did: that it had been in memory
        before is no proof then, and that requests wait no sign.
        """
        kinds = {self._view.kind(job.id) for job in self._crew.of(resource)}
        lessons = (self._view.lesson(kind) for kind in kinds)
        since_s = self._before.since_s
        return all(
            known is not None and known.seen >= many and known.at_s < since_s for known in lessons
        )

    def _is_thrash(self, load_bytes: float = 0.0) -> bool:
        rule = self._rule
        return self._reads.is_thrash(
            reread_share=rule.reread_share, stall_share=rule.stall_share, load_bytes=load_bytes
        )

    def _tell(
        self, resource: str, verdict: TrialVerdict, trial: Trial, found: float | None
    ) -> None:
        before, tried = trial.before, trial.tried
        sign = self._sign(resource, trial)
        text = told_trial(resource, verdict, before, tried, found, sign)
        self._trials.append(
            TrialStep(
                resource=resource,
                verdict=verdict,
                before=before,
                tried=tried,
                gain=found,
                text=text,
            )
        )

    def _sign(self, resource: str, trial: Trial) -> str:
        if trial.is_up:
            return "others wait"
        if resource == MEMORY:
            return f"{self._reads.reread_ratio:.0%} of what is read had been in memory before"
        return self._signs.told(DeviceId(resource))

    # -- what follows ------------------------------------------------------------------------

    def plan(self) -> RegulationPlan:
        """Who stands still and who comes back, so that the limits hold; and who may start."""
        for resource in self._resources:
            self._keep(resource)
        self._keep_below_cap()
        for job in self._view.suspended:
            if job.id not in self._held:
                self._resumes[job.id] = Reason(code="Fits", text="nothing holds it any more")
        return RegulationPlan(
            suspends=tuple(self._suspends),
            resumes=tuple(self._resumes),
            caps=self._caps,
            reasons={**self._why_capped, **self._suspends, **self._resumes},
            starts=self._starts(),
            io_headroom_bytes_per_s=self._headroom(),
            trials=tuple(self._trials),
            limits=self._limits(),
            lessons=self._lessons,
        )

    def _limits(self) -> tuple[LimitState, ...]:
        """What is believed of each resource of which anything is."""
        return tuple(
            LimitState(
                resource=resource,
                contending=len(self._crew.of(resource)),
                limit=limiter.target,
                text=told_limit(resource, limiter),
            )
            for resource, limiter in self._limiters.items()
            if limiter.tries or limiter.limit is not None
        )

    def _keep(self, resource: str) -> None:
        """Stop those beyond the limit, or let those come back for whom there is room."""
        target = self._limiters[resource].target
        running = [job for job in self._crew.of(resource) if job.id not in self._suspends]
        if target is None or len(running) < target:
            held = self._held_for(resource)
            for job in held if target is None else held[: target - len(running)]:
                self._resumes[job.id] = Reason(code="Fits", text=_told_room(resource))
            return
        surplus = len(running) - target
        for job in reversed(self._order.in_order(resource, running)):
            if surplus <= 0:
                return
            if not self._may_stop(job):
                continue
            text = _told_stop(resource, len(running), target)
            self._suspends[job.id] = Reason(code=CONTENTION, text=text)
            self._held[job.id] = resource
            surplus -= 1
        if resource != MEMORY and surplus > 0:
            self._slow_down(resource, running, surplus)

    def _slow_down(self, device: str, running: Sequence[Job], surplus: int) -> None:
        """Cap those who may not be stopped (``slow_down``)."""
        contenders = self._order.in_order(device, running)[::-1]
        for job_id, cap in slow_down(self._view, device, contenders, surplus).items():
            text = _told_slow(device, len(running), self._limiters[device].target or 1)
            self._caps.setdefault(job_id, cap)
            self._why_capped.setdefault(job_id, Reason(code=CONTENTION, text=text))

    def _keep_below_cap(self) -> None:
        """Stop those beyond the operator's cap, or let back for whom there is room below it."""
        bound = self._rule.io_bound_bytes_per_s
        if bound is None:
            return
        view, moved = self._view, moved_bytes_per_s(self._view)
        self._over = self._over + 1 if moved > bound else 0
        if self._over >= SUSTAIN_CAP:
            running = [job for job in view.running if job.id not in self._suspends]
            running = self._order.in_order(MEMORY, running)
            for job in surplus(view, running, bound):
                if not self._may_stop(job):
                    continue
                self._suspends[job.id] = Reason(code="IoBound", text=_told_cap(moved, bound))
                self._held[job.id] = CAP
        elif not self._over:
            for job in fitting(view, self._held_for(CAP), bound):
                text = f"{_told_cap(moved, bound)}: there is room for it"
                self._resumes[job.id] = Reason(code="Fits", text=text)

    def _headroom(self) -> float | None:
        bound = self._rule.io_bound_bytes_per_s
        if bound is None:
            return None
        return headroom_bytes_per_s(self._view, self._held_for(CAP), bound)

    def _may_stop(self, job: Job) -> bool:
        can = self._order.may_stop(job, self._rule.timeslice_s)
        return can and job.id not in self._resumes

    def _held_for(self, resource: str) -> list[Job]:
        jobs = (self._view.job(i) for i, r in self._held.items() if r == resource)
        waiting = (job for job in jobs if not job.user_hold and job.id not in self._suspends)
        return self._order.in_order(resource, waiting)

    def _starts(self) -> StartLimit:
        """How many more may start, and of which kinds."""
        free, share, why = self._room()
        shares = self._shares(0.0 if share == 0.0 else share)
        most = self._slots  # and no more where the memory is not known
        if known_memory(self._view.node) is not None:
            self._most = most = max(self._most, *self._expected_most(), self._slots)
        left, footprint = memory_left(self._view) if most > self._slots else (None, 0.0)
        above = {
            part.id: -(-most * part.size // self._slots) - part.size
            for part in self._view.platform.partitions
        }
        if most <= self._used:
            why = f"{self._used} of {self._slots} cores are taken; more start if it does no harm"
        return StartLimit(
            most=max(0, most - self._used),
            free=free,
            share=share,
            shares=shares,
            above_cores=above,
            memory_bytes=left,
            footprint_bytes=footprint,
            why=Reason(code=CONTENTION, text=why),
        )

    def _room(self) -> tuple[float, float, str]:
        """Of the tightest limit: what is left of it, what a job takes of it, and why."""
        tightest: tuple[float, float, str] = (1.0, 0.0, "")
        for resource, limiter in self._limiters.items():
            target = limiter.target
            if target is None:
                continue
            many = len(self._crew.of(resource))
            many += sum(r == resource and i not in self._suspends for i, r in self._held.items())
            many -= 0 if limiter.trial is None else min(0, limiter.trial.before - target)
            room = (target - many) / target
            if tightest[1] == 0.0 or room < tightest[0]:
                tightest = (room, 1.0 / target, told_limit(resource, limiter))
        return tightest

    def _shares(self, share: float) -> Mapping[JobKind, float]:
        """What jobs of a kind take, as far as it is known; those that contend for nothing: 0."""
        view = self._view
        shares = {
            kind: max(share, 1.0 / lesson.limit)
            for kind, lesson in view.recent_lessons(KINDS)
            if lesson.limit is not None
        }
        if not shares and share == 0.0:
            return {}
        kinds = {job.id: view.kind(job.id) for job in view.running}
        contending = {kinds[job.id] for jobs in self._crew.running.values() for job in jobs}
        return {**shares, **dict.fromkeys(set(kinds.values()) - contending, 0.0)}

    def _expected_most(self) -> list[int]:
        """So many of the next kind were seen to do no harm."""
        head = next(iter(self._view.pending), None)
        lesson = None if head is None else self._view.lesson(self._view.kind(head.id))
        return [0] if lesson is None else [lesson.seen, lesson.limit or 0]

    def memory(self) -> Memory:
        live = list(self._view.live)
        is_over = not live and not self._is_waiting
        has_changed = bool(self._trials)
        limiters = self._limiters
        if has_changed:
            limiters = {
                resource: msgspec.structs.replace(limiter, window=Window())
                for resource, limiter in limiters.items()
            }
        return Memory(
            at_s=self._now_s,
            since_s=self._now_s if is_over else self._before.since_s,
            node=self._view.node,
            jobs={job.id: self._crew.seen.get(job.id) or seen(self._view, job) for job in live},
            reads=Reads(since_s=self._now_s) if has_changed else self._reads,
            signs=self._signs,
            many=self._many - len(self._suspends) + len(self._resumes),
            limiters={} if is_over else limiters,
            held={i: r for i, r in self._held.items() if i not in self._resumes},
            crew={r: self._run_on(r) for r in self._resources},
            limits=self._limits(),
            most=0 if is_over else self._most,
            grown_s=self._grown_s,
            over=self._over,
        )

    def _run_on(self, resource: str) -> frozenset[JobId]:
        """Who contends for it and runs in the slice that begins now."""
        stay = {job.id for job in self._crew.of(resource)}.difference(self._suspends)
        return frozenset(stay | {i for i in self._resumes if self._held.get(i) == resource})


def _waiting(view: View, before: Memory, resource: str) -> list[Job]:
    """Those who stand still for it, and whom nobody else holds."""
    return [
        job for job in view.suspended if before.held.get(job.id) == resource and not job.user_hold
    ]


# -- words -----------------------------------------------------------------------------------------


def _told_stop(resource: str, many: int, target: int) -> str:
    what = "the memory" if resource == MEMORY else resource
    return f"{many} jobs contend for {what}, {target} at a time get more done"


def _told_slow(device: str, many: int, target: int) -> str:
    return f"{_told_stop(device, many, target)}, and it asked never to be suspended"


def _told_room(resource: str) -> str:
    return f"there is room for it at {resource}"


def _told_cap(moved_bytes_per_s: float, bound_bytes_per_s: float) -> str:
    moved, bound = moved_bytes_per_s / 1e6, bound_bytes_per_s / 1e6
    return f"all jobs move {moved:.1f} MB/s, io_bound is {bound:.1f} MB/s"
