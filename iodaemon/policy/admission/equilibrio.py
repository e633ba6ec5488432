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

Needs: nothing; I/O hints and walltimes make it what it is.
Source: Özden, Tarraf, Wolf, IEEE CLUSTER 2025, and its slides.
Differs: the slides print ``|W - intensity of c|`` for delta beside a definition of ``S_c`` that is
used nowhere. By the stated aim ``S_c`` is meant, and the default; ``intensity_delta = "candidate"``
is as printed. Of the reservations the slides keep the maximum only: bound ``max``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, Literal

import msgspec

from iodaemon.core.decision import AdmissionPlan, Placed
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.prediction import Prediction
from iodaemon.core.view import Draft, NotNow, View
from iodaemon.policy.backfill import find_shadow, latest_end_s
from iodaemon.policy.intensity import Balance, Ranks, balance_of, rank

_CODE: Final = "Order"
_BY_ARRIVAL: Final = attrgetter("submitted_s")


class Line:
    """The queue by arrival, one column each; who starts leaves it.

    Attributes:
        jobs: ordered by arrival, then id.
        places: where each stood at first.
        arrivals_s, cpus, intensities: of each; an intensity that is not known is None.
    """

    def __init__(self, jobs: Iterable[Job], intensities: dict[JobId, float | None]) -> None:
        self.jobs = sorted(jobs, key=_BY_ARRIVAL)
        self.places = list(range(len(self.jobs)))
        self.arrivals_s = [job.submitted_s for job in self.jobs]
        self.cpus = [job.spec.cpus for job in self.jobs]
        self.intensities = [intensities[job.id] for job in self.jobs]

    def remove(self, index: int) -> None:
        """The job here has started."""
        for column in (self.jobs, self.places, self.arrivals_s, self.cpus, self.intensities):
            del column[index]


class Out(msgspec.Struct, frozen=True, kw_only=True):
    """A start, where the job stood in the line, and what to say if others had come earlier."""

    placed: Placed
    place: int
    why: str


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Weighted priority of arrival and I/O intensity, with backfilling.

    Attributes:
        alpha: reordering intensity, 0 (first come, first served) to 1 (I/O intensity alone).
        bound: until when a backfilled job must have ended.
        intensity_delta: what is compared with W: S as it would be, or the job's own intensity.
        intensity: what is balanced: bytes, or operations (requests).
    """

    alpha: float = 0.5
    bound: Literal["max", "easy"] = "max"
    intensity_delta: Literal["system", "candidate"] = "system"
    intensity: Literal["bytes", "operations"] = "bytes"

    def __post_init__(self) -> None:
        """Refuse what is no weight."""
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"alpha is {self.alpha:g}; it must be from 0 to 1")

    def decide(self, view: View, memory: None) -> tuple[AdmissionPlan, None]:
        """Start whose turn it is, and what may start beside the first that finds no room."""
        jobs = list(view.pending)
        line = Line(jobs, {job.id: self._intensity_of(view, job) for job in jobs})
        if not line.jobs:
            return AdmissionPlan(), memory
        draft = view.draft()
        outs: list[Out] = []
        head = self._take_turns(view, draft, line, outs)
        if head is not None:
            index, ranks, reason = head
            first = line.jobs[index]
            order = [i for i in ranks.order() if i != index]
            self._backfill(view, draft, line, order, first, outs)
            behind = Reason(code=_CODE, text=f"job {first.id} goes first, {self._by()}")
            plan = AdmissionPlan(starts=_told(outs), reasons={first.id: reason}, rest=behind)
            return plan, memory
        text = f"waits for free CPUs; who goes first is decided then, {self._by()}"
        return AdmissionPlan(starts=_told(outs), rest=Reason(code=_CODE, text=text)), memory

    def explain(self, view: View, job: Job, memory: None) -> str:  # noqa: ARG002 - as all rules
        """Where it stands in the queue, by what, and who goes first."""
        jobs = list(view.pending)
        line = Line(jobs, {other.id: self._intensity_of(view, other) for other in jobs})
        places = [place for place, other in enumerate(line.jobs) if other.id == job.id]
        if not places:
            return ""
        balance = self._balance(view, line)
        ranks = rank(line.arrivals_s, line.intensities, balance, self.alpha)
        (place,) = places
        own = line.intensities[place]
        number = ranks.order().index(place) + 1
        first = line.jobs[ranks.best]
        parts = [f"is number {number} of {len(jobs)} to start, number {place + 1} by arrival"]
        if own is None:
            parts.append(f"nothing is known of its I/O: arrival alone, {ranks.lambdas[place]:.2f}")
        else:
            parts.append(
                f"arrival {ranks.lambdas[place]:.2f} and I/O {ranks.deltas[place]:.2f} (0 is best, "
                f"1 worst) with alpha {self.alpha:g} make {ranks.weights[place]:.2f}: it does "
                f"{self._told(own)}, what runs {self._told(balance.system)} in the mean, "
                f"all jobs {self._told(balance.workload)}"
            )
        if first.id != job.id:
            parts.append(f"job {first.id} goes first, with {ranks.weights[ranks.best]:.2f}")
        answer = view.draft().place(job)
        if isinstance(answer, NotNow):
            parts.append(answer.reason.text)
        return "; ".join(parts)

    # -- the turns -----------------------------------------------------------------------------

    def _take_turns(
        self, view: View, draft: Draft, line: Line, outs: list[Out]
    ) -> tuple[int, Ranks, Reason] | None:
        """Start the first of the line again and again; returns the first that finds no room."""
        balance = self._balance(view, line)
        while line.jobs and _most_free(draft) >= min(line.cpus):
            ranks = rank(line.arrivals_s, line.intensities, balance, self.alpha)
            index = ranks.best
            job = line.jobs[index]
            answer = draft.place(job)
            if isinstance(answer, NotNow):
                return index, ranks, answer.reason
            why = self._why_its_turn(balance, ranks, index, line.intensities[index])
            placed = draft.start(job, answer)
            outs.append(Out(placed=placed, place=line.places[index], why=why))
            balance = balance.with_running(line.intensities[index])
            line.remove(index)
        return None

    def _backfill(
        self,
        view: View,
        draft: Draft,
        line: Line,
        order: list[int],
        first: Job,
        outs: list[Out],
    ) -> None:
        """Start those of the line that end before the bound, in this order."""
        bound_s = self._bound_s(view, draft, first)
        if bound_s is None:
            return
        left_s = bound_s - view.now_s
        smallest = min(line.cpus)
        free = _most_free(draft)
        for index in order:
            if line.cpus[index] > free:
                continue
            job = line.jobs[index]
            walltime_s = job.spec.walltime_s
            if walltime_s is None or walltime_s > left_s:
                continue
            answer = draft.place(job)
            if isinstance(answer, NotNow):
                continue
            placed = draft.start(job, answer)
            why = (
                f"fits beside job {first.id}, which finds no room: ends in {_span(walltime_s)} at "
                f"the latest, {self._limit()} in {_span(left_s)}"
            )
            outs.append(Out(placed=placed, place=line.places[index], why=why))
            free = _most_free(draft)
            if free < smallest:
                return

    def _bound_s(self, view: View, draft: Draft, first: Job) -> float | None:
        if self.bound == "max":
            return latest_end_s(draft.live, view.now_s)
        shadow = find_shadow(draft, first, view.now_s)
        return None if shadow is None else shadow.at_s

    # -- what is known -------------------------------------------------------------------------

    def _balance(self, view: View, line: Line) -> Balance:
        running = (self._intensity_of(view, job) for job in view.live)
        by_system = self.intensity_delta == "system"
        return balance_of(running, line.intensities, by_system=by_system)

    def _intensity_of(self, view: View, job: Job) -> float | None:
        return self._read(view.expected(job.id))

    def _read(self, expected: Prediction) -> float | None:
        if not expected.is_known:
            return None
        if self.intensity == "bytes":
            return expected.rate_bytes_per_s
        return expected.operations_per_s

    # -- words ---------------------------------------------------------------------------------

    def _why_its_turn(
        self, balance: Balance, ranks: Ranks, index: int, intensity: float | None
    ) -> str:
        if intensity is None:
            return f"nothing is known of its I/O, its arrival counts alone; alpha {self.alpha:g}"
        is_nearest = ranks.deltas[index] == 0.0
        return (
            "it takes the mean I/O intensity of the running jobs from "
            f"{self._told(balance.system)} to {self._told(balance.system_with(intensity))}, "
            f"{'nearest to the' if is_nearest else 'towards the'} "
            f"{self._told(balance.workload)} of all; alpha {self.alpha:g}"
        )

    def _by(self) -> str:
        return f"by arrival and I/O intensity (alpha {self.alpha:g})"

    def _limit(self) -> str:
        return "the last that runs" if self.bound == "max" else "room for that one is expected"

    def _told(self, intensity: float) -> str:
        if self.intensity == "operations":
            return f"{intensity:.0f} requests/s"
        return f"{intensity / 1e6:.1f} MB/s"


def _most_free(draft: Draft) -> int:
    return max((draft.slots_free(p.id) for p in draft.platform.partitions), default=0)


def _told(outs: list[Out]) -> tuple[Placed, ...]:
    """The starts; those before whom others had come say why."""
    gone = sorted(out.place for out in outs)
    before = {place: number for number, place in enumerate(gone)}
    starts = []
    for out in outs:
        passed = out.place - before[out.place]
        if not passed:
            starts.append(out.placed)
            continue
        jobs = "1 earlier job" if passed == 1 else f"{passed} earlier jobs"
        reason = Reason(code=_CODE, text=f"{out.why}; passes {jobs}")
        starts.append(msgspec.structs.replace(out.placed, why=reason))
    return tuple(starts)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120.0 else f"{math.floor(seconds / 60.0)} min"
