"""Requests for storage that live: where a job is placed moves its end, and so what comes later.

StorAlloc places requests whose begin and end are given. Here a job computes and does its I/O in
turns; its I/O shares the disks and links on which it was placed, so its end
moves, its space and its compute nodes are free later, and others begin later.

1. The recorded length is what the job takes with all of its pace: without contention it ends
   exactly as recorded.
2. A request that gets no space goes to the parallel file system, whose one bandwidth is shared too.
3. A rule is asked when a job is to begin, with what is there then. It believes that a job lasts as
   recorded, and what it has lost so far longer.
4. Who begins is in ``storalloc_feedback_run``.

Streams of bytes to the disks of one storage node are max-min fair over its disks and its link:

1. A stream is what one request moves to one disk. It has a pace, which it never exceeds, and a
   weight: the number of its parts there.
2. All streams rise together by weight until one has its pace, or a disk or the link is full, whose
   streams then keep what they have (progressive filling: Bertsekas, Gallager, Data Networks, 1992,
   section 6.5.2).
3. Work is counted in seconds at full pace, so that a stream that always had its pace ends exactly
   when it was to end, to the last digit.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.job import DiskId
from iodaemon.core.storage import Allocation, Storage, StorageLedger, StorageRequest
from iodaemon.simulator.storalloc import GB, Placed, Placing, place

FULL: Final = 1.0
"""The speed of a stream that has its pace."""


class Stream:
    """What one request moves to one disk at present.

    Attributes:
        owner: whose; the pool does not look at it.
        disk: where to.
        pace_bytes_per_s: it never gets more.
        weight: at least 1.
        full_s: when it ends if it has its pace from the pool's present on.
        end_s: when it ends if nobody comes or goes.
        speed: the part of its pace that it gets, above 0 and at most 1.
    """

    __slots__ = ("disk", "end_s", "full_s", "owner", "pace_bytes_per_s", "speed", "weight")

    def __init__(
        self, owner: Any, disk: DiskId, *, pace_bytes_per_s: float, weight: int, full_s: float
    ) -> None:
        self.owner = owner
        self.disk = disk
        self.pace_bytes_per_s = pace_bytes_per_s
        self.weight = weight
        self.full_s = self.end_s = full_s
        self.speed = FULL


class Pool:
    """The disks of a node behind its link, and the streams to them.

    Use: ``advance`` to the present, ``add`` and ``take_ended``, then ``settle``. Invariant: between
    two calls of ``settle`` all speeds are constant.

    Attributes:
        streams: in the order in which they came.
        is_contended: somebody gets less than its pace.
        next_s: when the next one ends; infinite for never.
        ticket: raised whenever ``next_s`` may have changed.
    """

    def __init__(self, disks: Mapping[DiskId, float], link_bytes_per_s: float) -> None:
        self.streams: list[Stream] = []
        self.is_contended = False
        self.next_s = math.inf
        self.ticket = 0
        self._now_s = -math.inf
        self._disks = dict(disks)
        self._link = link_bytes_per_s

    def advance(self, now_s: float) -> None:
        """What does not have its pace falls behind."""
        if self.is_contended:
            passed_s = now_s - self._now_s
            for stream in self.streams:
                if stream.speed < FULL:
                    stream.full_s += passed_s * (FULL - stream.speed)
        self._now_s = now_s

    def full_s(self, stream: Stream, now_s: float) -> float:
        """When a stream of this pool ends if it has its pace from now on."""
        return stream.full_s + (now_s - self._now_s) * (FULL - stream.speed)

    def add(self, streams: Iterable[Stream]) -> None:
        """They come."""
        self.streams += streams

    def take_ended(self) -> list[Stream]:
        """Those that have ended by now; they are gone."""
        now_s = self._now_s
        ended = [stream for stream in self.streams if stream.end_s <= now_s]
        self.streams = [stream for stream in self.streams if stream.end_s > now_s]
        return ended

    def settle(self) -> None:
        """Share anew among those that are there."""
        now_s = self._now_s
        was_contended, self.is_contended = self.is_contended, not self._all_fit()
        if self.is_contended:
            self._fill()
        elif was_contended:
            for stream in self.streams:
                stream.speed = FULL
        next_s = math.inf
        for stream in self.streams:
            end_s = stream.full_s
            if stream.speed < FULL:
                end_s = now_s + (stream.full_s - now_s) / stream.speed
            stream.end_s = end_s
            next_s = min(next_s, end_s)
        self.next_s = next_s
        self.ticket += 1

    def _all_fit(self) -> bool:
        """Whether everybody can have its pace."""
        wanted: dict[DiskId, float] = {}
        for stream in self.streams:
            wanted[stream.disk] = wanted.get(stream.disk, 0.0) + stream.pace_bytes_per_s
        disks = self._disks
        return sum(wanted.values()) <= self._link and all(
            pace <= disks[disk] for disk, pace in wanted.items()
        )

    def _fill(self) -> None:
        """Progressive filling: at each step the lowest pace or the fullest resource is settled."""
        waiting = sorted(self.streams, key=_level, reverse=True)
        left: dict[DiskId | None, float] = dict(self._disks.items())
        left[None] = self._link
        weights: dict[DiskId | None, int] = dict.fromkeys(left, 0)
        for stream in waiting:
            weights[stream.disk] += stream.weight
            weights[None] += stream.weight
        while waiting:
            level, fullest = min(
                ((left[name] / weight, name) for name, weight in weights.items() if weight),
                key=_first,
            )
            if _level(waiting[-1]) <= level:
                settled = [waiting.pop()]
            else:
                settled = [each for each in waiting if fullest in {None, each.disk}]
                waiting = [each for each in waiting if fullest not in {None, each.disk}]
            for stream in settled:
                rate = min(stream.pace_bytes_per_s, level * stream.weight)
                stream.speed = rate / stream.pace_bytes_per_s
                for name in (stream.disk, None):
                    left[name] -= rate
                    weights[name] -= stream.weight


def _level(stream: Stream) -> float:
    """At which it has its pace."""
    return stream.pace_bytes_per_s / stream.weight


def _first(pair: tuple[float, DiskId | None]) -> float:
    return pair[0]


Admission = Literal["open", "apart", "together"]
"""``open``: all begin as recorded. ``apart``: when they have their nodes, and space is asked then.
``together``: when they have nodes and space."""
Fate = Literal["served", "refused", "failed"]
"""On disks; or not: the rule said no, or it chose a disk without room."""
FALLBACK: Final = DiskId("file system")
_STILL_THERE_S: Final = 1.0
"""A job that should have ended and has not is believed to be there so much longer."""
_END, _IO = 0, 1
"""What is due: a pool's next end, or a job's I/O. At one instant what ends goes first."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs live.

    Attributes:
        admission: who begins when.
        nodes: compute nodes of the platform; of no meaning where all begin as recorded.
        has_feedback: placement changes how long jobs take; else they end as long after their
            begin as was recorded.
        io_part: of the recorded length that is I/O, above 0 and at most 1; it sets the pace.
        volume: bytes moved, in sizes of the space wanted.
        cycles: turns of computing and I/O, at least 1.
        fallback_bytes_per_s: of the parallel file system.
    """

    admission: Admission = "open"
    nodes: int = 512
    has_feedback: bool = True
    io_part: float = 0.1
    volume: float = 1.0
    cycles: int = 1
    fallback_bytes_per_s: float = 200e9

    def __post_init__(self) -> None:
        """Refuse what no job can live in."""
        if not 0.0 < self.io_part <= 1.0:
            raise ValueError(f"io_part is {self.io_part:g}; it must be above 0, at most 1")
        if not 0.0 < self.volume < math.inf:
            raise ValueError(f"volume is {self.volume:g}; it must be above 0")
        if self.cycles < 1 or self.nodes < 1:
            raise ValueError("cycles and nodes must be at least 1")
        if not self.fallback_bytes_per_s > 0.0:
            raise ValueError("fallback_bytes_per_s must be above 0")


class Life:
    """A request on its way.

    Attributes:
        request: as it was asked.
        nodes: compute nodes that it needs.
        fate: None: not begun.
        sizes: of its parts, bytes.
        parts: what it holds; empty on the file system.
        started_s: None: not yet.
        ended_s: None: not yet.
        believed_s: when it is believed to end, while it runs.
    """

    __slots__ = (
        *("believed_s", "cycle", "ended_s", "fate", "late_s", "nodes", "parts", "request"),
        *("sizes", "started_s", "streams"),
    )

    def __init__(self, request: StorageRequest, nodes: int) -> None:
        self.request = request
        self.nodes = nodes
        self.fate: Fate | None = None
        self.sizes: tuple[int, ...] = ()
        self.parts: tuple[Allocation, ...] = ()
        self.started_s: float | None = None
        self.ended_s: float | None = None
        self.believed_s = math.inf
        self.late_s = 0.0
        self.cycle = 0
        self.streams: list[tuple[Pool, Stream]] = []

    def due_s(self, way: Way) -> float:
        """When this turn is over if no more is lost."""
        length_s, turn = self.request.duration_s, self.cycle + 1
        if turn < way.cycles:
            length_s *= turn / way.cycles
        return (self.started_s or 0.0) + length_s + self.late_s


class LiveStorage:
    """Disks, their books, the jobs on them, and time; who begins is told from outside.

    Attributes:
        ledger: what the rule sees: of every job that runs its parts, until it is believed to end.
        running: in the order of their begin.
        used_bytes: of all disks.
    """

    def __init__(self, storage: Storage, placing: Placing, way: Way, seed: int) -> None:
        rng = random.Random(f"storalloc rule {seed}")  # noqa: S311 - for experiments, no secrets
        self.way = way
        self.ledger = StorageLedger(storage, rng)
        self.running: dict[Life, None] = {}
        self.used_bytes = 0
        self._placing = placing
        self._memory: Any = None
        self._free = {disk.id: disk.capacity_bytes for disk in storage.disks}
        self._pools = dict.fromkeys(self._free, Pool({}, math.inf))
        for node in storage.nodes:
            rates = {disk.id: disk.write_bytes_per_s for disk in node.disks}
            self._pools |= dict.fromkeys(rates, Pool(rates, node.network_bytes_per_s))
        self._pools[FALLBACK] = Pool({FALLBACK: math.inf}, way.fallback_bytes_per_s)
        self._due: list[tuple[float, int, int, int, Pool | Life]] = []
        self._number = 0
        self._slowed: dict[Life, None] = {}

    @property
    def next_s(self) -> float:
        """When something happens by itself; infinite for never."""
        return self._due[0][0] if self._due else math.inf

    def find_space(self, job: Life, now_s: float) -> Placed | None:
        """Disks for a job that would begin now, and taken; None where there is no room.

        ``job.fate`` tells the outcome. Nothing but that and the rule's memory is changed by a no.
        """
        self._believe(now_s)
        wanted = job.request
        if wanted.start_s != now_s:
            end_s = now_s + wanted.duration_s
            wanted = msgspec.structs.replace(wanted, start_s=now_s, end_s=end_s)
        placed, self._memory = place(
            self._placing, self.ledger, wanted, self._memory, unit_bytes=GB
        )
        job.sizes = placed.sizes
        job.fate = "refused" if placed.refusal is not None else "served"
        if placed.refusal is None and not self._fits(placed.parts):
            job.fate = "failed"
            for part in placed.booked:
                self.ledger.give_back(part)
        return placed if job.fate == "served" else None

    def _fits(self, parts: Sequence[Allocation]) -> bool:
        wanted: dict[DiskId, int] = {}
        for part in parts:
            wanted[part.disk] = wanted.get(part.disk, 0) + part.size_bytes
        return all(self._free[disk] >= size for disk, size in wanted.items())

    def begin(self, job: Life, placed: Placed | None, now_s: float) -> None:
        """The job runs: on the disks that were found, or on the file system."""
        job.started_s = now_s
        job.believed_s = now_s + job.request.duration_s
        if placed is not None:
            job.parts = placed.parts
            for part in job.parts:
                self._free[part.disk] -= part.size_bytes
                self.used_bytes += part.size_bytes
        self.running[job] = None
        self._next_turn(job, now_s)

    def _next_turn(self, job: Life, now_s: float) -> None:
        if not self.way.has_feedback:
            job.cycle = self.way.cycles - 1
            self._push(job.due_s(self.way), _END, 0, job)
            return
        due_s = job.due_s(self.way)
        io_s = self.way.io_part * job.request.duration_s / self.way.cycles
        self._push(max(now_s, due_s - io_s), _IO, 0, job)

    def _push(self, at_s: float, kind: int, ticket: int, what: Pool | Life) -> None:
        self._number += 1
        heapq.heappush(self._due, (at_s, kind, self._number, ticket, what))

    def happen(self) -> tuple[float, list[Life]]:
        """The next thing that happens by itself: when, and the jobs that ended by it."""
        now_s, kind, _, ticket, what = heapq.heappop(self._due)
        if isinstance(what, Pool):
            return now_s, self._arrive(what, now_s) if ticket == what.ticket else []
        if kind == _IO:
            self._move(what, now_s)
            return now_s, []
        self._end(what, now_s)
        return now_s, [what]

    def _move(self, job: Life, now_s: float) -> None:
        """Its I/O begins: a stream to each of its disks."""
        way, due_s = self.way, job.due_s(self.way)
        io_s = way.io_part * job.request.duration_s
        streams: dict[DiskId, tuple[int, int]] = {}
        for part in job.parts:
            size, count = streams.get(part.disk, (0, 0))
            streams[part.disk] = size + part.size_bytes, count + 1
        here = streams or {FALLBACK: (sum(job.sizes), 1)}
        touched: dict[Pool, list[Stream]] = {}
        for disk, (size, count) in here.items():
            pace = way.volume * size / io_s
            pool = self._pools[disk]
            stream = Stream(job, disk, pace_bytes_per_s=pace, weight=count, full_s=due_s)
            touched.setdefault(pool, []).append(stream)
            job.streams.append((pool, stream))
        for pool, added in touched.items():
            pool.advance(now_s)
            pool.add(added)
            self._settle(pool)

    def _settle(self, pool: Pool) -> None:
        pool.settle()
        if pool.is_contended:
            self._slowed |= dict.fromkeys(stream.owner for stream in pool.streams)
        if pool.next_s < math.inf:
            self._push(pool.next_s, _END, pool.ticket, pool)

    def _arrive(self, pool: Pool, now_s: float) -> list[Life]:
        """Streams of this pool end; the jobs that have ended by that."""
        pool.advance(now_s)
        ended = []
        gone = pool.take_ended()
        self._settle(pool)
        for stream in gone:
            job: Life = stream.owner
            job.streams = [pair for pair in job.streams if pair[1] is not stream]
            if job.streams:
                continue
            job.late_s += max(0.0, now_s - job.due_s(self.way))
            job.cycle += 1
            if job.cycle < self.way.cycles:
                self._next_turn(job, now_s)
            else:
                self._end(job, now_s)
                ended.append(job)
        return ended

    def _end(self, job: Life, now_s: float) -> None:
        job.ended_s = now_s
        del self.running[job]
        self._slowed.pop(job, None)
        for part in job.parts:
            self.ledger.give_back(part)
            self._free[part.disk] += part.size_bytes
            self.used_bytes -= part.size_bytes

    def _believe(self, now_s: float) -> None:
        """The books are told of what jobs have lost so far."""
        for job in list(self._slowed):
            believed_s = max(self._believed_s(job, now_s), now_s + _STILL_THERE_S)
            if all(stream.speed == 1.0 for _, stream in job.streams):
                del self._slowed[job]
            if believed_s == job.believed_s:
                continue
            job.believed_s = believed_s
            moved = []
            for part in job.parts:
                self.ledger.give_back(part)
                moved.append(Allocation(part.disk, part.size_bytes, part.start_s, believed_s))
                self.ledger.take(moved[-1])
            job.parts = tuple(moved)

    def _believed_s(self, job: Life, now_s: float) -> float:
        lost_s = 0.0
        if job.streams:
            due_s = job.due_s(self.way)
            lost_s = max(pool.full_s(stream, now_s) for pool, stream in job.streams) - due_s
        length_s = job.request.duration_s
        return (job.started_s or 0.0) + length_s + job.late_s + max(0.0, lost_s)
