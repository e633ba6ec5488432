"""The space of the tiers: who holds what of which disk, and what a request would get of it.

A request is split into parts, placed one after another. Each part sees the earlier ones; one that
is refused refuses the whole request. Space that a job holds is held until it is given back, however
long that takes: no allocation has an end.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from iodaemon.core.error import InvariantError
from iodaemon.core.job import DiskId, Job, JobId, Reason, ScratchRequest, Share, TierName
from iodaemon.core.storage import (
    Allocation,
    Refusal,
    StorageLedger,
    StorageRequest,
    StorageView,
    Tier,
    ask_allocation,
)
from iodaemon.core.words import told_bytes

NO_SPACE: Final = "Storage"
"""The word for a job for which a tier has no room now."""
NO_SPACE_AT_ALL: Final = "StorageFull"
"""Likewise, of a job that asked to fail then."""
MOST_PARTS: Final = 1000
"""Of one request: each is placed beside all earlier ones, 0.1 s of CPU for so many."""


class Sketch:
    """What is taken of a storage, and what would be as well.

    Args:
        rng: of this sketch. None: that of ``below``.
        without: of these it is as if they had been given back.
    """

    def __init__(
        self,
        below: StorageView,
        rng: random.Random | None = None,
        without: frozenset[Allocation] = frozenset(),
    ) -> None:
        self.storage = below.storage
        self.rng = below.rng if rng is None else rng
        self._below = below
        self._without = without
        self._added: dict[DiskId, list[Allocation]] = {}

    def overlapping(self, disk: DiskId, start_s: float, end_s: float) -> Sequence[Allocation]:
        """What of this disk is taken at any time between, and what would be."""
        taken = self._below.overlapping(disk, start_s, end_s)
        if self._without:
            taken = [each for each in taken if each not in self._without]
        added = self._added.get(disk)
        return taken if added is None else [*taken, *added]

    def take(self, share: Share) -> None:
        self._added.setdefault(share.disk, []).append(held(share))


def held(share: Share) -> Allocation:
    """What a share takes of its disk: for as long as anybody knows."""
    return Allocation(share.disk, share.size_bytes, -math.inf, math.inf)


def split(size_bytes: int, block_bytes: int | None, unit_bytes: int = 1) -> tuple[int, ...]:
    """The sizes of the parts: as many whole blocks as there are, and the rest.

    Args:
        size_bytes: above 0.
        block_bytes: None: one part.
        unit_bytes: each part is rounded up to a multiple of this.
    """
    if block_bytes is None or size_bytes <= block_bytes:
        return (-(-size_bytes // unit_bytes) * unit_bytes,)
    blocks, rest = divmod(size_bytes, block_bytes)
    sizes = [block_bytes] * blocks + [rest] * (rest > 0)
    return tuple(-(-size // unit_bytes) * unit_bytes for size in sizes)


def allot(
    tier: Tier, view: StorageView, request: StorageRequest, memory: Any
) -> tuple[tuple[Share, ...] | Refusal, Any]:
    """Shares of the tier's disks for the request, one for each disk; or why not.

    A rule may choose a disk without looking at what is free of it, or refuse though one has room:
    then it is the first that has. So on disks with room for all parts nobody is refused.
    """
    if not could_ever_fit(tier, request.size_bytes):
        return Refusal(reason=_lacks("no disk has room for it")), memory
    sketch = Sketch(view)
    sizes: dict[DiskId, int] = {}
    for size in split(request.size_bytes, tier.split_bytes):
        part = StorageRequest(
            id=request.id, size_bytes=size, start_s=request.start_s, end_s=request.end_s
        )
        found: DiskId | Refusal
        if tier.rule is None:
            found = _first_with_room(sketch, part)
        else:
            found, memory = ask_allocation(tier.rule, sketch, part, memory, tier=tier.name)
        if isinstance(found, Refusal) or free_of(sketch, found) < size:
            found = _first_with_room(sketch, part)
        if isinstance(found, Refusal):
            return found, memory
        sketch.take(Share(tier=tier.name, disk=found, size_bytes=size))
        sizes[found] = sizes.get(found, 0) + size
    shares = (Share(tier=tier.name, disk=disk, size_bytes=size) for disk, size in sizes.items())
    return tuple(shares), memory


def free_of(view: StorageView, disk: DiskId) -> int:
    """What is not taken of a disk, bytes; below 0 where it was more once."""
    taken = sum(each.size_bytes for each in view.overlapping(disk, -math.inf, math.inf))
    return view.storage.by_id[disk].capacity_bytes - taken


def could_ever_fit(tier: Tier, size_bytes: int) -> bool:
    """Whether so much fits the tier when all of it is free, split as it splits.

    Blocks fill any disk to the same rest, whatever the order; so this is exact. More parts than
    ``MOST_PARTS`` never do. No part is looked at, however large the request is.
    """
    if tier.storage is None:
        return True
    block = tier.split_bytes
    capacities = [disk.capacity_bytes for disk in tier.storage.disks]
    if block is None or size_bytes <= block:
        return size_bytes <= max(capacities)
    if size_bytes > block * MOST_PARTS:
        return False
    blocks, rest = divmod(size_bytes, block)
    room = sum(capacity // block for capacity in capacities)
    return blocks < room or (
        blocks == room and rest <= max(capacity % block for capacity in capacities)
    )


def largest_directory_bytes(tier: Tier, size_bytes: int) -> int:
    """What the largest directory of a request has at least, wherever the rule puts its parts.

    Parts on one disk are one directory. They are spread most evenly where no disk has more than
    the smallest number of blocks with which all of them find room.
    """
    block = tier.split_bytes
    if tier.storage is None or block is None or size_bytes <= block:
        return size_bytes
    left, rest = divmod(size_bytes, block)
    rooms = sorted(disk.capacity_bytes // block for disk in tier.storage.disks)
    for place, room in enumerate(rooms):
        most, over = divmod(left, len(rooms) - place)
        if room > most or (room == most and not over):
            is_level = not place and not over  # whichever disk has the rest has as many blocks
            return (most + (over > 0)) * block + (rest if is_level else 0)
        left -= room
    return size_bytes  # it never fits


def could_ever_hold(tier: Tier, request: ScratchRequest) -> bool:
    """Whether the request fits when all of the tier is free, and its input one directory."""
    return could_ever_fit(tier, request.size_bytes) and _takes_input(tier, request)


def _takes_input(tier: Tier, request: ScratchRequest) -> bool:
    """Whether one directory surely has room for all that is copied in."""
    return request.whole_bytes <= largest_directory_bytes(tier, request.size_bytes)


def candidates(
    tiers: Sequence[Tier], request: ScratchRequest, named: TierName | None = None
) -> list[Tier]:
    """The tiers that may serve the request, in this order; empty where there is none.

    One that names no tier gets the fastest that has disks large enough for it. One that may not
    hold its input in one directory is left out if another tier may.

    Args:
        named: the one that the admission rule wants, and no other.
    """
    name = named or request.tier
    wanted = [tier for tier in tiers if tier.name == name] if name else _fastest(tiers, request)
    if named is None and request.fallback == "slow" and tiers and tiers[-1] not in wanted:
        wanted.append(tiers[-1])
    return [tier for tier in wanted if _takes_input(tier, request)] or wanted


def _fastest(tiers: Sequence[Tier], request: ScratchRequest) -> list[Tier]:
    with_disks = [tier for tier in tiers if tier.storage is not None]
    large = [tier for tier in with_disks if could_ever_fit(tier, request.size_bytes)]
    whole = [tier for tier in large if could_ever_hold(tier, request)]
    return (whole or large or list(tiers))[:1]


def why_never(
    tiers: Sequence[Tier], request: ScratchRequest, *, any_tier: bool = False
) -> str | None:
    """Why the request can never be met on these tiers, and what to do; None: it can.

    Args:
        tiers: fastest first.
        any_tier: the admission rule chooses among all for who names none.
    """
    if request.tier is not None and all(tier.name != request.tier for tier in tiers):
        names = ", ".join(tier.name for tier in tiers) or "none"
        return f"asks for tier {request.tier}, which is not configured; there are: {names}"
    asked = candidates(tiers, request)
    if any_tier and request.tier is None:
        asked = [*asked, *(tier for tier in tiers if tier not in asked)]
    if any(could_ever_hold(tier, request) for tier in asked):
        return None
    if not asked:
        return "asks for scratch space, and no tier of storage is configured; go without"
    if large := [tier for tier in asked if could_ever_fit(tier, request.size_bytes)]:
        return _too_large_an_input(large[0], request)
    size = told_bytes(request.size_bytes)
    most = _most(asked[0], request.size_bytes)
    return f"asks for {size} of tier {most}; ask for less, or of another tier"


def no_space(
    tier: Tier, view: StorageView, request: ScratchRequest, *, ends: bool, out: str = ""
) -> Reason:
    """That the tier has no room for the request now.

    Args:
        ends: the job asked to fail then.
        out: which of its disks are of no use now, and why.
    """
    free = [max(0, free_of(view, disk.id)) for disk in view.storage.disks]
    size = told_bytes(request.size_bytes)
    is_split = tier.split_bytes is not None and request.size_bytes > tier.split_bytes
    parts = f" in parts of {told_bytes(tier.split_bytes or 0)}" if is_split else " on one disk"
    left = f"{told_bytes(sum(free))} of it are free"
    if len(free) > 1:
        left += f", at most {told_bytes(max(free))} on one disk"
    left += f"; not usable: {out}" if out else ""
    reason = _lacks(f"needs {size} of tier {tier.name}{parts}; {left}")
    if not ends:
        return reason
    text = f"{reason.text}; it asked to fail then (--scratch-fallback)"
    return Reason(code=NO_SPACE_AT_ALL, text=text)


def _lacks(text: str) -> Reason:
    return Reason(code=NO_SPACE, text=text)


def _most(tier: Tier, size_bytes: int) -> str:
    assert tier.storage is not None
    capacities = [disk.capacity_bytes for disk in tier.storage.disks]
    block = tier.split_bytes
    if block is not None and block * MOST_PARTS < size_bytes <= sum(capacities):
        return f"{tier.name}, which is split into {MOST_PARTS} parts of {told_bytes(block)} at most"
    if len(capacities) == 1:
        return f"{tier.name}, which has {told_bytes(capacities[0])}"
    if tier.split_bytes is None:
        largest = told_bytes(max(capacities))
        return f"{tier.name}, whose largest disk has {largest} and which is not split"
    return f"{tier.name}, which has {told_bytes(sum(capacities))} on {len(capacities)} disks"


def _too_large_an_input(tier: Tier, request: ScratchRequest) -> str:
    has, size = told_bytes(request.input_bytes), request.size_bytes
    most = told_bytes(largest_directory_bytes(tier, size))
    return (
        f"its input has {has}, and of {told_bytes(size)} on tier {tier.name}, which come in parts "
        f"of {told_bytes(tier.split_bytes or 0)}, one directory may have no more than {most}; ask "
        "for more, or for a tier that is not split, or read the input where it is"
    )


def _first_with_room(view: StorageView, request: StorageRequest) -> DiskId | Refusal:
    for disk in view.storage.disks:
        if free_of(view, disk.id) >= request.size_bytes:
            return disk.id
    return Refusal(reason=_lacks("no disk has room for it"))


class Stock:
    """Per tier with disks a ledger; what a job's record says it holds is taken in it.

    Shares of disks that are no longer there are kept by their jobs, and count nowhere.

    Attributes:
        tiers: fastest first.
        memories: of the tiers' rules, by tier.
        any_tier: the admission rule chooses among all tiers for who names none.
        holders: which jobs hold shares; those of disks that are not there any more too.
        unusable: why a disk is of no use to anybody now, of each that is not. Nothing of it is
            free; what jobs hold of it they keep.
        keep_s: how long what could not be copied out of a job's space is kept. None: for ever.
        kept_since_s: since when, of each job that has such.
    """

    def __init__(self, tiers: Sequence[Tier] = ()) -> None:
        self.tiers = tuple(tiers)
        self.keep_s: float | None = None
        self.kept_since_s: dict[JobId, float] = {}
        self.memories: dict[TierName, Any] = {}
        self.any_tier = False
        rng = random.Random(0)  # noqa: S311 - rules are asked on sketches with their own
        self._ledgers = {
            tier.name: StorageLedger(tier.storage, rng)
            for tier in self.tiers
            if tier.storage is not None
        }
        self.unusable: dict[DiskId, str] = {}
        self._blocked: dict[DiskId, tuple[StorageLedger, Allocation]] = {}
        self._held: dict[JobId, dict[Allocation, Share]] = {}
        self.holders: dict[JobId, tuple[Share, ...]] = {}

    def forget_rule(self, name: TierName) -> None:
        """The tier goes on without its rule: the first of its disks with room."""
        self.memories.pop(name, None)
        self.tiers = tuple(
            msgspec.structs.replace(tier, rule=None) if tier.name == name else tier
            for tier in self.tiers
        )

    def ledger(self, tier: TierName) -> StorageLedger:
        """What is taken of a tier that has disks.

        Raises:
            KeyError: it has none, or is not there.
        """
        return self._ledgers[tier]

    def taken_by(self, job_id: JobId) -> frozenset[Allocation]:
        return frozenset(self._held.get(job_id, ()))

    def promised_bytes(self) -> dict[str, int]:
        """What jobs hold of each disk of which any job holds something, bytes."""
        held: dict[str, int] = {}
        for shares in self.holders.values():
            for share in shares:
                held[share.disk] = held.get(share.disk, 0) + share.size_bytes
        return held

    def see(self, disk: DiskId, problem: str) -> None:
        """A disk was found to be of no use now, for this reason; empty: to work.

        Nothing is noted of one that no tier has.
        """
        if not problem:
            self.unusable.pop(disk, None)
            if (blocked := self._blocked.pop(disk, None)) is not None:
                blocked[0].give_back(blocked[1])
            return
        ledgers = (each for each in self._ledgers.values() if disk in each.storage.by_id)
        if (ledger := next(ledgers, None)) is None:
            return
        self.unusable[disk] = problem
        if disk not in self._blocked:
            size = ledger.storage.by_id[disk].capacity_bytes
            all_of_it = Allocation(disk, size, *_ALWAYS)
            ledger.take(all_of_it)
            self._blocked[disk] = (ledger, all_of_it)

    def trouble_of(self, disks: Iterable[DiskId]) -> str:
        """Which of these are of no use now, and why, in a line; empty: none."""
        return "; ".join(self.unusable[disk] for disk in disks if disk in self.unusable)

    def free_bytes(self) -> dict[DiskId, int]:
        """What can be given of each disk of all tiers; below 0 where it was larger once."""
        return {
            disk.id: 0 if disk.id in self.unusable else free_of(ledger, disk.id)
            for ledger in self._ledgers.values()
            for disk in ledger.storage.disks
        }

    def follow(self, before: Job | None, after: Job | None) -> None:
        """A record is replaced: give back what it held, take what it holds now."""
        self._note_kept(before, after)
        old = () if before is None else before.shares
        new = () if after is None else after.shares
        if old == new:
            return
        if before is not None and old:
            for allocation, share in self._held.pop(before.id).items():
                self._ledgers[share.tier].give_back(allocation)
            del self.holders[before.id]
        if after is not None and new:
            self._take(after.id, new)

    def kept_until_s(self, job: Job) -> float | None:
        """When what could not be copied out of the job's space is removed; None: it is not."""
        since_s = self.kept_since_s.get(job.id)
        return None if since_s is None or self.keep_s is None else since_s + self.keep_s

    @property
    def next_end_s(self) -> float | None:
        """When the first of what is kept is to be removed; None: nothing is."""
        first_s = min(self.kept_since_s.values(), default=None)
        return None if first_s is None or self.keep_s is None else first_s + self.keep_s

    def has_room(self, shares: Iterable[Share]) -> bool:
        """Whether these, at most one of each disk, can be taken."""
        return all(
            share.tier in self._ledgers
            and self._knows(share)
            and free_of(self._ledgers[share.tier], share.disk) >= share.size_bytes
            for share in shares
        )

    def check(self, jobs: Mapping[JobId, Job]) -> None:
        """Verify that what is taken is what the jobs say.

        Raises:
            InvariantError: it is not.
        """
        if self._blocked.keys() != self.unusable.keys():
            raise InvariantError("broken: nothing is given of disks that are of no use, of others")
        told = {job.id: job.shares for job in jobs.values() if job.shares}
        if told != self.holders:
            raise InvariantError("broken: the tiers' books list what the jobs hold")
        kept = {job.id: job.scratch_kept_since_s for job in jobs.values() if job.keeps_result}
        if kept != self.kept_since_s:
            raise InvariantError("broken: the books list since when jobs' results are kept")
        for name, ledger in self._ledgers.items():
            for disk in ledger.storage.disks:
                taken = set(ledger.overlapping(disk.id, *_ALWAYS))
                if disk.id in self._blocked:
                    taken.remove(self._blocked[disk.id][1])
                booked = sorted(a.size_bytes for a in taken)
                mine = [s for shares in told.values() for s in shares if s.tier == name]
                if booked != sorted(s.size_bytes for s in mine if s.disk == disk.id):
                    raise InvariantError(f"broken: disk {disk.id} has the shares of its jobs")

    def _note_kept(self, before: Job | None, after: Job | None) -> None:
        if before is not None:
            self.kept_since_s.pop(before.id, None)
        if after is not None and after.keeps_result and after.scratch_kept_since_s is not None:
            self.kept_since_s[after.id] = after.scratch_kept_since_s

    def _take(self, job_id: JobId, shares: tuple[Share, ...]) -> None:
        self.holders[job_id] = shares
        mine = {held(share): share for share in shares if self._knows(share)}
        for allocation, share in mine.items():
            self._ledgers[share.tier].take(allocation)
        self._held[job_id] = mine

    def _knows(self, share: Share) -> bool:
        ledger = self._ledgers.get(share.tier)
        return ledger is not None and share.disk in ledger.storage.by_id


_ALWAYS = (-math.inf, math.inf)


class StockDraft:
    """The tiers as they would be with the jobs started on a draft.

    ``find`` is repeatable: the same question on the same draft has the same answer.

    Args:
        rng: gives this draft a seed of its own, when it is needed.
        clearing: jobs that have ended and whose space is about to be given back.
    """

    def __init__(
        self,
        stock: Stock,
        rng: random.Random,
        now_s: float,
        clearing: tuple[JobId, ...] = (),
    ) -> None:
        self.tiers = stock.tiers
        self.clearing = clearing
        self._stock = stock
        self._rng = rng
        self._now_s = now_s
        self._seed: int | None = None
        self._sketches: dict[TierName, Sketch] = {}
        self._memories: dict[TierName, Any] = {}
        self.started: set[JobId] = set()

    def ledger(self, tier: TierName) -> StorageView:
        """What is taken of a tier that has disks, those started here included.

        Raises:
            KeyError: it has none, or is not there.
        """
        return self._sketch(tier)

    def find(
        self,
        job: Job,
        named: TierName | None = None,
        without: Iterable[JobId] = (),
    ) -> tuple[Share, ...] | Reason:
        """The shares that the job would get; or why not now.

        Args:
            named: this tier and no other. None: as it asked.
            without: as if these had given back what they hold.
        """
        return self._find(job, named, frozenset(without))[0]

    def take(
        self, job: Job, named: TierName | None = None
    ) -> tuple[tuple[Share, ...], TierName | None]:
        """The shares that the job gets, taken on the draft, and the tier where it then is.

        Raises:
            InvariantError: there is no room, as ``find`` says.
        """
        found, memory = self._find(job, named, frozenset())
        if isinstance(found, Reason):
            raise InvariantError(f"job {job.id} is started where it {found.text}")
        self.started.add(job.id)
        if not found:
            return (), named or (self.tiers[-1].name if self.tiers else None)
        for share in found:
            self._sketch(share.tier).take(share)
        self._memories[found[0].tier] = memory
        return found, found[0].tier

    def commit(self) -> None:
        """What was started here is carried out: the rules remember it."""
        self._stock.memories.update(self._memories)

    def _find(
        self, job: Job, named: TierName | None, without: frozenset[JobId]
    ) -> tuple[tuple[Share, ...] | Reason, Any]:
        request = job.spec.scratch
        if request is None:
            return (), None
        refused: Reason | None = None
        for tier in candidates(self.tiers, request, named):
            if tier.storage is None:
                return (), None
            view = self._view(job, tier, without)
            wanted = StorageRequest(
                id=f"job {job.id}",
                size_bytes=request.size_bytes,
                start_s=self._now_s,
                end_s=math.inf,
            )
            memory = self._memories.get(tier.name, self._stock.memories.get(tier.name))
            found, memory = allot(tier, view, wanted, memory)
            if not isinstance(found, Refusal):
                return found, memory
            ends = request.fallback == "fail" and named is None
            out = self._stock.trouble_of(disk.id for disk in tier.disks)
            refused = refused or no_space(tier, view, request, ends=ends, out=out)
        if refused is None and request.fallback == "slow" and named is None:
            return (), None  # no tier is left at all: as on one without disks
        return refused or _unknown(named or request.tier), None

    def _view(self, job: Job, tier: Tier, without: frozenset[JobId]) -> Sketch:
        if self._seed is None:
            self._seed = self._rng.getrandbits(62)
        gone = frozenset(a for job_id in without for a in self._stock.taken_by(job_id))
        rng = random.Random(self._seed ^ job.id)  # noqa: S311 - for rules, not for secrets
        return Sketch(self._sketch(tier.name), rng, gone)

    def _sketch(self, tier: TierName) -> Sketch:
        found = self._sketches.get(tier)
        if found is None:
            found = self._sketches[tier] = Sketch(self._stock.ledger(tier))
        return found


def _unknown(name: TierName | None) -> Reason:
    return Reason(code="Storage", text=f"needs tier {name}, which is not configured")
