"""Jobs, page cache and disk as fluids: rates are constant between breakpoints, times are exact.

Model:
    1. A job does one step of its profile after the other; a suspended job makes no progress.
    2. Reading jobs, direct writers and writeback each are one stream on the disk and share it
       equally, within their caps (``disk.share_equally``).
    3. A buffered writer dirties the page cache at memory speed. From ``dirty_limit_bytes`` on
       all writers together get the pace of writeback.
    4. Writeback starts when ``dirty_background_bytes`` are dirty or when the oldest dirty data
       is ``dirty_expire_s`` old, and goes on until nothing is dirty, whatever became of the
       writers. Differs: Linux looks for old data every 5 s only, and stops background writeback
       at the background limit (Documentation/admin-guide/sysctl/vm.rst).
    5. A stream keeps its depth of requests in flight, fewer in proportion when its cap, not the
       disk, holds it back. Little's law gives the waiting times: in flight = rate x time.

All bytes are counted from whole steps plus the present one, so that nothing drifts.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from iodaemon.backend.disk import Shares, SimulatedDisk, share_equally
from iodaemon.backend.page_cache import PageCache
from iodaemon.backend.profile import Profile, Read, Write
from iodaemon.backend.progress import Progress, is_buffered, is_direct
from iodaemon.core.bandwidth import SECTOR_BYTES
from iodaemon.core.job import IoTotals, JobId
from iodaemon.core.sample import DeviceCounters, JobCounters, NodeCounters

_WRAP_MS: Final = 2**32
"""The millisecond counters of /proc/diskstats are unsigned 32-bit."""


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A job did all its steps."""

    job_id: JobId
    at_s: float
    io: IoTotals


class Fluid:
    """All that runs on the node. Advance it to the present before anything else is asked of it."""

    def __init__(self, disk: SimulatedDisk, now_s: float) -> None:
        self._disk = disk
        self._now_s = now_s
        self._jobs: dict[JobId, Progress] = {}
        self._cache = PageCache(disk)
        self._gone_read_bytes = 0
        self._gone_direct_bytes = 0
        self._gone_dirtied = 0.0
        self._reads_in_flight = 0.0
        self._writes_in_flight = 0.0
        self._busy_ratio = 0.0
        self._stall_ratio = 0.0
        self._read_wait_s = 0.0
        self._write_wait_s = 0.0
        self._busy_s = 0.0
        self._stall_s = 0.0

    @property
    def next_s(self) -> float:
        """When something will happen by itself; infinite for never."""
        job_s = min((job.finish_s for job in self._jobs.values()), default=math.inf)
        return min(job_s, self._cache.next_s)

    def advance(self, to_s: float) -> list[Finished]:
        """Let everything flow until then; the jobs that ended on the way, in that order."""
        finished: list[Finished] = []
        while (next_s := self.next_s) <= to_s:
            self._flow_to(next_s)
            finished += self._reach()
            self._settle()
        self._flow_to(to_s)
        return finished

    def add(self, job_id: JobId, profile: Profile, slots: int) -> None:
        """Start a job."""
        self._jobs[job_id] = Progress(profile, slots)
        self._settle()

    def remove(self, job_id: JobId) -> IoTotals:
        """End a job wherever it is; what it dirtied is written all the same."""
        io = self._retire(job_id)
        self._settle()
        return io

    def suspend(self, job_id: JobId) -> None:
        """Bring a job to a standstill."""
        self._jobs[job_id].suspended = True
        self._settle()

    def resume(self, job_id: JobId) -> None:
        """Let a job go on."""
        self._jobs[job_id].suspended = False
        self._settle()

    # -- counters ----------------------------------------------------------------------------

    def jobs(self) -> dict[JobId, JobCounters]:
        """The counters of each job that has not ended."""
        request_bytes = self._disk.request_bytes
        return {
            job_id: job.counters(request_bytes, self._disk.id) for job_id, job in self._jobs.items()
        }

    def device(self) -> DeviceCounters:
        """The disk's line of /proc/diskstats; a request under way counts as completed."""
        jobs = self._jobs.values()
        read_bytes = self._gone_read_bytes + sum(job.read_bytes for job in jobs)
        direct_bytes = self._gone_direct_bytes + sum(job.direct_bytes for job in jobs)
        written_bytes = direct_bytes + int(self._cache.cleaned)
        in_flight = self._reads_in_flight + self._writes_in_flight
        return DeviceCounters(
            reads=-(-read_bytes // self._disk.request_bytes),
            reads_merged=0,
            read_sectors=read_bytes // SECTOR_BYTES,
            read_ms=_counter_ms(self._read_wait_s),
            writes=-(-written_bytes // self._disk.request_bytes),
            writes_merged=0,
            written_sectors=written_bytes // SECTOR_BYTES,
            write_ms=_counter_ms(self._write_wait_s),
            in_flight=max(round(in_flight), math.ceil(self._busy_ratio)),
            busy_ms=_counter_ms(self._busy_s),
            queue_ms=_counter_ms(self._read_wait_s + self._write_wait_s),
        )

    def node(self) -> NodeCounters:
        """The counters of the whole machine; it has no memory pressure."""
        being_written = int(self._cache.being_written)
        return NodeCounters(
            io_stall_s=self._stall_s,
            dirty_bytes=int(self._cache.dirty) - being_written,
            writeback_bytes=being_written,
        )

    # -- flowing -----------------------------------------------------------------------------

    def _flow_to(self, time_s: float) -> None:
        interval_s = max(0.0, time_s - self._now_s)
        self._now_s = max(self._now_s, time_s)
        for job in self._jobs.values():
            job.flow(interval_s)
        dirtied = self._gone_dirtied + sum(job.dirtied for job in self._jobs.values())
        self._cache.flow(interval_s, dirtied)
        self._read_wait_s += self._reads_in_flight * interval_s
        self._write_wait_s += self._writes_in_flight * interval_s
        self._busy_s += self._busy_ratio * interval_s
        self._stall_s += self._stall_ratio * interval_s

    def _reach(self) -> list[Finished]:
        """Do what is due at this very time."""
        finished: list[Finished] = []
        if self._cache.next_s <= self._now_s:
            self._cache.turn()
        due = [job_id for job_id, job in self._jobs.items() if job.finish_s <= self._now_s]
        for job_id in due:
            job = self._jobs[job_id]
            job.next_step()
            if job.step is None:
                io = self._retire(job_id)
                finished.append(Finished(job_id=job_id, at_s=self._now_s, io=io))
        return finished

    def _retire(self, job_id: JobId) -> IoTotals:
        job = self._jobs.pop(job_id)
        self._gone_read_bytes += job.read_bytes
        self._gone_direct_bytes += job.direct_bytes
        self._gone_dirtied += job.dirtied
        return job.totals

    def _settle(self) -> None:
        """Find the rates that hold from now on."""
        streams: list[Progress] = []
        writers: list[Progress] = []
        for job in self._jobs.values():
            if job.suspended:
                job.stand()
            elif isinstance(job.step, Read) or is_direct(job.step):
                streams.append(job)
            elif is_buffered(job.step):
                writers.append(job)
            else:
                job.run_at(1.0, self._now_s)
        self._settle_writers(writers, self._settle_streams(streams))
        idle_ratio = math.prod(1.0 - job.stall_ratio for job in self._jobs.values())
        self._stall_ratio = 1.0 - idle_ratio

    def _settle_streams(self, jobs: list[Progress]) -> float:
        """Share the disk; what writeback gets of it, bytes/s."""
        disk = self._disk
        caps = [_cap(job, disk.stream_cap_bytes_per_s) for job in jobs]
        if self._cache.is_writing:
            caps.append(math.inf)
        capacity = disk.capacity_with(len(caps))
        shares = share_equally(capacity, caps)
        for job, rate in zip(jobs, shares.rates, strict=False):  # writeback is last, and no job
            part = min(1.0, rate / shares.level)
            job.run_at(rate, self._now_s, in_flight=part * disk.stream_depth, stall_ratio=part)
        self._count_in_flight(jobs, shares, capacity)
        return shares.rates[-1] if self._cache.is_writing else 0.0

    def _count_in_flight(self, jobs: list[Progress], shares: Shares, capacity: float) -> None:
        reads = [job.in_flight for job in jobs if isinstance(job.step, Read)]
        writes = [job.in_flight for job in jobs if is_direct(job.step)]
        writeback = float(self._disk.writeback_depth) if self._cache.is_writing else 0.0
        self._reads_in_flight = sum(reads)
        self._writes_in_flight = sum(writes) + writeback
        self._busy_ratio = 1.0 if shares.is_full else min(1.0, sum(shares.rates) / capacity)

    def _settle_writers(self, jobs: list[Progress], writeback_rate: float) -> None:
        wants = [_cap(job, self._disk.memory_bytes_per_s) for job in jobs]
        rates = self._cache.settle(self._now_s, wants, writeback_rate)
        for job, rate, want in zip(jobs, rates, wants, strict=True):
            job.run_at(rate, self._now_s, stall_ratio=1.0 - rate / want)


def _cap(job: Progress, general: float | None) -> float:
    """The tighter of the step's own cap and the general one, bytes/s."""
    assert isinstance(job.step, Read | Write)
    own = job.step.cap_bytes_per_s
    return min(math.inf if own is None else own, math.inf if general is None else general)


def _counter_ms(time_s: float) -> int:
    return int(time_s * 1000.0) % _WRAP_MS
