"""Why a job waits that has not started, and what would let it."""

from __future__ import annotations

from typing import Final

from iodaemon.core.controller import WALLTIME_GRACE_S
from iodaemon.core.explanation import Explanation, count, duration, plain, text_of
from iodaemon.core.job import Job, Reason
from iodaemon.core.state import State

NO_ROOM: Final = "Slots"
"""The word of a placement rule for a job that finds no room."""


def why_it_waits(state: State, job: Job, now_s: float, account: str) -> Explanation:
    """Why this pending job has not started; ``account`` is what the admission says of it."""
    told = text_of(state.reason(job.id))
    if job.spec.cpus > state.platform.largest_partition:
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
    delayed_s = state.delayed.get(job.id)
    if delayed_s is not None:
        left = duration(delayed_s - now_s)
        is_so = f"could not be started: {told}; its command has not run"
        return plain(job, is_so, f"the next attempt, in {left}")
    limit = state.users.limit_of(job)
    if limit is not None:
        return _kept_by_limit(state, job, limit)
    ahead = _ahead(state, job)
    room = (
        f"{count(job.spec.cpus, 'CPU')} of one socket {'is' if job.spec.cpus == 1 else 'are'} free"
    )
    reason = state.queue_reason(job.id)
    if reason is not None:  # the rule's own word; whom it starts first is its to say
        is_room = reason.code == NO_ROOM
        until = room + _held_by(state) if is_room else f"that is over and {room}"
        until += _promised(state, job, now_s)
        return plain(job, f"waits: {account or reason.text}", until)
    if account:
        return plain(job, account, f"its turn has come and {room}")
    if ahead:
        earlier = "submitted earlier" if not state.users.sharing.fair else "whose turn is before"
        what = f"waits behind {count(ahead, 'job')} {earlier}"
        return plain(job, what, f"those have started and {room}")
    return plain(job, "is the next to start", room + _held_by(state))


def _promised(state: State, job: Job, now_s: float) -> str:
    """By when the admission has promised to start it."""
    promised_s = state.reservations.get(job.id)
    if promised_s is None:
        return ""
    left = duration(promised_s - now_s)
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
