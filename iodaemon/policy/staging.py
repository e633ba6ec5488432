"""What a tier costs or saves a job, by what the job says it moves: where it may run, and how long.

With V all that a job moves (input, output, data), S what is staged (input, output), R the bandwidth
of the slowest tier, R' that of a faster one and R" of the staging between the two, a run there is
longer by

    V / R' - V / R + S / R"

than one on the slowest tier, for which the walltime is meant; less than 0 where it is shorter. What
others move meanwhile is left out.

Source: Lackner, Fard, Wolf, CCGRID 2019, section III (equation 2, which is not in the text that is
around; derived from what the section says of its terms).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from iodaemon.core.allotting import candidates, could_ever_hold, split
from iodaemon.core.job import Job, JobId, JobSpec
from iodaemon.core.scratch import Fallback, ScratchRequest, TierName
from iodaemon.core.tier import Tier
from iodaemon.core.view import View

Mode = Literal["best", "now", "only", "fail"]
_MODES: Final[Mapping[Fallback, Mode]] = MappingProxyType(
    {"slow": "now", "wait": "only", "fail": "fail"}
)


TIDY_ABOVE: Final = 64
"""What ended jobs wanted is kept for so many at least, and as many as others."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One way for a job to run.

    Attributes:
        tier: on which it has its space. None: it wants none.
        extra_s: by how much it takes longer than on the slowest tier.
        parts: what it takes of disks there, the largest first; empty: nothing that is counted.
    """

    tier: TierName | None
    extra_s: float = 0.0
    parts: tuple[int, ...] = ()


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a job wants, as far as it matters to when it starts.

    Attributes:
        spec: of the job.
        options: the ways in which it may run, the slowest tier first; of two that end it at the
            same time the earlier one is taken. Empty: there is none.
        mode: how one is chosen. ``best``: as ends it first. ``now``: the last that can start it
            now, it never waits for space. ``only``: there is but one. ``fail``: as that, and where
            its space is not free when its turn comes, it fails.
        rank: shortest first, then by space, then by arrival.
        least_s: what it takes where it takes least; infinite where nobody knows.
        least: without space for this it cannot run. None: it can.
    """

    spec: JobSpec
    options: tuple[Option, ...]
    mode: Mode
    rank: tuple[float, int, int]
    least_s: float
    least: Option | None = None


def extra_s(request: ScratchRequest, tier: Tier, slowest: Tier) -> float:
    """By how much the job's run on the tier is longer than on the slowest, s."""
    if tier.name == slowest.name:
        return 0.0
    staged = request.input_bytes + request.output_bytes
    moved = staged + request.data_bytes
    saved_s = moved / slowest.bandwidth_bytes_per_s - moved / tier.bandwidth_bytes_per_s
    return staged / tier.staging_bytes_per_s - saved_s


def wish_of(job: Job, tiers: Sequence[Tier]) -> Wish:
    """What the job wants of these tiers, the fastest first."""
    spec = job.spec
    walltime_s = math.inf if spec.walltime_s is None else spec.walltime_s
    request = spec.scratch
    if request is None or not tiers:
        rank = (walltime_s, 0, job.id)
        plain = (Option(tier=None),)
        return Wish(spec=spec, options=plain, mode="only", rank=rank, least_s=walltime_s)
    rank = (walltime_s, request.size_bytes, job.id)
    slowest = tiers[-1]
    wanted: list[Tier] = list(tiers)
    mode: Mode = "best"
    if request.tier is not None:
        wanted, mode = candidates(tiers, request), _MODES[request.fallback]
    found = (_option(request, tier, slowest, spec.walltime_s) for tier in reversed(wanted))
    options = tuple(option for option in found if option is not None)
    least_s = walltime_s + min([0.0, *(option.extra_s for option in options)])
    least = options[0] if len(options) == 1 and options[0].parts else None
    return Wish(spec=spec, options=options, mode=mode, rank=rank, least_s=least_s, least=least)


def _option(
    request: ScratchRequest, tier: Tier, slowest: Tier, walltime_s: float | None
) -> Option | None:
    """The way by this tier; None: it never has room for so much, or for so large a file."""
    longer_s = extra_s(request, tier, slowest)
    if walltime_s is not None:  # whatever is said of its I/O, it does not end before it starts
        longer_s = max(longer_s, -walltime_s)
    if not could_ever_hold(tier, request):
        return None
    if tier.storage is None:
        return Option(tier=tier.name, extra_s=longer_s)
    parts = tuple(sorted(split(request.size_bytes, tier.split_bytes), reverse=True))
    return Option(tier=tier.name, extra_s=longer_s, parts=parts)


class Wishes:
    """What jobs want, made once a job; carried from decision to decision.

    Args:
        tiers: of the view, the fastest first.
        known: of jobs, from an earlier decision.

    Attributes:
        tiers: likewise.
        by_job: of the jobs that were asked for.
    """

    def __init__(
        self, tiers: tuple[Tier, ...], known: Mapping[JobId, Wish] = MappingProxyType({})
    ) -> None:
        self.tiers = tiers
        self.by_job = dict(known)

    def of(self, job: Job) -> Wish:
        """What this one wants."""
        wish = self.by_job.get(job.id)
        if wish is None or wish.spec is not job.spec:
            wish = self.by_job[job.id] = wish_of(job, self.tiers)
        return wish


class Memory(msgspec.Struct, frozen=True):
    """What is carried from decision to decision: nothing that could not be found again.

    Attributes:
        tiers: for which the wishes are.
        by_job: of jobs, also of some that are over.
        kept: how many these were when those that were over were last left out.
    """

    tiers: tuple[Tier, ...]
    by_job: dict[JobId, Wish]
    kept: int = 0


def recalled(view: View, memory: Memory | None) -> Wishes:
    """The wishes that still hold."""
    if memory is None or memory.tiers is not view.tiers:
        return Wishes(view.tiers)
    return Wishes(view.tiers, memory.by_job)


def remembered(view: View, wishes: Wishes, before: Memory | None) -> Memory:
    """What to carry on; without those of jobs that are over, when there may be many of them."""
    by_job, kept = wishes.by_job, 0 if before is None else before.kept
    if len(by_job) > 2 * kept + TIDY_ABOVE:
        there = [job.id for jobs in (view.pending, view.live) for job in jobs]
        by_job = {job_id: by_job[job_id] for job_id in there if job_id in by_job}
        kept = len(by_job)
    return Memory(wishes.tiers, by_job, kept)
