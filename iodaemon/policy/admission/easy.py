"""EASY backfilling: first come, first served, and small jobs fill the gaps before the first.

Idea: the first job that does not fit is promised its slots; whoever does not touch that promise may
go before it. With a budget of bandwidth the same holds for the I/O expected of jobs: slots are one
resource, the storage's bandwidth is another (I/O-aware EASY).

1. Jobs start in the order in which they were submitted, wherever the placement rule finds room.
2. The first that does not fit (the head) is promised slots on one socket from the time on at which,
   by the walltimes of those that run, enough of them are free (shadow time). Suspended time does
   not count against a walltime.
3. A later job starts now if it fits now, and either ends by its walltime before that time, or takes
   only what the head does not need then: slots of other sockets, spare slots of that one, spare
   bandwidth. One without walltime can only do the latter.
4. Where no time can be promised, because jobs without walltime are in the way, room is kept for the
   head where it is expected by how long earlier runs of those took. That is an estimate and no
   promise: it may be late. A head that has waited for ``_OVERTAKEN_FOR_S`` is not overtaken so.
   Where that is not known either nothing overtakes. Without walltimes and earlier runs this is
   first come, first served.
5. Two exceptions. A head that has slots and waits for the storage only, or whose I/O regulation
   leaves no headroom for, keeps a claim to these slots; beside it starts what is known to do no
   I/O, or no more than the headroom, and beside the headroom also that of whose I/O nothing is
   known. Likewise a head that regulation does not let start yet; beside it start those that it
   lets.
6. The promise is kept by every start made here: at the next decision it is the same or earlier, as
   long as running jobs keep to their walltimes, are not suspended, and do the I/O that was
   expected. A job that has used up its walltime and does not end when asked puts it off until it is
   killed: meanwhile the room is kept where it will be once that one has ended.

The budget, with ``bandwidth`` or ``demand``:

7. What a job is expected to move, and what those that hold slots are, suspended ones too, is
   together at most ``bandwidth``; without it, what the devices deliver where that is known.
8. What counts of a job is its mean rate over its run, or, with ``demand = "burst"``, what it moves
   while it does I/O. Means fill the storage in the long run and collide at times; bursts never
   collide, and leave it idle in between.
9. A job above the whole budget by itself runs when all others do next to no I/O (a tenth of what it
   does). One of whose I/O nothing is known counts 0 while it waits, and what is measured while it
   runs: it overtakes a head that does I/O only if it ends in time. One that ran before the promise
   was made can exceed the budget, and put the promise off until it ends; so can one that does more
   than was declared.

Needs: nothing; walltimes make it good, with a budget I/O hints.
Source: Lifka, JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 2001, section 2 (EASY). The budget:
Herbein, Ahn, Lipari, Scogland, Stearman, Grondona, Garlick, Springmeyer, Taufer, HPDC 2016
(I/O-aware FCFS and EASY: do not start what would overcommit the bandwidth of the file system).
Differs: several sockets, of which the promise concerns one; asks the placement rule; looks no
further than ``depth`` jobs behind the head; heeds ``io_headroom``; one level of bandwidth where
theirs is a tree of links; ``demand`` is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.decision import AdmissionPlan, Placed
from iodaemon.core.job import Job, Reason
from iodaemon.core.platform import PartitionId, Platform
from iodaemon.core.stock import NO_SPACE, candidates
from iodaemon.core.view import NO_CORES, NO_SLOTS, NotNow, View
from iodaemon.policy.headroom import IO_BUDGET, Budget, Headroom
from iodaemon.policy.shadow_time import (
    BACKFILL,
    Head,
    Shadow,
    admission_plan,
    find_shadow,
    most_free,
    space_from_s,
    told_expected,
    told_passed,
    told_span,
)

_OVERTAKEN_FOR_S: Final = 86400.0
"""Since its submission; estimates that come out wrong again and again may not starve a job. A day
is ours: longer than most runs, and nobody waits for longer than without estimates after it."""
_MOST_NAMED: Final = 3
_SPACE: Final = "of a storage tier"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Submit order with one reservation, of slots and, with a budget, of bandwidth.

    Attributes:
        depth: how many jobs behind the head are looked at.
        bandwidth_bytes_per_s: of the whole storage. None: with a ``demand`` the devices'
            capacities, where known; else there is no budget.
        demand: what counts of a job: its mean over its run, or what it moves while in I/O. None:
            its mean, where a bandwidth is given.
    """

    depth: int = 1000
    bandwidth_bytes_per_s: float | None = None
    demand: Literal["mean", "burst"] | None = None

    def __post_init__(self) -> None:
        bandwidth = self.bandwidth_bytes_per_s
        if bandwidth is not None and not bandwidth > 0:
            raise ValueError(f"bandwidth_bytes_per_s is {bandwidth:g}; it must be above 0")
        if self.depth < 0:
            raise ValueError(f"depth is {self.depth}; it must be 0 or more")

    def caution(self, platform: Platform) -> str | None:
        """Without any bandwidth there is no budget."""
        if self.demand is None or self._limit(platform) < math.inf:
            return None
        return "no capacity is known, so no job waits for bandwidth; set [admission] bandwidth"

    def decide(self, view: View, memory: None) -> tuple[AdmissionPlan, None]:
        made = self._admit(view)
        return admission_plan(made.starts, made.head), memory

    def explain(self, view: View, job: Job, memory: Any) -> str:  # noqa: ARG002 - as all rules
        return _account(view, job, self._admit(view))

    def _admit(self, view: View) -> _Round:
        def counted(job: Job) -> float:
            expected = view.expected(job.id)
            if self.demand == "burst":
                return expected.burst_bytes_per_s
            return expected.rate_bytes_per_s

        queue = iter(view.pending)
        made = _Round(view, Budget(view, self._limit(view.platform), counted))
        made.start_in_order(queue)
        made.backfill(islice(queue, self.depth))
        return made

    def _limit(self, platform: Platform) -> float:
        """The budget, bytes/s; infinite if there is none."""
        known = None if self.demand is None else platform.capacity_bytes_per_s
        return self.bandwidth_bytes_per_s or known or math.inf


class _Round:
    """One decision: the jobs that start, and the head, None if all that were looked at start."""

    def __init__(self, view: View, budget: Budget) -> None:
        self.starts: list[Placed] = []
        self.head: Head[Shadow] | None = None
        self._now_s = view.now_s
        self._view = view
        self._draft = view.draft()
        self._budget = budget
        self._headroom = Headroom(view)

    def start_in_order(self, queue: Iterator[Job]) -> None:
        """Start jobs up to the first without room, the head; leave the rest in the queue."""
        for job in queue:
            answer = self._draft.place(job)
            refusal = answer.reason if isinstance(answer, NotNow) else self._io_refusal(job)
            if refusal is not None:
                self.head = self._made_head(job, answer, refusal)
                return
            assert not isinstance(answer, NotNow)
            self._start(job, answer, None)

    def backfill(self, queue: Iterator[Job]) -> None:
        """Start later jobs that break no promise."""
        head, free = self.head, most_free(self._draft)
        if head is None or head.kept is None or free <= 0 or self._headroom.shut_by is not None:
            return
        shadow, started = head.kept, 0
        beside = most_free(self._draft, shadow.partition, shadow.spare)
        fitting = [(place, job) for place, job in enumerate(queue, 1) if job.spec.cpus <= free]
        for place, job in fitting:
            found = self._beside(job, shadow, free, beside)
            if found is None:
                continue
            partition, why, shadow = found
            text = f"fits beside job {head.job.id}, {head.told_wait(self._now_s, _SPACE)}: {why}"
            reason = Reason(code=BACKFILL, text=f"{text}; {told_passed(place - started)}")
            self._start(job, partition, reason)
            started += 1
            free = most_free(self._draft)
            beside = most_free(self._draft, shadow.partition, shadow.spare)

    def may_take_its_bandwidth(self, job: Job) -> bool:
        """Whether the job may turn out to use bandwidth that is promised to the head."""
        head = self.head
        is_kept = head is not None and (head.is_promised or head.is_expected)
        if head is None or not (is_kept or head.reason.code == IO_BUDGET):
            return False
        return self._budget.rate(head.job) > 0.0 and self._budget.is_open(job)

    def _may_take_its_space(self, job: Job) -> bool:
        """Whether the job may take space that is promised to the head."""
        wants = job.spec.scratch
        waits = None if self.head is None else self.head.job.spec.scratch
        if wants is None or waits is None:
            return False
        tiers = self._draft.tiers
        theirs = {tier.name for tier in candidates(tiers, waits) if tier.storage is not None}
        return any(tier.name in theirs for tier in candidates(tiers, wants))

    def _start(self, job: Job, partition: PartitionId, why: Reason | None) -> None:
        self.starts.append(self._draft.start(job, partition, why))
        self._budget.take(job)
        self._headroom.take(job)

    def _io_refusal(self, job: Job) -> Reason | None:
        return self._headroom.refusal(job) or self._budget.refusal(job)

    def _made_head(self, job: Job, answer: PartitionId | NotNow, refusal: Reason) -> Head[Shadow]:
        if refusal.code == NO_SPACE:
            return self._made_head_of_space(job, refusal)
        if refusal.code == NO_CORES:
            return self._made_head_of_cores(job, refusal)
        has_headroom = self._headroom.refusal(job) is None
        shadow = self._find_shadow(job)
        is_held = isinstance(answer, NotNow)
        if shadow is not None and (is_held or shadow.at_s > self._now_s):
            return Head(job=job, reason=refusal, kept=shadow, is_promised=has_headroom)
        if shadow is None and is_held and (expected := self._expect(job)) is not None:
            return Head(job=job, reason=refusal, kept=expected, is_promised=False, is_expected=True)
        kept: Shadow | None = None
        if not isinstance(answer, NotNow):  # it waits for the storage alone
            spare = self._draft.slots_free(answer) - job.spec.cpus
            kept = Shadow(partition=answer, at_s=self._now_s, spare=spare, spare_bytes_per_s=0.0)
        is_limited = not is_held and self._headroom.limit_refusal(job) is not None
        return Head(job=job, reason=refusal, kept=kept, is_promised=False, is_limited=is_limited)

    def _made_head_of_space(self, job: Job, refusal: Reason) -> Head[Shadow]:
        """The head has slots and waits for space of a tier: its slots are kept for that time.

        Space is free when enough of the jobs that hold it have ended. If that time is unknown the
        slots are kept from now on, and only jobs that take none of them start.
        """
        at_s = space_from_s(self._draft, job, self._now_s)
        kept = self._most_free(job, self._now_s if at_s is None else at_s)
        return Head(job=job, reason=refusal, kept=kept, is_promised=at_s is not None)

    def _made_head_of_cores(self, job: Job, refusal: Reason) -> Head[Shadow]:
        """The head has slots, but no cores of its own, or no memory for sharing cores.

        Slots are kept for a head that waits for cores; jobs that share cores may start before it,
        since they take none. No job starts before a head that waits for memory.
        """
        kept = None if job.spec.shares_cores else self._most_free(job, self._now_s)
        return Head(job=job, reason=refusal, kept=kept, is_promised=False)

    def _most_free(self, job: Job, at_s: float) -> Shadow:
        """Slots of the partition with the most free ones, kept for the job from this time on."""
        draft, budget = self._draft, self._budget
        free = {p.id: draft.slots_free(p.id) for p in draft.platform.partitions}
        partition = max(free, key=lambda number: (free[number], -number))
        left = budget.limit_bytes_per_s - budget.used_bytes_per_s - budget.rate(job)
        return Shadow(
            partition=partition,
            at_s=at_s,
            spare=max(0, free[partition] - job.spec.cpus),
            spare_bytes_per_s=max(0.0, left),
        )

    def _find_shadow(self, job: Job) -> Shadow | None:
        """When and where the job has slots and space; None if unknown."""
        shadow = self._find_slots(job)
        if shadow is None or job.spec.scratch is None:
            return shadow
        at_s = space_from_s(self._draft, job, self._now_s)
        if at_s is None:
            return None
        return msgspec.structs.replace(shadow, at_s=max(shadow.at_s, at_s))

    def _expect(self, job: Job) -> Shadow | None:
        """When and where room is expected by the length of earlier runs; None if unknown."""
        if job.spec.scratch is not None or self._now_s - job.submitted_s >= _OVERTAKEN_FOR_S:
            return None

        def typical_s(other: Job) -> float | None:
            return self._view.expected(other.id).run_s

        return find_shadow(self._draft, job, self._now_s, self._budget, typical=typical_s)

    def _find_slots(self, job: Job) -> Shadow | None:
        """When and where the job has slots; a job that is being ended does not put off a promise.

        That job can end at any moment, so the room stays where it was promised: a backfilled job
        may count neither on the rest of the grace time nor on other room that is free before.
        """
        shadow = find_shadow(self._draft, job, self._now_s, self._budget)
        before_s = self._view.reservations.get(job.id)
        if before_s is None or (shadow is not None and shadow.at_s <= before_s):
            return shadow
        soonest = find_shadow(self._draft, job, self._now_s, self._budget, stops_at_once=True)
        if soonest is not None and soonest.at_s <= max(before_s, self._now_s):
            return msgspec.structs.replace(soonest, at_s=before_s)
        return shadow

    def _beside(
        self, job: Job, shadow: Shadow, free: int, beside: int
    ) -> tuple[PartitionId, str, Shadow] | None:
        """Where the job may start without breaking the promise, why, and what is left of it."""
        walltime_s = job.spec.walltime_s
        is_in_time = walltime_s is not None and self._now_s + walltime_s <= shadow.at_s
        if job.spec.cpus > (free if is_in_time else beside):
            return None
        if self._io_refusal(job) is not None:
            return None
        if not is_in_time and self._may_take_its_space(job):
            return None
        if walltime_s is not None and is_in_time:
            answer = self._draft.place(job)
            if isinstance(answer, NotNow):
                return None
            return answer, f"ends in {told_span(walltime_s)} at the latest", shadow
        rate = self._budget.rate(job)
        if rate > shadow.spare_bytes_per_s or self.may_take_its_bandwidth(job):
            return None
        kept = self._draft.slots_free(shadow.partition) - shadow.spare
        answer = self._draft.place(job, aside={shadow.partition: max(0, kept)})
        if isinstance(answer, NotNow):
            return None
        used = job.spec.cpus if answer == shadow.partition else 0
        shadow = msgspec.structs.replace(
            shadow,
            spare=shadow.spare - used,
            spare_bytes_per_s=shadow.spare_bytes_per_s - max(0.0, rate),
        )
        return answer, "takes nothing that one needs", shadow


def _account(view: View, job: Job, made: _Round) -> str:
    head = made.head
    if head is None or (head.job.id == job.id and head.is_promised):
        return ""
    cause = _endless(view)
    if head.job.id == job.id:
        if head.is_expected and head.kept is not None:
            cause = f"room is {told_expected(head.kept.at_s, view.now_s)}; {cause}"
        return f"{head.reason.text}; {cause}" if cause and head.reason.code == NO_SLOTS else ""
    parts = [f"waits behind job {head.job.id}, {head.told_wait(view.now_s, _SPACE)}"]
    if head.kept is None:
        parts.append("no time is known for that one, so nothing starts before it")
        return "; ".join([*parts, cause] if cause else parts)
    walltime_s = job.spec.walltime_s
    if made.may_take_its_bandwidth(job):
        own = "none (--time)" if walltime_s is None else told_span(walltime_s)
        parts.append(f"nothing is known of its I/O (--io-rate), so it has to end in time; {own}")
        return f"{'; '.join(parts)} is its walltime"
    if walltime_s is None:
        parts.append("it has no walltime, so it starts before that one only if it takes nothing")
        return "; ".join(parts) + " that one needs: give -t when you submit"
    own = f"its own walltime is {told_span(walltime_s)}"
    parts.append(f"it starts before that one if it ends in time or takes nothing it needs; {own}")
    return "; ".join(parts)


def _endless(view: View) -> str:
    """Names the jobs without walltime and what to do; empty if all have one."""
    ids = [str(job.id) for job in view.live if job.spec.walltime_s is None]
    if not ids:
        return ""
    shown = ", ".join(ids[:_MOST_NAMED]) + (" and others" if len(ids) > _MOST_NAMED else "")
    have = f"job {shown} has" if len(ids) == 1 else f"jobs {shown} have"
    return (
        f"{have} no walltime, so nothing can be promised: give -t when you submit (an "
        "administrator: default_walltime)"
    )
