"""A disk below a page cache, and the jobs that read and write.

Model:
    1. Reading jobs, direct writers and writeback each are one stream on the disk and share it
       equally, within their caps.
    2. A buffered writer dirties the page cache at memory speed. From ``dirty_limit_bytes`` on
       all writers together get the pace of writeback, shared equally within their caps.
    3. Writeback starts when ``dirty_background_bytes`` are dirty or when the oldest dirty data
       is ``dirty_expire_s`` old, and goes on until nothing is dirty, whatever became of the
       writers. Differs: Linux looks for old data every 5 s only, and stops background writeback
       at the background limit (Documentation/admin-guide/sysctl/vm.rst).
    4. A stream keeps its depth of requests in flight, fewer in proportion when its cap, not the
       disk, holds it back. Little's law gives the waiting times: in flight = rate x time.
    5. The machine's stall is the time in which at least one job waits, for jobs that wait
       independently: 1 - (1 - r)^n for n streams that wait r of the time in the mean, times what
       the fastest of the writers at the limit loses. It needs sums only, where the true product
       over all jobs costs O(n); both are equal for streams of one cap and for a single writer,
       otherwise this one is the smaller.

Both are fair links: the disk, and the memory with the pace of the writers, whose capacity is
unlimited or, at the limit, what writeback gets of the disk.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from iodaemon.core.meter import SECTOR_BYTES
from iodaemon.core.sample import DeviceCounters, NodeCounters
from iodaemon.model.disk import SimulatedDisk
from iodaemon.model.fair_link import FairLink
from iodaemon.model.flow import Flow
from iodaemon.model.page_cache import PageCache
from iodaemon.model.progress import Kind, Progress, Task

_WRAP_MS: Final = 2**32
"""The millisecond counters of /proc/diskstats are unsigned 32-bit."""


class _Told(NamedTuple):
    """Counters as they were last read; rounding must never make one go back."""

    read_bytes: int = 0
    written_bytes: int = 0
    read_wait_s: float = 0.0
    write_wait_s: float = 0.0


class Storage:
    """What a node's jobs read and write. A resource of its jobs (``progress.Resource``)."""

    def __init__(self, disk: SimulatedDisk, now_s: float) -> None:
        self.disk = disk
        self.next_s = math.inf
        self.entry: Any = None
        self._now_s = now_s
        self._device = FairLink(
            disk.capacity_bytes_per_s,
            scaling=disk.scaling,
            counts_waiting=disk.counted == "waiting",
            now_s=now_s,
        )
        self._memory = FairLink(math.inf, now_s=now_s)
        self._cache = PageCache(disk)
        self._writeback = Flow(math.inf)
        self._dirtied_bytes = 0.0
        self._begun_bytes = 0.0
        self._begun = 0
        self._gone_read_bytes = 0
        self._gone_direct_bytes = 0
        self._read_wait_s = 0.0
        self._write_wait_s = 0.0
        self._told = _Told()
        self._stall_ratio = 0.0
        self._stall_s = 0.0

    # -- a resource of its jobs --------------------------------------------------------------

    def begin(self, job: Progress, now_s: float) -> None:
        """One more reader or writer."""
        self.flow_to(now_s)
        task = job.task
        assert task is not None
        job.requested_s = now_s
        job.flow = Flow(
            job.left,
            number=job.job_id,
            owner=job,
            cap_bytes_per_s=_cap_of(job, task),
            weight=task.weight,
        )
        if task.kind is not Kind.WRITE_BUFFERED:
            self._device.add(job.flow)
            return
        self._memory.add(job.flow)
        self._set_begun(task.size - job.left, -1)

    def leave(self, job: Progress, now_s: float) -> None:
        """One less; what it dirtied is written all the same."""
        self.flow_to(now_s)
        task = job.task
        assert task is not None
        assert job.flow is not None
        if task.kind is not Kind.WRITE_BUFFERED:
            self._device.remove(job.flow)
            self._count_wait(task, job.flow)
            return
        self._memory.remove(job.flow)
        self._set_begun(task.size - job.flow.left_bytes, 1)
        self._correct()

    def reach(self, now_s: float) -> list[Progress]:
        """Jobs that have read or written all of their step; turn writeback on or off."""
        self.flow_to(now_s)
        if self._cache.next_s <= now_s:
            self._turn()
        done: list[Progress] = []
        if self._device.next_s <= now_s:
            for flow in self._device.reach():
                self._count_wait(flow.owner.task, flow)
                done.append(flow.owner)
        if self._memory.next_s <= now_s:
            for flow in self._memory.reach():
                self._dirtied_bytes += flow.owner.task.size
                done.append(flow.owner)
            self._correct()
        return done

    def settle(self, now_s: float) -> None:
        """Share the disk; writeback's share paces the writers at the limit."""
        self.flow_to(now_s)
        cache = self._cache
        self._device.settle()
        rate = self._device.rate(self._writeback) if cache.is_writing else 0.0
        cache.settle(now_s, self._memory.demand_bytes_per_s, rate)
        self._memory.capacity_bytes_per_s = rate if cache.is_at_limit else math.inf
        self._memory.settle()
        self._stall_ratio = self._find_stall_ratio()
        self.next_s = min(self._device.next_s, self._memory.next_s, cache.next_s)

    def left(self, job: Progress, now_s: float) -> float:
        """Bytes of the job's step that are left."""
        self.flow_to(now_s)
        assert job.flow is not None
        return self._link(job).left(job.flow)

    def waited(self, job: Progress, now_s: float) -> float:
        """Time on the disk less where its cap held it back, or what a writer lost at the limit."""
        self.flow_to(now_s)
        task, flow = job.task, job.flow
        assert task is not None
        assert flow is not None
        if task.kind is not Kind.WRITE_BUFFERED:
            return self._device.waited(flow)
        moved_bytes = job.left - self._memory.left(flow)
        return max(0.0, now_s - job.requested_s - moved_bytes / _cap_of(job, task))

    def stream_cap(self, kind: Kind) -> float:
        """Memory speed for buffered writes, else the disk's cap of each stream."""
        if kind is Kind.WRITE_BUFFERED:
            return self.disk.memory_bytes_per_s
        cap = self.disk.stream_cap_bytes_per_s
        return math.inf if cap is None else cap

    def alone_s(self, task: Task) -> float:
        """At its own cap, or as fast as the disk or the memory."""
        return task.size / self.peak(task)

    def peak(self, task: Task) -> float:
        """What the task moves when nobody else is there, bytes/s."""
        if task.kind is Kind.WRITE_BUFFERED:
            return task.cap
        streams = max(1, round(task.weight)) if self.disk.counted == "waiting" else 1
        return min(task.cap, self.disk.capacity_bytes_per_s * self.disk.scaling(streams))

    def retire(self, job: Progress, now_s: float) -> None:
        """The job ends; it has left. What it read and wrote stays counted."""
        self._gone_read_bytes += job.whole_bytes(Kind.READ, now_s)
        self._gone_direct_bytes += job.whole_bytes(Kind.WRITE_DIRECT, now_s)
        task = job.task
        if task is not None and task.kind is Kind.WRITE_BUFFERED:
            dirtied_bytes = task.size - job.left
            self._set_begun(dirtied_bytes, -1)
            self._dirtied_bytes += dirtied_bytes

    # -- counters ----------------------------------------------------------------------------

    def device(self, jobs: Collection[Progress], now_s: float) -> DeviceCounters:
        """The disk's line of /proc/diskstats; a request under way counts as completed."""
        self.flow_to(now_s)
        disk = self.disk
        read_bytes = self._gone_read_bytes + sum(j.whole_bytes(Kind.READ, now_s) for j in jobs)
        direct = (job.whole_bytes(Kind.WRITE_DIRECT, now_s) for job in jobs)
        written_bytes = self._gone_direct_bytes + sum(direct) + int(self._cache.cleaned)
        reading, writing = _on_disk(jobs, Kind.READ), _on_disk(jobs, Kind.WRITE_DIRECT)
        in_flight = sum(self._device.busy_part(flow) * flow.weight for flow in (*reading, *writing))
        in_flight *= disk.stream_depth
        if self._cache.is_writing:
            in_flight += disk.writeback_depth
        read_wait_s = self._read_wait_s + self._waits_s(reading)
        write_wait_s = self._write_wait_s + self._waits_s(writing)
        self._told = told = _Told(
            max(self._told.read_bytes, read_bytes),
            max(self._told.written_bytes, written_bytes),
            max(self._told.read_wait_s, read_wait_s),
            max(self._told.write_wait_s, write_wait_s),
        )
        return DeviceCounters(
            reads=-(-told.read_bytes // disk.request_bytes),
            reads_merged=0,
            read_sectors=told.read_bytes // SECTOR_BYTES,
            read_ms=_counter_ms(told.read_wait_s),
            writes=-(-told.written_bytes // disk.request_bytes),
            writes_merged=0,
            written_sectors=told.written_bytes // SECTOR_BYTES,
            write_ms=_counter_ms(told.write_wait_s),
            in_flight=max(round(in_flight), math.ceil(self._device.busy_ratio)),
            busy_ms=_counter_ms(self._device.busy_s),
            queue_ms=_counter_ms(told.read_wait_s + told.write_wait_s),
        )

    def node(self, now_s: float) -> NodeCounters:
        """The counters of the whole machine; it has no memory pressure."""
        self.flow_to(now_s)
        being_written = int(self._cache.being_written)
        return NodeCounters(
            io_stall_s=self._stall_s,
            dirty_bytes=int(self._cache.dirty) - being_written,
            writeback_bytes=being_written,
        )

    @property
    def now_s(self) -> float:
        """Until when everything has flowed."""
        return self._now_s

    # -- flowing -----------------------------------------------------------------------------

    def flow_to(self, now_s: float) -> None:
        """Let everything flow until then, at most to ``next_s``."""
        interval_s = now_s - self._now_s
        if interval_s <= 0.0:
            return
        self._now_s = now_s
        self._device.flow_to(now_s)
        self._memory.flow_to(now_s)
        self._cache.flow(interval_s)
        self._stall_s += self._stall_ratio * interval_s
        if self._cache.is_writing:
            self._write_wait_s += self.disk.writeback_depth * interval_s

    def _turn(self) -> None:
        was_writing = self._cache.is_writing
        self._cache.turn()
        if self._cache.is_writing and not was_writing:
            self._device.add(self._writeback)
        elif was_writing and not self._cache.is_writing:
            self._device.remove(self._writeback)

    def _link(self, job: Progress) -> FairLink:
        assert job.task is not None
        return self._memory if job.task.kind is Kind.WRITE_BUFFERED else self._device

    def _count_wait(self, task: Task, flow: Flow) -> None:
        wait_s = flow.waited_s * flow.weight * self.disk.stream_depth
        if task.kind is Kind.READ:
            self._read_wait_s += wait_s
        else:
            self._write_wait_s += wait_s

    def _waits_s(self, flows: Collection[Flow]) -> float:
        waits_s = sum(self._device.waited(flow) * flow.weight for flow in flows)
        return waits_s * self.disk.stream_depth

    def _set_begun(self, dirtied_bytes: float, change: int) -> None:
        """Keep count of writers that were interrupted in the middle of a step."""
        if dirtied_bytes > 0.0:
            self._begun += change
            self._begun_bytes += change * dirtied_bytes
        if self._begun == 0:
            self._begun_bytes = 0.0

    def _correct(self) -> None:
        """Without any writer it is known to the byte how much was dirtied."""
        if self._memory.count == 0:
            self._cache.correct(self._dirtied_bytes + self._begun_bytes)

    def _find_stall_ratio(self) -> float:
        """The part of the time in which at least one job waits."""
        device, memory = self._device, self._memory
        if device.elastic_weight > self._cache.is_writing:  # a stream that no cap holds back
            return 1.0
        idle_ratio = 1.0
        if streams := device.count - self._cache.is_writing:
            mean_ratio = device.capped_rate / device.level / streams
            idle_ratio = max(0.0, 1.0 - mean_ratio) ** streams
        if self._cache.is_at_limit and memory.count:
            idle_ratio *= min(1.0, memory.level / memory.fastest)
        return 1.0 - idle_ratio


def _on_disk(jobs: Collection[Progress], kind: Kind) -> list[Flow]:
    return [
        job.flow
        for job in jobs
        if job.is_active and job.flow is not None and job.task is not None and job.task.kind is kind
    ]


def _counter_ms(time_s: float) -> int:
    return int(time_s * 1000.0) % _WRAP_MS


def _cap_of(job: Progress, task: Task) -> float:
    """The tighter of what the stream gets at most and what the job may move, bytes/s."""
    read, written = job.caps
    return min(task.cap, read if task.kind is Kind.READ else written)
