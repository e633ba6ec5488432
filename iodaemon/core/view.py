"""What a rule may see: a live, read-only view of the state, and a draft to plan on.

No clock, no profile, nothing that changes the state.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from iodaemon.core.core_draft import NO_SLOTS, CoreDraft
from iodaemon.core.decision import Cap, Lesson, Placed, StartLimit
from iodaemon.core.job import Job, JobId, JobKind, Prediction, Reason, Share, TierName
from iodaemon.core.meter import Bandwidth, DeviceLoad
from iodaemon.core.platform import DeviceId, PartitionId, Platform
from iodaemon.core.rule_error import FROM_A_RULE, BadAnswer, rule_error
from iodaemon.core.sample import JobCounters, NodeCounters
from iodaemon.core.stock import StockDraft
from iodaemon.core.storage import StorageView, Tier


class View(Protocol):
    """The state as a rule sees it in one step. All orders are stable and written down here."""

    @property
    def now_s(self) -> float:
        """The instant of this step, on the timeline's clock."""
        ...

    @property
    def sampled_s(self) -> float | None:
        """When the last sample was taken; None before the first."""
        ...

    @property
    def platform(self) -> Platform:
        """What can be handed out."""
        ...

    @property
    def pending(self) -> Iterable[Job]:
        """Jobs that may start, in queue order; jobs no partition could ever hold are not in it."""
        ...

    @property
    def running(self) -> Iterable[Job]:
        """Jobs whose processes run, ordered by id; a suspend that is on its way excludes a job."""
        ...

    @property
    def suspended(self) -> Iterable[Job]:
        """Jobs that the regulation holds (or has asked to hold), ordered by id.

        A job that a person holds as well is in it; to resume it clears the regulation's hold.
        """
        ...

    @property
    def live(self) -> Iterable[Job]:
        """All jobs that hold slots, ordered by id."""
        ...

    @property
    def devices(self) -> Mapping[DeviceId, DeviceLoad]:
        """What each device went through in the last slice."""
        ...

    @property
    def node(self) -> NodeCounters:
        """The whole machine at the last sample."""
        ...

    @property
    def reservations(self) -> Mapping[JobId, float]:
        """Promised latest start times, by job, s."""
        ...

    @property
    def io_headroom_bytes_per_s(self) -> float | None:
        """I/O that may still be added, as regulation said; None: no limit."""
        ...

    @property
    def start_limit(self) -> StartLimit | None:
        """What is left of what regulation said of starts (``StartGate`` asks it); None: no limit.

        The controller carries out no start beyond it, whether a rule heeds it or not.
        """
        ...

    @property
    def caps(self) -> Mapping[JobId, Cap]:
        """What running jobs may move at most now, as regulation said."""
        ...

    def may_cap(self, job_id: JobId) -> bool:
        """Whether the job runs and can be slowed down here (``RegulationPlan.caps``)."""
        ...

    @property
    def rng(self) -> random.Random:
        """A seeded generator: same events, same numbers."""
        ...

    def job(self, job_id: JobId) -> Job:
        """The job with this id."""
        ...

    def bandwidth(self, job_id: JobId) -> Bandwidth | None:
        """What the job moved in the last slice; None: unknown, which is not zero."""
        ...

    def counters(self, job_id: JobId) -> JobCounters | None:
        """The job's counters at the last sample; None where there are none."""
        ...

    def predicted(self, job_id: JobId) -> Prediction:
        """What the job is expected to move when it runs: as measured last, else as hinted."""
        ...

    def expected(self, job_id: JobId) -> Prediction:
        """What it moves as a mean over its whole run: as hinted, else as measured until now."""
        ...

    def kind(self, job_id: JobId) -> JobKind:
        """What the job is like: jobs of one kind do the same with other data."""
        ...

    def lesson(self, kind: JobKind) -> Lesson | None:
        """What was learned of how many jobs of the kind should contend; None: nothing."""
        ...

    def recent_lessons(self, most: int) -> Iterable[tuple[JobKind, Lesson]]:
        """Of each user so many kinds, those of which something was learned last."""
        ...

    def footprint_bytes(self, job_id: JobId) -> float | None:
        """Memory that the job needs: as asked for, else as seen of its kind; None: unknown."""
        ...

    @property
    def lessons(self) -> int:
        """While it stays the same, what is expected of jobs that wait stays as well.

        So it does of jobs that hold slots, until the next sample.
        """
        ...

    def slots_free(self, partition_id: PartitionId) -> int:
        """Slots of the partition that may be taken now.

        Where cores are shared these are cores that are neither taken nor busy, and as many jobs
        more as regulation lets share them.
        """
        ...

    def cores_free(self, partition_id: PartitionId) -> int:
        """Cores of the partition that no job has for its own; jobs that share may run on them."""
        ...

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers of storage, fastest first; empty where none is configured."""
        ...

    def ledger(self, tier: TierName) -> StorageView:
        """What is taken of a tier that has disks, by whomever; nothing of it has an end.

        Raises:
            KeyError: the tier has no disks, or there is none of this name.
        """
        ...

    def draft(self) -> Draft:
        """A fresh scratch copy to plan starts on; placement answers on it."""
        ...


class NotNow(msgspec.Struct, frozen=True):
    """The job fits somewhere, but not at this moment."""

    reason: Reason


class PlacementView(Protocol):
    """What a placement rule needs: View and Draft both offer it."""

    @property
    def platform(self) -> Platform:
        """What can be handed out."""
        ...

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


class DraftView(PlacementView, Protocol):
    """What a draft needs of what it is a copy of."""

    @property
    def start_limit(self) -> StartLimit | None:
        """What is left of what regulation said of starts; None: no limit."""
        ...

    def cores_free(self, partition_id: PartitionId) -> int:
        """Cores of the partition that no job has for its own."""
        ...

    def footprint_bytes(self, job_id: JobId) -> float | None:
        """Memory that the job needs; None: unknown."""
        ...


class Placement(Protocol):
    """Which partition a job gets."""

    def choose(self, view: PlacementView, job: Job) -> PartitionId | NotNow:
        """The partition for this job now, or why not now."""
        ...


class Draft:
    """A view with some jobs already started on it: what a rule plans on before it answers.

    ``start`` takes slots and space on the draft only. ``place`` asks the composed placement rule
    and the tiers' allocation rules on the draft, so that a rule plans with the very placement that
    will be carried out.

    Args:
        view: what is.
        placement: the composed rule.
        stock: the tiers. None: there are none, and what jobs ask of them is not looked at.
    """

    def __init__(
        self, view: DraftView, placement: Placement, stock: StockDraft | None = None
    ) -> None:
        self._view = view
        self._placement = placement
        self._stock = stock
        self._taken: dict[PartitionId, int] = {}
        self._aside: Mapping[PartitionId, int] = {}
        self._started: list[Job] = []
        self._cores = CoreDraft(view) if view.platform.shares_cores else None
        self._placing: Job | None = None

    @property
    def platform(self) -> Platform:
        """What can be handed out."""
        return self._view.platform

    @property
    def live(self) -> Iterable[Job]:
        """Jobs that hold slots; those started on the draft come last."""
        yield from self._view.live
        yield from self._started

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers of storage, fastest first."""
        return () if self._stock is None else self._stock.tiers

    def ledger(self, tier: TierName) -> StorageView:
        """What is taken of a tier that has disks, in the state or on the draft.

        Raises:
            KeyError: the tier has no disks, or there is none of this name.
        """
        if self._stock is None:
            raise KeyError(tier)
        return self._stock.ledger(tier)

    @property
    def clearing(self) -> tuple[JobId, ...]:
        """Jobs that have ended and whose space is about to be given back."""
        return () if self._stock is None else self._stock.clearing

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
            job: which.
            tier: it has to be on this one, whatever it asked for and would fall back to.
            aside: so many free slots of these partitions are kept from it.
        """
        found = self._place(job, aside)
        if isinstance(found, NotNow) or job.spec.scratch is None:
            return found
        space = self.find_space(job, tier)
        return NotNow(space) if isinstance(space, Reason) else found

    def find_space(
        self, job: Job, tier: TierName | None = None, *, without: Iterable[JobId] = ()
    ) -> tuple[Share, ...] | Reason:
        """The space that the job would get on this draft; or why none now.

        Args:
            job: which.
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
            partition_id: there.
            why: of a start that is out of its turn.
            tier: as it was placed.

        Raises:
            InvariantError: there is no space for it, as ``place`` says.
        """
        shares: tuple[Share, ...] = ()
        where: TierName | None = None
        if job.spec.scratch is not None and self._stock is not None:
            shares = self._stock.take(job, tier)
            where = self._stock.tier_of(shares, tier)
        self._taken[partition_id] = self._taken.get(partition_id, 0) + job.spec.cpus
        if self._cores is not None:
            self._cores.take(job, partition_id)
        self._started.append(
            msgspec.structs.replace(job, partition=partition_id)
            if not shares
            else msgspec.structs.replace(job, partition=partition_id, shares=shares)
        )
        return Placed(job_id=job.id, partition=partition_id, why=why, shares=shares, tier=where)

    def _place(self, job: Job, aside: Mapping[PartitionId, int] | None) -> PartitionId | NotNow:
        if aside is None:
            return self._choose(job)
        self._aside = aside
        try:
            return self._choose(job)
        finally:
            self._aside = {}

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
