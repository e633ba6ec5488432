"""All that runs on a simulated platform: rates are constant between events, times are exact.

1. A job does one step of its profile after the other; a suspended job makes no progress.
2. What happens by itself stands in the agenda, a heap by time: the end of a computation, and of
   each resource (a link, the disk) the next time something happens on it. Entries that no longer
   hold are left in it and passed over.
3. All that happens at one instant happens before anything is shared anew, so that the result
   does not depend on the order within the instant.

An event costs O(log n) with n jobs: nothing is done for jobs that nothing happens to.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from iodaemon.core.job import IoTotals, JobId
from iodaemon.core.platform import DeviceId, PartitionId
from iodaemon.core.sample import DeviceCounters, JobCounters, NodeCounters
from iodaemon.errors import BackendError
from iodaemon.model.demand import DemandCounters
from iodaemon.model.link import make_link
from iodaemon.model.memory import Memory
from iodaemon.model.profile import (
    Compute,
    Profile,
    Read,
    Stage,
    Step,
    Touch,
    Transfer,
    step_size,
)
from iodaemon.model.progress import Kind, Progress, Resource, Task
from iodaemon.model.spec import Model
from iodaemon.model.storage import Storage
from iodaemon.model.store import Store

_SWEEP_ABOVE: Final = 64
"""The agenda is swept when it has this many entries more than twice what it last had to have."""
_NO_IO: Final = frozenset({Kind.COMPUTE, Kind.STAGE})
"""What no job has to wait for its turn to do; staging is the storage's own."""
_REQUEST_BYTES: Final = 128 * 1024
"""What a system call moves on a node without a disk of its own."""


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A job did all its steps."""

    job_id: JobId
    at_s: float
    io: IoTotals


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A job that speaks tells of its I/O.

    Attributes:
        expect_bytes: what it is about to move, and waits for its turn. None: it has done it.
    """

    job_id: JobId
    at_s: float
    expect_bytes: int | None


class Machine:
    """All that runs.

    Use: advance it to the present before anything else is asked of it; when all that happens at
    one instant is told, ``settle`` (or advance it further, which does).

    Attributes:
        stores: room for bytes, by name; jobs with ``holds`` reserve it from start to end.
        told: what jobs have told and nobody has heard yet, in that order.
    """

    def __init__(
        self, model: Model, now_s: float, cores: Mapping[PartitionId, int] = MappingProxyType({})
    ) -> None:
        """An empty machine.

        Args:
            model: what jobs share.
            now_s: the present.
            cores: of each partition, for its idle time.
        """
        self.stores: Mapping[str, Store] = {
            spec.id: Store(spec.capacity_bytes) for spec in model.stores
        }
        self.told: list[Told] = []
        self._now_s = self._began_s = now_s
        self._cores = cores
        self._gone_cpu_s: dict[PartitionId, float] = dict.fromkeys(cores, 0.0)
        self._idle_s: dict[PartitionId, float] = dict.fromkeys(cores, 0.0)
        self._gone_paged_bytes = 0
        self._specs = {spec.id: spec for spec in model.links}
        self._links: dict[tuple[str, PartitionId | None], Resource] = {}
        self._storage = None if model.disk is None else Storage(model.disk, now_s)
        self._memory = None if model.memory is None else Memory(model.memory)
        demand = DemandCounters(model.asked_bytes)
        self._demand = demand if model.counting == "demand" else None
        self._jobs: dict[JobId, Progress] = {}
        self._agenda: list[tuple[float, int, int, Any]] = []
        self._sweep_above = _SWEEP_ABOVE
        self._tickets = itertools.count()
        self._touched: dict[Resource, None] = {}

    @property
    def next_s(self) -> float:
        """When something will happen by itself, ``settle`` included; infinite for never."""
        return self._now_s if self._touched else self._next_entry_s()

    def advance(self, to_s: float) -> list[Finished]:
        """Let everything go on until then; the jobs that ended on the way, in that order."""
        finished: list[Finished] = []
        if to_s > self._now_s:
            self.settle()
        while self._next_entry_s() <= to_s:
            finished += self._happen()
        self._now_s = max(self._now_s, to_s)
        return finished

    def run_ahead(self, before_s: float) -> list[Finished]:
        """Go on to the first time before that one at which jobs end or speak; those that end.

        Until then nobody else may act or look.
        """
        finished: list[Finished] = []
        self.settle()
        while not (finished or self.told) and self._next_entry_s() < before_s:
            finished = self._happen()
        return finished

    def add(self, job_id: JobId, profile: Profile, slots: int, partition: PartitionId) -> None:
        """Start a job.

        Raises:
            NoSpace: a store has too little room now.
            BackendError: it needs what the platform does not have.
        """
        tasks = self._tasks(profile, partition)
        self._reserve(job_id, profile)
        job = Progress(job_id, profile, tasks, partition)
        job.slots = slots
        job.started_s = self._now_s
        self._jobs[job_id] = job
        if self._memory is not None:
            self._memory.enter(job_id, profile.resident_bytes)
        job.go_on(self._now_s)
        self._take_up(job)

    def remove(self, job_id: JobId) -> IoTotals:
        """End a job wherever it is; what it dirtied is written all the same."""
        job = self._jobs[job_id]
        self._stand(job)
        return self._retire(job)

    def suspend(self, job_id: JobId) -> None:
        """Bring a job to a standstill."""
        job = self._jobs[job_id]
        job.is_held = True
        if self._memory is not None:
            self._memory.hold(job_id)
        self._stand(job)

    def resume(self, job_id: JobId) -> None:
        """Let a job go on."""
        job = self._jobs[job_id]
        job.is_held = False
        if self._memory is not None:
            self._memory.release(job_id)
        self._let_go(job)

    def cap(
        self,
        job_id: JobId,
        *,
        read_bytes_per_s: float = math.inf,
        written_bytes_per_s: float = math.inf,
    ) -> None:
        """Let a job read and write no more than that from now on."""
        job = self._jobs[job_id]
        caps = read_bytes_per_s, written_bytes_per_s
        if job.caps != caps:
            self._stand(job)
            job.caps = caps
            self._let_go(job)

    def give_turn(self, job_id: JobId) -> None:
        """It is the job's turn: what it waits to do it does; nothing for one that does not wait."""
        job = self._jobs.get(job_id)
        if job is not None and job.awaits_turn:
            job.awaits_turn, job.has_turn = False, True
            self._let_go(job)

    def settle(self) -> None:
        """Find what holds from now on, once all that happens at this instant has happened."""
        for resource in self._touched:
            resource.settle(self._now_s)
            entry, next_s = resource.entry, resource.next_s
            if entry is None or entry[0] != next_s:
                resource.entry = None
                if next_s < math.inf:
                    self._enter(resource, next_s, -1)
        self._touched.clear()

    # -- counters ----------------------------------------------------------------------------

    def jobs(self) -> dict[JobId, JobCounters]:
        """The counters of each job that has not ended."""
        disk = None if self._storage is None else self._storage.disk
        device = None if disk is None else disk.id
        counters = {
            job_id: job.counters(self._now_s, self._request_bytes, device)
            for job_id, job in self._jobs.items()
        }
        if self._memory is not None:
            counters = {
                job_id: _with_resident(each, self._memory.here(job_id))
                for job_id, each in counters.items()
            }
        if self._demand is None or self._storage is None:
            return counters
        pairs = [(self._jobs[job_id], each) for job_id, each in counters.items()]
        return self._demand.count(self._storage, pairs, self._now_s)

    @property
    def _request_bytes(self) -> int:
        """What one system call moves."""
        return _REQUEST_BYTES if self._storage is None else self._storage.disk.request_bytes

    def devices(self) -> dict[DeviceId, DeviceCounters]:
        """The line of /proc/diskstats of the disk, where there is one."""
        if self._storage is None:
            return {}
        counters = self._storage.device(self._jobs.values(), self._now_s)
        return {self._storage.disk.id: counters}

    def node(self) -> NodeCounters:
        """The counters of the whole machine."""
        node = NodeCounters() if self._storage is None else self._storage.node(self._now_s)
        node = msgspec.structs.replace(node, idle_s=self._count_idle())
        if self._memory is None:
            return node
        paged = sum(job.paged_bytes(self._now_s) for job in self._jobs.values())
        return msgspec.structs.replace(
            node,
            available_bytes=self._memory.available_bytes,
            memory_bytes=int(self._memory.room_bytes),
            refault_bytes=self._gone_paged_bytes + paged,
        )

    def _count_idle(self) -> dict[PartitionId, float]:
        """Time for which cores had no job computing on them, summed over each partition's.

        Where cores are handed out several times more may compute than there are: it stands still
        then until it is made up for.
        """
        busy_s = dict(self._gone_cpu_s)
        for job in self._jobs.values():
            if job.partition in busy_s:
                busy_s[job.partition] += job.cpu_s(self._now_s)
        passed_s = self._now_s - self._began_s
        for partition, cores in self._cores.items():
            idle_s = cores * passed_s - busy_s[partition]
            self._idle_s[partition] = max(self._idle_s[partition], idle_s)
        return dict(self._idle_s)

    # -- what jobs need ----------------------------------------------------------------------

    def _tasks(self, profile: Profile, partition: PartitionId) -> tuple[Task, ...]:
        return tuple(
            Task(step, self._resource(step, partition))
            for step in profile.steps
            if step_size(step) > 0
        )

    def _resource(self, step: Step, partition: PartitionId) -> Resource | None:
        match step:
            case Compute():
                return None
            case Touch() if self._memory is None:
                return None
            case Transfer() | Stage():
                return self._link(step.link, partition)
            case _:
                if self._storage is None:
                    what = "reads" if isinstance(step, Read) else "writes"
                    raise BackendError(f"it {what}, but the platform has no disk")
                return self._storage

    def _link(self, name: str, partition: PartitionId) -> Resource:
        spec = self._specs.get(name)
        if spec is None:
            known = ", ".join(self._specs) or "none"
            raise BackendError(f"no link is called {name!r}; there are: {known}")
        key = (name, partition if spec.per_partition else None)
        if key not in self._links:
            self._links[key] = make_link(spec, self._now_s)
        return self._links[key]

    def _reserve(self, job_id: JobId, profile: Profile) -> None:
        for hold in profile.holds:
            store = self.stores.get(hold.store)
            if store is None:
                known = ", ".join(self.stores) or "none"
                raise BackendError(f"no store is called {hold.store!r}; there are: {known}")
            if hold.size_bytes > store.capacity_bytes:
                raise BackendError(
                    f"{hold.size_bytes} bytes never fit into store {hold.store} of "
                    f"{store.capacity_bytes}"
                )
        try:
            for hold in profile.holds:
                self.stores[hold.store].reserve(job_id, hold.size_bytes, self._now_s)
        except BackendError:
            self._give_back(job_id, profile)
            raise

    def _give_back(self, job_id: JobId, profile: Profile) -> None:
        for name in {hold.store for hold in profile.holds}:
            self.stores[name].release(job_id, self._now_s)

    # -- what happens ------------------------------------------------------------------------

    def _next_entry_s(self) -> float:
        agenda = self._agenda
        while agenda and agenda[0][3].entry is not agenda[0]:
            heapq.heappop(agenda)
        return agenda[0][0] if agenda else math.inf

    def _happen(self) -> list[Finished]:
        """Do all that is due when the next entry is; jobs that end by it, ordered by id."""
        agenda = self._agenda
        ended: list[Progress] = []
        if agenda[0][0] > self._now_s:
            self._now_s = agenda[0][0]
        now_s = self._now_s
        while agenda and agenda[0][0] <= now_s:
            entry = heapq.heappop(agenda)
            source = entry[3]
            if source.entry is not entry:
                continue
            source.entry = None
            if type(source) is Progress:
                self._go_on(source, ended)
            else:
                self._touched[source] = None
                for job in source.reach(now_s):
                    self._go_on(job, ended)
        if len(ended) > 1:
            ended.sort(key=lambda job: job.job_id)
        finished = [Finished(job_id=job.job_id, at_s=now_s, io=self._retire(job)) for job in ended]
        if self._touched:
            self.settle()
        return finished

    def _go_on(self, job: Progress, ended: list[Progress]) -> None:
        """The job's present task is done."""
        if job.has_turn:
            job.has_turn = False
            self.told.append(Told(job_id=job.job_id, at_s=self._now_s, expect_bytes=None))
        job.go_on(self._now_s)
        if job.task is None:
            ended.append(job)
        else:
            self._take_up(job)

    def _take_up(self, job: Progress) -> None:
        """Begin a task; one of I/O a job that speaks begins when it is its turn."""
        self._page_in(job)
        task = job.task
        if not job.profile.speaks or task is None or task.touches or task.kind in _NO_IO:
            self._begin(job)
            return
        job.is_active, job.awaits_turn = False, True
        told = Told(job_id=job.job_id, at_s=self._now_s, expect_bytes=math.ceil(task.size))
        self.told.append(told)

    def _page_in(self, job: Progress) -> None:
        """Where memory is touched: what is missing is to be read; with nothing missing go on."""
        while job.task is not None and job.task.touches:
            memory = self._memory
            job.size = 0.0 if memory is None else memory.fault(job.job_id, job.task.size)
            if job.size > 0.0:
                job.left = job.size
                return
            job.pass_over()

    def _let_go(self, job: Progress) -> None:
        if not (job.is_active or job.is_held or job.awaits_turn):
            job.is_active = True
            self._begin(job)

    def _begin(self, job: Progress) -> None:
        """Do what is left of the present task; with no task left the job ends now."""
        task = job.task
        if task is None or task.resource is None:
            job.finish_s = self._now_s + job.left
            self._enter(job, job.finish_s, job.job_id)
        else:
            task.resource.begin(job, self._now_s)
            self._touched[task.resource] = None

    def _stand(self, job: Progress) -> None:
        if job.is_active:
            job.stand(self._now_s)
            job.entry = None
            if job.task is not None and job.task.resource is not None:
                self._touched[job.task.resource] = None

    def _retire(self, job: Progress) -> IoTotals:
        del self._jobs[job.job_id]
        self._give_back(job.job_id, job.profile)
        if self._memory is not None:
            self._memory.leave(job.job_id)
            self._gone_paged_bytes += job.paged_bytes(self._now_s)
        if job.partition in self._gone_cpu_s:
            self._gone_cpu_s[job.partition] += job.cpu_s(self._now_s)
        if self._storage is not None:
            self._storage.retire(job, self._now_s)
        return job.totals(self._now_s, self._request_bytes)

    def _enter(self, source: Any, time_s: float, number: int) -> None:
        source.entry = entry = (time_s, number, next(self._tickets), source)
        heapq.heappush(self._agenda, entry)
        if len(self._agenda) > self._sweep_above:
            self._agenda[:] = [entry for entry in self._agenda if entry[3].entry is entry]
            heapq.heapify(self._agenda)
            self._sweep_above = _SWEEP_ABOVE + 2 * len(self._agenda)


def _with_resident(counters: JobCounters, here_bytes: float) -> JobCounters:
    return msgspec.structs.replace(counters, resident_bytes=int(here_bytes))
