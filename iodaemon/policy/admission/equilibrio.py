"""EquilibrIO: the queue is reordered so that what runs is as I/O-intensive as the whole workload.

Idea: when I/O-intensive jobs do not run all at once, they do not wait for each other. S, the mean
I/O intensity of what runs, is kept near W, that of all jobs that run or wait; the order of arrival
weighs in, and after ``longest_wait`` it alone decides.

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
7. While regulation leaves no headroom for a job's I/O, or lets no more jobs like it start, it is
   not in the ranking; the others are.
8. A job that has waited for longer than ``longest_wait`` goes before all that came later, and is
   blocked only with bound ``easy``; if it waits for headroom alone its slots are kept free for it.
   Without that, as published, a job can be passed for ever where ``alpha`` is 0.5 or more: with
   the worst delta it weighs ``alpha`` however old it is, with the best the last to come weighs
   ``1 - alpha``. And with bound ``max`` a large one is passed for as long as anything long runs.
9. ``alpha = "auto"``: in each turn as much as the storage would be full
   (``iodaemon.policy.intensity``, ours). Without ``bandwidth`` that is what the devices deliver,
   where it is known; else, and for operations, as much as S and W are apart.

Needs: nothing; I/O hints and walltimes make it what it is.
Source: Özden, Tarraf, Wolf, IEEE CLUSTER 2025, and its slides.
Differs: the slides print ``|W - intensity of c|`` for delta beside a definition of ``S_c`` that is
used nowhere. By the stated aim ``S_c`` is meant, and the default; ``intensity_delta = "candidate"``
is as printed. Of the reservations the slides keep the maximum only: bound ``max``.
``longest_wait`` is ours.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.decision import AdmissionPlan, Placed, StartLimit
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.platform import PartitionId, Platform
from iodaemon.core.view import NotNow, View
from iodaemon.policy.headroom import Headroom, told_rate
from iodaemon.policy.intensity import Balance, Scale, balance_of, scale_of, told_way
from iodaemon.policy.shadow_time import (
    BACKFILL,
    find_shadow,
    latest_end_s,
    most_free,
    told_passed,
    told_span,
)

_ORDER: Final = "Order"
"""The code of the reason why a job starts, or waits, by its rank."""

Intensity = Callable[[Job], float | None]
"""A job's I/O intensity; None if unknown."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """A cache: decisions are the same without it.

    Attributes:
        line: the queue as it was left.
        lessons, sampled_s, headroom, limit: what the decision depended on (``View``).
        running: intensities of the jobs that hold slots.
        overdue: how many of the line had waited for too long.
        plan: the decision, without its starts.
    """

    line: Line
    lessons: int
    sampled_s: float | None
    headroom: float | None
    limit: StartLimit | None
    running: Mapping[JobId, float | None]
    overdue: int
    plan: AdmissionPlan


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """The first job without room.

    Attributes:
        scale: of its turn.
        is_overdue: whether it has waited for too long.
    """

    job: Job
    scale: Scale
    reason: Reason
    is_overdue: bool


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Weighted priority of arrival and I/O intensity, with backfilling.

    Attributes:
        alpha: reordering intensity, 0 (first come, first served) to 1 (I/O intensity alone), or
            "auto".
        auto_most, auto_full: of "auto" (``iodaemon.policy.intensity``).
        bandwidth_bytes_per_s: of the whole storage, for "auto". None: the devices' capacities.
        bound: until when a backfilled job must have ended.
        longest_wait_s: who has waited for longer goes first, by arrival. None: as published.
        intensity_delta: what is compared with W: S as it would be, or the job's own intensity.
        intensity: what is balanced: bytes, or operations (requests).
    """

    alpha: float | Literal["auto"] = 0.5
    auto_most: float = 0.5
    auto_full: float = 0.5
    bandwidth_bytes_per_s: float | None = None
    bound: Literal["max", "easy"] = "max"
    intensity_delta: Literal["system", "candidate"] = "system"
    intensity: Literal["bytes", "operations"] = "bytes"
    longest_wait_s: float | None = None

    def __post_init__(self) -> None:
        if self.alpha != "auto" and not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f'alpha is {self.alpha:g}; it must be from 0 to 1, or "auto"')
        if not 0.0 <= self.auto_most <= 1.0:
            raise ValueError(f"auto_most is {self.auto_most:g}; it must be from 0 to 1")
        for name in ("auto_full", "bandwidth_bytes_per_s", "longest_wait_s"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise ValueError(f"{name} is {value:g}; it must be above 0")

    def decide(self, view: View, memory: Memory | None) -> tuple[AdmissionPlan, Memory | None]:
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
            is_as_late = memory.overdue == self._overdue(line, view.now_s)
            if line is memory.line and is_as_late and _is_the_same(memory, view, running):
                return memory.plan, memory
        plan, line = self._decide(view, line, running)
        running |= {p.job_id: self._intensity_of(view, view.job(p.job_id)) for p in plan.starts}
        return plan, Memory(
            line=line,
            lessons=view.lessons,
            sampled_s=view.sampled_s,
            headroom=view.io_headroom_bytes_per_s,
            limit=view.start_limit,
            running=running,
            overdue=self._overdue(line, view.now_s),
            plan=msgspec.structs.replace(plan, starts=()),
        )

    def _decide(
        self, view: View, line: Line, running: Mapping[JobId, float | None]
    ) -> tuple[AdmissionPlan, Line]:
        """The plan, and the line without those who start."""
        waits = Reason(
            code=_ORDER, text=f"waits for free CPUs; who goes first is decided then, {self._by()}"
        )
        if most_free(view) == 0:
            return AdmissionPlan(rest=waits), line
        turns = _Turns(view, line, self._balance(line, running), self._late_s(view.now_s))
        blocked = self._take_turns(turns)
        if blocked is not None:
            self._backfill(turns, blocked)
            by = self._by_wait() if blocked.is_overdue else self._by()
            waits = Reason(code=_ORDER, text=f"job {blocked.job.id} goes first, {by}")
        elif (shut_by := turns.headroom.shut_by) is not None:
            waits = shut_by
        reasons = turns.refusals()
        if blocked is not None:
            reasons[blocked.job.id] = blocked.reason
        starts, line = _without(line, turns.outs)
        return AdmissionPlan(starts=starts, reasons=reasons, rest=waits), line

    def explain(self, view: View, job: Job, memory: Any) -> str:  # noqa: ARG002 - as all rules
        line = line_of(view.pending, lambda other: self._intensity_of(view, other))
        places = [place for place, other in enumerate(line.jobs) if other.id == job.id]
        if not places:
            return ""
        (place,) = places
        balance = self._balance(line, self._running(view, None))
        scale = self._scale(line, balance, view.platform)
        weights = scale.weigh(line.arrivals_s, line.intensities)
        late = self._overdue(line, view.now_s)
        order = [*range(late), *sorted(range(late, len(weights)), key=weights.__getitem__)]
        first = line.jobs[order[0]]
        number = order.index(place) + 1
        parts = [
            f"is number {number} of {len(order)} to start, number {place + 1} by arrival",
            self._numbers(scale, line.arrivals_s[place], line.intensities[place]),
        ]
        if place < late:
            parts.append(f"{self._by_wait()}: arrival alone counts")
        if first.id != job.id:
            why = self._by_wait() if late else f"with {weights[order[0]]:.2f}"
            parts.append(f"job {first.id} goes first, {why}")
        answer = view.draft().place(job)
        refusal = answer.reason if isinstance(answer, NotNow) else Headroom(view).refusal(job)
        if refusal is not None:
            parts.append(refusal.text)
        return "; ".join(parts)

    # -- the turns -----------------------------------------------------------------------------

    def _take_turns(self, turns: _Turns) -> Blocked | None:
        """Start the first of the line as long as it has room; return the first that has none."""
        while turns.has_room():
            line = turns.line
            scale = self._scale(line, turns.balance, turns.draft.platform)
            is_late = turns.is_overdue()
            place = 0 if is_late else scale.find_first(line.arrivals_s, line.intensities)
            job = line.jobs[place]
            answer = turns.draft.place(job)
            if isinstance(answer, NotNow):
                return Blocked(job=job, scale=scale, reason=answer.reason, is_overdue=is_late)
            if is_late and not turns.headroom.has_room(job):
                turns.keep_slots(place, answer)
                continue
            why = self._why_its_turn(scale, line.intensities[place])
            turns.take_turn(place, answer, self._by_wait() if is_late else why)
        return None

    def _backfill(self, turns: _Turns, first: Blocked) -> None:
        """Start jobs of the line that end before the bound, in the order of the last turn."""
        is_by_max = self.bound == "max" and not first.is_overdue
        bound_s = self._bound_s(turns, first.job, is_by_max=is_by_max)
        if bound_s is None:
            return
        if turns.headroom.shut_by is not None:
            return
        line, left_s, free = turns.line, bound_s - turns.now_s, most_free(turns.draft)
        places = [place for place, cpus in enumerate(line.cpus) if cpus <= free]
        places = [place for place in places if line.walltimes_s[place] <= left_s]
        weights = first.scale.weigh(
            [line.arrivals_s[place] for place in places],
            [line.intensities[place] for place in places],
        )
        limit = "the last that runs" if is_by_max else "room for that one is expected"
        for _, place in sorted(zip(weights, places, strict=True)):
            job = line.jobs[place]
            if job is first.job or line.cpus[place] > free or not turns.headroom.has_room(job):
                continue
            answer = turns.draft.place(job)
            if isinstance(answer, NotNow):
                continue
            ends = f"ends in {told_span(line.walltimes_s[place])} at the latest"
            until = f"{limit} in {told_span(left_s)}"
            why = f"fits beside job {first.job.id}, which finds no room: {ends}, {until}"
            turns.start(job, answer, why, BACKFILL)
            free = most_free(turns.draft)

    def _bound_s(self, turns: _Turns, first: Job, *, is_by_max: bool) -> float | None:
        if is_by_max:
            return latest_end_s(turns.draft.live, turns.now_s)
        shadow = find_shadow(turns.draft, first, turns.now_s)
        return None if shadow is None else shadow.at_s

    # -- what is known -------------------------------------------------------------------------

    def _late_s(self, now_s: float) -> float:
        """Jobs that arrived before this time have waited for too long."""
        return -math.inf if self.longest_wait_s is None else now_s - self.longest_wait_s

    def _overdue(self, line: Line, now_s: float) -> int:
        """How many of the line, from the first on, have waited for too long."""
        return bisect_left(line.arrivals_s, self._late_s(now_s))

    def _scale(self, line: Line, balance: Balance, platform: Platform) -> Scale:
        alpha = self._auto(balance, platform) if self.alpha == "auto" else self.alpha
        return scale_of(line.arrivals_s, line.known, balance, alpha)

    def _auto(self, balance: Balance, platform: Platform) -> float:
        """An alpha by how much reordering would help just now (see ``intensity``)."""
        larger, bandwidth = max(balance.system, balance.workload), self._bandwidth(platform)
        if bandwidth is not None:
            load = larger * max(1, len(balance.running)) / (self.auto_full * bandwidth)
            return self.auto_most * min(1.0, load)
        apart = abs(balance.system - balance.workload)
        return self.auto_most * (apart / larger if larger > 0.0 else 0.0)

    def _bandwidth(self, platform: Platform) -> float | None:
        """The bandwidth of all storage, bytes/s; None if unknown, or if operations are balanced."""
        if self.intensity == "operations":
            return None
        return self.bandwidth_bytes_per_s or platform.capacity_bytes_per_s

    def _balance(self, line: Line, running: Mapping[JobId, float | None]) -> Balance:
        by_system = self.intensity_delta == "system"
        return balance_of(running.values(), line.known, by_system=by_system)

    def _running(self, view: View, memory: Memory | None) -> dict[JobId, float | None]:
        """The intensities of jobs that hold slots; looked up if memory does not have them."""
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
        return f"{told_way(scale, intensity, self._told)}; alpha {scale.alpha:.2g}"

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

    def _by_wait(self) -> str:
        return f"it has waited for longer than {told_span(self.longest_wait_s or 0.0)}"

    def _told(self, intensity: float) -> str:
        if self.intensity == "operations":
            return f"{intensity:.0f} requests/s"
        return told_rate(intensity)


def _is_the_same(memory: Memory, view: View, running: Mapping[JobId, float | None]) -> bool:
    """Whether the decision for the same queue would be the same again."""
    then = (memory.sampled_s, memory.headroom, memory.limit, memory.running.keys())
    now = (view.sampled_s, view.io_headroom_bytes_per_s, view.start_limit, running.keys())
    return then == now


# -- the queue by arrival --------------------------------------------------------------------------


class Line:
    """The waiting jobs by arrival, in columns.

    Attributes:
        jobs: by arrival, equal ones in the order of the queue.
        arrivals_s: rising.
        walltimes_s: infinite without a walltime.
        intensities: None if unknown.
        known: the known intensities, rising.
    """

    __slots__ = ("arrivals_s", "cpus", "intensities", "jobs", "known", "walltimes_s")

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.arrivals_s: list[float] = []
        self.cpus: list[int] = []
        self.walltimes_s: list[float] = []
        self.intensities: list[float | None] = []
        self.known: list[float] = []

    def copy(self) -> Line:
        other = Line()
        for name in self.__slots__:
            setattr(other, name, getattr(self, name).copy())
        return other

    def append(self, job: Job, intensity: float | None) -> None:
        """Add a job that arrived no earlier than the last."""
        self.jobs.append(job)
        self.arrivals_s.append(job.queued_s)
        self.cpus.append(job.spec.cpus)
        walltime_s = job.spec.walltime_s
        self.walltimes_s.append(math.inf if walltime_s is None else walltime_s)
        self.intensities.append(intensity)
        if intensity is not None:
            insort(self.known, intensity)

    def remove(self, place: int) -> None:
        intensity = self.intensities[place]
        if intensity is not None:
            del self.known[bisect_left(self.known, intensity)]
        del self.jobs[place], self.arrivals_s[place], self.cpus[place]
        del self.walltimes_s[place], self.intensities[place]

    def only(self, places: list[int]) -> Line:
        """The line of the jobs at these rising places."""
        other = Line()
        for name in ("jobs", "arrivals_s", "cpus", "walltimes_s", "intensities"):
            column = getattr(self, name)
            setattr(other, name, [column[place] for place in places])
        other.known = sorted(x for x in other.intensities if x is not None)
        return other

    def place_of(self, job: Job) -> int:
        """The place of a job of the line."""
        place = bisect_left(self.arrivals_s, job.queued_s)
        while self.jobs[place].id != job.id:
            place += 1
        return place


def line_of(jobs: Iterable[Job], intensity_of: Intensity) -> Line:
    line = Line()
    for job in sorted(jobs, key=attrgetter("queued_s")):
        line.append(job, intensity_of(job))
    return line


def brought_forward(line: Line, jobs: list[Job], intensity_of: Intensity) -> Line:
    """The line of these jobs, made from an earlier line; the same object if nothing changed.

    Args:
        line: the earlier one; not changed.
        jobs: in queue order.
        intensity_of: has the same answers as when the line was made.
    """
    count = len(line.jobs)
    if jobs[:count] != line.jobs:
        return line_of(jobs, intensity_of)
    new = jobs[count:]
    if not new:
        return line
    arrivals_s = [*line.arrivals_s[-1:], *(job.queued_s for job in new)]
    if any(late < early for early, late in pairwise(arrivals_s)):
        return line_of(jobs, intensity_of)
    longer = line.copy()
    for job in new:
        longer.append(job, intensity_of(job))
    return longer


# -- one decision ----------------------------------------------------------------------------------


class _Turns:
    """One decision: jobs move from the line to the draft.

    Args:
        line: all waiting jobs; not changed.
        balance: S and W before the decision.
        late_s: jobs that arrived before this time have waited for too long.

    Attributes:
        line: the jobs that may start.
        outs: the jobs that start, in order, each with its reason if it passes earlier jobs.
    """

    def __init__(self, view: View, line: Line, balance: Balance, late_s: float) -> None:
        self.draft = view.draft()
        self.now_s = view.now_s
        self.line = line.copy()
        self.balance = balance
        self.outs: list[tuple[Job, Placed]] = []
        self._late_s = late_s
        self.headroom = Headroom(view)
        self._left_out: list[Job] = []
        self._leave_out()

    def has_room(self) -> bool:
        """Whether the smallest job of the line fits, and regulation might let it start."""
        if self.headroom.shut_by is not None:
            return False
        most = most_free(self.draft)
        return most > 0 and bool(self.line.jobs) and most >= min(self.line.cpus)

    def is_overdue(self) -> bool:
        """Whether the first of the line has waited for too long; the line must not be empty."""
        return self.line.arrivals_s[0] < self._late_s

    def refusals(self) -> dict[JobId, Reason]:
        """The reasons of the jobs that regulation does not let start."""
        told = ((job.id, self.headroom.refusal(job)) for job in self._left_out)
        return {job_id: reason for job_id, reason in told if reason is not None}

    def start(self, job: Job, partition: PartitionId, why: str, code: str = _ORDER) -> None:
        """Start the job; it stays in the line."""
        placed = self.draft.start(job, partition, Reason(code=code, text=why))
        self.outs.append((job, placed))
        self.headroom.take(job)

    def take_turn(self, place: int, partition: PartitionId, why: str) -> None:
        """Start the job at this place of the line; it counts in S from now on."""
        self.start(self.line.jobs[place], partition, why)
        self.balance = self.balance.with_running(self.line.intensities[place])
        self.line.remove(place)
        self._leave_out()

    def keep_slots(self, place: int, partition: PartitionId) -> None:
        """Keep the slots of the job at this place, which waits only for regulation."""
        job = self.line.jobs[place]
        self.draft.start(job, partition)
        self._left_out.append(job)
        self.line.remove(place)

    def _leave_out(self) -> None:
        """Take jobs that regulation does not let start from the line, except overdue ones."""
        if self.headroom.lets_all or self.headroom.shut_by is not None:
            return
        line, stay = self.line, []
        for place, job in enumerate(line.jobs):
            if line.arrivals_s[place] < self._late_s or self.headroom.has_room(job):
                stay.append(place)
            else:
                self._left_out.append(job)
        if len(stay) < len(line.jobs):
            self.line = line.only(stay)


def _without(line: Line, outs: list[tuple[Job, Placed]]) -> tuple[tuple[Placed, ...], Line]:
    """The starts, with reasons for those that pass earlier jobs, and the line without them."""
    if not outs:
        return (), line
    places = {job.id: line.place_of(job) for job, _ in outs}
    gone = sorted(places.values())
    before = {place: number for number, place in enumerate(gone)}
    starts = []
    for job, placed in outs:
        passed, why = places[job.id] - before[places[job.id]], placed.why
        if why is not None:
            told = Reason(code=why.code, text=f"{why.text}; {told_passed(passed)}")
            why = told if passed else None
        starts.append(msgspec.structs.replace(placed, why=why))
    shorter = line.copy()
    for place in reversed(gone):
        shorter.remove(place)
    return tuple(starts), shorter
