"""Runs the jobs of SAS under its rule: the very rule of the daemon, in a small world of its own.

Links are shared equally by what flows on them, and independent of each other. Nodes and space are
held from the start of a job to the end of its staging. A run is a workload, a cluster and a way to
choose tiers; its measures are a row.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.decision import Lesson
from iodaemon.core.job import (
    UNKNOWN,
    Job,
    JobId,
    JobKind,
    JobSpec,
    JobState,
    Prediction,
    ScratchRequest,
    TierName,
)
from iodaemon.core.measure import mean
from iodaemon.core.platform import PartitionId
from iodaemon.core.rule import Admission
from iodaemon.core.sample import NodeCounters
from iodaemon.core.similarity import kind_of
from iodaemon.core.stock import Stock, StockDraft
from iodaemon.core.storage import StorageView, Tier
from iodaemon.core.view import Draft, View
from iodaemon.policy.admission import storage_aware
from iodaemon.policy.placement import least_io
from iodaemon.simulator.experiment import Row
from iodaemon.simulator.sas import FAST, GB, SLOW, Load, SasJob, Site, draw_workload

COMPUTE: Final = "compute"
STAGE: Final = "stage"
"""Followed by the tier's name: the link between it and the slow one."""
_COMMAND: Final = ("simulated",)
Asking = Callable[[SasJob, int], ScratchRequest]
"""What the user of a job says of it, which is the n-th that comes."""


class Lived(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job.

    Attributes:
        job: which.
        submit_s: when it came.
        start_s: when it had its nodes and space.
        nodes_s: until when it held the nodes.
        end_s: when it and its staging were over.
        tier: on which it was.
        space_bytes: what it held of it, as far as that is counted.
    """

    job: SasJob
    submit_s: float
    start_s: float
    nodes_s: float
    end_s: float
    tier: TierName
    space_bytes: int


class _Link:
    """Bytes that flow, all at the same pace."""

    __slots__ = ("_clock", "_heap", "_now_s", "_rate", "_tickets", "next_s")

    def __init__(self, rate: float, tickets: Iterator[int]) -> None:
        self.next_s = math.inf
        self._rate = rate
        self._now_s = 0.0
        self._clock = 0.0
        self._heap: list[tuple[float, int, _Run]] = []
        self._tickets = tickets

    def add(self, now_s: float, size_bytes: float, run: _Run) -> None:
        """So much begins to flow."""
        heap = self._heap
        if heap:
            self._clock += (now_s - self._now_s) * self._rate / len(heap)
        self._now_s = now_s
        heapq.heappush(heap, (self._clock + size_bytes, next(self._tickets), run))
        self.next_s = now_s + (heap[0][0] - self._clock) * len(heap) / self._rate

    def take(self) -> _Run:
        """What has arrived at ``next_s``, which is now."""
        heap = self._heap
        self._now_s = self.next_s
        self._clock, _, run = heapq.heappop(heap)
        self.next_s = math.inf
        if heap:
            self.next_s = self._now_s + (heap[0][0] - self._clock) * len(heap) / self._rate
        else:
            self._clock = 0.0
        return run


class _Run:
    """A job on its way: what it still does, step by step."""

    __slots__ = ("job", "number", "start_s", "steps", "submit_s", "tier")

    def __init__(self, job: SasJob, number: JobId, submit_s: float) -> None:
        self.job = job
        self.number = number
        self.submit_s = submit_s
        self.start_s = 0.0
        self.tier = TierName("")
        self.steps: deque[tuple[str, float]] = deque()


_Steps = list[tuple[str, float]]
Doing = Callable[[SasJob, TierName, TierName], _Steps]


def steps_of(job: SasJob, tier: TierName, slowest: TierName) -> _Steps:
    """What the job does there: computing in s, or a link and bytes."""
    found: _Steps = []
    if tier != slowest:
        found.append((f"{STAGE} {tier}", job.input_bytes))
    found.append((tier, job.input_bytes))
    piece_s = job.compute_s / (job.checkpoints + 1)
    for _ in range(job.checkpoints):
        found += [(COMPUTE, piece_s), (tier, job.checkpoint_bytes)]
    found += [(COMPUTE, piece_s), (tier, job.output_bytes)]
    if tier != slowest:
        found.append((f"{STAGE} {tier}", job.output_bytes))
    return found


class World(View):
    """What the rule sees, and what happens.

    Args:
        site: the cluster.
        rule: of admission.
        jobs: ordered by arrival.
        asking: what is said of each.
        tiers: fastest first. None: the site's.
        doing: what a job does on a tier, when that is not what ``steps_of`` says.
    """

    def __init__(
        self,
        site: Site,
        rule: Admission[Any],
        jobs: Sequence[SasJob],
        asking: Asking,
        *,
        tiers: Sequence[Tier] | None = None,
        doing: Doing | None = None,
    ) -> None:
        self.now_s = 0.0
        self.sampled_s = None
        self.platform = site.platform()
        self.tiers = tuple(tiers or site.tiers())
        self.reservations = {}
        self.io_headroom_bytes_per_s = None
        self.start_limit = None
        self.caps = {}
        self.rng = random.Random(0)  # noqa: S311 - for simulations, not for secrets
        self.lessons = 0
        self.node = NodeCounters()
        self.devices = {}
        self.lives: list[Lived] = []
        self.stock = Stock(self.tiers)
        self._site = site
        self._rule = rule
        self._memory: Any = None
        self._asking = asking
        self._doing = doing or steps_of
        self._placement = least_io.Rule()
        self._free = site.nodes
        self._waiting: dict[JobId, Job] = {}
        self._live: dict[JobId, Job] = {}
        self._runs: dict[JobId, _Run] = {}
        self._by_name = {tier.name: tier for tier in self.tiers}
        self._tickets = itertools.count()
        self._links = self._made_links()
        self._all_links = tuple(self._links.values())
        self._timers: list[tuple[float, int, _Run | SasJob]] = []
        self._came = 0
        self._coming = iter(jobs)
        self._wait_for_next()

    # -- what the rule sees --------------------------------------------------------------------

    @property
    def pending(self) -> Iterator[Job]:
        """In the order in which they came."""
        return iter(self._waiting.values())

    @property
    def live(self) -> Iterator[Job]:
        """In the order in which they started."""
        return iter(self._live.values())

    running = live

    def job(self, job_id: JobId) -> Job:
        """That waits or is live."""
        return self._waiting.get(job_id) or self._live[job_id]

    def may_cap(self, job_id: JobId) -> bool:  # noqa: ARG002 - View's signature
        """Nothing is slowed down."""
        return False

    def bandwidth(self, job_id: JobId) -> None:
        """Nothing is measured."""

    counters = footprint_bytes = bandwidth

    def kind(self, job_id: JobId) -> JobKind:
        """What the job is like."""
        return kind_of(self.job(job_id))

    def recent_lessons(self, most: int) -> Iterator[tuple[JobKind, Lesson]]:  # noqa: ARG002
        """Nothing is learned."""
        return iter(())

    def lesson(self, kind: JobKind) -> None:
        """Nothing is learned."""

    def predicted(self, job_id: JobId) -> Prediction:  # noqa: ARG002 - as every view
        """Nothing is."""
        return UNKNOWN

    expected = predicted

    def slots_free(self, partition_id: PartitionId) -> int:  # noqa: ARG002 - there is one
        """Nodes that nobody holds."""
        return self._free

    cores_free = slots_free

    def ledger(self, tier: TierName) -> StorageView:
        """What is taken of it."""
        return self.stock.ledger(tier)

    def draft(self) -> Draft:
        """To plan on."""
        return Draft(self, self._placement, StockDraft(self.stock, self.rng, self.now_s))

    # -- what happens --------------------------------------------------------------------------

    def run(self) -> tuple[Lived, ...]:
        """To the end of all jobs; what became of each, in the order of their ends."""
        while self.step():
            pass
        return tuple(self.lives)

    def step(self) -> bool:
        """One instant: all that happens in it, and then the decision; False: there is none."""
        now_s = self._timers[0][0] if self._timers else math.inf
        for link in self._all_links:
            if link.next_s < now_s:
                now_s = link.next_s
        if now_s == math.inf:
            if self._waiting:
                raise ValueError(f"{len(self._waiting)} jobs never start on this cluster")
            return False
        self.now_s = now_s
        changed = False
        while self._timers and self._timers[0][0] <= now_s:
            _, _, what = heapq.heappop(self._timers)
            if isinstance(what, SasJob):
                self._submit(what)
                self._wait_for_next()
                changed = True
            else:
                changed |= self._go_on(what)
        for link in self._all_links:
            while link.next_s <= now_s:
                changed |= self._go_on(link.take())
        if changed:
            self._decide()
        return True

    def _made_links(self) -> dict[str, _Link]:
        found: dict[str, _Link] = {}
        for tier in self.tiers:
            found[tier.name] = _Link(tier.bandwidth_bytes_per_s, self._tickets)
            if tier.staging_bytes_per_s < math.inf:
                name = f"{STAGE} {tier.name}"
                found[name] = _Link(tier.staging_bytes_per_s, self._tickets)
        return found

    def _wait_for_next(self) -> None:
        job = next(self._coming, None)
        if job is not None:
            heapq.heappush(self._timers, (job.arrive_s, next(self._tickets), job))

    def _submit(self, job: SasJob) -> None:
        number = JobId(self._came + 1)
        spec = JobSpec(
            command=_COMMAND,
            cpus=job.nodes,
            walltime_s=job.walltime_s,
            scratch=self._asking(job, self._came),
        )
        self._came += 1
        self._waiting[number] = Job(
            id=number,
            spec=spec,
            uid=0,
            state=JobState.PENDING,
            since_s=self.now_s,
            submitted_s=self.now_s,
        )
        self._runs[number] = _Run(job, number, self.now_s)

    def _decide(self) -> None:
        if not self._waiting:
            return
        plan, self._memory = self._rule.decide(self, self._memory)
        self.reservations = plan.reservations
        for placed in plan.starts:
            job = self._waiting.pop(placed.job_id)
            begun = msgspec.structs.replace(
                job,
                state=JobState.RUNNING,
                since_s=self.now_s,
                started_s=self.now_s,
                partition=placed.partition,
                shares=placed.shares,
            )
            self._live[job.id] = begun
            self.stock.follow(job, begun)
            self._free -= job.spec.cpus
            if self._free < 0:
                raise ValueError(f"job {job.id} was started without nodes")
            self._begin(self._runs[job.id], begun)

    def _begin(self, run: _Run, begun: Job) -> None:
        slowest = self.tiers[-1].name
        run.tier = begun.shares[0].tier if begun.shares else slowest
        run.start_s = self.now_s
        run.steps.extend(self._doing(run.job, run.tier, slowest))
        self._go_on(run)

    def _go_on(self, run: _Run) -> bool:
        """The next step of it; True where it gives back what it held."""
        steps, changed = run.steps, False
        while steps:
            kind, amount = steps.popleft()
            if not steps and kind.startswith(STAGE) and self._frees_nodes:
                self._give_back_nodes(run, amount)
                changed = True
            if amount <= 0.0:
                continue
            if kind == COMPUTE:
                due = (self.now_s + amount, next(self._tickets), run)
                heapq.heappush(self._timers, due)
                return changed
            link = self._links.get(kind)
            if link is not None:
                link.add(self.now_s, amount, run)
                return changed
        self._end(run)
        return True

    @property
    def _frees_nodes(self) -> bool:
        return self._site.nodes_while_staging == "freed"

    def _give_back_nodes(self, run: _Run, staged_bytes: float) -> None:
        """From now on it holds its space alone, for as long as its staging takes."""
        job = self._live[run.number]
        takes_s = staged_bytes / self._by_name[run.tier].staging_bytes_per_s
        self._free += job.spec.cpus
        self._live[run.number] = msgspec.structs.replace(
            job, state=JobState.STOPPING, partition=None, kill_at_s=self.now_s + takes_s
        )

    def _end(self, run: _Run) -> None:
        job = self._live.pop(run.number)
        nodes_s = self.now_s
        if job.partition is None:
            assert job.kill_at_s is not None
            staged_s = run.job.output_bytes / self._by_name[run.tier].staging_bytes_per_s
            nodes_s = job.kill_at_s - staged_s
        else:
            self._free += job.spec.cpus
        self.stock.follow(job, None)
        del self._runs[run.number]
        self.lives.append(
            Lived(
                job=run.job,
                submit_s=run.submit_s,
                start_s=run.start_s,
                nodes_s=nodes_s,
                end_s=self.now_s,
                tier=run.tier,
                space_bytes=sum(share.size_bytes for share in job.shares),
            )
        )
        if run.job.again:
            self._submit(msgspec.structs.replace(run.job, again=run.job.again - 1))


def hold_bytes_s(life: Lived) -> float:
    """Space of the fast tier times time that the job held."""
    return life.space_bytes * (life.end_s - life.start_s) if life.tier == FAST else 0.0


SAS: Final = "sas"
RANDOM: Final = "random"
SILENT: Final = "silent"
"""SAS, told nothing of what jobs move."""
Way = Literal["sas", "random", "silent"]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work.

    Attributes:
        seed: of the workload.
        gb: what the fast tier holds.
        way: who chooses the tiers.
        p: with ``random``: a job is on the fast tier with this probability.
        k: bandwidth of the staging in parts of that of the slow tier.
        theta: with ``sas``: relative standard deviation of what is said of a job.
        draw: repetition, of what is drawn beside the workload.
        space: what is asked for with ``theta``: what is needed, or what follows from what is said.
    """

    seed: int
    gb: float
    way: Way = SAS
    p: float = 0.0
    k: float = 5.0
    theta: float = 0.0
    draw: int = 0
    space: Literal["needed", "said"] = "needed"


def site_of(site: Site, point: Point) -> Site:
    """The cluster of a run."""
    return msgspec.structs.replace(site, fast_bytes=round(point.gb * GB), stage_ratio=point.k)


def run_point(load: Load, site: Site, point: Point, rule: storage_aware.Rule) -> Row:
    """The measures of a run."""
    here = site_of(site, point)
    jobs = draw_workload(load, here, point.seed)
    lives = World(here, rule, jobs, asking_of(load, here, point)).run()
    where = msgspec.structs.asdict(point)
    del where["space"]  # the same in all rows of a study
    return {"kind": "run", **where, **measures(here, lives)}


def asking_of(load: Load, site: Site, point: Point) -> Asking:
    """What is said of each job.

    What is drawn is the same for every p and theta of a draw: a job that is on the fast tier with
    one p is so with a larger one, unless it is too large for it.
    """
    rng = random.Random(f"sas {point.seed} {point.draw}")  # noqa: S311 - for simulations
    count = load.model.jobs
    if point.way == RANDOM:
        lots = [rng.random() for _ in range(count)]

        def at_random(job: SasJob, number: int) -> ScratchRequest:
            fits = job.space_bytes <= site.fast_bytes
            return job.asks(FAST if fits and lots[number] < point.p else SLOW)

        return at_random
    if point.way == SILENT:
        return lambda job, _: job.asks(None, (0.0, 0.0, 0.0))
    errors = [(rng.gauss(), rng.gauss(), rng.gauss()) for _ in range(count)]

    def told(job: SasJob, number: int) -> ScratchRequest:
        first, second, third = (max(0.0, 1.0 + point.theta * e) for e in errors[number])
        return job.asks(None, (first, second, third), space_follows=point.space == "said")

    return told


def measures(site: Site, lives: tuple[Lived, ...]) -> Row:
    """Of a run: times, what was used of what there was, how many jobs were on each tier."""
    makespan_s = max(life.end_s for life in lives) - min(life.submit_s for life in lives)
    fast = sum(life.tier == FAST for life in lives)
    return {
        "makespan_s": makespan_s,
        "turnaround_s": mean([life.end_s - life.submit_s for life in lives]),
        "node_s": sum(life.job.nodes * (life.nodes_s - life.start_s) for life in lives),
        "of_node_s": makespan_s * site.nodes,
        "byte_s": sum(map(hold_bytes_s, lives)),
        "of_byte_s": makespan_s * site.fast_bytes,
        "fast_jobs": fast,
        "slow_jobs": len(lives) - fast,
    }
