"""One decision of the rule ``storage_aware``: who starts, on which tier, what the head keeps."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Final

import msgspec

from iodaemon.core.decision import AdmissionPlan, Placed
from iodaemon.core.job import Job, JobId, Reason, TierName
from iodaemon.core.platform import PartitionId
from iodaemon.core.stock import NO_SPACE, NO_SPACE_AT_ALL
from iodaemon.core.view import NO_CORES, NotNow, View
from iodaemon.core.words import told_bytes
from iodaemon.policy.backfill import BACKFILL, expected_end_s, most_free
from iodaemon.policy.bandwidth import FOR_STORAGE, Headroom
from iodaemon.policy.prospect import NEVER, End, Prospect, ends_of
from iodaemon.policy.staging import Option, Wish, Wishes
from iodaemon.policy.wording import told_cpus, told_passed, told_span

ROUNDING_S: Final = 1e-3
"""By which a difference of times may be wrong; who is nearly in time is looked at again."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """How and when a job is to start, if nothing else does.

    Attributes:
        option: how.
        moment: of the prospect; 0: now.
        at_s: when.
        partition: where.
    """

    option: Option
    moment: int
    at_s: float
    partition: PartitionId


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first job that does not start.

    Attributes:
        job: which.
        reason: what it lacks.
        planned: what is kept for it. None: nothing can be, and nobody overtakes it.
        is_promised: its time is a promise; otherwise it has room, and that is kept from now on.
        stops_at_once: its time reckons with jobs that are to end and have not.
        is_limited: it waits for regulation to let more jobs start.
    """

    job: Job
    reason: Reason
    planned: Planned | None
    is_promised: bool
    stops_at_once: bool = False
    is_limited: bool = False


class Spare(msgspec.Struct, frozen=True, kw_only=True):
    """What is left beside the head when it is to start, for those that run on.

    Attributes:
        prospect: by which it is to.
        moment: of that.
        most: slots of one partition.
        aside: slots of its partition that are free now and kept for it.
        space: bytes of its tier; infinite where it needs none.
    """

    prospect: Prospect
    moment: int
    most: int
    aside: int
    space: float


def plan_for(prospect: Prospect, wish: Wish) -> Planned | None:
    """The way that ends the job first, and when it begins; None: there is none, or never."""
    slots = prospect.slots_from(wish.spec.cpus)
    if slots == NEVER:
        return None
    option, moment = _choose(prospect, wish, slots)
    if option is None:
        return None
    return Planned(
        option=option,
        moment=moment,
        at_s=prospect.times_s[moment],
        partition=prospect.partition_at(moment),
    )


def _choose(prospect: Prospect, wish: Wish, slots: int) -> tuple[Option | None, int]:
    """The way that ends the job first, and the moment at which it begins.

    Args:
        prospect: what will be free.
        wish: of the job.
        slots: the moment from which on there are slots for it.
    """
    times_s, is_best = prospect.times_s, wish.mode == "best"
    chosen: Option | None = None
    chosen_moment, soonest_s = 0, 0.0
    for option in wish.options:
        moment = slots
        if option.parts:
            room = prospect.room_from(option.tier, option.parts)
            if room == NEVER:
                continue
            moment = room if room > slots else slots  # noqa: FURB136 - max() is slow
        done_s = times_s[moment] + option.extra_s
        if chosen is None or (done_s < soonest_s if is_best else moment == 0):
            chosen, chosen_moment, soonest_s = option, moment, done_s
    return chosen, chosen_moment


class Tiering:
    """What one decision comes to.

    Args:
        view: the state.
        wishes: of all jobs.
        by_estimate: a job that holds slots is expected to last as its tier says; otherwise for its
            walltime.

    Attributes:
        starts: in this order.
        fails: jobs that do not want to wait for space, and why they would have to.
        head: None: all that was looked at started.
    """

    def __init__(self, view: View, wishes: Wishes, *, by_estimate: bool) -> None:
        self.starts: list[Placed] = []
        self.fails: dict[JobId, Reason] = {}
        self.head: Head | None = None
        self._view = view
        self._now_s = view.now_s
        self._wishes = wishes
        self._by_estimate = by_estimate
        self._draft = view.draft()
        self._headroom = Headroom(view)
        self._ends: dict[bool, list[End]] = {}
        self._prospects: dict[bool, Prospect] = {}

    def plan(self) -> AdmissionPlan:
        """All of it."""
        starts, reasons, head = tuple(self.starts), self.fails, self.head
        if head is None:
            return AdmissionPlan(starts=starts, reasons=reasons)
        promises: dict[JobId, float] = {}
        if head.planned is not None and head.is_promised:
            promises = {head.job.id: head.planned.at_s}
        reasons = {**reasons, head.job.id: head.reason}
        return AdmissionPlan(starts=starts, reasons=reasons, reservations=promises)

    def prospect(self, *, stops_at_once: bool = False) -> Prospect:
        """What will be free when, with what has started until now."""
        found = self._prospects.get(stops_at_once)
        if found is None:
            ends = self._ends.get(stops_at_once)
            if ends is None:
                end_of = partial(self._end_s, stops_at_once=stops_at_once)
                ends = self._ends[stops_at_once] = ends_of(self._holders(), end_of)
            found = self._prospects[stops_at_once] = Prospect(self._draft, self._now_s, ends)
        return found

    def start_in_order(self, queue: Iterable[Job]) -> None:
        """Start jobs up to the first that cannot; the rest is left in the queue."""
        for job in queue:
            wish = self._wishes.of(job)
            planned = plan_for(self.prospect(), wish)
            refusal = self._refusal(job, wish, planned)
            if planned is not None and refusal is None:
                option = planned.option
                answer = self._draft.place(job, option.tier)
                if isinstance(answer, NotNow) and wish.mode == "best" and not wish.options[0].parts:
                    option = wish.options[0]  # the disks' rule wants to take none, room or not
                    answer = self._draft.place(job, option.tier)
                if not isinstance(answer, NotNow):
                    self._start(job, answer, option)
                    continue
                refusal = answer.reason
            assert refusal is not None
            if refusal.code == NO_SPACE_AT_ALL:
                self.fails[job.id] = refusal
                continue
            if refusal.code == NO_CORES and job.spec.shares_cores:
                planned = None  # nobody else may take the memory that it waits for
            self.head = self._made_head(job, wish, planned, refusal)
            return

    def backfill(self, queue: Iterable[Job]) -> None:
        """Start later jobs that do not put off the head, the shortest first."""
        head, free = self.head, most_free(self._draft)
        if head is None or head.planned is None or free <= 0 or self._headroom.shut_by is not None:
            return
        gone: list[int] = []
        prospect, spare = self.prospect(), self._spare(head, head.planned)
        for wish, place, job in self._fitting(queue, free, head.planned, spare):
            if wish.spec.cpus > free:
                continue
            option, moment = _choose(prospect, wish, 0)
            if option is None or moment > 0 or self._headroom.refusal(job) is not None:
                continue
            found = self._beside(job, option, head.planned, spare)
            if found is None:
                continue
            passed = place - sum(other < place for other in gone)
            text = f"fits beside job {head.job.id}, {waits(head, self._now_s)}: {found[1]}"
            reason = Reason(code=BACKFILL, text=f"{text}; {told_passed(passed)}")
            self._start(job, found[0], option, reason)
            gone.append(place)
            free = most_free(self._draft)
            prospect, spare = self.prospect(), self._spare(head, head.planned)

    def _fitting(
        self, queue: Iterable[Job], free: int, kept: Planned, spare: Spare
    ) -> list[tuple[Wish, int, Job]]:
        """Those that may start now as far as slots go, each with its place, the shortest first."""
        window_s, most, of = kept.at_s - self._now_s, spare.most, self._wishes.of
        room = self._room_now()
        found = []
        for place, job in enumerate(queue, 1):
            cpus = job.spec.cpus
            if cpus <= free:
                wish = of(job)
                if cpus <= most or wish.least_s <= window_s + ROUNDING_S:
                    least = wish.least
                    if least is None or least.parts[0] <= room[least.tier]:
                        found.append((wish, place, job))
        found.sort(key=_by_rank)
        return found

    def _room_now(self) -> dict[TierName | None, int]:
        """The most of one disk that is free now, by tier."""
        tiers, prospect = self._draft.tiers, self.prospect()
        return {t.name: prospect.most_now(t.name) for t in tiers if t.storage is not None}

    def planned(self, job: Job) -> Planned | None:
        """How the job would start if it were the next; None: never."""
        return plan_for(self.prospect(), self._wishes.of(job))

    def _holders(self) -> Iterable[Job]:
        """Those that hold slots or space; who is over and being removed has the space alone."""
        over = (self._view.job(job_id) for job_id in sorted(self._draft.clearing))
        alone = (msgspec.structs.replace(job, partition=None) for job in over)
        return chain(self._draft.live, alone)

    def _end_s(self, job: Job, *, stops_at_once: bool) -> float:
        """When a job that holds something is expected to have ended."""
        if not job.is_live and job.partition is None:
            return self._now_s
        longer_s = self._extra_s(job) if self._by_estimate else 0.0
        return expected_end_s(job, self._now_s, stops_at_once=stops_at_once, extra_s=longer_s)

    def _extra_s(self, job: Job) -> float:
        """By how much it takes longer where it is than on the slowest tier."""
        if not job.shares:
            return 0.0
        tier = job.shares[0].tier
        for option in self._wishes.of(job).options:
            if option.tier == tier:
                return option.extra_s
        return 0.0

    def _start(
        self, job: Job, partition: PartitionId, option: Option, why: Reason | None = None
    ) -> None:
        placed = self._draft.start(job, partition, why, option.tier)
        self.starts.append(placed)
        self._headroom.take(job)
        self._prospects.clear()
        started = msgspec.structs.replace(job, partition=partition, shares=placed.shares)
        for stops_at_once, ends in self._ends.items():
            end_s = self._end_s(started, stops_at_once=stops_at_once)
            if end_s < math.inf:
                insort(ends, (end_s, job.id, started))

    def _refusal(self, job: Job, wish: Wish, planned: Planned | None) -> Reason | None:
        """Why it may not start now; None: it may, as far as can be told without asking where."""
        if planned is not None and planned.moment == 0:
            return self._headroom.refusal(job)
        answer = self._draft.place(job)  # as it asked: in the words of whoever refuses
        if isinstance(answer, NotNow):
            if wish.mode == "best" and answer.reason.code == NO_SPACE:
                return self._told_storage(job, wish, planned)
            return answer.reason
        return self._told_storage(job, wish, planned)

    def _told_storage(self, job: Job, wish: Wish, planned: Planned | None) -> Reason:
        """It has slots and waits for space."""
        prospect, request = self.prospect(), job.spec.scratch
        if planned is None or request is None or planned.option.tier is None:
            return Reason(code=NO_SPACE, text="no tier will have room for it, as far as is known")
        tier = planned.option.tier
        free, size = told_bytes(prospect.free_at(0, tier)), told_bytes(request.size_bytes)
        text = f"needs {size} on tier {tier}; free there now: {free}"
        first = wish.options[0]
        if wish.mode == "best" and first is not planned.option and not first.parts:
            sooner_s = prospect.times_s[0] - planned.at_s + first.extra_s - planned.option.extra_s
            text = f"{text}; ends {told_span(sooner_s)} sooner with it than on tier {first.tier}"
        return Reason(code=NO_SPACE, text=text)

    def _made_head(self, job: Job, wish: Wish, planned: Planned | None, refusal: Reason) -> Head:
        has_headroom = self._headroom.refusal(job) is None
        has_room = planned is not None and planned.moment == 0
        is_promised = has_headroom and not has_room
        before_s = self._view.reservations.get(job.id)
        if is_promised and before_s is not None and (planned is None or planned.at_s > before_s):
            soonest = plan_for(self.prospect(stops_at_once=True), wish)
            if soonest is not None and soonest.at_s <= max(before_s, self._now_s):
                kept = msgspec.structs.replace(soonest, at_s=before_s)
                return Head(
                    job=job, reason=refusal, planned=kept, is_promised=True, stops_at_once=True
                )
        is_limited = has_room and self._headroom.limit_refusal(job) is not None
        return Head(
            job=job,
            reason=refusal,
            planned=planned,
            is_promised=is_promised,
            is_limited=is_limited,
        )

    def _spare(self, head: Head, kept: Planned) -> Spare:
        """What the head does not need when it is to start."""
        prospect = self.prospect(stops_at_once=head.stops_at_once)
        moment = prospect.last_until(max(kept.at_s, self._now_s)) if head.is_promised else 0
        slots = prospect.slots_at(moment, kept.partition) - head.job.spec.cpus
        free = [
            min(slots, self._draft.slots_free(p.id))
            if p.id == kept.partition
            else self._draft.slots_free(p.id)
            for p in self._draft.platform.partitions
        ]
        tier, space = kept.option.tier, math.inf
        if kept.option.parts and tier is not None:
            space = prospect.free_at(moment, tier) - sum(kept.option.parts)
        aside = max(0, self._draft.slots_free(kept.partition) - max(0, slots))
        return Spare(prospect=prospect, moment=moment, most=max(free), aside=aside, space=space)

    def _beside(
        self, job: Job, option: Option, kept: Planned, spare: Spare
    ) -> tuple[PartitionId, str] | None:
        """Where it may start without putting off the head, and why it may."""
        walltime_s, tier = job.spec.walltime_s, option.tier
        if walltime_s is not None:
            lasts_s = walltime_s + (option.extra_s if self._by_estimate else 0.0)
            if self._now_s + lasts_s <= kept.at_s:
                answer = self._draft.place(job, tier)
                told = f"ends in {told_span(lasts_s)}"
                return None if isinstance(answer, NotNow) else (answer, told)
        is_same = bool(kept.option.parts) and tier == kept.option.tier
        if job.spec.cpus > spare.most or (is_same and sum(option.parts) > spare.space):
            return None
        answer = self._draft.place(job, tier, aside={kept.partition: spare.aside})
        if isinstance(answer, NotNow):
            return None
        if is_same and tier is not None:
            shares = self._draft.find_space(job, tier)
            if isinstance(shares, Reason) or not spare.prospect.has_room_beside(
                spare.moment, tier, kept.option.parts, shares
            ):
                return None
        return answer, "takes nothing that one needs"


def _by_rank(each: tuple[Wish, int, Job]) -> tuple[float, int, int]:
    return each[0].rank


def waits(head: Head, now_s: float) -> str:
    """What the head waits for, and until when."""
    what = f"which waits for {told_cpus(head.job.spec.cpus)}"
    if head.reason.code == NO_SPACE and head.planned is not None:
        what = f"which waits for space on tier {head.planned.option.tier}"
    elif head.reason.code in FOR_STORAGE:
        what = "which waits for the storage"
    elif head.is_limited:
        what = "which regulation does not let start yet"
    if head.planned is None or not head.is_promised:
        return what
    return f"{what}, promised in {told_span(max(0.0, head.planned.at_s - now_s))}"
