"""First come, first served, with a promise to the first that does not fit: EASY backfilling.

1. Jobs start in the order of the queue. The first that finds no room is the head: by the walltimes
   of those that run it is promised slots on one partition from some time on (shadow time), and its
   part of the I/O budget where there is one.
2. A later job may start now where it fits now and breaks no promise: it ends by its walltime
   before that time, or takes only what the head does not need then: slots of other partitions,
   spare slots of that one, spare bandwidth.
3. Where no time can be promised, because jobs without walltime are in the way, room is kept for
   the head where it is expected by how long earlier runs of those took. That is an estimate and
   no promise: it may be late. A head that has waited for ``_OVERTAKEN_FOR_S`` is not overtaken so.
4. Where no time is expected either nothing overtakes the head. Two exceptions: a head that has
   slots and waits for the storage alone keeps a claim to these slots; beside them a job may start
   that is known to do no I/O. So does one that regulation leaves no headroom for; beside that, of
   whose I/O nothing is known as well. So does one that regulation does not let start yet; beside
   that start those that it lets.

The promise is kept by every start made here: at the next decision it is the same or earlier, as
long as running jobs keep to their walltimes, are not suspended, and do the I/O that was expected.
A job that has used up its walltime and does not end when asked puts it off until it is killed:
meanwhile the room is kept where it will be once that one has ended. A job of whose I/O nothing is
known starts beside a promise of bandwidth only if it ends in time.

Source: Lifka, JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 2001, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from iodaemon.core.decision import AdmissionPlan, Placed
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.platform import PartitionId
from iodaemon.core.stock import NO_SPACE, candidates
from iodaemon.core.view import NO_CORES, NotNow, View
from iodaemon.policy.backfill import BACKFILL, Shadow, find_shadow, most_free
from iodaemon.policy.bandwidth import FOR_STORAGE, IO_BUDGET, Budget, Headroom
from iodaemon.policy.spacing import space_from_s
from iodaemon.policy.wording import told_cpus, told_passed, told_span

_OVERTAKEN_FOR_S: Final = 86400.0
"""Since its submission; estimates that come out wrong again and again may not starve a job. A day
is ours: longer than most runs, and nobody waits for longer than without estimates after it."""
_MOST_NAMED: Final = 3
_SLOTS: Final = "Slots"
"""The code of the placement's reason where no socket has room."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first job that finds no room.

    Attributes:
        job: which.
        reason: what it lacks.
        shadow: what is kept for it. None: nothing can be, and nobody overtakes it.
        is_promised: whether the shadow's time is one; otherwise it is kept from now on.
        is_expected: the shadow's time is an estimate.
        is_limited: it waits for regulation to let more jobs start.
    """

    job: Job
    reason: Reason
    shadow: Shadow | None
    is_promised: bool
    is_expected: bool = False
    is_limited: bool = False


class Round:
    """What one decision comes to.

    Args:
        view: the state.
        budget: for the jobs' I/O.

    Attributes:
        starts: in this order.
        head: None: all that was looked at started.
    """

    def __init__(self, view: View, budget: Budget) -> None:
        self.starts: list[Placed] = []
        self.head: Head | None = None
        self._now_s = view.now_s
        self._view = view
        self._draft = view.draft()
        self._budget = budget
        self._headroom = Headroom(view)

    def plan(self) -> AdmissionPlan:
        """All of it."""
        head = self.head
        if head is None:
            return AdmissionPlan(starts=tuple(self.starts))
        promises: dict[JobId, float] = {}
        if head.shadow is not None and head.is_promised:
            promises = {head.job.id: head.shadow.at_s}
        reasons = {head.job.id: head.reason}
        return AdmissionPlan(starts=tuple(self.starts), reasons=reasons, reservations=promises)

    def start_in_order(self, queue: Iterator[Job]) -> None:
        """Start jobs up to the first that finds no room; the rest is left in the queue."""
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
        if head is None or head.shadow is None or free <= 0 or self._headroom.shut_by is not None:
            return
        shadow, started = head.shadow, 0
        beside = self._free_beside(shadow)
        fitting = [(place, job) for place, job in enumerate(queue, 1) if job.spec.cpus <= free]
        for place, job in fitting:
            found = self._beside(job, shadow, free, beside)
            if found is None:
                continue
            partition, why, shadow = found
            text = f"fits beside job {head.job.id}, {_waits(head, self._now_s)}: {why}"
            reason = Reason(code=BACKFILL, text=f"{text}; {told_passed(place - started)}")
            self._start(job, partition, reason)
            started += 1
            free, beside = most_free(self._draft), self._free_beside(shadow)

    def may_take_its_bandwidth(self, job: Job) -> bool:
        """Whether the job can turn out to do I/O that the head is promised."""
        head = self.head
        is_kept = head is not None and (head.is_promised or head.is_expected)
        if head is None or not (is_kept or head.reason.code == IO_BUDGET):
            return False
        return self._budget.rate(head.job) > 0.0 and self._budget.is_open(job)

    def _may_take_its_space(self, job: Job) -> bool:
        """Whether the job may hold space that the head is promised."""
        wants = job.spec.scratch
        waits = None if self.head is None else self.head.job.spec.scratch
        if wants is None or waits is None:
            return False
        tiers = self._draft.tiers
        theirs = {tier.name for tier in candidates(tiers, waits) if tier.storage is not None}
        return any(tier.name in theirs for tier in candidates(tiers, wants))

    def _free_beside(self, shadow: Shadow) -> int:
        """Slots free on one partition for a job that runs past the promise."""
        draft = self._draft
        free = (
            min(shadow.spare, draft.slots_free(p.id))
            if p.id == shadow.partition
            else draft.slots_free(p.id)
            for p in draft.platform.partitions
        )
        return max(free, default=0)

    def _start(self, job: Job, partition: PartitionId, why: Reason | None) -> None:
        self.starts.append(self._draft.start(job, partition, why))
        self._budget.take(job)
        self._headroom.take(job)

    def _io_refusal(self, job: Job) -> Reason | None:
        return self._headroom.refusal(job) or self._budget.refusal(job)

    def _made_head(self, job: Job, answer: PartitionId | NotNow, refusal: Reason) -> Head:
        if refusal.code == NO_SPACE:
            return self._made_head_of_space(job, refusal)
        if refusal.code == NO_CORES:
            return self._made_head_of_cores(job, refusal)
        has_headroom = self._headroom.refusal(job) is None
        shadow = self._find_shadow(job)
        is_held = isinstance(answer, NotNow)
        if shadow is not None and (is_held or shadow.at_s > self._now_s):
            return Head(job=job, reason=refusal, shadow=shadow, is_promised=has_headroom)
        if shadow is None and is_held and (expected := self._expect(job)) is not None:
            return Head(
                job=job, reason=refusal, shadow=expected, is_promised=False, is_expected=True
            )
        kept: Shadow | None = None
        if not isinstance(answer, NotNow):  # it waits for the storage alone
            spare = self._draft.slots_free(answer) - job.spec.cpus
            kept = Shadow(partition=answer, at_s=self._now_s, spare=spare, spare_bytes_per_s=0.0)
        is_limited = not is_held and self._headroom.limit_refusal(job) is not None
        return Head(job=job, reason=refusal, shadow=kept, is_promised=False, is_limited=is_limited)

    def _made_head_of_space(self, job: Job, refusal: Reason) -> Head:
        """It has slots, and waits for space of a tier: slots are kept for when there will be some.

        That is when enough of those who hold space of it have ended. Where nobody can tell, they
        are kept from now on, and only who takes none of them may start beside.
        """
        at_s = space_from_s(self._draft, job, self._now_s)
        partition, most = self._most_free()
        kept = Shadow(
            partition=partition,
            at_s=self._now_s if at_s is None else at_s,
            spare=max(0, most - job.spec.cpus),
            spare_bytes_per_s=self._spare_bytes_per_s(job),
        )
        return Head(job=job, reason=refusal, shadow=kept, is_promised=at_s is not None)

    def _made_head_of_cores(self, job: Job, refusal: Reason) -> Head:
        """There are slots for it, and not what it needs with them.

        One that waits for cores of its own keeps slots; those that share cores may go before it, as
        they take none of its. What waits for memory is passed by nobody: they would take that.
        """
        if job.spec.shares_cores:
            return Head(job=job, reason=refusal, shadow=None, is_promised=False)
        partition, most = self._most_free()
        kept = Shadow(
            partition=partition,
            at_s=self._now_s,
            spare=max(0, most - job.spec.cpus),
            spare_bytes_per_s=self._spare_bytes_per_s(job),
        )
        return Head(job=job, reason=refusal, shadow=kept, is_promised=False)

    def _most_free(self) -> tuple[PartitionId, int]:
        """The partition with the most free slots, and how many these are."""
        return max(
            ((p.id, self._draft.slots_free(p.id)) for p in self._draft.platform.partitions),
            key=lambda each: (each[1], -each[0]),
        )

    def _spare_bytes_per_s(self, job: Job) -> float:
        """What the budget has left beside the job."""
        budget = self._budget
        left = budget.limit_bytes_per_s - budget.used_bytes_per_s - budget.rate(job)
        return max(0.0, left)

    def _find_shadow(self, job: Job) -> Shadow | None:
        """When and where there is room, for its space as well; None: nobody can tell."""
        shadow = self._find_slots(job)
        if shadow is None or job.spec.scratch is None:
            return shadow
        at_s = space_from_s(self._draft, job, self._now_s)
        if at_s is None:
            return None
        return msgspec.structs.replace(shadow, at_s=max(shadow.at_s, at_s))

    def _expect(self, job: Job) -> Shadow | None:
        """When and where room is expected, by how long earlier runs of those that run took."""
        if job.spec.scratch is not None or self._now_s - job.submitted_s >= _OVERTAKEN_FOR_S:
            return None

        def typical_s(other: Job) -> float | None:
            return self._view.expected(other.id).run_s

        return find_shadow(self._draft, job, self._now_s, self._budget, typical=typical_s)

    def _find_slots(self, job: Job) -> Shadow | None:
        """When and where there is room; not put off by a job that is to end and has not yet.

        It can end at any moment, so room is where it was promised: what starts beside must count
        neither on the rest of its grace time nor on other room that comes before that is over.
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
        """Where the job may start beside the promise, why, and what it leaves of that."""
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


def admit(view: View, budget: Budget, depth: int) -> Round:
    """Starts in order, the head's promise, and starts beside it.

    Args:
        view: the state.
        budget: for the jobs' I/O.
        depth: how many jobs behind the head are looked at.
    """
    queue = iter(view.pending)
    made = Round(view, budget)
    made.start_in_order(queue)
    made.backfill(islice(queue, depth))
    return made


def account(view: View, job: Job, made: Round) -> str:
    """What there is to say of a job that waits behind the head, for people."""
    head = made.head
    if head is None or (head.job.id == job.id and head.is_promised):
        return ""
    cause = _endless(view)
    if head.job.id == job.id:
        if head.is_expected and head.shadow is not None:
            cause = f"room is {_expected(head.shadow, view.now_s)}; {cause}"
        return f"{head.reason.text}; {cause}" if cause and head.reason.code == _SLOTS else ""
    parts = [f"waits behind job {head.job.id}, {_waits(head, view.now_s)}"]
    if head.shadow is None:
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
    """Which jobs leave no time to promise, and what to do; empty: all have a walltime."""
    ids = [str(job.id) for job in view.live if job.spec.walltime_s is None]
    if not ids:
        return ""
    shown = ", ".join(ids[:_MOST_NAMED]) + (" and others" if len(ids) > _MOST_NAMED else "")
    have = f"job {shown} has" if len(ids) == 1 else f"jobs {shown} have"
    return (
        f"{have} no walltime, so nothing can be promised: give -t when you submit (an "
        "administrator: default_walltime)"
    )


def _expected(shadow: Shadow, now_s: float) -> str:
    left = told_span(max(0.0, shadow.at_s - now_s))
    return f"expected in {left} by how long earlier runs took, an estimate that may be late"


def _waits(head: Head, now_s: float) -> str:
    """What the head waits for, and until when."""
    what = f"which waits for {told_cpus(head.job.spec.cpus)}"
    if head.reason.code == NO_SPACE:
        what = "which waits for space of a storage tier"
    if head.reason.code in FOR_STORAGE:
        what = "which waits for the storage"
    if head.is_limited:
        what = "which regulation does not let start yet"
    if head.shadow is not None and head.is_expected:
        return f"{what}, {_expected(head.shadow, now_s)}"
    if head.shadow is None or not head.is_promised:
        return what
    return f"{what}, promised in {told_span(max(0.0, head.shadow.at_s - now_s))}"
