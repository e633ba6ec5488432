"""Packs: jobs of similar length that the storage can carry together start together on a socket.

Idea: a socket runs one pack at a time. A pack is filled as long as the socket has CPUs and the
pack's I/O fits into the socket's share of the storage for as long as its longest job runs. What
competes is decided before it competes.

1. When no pack waits, the first ``most`` jobs of the queue are packed (Make-Pack(S)): by
   decreasing walltime, each into the fullest pack with CPUs for it and room for its I/O.
2. A job's volume is its expected mean rate times its walltime; a pack's budget is S times the
   socket's share of ``bandwidth`` times its longest walltime, and may be used up exactly (equation
   4). All sockets share one storage system, so a share is ``bandwidth`` over the number of sockets.
3. ``online``: a socket that becomes free takes the longest pack that waits and fits it.
   ``static``: each pack is given to a socket when it is made (LPT), and runs there in its turn.
4. All jobs of a pack start at once; the next pack starts when the last of them has ended. What
   runs on a socket is its present pack, whoever started it. Jobs of it that regulation does not
   let start yet follow when it does; a pack of which it lets none start begins later.
5. Jobs that come after the packs were made wait for the next packs. A job that is cancelled or
   held meanwhile leaves its pack.
6. A job without walltime counts as ``assumed_walltime``. A job whose I/O is not known adds nothing
   to a pack but its CPUs: a budget can be kept only with what is known. Without any bandwidth, or
   with ``stretch_bound = "none"``, it is First-Fit by CPUs.
7. Sockets of different sizes: packs are made for the smallest, and of the jobs that do not fit it
   for the largest. The placement rule is not asked.

Needs: nothing; walltimes and I/O hints make the packs good.
Source: Carretero, Jeannot, Pallez, Singh, Vidal, ICS 2020, section 5.2, algorithm 1 (Make-Pack)
and section 6.2.4 (LPT over I/O nodes).
Differs: the paper's I/O nodes have a bandwidth of their own, sockets share one; its jobs are all
there at the beginning, and its packs are given to I/O nodes before (``static``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, Literal

import msgspec

from iodaemon.core.decision import AdmissionPlan, Placed
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.platform import Partition, PartitionId, Platform
from iodaemon.core.view import StartGate, View
from iodaemon.policy.packing import Item, Pack, assign, make_packs

_CODE: Final = "Pack"
_LOOKED_AT: Final = 2
"""Times ``most``: how far into the queue is looked, for some before those in packs may be new."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A pack that was made and has not started.

    Attributes:
        number: from 1 on, the longest first.
        jobs: the jobs in it.
        partition: where it will run. None: on the first partition that is free.
        begun: where other jobs of it run already. None if none has started.
    """

    number: int
    jobs: tuple[JobId, ...]
    partition: PartitionId | None = None
    begun: PartitionId | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The packs that wait, the longest first."""

    waiting: tuple[Waiting, ...] = ()


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Make-Pack(S), one pack at a time on a socket.

    Attributes:
        stretch_bound: S: how many times the socket's share a pack may ask for. None: First-Fit.
        bandwidth_bytes_per_s: of the whole storage. None: the devices' capacities, where known.
        mapping: packs to sockets when they become free, or when the packs are made.
        assumed_walltime_s: of a job that names none.
        most: at most so many jobs are packed at once.
    """

    stretch_bound: float | None = 1.0
    bandwidth_bytes_per_s: float | None = None
    mapping: Literal["online", "static"] = "online"
    assumed_walltime_s: float = 3600.0
    most: int = 1000

    def __post_init__(self) -> None:
        for name in ("stretch_bound", "bandwidth_bytes_per_s", "assumed_walltime_s", "most"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value:g}; it must be above 0")

    def caution(self, platform: Platform) -> str | None:
        """Without any bandwidth packs are First-Fit."""
        if self.stretch_bound is None or self._whole(platform) is not None:
            return None
        return "no capacity is known, so packs are made by CPUs alone; set [admission] bandwidth"

    def decide(self, view: View, memory: Memory | None) -> tuple[AdmissionPlan, Memory | None]:
        pending = {job.id: job for job in islice(view.pending, _LOOKED_AT * self.most)}
        waiting = _still_there((memory or Memory()).waiting, pending)
        free = _free_partitions(view)
        turns = Turns(view, pending)
        waiting = turns.follow(waiting, free)
        while free and turns.shut_by is None:
            if not waiting:
                waiting = self._make(view, pending, turns.taken)
            started = [
                (pack, partition)
                for pack, partition in _begin(waiting, free, pending)
                if turns.start(pack, partition.id)
            ]
            if not started:
                break
            for _, partition in started:
                free.remove(partition)
            gone = {pack.number for pack, _ in started}
            waiting = tuple(pack for pack in waiting if pack.number not in gone)
        starts = tuple(turns.starts)
        reasons = _reasons(view, waiting, starts) | turns.refusals
        shut_by = turns.shut_by if free else None
        if shut_by is not None:
            reasons |= dict.fromkeys((job_id for pack in waiting for job_id in pack.jobs), shut_by)
        begun = {placed.job_id for placed in starts}
        late = (job_id for job_id in pending if job_id not in begun and job_id not in reasons)
        reasons |= dict.fromkeys(late, shut_by or _LATE)
        memory = Memory(waiting=(*turns.following, *waiting))
        return AdmissionPlan(starts=starts, reasons=reasons), memory

    def _make(
        self, view: View, pending: Mapping[JobId, Job], taken: Collection[JobId]
    ) -> tuple[Waiting, ...]:
        """Packs of the jobs at the head of the queue."""
        left = [job for job in pending.values() if job.id not in taken][: self.most]
        sizes = [partition.size for partition in view.platform.partitions]
        small = [job for job in left if job.spec.cpus <= min(sizes)]
        large = [job for job in left if job.spec.cpus > min(sizes)]
        packs = [*self._packed(view, small, min(sizes)), *self._packed(view, large, max(sizes))]
        packs.sort(key=lambda pack: (-pack.alone_s, pack.items[0].id))
        homes = self._homes(view, packs)
        return tuple(
            Waiting(
                number=number,
                jobs=tuple(JobId(item.id) for item in pack.items),
                partition=home,
            )
            for number, (pack, home) in enumerate(zip(packs, homes, strict=True), start=1)
        )

    def _packed(self, view: View, jobs: Iterable[Job], slots: int) -> Sequence[Pack]:
        return make_packs(
            (self._item(view, job) for job in jobs),
            slots=slots,
            stretch_bound=math.inf if self.stretch_bound is None else self.stretch_bound,
            bandwidth_bytes_per_s=self._share(view),
        )

    def _item(self, view: View, job: Job) -> Item:
        walltime_s = job.spec.walltime_s or self.assumed_walltime_s
        rate = view.expected(job.id).rate_bytes_per_s
        return Item(
            id=job.id, slots=job.spec.cpus, alone_s=walltime_s, volume_bytes=rate * walltime_s
        )

    def _share(self, view: View) -> float:
        """One socket's share of the bandwidth, bytes/s; infinite if it is unknown."""
        whole = self._whole(view.platform)
        return math.inf if whole is None else whole / len(view.platform.partitions)

    def _whole(self, platform: Platform) -> float | None:
        """The bandwidth of all storage, bytes/s; None if unknown."""
        return self.bandwidth_bytes_per_s or platform.capacity_bytes_per_s

    def _homes(self, view: View, packs: Sequence[Pack]) -> list[PartitionId | None]:
        """Where each pack will run; packs too large for some sockets are spread over the others."""
        homes: list[PartitionId | None] = [None] * len(packs)
        if self.mapping == "online":
            return homes
        partitions = view.platform.partitions
        smallest = min(partition.size for partition in partitions)
        groups = (
            (partitions, [i for i, pack in enumerate(packs) if pack.slots <= smallest]),
            (_largest(partitions), [i for i, pack in enumerate(packs) if pack.slots > smallest]),
        )
        for group, indexes in groups:
            bins = assign([packs[i].alone_s for i in indexes], len(group))
            for i, number in zip(indexes, bins, strict=True):
                homes[i] = group[number].id
        return homes


class Turns:
    """The jobs that start in one decision, as far as regulation lets them.

    Args:
        pending: the jobs of all packs, and others.

    Attributes:
        following: what is left of packs that have begun.
        refusals: why jobs whose turn it is do not start.
    """

    def __init__(self, view: View, pending: Mapping[JobId, Job]) -> None:
        self.starts: list[Placed] = []
        self.following: list[Waiting] = []
        self.refusals: dict[JobId, Reason] = {}
        self._pending = pending
        self._gate = StartGate(view)
        self._room = {p.id: view.slots_free(p.id) for p in view.platform.partitions}
        self._cores = {p.id: view.cores_free(p.id) for p in view.platform.partitions}

    @property
    def shut_by(self) -> Reason | None:
        """Why no job at all may start now; None: one might."""
        return self._gate.shut_by

    @property
    def taken(self) -> set[JobId]:
        """Jobs that start, and jobs that follow others of their pack."""
        started = {placed.job_id for placed in self.starts}
        return started.union(*(pack.jobs for pack in self.following))

    def follow(self, waiting: Iterable[Waiting], free: Iterable[Partition]) -> tuple[Waiting, ...]:
        """Start jobs left of packs that have begun; return the packs that wait."""
        idle = {partition.id for partition in free}
        still = []
        for pack in waiting:
            if pack.begun is None:
                still.append(pack)
            elif pack.begun in idle or pack.begun not in self._room:
                still.append(msgspec.structs.replace(pack, begun=None))
            elif not self.start(pack, pack.begun):
                self.following.append(pack)
        return tuple(still)

    def start(self, pack: Waiting, home: PartitionId) -> bool:
        """Start the pack's jobs there; False if none of them may start."""
        later = [job_id for job_id in pack.jobs if not self._may_start(job_id, home)]
        if len(later) == len(pack.jobs):
            return False
        if later:
            left = msgspec.structs.replace(pack, jobs=tuple(later), begun=home)
            self.following.append(left)
        return True

    def _may_start(self, job_id: JobId, home: PartitionId) -> bool:
        """Start the job there if it may start."""
        job = self._pending[job_id]
        refusal = self._gate.refusal(job)
        if refusal is not None:
            self.refusals[job_id] = refusal
            return False
        cpus, own = job.spec.cpus, 0 if job.spec.shares_cores else job.spec.cpus
        if self._room[home] < cpus or self._cores[home] < own:  # taken since its pack has begun
            return False
        self._room[home] -= cpus
        self._cores[home] -= own
        self._gate.take(job)
        self.starts.append(Placed(job_id=job_id, partition=home))
        return True


_LATE: Final = Reason(
    code=_CODE, text="came after the packs were made; the next ones are made when these have begun"
)


def _still_there(waiting: Iterable[Waiting], pending: Mapping[JobId, Job]) -> tuple[Waiting, ...]:
    """The packs without jobs that left the queue, and without empty packs."""
    kept = []
    for pack in waiting:
        jobs = tuple(job_id for job_id in pack.jobs if job_id in pending)
        if jobs:
            kept.append(msgspec.structs.replace(pack, jobs=jobs))
    return tuple(kept)


def _free_partitions(view: View) -> list[Partition]:
    """Partitions on which nothing runs, by number."""
    taken = {job.partition for job in view.live}
    return [
        partition
        for partition in view.platform.partitions
        if partition.id not in taken and view.slots_free(partition.id) >= partition.size
    ]


def _begin(
    waiting: Iterable[Waiting], free: Sequence[Partition], pending: Mapping[JobId, Job]
) -> list[tuple[Waiting, Partition]]:
    """Which packs start where now."""
    left = list(free)
    begun: list[tuple[Waiting, Partition]] = []
    for pack in waiting:
        slots = sum(pending[job_id].spec.cpus for job_id in pack.jobs)
        fitting = [p for p in left if pack.partition in (None, p.id) and p.size >= slots]
        if fitting:
            partition = min(fitting, key=lambda p: (p.size, p.id))
            begun.append((pack, partition))
            left.remove(partition)
        if not left:
            break
    return begun


def _largest(partitions: Sequence[Partition]) -> Sequence[Partition]:
    size = max(partition.size for partition in partitions)
    return [partition for partition in partitions if partition.size == size]


# -- reasons ---------------------------------------------------------------------------------------


def _reasons(
    view: View, waiting: Sequence[Waiting], starts: Iterable[Placed]
) -> dict[JobId, Reason]:
    """For each job in a pack: which pack, and what it waits for."""
    ends = _ends(view, starts)
    reasons: dict[JobId, Reason] = {}
    before: dict[PartitionId | None, Waiting] = {}
    for pack in waiting:
        where = f" of socket {pack.partition}" if pack.partition is not None else ""
        ahead = before.get(pack.partition)
        if ahead is not None:
            behind = f"behind pack {ahead.number}"
        elif pack.partition is not None:
            behind = f"behind what runs there{_last_job(ends, pack.partition)}"
        else:
            behind = "the next to start, when a socket is free: " + _in_words(ends)
        text = f"is in pack {pack.number}{where}, {behind}"
        reasons |= dict.fromkeys(pack.jobs, Reason(code=_CODE, text=text))
        before[pack.partition] = pack
    return reasons


def _last_job(ends: Mapping[PartitionId, JobId], partition: PartitionId) -> str:
    return f", which ends with job {ends[partition]}" if partition in ends else ""


def _ends(view: View, starts: Iterable[Placed]) -> dict[PartitionId, JobId]:
    """The job with which each socket's present pack is expected to end, by what is left of it."""
    held = [(job.partition, job) for job in view.live if job.partition is not None]
    held += [(placed.partition, view.job(placed.job_id)) for placed in starts]
    last: dict[PartitionId, tuple[float, JobId]] = {}
    for partition, job in held:
        walltime_s = job.spec.walltime_s
        left_s = math.inf if walltime_s is None else walltime_s - job.run_s_at(view.now_s)
        last[partition] = max(last.get(partition, (-math.inf, job.id)), (left_s, job.id))
    return {partition: job_id for partition, (_, job_id) in sorted(last.items())}


def _in_words(ends: Mapping[PartitionId, JobId]) -> str:
    return ", ".join(f"socket {socket} with the end of job {job}" for socket, job in ends.items())
