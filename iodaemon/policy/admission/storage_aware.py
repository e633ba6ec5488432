"""Storage-aware scheduling: each job on the tier of storage with which it ends first (SAS).

Idea: a fast tier saves time and may have to be waited for. Whether it is worth the wait is known
best by who knows when it will be free.

1. For each tier a job may use, it is found when its slots and its space there will be free, by the
   expected ends of those that hold them, and with that when the job would end. What is staged in
   and out before and after counts, other jobs' traffic does not. The tier with which it ends first
   is its own; of two the slower one. Who names a tier has that one.
2. In the order of the queue jobs start for which that time is now. The first for which it is not
   is the head: slots and space are kept for it as found. It may wait for a fast tier beside
   idle slots and a slow one that is free: that is the point.
3. All others are tried, the shortest first, of equals that with less space: one starts if its own
   time is now and the head's does not become later. So at the next decision the head ends at
   the same time or earlier, as long as the others keep to what is expected; it may start later
   than was promised where another tier has become the better one.
4. A job that says nothing of what it moves, or wants no space, gains nothing by a fast tier and
   waits for none. Without such jobs this is ``easy`` with the gaps for the shortest.
5. ``ends``: when those that run are expected to end: as reckoned for their tier, or
   (``walltime``) when they are ended at the latest. The first fills the tiers better; the second
   keeps promises that estimates break.

What a tier costs or saves a job. With V all that a job moves (input, output, data), S what is
staged (input, output), R the bandwidth of the slowest tier, R' that of a faster one and R" of the
staging between the two, a run there is longer by

    V / R' - V / R + S / R"

than one on the slowest tier, for which the walltime is meant; less than 0 where it is shorter. What
others move meanwhile is left out.

Needs: ``--fast`` with sizes, walltimes; tiers with bandwidths.
Source: Lackner, Fard, Wolf, CCGRID 2019, section III, algorithms 1 and 2. Equation 2 is not in
the available text; it is derived from what the section says of its terms.
Differs: any number of tiers; space is that of disks, by the allocation rule; several sockets; jobs
without walltime; heeds ``io_headroom``; looks no further than ``depth`` jobs behind the head.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, Final, Literal

import msgspec

from iodaemon.core.decision import AdmissionPlan, Placed
from iodaemon.core.job import Job, JobId, JobSpec, Reason, ScratchRequest, TierName
from iodaemon.core.platform import PartitionId
from iodaemon.core.stock import NO_SPACE, NO_SPACE_AT_ALL, candidates, could_ever_hold, split
from iodaemon.core.storage import Tier
from iodaemon.core.view import NO_CORES, NotNow, View
from iodaemon.core.words import told_bytes
from iodaemon.policy.headroom import Headroom
from iodaemon.policy.shadow_time import (
    BACKFILL,
    NEVER,
    End,
    Head,
    Kept,
    Prospect,
    admission_plan,
    ends_of,
    expected_end_s,
    most_free,
    told_passed,
    told_span,
)

TIDY_ABOVE: Final = 64
"""What ended jobs wanted is kept for so many at least, and as many as others."""
_ROUNDING_S: Final = 1e-3
"""By which a difference of times may be wrong; who is nearly in time is looked at again."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One way for a job to run.

    Attributes:
        tier: where it has its space. None if it needs none.
        extra_s: how much longer it takes there than on the slowest tier.
        parts: the sizes of its parts on the tier's disks, the largest first; empty without disks.
    """

    tier: TierName | None
    extra_s: float = 0.0
    parts: tuple[int, ...] = ()


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """The ways in which a job may run, as far as they decide when it starts.

    Attributes:
        spec: of the job.
        options: the slowest tier first; of two that end it at the same time the earlier one is
            taken. Empty if it cannot run.
        is_best: whether the option that ends it first is chosen, and waited for. If False, the
            last option that can start it now.
        rank: by walltime, then by space, then by arrival.
        least_s: its shortest run time; infinite if unknown.
        least: the only option, if that needs space on disks. None otherwise.
    """

    spec: JobSpec
    options: tuple[Option, ...]
    is_best: bool
    rank: tuple[float, int, int]
    least_s: float
    least: Option | None = None


class Planned(Kept, frozen=True, kw_only=True):
    """How, when and where a job is to start if no other job does.

    Attributes:
        option: how.
        moment: of the prospect; 0: now.
    """

    option: Option
    moment: int


class Spare(msgspec.Struct, frozen=True, kw_only=True):
    """What is left beside the head at the time it is to start, for jobs that still run then.

    Attributes:
        most: slots of one partition.
        aside: slots of the head's partition that are free now and kept for it.
        space: bytes of the head's tier; infinite if it needs none.
    """

    prospect: Prospect
    moment: int
    most: int
    aside: int
    space: float


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Submit order, a tier each, one reservation, and the shortest into the gaps.

    Attributes:
        depth: how many jobs behind the head are looked at.
        ends: how long jobs that run are expected to: as their tier lets them, or their walltime.
    """

    chooses_tier: ClassVar[bool] = True
    depth: int = 1000
    ends: Literal["estimate", "walltime"] = "estimate"

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise ValueError(f"depth is {self.depth}; it must be 0 or more")

    def decide(self, view: View, memory: Wishes | None) -> tuple[AdmissionPlan, Wishes]:
        wishes = _wishes(view, memory)
        made = self._admit(view, wishes)
        wishes.tidy(view)
        return admission_plan(made.starts, made.head, made.fails), wishes

    def explain(self, view: View, job: Job, memory: Any) -> str:
        made = self._admit(view, _wishes(view, memory))
        planned, parts = made.planned(job), []
        if made.head is not None and made.head.job.id != job.id:
            parts.append(f"waits behind job {made.head.job.id}, {_wait(made.head, view.now_s)}")
        if planned is None:
            parts.append("no time is known at which there is room for it (--time of the others)")
        elif job.spec.scratch is not None:
            parts.append(_told(planned, view.now_s))
        if made.head is not None and made.head.job.id != job.id:
            parts.append("it starts before that one if that is not put off by it")
        return "; ".join(parts)

    def _admit(self, view: View, wishes: Wishes) -> _Round:
        queue = iter(view.pending)
        made = _Round(view, wishes, by_estimate=self.ends == "estimate")
        made.start_in_order(queue)
        made.backfill(islice(queue, self.depth))
        return made


# -- what jobs want --------------------------------------------------------------------------------


def extra_s(request: ScratchRequest, tier: Tier, slowest: Tier) -> float:
    """How much longer the job runs on this tier than on the slowest, s."""
    if tier.name == slowest.name:
        return 0.0
    staged = request.input_bytes + request.output_bytes
    moved = staged + request.data_bytes
    saved_s = moved / slowest.bandwidth_bytes_per_s - moved / tier.bandwidth_bytes_per_s
    return staged / tier.staging_bytes_per_s - saved_s


def wish_of(job: Job, tiers: Sequence[Tier]) -> Wish:
    """The ways in which the job may run.

    Args:
        tiers: the fastest first.
    """
    spec = job.spec
    walltime_s = math.inf if spec.walltime_s is None else spec.walltime_s
    request = spec.scratch
    if request is None or not tiers:
        rank = (walltime_s, 0, job.id)
        plain = (Option(tier=None),)
        return Wish(spec=spec, options=plain, is_best=False, rank=rank, least_s=walltime_s)
    rank = (walltime_s, request.size_bytes, job.id)
    slowest = tiers[-1]
    wanted: list[Tier] = list(tiers)
    if request.tier is not None:
        wanted = candidates(tiers, request)
    found = (_option(request, tier, slowest, spec.walltime_s) for tier in reversed(wanted))
    options = tuple(option for option in found if option is not None)
    least_s = walltime_s + min([0.0, *(option.extra_s for option in options)])
    least = options[0] if len(options) == 1 and options[0].parts else None
    return Wish(
        spec=spec,
        options=options,
        is_best=request.tier is None,
        rank=rank,
        least_s=least_s,
        least=least,
    )


def _option(
    request: ScratchRequest, tier: Tier, slowest: Tier, walltime_s: float | None
) -> Option | None:
    """The way to run on this tier; None if the tier can never hold the job's space or files."""
    longer_s = extra_s(request, tier, slowest)
    if walltime_s is not None:  # whatever is said of its I/O, it does not end before it starts
        longer_s = max(longer_s, -walltime_s)
    if not could_ever_hold(tier, request):
        return None
    if tier.storage is None:
        return Option(tier=tier.name, extra_s=longer_s)
    parts = tuple(sorted(split(request.size_bytes, tier.split_bytes), reverse=True))
    return Option(tier=tier.name, extra_s=longer_s, parts=parts)


class Wishes:
    """The wish of each job, computed once and kept from decision to decision.

    A cache: decisions are the same without it.

    Args:
        tiers: of the view, the fastest first.
    """

    def __init__(self, tiers: tuple[Tier, ...]) -> None:
        self.tiers = tiers
        self._by_job: dict[JobId, Wish] = {}
        self._kept = 0

    def of(self, job: Job) -> Wish:
        """The wish of this job."""
        wish = self._by_job.get(job.id)
        if wish is None or wish.spec is not job.spec:
            wish = self._by_job[job.id] = wish_of(job, self.tiers)
        return wish

    def tidy(self, view: View) -> None:
        """Drop the wishes of ended jobs once there may be many of them."""
        if len(self._by_job) > 2 * self._kept + TIDY_ABOVE:
            there = [job.id for jobs in (view.pending, view.live) for job in jobs]
            self._by_job = {i: self._by_job[i] for i in there if i in self._by_job}
            self._kept = len(self._by_job)


def _wishes(view: View, memory: Wishes | None) -> Wishes:
    """The wishes of earlier decisions, if the tiers are still the same."""
    return memory if memory is not None and memory.tiers is view.tiers else Wishes(view.tiers)


# -- one decision ----------------------------------------------------------------------------------


def _plan_for(prospect: Prospect, wish: Wish) -> Planned | None:
    """How the job ends first, and when it begins; None if it never can."""
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
    """How the job ends first, and the moment at which it begins.

    Args:
        slots: the first moment at which it has slots.
    """
    times_s, is_best = prospect.times_s, wish.is_best
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


class _Round:
    """One decision.

    Args:
        wishes: of all jobs.
        by_estimate: whether jobs that hold slots are expected to last as long as their tier lets
            them. If False, for their walltime.

    Attributes:
        fails: jobs that asked to fail rather than wait for space, and why they would wait.
        head: None if all jobs that were looked at start.
    """

    def __init__(self, view: View, wishes: Wishes, *, by_estimate: bool) -> None:
        self.starts: list[Placed] = []
        self.fails: dict[JobId, Reason] = {}
        self.head: Head[Planned] | None = None
        self._view = view
        self._now_s = view.now_s
        self._wishes = wishes
        self._by_estimate = by_estimate
        self._draft = view.draft()
        self._headroom = Headroom(view)
        self._ends: dict[bool, list[End]] = {}
        self._prospects: dict[bool, Prospect] = {}

    def prospect(self, *, stops_at_once: bool = False) -> Prospect:
        """What is free when, with the jobs that this decision has started."""
        found = self._prospects.get(stops_at_once)
        if found is None:
            ends = self._ends.get(stops_at_once)
            if ends is None:
                end_of = partial(self._end_s, stops_at_once=stops_at_once)
                ends = self._ends[stops_at_once] = ends_of(self._holders(), end_of)
            found = self._prospects[stops_at_once] = Prospect(self._draft, self._now_s, ends)
        return found

    def start_in_order(self, queue: Iterable[Job]) -> None:
        """Start jobs up to the first that cannot start, the head; leave the rest in the queue."""
        for job in queue:
            wish = self._wishes.of(job)
            planned = _plan_for(self.prospect(), wish)
            refusal = self._refusal(job, wish, planned)
            if planned is not None and refusal is None:
                option = planned.option
                answer = self._draft.place(job, option.tier)
                if isinstance(answer, NotNow) and wish.is_best and not wish.options[0].parts:
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
        """Start later jobs that do not delay the head, the shortest first."""
        head, free = self.head, most_free(self._draft)
        if head is None or head.kept is None or free <= 0 or self._headroom.shut_by is not None:
            return
        gone: list[int] = []
        prospect, spare = self.prospect(), self._spare(head, head.kept)
        for wish, place, job in self._fitting(queue, free, head.kept, spare):
            if wish.spec.cpus > free:
                continue
            option, moment = _choose(prospect, wish, 0)
            if option is None or moment > 0 or self._headroom.refusal(job) is not None:
                continue
            found = self._beside(job, option, head.kept, spare)
            if found is None:
                continue
            passed = place - sum(other < place for other in gone)
            text = f"fits beside job {head.job.id}, {_wait(head, self._now_s)}: {found[1]}"
            reason = Reason(code=BACKFILL, text=f"{text}; {told_passed(passed)}")
            self._start(job, found[0], option, reason)
            gone.append(place)
            free = most_free(self._draft)
            prospect, spare = self.prospect(), self._spare(head, head.kept)

    def _fitting(
        self, queue: Iterable[Job], free: int, kept: Planned, spare: Spare
    ) -> list[tuple[Wish, int, Job]]:
        """Jobs that have slots now, each with its place in the queue, the shortest first."""
        window_s, most, of = kept.at_s - self._now_s, spare.most, self._wishes.of
        room = self._room_now()
        found = []
        for place, job in enumerate(queue, 1):
            cpus = job.spec.cpus
            if cpus <= free:
                wish = of(job)
                if cpus <= most or wish.least_s <= window_s + _ROUNDING_S:
                    least = wish.least
                    if least is None or least.parts[0] <= room[least.tier]:
                        found.append((wish, place, job))
        found.sort(key=_by_rank)
        return found

    def _room_now(self) -> dict[TierName | None, int]:
        """Free bytes now on the emptiest disk of each tier."""
        tiers, prospect = self._draft.tiers, self.prospect()
        return {t.name: prospect.most_now(t.name) for t in tiers if t.storage is not None}

    def planned(self, job: Job) -> Planned | None:
        """How the job would start if it were next; None if never."""
        return _plan_for(self.prospect(), self._wishes.of(job))

    def _holders(self) -> Iterable[Job]:
        """Jobs that hold slots or space; a job whose space is being removed holds only that."""
        over = (self._view.job(job_id) for job_id in sorted(self._draft.clearing))
        alone = (msgspec.structs.replace(job, partition=None) for job in over)
        return chain(self._draft.live, alone)

    def _end_s(self, job: Job, *, stops_at_once: bool) -> float:
        """The expected end of a job that holds slots or space."""
        if not job.is_live and job.partition is None:
            return self._now_s
        longer_s = self._extra_s(job) if self._by_estimate else 0.0
        return expected_end_s(job, self._now_s, stops_at_once=stops_at_once, extra_s=longer_s)

    def _extra_s(self, job: Job) -> float:
        """How much longer the job takes on its tier than on the slowest one, s."""
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
        """Why the job may not start now; None if it may, as far as known without placing it."""
        if planned is not None and planned.moment == 0:
            return self._headroom.refusal(job)
        answer = self._draft.place(job)  # as it asked: in the words of whoever refuses
        if isinstance(answer, NotNow):
            if wish.is_best and answer.reason.code == NO_SPACE:
                return self._told_storage(job, wish, planned)
            return answer.reason
        return self._told_storage(job, wish, planned)

    def _told_storage(self, job: Job, wish: Wish, planned: Planned | None) -> Reason:
        """The reason of a job that has slots and waits for space."""
        prospect, request = self.prospect(), job.spec.scratch
        if planned is None or request is None or planned.option.tier is None:
            return Reason(code=NO_SPACE, text="no tier will have room for it, as far as is known")
        tier = planned.option.tier
        free, size = told_bytes(prospect.free_at(0, tier)), told_bytes(request.size_bytes)
        text = f"needs {size} on tier {tier}; free there now: {free}"
        first = wish.options[0]
        if wish.is_best and first is not planned.option and not first.parts:
            sooner_s = prospect.times_s[0] - planned.at_s + first.extra_s - planned.option.extra_s
            text = f"{text}; ends {told_span(sooner_s)} sooner with it than on tier {first.tier}"
        return Reason(code=NO_SPACE, text=text)

    def _made_head(
        self, job: Job, wish: Wish, planned: Planned | None, refusal: Reason
    ) -> Head[Planned]:
        has_headroom = self._headroom.refusal(job) is None
        has_room = planned is not None and planned.moment == 0
        is_promised = has_headroom and not has_room
        before_s = self._view.reservations.get(job.id)
        if is_promised and before_s is not None and (planned is None or planned.at_s > before_s):
            soonest = _plan_for(self.prospect(stops_at_once=True), wish)
            if soonest is not None and soonest.at_s <= max(before_s, self._now_s):
                kept = msgspec.structs.replace(soonest, at_s=before_s)
                return Head(
                    job=job, reason=refusal, kept=kept, is_promised=True, stops_at_once=True
                )
        is_limited = has_room and self._headroom.limit_refusal(job) is not None
        return Head(
            job=job,
            reason=refusal,
            kept=planned,
            is_promised=is_promised,
            is_limited=is_limited,
        )

    def _spare(self, head: Head[Planned], kept: Planned) -> Spare:
        """What the head leaves at the time it is to start."""
        prospect = self.prospect(stops_at_once=head.stops_at_once)
        moment = prospect.last_until(max(kept.at_s, self._now_s)) if head.is_promised else 0
        slots = prospect.slots_at(moment, kept.partition) - head.job.spec.cpus
        most = most_free(self._draft, kept.partition, slots)
        tier, space = kept.option.tier, math.inf
        if kept.option.parts and tier is not None:
            space = prospect.free_at(moment, tier) - sum(kept.option.parts)
        aside = max(0, self._draft.slots_free(kept.partition) - max(0, slots))
        return Spare(prospect=prospect, moment=moment, most=most, aside=aside, space=space)

    def _beside(
        self, job: Job, option: Option, kept: Planned, spare: Spare
    ) -> tuple[PartitionId, str] | None:
        """Where the job may start without delaying the head, and why it may."""
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


def _wait(head: Head[Planned], now_s: float) -> str:
    kept = head.kept
    return head.told_wait(now_s, None if kept is None else f"on tier {kept.option.tier}")


def _told(planned: Planned, now_s: float) -> str:
    """On which tier the job is to run, and what that saves."""
    option = planned.option
    wait_s = max(0.0, planned.at_s - now_s)
    when = "now" if wait_s == 0.0 else f"in {told_span(wait_s)}"
    text = f"with what is free by then it is to run on tier {option.tier}, {when}"
    if option.extra_s < 0.0:
        return f"{text}, where it takes {told_span(-option.extra_s)} less"
    return text
