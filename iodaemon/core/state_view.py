"""The View of one step: the live state, read-only, at one instant."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

from iodaemon.core.decision import AdmissionPlan, Cap, Lesson, StartLimit
from iodaemon.core.job import Job, JobId, JobKind, JobState, Prediction, TierName
from iodaemon.core.lessons import says_of_limit
from iodaemon.core.meter import Bandwidth, DeviceLoad
from iodaemon.core.platform import DeviceId, PartitionId, Platform
from iodaemon.core.rule import Rules
from iodaemon.core.sample import JobCounters, NodeCounters
from iodaemon.core.state import State
from iodaemon.core.stock import StockDraft
from iodaemon.core.storage import StorageView, Tier
from iodaemon.core.view import Draft


class StateView:
    """The View of one step: the live state, read-only, at one instant.

    Args:
        state: what is.
        rules: the policy in force.
        now_s: the instant.
        rng: seeded.
        seen: shows a live job otherwise than it is, as it would be. None: as it is.
    """

    def __init__(
        self,
        state: State,
        rules: Rules,
        now_s: float,
        rng: random.Random,
        *,
        seen: Callable[[Job], Job] | None = None,
    ) -> None:
        self._state = state
        self._seen = seen
        self.rules = rules
        self.now_s = now_s
        self.rng = rng
        self._drafts: list[StockDraft] = []

    @property
    def sampled_s(self) -> float | None:
        """When the last sample was taken; None before the first."""
        last = self._state.meter.last
        return None if last is None else last.at_s

    @property
    def platform(self) -> Platform:
        """What can be handed out."""
        return self._state.platform

    @property
    def pending(self) -> Iterator[Job]:
        """Jobs that may start, in queue order; any of them, also all, are within users' limits."""
        return self._state.queue

    @property
    def running(self) -> Iterator[Job]:
        """Jobs whose processes run and are not about to be stopped, ordered by id."""
        return (job for job in self.live if job.state is JobState.RUNNING and not job.wants_freeze)

    @property
    def suspended(self) -> Iterator[Job]:
        """Jobs that the regulation holds, ordered by id."""
        return (job for job in self.live if job.io_hold)

    @property
    def live(self) -> Iterator[Job]:
        """All jobs that hold slots, ordered by id."""
        live = self._state.live
        return live if self._seen is None else map(self._seen, live)

    @property
    def devices(self) -> Mapping[DeviceId, DeviceLoad]:
        """What each device went through in the last slice."""
        return self._state.meter.devices

    @property
    def node(self) -> NodeCounters:
        """The whole machine at the last sample."""
        last = self._state.meter.last
        return NodeCounters() if last is None else last.node

    @property
    def reservations(self) -> Mapping[JobId, float]:
        """Promised latest start times, s."""
        return self._state.reservations

    @property
    def io_headroom_bytes_per_s(self) -> float | None:
        """I/O that may still be added; None: no limit."""
        return self._state.io_headroom_bytes_per_s

    @property
    def start_limit(self) -> StartLimit | None:
        """What is left of what regulation said of starts; None: no limit."""
        return self._state.start_limit

    @property
    def caps(self) -> Mapping[JobId, Cap]:
        """What running jobs may move at most now."""
        return {job_id: capped.cap for job_id, capped in self._state.caps.items()}

    def may_cap(self, job_id: JobId) -> bool:
        """Whether the job runs and can be slowed down here; in shadow mode none is."""
        return self._seen is None and self._state.may_cap(job_id)

    def job(self, job_id: JobId) -> Job:
        """The job with this id."""
        job = self._state.jobs[job_id]
        return job if self._seen is None else self._seen(job)

    def bandwidth(self, job_id: JobId) -> Bandwidth | None:
        """What the job moved in the last slice; None: unknown."""
        return self._state.meter.bandwidth(job_id)

    def counters(self, job_id: JobId) -> JobCounters | None:
        """The job's counters at the last sample; None where there are none."""
        return self._state.meter.counters(job_id)

    def predicted(self, job_id: JobId) -> Prediction:
        """What the job is expected to move when it runs."""
        return self._state.predicted(job_id)

    def expected(self, job_id: JobId) -> Prediction:
        """What it moves as a mean over its whole run."""
        return self._state.expected(job_id)

    def kind(self, job_id: JobId) -> JobKind:
        """What the job is like."""
        return self._state.kind(job_id)

    def lesson(self, kind: JobKind) -> Lesson | None:
        """What was learned of how many jobs of the kind should contend; None: nothing."""
        lesson = self._state.lessons.get(kind)
        return lesson if lesson is not None and says_of_limit(lesson) else None

    def recent_lessons(self, most: int) -> Iterator[tuple[JobKind, Lesson]]:
        """Of each user so many kinds, those of which something was learned last."""
        return self._state.lessons.recent(most)

    def footprint_bytes(self, job_id: JobId) -> float | None:
        """Memory that the job is expected to need; None: unknown."""
        return self._state.footprint_bytes(job_id)

    @property
    def lessons(self) -> int:
        """Counts up when what is expected of jobs that wait may have changed."""
        return self._state.outlook.lessons

    def slots_free(self, partition_id: PartitionId) -> int:
        """Slots of the partition that may be taken now."""
        return self._state.slots_free(partition_id)

    def cores_free(self, partition_id: PartitionId) -> int:
        """Cores of the partition that no job has for its own."""
        return self._state.cores_free(partition_id)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers of storage, fastest first."""
        return self._state.stock.tiers

    def ledger(self, tier: TierName) -> StorageView:
        """What is taken of a tier that has disks."""
        return self._state.stock.ledger(tier)

    def draft(self) -> Draft:
        """A fresh scratch copy to plan starts on."""
        if not self._state.stock.tiers:
            return Draft(self, self.rules.placement)
        space = StockDraft(self._state.stock, self.rng, self.now_s, self._state.clearing)
        self._drafts.append(space)
        return Draft(self, self.rules.placement, space)

    def commit(self, plan: AdmissionPlan) -> None:
        """The plan is carried out: the rules of the tiers remember what was asked of them for it.

        It was made on one of the drafts; the last on which all its jobs with space were started.
        """
        starts = {placed.job_id for placed in plan.starts if placed.shares}
        for draft in reversed(self._drafts if starts else []):
            if starts <= draft.started:
                draft.commit()
                return
