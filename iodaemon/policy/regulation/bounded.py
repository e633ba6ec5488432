"""Suspends on evidence, resumes what is predicted to fit, and lets the suspended take turns.

Once a timeslice, for every device, and for the operator's cap ``io_bound`` where there is one:

1. Too much: the device's size-normalised wait is above ``high_wait`` with more than
   ``least_queue`` requests in flight, for ``sustain`` slices in a row, and not already falling;
   once jobs were suspended for it, until the wait is down at the knee (twice the uncontended).
   The cap: all jobs together moved more than ``io_bound``, for ``sustain`` slices.
2. Then jobs there are suspended until the load is predicted to be what can be carried: the queue
   at the device's knee (Little's law), or the cap. Those who have stood still for the least time
   go first. At most half of the jobs that matter go at once, and the next slice shows what that
   brought; all at once where half of the queue would by that law still be too much, and the wait
   is held against a request that was seen alone, or against an arm.
3. Spared: the last job that does I/O there, jobs younger than a timeslice, jobs resumed less than
   ``dwell`` ago, jobs on other devices, jobs that move little, jobs that may not be suspended or
   whose I/O is unknown. Many that move little are a crowd where they move most of it together; they
   count for the cap, and for a device that did less than half for them of what it does for one
   request at a time, for a turn (``policy.crowd``).
4. Relief is checked: if less was moved and each request took as long as before, the device was
   not congested but is slow and parallel. What was learned is corrected and all come back.
5. A device busy with the writeback of writers suspended less than ``writeback`` ago is given
   time; nobody else is suspended for it.
6. Resume by prediction: a suspended job comes back when the wait is low and the load with the job's
   own part, as it was when the job last ran, is within the knee (or below the lower mark,
   ``low_share`` of the cap). Where next to nothing moves, or none of the jobs there runs any more,
   one comes back in any case. Where some of a crowd were taken off, the device moves clearly less
   than before, and the wait is low, one comes back too, then two, four and so on. After a resume
   that proved too much the next one waits ``retry``, doubling up to 16 times that. When a job ends
   within a slice, what it used is given on at once.
7. A device without counters in one slice is not known, and who is held for it waits; after two
   it is gone, and they come back.
8. Turns: where jobs wait and nothing else was done, the job that has run longest, for ``turn`` at
   least, changes places with the one that has waited longest.

What suspended jobs will move when they come back stays out of ``io_headroom``.

Needs: Suspend, Resume.
Source: ours. Signals and hold-offs after oomd, systemd-oomd and Fossilize (sustained and not
falling, post-action delay) and LSF (last job, young jobs, two marks); the knee after Kleinrock.
Turns are longer than a working set takes to load: on jobs that re-read files past a memory limit
turns of 1 s lost 9 % where turns of 5 s won fourfold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

import msgspec

from iodaemon.core.congestion import KNEE_WAIT
from iodaemon.core.decision import RegulationPlan, Resume, Suspend
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.view import View
from iodaemon.policy.budget import (
    CAP,
    GONE_SLICES,
    Budget,
    Marks,
    Place,
    after_suspension,
    between_samples,
    cap_budget,
    device_budget,
    is_concerned,
    with_expected,
    without_counters,
)
from iodaemon.policy.turn import (
    A_SLICE,
    Loads,
    Moves,
    choose_resumes,
    choose_turns,
    choose_victims,
    free_from_gone,
    table,
)

_EMPTY: Mapping[Any, Any] = MappingProxyType({})
_DEFAULT_QUEUE: Final = 1.0
"""Requests in flight of a job that was never seen to run here: a synchronous reader has one."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """From one slice to the next.

    Attributes:
        at_s: when it was made.
        places: by device, and ``io_bound``.
        budgets: how each place stood at that time, before anything was decided.
        returned: who came back since then.
        loads: each job's part of each place's load when it last ran for a whole slice.
        causes: the place that each suspended job is held for.
    """

    at_s: float
    places: Mapping[str, Place] = _EMPTY
    budgets: Mapping[str, Budget] = _EMPTY
    returned: frozenset[JobId] = frozenset()
    loads: Loads = _EMPTY
    causes: Mapping[JobId, str] = _EMPTY


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Regulation with judgement.

    Attributes:
        timeslice_s: how often it samples and decides, s.
        io_bound_bytes_per_s: the operator's cap on what all jobs move. None: evidence alone.
        low_share: lower mark: resume only below this part of the cap, above 0 and at most 1.
        high_wait: normalised wait from which a device is past what it can carry, above that at
            the knee (2), down to which jobs are taken off.
        least_queue: requests in flight below which it never is.
        sustain: slices in a row that it takes.
        dwell_s: a resumed job runs for this long at least, s, at most ``turn_s``.
        turn_s: a turn lasts this long at least, s, a timeslice or more; longer than a working
            set takes to load.
        retry_s: first wait after a resume that proved too much, s.
        writeback_s: how long the writeback of suspended writers is waited for, s.
    """

    needs: ClassVar[frozenset[type]] = frozenset({Suspend, Resume})

    timeslice_s: float = 1.0
    io_bound_bytes_per_s: float | None = None
    low_share: float = 0.7
    high_wait: float = 3.0
    least_queue: float = 2.0
    sustain: int = 2
    dwell_s: float = 5.0
    turn_s: float = 10.0
    retry_s: float = 15.0
    writeback_s: float = 35.0

    def __post_init__(self) -> None:
        """Refuse parameters that mean nothing or contradict each other."""
        for name in ("timeslice_s", "least_queue", "sustain", "turn_s", "retry_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                text = "write a finite number above 0"
                raise ValueError(f"{name} is {getattr(self, name):g}; {text}")
        for name in ("dwell_s", "writeback_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                text = "write a finite number, 0 or above"
                raise ValueError(f"{name} is {getattr(self, name):g}; {text}")
        bound = self.io_bound_bytes_per_s
        if bound is not None and not 0.0 < bound < math.inf:
            text = "write a finite number above 0, or leave it out to go by evidence alone"
            raise ValueError(f"io_bound_bytes_per_s is {bound:g}; {text}")
        self._check_marks()
        self._check_turn()

    def _check_marks(self) -> None:
        if not KNEE_WAIT < self.high_wait < math.inf:
            raise ValueError(
                f"high_wait is {self.high_wait:g}: the upper mark must be above the lower, "
                f"{KNEE_WAIT:g} times a lone request's; write a finite number above that"
            )
        if not 0.0 < self.low_share <= 1.0:
            raise ValueError(
                f"low_share is {self.low_share:g}: the lower mark is above the higher; write a "
                "part of io_bound above 0 and at most 1"
            )

    def _check_turn(self) -> None:
        if self.turn_s < self.timeslice_s:
            raise ValueError(
                f"turn_s is {self.turn_s:g} s, shorter than timeslice_s, {self.timeslice_s:g} s, "
                "within which nothing is decided; lengthen turn_s or shorten timeslice_s"
            )
        if self.dwell_s > self.turn_s:
            raise ValueError(
                f"dwell_s is {self.dwell_s:g} s, longer than turn_s, {self.turn_s:g} s: no turn "
                "could end in time; lengthen turn_s or shorten dwell_s"
            )

    def decide(self, view: View, memory: Memory | None) -> tuple[RegulationPlan, Memory | None]:
        """Suspend on evidence, or resume by prediction, or take turns."""
        memory = memory or Memory(at_s=view.now_s - self.timeslice_s)
        places, budgets = self._look(view, memory)
        loads = _remember(view, memory, budgets)
        causes = _kept(view, memory.causes)
        moves = self._suspend(view, places, budgets, loads)
        if not moves:
            moves = choose_resumes(
                view,
                _expected(view, memory, budgets),
                loads,
                causes=causes,
                least_s=A_SLICE * self.timeslice_s,
            )
        if not moves:
            moves = choose_turns(
                view,
                budgets,
                loads,
                causes=causes,
                protection=self._protection(view),
                turn_s=self.turn_s,
            )
        moves = moves.and_then(free_from_gone(view, _gone(places), loads, causes))
        return self._plan(view, budgets, moves), Memory(
            at_s=view.now_s,
            places=_with_resumes(view, places, moves.resumes),
            budgets=budgets,
            returned=frozenset(moves.resumes),
            loads=loads,
            causes={**causes, **moves.causes},
        )

    def refill(self, view: View, memory: Memory | None) -> tuple[RegulationPlan, Memory | None]:
        """Resume what is predicted to fit where a job has just ended."""
        if memory is None:
            return RegulationPlan(), None
        returned = memory.returned.difference(job.id for job in view.suspended)
        budgets = {
            name: _without_ended(view, budget, returned, memory.loads)
            for name, budget in memory.budgets.items()
        }
        moves = choose_resumes(view, budgets, memory.loads, causes=memory.causes, least_s=0.0)
        places = _with_resumes(view, memory.places, moves.resumes)
        returned |= frozenset(moves.resumes)
        return (
            self._plan(view, budgets, moves),
            msgspec.structs.replace(memory, places=places, returned=returned),
        )

    def _plan(self, view: View, budgets: Mapping[str, Budget], moves: Moves) -> RegulationPlan:
        headroom = self._headroom(view, budgets.get(CAP), moves.suspends, moves.resumes)
        return RegulationPlan(
            suspends=tuple(moves.suspends),
            resumes=tuple(moves.resumes),
            reasons={**moves.resumes, **moves.suspends},
            evidence=moves.evidence,
            io_headroom_bytes_per_s=headroom,
        )

    def _suspend(
        self,
        view: View,
        places: dict[str, Place],
        budgets: Mapping[str, Budget],
        loads: Loads,
    ) -> Moves:
        """Where there is too much jobs are taken off; what is remembered there is changed."""
        moves = Moves()
        for name, budget in budgets.items():
            if not budget.is_exceeded:
                continue
            protection = self._protection(view)
            victims, verdicts = choose_victims(view, budget, protection, moves.suspends)
            if not victims:
                continue
            places[name] = after_suspension(
                places[name], budget, view, retry_s=self.retry_s, dwell_s=self.dwell_s
            )
            more = Moves(
                suspends={job.id: budget.reason(job.id) for job in victims},
                causes={job.id: name for job in victims},
                evidence=(table(view, budget, verdicts, loads),),
            )
            moves = moves.and_then(more)
        return moves

    def _look(self, view: View, memory: Memory) -> tuple[dict[str, Place], dict[str, Budget]]:
        """Every device and the cap: what is remembered of it from now on, and how it stands."""
        places: dict[str, Place] = {}
        budgets: dict[str, Budget] = {}
        interval_s = max(1e-3, view.now_s - memory.at_s)
        marks = Marks(
            high_wait=self.high_wait,
            least_queue=self.least_queue,
            sustain=self.sustain,
            writeback_s=self.writeback_s,
            crowd_slices=math.ceil(self.turn_s / self.timeslice_s),
        )
        for device in view.platform.devices:
            place = memory.places.get(device.id, Place())
            if device.id in view.devices:
                places[device.id], budgets[device.id] = device_budget(
                    view, device, place, interval_s, marks
                )
            else:
                places[device.id] = without_counters(place)
        if self.io_bound_bytes_per_s is not None:
            places[CAP], budgets[CAP] = cap_budget(
                view,
                memory.places.get(CAP, Place()),
                self.io_bound_bytes_per_s,
                low_share=self.low_share,
                sustain=self.sustain,
            )
        return places, budgets

    def _protection(self, view: View) -> Mapping[JobId, str]:
        """Why a running job may not be suspended now; jobs that may are not in it."""
        reasons = {job.id: self._protected(view, job) for job in view.running}
        return {job_id: why for job_id, why in reasons.items() if why}

    def _protected(self, view: View, job: Job) -> str:
        if job.spec.no_suspend:
            return "asked not to be suspended"
        if job.is_immune(view.now_s):
            return "stood still for long and is left alone for now"
        if view.bandwidth(job.id) is None:
            return "its I/O is unknown"
        if job.started_s is None or view.now_s - job.started_s < self.timeslice_s:
            return "younger than a timeslice"
        if job.suspended_io_s > 0.0 and view.now_s - job.since_s < self.dwell_s:
            return "was resumed a moment ago"
        return ""

    def _headroom(
        self,
        view: View,
        cap: Budget | None,
        suspends: Mapping[JobId, Reason],
        resumes: Mapping[JobId, Reason],
    ) -> float | None:
        """What admission may still add: nothing while others wait for a device to recover."""
        held = [job for job in view.suspended if job.id not in resumes]
        if cap is None:
            return 0.0 if held or suspends else None
        promised = [view.predicted(job.id).rate_bytes_per_s for job in held]
        promised += [view.predicted(job_id).rate_bytes_per_s for job_id in resumes]
        staying = cap.load - sum(cap.parts.get(job_id, 0.0) for job_id in suspends)
        promised += [cap.parts.get(job_id, 0.0) for job_id in suspends]
        return max(0.0, cap.fits - staying - sum(promised))


def _kept(view: View, causes: Mapping[JobId, str]) -> dict[JobId, str]:
    """What those who are still held are held for."""
    held = {job.id for job in view.suspended}
    return {job_id: name for job_id, name in causes.items() if job_id in held}


def _gone(places: Mapping[str, Place]) -> dict[str, int]:
    """The devices that are gone, and for how many slices."""
    absent = {name: place.absent_slices for name, place in places.items()}
    return {name: slices for name, slices in absent.items() if slices >= GONE_SLICES}


def _with_resumes(
    view: View, places: Mapping[str, Place], resumes: Iterable[JobId]
) -> Mapping[str, Place]:
    """The places, those marked to which a job came back just now."""
    marked = dict(places)
    for job in map(view.job, resumes):
        for name in places:
            if is_concerned(view, job, name):
                marked[name] = marked[name].with_return(view.now_s)
    return marked


def _without_ended(view: View, budget: Budget, returned: Iterable[JobId], loads: Loads) -> Budget:
    """How the place stands now, within the slice."""
    running = [job.id for job in view.running if is_concerned(view, job, budget.name)]
    back = _parts(loads, budget.name, [job_id for job_id in returned if job_id in running])
    return between_samples(budget, running, back)


def _expected(view: View, memory: Memory, budgets: Mapping[str, Budget]) -> dict[str, Budget]:
    """The slice shows too little of a job that came back late in it: its part when it last ran."""
    late_s = memory.at_s + (1.0 - A_SLICE) * (view.now_s - memory.at_s)
    late = [job for job in view.running if job.id in memory.returned and job.since_s > late_s]
    expected: dict[str, Budget] = {}
    for name, budget in budgets.items():
        here = [job.id for job in late if is_concerned(view, job, name)]
        expected[name] = with_expected(budget, _parts(memory.loads, name, here))
    return expected


def _parts(loads: Loads, name: str, jobs: Iterable[JobId]) -> dict[JobId, float]:
    return {job_id: loads.get(job_id, {}).get(name, 0.0) for job_id in jobs}


def _remember(
    view: View, memory: Memory, budgets: Mapping[str, Budget]
) -> dict[JobId, Mapping[str, float]]:
    """Each live job's part of each load when it last ran for a whole slice."""
    loads: dict[JobId, Mapping[str, float]] = {}
    for job in view.live:
        ran_whole = job.since_s <= memory.at_s and not job.wants_freeze
        parts = {n: b.parts[job.id] for n, b in budgets.items() if job.id in b.parts}
        if ran_whole and parts:
            loads[job.id] = parts
        elif job.id in memory.loads:
            loads[job.id] = memory.loads[job.id]
        elif job.io_hold:
            loads[job.id] = _unseen(view, job, budgets)
    return loads


def _unseen(view: View, job: Job, budgets: Iterable[str]) -> Mapping[str, float]:
    rate = view.predicted(job.id).rate_bytes_per_s
    return {name: rate if name == CAP else _DEFAULT_QUEUE for name in budgets}
