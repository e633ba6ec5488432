"""Storage that is handed out: disks in nodes, tiers, requests for space, what is taken when.

The same types serve the tiers of a real machine and simulated platforms. Space is wanted for a
time: from a start to an end, which is infinite where nobody knows it.

A job that asked for space is charged the time it would have taken on the slowest tier
(``slow_tier_s``): who was put on a slow tier is not charged for that, and who was put on a fast one
pays for no less than others. The time is reckoned from what was measured:

1. Of the time that it ran, what was spent on staging is taken off: what was copied, over the
   tier's staging rate.
2. What it read and wrote itself took its time on the tier that it had, and takes it on the slow
   one instead. What is copied out is among it: the job wrote it once, there as here.
3. What was copied in is read from the slow tier where it is, also where the job did not read it
   from its disk but found it in memory, just copied: the kernel counts no such reading.

What was staged, and what that read and wrote, is what the kernel counted of the steps that copied
(where that is not known: what was asked for). The bandwidths are those of whole tiers: what
a job has of them alone. Rule 3 takes it that a job reads all of its input, and reads it once.
Source: the times of the rule ``storage_aware`` (equation 2 of its sheet), solved for the slow one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from iodaemon.core.error import InvariantError
from iodaemon.core.job import DiskId, IoTotals, Job, Reason, ScratchRequest, Staged, TierName
from iodaemon.core.rule_error import FROM_A_RULE, BadAnswer, answer_and_memory, rule_error

M = TypeVar("M")


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A disk of which space is handed out.

    Attributes:
        id: its name.
        capacity_bytes: what can be handed out at one time, above 0.
        read_bytes_per_s: what it reads alone, above 0.
        write_bytes_per_s: what it writes alone, above 0.
        kind: what it is, for people; empty where nobody knows.
        filesystem: which one it was when it was looked at; empty where nobody did.
        others_bytes: what others' files took of it then, at least. None: nobody looked.
    """

    id: DiskId
    capacity_bytes: int
    read_bytes_per_s: float
    write_bytes_per_s: float
    kind: str = ""
    filesystem: str = ""
    others_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.capacity_bytes <= 0:
            raise ValueError(f"disk {self.id}: capacity_bytes must be above 0")
        if not min(self.read_bytes_per_s, self.write_bytes_per_s) > 0.0:
            raise ValueError(f"disk {self.id}: its bandwidths must be above 0")


class StorageNode(msgspec.Struct, frozen=True, kw_only=True):
    """Disks behind one network link.

    Attributes:
        id: its name.
        disks: at least one, in the order in which rules visit them.
        server: nodes of one server are registered together; rules that take turns take them over
            the servers first.
        network_bytes_per_s: of the link; infinite where the disks are local.
    """

    id: str
    disks: tuple[Disk, ...]
    server: str = ""
    network_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        if not self.disks:
            raise ValueError(f"storage node {self.id}: it has no disk")
        if not self.network_bytes_per_s > 0.0:
            raise ValueError(f"storage node {self.id}: network_bytes_per_s must be above 0")


class Storage(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All that can be handed out, in the order in which rules visit it."""

    nodes: tuple[StorageNode, ...]

    def __post_init__(self) -> None:
        names = [disk.id for node in self.nodes for disk in node.disks]
        if not names:
            raise ValueError("a storage has at least one node")
        if len(set(names)) < len(names):
            raise ValueError("two disks of a storage have one name")

    @cached_property
    def disks(self) -> tuple[Disk, ...]:
        return tuple(disk for node in self.nodes for disk in node.disks)

    @cached_property
    def by_id(self) -> Mapping[DiskId, Disk]:
        return {disk.id: disk for disk in self.disks}

    @cached_property
    def servers(self) -> tuple[tuple[StorageNode, ...], ...]:
        """The nodes of each server, in the order in which the servers are first seen."""
        found: dict[str, list[StorageNode]] = {}
        for node in self.nodes:
            found.setdefault(node.server, []).append(node)
        return tuple(map(tuple, found.values()))

    @cached_property
    def capacity_bytes(self) -> int:
        return sum(disk.capacity_bytes for disk in self.disks)


class StorageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Space that is wanted for a time.

    Attributes:
        id: for people and reasons.
        size_bytes: above 0.
        start_s: from then on.
        end_s: until then, after ``start_s``; infinite where it is not known.
    """

    id: str
    size_bytes: int
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


class Allocation(msgspec.Struct, frozen=True, eq=False):
    """Space of one disk that is taken, from a start to an end."""

    disk: DiskId
    size_bytes: int
    start_s: float
    end_s: float


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """No disk now, and why. Whoever asked falls back, waits or asks again for another time."""

    reason: Reason


class StorageView(Protocol):
    """What a rule for allocation sees."""

    @property
    def storage(self) -> Storage:
        """What can be handed out."""
        ...

    @property
    def rng(self) -> random.Random:
        """Seeded; for what is random, ties among them."""
        ...

    def overlapping(self, disk: DiskId, start_s: float, end_s: float) -> Sequence[Allocation]:
        """What of this disk is taken at any time between; ends that touch do not count."""
        ...


class AllocationRule(Protocol[M]):
    """Which disk holds a request for space, or a part of one."""

    def choose(
        self, view: StorageView, request: StorageRequest, memory: M | None
    ) -> tuple[DiskId | Refusal, M | None]:
        """Asked once a request or part; what it answers is then written down by whoever asked."""
        ...


def ask_allocation(
    rule: AllocationRule[Any],
    view: StorageView,
    request: StorageRequest,
    memory: Any,
    *,
    tier: TierName | None = None,
) -> tuple[DiskId | Refusal, Any]:
    """What the rule chooses, a disk that is there or a refusal, and its memory.

    Raises:
        RuleError: it has no answer of use.
    """
    try:
        found, memory = answer_and_memory(rule.choose(view, request, memory))
        if not isinstance(found, Refusal) and found not in view.storage.by_id:
            raise BadAnswer(f"returned {found!r}, neither a disk of the storage nor a Refusal")
    except FROM_A_RULE as error:
        raise rule_error("allocation", rule, rule.choose, error, tier=tier) from error
    return found, memory


class StorageLedger:
    """What is allocated on every disk, by time; the one place in which it is kept.

    An allocation stays until it is given back or forgotten: one that begins later than others is
    seen by them, whatever the order in which they came.
    """

    def __init__(self, storage: Storage, rng: random.Random) -> None:
        self.storage = storage
        self.rng = rng
        self._taken: dict[DiskId, dict[Allocation, None]] = {d.id: {} for d in storage.disks}
        self._first_end_s: dict[DiskId, float] = dict.fromkeys(self._taken, math.inf)
        self._next_end_s = math.inf

    def overlapping(self, disk: DiskId, start_s: float, end_s: float) -> Sequence[Allocation]:
        """What of this disk is taken at any time between, in the order in which it was taken."""
        taken = self._taken[disk]
        if not taken:
            return ()
        return [each for each in taken if each.start_s < end_s and each.end_s > start_s]

    def take(self, allocation: Allocation) -> None:
        """Write it down; whether it fits is the rule's to know.

        Raises:
            InvariantError: it is written down already.
        """
        taken = self._taken[allocation.disk]
        if allocation in taken:
            raise InvariantError(f"an allocation on disk {allocation.disk} is taken twice")
        taken[allocation] = None
        if allocation.end_s < self._first_end_s[allocation.disk]:
            self._first_end_s[allocation.disk] = allocation.end_s
            self._next_end_s = min(self._next_end_s, allocation.end_s)

    def give_back(self, allocation: Allocation) -> None:
        """Strike it out.

        Raises:
            InvariantError: it is not there.
        """
        taken = self._taken[allocation.disk]
        if allocation not in taken:
            raise InvariantError(f"an allocation on disk {allocation.disk} is given back twice")
        del taken[allocation]

    def forget(self, before_s: float) -> None:
        """Strike out all that has ended by then: nothing that comes begins earlier."""
        if before_s < self._next_end_s:
            return
        for disk, first_s in self._first_end_s.items():
            if first_s <= before_s:
                left = {each: None for each in self._taken[disk] if each.end_s > before_s}
                self._taken[disk] = left
                self._first_end_s[disk] = min((each.end_s for each in left), default=math.inf)
        self._next_end_s = min(self._first_end_s.values())


DiskKind = Literal["nvme", "ssd", "hdd", "memory"]


class DiskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is found at the path of a disk.

    Attributes:
        problem: why it cannot be used, and the cure (``supervisor.disk_trouble``); empty: it can.
        obstacle: likewise, where the daemon starts nevertheless, and jobs wait.
        lack: likewise, that it is full; no fault where jobs were promised all of it.
        filesystem: the same for two paths on one filesystem.
        total_bytes: what users can have of the filesystem, when it is empty.
        free_bytes: what they can have of it now.
        is_on_root: it is the filesystem of ``/``.
        kind: of the slowest disk below.
        description: of what is below, for people.
    """

    problem: str = ""
    obstacle: str = ""
    lack: str = ""
    filesystem: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    is_on_root: bool = False
    kind: DiskKind = "hdd"
    description: str = ""


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """A class of storage.

    Attributes:
        name: unique.
        storage: its disks. None: a tier without space to hand out, whose capacity nobody counts.
        bandwidth_bytes_per_s: between the jobs and all of its disks together.
        staging_bytes_per_s: between it and the slowest tier; infinite for that one itself.
        split_bytes: a larger request is split over several disks. None: never.
        rule: which of its disks holds what. None: the first with room.
    """

    name: TierName
    storage: Storage | None
    bandwidth_bytes_per_s: float
    staging_bytes_per_s: float = math.inf
    split_bytes: int | None = None
    rule: AllocationRule[Any] | None = None

    def __post_init__(self) -> None:
        if not min(self.bandwidth_bytes_per_s, self.staging_bytes_per_s) > 0.0:
            raise ValueError(f"tier {self.name}: its bandwidths must be above 0")
        if self.split_bytes is not None and self.split_bytes < 1:
            raise ValueError(f"tier {self.name}: split_bytes must be at least 1")

    @property
    def capacity_bytes(self) -> float:
        """Of all its disks; infinite where nobody counts."""
        return math.inf if self.storage is None else float(self.storage.capacity_bytes)

    @property
    def disks(self) -> tuple[Disk, ...]:
        return () if self.storage is None else self.storage.disks


def slow_tier_s(job: Job, tiers: Sequence[Tier]) -> float:
    """How long the job would have run on the slowest tier, s; as long as it ran where it did.

    Args:
        tiers: fastest first.
    """
    had = next((tier for tier in tiers if tier.name == job.tier), None)
    request = job.spec.scratch
    if had is None or request is None or had.name == tiers[-1].name:
        return job.run_s
    slow = tiers[-1]
    staged = job.staged or _as_asked(request)
    staged_s = (staged.came_bytes + staged.went_bytes) / had.staging_bytes_per_s
    moved, unread = _own_bytes(job.io, staged, request)
    longer = 1.0 / slow.bandwidth_bytes_per_s - 1.0 / had.bandwidth_bytes_per_s
    in_place_s = unread / slow.bandwidth_bytes_per_s
    return max(0.0, job.run_s - staged_s) + in_place_s + moved * max(0.0, longer)


def _own_bytes(io: IoTotals, staged: Staged, request: ScratchRequest) -> tuple[int, int]:
    """What the job itself moved on its tier, and what of its input it did not read from there."""
    total = io.total_bytes
    if total is None:
        return request.data_bytes + staged.went_bytes, staged.came_bytes
    read = max(0, (io.read_bytes or 0) - staged.read_bytes)
    return max(0, total - staged.moved_bytes), max(0, staged.came_bytes - read)


def _as_asked(request: ScratchRequest) -> Staged:
    """As if all had been copied that the job named: read from one tier, written to the other."""
    came = request.input_bytes if request.input_path is not None else 0
    went = request.output_bytes if request.output_path is not None else 0
    return Staged(came_bytes=came, went_bytes=went, moved_bytes=2 * (came + went))
