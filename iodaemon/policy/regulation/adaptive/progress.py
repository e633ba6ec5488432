"""How fast jobs get on, and whether they get on faster with more or with fewer at once.

What a job gets done is what it reads and writes by system calls (``JobCounters.logical_bytes``), of
a job that moves little so the time for which it computes (``user_s``). Neither says how much is
left to do, so only one and the same job is compared with itself: its rate now with its rate before.

Source: on beds of re-reading, look-ups in databases, compression and streams logical bytes ordered
numbers of jobs at once as their true speed did in all pairs but one; user CPU time, the device's
bytes and pressure did not (docs/regulation.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from iodaemon.core.counter import MOST_BYTES_PER_S, MOST_CPUS, grown
from iodaemon.core.job import JobId
from iodaemon.core.sample import JobCounters

BYTES_PER_CPU_S: Final = 1e6
"""A job that moves fewer bytes than these by system calls for each second of CPU time computes: a
core copies a thousand times as many."""
MOST_SLICES: Final = 32
"""Slices of a window that are kept to tell its noise."""
PAGE_BYTES: Final = 4096
LARGEST_REQUEST_BYTES: Final = 1 << 20
"""A request to the storage is of one page at least, and of no more than this."""
LONGEST_STALL_S: Final = 3600.0
"""A stall may be counted late, when the job runs on; not so late."""


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


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which the number of jobs at once stayed the same.

    Attributes:
        done: what each job did in the slices in which it contended.
        slices: what all of them did together in each slice: bytes, or seconds of computing.
        many: how many contended in each.
    """

    done: Mapping[JobId, Doing] = MappingProxyType({})
    slices: tuple[float, ...] = ()
    many: tuple[int, ...] = ()

    @property
    def noise(self) -> float:
        """Standard error of the mean of its slices, as a part of the mean; infinite for one.

        Of few slices it is taken for larger, as Student's distribution does.
        """
        count = len(self.slices)
        mean = sum(self.slices) / count if count else 0.0
        if count < 2 or mean <= 0.0:
            return math.inf
        variance = sum((each - mean) ** 2 for each in self.slices) / (count - 1)
        return math.sqrt(variance / count) / mean * (1.0 + 2.0 / (count - 1))

    @property
    def mean_many(self) -> float:
        """How many contended in the mean."""
        return sum(self.many) / len(self.many) if self.many else 0.0


def with_slice(window: Window, doing: Mapping[JobId, Doing]) -> Window:
    """The window with one more slice: what those did who contended in the whole of it."""
    if not doing:
        return window
    done = dict(window.done)
    for job_id, now in doing.items():
        done[job_id] = _sum((done.get(job_id, Doing()), now))
    whole = _sum(doing.values())
    moves = whole.moved_bytes >= BYTES_PER_CPU_S * whole.user_s
    total = whole.moved_bytes if moves else whole.user_s
    return Window(
        done=done,
        slices=(*window.slices, total)[-MOST_SLICES:],
        many=(*window.many, len(doing))[-MOST_SLICES:],
    )


def gain(before: Window, after: Window) -> float | None:
    """How many times as much all who contend get done as before.

    Each job that contended both times counts the same, whatever it moves: its speed over the better
    of the two. Those that did only one time are taken to do as the others.

    Returns:
        None where nothing can be compared: nothing was done before.
    """
    then = now = 0.0
    for job_id, slower in before.done.items():
        faster = after.done.get(job_id)
        if faster is None:
            continue
        old, new = _comparable(slower, faster)
        best = max(old, new)
        if best > 0.0:
            then += old / best
            now += new / best
    if then <= 0.0 and now <= 0.0:
        then, now = _comparable(_sum(before.done.values()), _sum(after.done.values()))
    if before.mean_many <= 0.0:
        return None
    return None if then <= 0.0 else now / then * after.mean_many / before.mean_many


def _comparable(before: Doing, after: Doing) -> tuple[float, float]:
    """What was done in a second, both in bytes; of a job that computes both in CPU time."""
    then_s, now_s = max(before.active_s, 1e-9), max(after.active_s, 1e-9)
    moved = before.moved_bytes + after.moved_bytes
    if moved >= BYTES_PER_CPU_S * (before.user_s + after.user_s):
        return before.moved_bytes / then_s, after.moved_bytes / now_s
    return before.user_s / then_s, after.user_s / now_s


def _sum(doing: Iterable[Doing]) -> Doing:
    those = tuple(doing)
    return Doing(
        moved_bytes=sum(each.moved_bytes for each in those),
        user_s=sum(each.user_s for each in those),
        active_s=sum(each.active_s for each in those),
    )


def doing(before: JobCounters | None, now: JobCounters | None, ran_s: float) -> Doing:
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
