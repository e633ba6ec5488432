"""Why a job is where it is: what it waits for, since when, and what would let it go.

For people who are tired and want their result: plain sentences without a subject (the job), pure
functions of the state at one instant.
"""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from iodaemon.core.decision import Evidence
from iodaemon.core.job import Job, JobState, Phase, Reason
from iodaemon.core.phase import wait_ends_s
from iodaemon.core.rule import Rules, TakingTurns
from iodaemon.core.shadow import Shadow
from iodaemon.core.state import TURN, State

RECENT_S: Final = 600.0
"""That a job came back is told for so long."""
NO_ROOM: Final = "Slots"
"""The word of a placement rule for a job that finds no room."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What ``iod why`` says.

    Attributes:
        is_so: where the job is, and why; the job is its subject.
        since_s: since when.
        until: what would let it go on; empty for a job that is over.
        evidence: the table of the slice in which the regulation last suspended or resumed it.
    """

    is_so: str
    since_s: float
    until: str = ""
    evidence: Evidence | None = None


def explain(
    state: State,
    rules: Rules,
    job: Job,
    now_s: float,
    *,
    shadow: Shadow | None = None,
    account: str = "",
) -> Explanation:
    """Why this job is where it is now.

    Args:
        state: what is.
        rules: the policy in force.
        job: as it is, or as the journal has it.
        now_s: the instant.
        shadow: what regulation would have done. None: nothing.
        account: what the admission has to say of a job that waits (``Controller.account``).
    """
    match job.state:
        case JobState.HELD:
            is_so = f"waits to be released: {_wish(state, job)}"
            return _plain(job, is_so, f"'iod resume {job.id}'")
        case JobState.PENDING:
            return _pending(state, job, now_s, account)
        case JobState.STARTING:
            is_so = f"is being started on socket {job.partition}, attempt {job.attempt}"
            return _plain(job, is_so, "its command runs, usually within a second")
        case JobState.RUNNING:
            return _running(state, rules, job, now_s, shadow or Shadow())
        case JobState.SUSPENDED_IO:
            return _suspended_io(state, rules, job, now_s)
        case JobState.SUSPENDED_USER:
            return _suspended_user(state, rules, job)
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


def _pending(state: State, job: Job, now_s: float, account: str) -> Explanation:
    told = _text(state.reason(job.id))
    if job.spec.cpus > state.platform.largest_partition:
        return _plain(
            job, f"can never start: {told}", f"the machine is changed, or 'iod cancel {job.id}'"
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
    limit = state.users.limit_of(job)
    if limit is not None:
        return _kept_by_limit(state, job, limit)
    ahead = _ahead(state, job)
    room = (
        f"{_count(job.spec.cpus, 'CPU')} of one socket {'is' if job.spec.cpus == 1 else 'are'} free"
    )
    reason = state.reasons.get(job.id)
    if reason is not None:  # the rule's own word; whom it starts first is its to say
        is_room = reason.code == NO_ROOM
        until = room + _held_by(state) if is_room else f"that is over and {room}"
        return _plain(job, f"waits: {account or reason.text}", until)
    if ahead:
        earlier = "submitted earlier" if not state.users.sharing.fair else "whose turn is before"
        what = f"waits behind {_count(ahead, 'job')} {earlier}"
        return _plain(job, what, f"those have started and {room}")
    return _plain(job, "is the next to start", room + _held_by(state))


def _kept_by_limit(state: State, job: Job, limit: Reason) -> Explanation:
    if state.users.is_too_large(job):
        what = f"the limit is raised, or 'iod cancel {job.id}'"
        return _plain(job, f"can never start: {limit.text}", what)
    return _plain(job, f"waits: {limit.text}", "another job of its user ends")


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


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


# -- while it runs -----------------------------------------------------------------------------


def _running(state: State, rules: Rules, job: Job, now_s: float, shadow: Shadow) -> Explanation:
    if job.freeze_asked and not job.frozen:
        reason = job.user_hold_reason if job.user_hold else job.hold_reason
        why = _text(reason).partition("; 'iod resume")[0]
        until = "its processes stand still; one that waits for a disk first gets its answer"
        return _plain(job, "is being suspended" + (f": {why}" if why else ""), until)
    if job.phase is not None and job.phase.granted_s is None:
        return _waits_for_turn(state, rules, job, job.phase, now_s)
    until = "its own end"
    if job.spec.walltime_s is not None:
        left = _duration(job.spec.walltime_s - job.run_s_at(now_s))
        until += f", or its walltime: {left} of running are left"
    return Explanation(
        is_so="; ".join(_running_parts(state, job, now_s, shadow)),
        since_s=job.since_s,
        until=until,
        evidence=state.evidence.get(job.id),
    )


def _running_parts(state: State, job: Job, now_s: float, shadow: Shadow) -> list[str]:
    parts = [f"runs on socket {job.partition}"]
    if job.phase is not None and job.phase.granted_s is not None:
        lasted = _duration(now_s - job.phase.granted_s)
        parts.append(f"it has its turn to do I/O, for {lasted}{_expected(job.phase)}")
    if job.reason is not None:
        word = "could not be suspended: " if job.reason.code == "SuspendFailed" else ""
        parts.append(word + job.reason.text)
    if job.started_because is not None:
        parts.append(f"it was started out of its turn: {job.started_because.text}")
    if job.immune_until_s is not None and job.immune_until_s > now_s:
        left = _duration(job.immune_until_s - now_s)
        parts.append(f"it stood still for long, so it is not suspended again for {left}")
    if job.spec.no_suspend:
        parts.append("it asked never to be suspended for I/O")
    elif (unknown := _unknown_io(state, job)) != "":
        parts.append(unknown)
    parts += _resumed(state, job, now_s)
    return parts + _in_shadow(shadow, job, now_s)


def _resumed(state: State, job: Job, now_s: float) -> list[str]:
    """That the regulation let it go of late, and why."""
    evidence = state.evidence.get(job.id)
    if evidence is None or now_s - evidence.at_s > RECENT_S:
        return []
    row = next((row for row in evidence.jobs if row.job_id == job.id), None)
    if row is None or row.verdict != "resume":
        return []
    return [f"it came back {_duration(now_s - evidence.at_s)} ago" + _after_colon(row.why)]


def _in_shadow(shadow: Shadow, job: Job, now_s: float) -> list[str]:
    """What regulation would have done to it."""
    stood_s = shadow.stood_s(now_s).get(job.id)
    if stood_s is None:
        return []
    held = shadow.held_for(job.id)
    if held is None:
        return [f"in shadow it would have stood still for {_duration(stood_s)} in all"]
    since_s, why = held
    total = f", {_duration(stood_s)} in all" if stood_s > now_s - since_s else ""
    lasted = f"in shadow it would stand still, since {_duration(now_s - since_s)} ago{total}"
    return [lasted + _after_colon(why.text)]


def _after_colon(text: str) -> str:
    return f": {text}" if text else ""


def _waits_for_turn(
    state: State, rules: Rules, job: Job, phase: Phase, now_s: float
) -> Explanation:
    is_so = f"runs on socket {job.partition}; {_text(state.reason(job.id))}{_expected(phase)}"
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
        why = _text(job.release_reason) or told
        is_so = f"stood still for others' I/O and is being resumed: {why}"
        if job.reason is not None and job.reason.code == "Adopted":
            is_so = told
        return _plain(job, is_so, "its processes run again, usually within a second")
    evidence = state.evidence.get(job.id)
    until = _comes_back(rules, job, evidence)
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


def _comes_back(rules: Rules, job: Job, evidence: Evidence | None) -> str:
    """What would let a job go on that the regulation holds."""
    if job.hold_reason is not None and job.hold_reason.code == TURN:
        return "it is its turn to do I/O"
    rule = rules.regulation
    if not isinstance(rule, TakingTurns):
        return "there is room for its I/O" + _all_may(evidence)
    turn = f"it takes its turn for another that has run for {_duration(rule.turn_s)}"
    others = "the others' I/O has ended"
    if evidence is None or evidence.fits is None:
        return f"there is room for its I/O, {others}, or {turn}"
    part = next((row.load for row in evidence.jobs if row.job_id == job.id), 0.0)
    bring, mark = _brings(part, evidence), _figure(evidence.fits, evidence)
    if part > evidence.fits:
        never = (
            f"there is no room for it beside others: {bring}, jobs come back up to {mark} in all"
        )
        return f"{others}, or {turn} ({never})"
    room = f"there is room for its I/O ({bring}, jobs come back up to {mark} in all)"
    return f"{room}, {others}, or {turn}"


def _all_may(evidence: Evidence | None) -> str:
    if evidence is None or evidence.allowed <= 0.0:
        return ""
    return f" (all together may bring {_figure(evidence.allowed, evidence)})"


def _brings(part: float, evidence: Evidence) -> str:
    if evidence.quantity == "bandwidth":
        return f"it would bring {_figure(part, evidence)}"
    return f"its share of the disk's queue would be {_figure(part, evidence)}"


def _figure(load: float, evidence: Evidence) -> str:
    """A load in its unit; of a disk's queue, how many requests are in it."""
    match evidence.quantity:
        case "bandwidth":
            return f"{load / 1e6:.1f} MB/s"
        case "wait" | "absence":
            return f"{load:.1f}"
        case _:
            assert_never(evidence.quantity)


def _suspended_user(state: State, rules: Rules, job: Job) -> Explanation:
    is_so = f"stands still: {_wish(state, job)}"
    until = f"'iod resume {job.id}'"
    if not job.io_hold:
        return _plain(job, is_so, until)
    evidence = state.evidence.get(job.id)
    return Explanation(
        is_so=f"{is_so}; the regulation holds it as well: {_text(job.hold_reason)}",
        since_s=job.since_s,
        until=f"{until}, and then until {_comes_back(rules, job, evidence)}",
        evidence=evidence,
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
            return f"was ended: {told or 'ran for its walltime'}"
        case JobState.OUT_OF_MEMORY:
            return f"ran out of memory: {told or 'killed'}"
        case JobState.LOST:
            again = f"'iod requeue {job.id}' runs it again from its beginning"
            return f"was lost sight of: {told or 'its exit could not be learned'}; {again}"
        case _:
            is_start = job.reason is not None and job.reason.code == "StartFailed"
            word = "failed, its command could not be run" if is_start else "failed"
            return f"{word}: {told}" if told else word


def _duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 10.0:
        digits = f"{seconds:.1f}" if seconds >= 1.0 else f"{seconds:.2f}"
        return f"{digits.rstrip('0').rstrip('.')} s"
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"
