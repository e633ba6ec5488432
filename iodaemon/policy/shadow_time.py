"""When there will be room for a job, by the expected ends of those that hold slots and space.

A job ends at the latest when its walltime is used up. Suspended time does not count: a suspended
job keeps the rest of its walltime. A job without walltime has no known end; the length of its
earlier runs is an estimate, and no promise rests on it. The estimate of a job that outlasts it is
doubled.

Source: Mu'alem and Feitelson, IEEE TPDS 2001, section 2 (EASY: shadow time and extra nodes);
Tsafrir, Etsion and Feitelson, IEEE TPDS 2007 (run times of earlier jobs in place of estimates, and
their correction once they have run out; that it doubles is ours).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec

from iodaemon.core.decision import AdmissionPlan, Placed
from iodaemon.core.job import DiskId, Job, JobId, JobState, Reason, Share, TierName
from iodaemon.core.platform import PartitionId
from iodaemon.core.stock import NO_SPACE
from iodaemon.core.view import Draft, PlacementView
from iodaemon.policy.headroom import FOR_STORAGE, Budget

BACKFILL: Final = "Backfill"
"""The code of the reason why a job starts beside one that goes first and finds no room."""
NEVER = -1
"""In place of an index: as far as is known, never."""

End = tuple[float, JobId, Job]
"""When a job that holds something is expected to have ended."""


# -- when jobs end ---------------------------------------------------------------------------------


def expected_end_s(
    job: Job,
    now_s: float,
    *,
    stops_at_once: bool = False,
    extra_s: float = 0.0,
    typical_s: float | None = None,
) -> float:
    """The latest time at which a live job ends; infinite without a walltime.

    A job that does not run yet counts as if it began now. A job that is being ended ends when it is
    killed, whatever its walltime. The result is never before ``now_s``.

    Args:
        stops_at_once: a job that is being ended ends now instead.
        extra_s: how much longer than its walltime it lasts.
        typical_s: the expected run time of a job without walltime. None: unknown.
    """
    walltime_s = job.spec.walltime_s
    if walltime_s is not None:
        walltime_s += extra_s
    elif typical_s:
        walltime_s = _corrected(typical_s, job.run_s_at(now_s))
    if job.state is JobState.STOPPING:
        end_s = now_s if job.kill_at_s is None or stops_at_once else job.kill_at_s
    elif walltime_s is None:
        end_s = math.inf
    elif job.state is JobState.RUNNING:
        end_s = job.since_s + walltime_s - job.run_s
    else:
        end_s = now_s + walltime_s - job.run_s
    return max(now_s, end_s)


def _corrected(typical_s: float, ran_s: float) -> float:
    """The estimate, doubled until it is more than the job has run for."""
    if ran_s < typical_s:
        return typical_s
    return float(typical_s * 2.0 ** (math.floor(math.log2(ran_s / typical_s)) + 1))


def ends_of(jobs: Iterable[Job], end_of: Callable[[Job], float]) -> list[End]:
    """The finite ends of these jobs, by time and then by id."""
    ends = [(end_of(job), job.id, job) for job in jobs]
    return sorted([each for each in ends if each[0] < math.inf])


def latest_end_s(jobs: Iterable[Job], now_s: float) -> float | None:
    """The last of the known ends of these jobs; None if no end is known."""
    ends = ends_of(jobs, lambda job: expected_end_s(job, now_s))
    return ends[-1][0] if ends else None


# -- what is free when -----------------------------------------------------------------------------


def most_free(view: PlacementView, beside: PartitionId | None = None, spare: int = 0) -> int:
    """The most free slots of one partition, of which partition ``beside`` offers ``spare``."""
    most = 0
    for partition in view.platform.partitions:
        free = view.slots_free(partition.id)
        if partition.id == beside:
            free = min(free, spare)
        if free > most:
            most = free
    return most


class Prospect:
    """What is free at each moment from now on, by the index of the moment.

    Moment 0 is now, with what is free now. Each end of a job is a further moment, also an end that
    is due now. Nothing starts in between, so what is free only grows.

    Args:
        draft: what is free now, without the jobs started on it.
        ends: of the jobs that hold slots or space (``ends_of``).

    Attributes:
        times_s: the time of each moment.
    """

    def __init__(self, draft: Draft, now_s: float, ends: Sequence[End]) -> None:
        self._ends = ends
        self.times_s = [now_s, *[each[0] for each in ends]]
        self._draft = draft
        self._slots = {p.id: self._slots_of(p.id, p.size) for p in draft.platform.partitions}
        self._disks: dict[TierName, list[list[int]]] = {}

    def slots_from(self, cpus: int) -> int:
        """The first moment at which one partition has so many free slots, or ``NEVER``."""
        first = len(self.times_s)
        for free in self._slots.values():
            first = min(first, bisect_left(free, cpus))
        return first if first < len(self.times_s) else NEVER

    def partition_at(self, moment: int) -> PartitionId:
        """The partition with the most free slots at this moment; of equals the lowest number."""
        return max(self._slots, key=lambda number: (self._slots[number][moment], -number))

    def slots_at(self, moment: int, partition: PartitionId) -> int:
        return self._slots[partition][moment]

    def room_from(self, tier: TierName | None, parts: Sequence[int]) -> int:
        """The first moment at which the tier's disks have room for the parts, or ``NEVER``."""
        if not parts or tier is None:
            return 0
        disks = self._disks.get(tier) or self._free_of(tier)
        if len(disks) == 1 and len(parts) == 1:
            first = bisect_left(disks[0], parts[0])
        else:
            moments = range(len(self.times_s))
            first = bisect_left(
                moments, 1, key=lambda at: int(have_room([free[at] for free in disks], parts))
            )
        return first if first < len(self.times_s) else NEVER

    def most_now(self, tier: TierName) -> int:
        """Free bytes now on the tier's emptiest disk."""
        return max(free[0] for free in self._free_of(tier))

    def has_room_beside(
        self, moment: int, tier: TierName, parts: Sequence[int], shares: Iterable[Share]
    ) -> bool:
        """Whether the parts fit at this moment if the shares are taken as well, and stay taken."""
        taken: dict[DiskId, int] = {}
        for share in shares:
            if share.tier == tier:
                taken[share.disk] = taken.get(share.disk, 0) + share.size_bytes
        names = [disk.id for disk in self._draft.ledger(tier).storage.disks]
        free = [
            held[moment] - taken.get(name, 0)
            for name, held in zip(names, self._free_of(tier), strict=True)
        ]
        return have_room(free, parts)

    def free_at(self, moment: int, tier: TierName) -> int:
        """Free bytes of all the tier's disks together at this moment."""
        return sum(free[moment] for free in self._free_of(tier))

    def last_until(self, time_s: float) -> int:
        """The last moment not after this time."""
        return max(0, bisect_right(self.times_s, time_s) - 1)

    def _slots_of(self, partition: PartitionId, size: int) -> list[int]:
        free = self._draft.slots_free(partition)
        size, found = max(size, free), [free]  # more where regulation lets more share the cores
        for _, _, job in self._ends:
            if job.partition == partition:
                free = min(size, free + job.spec.cpus)
            found.append(free)
        return found

    def _free_of(self, tier: TierName) -> list[list[int]]:
        """Free bytes by moment, one list for each disk."""
        known = self._disks.get(tier)
        if known is not None:
            return known
        ledger, now_s = self._draft.ledger(tier), self.times_s[0]
        free = {
            disk.id: disk.capacity_bytes
            - sum(each.size_bytes for each in ledger.overlapping(disk.id, now_s, math.inf))
            for disk in ledger.storage.disks
        }
        found = {name: [left] for name, left in free.items()}
        for _, _, job in self._ends:
            for share in job.shares:
                if share.tier == tier:
                    free[share.disk] += share.size_bytes
            for name, left in free.items():
                found[name].append(left)
        self._disks[tier] = list(found.values())
        return self._disks[tier]


def have_room(free: Sequence[int], parts: Sequence[int]) -> bool:
    """Whether the parts fit on the disks.

    Args:
        free: free bytes of each disk.
        parts: the largest first; all but the last are equal.
    """
    if len(parts) == 1:
        return max(free) >= parts[0]
    block, rest, blocks = parts[0], parts[-1], len(parts)
    whole = sum(max(0, each) // block for each in free)
    if rest == block or whole >= blocks:
        return whole >= blocks
    return whole == blocks - 1 and any(max(0, each) % block >= rest for each in free)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """When, at the latest, and where a job has room if nothing else starts."""

    partition: PartitionId
    at_s: float


class Shadow(Kept, frozen=True, kw_only=True):
    """The same, with the slots and the part of the budget that are left beside the job then.

    Attributes:
        spare: slots of the partition.
        spare_bytes_per_s: infinite without a budget.
    """

    spare: int
    spare_bytes_per_s: float = math.inf


def find_shadow(
    draft: Draft,
    job: Job,
    now_s: float,
    budget: Budget | None = None,
    *,
    stops_at_once: bool = False,
    typical: Callable[[Job], float | None] | None = None,
) -> Shadow | None:
    """The earliest room for a job, by the expected ends of the jobs that hold slots.

    O(L log L) for L live jobs. Of two partitions at the same time: the one with more free slots,
    then the lower number.

    Args:
        draft: with the jobs started on it.
        budget: into which the job's I/O must fit as well. None: no condition.
        stops_at_once: jobs that are being ended end now, not when they are killed.
        typical: the expected run time of jobs without walltime. None: they have no end.

    Returns:
        None if the job never fits, as far as is known.
    """

    def end_s(other: Job) -> float:
        ask = typical if other.spec.walltime_s is None else None
        typical_s = None if ask is None else ask(other)
        return expected_end_s(other, now_s, stops_at_once=stops_at_once, typical_s=typical_s)

    ends = ends_of(draft.live, end_s)
    prospect = Prospect(draft, now_s, ends)
    limit = math.inf if budget is None else budget.limit_bytes_per_s
    used = 0.0 if budget is None else budget.used_bytes_per_s
    rate = 0.0 if budget is None else budget.rate(job)
    at_s, ended = now_s, 0
    while True:
        moment = prospect.last_until(at_s)
        for _, _, other in ends[ended:moment]:
            used -= 0.0 if budget is None else budget.rate(other)
        ended = moment
        partition = prospect.partition_at(moment)
        spare = prospect.slots_at(moment, partition) - job.spec.cpus
        if spare >= 0 and (budget is None or budget.fits(rate, used)):
            left = max(0.0, limit - used - rate)
            return Shadow(partition=partition, at_s=at_s, spare=spare, spare_bytes_per_s=left)
        if ended == len(ends):
            return None
        at_s = ends[ended][0]


def space_from_s(draft: Draft, job: Job, now_s: float) -> float | None:
    """The earliest time at which the job finds space if no other job takes any.

    The space of a job is free as soon as it ends: clearing takes no time here. Space kept of jobs
    that have ended does not count, since it may be kept for ever.

    Returns:
        None if the job never finds space by the walltimes that are known.
    """
    gone: list[JobId] = list(draft.clearing)
    holders = (other for other in draft.live if other.shares)
    ends = ends_of(holders, lambda other: expected_end_s(other, now_s))
    if not isinstance(draft.find_space(job, without=gone), Reason):
        return now_s
    for end_s, job_id, _ in ends:
        gone.append(job_id)
        if not isinstance(draft.find_space(job, without=gone), Reason):
            return end_s
    return None


# -- the first that finds no room ------------------------------------------------------------------

K = TypeVar("K", bound=Kept)


class Head(msgspec.Struct, Generic[K], frozen=True, kw_only=True):
    """The first job that does not start.

    Attributes:
        kept: the room kept for it. None: no room can be kept, and no job overtakes it.
        is_promised: whether the time of the room is a promise. If False the room is kept from now.
        is_expected: whether that time is an estimate.
        is_limited: whether it waits for regulation to let more jobs start.
        stops_at_once: whether that time counts on jobs that are being ended to end now.
    """

    job: Job
    reason: Reason
    kept: K | None
    is_promised: bool
    is_expected: bool = False
    is_limited: bool = False
    stops_at_once: bool = False

    def told_wait(self, now_s: float, space: str | None) -> str:
        """What it waits for and until when, for people.

        Args:
            space: where it needs space, such as ``on tier fast``. None: not told.
        """
        what = f"which waits for {told_cpus(self.job.spec.cpus)}"
        if self.reason.code == NO_SPACE and space is not None:
            what = f"which waits for space {space}"
        elif self.reason.code in FOR_STORAGE:
            what = "which waits for the storage"
        elif self.is_limited:
            what = "which regulation does not let start yet"
        if self.kept is None or not (self.is_promised or self.is_expected):
            return what
        if self.is_expected:
            return f"{what}, {told_expected(self.kept.at_s, now_s)}"
        return f"{what}, promised in {told_span(max(0.0, self.kept.at_s - now_s))}"


def admission_plan(
    starts: Iterable[Placed],
    head: Head[Any] | None,
    fails: Mapping[JobId, Reason] = MappingProxyType({}),
) -> AdmissionPlan:
    """The plan with these starts, and what the head is told and promised.

    Args:
        head: None if all jobs that were looked at start.
        fails: other jobs that do not start, and why.
    """
    reasons, promises = dict(fails), {}
    if head is not None:
        reasons[head.job.id] = head.reason
        if head.kept is not None and head.is_promised:
            promises[head.job.id] = head.kept.at_s
    return AdmissionPlan(starts=tuple(starts), reasons=reasons, reservations=promises)


def told_span(seconds: float) -> str:
    """A duration: ``90 s``, ``15 min``, ``2.5 h``."""
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"


def told_passed(count: int) -> str:
    """How many jobs a start out of turn passes: ``passes 1 earlier job``."""
    return f"passes {count} earlier job{'' if count == 1 else 's'}"


def told_cpus(count: int) -> str:
    """A number of slots: ``1 CPU``."""
    return f"{count} CPU{'' if count == 1 else 's'}"


def told_expected(at_s: float, now_s: float) -> str:
    left = told_span(max(0.0, at_s - now_s))
    return f"expected in {left} by how long earlier runs took, an estimate that may be late"
