"""The links of a platform as jobs meet them: shared fairly, or one job at a time."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Any

from iodaemon.core.job import JobId
from iodaemon.model.fair_link import FairLink
from iodaemon.model.flow import Flow
from iodaemon.model.progress import Kind, Progress, Resource, Task
from iodaemon.model.spec import LinkSpec


def make_link(spec: LinkSpec, now_s: float) -> Resource:
    """The link that is specified."""
    return SharedLink(spec, now_s) if spec.sharing == "fair" else ExclusiveLink(spec)


class SharedLink:
    """All jobs at once, max-min fair by weight within their caps."""

    def __init__(self, spec: LinkSpec, now_s: float) -> None:
        self.next_s = math.inf
        self.entry: Any = None
        self._spec = spec
        self._capacity = spec.capacity_bytes_per_s * spec.scaling(1)
        self._link = FairLink(spec.capacity_bytes_per_s, scaling=spec.scaling, now_s=now_s)

    def begin(self, job: Progress, now_s: float) -> None:
        """The job's flow comes."""
        task = job.task
        assert task is not None
        job.flow = Flow(
            job.left,
            number=job.job_id,
            owner=job,
            cap_bytes_per_s=task.cap,
            weight=task.weight,
        )
        self._link.flow_to(now_s)
        self._link.add(job.flow)

    def leave(self, job: Progress, now_s: float) -> None:
        """The job's flow goes; the job keeps what is left."""
        assert job.flow is not None
        self._link.flow_to(now_s)
        self._link.remove(job.flow)

    def reach(self, now_s: float) -> list[Progress]:
        """Jobs whose flows have arrived."""
        self._link.flow_to(now_s)
        return [flow.owner for flow in self._link.reach()]

    def settle(self, now_s: float) -> None:
        """Share the link anew."""
        self._link.flow_to(now_s)
        self._link.settle()
        self.next_s = self._link.next_s

    def left(self, job: Progress, now_s: float) -> float:
        """Bytes of the job's flow that have not arrived."""
        assert job.flow is not None
        self._link.flow_to(now_s)
        return self._link.left(job.flow)

    def waited(self, job: Progress, now_s: float) -> float:
        """The time of its stay, less where its own cap held it back."""
        assert job.flow is not None
        self._link.flow_to(now_s)
        return self._link.waited(job.flow)

    def stream_cap(self, kind: Kind) -> float:  # noqa: ARG002
        """The link's cap of each stream."""
        cap = self._spec.stream_cap_bytes_per_s
        return math.inf if cap is None else cap

    def alone_s(self, task: Task) -> float:
        """At its own cap, or with the whole link."""
        return task.size / min(task.cap, self._capacity)


class ExclusiveLink:
    """One job at a time; who has it keeps it until it is done, and the order says who is next.

    1. All that ask by an instant compete in it; equal keys: who asked earlier, then the smaller id.
    2. A job that is suspended leaves, also while it is served: a standing holder would block
       everybody, so a live system takes the link from it. It keeps what is left, and asks anew
       when it is resumed.

    Where keys do not change while jobs wait there is a heap, O(log n); else all n are asked.
    """

    def __init__(self, spec: LinkSpec) -> None:
        self.next_s = math.inf
        self.entry: Any = None
        self._spec = spec
        self._capacity = spec.capacity_bytes_per_s * spec.scaling(1)
        self._has_heap = spec.order is None or spec.order_is_fixed
        self._heap: list[tuple[float, float, JobId, int, Progress]] = []
        self._tickets = itertools.count()
        self._waiting: dict[JobId, tuple[int, Progress]] = {}
        self._holder: Progress | None = None
        self._rate = self._capacity

    def begin(self, job: Progress, now_s: float) -> None:
        """The job waits to be served."""
        job.requested_s = now_s
        ticket = next(self._tickets)
        self._waiting[job.job_id] = (ticket, job)
        if self._has_heap:
            key = self._key(job, now_s)
            heapq.heappush(self._heap, (key, now_s, job.job_id, ticket, job))

    def leave(self, job: Progress, now_s: float) -> None:  # noqa: ARG002
        """The job no longer waits, or gives the link back."""
        if job is self._holder:
            self._release()
        else:
            del self._waiting[job.job_id]

    def reach(self, now_s: float) -> list[Progress]:
        """The holder, when it is done."""
        holder = self._holder
        if holder is None or self.next_s > now_s:
            return []
        self._release()
        return [holder]

    def settle(self, now_s: float) -> None:
        """Serve the next job when the link is free."""
        if self._holder is None and self._waiting:
            job = self._first() if self._has_heap else self._smallest(now_s)
            del self._waiting[job.job_id]
            assert job.task is not None
            self._holder = job
            self._rate = job.task.cap
            self.next_s = now_s + job.left / self._rate

    def left(self, job: Progress, now_s: float) -> float:
        """All of it for a job that waits."""
        return (self.next_s - now_s) * self._rate if job is self._holder else job.left

    def waited(self, job: Progress, now_s: float) -> float:
        """From its request on."""
        return now_s - job.requested_s

    def stream_cap(self, kind: Kind) -> float:  # noqa: ARG002
        """The link's cap of each stream, and never more than it has."""
        cap = self._spec.stream_cap_bytes_per_s
        return self._capacity if cap is None else min(cap, self._capacity)

    def alone_s(self, task: Task) -> float:
        """At its own cap, or with the whole link."""
        return task.size / task.cap

    def _release(self) -> None:
        self._holder = None
        self.next_s = math.inf

    def _first(self) -> Progress:
        while True:
            _, _, job_id, ticket, job = heapq.heappop(self._heap)
            if self._waiting.get(job_id) == (ticket, job):
                return job

    def _smallest(self, now_s: float) -> Progress:
        waiting = [job for _, job in self._waiting.values()]
        return min(waiting, key=lambda job: (self._key(job, now_s), job.requested_s, job.job_id))

    def _key(self, job: Progress, now_s: float) -> float:
        order = self._spec.order
        if order is None:
            return job.requested_s
        assert job.task is not None
        phase_s = job.left / job.task.cap
        return order(
            now_s,
            job.requested_s,
            phase_s,
            job.remaining_s(phase_s),
            job.io_done_s(),
            now_s - job.started_s,
            job.ideal_done_s(),
            job.job_id,
        )
