"""The single source of truth: all jobs, who holds which slots, what was measured last.

Changed only inside ``Controller.step``; the journal is its durable form. Kept sorted and indexed
so that a step costs what happened, not what there is: pending jobs are never scanned.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from iodaemon.core.decision import (
    Capped,
    Evidence,
    Free,
    Lesson,
    LimitState,
    StartLimit,
    TrialStep,
    clearing_of,
)
from iodaemon.core.error import InvariantError
from iodaemon.core.forecast import Outlook, Recollection
from iodaemon.core.job import (
    FINAL,
    LIVE,
    Job,
    JobId,
    JobKind,
    JobState,
    Reason,
    job_bytes,
)
from iodaemon.core.lessons import Lessons
from iodaemon.core.lifecycle import check_job, claim
from iodaemon.core.limits import (
    Drain,
    Sharing,
    Users,
    why_infeasible,
    why_not_ready,
)
from iodaemon.core.meter import Meter
from iodaemon.core.platform import Partition, PartitionId, Platform, SlotId
from iodaemon.core.similarity import kind_of
from iodaemon.core.stock import Stock
from iodaemon.core.storage import Tier

KEPT_FINISHED: Final = 1000
"""Finished jobs kept in memory; the journal keeps all of them for ``retain``."""
KEPT_FINISHED_BYTES: Final = 64 * 2**20
"""Memory that they take together, but for the newest ones."""
LEAST_FINISHED: Final = 8
"""Kept however large they are, as their ends may still be on their way to the journal; of the
largest that can be submitted these are 100 MB."""

KEPT_TRIALS: Final = 20
"""The last steps of finding out how many jobs should contend; the journal keeps all of them."""

BLOCKED: Final = "Blocked"
"""The word for a job that waits because no job can start now."""
TURN: Final = "IoTurn"
"""The word for a job that waits for its turn to do I/O."""
CONTENTION: Final = "Contention"
"""The word for a job that waits or stands still because enough contend for a resource without it.
"""


class State:
    """All that is known. Readers may use everything; only the controller may change it.

    Args:
        experience: what earlier jobs teach of later ones. None: nothing is learned.
        sharing: what each user may have, and in what order they have it. None: as they come.

    Attributes:
        next_id: the number the next job will get; ids are never used twice.
    """

    def __init__(
        self,
        platform: Platform,
        tiers: Sequence[Tier] = (),
        *,
        kept_finished: int = KEPT_FINISHED,
        experience: Recollection | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self.platform = platform
        self.stock = Stock(tiers)
        self.jobs: dict[JobId, Job] = {}
        self.users = Users(sharing or Sharing())
        self.meter = Meter()
        self.outlook = Outlook(self.meter, experience)
        self.reasons: dict[JobId, Reason] = {}
        self.reason_of_rest: Reason | None = None
        self.phases: dict[JobId, None] = {}
        self.waits: dict[JobId, Reason] = {}
        self.reservations: Mapping[JobId, float] = {}
        self.io_headroom_bytes_per_s: float | None = None
        self.start_limit: StartLimit | None = None
        self.limits: tuple[LimitState, ...] = ()
        self.can_cap = False
        """The backend slows jobs down where regulation wants that (``Throttle``)."""
        self.caps: dict[JobId, Capped] = {}
        self.uncappable: dict[JobId, None] = {}
        self.trials: deque[TrialStep] = deque(maxlen=KEPT_TRIALS)
        self.lessons = Lessons()
        self.start_problems: dict[str, str] = {}
        """Why nothing can start now, by who says so (``StartsBlocked``)."""
        self.drain: Drain | None = None
        self.evidence: dict[JobId, Evidence] = {}
        self.next_id = JobId(1)
        self.delayed: dict[JobId, float] = {}
        self._kinds: dict[JobId, JobKind] = {}
        self._pending: dict[JobId, Job] = {}
        self._unready: dict[JobId, None] = {}
        self._live: dict[JobId, Job] = {}
        self._finished: deque[JobId] = deque()
        self._finished_bytes = 0
        self._kept_finished = kept_finished
        self._free: dict[PartitionId, list[SlotId]] = {}
        self._places: dict[PartitionId, list[SlotId]] = {}
        self._pools: dict[SlotId, list[SlotId]] = {}
        for partition in platform.partitions:
            slots = [slot.id for slot in partition.slots]
            pools = slots[: partition.size], slots[partition.size :]
            self._free[partition.id], self._places[partition.id] = pools
            self._pools |= {slot: pool for pool in pools for slot in pool}

    # -- reading ---------------------------------------------------------------------------

    @property
    def pending(self) -> Iterator[Job]:
        """Jobs that wait for slots and fit some partition and tier, in queue order.

        That is the order of submission, by id; see ``Job.place`` for those that came back.

        A job whose start just failed is not in it until its time in ``delayed``, one of which an
        earlier attempt still holds space not until that is free.
        """
        if not self.delayed and not self._unready:
            return iter(self._pending.values())
        kept_out = self._unready.keys() | self.delayed.keys()
        return (job for job in self._pending.values() if job.id not in kept_out)

    def may_be_started(self, job_id: JobId) -> bool:
        """Whether the job is among ``pending``."""
        return (
            job_id in self._pending and job_id not in self._unready and job_id not in self.delayed
        )

    @property
    def queue(self) -> Iterator[Job]:
        """Those of the pending jobs that their users' limits let start now, whose turn it is first.

        Without limits and fair order: all of them.
        """
        if self.users.sharing.is_plain:
            return self.pending
        return self.users.in_turn(
            self.jobs, lambda job: job.id not in self._unready and job.id not in self.delayed
        )

    @property
    def live(self) -> Iterator[Job]:
        return iter(self._live.values())

    def slots_free(self, partition_id: PartitionId) -> int:
        """Slots of the partition that may be taken now.

        Where cores are shared: cores that are neither taken nor busy, and as many jobs more as
        regulation lets share them.
        """
        partition = self.platform.partition(partition_id)
        if partition.cores is None:
            return len(self._free[partition_id])
        limit = self.start_limit
        above = 0 if limit is None else limit.above_cores.get(partition_id, 0)
        free = partition.cores + above - self._held(partition)
        pools = len(self._free[partition_id]) + len(self._places[partition_id])
        return max(0, min(free, pools))

    def slots_idle(self, partition_id: PartitionId) -> int:
        partition = self.platform.partition(partition_id)
        return max(0, partition.size - self._held(partition))

    def cores_free(self, partition_id: PartitionId) -> int:
        """Cores of the partition that no job has for its own."""
        return len(self._free[partition_id])

    def sharing(self, partition_id: PartitionId) -> int:
        """Jobs that share the partition's cores."""
        partition = self.platform.partition(partition_id)
        return len(partition.slots) - partition.size - len(self._places[partition_id])

    def footprint_bytes(self, job_id: JobId) -> float | None:
        """Memory that the job needs: as asked for, else as seen of its kind; None: unknown."""
        asked_bytes = self.jobs[job_id].spec.memory_bytes
        if asked_bytes is not None:
            return asked_bytes
        lesson = self.lessons.get(self.kind(job_id))
        return None if lesson is None else lesson.footprint_bytes

    def lacks_memory(self, job: Job, partition_id: PartitionId) -> bool:
        """Whether it would share cores that are all in use, with less memory left than it needs."""
        limit = self.start_limit
        if limit is None or limit.memory_bytes is None or not self.platform.shares_cores:
            return False
        if job.spec.cpus <= self.slots_idle(partition_id):
            return False
        return limit.needed_bytes(self.footprint_bytes(job.id)) > limit.memory_bytes

    def may_cap(self, job_id: JobId) -> bool:
        job = self.jobs[job_id]
        runs = job.state is JobState.RUNNING and not job.wants_freeze
        return self.can_cap and runs and job_id not in self.uncappable

    def may_hold(self, job: Job, now_s: float) -> bool:
        """The guard before every rule: whether regulation may suspend the job now."""
        runs = job.state is JobState.RUNNING and not job.wants_freeze
        if not runs or job.spec.no_suspend or job.is_immune(now_s):
            return False
        return self.meter.bandwidth(job.id) is not None

    def _held(self, partition: Partition) -> int:
        pools = len(self._free[partition.id]) + len(self._places[partition.id])
        return len(partition.slots) - pools

    def kind(self, job_id: JobId) -> JobKind:
        """What the job is like; found once, as a rule may ask it of all that wait."""
        kind = self._kinds.get(job_id)
        if kind is None:
            kind = self._kinds[job_id] = kind_of(self.jobs[job_id])
        return kind

    def reason(self, job_id: JobId) -> Reason | None:
        """Why the job is where it is; None for a job that simply runs or completed."""
        job = self.jobs[job_id]
        if job.state is JobState.PENDING:
            return self._why_pending(job)
        if job.reason is None and job.waits_for_turn:
            return self.waits.get(job_id) or Reason(code=TURN, text="waits for its turn to do I/O")
        return job.reason

    def _why_pending(self, job: Job) -> Reason:
        """The first that keeps it from starting: it alone for ever, all jobs, it alone for now."""
        return (
            why_infeasible(self.platform, self.stock, job)
            or (Reason(code=BLOCKED, text=self.starts_blocked) if self.starts_blocked else None)
            or (None if self.drain is None else self.drain.why)
            or why_not_ready(job)
            or job.reason
            or self.users.limit_of(job)
            or self.queue_reason(job.id)
            or self.users.sharing.behind
        )

    @property
    def unfreed(self) -> list[Free]:
        """What is to be asked of the backend again after a restart: jobs that still hold space."""
        jobs = (self.jobs[job_id] for job_id in self.stock.holders)
        return [clearing_of(job) for job in jobs if job.state not in LIVE]

    @property
    def clearing(self) -> tuple[JobId, ...]:
        """Jobs that do not run, and whose space is about to be given back."""
        jobs = (self.jobs[job_id] for job_id in self.stock.holders)
        return tuple(j.id for j in jobs if j.state not in LIVE and j.scratch_kept is None)

    def queue_reason(self, job_id: JobId) -> Reason | None:
        """What the admission says of a job that waits; None: that others came earlier."""
        return self.reasons.get(job_id) or self.reason_of_rest

    def by_state(self) -> dict[JobState, int]:
        counts = dict.fromkeys(JobState, 0)
        for job in self.jobs.values():
            counts[job.state] += 1
        return counts

    # -- changing: for the controller only ---------------------------------------------------

    @property
    def starts_blocked(self) -> str:
        """Why nothing can start now; empty: it can."""
        return next(iter(self.start_problems.values()), "")

    @property
    def may_start(self) -> bool:
        """False while nothing starts, whatever waits."""
        return not self.starts_blocked and self.drain is None

    def restore(
        self,
        jobs: Iterable[Job],
        next_id: JobId,
        drain: Drain | None = None,
        lessons: Iterable[tuple[JobKind, Lesson]] = (),
    ) -> None:
        """Take in what the journal holds, before the first step; what was learned last is last."""
        self.drain = drain
        for kind, lesson in lessons:
            self.lessons.put(kind, lesson)
        for job in sorted(jobs, key=lambda job: job.queue_key):
            self.add(job)
        self.forget_finished()
        self.next_id = max(self.next_id, next_id)

    def let_choose(self, *, any_tier: bool) -> None:
        """From now on the admission rule chooses the tier of who names none, or it does not."""
        if any_tier is not self.stock.any_tier:
            self.stock.any_tier = any_tier
            for job in self._pending.values():
                self._note_readiness(job)

    def add(self, job: Job) -> None:
        if job.id in self.jobs:
            raise InvariantError(f"job {job.id} exists already; ids are never used twice")
        self.next_id = max(self.next_id, JobId(job.id + 1))
        self.jobs[job.id] = job
        self.users.note(None, job)
        self.stock.follow(None, job)
        if job.state is JobState.PENDING:
            self._enqueue(job)
        elif job.state in LIVE:
            self._enter_live(job)
            self._note_phase(job)
        elif job.state in FINAL:
            self._finish(job)

    def remove(self, job_id: JobId) -> None:
        """Drop a job that never was (its submission could not be made durable)."""
        job = self.jobs[job_id]
        if job.state in LIVE and job.state is not JobState.STARTING:
            raise InvariantError(f"job {job_id} is {job.state}; it runs, so it was durable")
        if job.state is JobState.STARTING and not job.io_hold:
            self._note_starts(job, -1)
        del self.jobs[job_id]
        self._kinds.pop(job_id, None)
        self.users.note(job, None)
        self.stock.follow(job, None)
        self._leave_queue(job_id)
        self._leave_finished(job)
        self.outlook.forget(job_id)
        if job.state is JobState.STARTING:  # decided, but a start is performed once durable
            self._give_back(job)
            del self._live[job_id]

    def put(self, job: Job) -> None:
        """Replace the record of a job by a newer one, and keep every index true."""
        before = self.jobs[job.id]
        self.jobs[job.id] = job
        if before.phase is not job.phase:
            self._note_phase(job)
        if job.id in self._live:
            self._live[job.id] = job
        if before.shares != job.shares or before.scratch_kept is not job.scratch_kept:
            self.stock.follow(before, job)
        if before.state is job.state:
            if job.id in self._pending:
                self._pending[job.id] = job
                self._note_readiness(job)
            elif before.shares and not job.shares and job.state in FINAL:
                self._finish(job)
            return
        self.users.note(before, job)
        if before.state is JobState.PENDING:
            self._leave_queue(job.id)
        self._leave_finished(before)
        if before.state in LIVE and job.state not in LIVE:
            self._give_back(before)
            if not before.io_hold:  # one that regulation held had no place
                self._note_starts(before, -1)
            self._live.pop(job.id, None)
            self.meter.forget(job.id)
            self.evidence.pop(job.id, None)
        if job.state is JobState.PENDING:
            self._enqueue(job)
        if job.state in LIVE and before.state not in LIVE:
            self._enter_live(job)
            self._note_starts(job, 1)
        if job.state in FINAL:
            self._finish(job)
            self.outlook.forget(job.id)

    def forget_finished(self) -> None:
        """Drop all but the last finished jobs; not within a step, whose plan still names them."""
        while len(self._finished) > self._kept_finished or (
            self._finished_bytes > KEPT_FINISHED_BYTES and len(self._finished) > LEAST_FINISHED
        ):
            job = self.jobs.pop(self._finished.popleft())
            self._finished_bytes -= job_bytes(job.spec)
            self._kinds.pop(job.id, None)

    def _finish(self, job: Job) -> None:
        if not job.shares:  # one that holds space is kept until it is given back
            self._finished.append(job.id)
            self._finished_bytes += job_bytes(job.spec)

    def _leave_finished(self, job: Job) -> None:
        if job.state in FINAL and not job.shares:
            self._finished.remove(job.id)
            self._finished_bytes -= job_bytes(job.spec)

    def choose_slots(
        self, partition_id: PartitionId, count: int, *, shares: bool = False
    ) -> tuple[SlotId, ...]:
        """The lowest free slots of the partition.

        Args:
            shares: places for jobs that share cores, where there are any.

        Raises:
            InvariantError: there are fewer.
        """
        free = self._pool(partition_id, shares=shares)
        if len(free) < count:
            raise InvariantError(
                f"partition {partition_id} has {len(free)} free slots, {count} were promised"
            )
        return tuple(free[:count])

    def has_slots(self, partition_id: PartitionId, count: int, *, shares: bool = False) -> bool:
        """Whether ``choose_slots`` finds so many, whether or not they may be taken now."""
        return len(self._pool(partition_id, shares=shares)) >= count

    def _pool(self, partition_id: PartitionId, *, shares: bool) -> list[SlotId]:
        has_places = self.platform.partition(partition_id).cores is not None
        return self._places[partition_id] if shares and has_places else self._free[partition_id]

    def _note_phase(self, job: Job) -> None:
        if not job.waits_for_turn:
            self.waits.pop(job.id, None)
        if job.phase is None:
            self.phases.pop(job.id, None)
        else:
            self.phases[job.id] = None

    def _enqueue(self, job: Job) -> None:
        last = next(reversed(self._pending.values()), None)
        self._pending[job.id] = job
        if last is not None and last.queue_key > job.queue_key:
            in_order = sorted(self._pending.values(), key=lambda each: each.queue_key)
            self._pending = {each.id: each for each in in_order}
        self._note_readiness(job)

    def _note_readiness(self, job: Job) -> None:
        is_ready = why_not_ready(job) is None
        if is_ready and why_infeasible(self.platform, self.stock, job) is None:
            self._unready.pop(job.id, None)
        else:
            self._unready[job.id] = None

    def _leave_queue(self, job_id: JobId) -> None:
        self._pending.pop(job_id, None)
        self._unready.pop(job_id, None)
        self.reasons.pop(job_id, None)
        self.delayed.pop(job_id, None)

    def _enter_live(self, job: Job) -> None:
        in_order = not self._live or job.id > next(reversed(self._live))
        self._live[job.id] = job
        if not in_order:
            self._live = {job_id: self._live[job_id] for job_id in sorted(self._live)}
        self._take_slots(job)

    def _note_starts(self, job: Job, starts: int) -> None:
        """The job has started; ``starts`` is -1: its place is free for another."""
        if (limit := self.start_limit) is not None:
            needed = limit.needed_bytes(self.footprint_bytes(job.id))
            share = limit.share_of(self.kind(job.id))
            self.start_limit = limit.after(starts, share, memory_bytes=needed)

    def _take_slots(self, job: Job) -> None:
        """Booked by slot, not by partition: a job may have been started on another division."""
        pool = self._pools.get(job.slots[0]) if job.slots else None
        if pool is not None and tuple(pool[: len(job.slots)]) == job.slots:
            del pool[: len(job.slots)]  # the lowest, as ``choose_slots`` gives them
            return
        for slot in job.slots:
            pool = self._pools.get(slot)
            if pool is None:  # the platform no longer has this CPU
                continue
            if slot not in pool:
                raise InvariantError(f"slot {slot} is promised to job {job.id} and to another")
            pool.remove(slot)

    def _give_back(self, job: Job) -> None:
        for slot in job.slots:
            pool = self._pools.get(slot)
            if pool is not None:
                insort(pool, slot)

    # -- checking ----------------------------------------------------------------------------

    def check(self) -> None:
        """Verify everything that must always hold; every test ends with it.

        Raises:
            InvariantError: names the first contradiction found.
        """
        for job in self.jobs.values():
            check_job(job)
        self._check_indexes()
        self._check_finished()
        self._check_slots()
        self.stock.check(self.jobs)

    def _check_indexes(self) -> None:
        pending = [i for i, job in self.jobs.items() if job.state is JobState.PENDING]
        live = [i for i, job in self.jobs.items() if job.state in LIVE]
        pending.sort(key=lambda job_id: self.jobs[job_id].queue_key)
        claim(list(self._pending) == pending, "the queue lists exactly the pending jobs, in order")
        listed = (*self._pending.items(), *self._live.items())
        current = all(self.jobs[i] is job for i, job in listed)
        claim(current, "the queue and the live index hold the last record of each job")
        claim(list(self._live) == sorted(live), "the live index lists exactly the live jobs")
        claim(all(i < self.next_id for i in self.jobs), "the next id is above all ids")
        claim(set(self.reasons) <= set(pending), "only pending jobs have a queue reason")
        claim(set(self.delayed) <= set(pending), "only pending jobs are delayed")
        users = Users(self.users.sharing)
        for job in self.jobs.values():
            users.note(None, job)
        claim(users.is_same(self.users), "what each user has is what the jobs say")
        told = {i for i, job in self.jobs.items() if job.phase is not None}
        claim(set(self.phases) == told, "the phase index lists the jobs that told of one")
        waiting = {i for i in told if self.jobs[i].waits_for_turn}
        claim(set(self.waits) <= waiting, "only jobs that wait for their turn have a reason to")

    def _check_finished(self) -> None:
        ended = [i for i, job in self.jobs.items() if job.state in FINAL and not job.shares]
        claim(sorted(self._finished) == sorted(ended), "the finished jobs are listed once each")
        size_bytes = sum(job_bytes(self.jobs[i].spec) for i in ended)
        claim(self._finished_bytes == size_bytes, "the finished jobs are as large as is counted")

    def _check_slots(self) -> None:
        held = [slot for job in self.live for slot in job.slots if slot in self._pools]
        pools = (*self._free.values(), *self._places.values())
        free = [slot for slots in pools for slot in slots]
        claim(sorted(held + free) == sorted(self._pools), "each slot is free or held by one job")


def with_fields(job: Job, **fields: object) -> Job:
    return msgspec.structs.replace(job, **fields)
