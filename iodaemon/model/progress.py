"""One simulated job's way through its profile."""

from __future__ import annotations

import enum
import itertools
import math
from typing import Any, Protocol

from iodaemon.core.job import IoTotals, JobId
from iodaemon.core.platform import DeviceId, PartitionId
from iodaemon.core.sample import JobCounters
from iodaemon.model.flow import Flow
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


class Kind(enum.IntEnum):
    """What a step asks of the platform."""

    COMPUTE = 0
    READ = 1
    WRITE_DIRECT = 2
    WRITE_BUFFERED = 3
    TRANSFER = 4
    STAGE = 5


class Resource(Protocol):
    """What jobs share: a link, or the disk with its page cache.

    Use: all that happens at one instant (``reach``, ``leave``, ``begin``), then one ``settle``.

    Attributes:
        next_s: when a job is done on it by itself; infinite for never.
        entry: its entry in the engine's agenda, where it has one.
    """

    next_s: float
    entry: Any

    def begin(self, job: Progress, now_s: float) -> None:
        """The job asks for what is left of its present task."""
        ...

    def leave(self, job: Progress, now_s: float) -> None:
        """The job goes before it is done, and keeps what is left."""
        ...

    def reach(self, now_s: float) -> list[Progress]:
        """Take off all jobs that are done by now."""
        ...

    def settle(self, now_s: float) -> None:
        """Find what holds from now on."""
        ...

    def left(self, job: Progress, now_s: float) -> float:
        """Bytes of the job's present task that are left."""
        ...

    def waited(self, job: Progress, now_s: float) -> float:
        """How long the job has waited for I/O in its present or last stay, s."""
        ...

    def stream_cap(self, kind: Kind) -> float:
        """What a single stream gets at most, bytes/s; infinite for no bound of its own."""
        ...

    def alone_s(self, task: Task) -> float:
        """How long the task takes when nobody else is there."""
        ...


class Task:
    """A step that is not empty, laid out for the engine.

    Attributes:
        kind: what it asks for.
        size: seconds of computing, or bytes.
        cap: the tighter of its own cap and the resource's for each stream, bytes/s; infinite
            for none.
        weight: share of a fair link.
        resource: what it is done on; None for computing.
        touches: it goes over memory; what it really reads is found when it begins.
    """

    __slots__ = ("cap", "kind", "resource", "size", "touches", "weight")

    def __init__(self, step: Step, resource: Resource | None) -> None:
        self.kind = _kind(step)
        self.size = step_size(step)
        own = None if isinstance(step, Compute | Touch) else step.cap_bytes_per_s
        self.cap = math.inf if own is None else own
        streams = 1 if isinstance(step, Compute | Touch | Transfer | Stage) else step.streams
        if resource is not None:
            self.cap = min(self.cap, resource.stream_cap(self.kind))
        self.weight = step.weight if isinstance(step, Transfer | Stage) else float(streams)
        self.resource = resource
        self.touches = isinstance(step, Touch)

    @property
    def alone_s(self) -> float:
        """How long it takes when nobody else is there."""
        if self.touches:
            return 0.0
        return self.size if self.resource is None else self.resource.alone_s(self)


def _kind(step: Step) -> Kind:
    match step:
        case Compute():
            return Kind.COMPUTE
        case Read() | Touch():
            return Kind.READ
        case Transfer():
            return Kind.TRANSFER
        case Stage():
            return Kind.STAGE
        case _:
            return Kind.WRITE_DIRECT if step.direct else Kind.WRITE_BUFFERED


class Progress:
    """One job's way through its profile. Invariant: what is counted is what was done.

    Bytes and seconds are counted from whole tasks plus the present one, so that nothing drifts.

    Attributes:
        task: the present one; None: all are done.
        size: of the present one, seconds or bytes.
        left: what was left of it when its present stay on a resource began, or at its suspension.
        is_active: it goes on by itself: not suspended, and not waiting for its turn.
        is_held: it is suspended.
        caps: what it may read and write at most, bytes/s each; infinite for no cap.
        awaits_turn: it asked for its turn to do the present task.
        has_turn: it has it.
        finish_s: when the computing is done.
        requested_s: when its present stay on a resource began.
        flow: its way over a link.
        entry: its entry in the engine's agenda, where it has one.
    """

    __slots__ = (
        "_booked",
        "_done_s",
        "_index",
        "_io_done_s",
        "_logical_told",
        "_paged",
        "_paged_told",
        "_round",
        "_stall_s",
        "_tasks",
        "_told",
        "awaits_turn",
        "caps",
        "entry",
        "finish_s",
        "flow",
        "has_turn",
        "is_active",
        "is_held",
        "job_id",
        "left",
        "partition",
        "profile",
        "requested_s",
        "size",
        "slots",
        "started_s",
        "task",
    )

    def __init__(
        self, job_id: JobId, profile: Profile, tasks: tuple[Task, ...], partition: PartitionId
    ) -> None:
        self.job_id = job_id
        self.profile = profile
        self.partition = partition
        self.slots = 1
        self.started_s = self.finish_s = self.requested_s = 0.0
        self.is_active = True
        self.caps = math.inf, math.inf
        self.is_held = self.awaits_turn = self.has_turn = False
        self.flow: Flow | None = None
        self.entry: Any = None
        self.task: Task | None = None
        self.size = self.left = 0.0
        self._tasks = tasks
        self._index = -1
        self._round = 0
        self._stall_s = 0.0
        self._booked: list[float] = [0] * len(Kind)
        self._told = [0] * len(Kind)
        self._paged = 0.0
        self._paged_told = self._logical_told = 0
        self._done_s: list[float] = []
        self._io_done_s: list[float] = []

    def go_on(self, now_s: float) -> None:
        """Count the present task as wholly done and take the next one; there may be none."""
        task = self.task
        if task is not None:
            self._booked[task.kind] += self.size
            self._told[task.kind] = int(self._booked[task.kind])
            if task.touches:
                self._paged += self.size
                self._paged_told = int(self._paged)
            if task.resource is not None:
                self._stall_s += task.resource.waited(self, now_s)
        self.pass_over()

    def pass_over(self) -> None:
        """Take the next task, with nothing done of the present one; there may be none."""
        index = self._index + 1
        if index >= len(self._tasks):
            index = 0
            self._round += 1
            if self._round >= self.profile.repeat or not self._tasks:
                self.task, self.size, self.left = None, 0.0, 0.0
                return
        self._index = index
        self.task = task = self._tasks[index]
        self.size = self.left = task.size

    def stand(self, now_s: float) -> None:
        """Count what was done of the present task, and go on with it later."""
        task = self.task
        if task is None:
            pass
        elif task.resource is None:
            self.left = max(0.0, self.finish_s - now_s)
        else:
            left = task.resource.left(self, now_s)
            self._stall_s += task.resource.waited(self, now_s)
            task.resource.leave(self, now_s)
            self.left = left
        self.is_active = False

    # -- as if alone -------------------------------------------------------------------------

    def ideal_done_s(self) -> float:
        """Contention-free time of all tasks that are done, s."""
        done_s = self._prefix()
        return self._round * done_s[-1] + done_s[self._index]

    def remaining_s(self, phase_s: float) -> float:
        """Contention-free time of the present task, of which this much is left, and all others."""
        done_s = self._prefix()
        total_s = self.profile.repeat * done_s[-1]
        begun_s = self._round * done_s[-1] + done_s[self._index + 1]
        return total_s - begun_s + phase_s

    def io_done_s(self) -> float:
        """The I/O part of what is done, as if alone, s."""
        self._prefix()
        return self._round * self._io_done_s[-1] + self._io_done_s[self._index]

    def _prefix(self) -> list[float]:
        """Contention-free time before each task of a round, and of the whole round, s."""
        if not self._done_s:
            alone_s = [task.alone_s for task in self._tasks]
            io_s = [
                0.0 if task.resource is None else s
                for task, s in zip(self._tasks, alone_s, strict=True)
            ]
            self._done_s = [0.0, *itertools.accumulate(alone_s)]
            self._io_done_s = [0.0, *itertools.accumulate(io_s)]
        return self._done_s

    # -- counters ----------------------------------------------------------------------------

    def whole_bytes(self, kind: Kind, now_s: float) -> int:
        """Whole bytes of this kind until now; rounding never makes them fewer."""
        if self.task is not None and self.task.kind is kind:
            self._tell(self.task, now_s)
        return self._told[kind]

    def _tell(self, task: Task, now_s: float) -> None:
        """Count the begun task in part."""
        left = self.left
        if self.is_active:
            resource = task.resource
            left = self.finish_s - now_s if resource is None else resource.left(self, now_s)
        part = max(0.0, self.size - left)
        if task.touches:
            self._paged_told = max(self._paged_told, int(self._paged + part))
        whole = int(self._booked[task.kind] + part)
        if whole > self._told[task.kind]:
            self._told[task.kind] = whole

    def totals(self, now_s: float, request_bytes: int) -> IoTotals:
        """Its I/O from its start, as /proc/PID/io counts it; unknown when it is hidden."""
        if self.task is not None:
            self._tell(self.task, now_s)
        return self._totals(request_bytes)

    def _totals(self, request_bytes: int) -> IoTotals:
        if self.profile.hides_io:
            return IoTotals()
        told = self._told
        written = told[Kind.WRITE_BUFFERED] + told[Kind.WRITE_DIRECT] + told[Kind.TRANSFER]
        return IoTotals(
            read_bytes=told[Kind.READ],
            written_bytes=written,
            operations=(told[Kind.READ] + written) // request_bytes,
        )

    def paged_bytes(self, now_s: float) -> int:
        """Whole bytes paged in until now: memory that was read again."""
        if self.task is not None and self.task.touches:
            self._tell(self.task, now_s)
        return self._paged_told

    def cpu_s(self, now_s: float) -> float:
        """CPU time until now: all its slots compute when it does."""
        compute_s = self._booked[Kind.COMPUTE]
        if self.task is not None and self.task.resource is None:
            left_s = self.finish_s - now_s if self.is_active else self.left
            compute_s += max(0.0, self.size - left_s)
        return compute_s * self.slots

    def _logical_bytes(self) -> int | None:
        """What its calls have read and written; page-ins are no calls. None: hidden."""
        if self.profile.hides_io:
            return None
        told = self._told
        written = told[Kind.WRITE_BUFFERED] + told[Kind.WRITE_DIRECT] + told[Kind.TRANSFER]
        logical = told[Kind.READ] - self._paged_told + written
        self._logical_told = max(self._logical_told, logical)  # both are rounded
        return self._logical_told

    def counters(self, now_s: float, request_bytes: int, device: DeviceId | None) -> JobCounters:
        """Its counters now; a system call moves as much as a request, all files are on one disk."""
        task, stall_s = self.task, self._stall_s
        if task is not None:
            self._tell(task, now_s)
            if task.resource is not None and self.is_active:
                stall_s += task.resource.waited(self, now_s)
        totals, cpu_s = self._totals(request_bytes), self.cpu_s(now_s)
        return JobCounters(
            read_bytes=totals.read_bytes,
            written_bytes=totals.written_bytes,
            operations=totals.operations,
            device_read_bytes=totals.read_bytes,
            logical_bytes=self._logical_bytes(),
            cpu_s=cpu_s,
            user_s=cpu_s,
            resident_bytes=self.profile.resident_bytes,
            io_stall_s=stall_s,
            devices=None if self.profile.hides_io or device is None else (device,),
        )
