"""EquilibrIO: the queue is reordered so that what runs is as I/O-intensive as the whole workload.

Idea: when I/O-intensive jobs do not run all at once, they do not wait for each other. S, the mean
I/O intensity of what runs, is kept near W, that of all jobs that run or wait; the order of arrival
weighs in, so that nobody is passed for ever.

1. A job's intensity is its mean I/O rate over its run, as declared, learned or imported. Whatever
   holds slots runs, suspended jobs too.
2. Each turn ranks the queue by weighted priority (``iodaemon.policy.intensity``) and starts the
   first, as long as the smallest queued job would fit. S and the ranks change with each start.
3. The first that finds no room ends the turns. The others, in the same order, may start beside it
   (backfill pass) where they end, by their walltimes, no later than a bound. ``max``: the latest
   expected end of what runs, the starts of these turns included. ``easy``: when there is room for
   the first. The pass itself does not extend the bound.
4. A job of which nothing is known is ranked by its arrival alone, and counts in neither S nor W.
   Without any knowledge this is first come, first served with backfilling, as with ``alpha`` 0.
5. A job without walltime does not extend the bound and is not backfilled. Where no job that runs
   has one (``easy``: where no time for the first is known) nothing is.
6. Equal priorities: the earlier arrival, then the lower id. "Room" is what the placement finds.
7. While regulation leaves no headroom for a job's I/O, it is not in the ranking; the others are.
8. ``alpha = "auto"``: in each turn as much as keeping to the order would cost, and as the oldest
   can bear (``iodaemon.policy.reordering``, ours).

Needs: nothing; I/O hints and walltimes make it what it is.
Source: Özden, Tarraf, Wolf, IEEE CLUSTER 2025, and its slides.
Differs: the slides print ``|W - intensity of c|`` for delta beside a definition of ``S_c`` that is
used nowhere. By the stated aim ``S_c`` is meant, and the default; ``intensity_delta = "candidate"``
is as printed. Of the reservations the slides keep the maximum only: bound ``max``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.decision import AdmissionPlan, Placed
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.platform import PartitionId
from iodaemon.core.view import NotNow, View
from iodaemon.policy.backfill import BACKFILL, find_shadow, latest_end_s, most_free
from iodaemon.policy.bandwidth import Headroom
from iodaemon.policy.intensity import Balance, Scale, balance_of, scale_of
from iodaemon.policy.line import Line, brought_forward, line_of
from iodaemon.policy.reordering import fairness, need
from iodaemon.policy.wording import told_passed, told_rate, told_span

_CODE: Final = "Order"


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What saves work: the same is decided without it.

    Attributes:
        line: the queue as it was left.
        lessons, sampled_s, headroom: by what it was decided (``View``).
        running: intensities of what holds slots.
        plan: what was decided, its starts left out.
    """

    line: Line
    lessons: int
    sampled_s: float | None
    headroom: float | None
    running: Mapping[JobId, float | None]
    plan: AdmissionPlan


class Out(msgspec.Struct, frozen=True, kw_only=True):
    """A start, and what to say if others had come earlier, under which code."""

    placed: Placed
    job: Job
    why: str
    code: str = _CODE


class Turns:
    """What one decision comes to: the line gets shorter, the draft fuller.

    Attributes:
        line: those who may start.
        balance: S and W now.
        draft: where they start.
        outs: who starts, in this order.
    """

    def __init__(self, view: View, line: Line, balance: Balance) -> None:
        self.draft = view.draft()
        self.now_s = view.now_s
        self.line = line.copy()
        self.balance = balance
        self.outs: list[Out] = []
        self._headroom = Headroom(view)
        self._leave_out()

    def has_room(self) -> bool:
        """Whether the smallest in the line would fit."""
        most = most_free(self.draft)
        return most > 0 and bool(self.line.jobs) and most >= min(self.line.cpus)

    def may_start(self, job: Job) -> bool:
        """Whether regulation leaves room for its I/O."""
        return self._headroom.refusal(job) is None

    def start(self, job: Job, partition: PartitionId, why: str, code: str = _CODE) -> None:
        """The job starts; it stays in the line."""
        placed = self.draft.start(job, partition)
        self.outs.append(Out(placed=placed, job=job, why=why, code=code))
        self._headroom.take(job)

    def take_turn(self, place: int, partition: PartitionId, why: str) -> None:
        """The job at this place of the line starts, and counts for those that follow."""
        self.start(self.line.jobs[place], partition, why)
        self.balance = self.balance.with_running(self.line.intensities[place])
        self.line.remove(place)
        self._leave_out()

    def _leave_out(self) -> None:
        """Those for whose I/O there is no room now are not in the line."""
        if self._headroom.left_bytes_per_s is None:
            return
        for place in reversed(range(len(self.line.jobs))):
            if not self.may_start(self.line.jobs[place]):
                self.line.remove(place)


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Weighted priority of arrival and I/O intensity, with backfilling.

    Attributes:
        alpha: reordering intensity, 0 (first come, first served) to 1 (I/O intensity alone), or
            "auto".
        auto_most, auto_half, auto_patience: of "auto" (``iodaemon.policy.reordering``).
        bound: until when a backfilled job must have ended.
        intensity_delta: what is compared with W: S as it would be, or the job's own intensity.
        intensity: what is balanced: bytes, or operations (requests).
    """

    alpha: float | Literal["auto"] = 0.5
    auto_most: float = 1.0
    auto_half: float = 0.1
    auto_patience: float = 2.0
    bound: Literal["max", "easy"] = "max"
    intensity_delta: Literal["system", "candidate"] = "system"
    intensity: Literal["bytes", "operations"] = "bytes"

    def __post_init__(self) -> None:
        """Refuse what is no weight."""
        if self.alpha != "auto" and not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f'alpha is {self.alpha:g}; it must be from 0 to 1, or "auto"')
        if not 0.0 <= self.auto_most <= 1.0:
            raise ValueError(f"auto_most is {self.auto_most:g}; it must be from 0 to 1")
        for name in ("auto_half", "auto_patience"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} is {getattr(self, name):g}; it must be above 0")

    def decide(self, view: View, memory: Memory | None) -> tuple[AdmissionPlan, Memory | None]:
        """Start whose turn it is, and what may start beside the first that finds no room."""
        jobs = list(view.pending)
        if not jobs:
            return AdmissionPlan(), None
        if memory is not None and memory.lessons != view.lessons:
            memory = None
        running = self._running(view, memory)
        if memory is None:
            line = line_of(jobs, lambda job: self._intensity_of(view, job))
        else:
            line = brought_forward(memory.line, jobs, lambda job: self._intensity_of(view, job))
            if line is memory.line and _is_the_same(memory, view, running):
                return memory.plan, memory
        plan, line = self._decide(view, line, running)
        running |= {p.job_id: self._intensity_of(view, view.job(p.job_id)) for p in plan.starts}
        return plan, Memory(
            line=line,
            lessons=view.lessons,
            sampled_s=view.sampled_s,
            headroom=view.io_headroom_bytes_per_s,
            running=running,
            plan=msgspec.structs.replace(plan, starts=()),
        )

    def _decide(
        self, view: View, line: Line, running: Mapping[JobId, float | None]
    ) -> tuple[AdmissionPlan, Line]:
        """The plan, and the line without those who start."""
        waits = Reason(
            code=_CODE, text=f"waits for free CPUs; who goes first is decided then, {self._by()}"
        )
        if most_free(view) == 0:
            return AdmissionPlan(rest=waits), line
        turns = Turns(view, line, self._balance(line, running))
        blocked = self._take_turns(turns)
        reasons: dict[JobId, Reason] = {}
        if blocked is not None:
            first, scale, reason = blocked
            self._backfill(turns, first, scale)
            reasons[first.id] = reason
            waits = Reason(code=_CODE, text=f"job {first.id} goes first, {self._by()}")
        starts, line = _without(line, turns.outs)
        return AdmissionPlan(starts=starts, reasons=reasons, rest=waits), line

    def explain(self, view: View, job: Job, memory: Any) -> str:  # noqa: ARG002 - as all rules
        """Where it stands in the queue, by what, and who goes first."""
        line = line_of(view.pending, lambda other: self._intensity_of(view, other))
        places = [place for place, other in enumerate(line.jobs) if other.id == job.id]
        if not places:
            return ""
        (place,) = places
        balance = self._balance(line, self._running(view, None))
        scale = self._scale(line, balance, view.now_s)
        weights = scale.weigh(line.arrivals_s, line.intensities)
        order = sorted(range(len(weights)), key=weights.__getitem__)
        first = line.jobs[order[0]]
        number = order.index(place) + 1
        parts = [
            f"is number {number} of {len(order)} to start, number {place + 1} by arrival",
            self._numbers(scale, line.arrivals_s[place], line.intensities[place]),
        ]
        if first.id != job.id:
            parts.append(f"job {first.id} goes first, with {weights[order[0]]:.2f}")
        answer = view.draft().place(job)
        refusal = answer.reason if isinstance(answer, NotNow) else Headroom(view).refusal(job)
        if refusal is not None:
            parts.append(refusal.text)
        return "; ".join(parts)

    # -- the turns -----------------------------------------------------------------------------

    def _take_turns(self, turns: Turns) -> tuple[Job, Scale, Reason] | None:
        """Start the first of the line again and again; returns the first that finds no room."""
        while turns.has_room():
            line = turns.line
            scale = self._scale(line, turns.balance, turns.now_s)
            place = scale.find_first(line.arrivals_s, line.intensities)
            answer = turns.draft.place(line.jobs[place])
            if isinstance(answer, NotNow):
                return line.jobs[place], scale, answer.reason
            turns.take_turn(place, answer, self._why_its_turn(scale, line.intensities[place]))
        return None

    def _backfill(self, turns: Turns, first: Job, scale: Scale) -> None:
        """Start those of the line that end before the bound, in the order of the last turn."""
        bound_s = self._bound_s(turns, first)
        if bound_s is None:
            return
        line, left_s, free = turns.line, bound_s - turns.now_s, most_free(turns.draft)
        places = [place for place, cpus in enumerate(line.cpus) if cpus <= free]
        places = [place for place in places if line.walltimes_s[place] <= left_s]
        weights = scale.weigh(
            [line.arrivals_s[place] for place in places],
            [line.intensities[place] for place in places],
        )
        for _, place in sorted(zip(weights, places, strict=True)):
            job = line.jobs[place]
            if job is first or line.cpus[place] > free or not turns.may_start(job):
                continue
            answer = turns.draft.place(job)
            if isinstance(answer, NotNow):
                continue
            ends = f"ends in {told_span(line.walltimes_s[place])} at the latest"
            until = f"{self._limit()} in {told_span(left_s)}"
            why = f"fits beside job {first.id}, which finds no room: {ends}, {until}"
            turns.start(job, answer, why, BACKFILL)
            free = most_free(turns.draft)

    def _bound_s(self, turns: Turns, first: Job) -> float | None:
        if self.bound == "max":
            return latest_end_s(turns.draft.live, turns.now_s)
        shadow = find_shadow(turns.draft, first, turns.now_s)
        return None if shadow is None else shadow.at_s

    # -- what is known -------------------------------------------------------------------------

    def _scale(self, line: Line, balance: Balance, now_s: float) -> Scale:
        if self.alpha != "auto":
            return scale_of(line.arrivals_s, line.known, balance, self.alpha)
        scale = scale_of(line.arrivals_s, line.known, balance, 0.0)
        oldest_s = now_s - line.arrivals_s[0]
        mean_s = now_s - math.fsum(line.arrivals_s) / len(line.arrivals_s)
        alpha = self.auto_most * need(scale.loss_ratio(line.intensities[0]), self.auto_half)
        alpha *= fairness(oldest_s, mean_s, self.auto_patience)
        return msgspec.structs.replace(scale, alpha=alpha)

    def _balance(self, line: Line, running: Mapping[JobId, float | None]) -> Balance:
        by_system = self.intensity_delta == "system"
        return balance_of(running.values(), line.known, by_system=by_system)

    def _running(self, view: View, memory: Memory | None) -> dict[JobId, float | None]:
        """Of what holds slots; looked up anew only of those that are not remembered."""
        known: Mapping[JobId, float | None] = {}
        if memory is not None and memory.sampled_s == view.sampled_s:
            known = memory.running
        return {
            job.id: known[job.id] if job.id in known else self._intensity_of(view, job)
            for job in view.live
        }

    def _intensity_of(self, view: View, job: Job) -> float | None:
        expected = view.expected(job.id)
        if not expected.is_known:
            return None
        if self.intensity == "bytes":
            return expected.rate_bytes_per_s
        return expected.operations_per_s

    # -- words ---------------------------------------------------------------------------------

    def _why_its_turn(self, scale: Scale, intensity: float | None) -> str:
        if intensity is None:
            return f"nothing is known of its I/O, its arrival counts alone; alpha {scale.alpha:.2g}"
        balance = scale.balance
        return (
            "it takes the mean I/O intensity of the running jobs from "
            f"{self._told(balance.system)} to {self._told(balance.system_with(intensity))}, "
            f"{'towards the' if scale.delta(intensity) else 'nearest to the'} "
            f"{self._told(balance.workload)} of all; alpha {scale.alpha:.2g}"
        )

    def _numbers(self, scale: Scale, arrival_s: float, intensity: float | None) -> str:
        lam = scale.lam(arrival_s)
        if intensity is None:
            return f"nothing is known of its I/O: its arrival counts alone, {lam:.2f}"
        delta, alpha = scale.delta(intensity), scale.alpha
        weight = (1.0 - alpha) * lam + alpha * delta
        return (
            f"arrival {lam:.2f} and I/O {delta:.2f} (0 is best, 1 worst) with alpha {alpha:.2g} "
            f"make {weight:.2f}: it does {self._told(intensity)}, what runs "
            f"{self._told(scale.balance.system)} in the mean, all jobs "
            f"{self._told(scale.balance.workload)}"
        )

    def _by(self) -> str:
        return f"by arrival and I/O intensity (alpha {self.alpha})"

    def _limit(self) -> str:
        return "the last that runs" if self.bound == "max" else "room for that one is expected"

    def _told(self, intensity: float) -> str:
        if self.intensity == "operations":
            return f"{intensity:.0f} requests/s"
        return told_rate(intensity)


def _is_the_same(memory: Memory, view: View, running: Mapping[JobId, float | None]) -> bool:
    """Whether what was decided of the same queue would be decided again."""
    then = (memory.sampled_s, memory.headroom, memory.running.keys())
    return then == (view.sampled_s, view.io_headroom_bytes_per_s, running.keys())


def _without(line: Line, outs: list[Out]) -> tuple[tuple[Placed, ...], Line]:
    """The starts, those before whom others had come with a reason, and the line without them."""
    if not outs:
        return (), line
    places = {out.job.id: line.place_of(out.job) for out in outs}
    gone = sorted(places.values())
    before = {place: number for number, place in enumerate(gone)}
    starts = []
    for out in outs:
        place = places[out.job.id]
        passed = place - before[place]
        why = Reason(code=out.code, text=f"{out.why}; {told_passed(passed)}") if passed else None
        starts.append(msgspec.structs.replace(out.placed, why=why))
    shorter = line.copy()
    for place in reversed(gone):
        shorter.remove(place)
    return tuple(starts), shorter
