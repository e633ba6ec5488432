"""One heavy job at a time does I/O on a device; the others take their turn in a chosen order.

Idea: a device that serves one job at a time serves it at full speed, and the order in which jobs
are served decides how evenly the delay falls. A job may tell of its I/O phases (``iod phase``): it
then waits for its turn before one and gives it back after it. Of a job that does not tell, only
what it moves is seen: it stands still while another has the turn.

1. A device has one token. A job that tells of its I/O needs the tokens of all devices (it asks
   before it opens its files), any other those of the devices its files lie on, all if unknown.
2. Whoever tells of a phase claims its turn when it asks. A silent job is heavy when it moved more
   than ``heavy`` in a timeslice; one that was heavy without the turn for ``heavy_slices`` in a
   row claims it and is suspended until it has it (a program that is loaded is heavy for a moment,
   too). Light jobs are left alone.
3. A free token goes to the first claim in ``order``, at once when a phase is asked for or over.
   An order that needs to know what was not told (the length of a phase: ``--expect``; what is
   left: ``--time``; CPU time) puts such jobs behind the others, first come, first served.
4. The turn is over when the job says so, ends, or is suspended by a person; for a job that tells,
   after ``idle`` without any I/O; for a silent one after ``quiet_slices`` in which it was light.
   Whoever does I/O after that is a silent job. A turn is never cut short otherwise.
5. Left alone: jobs that may not be suspended, are immune, younger than a timeslice, or whose I/O
   is unknown; they neither need nor have the turn. The last running job is not suspended.
6. A claim gets all devices that it needs together or not at all. Whoever is before another in the
   order is not overtaken by it on a device that both need, so that in an order by the time of
   asking nobody waits for ever; a device that nobody before it needs is not kept free.

Cost O(n log n) for n live jobs.
Needs: Suspend, Resume, Grant.
Source: Carretero, Jeannot, Pallez, Singh, Vidal, ICS 2020, sections 3 and 5.1 (exclusive access,
list orders; the role of CLARISSE).
Differs: jobs that say nothing take part; claims for several devices; elapsed time counts from the
job's start; contention-free time of the work done is CPU time per CPU plus bytes over what a lone
job gets; remaining work is the rest of the walltime.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

import msgspec

from iodaemon.core.decision import Evidence, Grant, RegulationPlan, Resume, Suspend, Weighed
from iodaemon.core.job import Job, JobId, JobState, Reason
from iodaemon.core.platform import DeviceId
from iodaemon.core.state import TURN
from iodaemon.core.view import View
from iodaemon.policy.list_order import ORDERS

_EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})
ANY: Final = DeviceId("any device")
"""The one token of a machine whose devices are not known."""
_NOMINAL_BYTES_PER_S: Final = 100e6
"""Turns bytes into seconds until a device was seen at work; most orders ask for no more than the
relation of two such times."""

_ASKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "longest_io": "phase_s",
        "shortest_io": "phase_s",
        "shortest_remaining": "remaining_s",
        "longest_remaining": "remaining_s",
        "stretch_oriented": "ideal_done_s",
    }
)
"""The field of a claim that an order needs; the other fields are always known."""
_NO_IO_BYTES_PER_S: Final = 64.0 * 1024
"""What log lines and the like come to."""
_STALL_RATIO: Final = 0.01
"""A job that waited for I/O for more than this part of a slice did some, whatever it moved: who
waits until its data is on the disk moves nothing."""

_READING_SHARE: Final = 0.1
"""Of a timeslice: what was moved so shortly before its beginning may be counted in it."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A job that wants its turn, with the numbers of ``policy.list_order``; None if unknown.

    Attributes:
        devices: what it needs, at least one.
    """

    job_id: JobId
    devices: tuple[DeviceId, ...]
    requested_s: float
    phase_s: float | None = None
    remaining_s: float | None = None
    io_done_s: float = 0.0
    elapsed_s: float = 0.0
    ideal_done_s: float | None = None


class Handed(msgspec.Struct, frozen=True, kw_only=True):
    """How the devices are handed out.

    Attributes:
        winners: jobs that get their turn, in order.
        behind: for each other claim, the job that has, or is first to get, a device it needs.
        places: for each other claim, how many waiting jobs are before it.
    """

    winners: tuple[JobId, ...]
    behind: Mapping[JobId, JobId]
    places: Mapping[JobId, int]


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has the turn.

    Attributes:
        since_s: since when.
        speaks: whether it told of the phase.
        light_slices: of a silent job: how many slices in a row it was light.
        still_since_s: since when it has done no I/O. None if it does some.
        stall_s: its I/O stall time at the last sample.
    """

    since_s: float
    speaks: bool
    light_slices: int = 0
    still_since_s: float | None = None
    stall_s: float | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """From one decision to the next.

    Attributes:
        since_s: the first decision of the rule.
        sampled_s: the last sample that was used.
        held: jobs that have the turn.
        left_s: jobs that had it recently, with the end of their turn.
        asked_s: since when each silent job without the turn has wanted it.
        strayed: how many slices in a row a job was heavy without the turn.
        peak_bytes_per_s: the highest rate seen of a device.
    """

    since_s: float | None = None
    sampled_s: float | None = None
    held: Mapping[JobId, Held] = _EMPTY
    left_s: Mapping[JobId, float] = _EMPTY
    asked_s: Mapping[JobId, float] = _EMPTY
    strayed: Mapping[JobId, int] = _EMPTY
    peak_bytes_per_s: float = 0.0


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The I/O token.

    Attributes:
        timeslice_s: how often it samples and looks at silent jobs, s.
        order: who is next, by a name of ``policy/list_order.py``.
        heavy_bytes_per_s: a silent job that moved more than this is heavy.
        heavy_slices: so many heavy slices in a row make it claim its turn.
        quiet_slices: after so many light slices in a row a silent job's turn is over.
        idle_s: after so long without any I/O the turn of a job that told of it is over.
    """

    needs: ClassVar[frozenset[type]] = frozenset({Suspend, Resume, Grant})
    hears_phases: ClassVar[bool] = True

    timeslice_s: float = 1.0
    order: str = "fifo"
    heavy_bytes_per_s: float = 10e6
    heavy_slices: int = 2
    quiet_slices: int = 3
    idle_s: float = 60.0

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order is {self.order!r}; it must be one of {', '.join(ORDERS)}")
        for name in ("timeslice_s", "heavy_bytes_per_s", "heavy_slices", "quiet_slices", "idle_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name):g}; it must be above 0")

    def decide(self, view: View, memory: Memory | None) -> tuple[RegulationPlan, Memory | None]:
        look = _Look(self, view, memory or Memory())
        holders = look.take_back()
        ranked = rank(look.claims(), self.order, view.now_s)
        handed = hand_out(holders, ranked)
        look.give_out(handed)
        look.hold(handed)
        return look.plan(), look.remember(ranked, handed)


class _Look:
    """One decision; the attributes hold what is decided so far."""

    def __init__(self, rule: Rule, view: View, memory: Memory) -> None:
        self.rule = rule
        self.view = view
        self.memory = memory
        self.jobs = {job.id: job for job in view.live}
        self.is_fresh = view.sampled_s is not None and view.sampled_s != memory.sampled_s
        moved = (load.total_bytes_per_s for load in view.devices.values())
        self.peak = max([memory.peak_bytes_per_s, *moved])
        self.strayed = self._strayed() if self.is_fresh else memory.strayed
        self.held: dict[JobId, Held] = {}
        self.grants: list[JobId] = []
        self.revokes: list[JobId] = []
        self.resumes: list[JobId] = []
        self.suspends: list[JobId] = []
        self.reasons: dict[JobId, Reason] = {}

    @property
    def slice_began_s(self) -> float:
        """The beginning of the slice that ended with the last sample."""
        ended_s = self.view.now_s if self.view.sampled_s is None else self.view.sampled_s
        before_s = self.memory.sampled_s if self.is_fresh else None
        return ended_s - self.rule.timeslice_s if before_s is None else before_s

    @property
    def _moved_from_s(self) -> float:
        """Bytes moved from then on may be counted in the last slice."""
        return self.slice_began_s - _READING_SHARE * self.rule.timeslice_s

    # -- those who have it -------------------------------------------------------------------

    def take_back(self) -> dict[DeviceId, JobId]:
        """End the turns that are over; return the holder of each device."""
        holders: dict[DeviceId, JobId] = {}
        had_it = [*self._told_holders(), *self._silent_holders()]
        for job, before in sorted(had_it, key=self._seniority):
            held = self._observed(job, before)
            devices = devices_of(self.view, job)
            others = [holders[device] for device in devices if device in holders]
            is_over = self._is_over(held)
            if not (others or job.wants_freeze or is_over):
                self.held[job.id] = held
                holders |= dict.fromkeys(devices, job.id)
            elif held.speaks:
                self.revokes.append(job.id)
                still = f"no I/O for {self.rule.idle_s:g} s" if is_over else "it stands still"
                why = f"job {others[0]} has it" if others else still
                self.reasons[job.id] = Reason(code=TURN, text=f"its turn is over: {why}")
        return holders

    def _seniority(self, each: tuple[Job, Held]) -> tuple[bool, float, JobId]:
        """Sort key: the first holder first; a job that the guard resumed takes no turn away."""
        job, held = each
        return held.speaks and job.is_immune(self.view.now_s), held.since_s, job.id

    def _told_holders(self) -> list[tuple[Job, Held]]:
        """Holders that told of their phase, from the jobs' records, which survive a restart."""
        told = []
        for job in self.jobs.values():
            if job.phase is not None and job.phase.granted_s is not None:
                held = self.memory.held.get(job.id)
                if held is None or not held.speaks:
                    held = Held(since_s=job.phase.granted_s, speaks=True)
                told.append((job, held))
        return told

    def _silent_holders(self) -> list[tuple[Job, Held]]:
        """Silent holders, from memory; a job that has told of a phase since must ask for it."""
        return [
            (self.jobs[job_id], held)
            for job_id, held in sorted(self.memory.held.items())
            if not held.speaks
            and job_id in self.jobs
            and self.jobs[job_id].phase is None
            and self.jobs[job_id].state in (JobState.RUNNING, JobState.SUSPENDED_IO)
        ]

    def _observed(self, job: Job, held: Held) -> Held:
        """The holder after a slice in which it had the turn from beginning to end."""
        if not self.is_fresh or held.since_s > self.slice_began_s:
            return held
        counters, rate = self.view.counters(job.id), self._rate(job)
        stall_s = None if counters is None else counters.io_stall_s
        waited_s = (stall_s or 0.0) - (held.stall_s if held.stall_s is not None else stall_s or 0.0)
        least_s = _STALL_RATIO * self.rule.timeslice_s
        is_still = rate is not None and rate <= _NO_IO_BYTES_PER_S and waited_s <= least_s
        is_light = rate is not None and rate <= self.rule.heavy_bytes_per_s
        still_since_s = held.still_since_s if held.still_since_s is not None else self.slice_began_s
        return Held(
            since_s=held.since_s,
            speaks=held.speaks,
            light_slices=held.light_slices + 1 if is_light else 0,
            still_since_s=still_since_s if is_still else None,
            stall_s=stall_s,
        )

    def _is_over(self, held: Held) -> bool:
        if not held.speaks:
            return held.light_slices >= self.rule.quiet_slices
        still_since_s = held.still_since_s
        return still_since_s is not None and self.view.now_s - still_since_s >= self.rule.idle_s

    # -- those who want it -------------------------------------------------------------------

    def claims(self) -> list[Claim]:
        """The claims of all jobs that wait for their turn, and of heavy jobs without it.

        A job that a user holds claims nothing; it keeps its place.
        """
        speed = lone_bytes_per_s(self.view, self.peak)
        found = []
        for job in self.jobs.values():
            if job.id in self.held or job.user_hold:
                continue
            if job.waits_for_turn or job.io_hold or self._is_intruder(job):
                claim = claim_of(
                    self.view, job, requested_s=self._requested_s(job), bytes_per_s=speed
                )
                if claim.devices:
                    found.append(claim)
                elif job.io_hold:  # its files lie on no device any more
                    self.resumes.append(job.id)
        return found

    def _requested_s(self, job: Job) -> float:
        if job.phase is not None:
            return job.phase.asked_s
        since_s = self.view.now_s if job.io_held_since_s is None else job.io_held_since_s
        return self.memory.asked_s.get(job.id, since_s)

    def _is_intruder(self, job: Job) -> bool:
        """Whether the job was heavy without the turn for so many slices that it is suspended."""
        return self.is_fresh and self.strayed.get(job.id, 0) >= self.rule.heavy_slices

    def _strayed(self) -> dict[JobId, int]:
        """For how many slices in a row each job was heavy without the turn.

        The rule's first slice does not count: the holders of the turn in it are unknown.
        """
        since_s = self.memory.since_s
        if since_s is None or self._moved_from_s < since_s:
            return {}
        before = self.memory.strayed
        return {i: before.get(i, 0) + 1 for i, job in self.jobs.items() if self._strays(job)}

    def _strays(self, job: Job) -> bool:
        """Whether the job was heavy in a slice without the turn, and may be suspended."""
        rate = self._rate(job)
        if rate is None or rate <= self.rule.heavy_bytes_per_s:
            return False
        if job.state is not JobState.RUNNING or job.wants_freeze or job.has_turn:
            return False
        now_s, since_s = self.view.now_s, self._moved_from_s
        was_told = job.phase is not None and job.phase.asked_s >= since_s
        had_it = job.id in self.memory.held or self.memory.left_s.get(job.id, -1.0) >= since_s
        is_young = job.started_s is None or now_s - job.started_s < self.rule.timeslice_s
        if was_told or had_it or is_young:
            return False
        return not (job.spec.no_suspend or job.is_immune(now_s))

    def _rate(self, job: Job) -> float | None:
        bandwidth = self.view.bandwidth(job.id)
        return None if bandwidth is None else bandwidth.total_bytes_per_s

    # -- what becomes of them ----------------------------------------------------------------

    def give_out(self, handed: Handed) -> None:
        for job_id in handed.winners:
            job = self.jobs[job_id]
            self.held[job_id] = Held(since_s=self.view.now_s, speaks=job.phase is not None)
            if job.waits_for_turn:
                self.grants.append(job_id)
            if job.io_hold:
                self.resumes.append(job_id)
                self.reasons[job_id] = Reason(code=TURN, text="it is its turn to do I/O")

    def hold(self, handed: Handed) -> None:
        """Let the other claims wait, and suspend heavy jobs among them."""
        going_on = sum(1 for _ in self.view.running)
        for job_id, other in handed.behind.items():
            job = self.jobs[job_id]
            why = who_has_it(handed, job_id, has_it=other in self.held)
            if job.waits_for_turn:
                text = f"waits for its turn to do I/O: {why}"
                self.reasons[job_id] = Reason(code=TURN, text=text)
            if self._is_intruder(job) and going_on > 1:
                going_on -= 1
                self.suspends.append(job_id)
                if not job.waits_for_turn:
                    moved = f"moved {(self._rate(job) or 0.0) / 1e6:.1f} MB/s out of its turn"
                    self.reasons[job_id] = Reason(code=TURN, text=f"{moved}: {why}")

    def plan(self) -> RegulationPlan:
        return RegulationPlan(
            suspends=tuple(self.suspends),
            resumes=tuple(self.resumes),
            grants=tuple(self.grants),
            revokes=tuple(self.revokes),
            reasons=self.reasons,
            evidence=(self._evidence(),) if self.suspends or self.resumes else (),
        )

    def _evidence(self) -> Evidence:
        rows = tuple(self._weighed(job) for job in self.jobs.values())
        strayed = sum(row.load for row in rows if row.verdict == "suspend")
        return Evidence(
            at_s=self.view.now_s,
            signal="turn to do I/O",
            quantity="bandwidth",
            value=strayed,
            threshold=self.rule.heavy_bytes_per_s,
            load=strayed,
            allowed=self.rule.heavy_bytes_per_s,
            fits=None,
            total_bytes_per_s=sum(row.load for row in rows),
            jobs=rows,
        )

    def _weighed(self, job: Job) -> Weighed:
        """The job's row in the evidence: what becomes of it, and why."""
        reason = self.reasons.get(job.id)
        verdict, why = "spared", "light, or not to be suspended"
        if job.id in self.suspends or job.id in self.resumes:
            verdict = "suspend" if job.id in self.suspends else "resume"
            why = "" if reason is None else reason.text
        elif job.id in self.held:
            verdict, why = "runs", "has the turn"
        elif job.io_hold or job.waits_for_turn:
            verdict, why = "waits", "for its turn"
        rate = self._rate(job)
        return Weighed(
            job_id=job.id, rate_bytes_per_s=rate, load=rate or 0.0, verdict=verdict, why=why
        )

    def remember(self, ranked: Iterable[Claim], handed: Handed) -> Memory:
        now_s = self.view.now_s
        recent_s = now_s - 3.0 * self.rule.timeslice_s
        left_s = {i: s for i, s in self.memory.left_s.items() if s >= recent_s}
        left_s |= {i: now_s for i in self.memory.held if i not in self.held and i in self.jobs}
        return Memory(
            since_s=now_s if self.memory.since_s is None else self.memory.since_s,
            sampled_s=self.view.sampled_s,
            held=self.held,
            left_s=left_s,
            asked_s={
                claim.job_id: claim.requested_s
                for claim in ranked
                if claim.job_id in handed.behind and self.jobs[claim.job_id].phase is None
            },
            strayed=self.strayed,
            peak_bytes_per_s=self.peak,
        )


# -- claims ----------------------------------------------------------------------------------------


def rank(claims: Iterable[Claim], order: str, now_s: float) -> list[Claim]:
    """The claims in this order; claims with too little known come last, by time of request."""
    return sorted(claims, key=lambda claim: _key(claim, order, now_s))


def hand_out(holders: Mapping[DeviceId, JobId], ranked: Sequence[Claim]) -> Handed:
    """Give each device that is free to the first claim for it.

    Args:
        ranked: the claims, the first one first.
    """
    taken = dict(holders)
    winners: list[JobId] = []
    behind: dict[JobId, JobId] = {}
    places: dict[JobId, int] = {}
    for claim in ranked:
        others = [taken[device] for device in claim.devices if device in taken]
        if others:
            places[claim.job_id] = len(places)
            behind[claim.job_id] = others[0]
        else:
            winners.append(claim.job_id)
        for device in claim.devices:
            taken.setdefault(device, claim.job_id)
    return Handed(winners=tuple(winners), behind=behind, places=places)


def who_has_it(handed: Handed, job_id: JobId, *, has_it: bool) -> str:
    """The job behind which a claim waits, in words.

    Args:
        has_it: whether that job has its turn. If False, it waits as well.
    """
    other = handed.behind[job_id]
    before = handed.places[job_id] - (0 if has_it else 1)
    text = f"job {other} has it" if has_it else f"job {other} is before it"
    return f"{text}, {before} more before it" if before > 0 else text


def devices_of(view: View, job: Job) -> tuple[DeviceId, ...]:
    """The devices whose tokens the job needs; empty for one whose files lie on none of them.

    Where that is not known it is all of them; so it is for a job that tells of its I/O: it asks
    before it opens its files.
    """
    known = tuple(device.id for device in view.platform.devices) or (ANY,)
    counters = view.counters(job.id)
    if job.phase is not None or counters is None or counters.devices is None or known == (ANY,):
        return known
    return tuple(device for device in known if device in counters.devices)


def claim_of(view: View, job: Job, *, requested_s: float, bytes_per_s: float) -> Claim:
    """The claim of a job, with what is known of it.

    Args:
        requested_s: since when it wants its turn.
        bytes_per_s: the rate of a lone job: turns bytes into seconds of I/O.
    """
    counters = view.counters(job.id)
    moved = (0, 0) if counters is None else (counters.read_bytes or 0, counters.written_bytes or 0)
    io_done_s = sum(moved) / bytes_per_s
    cpu_s = None if counters is None else counters.cpu_s
    expected = None if job.phase is None else job.phase.expect_bytes
    walltime_s = job.spec.walltime_s
    return Claim(
        job_id=job.id,
        devices=devices_of(view, job),
        requested_s=requested_s,
        phase_s=None if expected is None else expected / bytes_per_s,
        remaining_s=None if walltime_s is None else walltime_s - job.run_s_at(view.now_s),
        io_done_s=io_done_s,
        elapsed_s=0.0 if job.started_s is None else max(0.0, view.now_s - job.started_s),
        ideal_done_s=None if cpu_s is None else cpu_s / job.spec.cpus + io_done_s,
    )


def lone_bytes_per_s(view: View, peak: float) -> float:
    """The rate of a lone job: the highest capacity of a device, else the highest rate seen."""
    capacities = [device.capacity_bytes_per_s or 0.0 for device in view.platform.devices]
    return max(capacities, default=0.0) or peak or _NOMINAL_BYTES_PER_S


def _key(claim: Claim, order: str, now_s: float) -> tuple[bool, float, float, int]:
    needed = _ASKS.get(order)
    if needed is not None and getattr(claim, needed) is None:
        return True, claim.requested_s, claim.requested_s, claim.job_id
    key = ORDERS[order](
        now_s,
        claim.requested_s,
        claim.phase_s or 0.0,
        claim.remaining_s or 0.0,
        claim.io_done_s,
        claim.elapsed_s,
        claim.ideal_done_s or 0.0,
        claim.job_id,
    )
    return False, key, claim.requested_s, claim.job_id
