"""Why a job waits that has not started, and what would let it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from iodaemon.core.allotting import NO_SPACE, candidates, could_ever_hold
from iodaemon.core.controller import WALLTIME_GRACE_S
from iodaemon.core.core_draft import NO_SLOTS
from iodaemon.core.explanation import Explanation, count, duration, plain, text_of
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.size import told_bytes
from iodaemon.core.state import CONTENTION, State
from iodaemon.core.stock import Stock
from iodaemon.core.tier import Tier
from iodaemon.core.unready import why_never, why_not_ready

_MOST: Final = 5
"""Of those who hold space so many are named."""
FEWER_OR_MORE: Final = "one of those that contend ends, or more of them at once are tried"
"""What lets a job go on that enough others contend without."""


def why_it_waits(state: State, job: Job, now_s: float, account: str) -> Explanation:
    """Why this pending job has not started; ``account`` is what the admission says of it."""
    told = text_of(state.reason(job.id))
    if why_never(state.platform, state.stock, job) is not None:
        return plain(
            job, f"can never start: {told}", f"the machine is changed, or 'iod cancel {job.id}'"
        )
    if state.starts_blocked:
        return plain(
            job, f"waits, as every job now: {told}", "that is mended; it then starts by itself"
        )
    if state.drain is not None:
        lasted = duration(now_s - state.drain.since_s)
        until = "'iod drain --off' by an administrator; it keeps its place in the queue"
        return plain(job, f"waits, as every job now: {told}, for {lasted}", until)
    if why_not_ready(job) is not None:
        return _kept_by_its_past(state, job, now_s, told)
    delayed_s = state.delayed.get(job.id)
    if delayed_s is not None:
        left = duration(delayed_s - now_s)
        is_so = f"could not be started: {told}; its command has not run"
        return plain(job, is_so, f"the next attempt, in {left}")
    limit = state.users.limit_of(job)
    if limit is not None:
        return _kept_by_limit(state, job, limit)
    return _in_the_queue(state, job, now_s, account)


def _in_the_queue(state: State, job: Job, now_s: float, account: str) -> Explanation:
    """It may start as soon as the admission lets it."""
    ahead = _ahead(state, job)
    room = (
        f"{count(job.spec.cpus, 'CPU')} of one socket {'is' if job.spec.cpus == 1 else 'are'} free"
    )
    reason = state.queue_reason(job.id)
    if reason is not None and reason.code == NO_SPACE:
        until = space_until(state, job, now_s) + _promised(state, job, now_s)
        return plain(job, f"waits: {account or reason.text}", until)
    if reason is not None and reason.code == CONTENTION:
        until = f"{FEWER_OR_MORE}, and {room}" + _promised(state, job, now_s)
        return plain(job, f"waits: {account or reason.text}", until)
    if reason is not None:  # the rule's own word; whom it starts first is its to say
        is_room = reason.code == NO_SLOTS
        until = room + _held_by(state) if is_room else f"that is over and {room}"
        until += _promised(state, job, now_s)
        return plain(job, f"waits: {account or reason.text}", until)
    if job.spec.scratch is not None:
        room += ", and so is its space"
    if account:
        return plain(job, account, f"its turn has come and {room}")
    if ahead:
        earlier = "submitted earlier" if not state.users.sharing.fair else "whose turn is before"
        what = f"waits behind {count(ahead, 'job')} {earlier}"
        return plain(job, what, f"those have started and {room}")
    return plain(job, "is the next to start", room + _held_by(state))


def _kept_by_its_past(state: State, job: Job, now_s: float, told: str) -> Explanation:
    is_so = f"waits to run again: {told}"
    if job.scratch_kept is None:
        return plain(job, is_so, "that is done; it goes by itself")
    removes = f"'iod scratch remove {job.id}'"
    ends = removed_in(state, job, now_s)
    return plain(job, is_so, f"{removes}, once nobody needs that any more{ends}")


def removed_in(state: State, job: Job, now_s: float) -> str:
    """That what is kept of the job goes by itself, and when, behind how else it does."""
    until_s = state.stock.kept_until_s(job)
    if until_s is None:
        return ""
    return f"; in {duration(until_s - now_s)} it is removed by itself (scratch_keep)"


def space_until(state: State, job: Job, now_s: float) -> str:
    """What would have to be given back for the job to find space, and who has it."""
    asked = _wanted(state.stock, job)
    names = {tier.name for tier in asked if tier.storage is not None}
    held: dict[JobId, int] = {}
    for job_id, shares in state.stock.holders.items():
        size = sum(share.size_bytes for share in shares if share.tier in names)
        if size:
            held[job_id] = size
    until = f"space of {_tiers(asked)} is given back"
    if out := "; ".join(filter(None, map(state.stock.unusable_of, asked))):
        until = f"a disk is mended, which is seen within a minute ({out}), or {until}"
    if not held:
        return until
    most = sorted(held, key=lambda job_id: (-held[job_id], job_id))
    told = (f"job {i} has {told_bytes(held[i])}{_past(state, i, now_s)}" for i in most[:_MOST])
    shown = ", ".join(told)
    rest = len(most) - _MOST
    return f"{until}: {shown}" + (f", {count(rest, 'other job')} the rest" if rest > 0 else "")


def _wanted(stock: Stock, job: Job) -> list[Tier]:
    """The tiers of which it may get space; those that could never hold it left out."""
    request = job.spec.scratch
    if request is None:
        return []
    if request.tier is not None or not stock.any_tier:
        return candidates(stock.tiers, request)
    return [t for t in stock.tiers if t.storage is not None and could_ever_hold(t, request)]


def _tiers(asked: Sequence[Tier]) -> str:
    return " or ".join(f"tier {tier.name}" for tier in asked) or "its tier"


def _past(state: State, job_id: JobId, now_s: float) -> str:
    """That it only waits to be cleared, of a job that has ended."""
    job = state.jobs[job_id]
    if job.is_live:
        return ""
    if job.scratch_kept is None:
        return " (ended, is being cleared)"
    until_s = state.stock.kept_until_s(job)
    most = "" if until_s is None else f", for {duration(until_s - now_s)} at most"
    return f" (ended, kept until 'iod scratch remove {job_id}'{most})"


def _promised(state: State, job: Job, now_s: float) -> str:
    """By when the admission has promised to start it."""
    promised_s = state.reservations.get(job.id)
    if promised_s is None:
        return ""
    left = duration(promised_s - now_s)
    if state.stock.any_tier:  # on a faster tier they are expected to need less than that
        return f"; promised in {left}, by when those that run are expected to end"
    told = f"; promised in {left} at the latest, by the walltimes of those that run"
    return f"{told}; one that does not end when asked is killed {duration(WALLTIME_GRACE_S)} later"


def _kept_by_limit(state: State, job: Job, limit: Reason) -> Explanation:
    if state.users.is_too_large(job):
        what = f"the limit is raised, or 'iod cancel {job.id}'"
        return plain(job, f"can never start: {limit.text}", what)
    return plain(job, f"waits: {limit.text}", "another job of its user ends")


def _ahead(state: State, job: Job) -> int:
    """Jobs before it in the queue; where its user's limits keep it out, its user's before it."""
    for ahead, other in enumerate(state.queue):
        if other.id == job.id:
            return ahead
    return sum(1 for other in state.pending if other.id < job.id and other.uid == job.uid)


def _held_by(state: State) -> str:
    holders = [other.id for other in state.live]
    if not holders:
        return ""
    shown = ", ".join(map(str, holders[:5])) + (" and others" if len(holders) > 5 else "")
    return f"; CPUs are held by {'job' if len(holders) == 1 else 'jobs'} {shown}"
