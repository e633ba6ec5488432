"""What a rule may see: a live, read-only view of the state, and a draft to plan on.

No clock, no profile, nothing that changes the state.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from iodaemon.core.decision import AdmissionPlan, Cap, Lesson, Placed, StartLimit
from iodaemon.core.job import Job, JobId, JobKind, JobState, Prediction, Reason, Share, TierName
from iodaemon.core.lessons import says_of_limit
from iodaemon.core.meter import Bandwidth, DeviceLoad
from iodaemon.core.platform import DeviceId, PartitionId, Platform
from iodaemon.core.rule_error import FROM_A_RULE, BadAnswer, rule_error
from iodaemon.core.sample import JobCounters, NodeCounters
from iodaemon.core.state import State
from iodaemon.core.stock import StockDraft
from iodaemon.core.storage import StorageView
from iodaemon.core.words import told_bytes

NO_SLOTS: Final = "Slots"
"""The code of a placement rule's reason where no socket has a free slot for the job."""
NO_CORES: Final = "Cores"
"""The code of the reason of a job for which there are slots, but not what it needs with them: cores
of its own, or memory beside those with which it would share them."""
ROUNDING: Final = 1e-9
"""Of the whole resource, by which sums of shares may be wrong."""


class NotNow(msgspec.Struct, frozen=True):
    """The job fits somewhere, but not at this moment."""

    reason: Reason


class PlacementView(Protocol):
    """What a placement rule needs: View and Draft both offer it."""

    @property
    def platform(self) -> Platform: ...

    @property
    def live(self) -> Iterable[Job]:
        """All jobs that hold slots; each knows its partition."""
        ...

    def expected(self, job_id: JobId) -> Prediction:
        """What the job moves as a mean over its whole run."""
        ...

    def slots_free(self, partition_id: PartitionId) -> int:
        """Slots that no job holds."""
        ...


class Placement(Protocol):
    """Which partition a job gets."""

    def choose(self, view: PlacementView, job: Job) -> PartitionId | NotNow:
        """The partition for this job now, or why not now."""
        ...


class View:
    """The state as a rule sees it in one step. All orders are stable and written down here.

    Args:
        now_s: the instant of this step, on the timeline's clock.
        rng: a seeded generator: same events, same numbers.
        seen: shows a live job otherwise than it is, as it would be. None: as it is.

    Attributes:
        sampled_s: when the last sample was taken; None before the first.
        platform: what can be handed out.
        tiers: of storage, fastest first; empty where none is configured.
        devices: what each device went through in the last slice.
        node: the whole machine at the last sample.
        reservations: promised latest start times, by job, s.
        io_headroom_bytes_per_s: I/O that may still be added, as regulation said; None: no limit.
        start_limit: what is left of what regulation said of starts (``StartGate`` asks it); None:
            no limit. The controller carries out no start beyond it, whether a rule heeds it or not.
        caps: what running jobs may move at most now, as regulation said.
        lessons: while it stays the same, what is expected of jobs that wait stays as well. So it
            does of jobs that hold slots, until the next sample.
    """

    def __init__(
        self,
        state: State,
        placement: Placement,
        now_s: float,
        rng: random.Random,
        *,
        seen: Callable[[Job], Job] | None = None,
    ) -> None:
        last = state.meter.last
        self._state = state
        self._placement = placement
        self._seen = seen
        self._drafts: list[StockDraft] = []
        self.now_s = now_s
        self.rng = rng
        self.sampled_s = None if last is None else last.at_s
        self.platform = state.platform
        self.tiers = state.stock.tiers
        self.devices: Mapping[DeviceId, DeviceLoad] = state.meter.devices
        self.node = NodeCounters() if last is None else last.node
        self.reservations = state.reservations
        self.io_headroom_bytes_per_s = state.io_headroom_bytes_per_s
        self.start_limit = state.start_limit
        self.caps: Mapping[JobId, Cap] = {i: capped.cap for i, capped in state.caps.items()}
        self.lessons = state.outlook.lessons

    @property
    def pending(self) -> Iterator[Job]:
        """Jobs that may start, in queue order; jobs no partition could ever hold are not in it.

        Any of them, also all, are within users' limits.
        """
        return self._state.queue

    @property
    def running(self) -> Iterator[Job]:
        """Jobs whose processes run, ordered by id; a suspend that is on its way excludes a job."""
        return (job for job in self.live if job.state is JobState.RUNNING and not job.wants_freeze)

    @property
    def suspended(self) -> Iterator[Job]:
        """Jobs that the regulation holds (or has asked to hold), ordered by id.

        A job that a person holds as well is in it; to resume it clears the regulation's hold.
        """
        return (job for job in self.live if job.io_hold)

    @property
    def live(self) -> Iterator[Job]:
        live = self._state.live
        return live if self._seen is None else map(self._seen, live)

    def may_cap(self, job_id: JobId) -> bool:
        """Whether the job runs and can be slowed down here (``RegulationPlan.caps``).

        In shadow mode none can.
        """
        return self._seen is None and self._state.may_cap(job_id)

    def job(self, job_id: JobId) -> Job:
        job = self._state.jobs[job_id]
        return job if self._seen is None else self._seen(job)

    def bandwidth(self, job_id: JobId) -> Bandwidth | None:
        """What the job moved in the last slice; None: unknown, which is not zero."""
        return self._state.meter.bandwidth(job_id)

    def counters(self, job_id: JobId) -> JobCounters | None:
        """The job's counters at the last sample; None where there are none."""
        return self._state.meter.counters(job_id)

    def predicted(self, job_id: JobId) -> Prediction:
        """What the job is expected to move when it runs: as measured last, else as hinted."""
        return self._state.outlook.predicted(self._state.jobs[job_id])

    def expected(self, job_id: JobId) -> Prediction:
        """What it moves as a mean over its whole run: as hinted, else as measured until now."""
        return self._state.outlook.expected(self._state.jobs[job_id])

    def kind(self, job_id: JobId) -> JobKind:
        """What the job is like: jobs of one kind do the same with other data."""
        return self._state.kind(job_id)

    def lesson(self, kind: JobKind) -> Lesson | None:
        """What was learned of how many jobs of the kind should contend; None: nothing."""
        lesson = self._state.lessons.get(kind)
        return lesson if lesson is not None and says_of_limit(lesson) else None

    def recent_lessons(self, most: int) -> Iterator[tuple[JobKind, Lesson]]:
        """Of each user so many kinds, those of which something was learned last."""
        return self._state.lessons.recent(most)

    def footprint_bytes(self, job_id: JobId) -> float | None:
        """Memory that the job needs: as asked for, else as seen of its kind; None: unknown."""
        return self._state.footprint_bytes(job_id)

    def slots_free(self, partition_id: PartitionId) -> int:
        """Slots of the partition that may be taken now.

        Where cores are shared these are cores that are neither taken nor busy, and as many jobs
        more as regulation lets share them.
        """
        return self._state.slots_free(partition_id)

    def cores_free(self, partition_id: PartitionId) -> int:
        """Cores of the partition that no job has for its own; jobs that share may run on them."""
        return self._state.cores_free(partition_id)

    def ledger(self, tier: TierName) -> StorageView:
        """What is taken of a tier that has disks, by whomever; nothing of it has an end.

        Raises:
            KeyError: the tier has no disks, or there is none of this name.
        """
        return self._state.stock.ledger(tier)

    def draft(self) -> Draft:
        """A fresh scratch copy to plan starts on; placement answers on it."""
        if not self.tiers:
            return Draft(self, self._placement)
        space = StockDraft(self._state.stock, self.rng, self.now_s, self._state.clearing)
        self._drafts.append(space)
        return Draft(self, self._placement, space)

    def commit(self, plan: AdmissionPlan) -> None:
        """The plan is carried out: the rules of the tiers remember what was asked of them for it.

        It was made on one of the drafts; the last on which all its jobs with space were started.
        """
        starts = {placed.job_id for placed in plan.starts if placed.shares}
        for draft in reversed(self._drafts if starts else []):
            if starts <= draft.started:
                draft.commit()
                return


class Draft:
    """A view with some jobs already started on it: what a rule plans on before it answers.

    ``start`` takes slots and space on the draft only. ``place`` asks the composed placement rule
    and the tiers' allocation rules on the draft, so that a rule plans with the very placement that
    will be carried out.

    Args:
        stock: the tiers. None: there are none, and what jobs ask of them is not looked at.

    Attributes:
        platform: what can be handed out.
        tiers: of storage, fastest first.
        clearing: jobs that have ended and whose space is about to be given back.
    """

    def __init__(self, view: View, placement: Placement, stock: StockDraft | None = None) -> None:
        self.platform = view.platform
        self.tiers = () if stock is None else stock.tiers
        self.clearing = () if stock is None else stock.clearing
        self._view = view
        self._placement = placement
        self._stock = stock
        self._taken: dict[PartitionId, int] = {}
        self._aside: Mapping[PartitionId, int] = {}
        self._started: list[Job] = []
        self._cores = CoreDraft(view) if view.platform.shares_cores else None
        self._placing: Job | None = None

    @property
    def live(self) -> Iterable[Job]:
        """Jobs that hold slots; those started on the draft come last."""
        yield from self._view.live
        yield from self._started

    def ledger(self, tier: TierName) -> StorageView:
        """What is taken of a tier that has disks, in the state or on the draft.

        Raises:
            KeyError: the tier has no disks, or there is none of this name.
        """
        if self._stock is None:
            raise KeyError(tier)
        return self._stock.ledger(tier)

    def expected(self, job_id: JobId) -> Prediction:
        """What the job moves as a mean over its whole run."""
        return self._view.expected(job_id)

    def slots_free(self, partition_id: PartitionId) -> int:
        """Slots that may be taken, less those taken on the draft and those set aside.

        While a job is placed: as far as it may take them, where cores are shared.
        """
        taken = self._taken.get(partition_id, 0) + self._aside.get(partition_id, 0)
        free = self._view.slots_free(partition_id) - taken
        if self._cores is None or self._placing is None:
            return free
        return self._cores.slots_for(self._placing, partition_id, free)

    def place(
        self,
        job: Job,
        tier: TierName | None = None,
        *,
        aside: Mapping[PartitionId, int] | None = None,
    ) -> PartitionId | NotNow:
        """Where the placement rule puts the job on this draft, if there is space for it as well.

        Of a job that asks for scratch space and finds none the reason's code is ``Storage``, or
        ``StorageFull`` where it asked to fail then: named in a plan's reasons that ends it.

        Args:
            tier: it has to be on this one, whatever it asked for and would fall back to.
            aside: so many free slots of these partitions are kept from it.
        """
        self._aside = aside or {}
        try:
            found = self._choose(job)
        finally:
            self._aside = {}
        if isinstance(found, NotNow) or job.spec.scratch is None:
            return found
        space = self.find_space(job, tier)
        return NotNow(space) if isinstance(space, Reason) else found

    def find_space(
        self, job: Job, tier: TierName | None = None, *, without: Iterable[JobId] = ()
    ) -> tuple[Share, ...] | Reason:
        """The space that the job would get on this draft; or why none now.

        Args:
            tier: on this one alone.
            without: as if these jobs had given back what they hold.
        """
        return () if self._stock is None else self._stock.find(job, tier, without)

    def start(
        self,
        job: Job,
        partition_id: PartitionId,
        why: Reason | None = None,
        tier: TierName | None = None,
    ) -> Placed:
        """Take the job's slots and space on the draft; the answer goes into the plan.

        Args:
            job: which; ``place`` said where.
            why: of a start that is out of its turn.
            tier: as it was placed.

        Raises:
            InvariantError: there is no space for it, as ``place`` says.
        """
        shares: tuple[Share, ...] = ()
        where: TierName | None = None
        if job.spec.scratch is not None and self._stock is not None:
            shares, where = self._stock.take(job, tier)
        self._taken[partition_id] = self._taken.get(partition_id, 0) + job.spec.cpus
        if self._cores is not None:
            self._cores.take(job, partition_id)
        self._started.append(
            msgspec.structs.replace(job, partition=partition_id)
            if not shares
            else msgspec.structs.replace(job, partition=partition_id, shares=shares)
        )
        return Placed(job_id=job.id, partition=partition_id, why=why, shares=shares, tier=where)

    def _choose(self, job: Job) -> PartitionId | NotNow:
        rule = self._placement
        try:
            self._placing = job
            found = rule.choose(self, job)
            if not isinstance(found, NotNow) and self.slots_free(found) < job.spec.cpus:
                raise BadAnswer(
                    f"puts job {job.id} on socket {found}, which has too few free slots"
                )
        except FROM_A_RULE as error:
            raise rule_error("placement", rule, rule.choose, error) from error
        finally:
            self._placing = None
        if self._cores is not None and isinstance(found, NotNow) and found.reason.code == NO_SLOTS:
            most = max((self.slots_free(p.id) for p in self.platform.partitions), default=0)
            return NotNow(self._cores.told(job, most) or found.reason)
        return found


class CoreDraft:
    """Which slots a job may take where jobs share cores, in one decision.

    A job that asked for CPUs has as many cores that no other such job has. All others of a socket
    share its cores, the taken ones too. Together they are as many as there are cores, and above
    that as many as regulation lets share them, if there is memory for them.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._limit = view.start_limit
        self._left_bytes = None if self._limit is None else self._limit.memory_bytes
        self._taken: dict[PartitionId, int] = {}

    def slots_for(self, job: Job, partition_id: PartitionId, free: int) -> int:
        """How many of the partition's free slots the job may take."""
        if not job.spec.shares_cores and self._is_shared(partition_id):
            taken = self._taken.get(partition_id, 0)
            free = min(free, self._view.cores_free(partition_id) - taken)
        above = 0 if self._limit is None else self._limit.above_cores.get(partition_id, 0)
        if above and self._lacks_memory(job):
            return min(free, max(0, free - above))
        return free

    def take(self, job: Job, partition_id: PartitionId) -> None:
        if not job.spec.shares_cores:
            self._taken[partition_id] = self._taken.get(partition_id, 0) + job.spec.cpus
        if self._left_bytes is not None:
            self._left_bytes -= self._needed_bytes(job)

    def told(self, job: Job, most: int) -> Reason | None:
        """Why it finds no room, where that has to do with sharing; None: it has not.

        Args:
            most: slots of one partition that another job might take.
        """
        cpus = job.spec.cpus
        if most >= cpus and not job.spec.shares_cores and not self._lacks_memory(job):
            own = "1 core" if cpus == 1 else f"{cpus} cores of one socket"
            return Reason(code=NO_CORES, text=f"needs {own} for its own; others have taken them")
        if most >= cpus:
            needed, left = told_bytes(int(self._needed_bytes(job))), self._left_bytes or 0.0
            text = f"{self._told_cores()}; to share them it needs {needed} of memory, and "
            return Reason(code=NO_CORES, text=f"{text}{told_bytes(max(0, int(left)))} is left")
        if not job.spec.shares_cores:
            return None
        said = "" if self._limit is None else self._limit.why.text
        why = f": {said}" if said else ""
        text = f"{self._told_cores()}; regulation lets no more jobs share them now{why}"
        return Reason(code=NO_SLOTS, text=text)

    def _told_cores(self) -> str:
        partitions = self._view.platform.partitions
        cores = sum(partition.size for partition in partitions)
        where = "the socket" if len(partitions) == 1 else f"all {len(partitions)} sockets"
        if cores == 1:
            return f"the only core of {where} is busy or taken"
        return f"all {cores} cores of {where} are busy or taken"

    def _is_shared(self, partition_id: PartitionId) -> bool:
        return self._view.platform.partition(partition_id).cores is not None

    def _needed_bytes(self, job: Job) -> float:
        assert self._limit is not None
        return self._limit.needed_bytes(self._view.footprint_bytes(job.id))

    def _lacks_memory(self, job: Job) -> bool:
        if self._left_bytes is None:
            return False
        return self._needed_bytes(job) > self._left_bytes


class StartGate:
    """The limit in one decision: what it was when that began, less what was started in it.

    A job that would be alone always may start, else nothing might ever end and change the limit.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._left = view.start_limit
        is_alone = self._left is not None and next(iter(view.live), None) is None
        self._binds = None if is_alone else self._left

    @property
    def lets_all(self) -> bool:
        """Whether a job of any kind may start now."""
        limit = self._binds
        if limit is None:
            return True
        most = max((limit.share, *limit.shares.values()))
        return (limit.most is None or limit.most > 0) and _is_free(limit, most)

    @property
    def shut_by(self) -> Reason | None:
        """Why no job may start, whatever its kind; None: one might."""
        limit = self._binds
        if limit is None:
            return None
        least = min((limit.share, *limit.shares.values()))
        is_shut = (limit.most is not None and limit.most <= 0) or not _is_free(limit, least)
        return limit.why if is_shut else None

    def refusal(self, job: Job) -> Reason | None:
        """Why the job may not start now; None: it may."""
        limit = self._binds
        if limit is None:
            return None
        has_place = limit.most is None or limit.most > 0
        return None if has_place and _is_free(limit, self._share(limit, job)) else limit.why

    def take(self, job: Job) -> None:
        if (limit := self._left) is not None:
            self._left = self._binds = limit.after(1, self._share(limit, job))

    def _share(self, limit: StartLimit, job: Job) -> float:
        if not limit.shares:
            return limit.share
        return limit.share_of(self._view.kind(job.id))


def _is_free(limit: StartLimit, share: float) -> bool:
    return share <= 0.0 or share <= limit.free + ROUNDING
