"""Why a job is where it is: what it waits for, since when, and what would let it go.

For people who are tired and want their result: plain sentences without a subject (the job), pure
functions of the state at one instant.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from iodaemon.core.decision import Evidence
from iodaemon.core.job import Job, JobState, Phase, Reason
from iodaemon.core.phase import wait_ends_s
from iodaemon.core.rule import Rules
from iodaemon.core.state import TURN, State


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What ``iod why`` says.

    Attributes:
        is_so: where the job is, and why; the job is its subject.
        since_s: since when.
        until: what would let it go on; empty for a job that is over.
        evidence: the table of the slice in which it was suspended, while it is held for I/O.
    """

    is_so: str
    since_s: float
    until: str = ""
    evidence: Evidence | None = None


def explain(state: State, rules: Rules, job: Job, now_s: float) -> Explanation:
    """Why this job is where it is now."""
    match job.state:
        case JobState.HELD:
            is_so = f"waits to be released: {_wish(state, job)}"
            return _plain(job, is_so, f"'iod resume {job.id}'")
        case JobState.PENDING:
            return _pending(state, job, now_s)
        case JobState.STARTING:
            is_so = f"is being started on socket {job.partition}, attempt {job.attempt}"
            return _plain(job, is_so, "its command runs, usually within a second")
        case JobState.RUNNING:
            return _running(state, rules, job, now_s)
        case JobState.SUSPENDED_IO:
            return _suspended_io(state, rules, job, now_s)
        case JobState.SUSPENDED_USER:
            return _suspended_user(state, job)
        case JobState.STOPPING:
            return _stopping(job, now_s)
        case _:
            return _plain(job, _ended(job), "")


def _plain(job: Job, is_so: str, until: str) -> Explanation:
    return Explanation(is_so=is_so, since_s=job.since_s, until=until)


def _wish(state: State, job: Job) -> str:
    """What a person asked for, without the advice at its end, which is given elsewhere."""
    reason = state.reason(job.id)
    return _text(reason).partition("; 'iod resume")[0]


def _text(reason: Reason | None) -> str:
    return "" if reason is None else reason.text


# -- before it runs ----------------------------------------------------------------------------


def _pending(state: State, job: Job, now_s: float) -> Explanation:
    told = _text(state.reason(job.id))
    if job.spec.cpus > state.platform.largest_partition:
        return _plain(
            job, f"can never start: it {told}", f"the machine is changed, or 'iod cancel {job.id}'"
        )
    if state.starts_blocked:
        return _plain(
            job, f"waits, as every job now: {told}", "that is mended; it then starts by itself"
        )
    delayed_s = state.delayed.get(job.id)
    if delayed_s is not None:
        left = _duration(delayed_s - now_s)
        is_so = f"could not be started: {told}; its command has not run"
        return _plain(job, is_so, f"the next attempt, in {left}")
    ahead = sum(1 for other in state.pending if other.id < job.id)
    room = (
        f"{_count(job.spec.cpus, 'CPU')} of one socket {'is' if job.spec.cpus == 1 else 'are'} free"
    )
    if ahead:
        what = f"waits behind {_count(ahead, 'job')} submitted earlier"
        return _plain(job, what, f"those have started and {room}")
    looked_at = job.id in state.reasons
    is_so = "is the next to start" + (f"; it {told}" if looked_at else "")
    return _plain(job, is_so, room + _held_by(state))


def _held_by(state: State) -> str:
    holders = [other.id for other in state.live]
    if not holders:
        return ""
    shown = ", ".join(map(str, holders[:5])) + (" and others" if len(holders) > 5 else "")
    return f"; CPUs are held by {'job' if len(holders) == 1 else 'jobs'} {shown}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


# -- while it runs -----------------------------------------------------------------------------


def _running(state: State, rules: Rules, job: Job, now_s: float) -> Explanation:
    if job.freeze_asked and not job.frozen:
        reason = job.user_hold_reason if job.user_hold else job.hold_reason
        why = _text(reason).partition("; 'iod resume")[0]
        until = "its processes stand still; one that waits for a disk first gets its answer"
        return _plain(job, "is being suspended" + (f": {why}" if why else ""), until)
    if job.phase is not None and job.phase.granted_s is None:
        return _waits_for_turn(state, rules, job, job.phase, now_s)
    parts = [f"runs on socket {job.partition}"]
    if job.phase is not None and job.phase.granted_s is not None:
        lasted = _duration(now_s - job.phase.granted_s)
        parts.append(f"it has its turn to do I/O, for {lasted}{_expected(job.phase)}")
    if job.reason is not None:
        word = "could not be suspended: " if job.reason.code == "SuspendFailed" else ""
        parts.append(word + job.reason.text)
    if job.immune_until_s is not None and job.immune_until_s > now_s:
        left = _duration(job.immune_until_s - now_s)
        parts.append(f"it stood still for long, so it is not suspended again for {left}")
    if job.spec.no_suspend:
        parts.append("it asked never to be suspended for I/O")
    elif (unknown := _unknown_io(state, job)) != "":
        parts.append(unknown)
    until = "its own end"
    if job.spec.walltime_s is not None:
        left = _duration(job.spec.walltime_s - job.run_s_at(now_s))
        until += f", or its walltime: {left} of running are left"
    return _plain(job, "; ".join(parts), until)


def _waits_for_turn(
    state: State, rules: Rules, job: Job, phase: Phase, now_s: float
) -> Explanation:
    is_so = f"runs on socket {job.partition} and {_text(state.reason(job.id))}{_expected(phase)}"
    until = "its turn"
    ends_s = wait_ends_s(rules, job)
    if ends_s is not None:
        until += f", and at the latest in {_duration(ends_s - now_s)} it goes on in any case"
    return Explanation(is_so=is_so, since_s=phase.asked_s, until=until)


def _expected(phase: Phase) -> str:
    return "" if phase.expect_bytes is None else f"; it told of {phase.expect_bytes / 1e6:.0f} MB"


def _unknown_io(state: State, job: Job) -> str:
    last = state.meter.last
    if last is None or state.meter.bandwidth(job.id) is not None:
        return ""
    counters = last.jobs.get(job.id)
    if counters is None and (job.started_s or 0.0) < last.at_s:
        return "its I/O cannot be read, so it is never suspended for it"
    if counters is not None and counters.read_bytes is None and counters.written_bytes is None:
        return "its I/O cannot be read, so it is never suspended for it"
    return "its I/O has not been measured yet"


# -- while it stands still ---------------------------------------------------------------------


def _suspended_io(state: State, rules: Rules, job: Job, now_s: float) -> Explanation:
    told = _text(job.reason)
    if job.io_held_since_s is None:
        is_so = f"stood still for others' I/O and is being resumed: {told}"
        if job.reason is not None and job.reason.code == "Adopted":
            is_so = f"was {told}"
        return _plain(job, is_so, "its processes run again, usually within a second")
    evidence = state.evidence.get(job.id)
    until = "there is room for its I/O" + _room(job, evidence)
    if job.reason is not None and job.reason.code == TURN:
        until = "it is its turn to do I/O"
    until += f"; this is looked at every {_duration(rules.regulation.timeslice_s)}"
    limit_s = rules.longest_suspension_s(job)
    if limit_s is not None:
        left = _duration(job.io_held_since_s + limit_s - now_s)
        until += f", and at the latest in {left} it runs in any case"
    return Explanation(
        is_so=f"stands still so that the others' I/O gets on: {told}",
        since_s=job.since_s,
        until=until,
        evidence=evidence,
    )


def _room(job: Job, evidence: Evidence | None) -> str:
    """What it would bring, and what all may bring; nothing where that is not known."""
    if evidence is None:
        return ""
    part = next((row.load for row in evidence.jobs if row.job_id == job.id), 0.0)
    own, all_may = _figure(part, evidence), _figure(evidence.allowed, evidence)
    return f" (it would bring {own}, all together may bring {all_may})"


def _figure(load: float, evidence: Evidence) -> str:
    """A load in its unit."""
    match evidence.quantity:
        case "bandwidth":
            return f"{load / 1e6:.1f} MB/s"
        case "wait" | "absence":
            return f"{load:.1f} requests in flight"
        case _:
            assert_never(evidence.quantity)


def _suspended_user(state: State, job: Job) -> Explanation:
    is_so = f"stands still: {_wish(state, job)}"
    until = f"'iod resume {job.id}'"
    if not job.io_hold:
        return _plain(job, is_so, until)
    return Explanation(
        is_so=f"{is_so}; the regulation holds it as well: {_text(job.hold_reason)}",
        since_s=job.since_s,
        until=f"{until}, and then room for its I/O",
        evidence=state.evidence.get(job.id),
    )


# -- its end -----------------------------------------------------------------------------------


def _stopping(job: Job, now_s: float) -> Explanation:
    is_so = f"is being ended: {_text(job.stop_reason) or _text(job.reason)}"
    if job.kill_at_s is not None:
        left = _duration(job.kill_at_s - now_s)
        is_so += "; its processes were asked to end"
        return _plain(job, is_so, f"they have ended, or are killed in {left}")
    is_so += "; its processes were killed"
    if job.reason is not None and job.reason.code == "StopDelayed":
        is_so += f", but not all are gone: {job.reason.text}"
    until = "all are gone; one that waits for a disk goes when the disk has answered"
    return _plain(job, is_so, until)


def _ended(job: Job) -> str:
    told = _text(job.reason)
    match job.state:
        case JobState.COMPLETED:
            return "ended well, with exit code 0" + (f"; {told}" if told else "")
        case JobState.CANCELLED:
            return f"was ended: {told or 'cancelled'}"
        case JobState.TIMEOUT:
            return f"was ended: it {told or 'ran for its walltime'}"
        case JobState.OUT_OF_MEMORY:
            return f"ran out of memory: {told or 'killed'}"
        case JobState.LOST:
            return f"was lost sight of: {told or 'its exit could not be learned'}"
        case _:
            is_start = job.reason is not None and job.reason.code == "StartFailed"
            word = "failed, its command could not be run" if is_start else "failed"
            return f"{word}: {told}" if told else word


def _duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 120.0:
        return f"{seconds:.0f} s" if seconds >= 1.0 or seconds == 0.0 else f"{seconds:g} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"
