"""Which jobs contend for what: for the memory, and for each device.

1. A job contends for a device where it has files while it reads or writes there, or stalls for it;
   one with a small part of the requests does not: to stop it would relieve nothing.
2. It contends for the memory while it moves bytes by system calls, reads from the storage, or keeps
   much of it.
3. A job that has just started may do either, and does until it was seen for two slices.

Jobs that compute or sleep contend for nothing. They are not counted and never stopped, nor are
those of which it cannot be told what they get done.

What a job gets done is what it reads and writes by system calls (``JobCounters.logical_bytes``), of
a job that moves little so the time for which it computes (``user_s``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from iodaemon.core.job import Job, JobId
from iodaemon.core.sample import MOST_BYTES_PER_S, MOST_CPUS, JobCounters, grown
from iodaemon.core.view import View

MEMORY: Final = "memory"
"""The name of the memory among the devices' names."""
LIGHT: Final = 0.1
"""Less than this part of what a job has there in the mean is a small part."""
SLICES_UNSEEN: Final = 2.0
"""Slices after its start in which a job counts whatever it does."""
LEAST_BYTES_PER_S: Final = 1e6
"""Moved by system calls, less says nothing of what a job keeps in memory."""
LEAST_READ_BYTES_PER_S: Final = 1e5
"""Read from the storage, more than this is kept in memory: 25 pages, what an arm can look up."""
MUCH_MEMORY: Final = 0.125
"""So much of an equal part of the memory is much."""
STALLED: Final = 0.5
"""A job that stalls for more than this part of a slice does I/O, even if none of it completes."""
A_SLICE: Final = 0.9
"""Of a timeslice: what has lasted for this long has lasted for one, timers being what they are."""

PAGE_BYTES: Final = 4096
LARGEST_REQUEST_BYTES: Final = 1 << 20
"""A request to the storage is of one page at least, and of no more than this."""
LONGEST_STALL_S: Final = 3600.0
"""A stall may be counted late, when the job runs on; not so late."""

_NO_JOBS: Final[tuple[Job, ...]] = ()


class Doing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a job did in a slice, or in several.

    Attributes:
        moved_bytes: by system calls.
        user_s: time for which it computed.
        active_s: time for which it contended for the resource that is looked at.
        read_bytes: from the storage.
        requests: to the storage, by an estimate from its bytes and calls.
        stalled_s: time for which it waited for I/O.
        is_measured: whether it can be told what it got done.
    """

    moved_bytes: float = 0.0
    user_s: float = 0.0
    active_s: float = 0.0
    read_bytes: float = 0.0
    requests: float = 0.0
    stalled_s: float = 0.0
    is_measured: bool = True


class Seen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job at one sample: its counters, and how long it has run."""

    counters: JobCounters | None = None
    run_s: float = 0.0


_UNSEEN: Final = Seen()


class Contenders(msgspec.Struct, frozen=True, kw_only=True):
    """Who contends for what in a slice; jobs in the order in which they started.

    Attributes:
        running: by resource.
        doing: what each did that ran for the whole slice.
        seen: all jobs that run, at the end of the slice.
        read_bytes: from the storage, all jobs together.
        computed_s: CPU time of all jobs together.
    """

    running: Mapping[str, Sequence[Job]] = MappingProxyType({})
    doing: Mapping[JobId, Doing] = MappingProxyType({})
    seen: Mapping[JobId, Seen] = MappingProxyType({})
    read_bytes: float = 0.0
    computed_s: float = 0.0

    def of(self, resource: str) -> Sequence[Job]:
        return self.running.get(resource, _NO_JOBS)

    def doing_at(self, resource: str) -> dict[JobId, Doing]:
        """What those did who contend for this, and ran for the whole slice."""
        return {job.id: self.doing[job.id] for job in self.of(resource) if job.id in self.doing}


def find_contenders(view: View, before: Mapping[JobId, Seen], interval_s: float) -> Contenders:
    """Who contends for what."""
    now: dict[JobId, Seen] = {}
    doing: dict[JobId, Doing] = {}
    jobs: list[Job] = []
    fresh: set[JobId] = set()
    active = list(view.running)
    much = MUCH_MEMORY * (view.node.memory_bytes or 0) / max(1, len(active))
    fresh_s = SLICES_UNSEEN * interval_s
    for job in active:
        is_now = seen(view, job)
        was = _seen_before(before.get(job.id, _UNSEEN), is_now, interval_s)
        now[job.id] = is_now
        if is_now.run_s <= 0.0:
            continue
        if is_now.run_s < fresh_s:
            fresh.add(job.id)
        elif is_now.counters is was.counters and not _keeps(is_now, much):
            continue  # it has not run, and keeps little
        doing[job.id] = what_it_did(was.counters, is_now.counters, is_now.run_s - was.run_s)
        if doing[job.id].is_measured or job.id in fresh:
            jobs.append(job)
    jobs.sort(key=lambda job: (job.started_s or 0.0, job.id))
    running: dict[str, Sequence[Job]] = {
        MEMORY: [
            job
            for job in jobs
            if job.id in fresh
            or doing[job.id].moved_bytes >= LEAST_BYTES_PER_S * interval_s
            or doing[job.id].read_bytes >= LEAST_READ_BYTES_PER_S * interval_s
            or _keeps(now[job.id], much)
        ]
    }
    for device in view.platform.devices:
        here = [job for job in jobs if _is_on(now[job.id].counters, device.id)]
        running[device.id] = _users(here, doing, fresh, interval_s)
    whole_s = A_SLICE * interval_s
    whole = {
        i: each
        for i, each in doing.items()
        if i in before and each.active_s >= whole_s and each.is_measured
    }
    return Contenders(
        running=running,
        doing=whole,
        seen=now,
        read_bytes=sum(each.read_bytes for each in doing.values()),
        computed_s=sum(each.user_s for each in doing.values()),
    )


def seen(view: View, job: Job) -> Seen:
    return Seen(counters=view.counters(job.id), run_s=job.run_s_at(view.now_s))


def _seen_before(before: Seen, now: Seen, interval_s: float) -> Seen:
    """The job at the beginning of the slice: one that was started since had done nothing."""
    if before.counters is not None or now.counters is None or now.run_s > interval_s / A_SLICE:
        return before
    return msgspec.structs.replace(before, counters=now.counters.at_start())


def _is_on(counters: JobCounters | None, device: str) -> bool:
    """Whether it may use the device; one of whose files nothing is known may use all."""
    return counters is None or counters.devices is None or device in counters.devices


def _users(
    jobs: Sequence[Job], doing: Mapping[JobId, Doing], fresh: Collection[JobId], interval_s: float
) -> list[Job]:
    requests = [doing[job.id].requests for job in jobs if doing[job.id].requests > 0.0]
    least = LIGHT * sum(requests) / len(requests) if requests else 0.0
    return [
        job
        for job in jobs
        if job.id in fresh
        or (doing[job.id].requests >= least and doing[job.id].requests > 0.0)
        or doing[job.id].stalled_s > STALLED * interval_s
    ]


def _keeps(job: Seen, much: float) -> bool:
    resident = 0 if job.counters is None else job.counters.resident_bytes or 0
    return 0.0 < much <= resident


def what_it_did(before: JobCounters | None, now: JobCounters | None, ran_s: float) -> Doing:
    """What a job did between two samples, while it ran for ``ran_s``."""
    if before is None or now is None:
        return Doing(active_s=ran_s, is_measured=False)
    if before is now:  # whoever read it knows that it did not run
        return Doing(active_s=ran_s)
    seconds = max(1.0, ran_s)
    most = MOST_BYTES_PER_S * seconds
    read = grown(before.read_bytes, now.read_bytes, most)
    written = grown(before.written_bytes, now.written_bytes, most)
    moved = (read or 0.0) + (written or 0.0)
    logical = moved if read is not None or written is not None else None
    if before.logical_bytes is not None or now.logical_bytes is not None:
        logical = grown(before.logical_bytes, now.logical_bytes, most)
    user_s = grown(before.user_s, now.user_s, MOST_CPUS * seconds)
    if before.user_s is None or now.user_s is None:
        user_s = grown(before.cpu_s, now.cpu_s, MOST_CPUS * seconds)
    calls = grown(before.operations, now.operations, most) or 0.0
    # Without CPU time nothing is known of one that reads, and none of it by system calls.
    is_blind = user_s is None and logical == 0.0 and moved > 0.0
    return Doing(
        moved_bytes=logical or 0.0,
        user_s=user_s or 0.0,
        active_s=ran_s,
        read_bytes=read or 0.0,
        requests=max(moved / LARGEST_REQUEST_BYTES, min(calls, moved / PAGE_BYTES)),
        stalled_s=grown(before.io_stall_s, now.io_stall_s, LONGEST_STALL_S) or 0.0,
        is_measured=logical is not None and not is_blind,
    )
