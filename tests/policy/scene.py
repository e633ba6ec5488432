"""Builders: a real state in a given situation, as a rule sees it."""

import random
from collections.abc import Iterable

from iodaemon.core.job import Job, JobId, JobSpec, JobState, Reason
from iodaemon.core.platform import DeviceId, Partition, PartitionId, Platform, Slot, SlotId
from iodaemon.core.rule import Rules
from iodaemon.core.sample import JobCounters, Sample
from iodaemon.core.state import State
from iodaemon.core.view import View
from iodaemon.policy.admission.fcfs import Rule as Fcfs
from iodaemon.policy.placement.least_io import Rule as LeastIo
from iodaemon.policy.regulation.none import Rule as Unregulated

NOW_S = 1000.0
MB = 1_000_000
RULES = Rules(name="test", admission=Fcfs(), placement=LeastIo(), regulation=Unregulated())


def platform(*sizes: int, near: Iterable[int] = ()) -> Platform:
    """Partitions 0, 1, ... with so many slots each; a disk is near those named."""
    partitions = []
    first = 0
    for number, size in enumerate(sizes):
        slots = tuple(Slot(id=SlotId(i), cpus=(i,)) for i in range(first, first + size))
        devices = (DeviceId("sda"),) if number in set(near) else ()
        partitions.append(Partition(id=PartitionId(number), slots=slots, near_devices=devices))
        first += size
    return Platform(partitions=tuple(partitions))


class Scene:
    """A state in the making; ``view()`` is what a rule gets to see of it."""

    def __init__(self, machine: Platform) -> None:
        self.state = State(machine)
        self._free = {p.id: [slot.id for slot in p.slots] for p in machine.partitions}
        self._jobs: list[Job] = []
        self._last: dict[JobId, float] = {}
        self._moved: dict[JobId, float | None] = {}

    def queue(self, *jobs: Job) -> "Scene":
        self._jobs += jobs
        return self

    def live(
        self,
        job_id: int,
        partition: int,
        *,
        moved: float | None = 0.0,
        last: float | None = None,
        held: bool = False,
        state: JobState | None = None,
        cpus: int = 1,
        **fields: object,
    ) -> "Scene":
        """A job that holds slots.

        Args:
            moved: bytes/s in the last slice; None: unknown.
            last: bytes/s in an earlier slice in which it ran throughout.
            held: the regulation suspended it.
            fields: of the job, or of its spec.
        """
        state = state or (JobState.SUSPENDED_IO if held else JobState.RUNNING)
        slots = tuple(self._free[PartitionId(partition)].pop(0) for _ in range(cpus))
        in_spec = {k: v for k, v in fields.items() if k in JobSpec.__struct_fields__}
        in_job = {"uid": 1000} | {k: v for k, v in fields.items() if k not in in_spec}
        if held:
            reason = Reason(code="IoBound", text="held")
            in_job |= {"io_hold": True, "freeze_asked": True, "io_held_since_s": 1.0}
            in_job |= {"reason": reason, "hold_reason": reason, "frozen": True}
        self._jobs.append(
            Job(
                id=JobId(job_id),
                spec=JobSpec(command=("true",), cpus=cpus, **in_spec),
                state=state,
                since_s=0.0,
                submitted_s=0.0,
                attempt=1,
                partition=PartitionId(partition),
                slots=slots,
                started_s=0.0,
                **in_job,
            )
        )
        self._moved[JobId(job_id)] = moved
        if last is not None:
            self._last[JobId(job_id)] = last
        return self

    def view(self) -> View:
        """The view after two slices of 1 s: the one of ``last``, then the one of ``moved``."""
        self.state.restore(self._jobs, JobId(1))
        self.state.check()
        totals = dict.fromkeys(self._moved, 0)
        self._sample(0.0, totals)
        for job_id, rate in self._last.items():
            totals[job_id] += int(rate)
        self._sample(1.0, totals, ran=self._last)
        for job_id, rate in self._moved.items():
            totals[job_id] = None if rate is None else totals[job_id] + int(rate)
        ran = [job.id for job in self._jobs if job.state is JobState.RUNNING]
        self._sample(2.0, totals, ran=ran)
        return View(self.state, RULES.placement, NOW_S, random.Random(1))

    def _sample(self, at_s: float, totals, ran=()) -> None:
        counters = {i: JobCounters(read_bytes=total) for i, total in totals.items()}
        run_s = dict.fromkeys(ran, at_s)
        self.state.meter.take(Sample(at_s=at_s, jobs=counters), run_s=run_s)
