"""Why a job is where it is: what it waits for, since when, and what would let it go.

For people who are tired and want their result: plain sentences without a subject (the job), pure
functions of the state at one instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

import msgspec

from iodaemon.core.controller import WALLTIME_GRACE_S
from iodaemon.core.decision import Cap, Evidence, LimitState, TrialStep
from iodaemon.core.handlers import wait_ends_s
from iodaemon.core.job import Job, JobId, JobState, Phase, Reason, resume_command
from iodaemon.core.limits import DRAIN, INFEASIBLE, OLD_SCRATCH, USER_LIMIT
from iodaemon.core.regulator import Shadow
from iodaemon.core.rule import Rules
from iodaemon.core.state import BLOCKED, CONTENTION, TURN, State
from iodaemon.core.stock import NO_SPACE, Stock, candidates, could_ever_hold
from iodaemon.core.storage import Tier
from iodaemon.core.view import NO_SLOTS
from iodaemon.core.words import count, duration, told_bytes


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What ``iod why`` says.

    Attributes:
        is_so: where the job is, and why; the job is its subject.
        since_s: since when.
        until: what would let it go on; empty for a job that is over.
        evidence: the table of the slice in which the regulation last suspended or resumed it.
        limits: of a job that enough others contend without: what is believed of each resource of
            which a limit is known.
        trials: likewise, what was tried last of how many should contend for these; oldest first.
    """

    is_so: str
    since_s: float
    until: str = ""
    evidence: Evidence | None = None
    limits: tuple[LimitState, ...] = ()
    trials: tuple[TrialStep, ...] = ()


def plain(job: Job, is_so: str, until: str) -> Explanation:
    """An explanation without a table."""
    return Explanation(is_so=is_so, since_s=job.since_s, until=until)


def text_of(reason: Reason | None) -> str:
    """Its words; empty without one."""
    return "" if reason is None else reason.text


_MOST: Final = 5
"""Of those who hold space so many are named."""
FEWER_OR_MORE: Final = "one of those that contend ends, or more of them at once are tried"
"""What lets a job go on that enough others contend without."""


def why_it_waits(state: State, job: Job, now_s: float, account: str) -> Explanation:
    """Why this pending job has not started; ``account`` is what the admission says of it."""
    reason = state.reason(job.id)
    assert reason is not None, "a job that waits has a reason to"
    code, told = reason.code, reason.text
    if code == INFEASIBLE:
        until = f"the machine is changed, or 'iod cancel {job.id}'"
        return plain(job, f"can never start: {told}", until)
    if code == BLOCKED:
        until = "that is mended; it then starts by itself"
        return plain(job, f"waits, as every job now: {told}", until)
    if code == DRAIN and state.drain is not None:
        lasted = duration(now_s - state.drain.since_s)
        until = "'iod drain --off' by an administrator; it keeps its place in the queue"
        return plain(job, f"waits, as every job now: {told}, for {lasted}", until)
    if code == OLD_SCRATCH:
        return _kept_by_its_past(state, job, now_s, told)
    if reason is job.reason and job.id in state.delayed:
        left = duration(state.delayed[job.id] - now_s)
        is_so = f"could not be started: {told}; its command has not run"
        return plain(job, is_so, f"the next attempt, in {left}")
    if code == USER_LIMIT:
        return _kept_by_limit(state, job, reason)
    return _in_the_queue(state, job, now_s, account)


def _in_the_queue(state: State, job: Job, now_s: float, account: str) -> Explanation:
    """It may start as soon as the admission lets it."""
    ahead = _ahead(state, job)
    room = (
        f"{count(job.spec.cpus, 'CPU')} of one socket {'is' if job.spec.cpus == 1 else 'are'} free"
    )
    reason = state.queue_reason(job.id)
    if reason is not None:  # the rule's own word; whom it starts first is its to say
        if reason.code == NO_SPACE:
            until = space_until(state, job, now_s)
        elif reason.code == CONTENTION:
            until = f"{FEWER_OR_MORE}, and {room}"
        else:
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
    if out := state.stock.trouble_of(disk.id for tier in asked for disk in tier.disks):
        until = f"a disk is mended, which is seen within a minute ({out}), or {until}"
    if not held:
        return until
    most = sorted(held, key=lambda job_id: (-held[job_id], job_id))
    told = (f"job {i} has {told_bytes(held[i])}{_past(state, i, now_s)}" for i in most[:_MOST])
    shown = ", ".join(told)
    rest = len(most) - _MOST
    return f"{until}: {shown}" + (f", {count(rest, 'other job')} the rest" if rest > 0 else "")


def _wanted(stock: Stock, job: Job) -> list[Tier]:
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


RECENT_S: Final = 600.0
"""That a job came back is told for so long."""
_TRIALS: Final = 5
"""So many of the last are told."""


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
        account: what the admission has to say of a job that waits (``Controller.account``).
    """
    told = _explain(state, rules, job, now_s, shadow=shadow or Shadow(), account=account)
    return _with_trials(state, told) if _is_one_too_many(state, job) else told


def _is_one_too_many(state: State, job: Job) -> bool:
    """Whether it waits or stands still because enough contend without it."""
    if job.io_hold:
        reason = job.hold_reason
    else:
        reason = state.reason(job.id) if job.state is JobState.PENDING else None
    return reason is not None and reason.code == CONTENTION


def _with_trials(state: State, told: Explanation) -> Explanation:
    """What is believed of the resources that are contended for, and what was tried of them last."""
    limits = tuple(limit for limit in state.limits if limit.limit is not None)
    names = {limit.resource for limit in limits}
    trials = [trial for trial in state.trials if trial.resource in names]
    return msgspec.structs.replace(told, limits=limits, trials=tuple(trials[-_TRIALS:]))


def _explain(
    state: State, rules: Rules, job: Job, now_s: float, *, shadow: Shadow, account: str
) -> Explanation:
    match job.state:
        case JobState.HELD:
            is_so = f"waits to be released: {_wish(state, job)}"
            return plain(job, is_so, _cure(state, job))
        case JobState.PENDING:
            return why_it_waits(state, job, now_s, account)
        case JobState.STARTING:
            is_so = f"is being started on socket {job.partition}, attempt {job.attempt}"
            if out := state.stock.trouble_of(share.disk for share in job.shares):
                return plain(job, is_so, f"a disk of its scratch space is mended ({out})")
            return plain(job, is_so, "its command runs, usually within a second")
        case JobState.RUNNING:
            return _running(state, rules, job, now_s, shadow)
        case JobState.SUSPENDED_IO:
            return _suspended_io(state, rules, job, now_s)
        case JobState.SUSPENDED_USER:
            return _suspended_user(state, job)
        case JobState.STOPPING:
            return _stopping(job, now_s)
        case _:
            return plain(job, _ended(job) + _left(state, job, now_s), "")


def _wish(state: State, job: Job) -> str:
    return text_of(state.reason(job.id))


def _cure(state: State, job: Job) -> str:
    reason = state.reason(job.id)
    return (reason.cure if reason is not None else "") or resume_command(job.id)


# -- while it runs -----------------------------------------------------------------------------


def _running(state: State, rules: Rules, job: Job, now_s: float, shadow: Shadow) -> Explanation:
    if job.freeze_asked and not job.frozen:
        reason = job.user_hold_reason if job.user_hold else job.hold_reason
        why = text_of(reason)
        until = "its processes stand still; one that waits for a disk first gets its answer"
        return plain(job, "is being suspended" + (f": {why}" if why else ""), until)
    if job.phase is not None and job.phase.granted_s is None:
        return _waits_for_turn(state, rules, job, job.phase, now_s)
    until = "its own end"
    if job.spec.walltime_s is not None:
        left = duration(job.spec.walltime_s - job.run_s_at(now_s))
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
        lasted = duration(now_s - job.phase.granted_s)
        parts.append(f"it has its turn to do I/O, for {lasted}{_expected(job.phase)}")
    if job.reason is not None:
        word = "could not be suspended: " if job.reason.code == "SuspendFailed" else ""
        parts.append(word + job.reason.text)
    if job.scratch_over is not None:
        parts.append(f"it {job.scratch_over.text}")
    if job.started_because is not None:
        parts.append(f"it was started out of its turn: {job.started_because.text}")
    if job.immune_until_s is not None and job.immune_until_s > now_s:
        left = duration(job.immune_until_s - now_s)
        parts.append(f"it stood still for long, so it is not suspended again for {left}")
    if (capped := state.caps.get(job.id)) is not None:
        lasted = duration(now_s - capped.since_s)
        why = "" if capped.reason is None else _after_colon(capped.reason.text)
        parts.append(f"it is slowed down{_most(capped.cap)}, for {lasted}{why}")
    if job.spec.no_suspend:
        parts.append("it asked never to be suspended for I/O")
    elif (unknown := _unknown_io(state, job)) != "":
        parts.append(unknown)
    parts += _resumed(state, job, now_s)
    return parts + _in_shadow(shadow, job, now_s)


def _most(cap: Cap) -> str:
    rates = {"read": cap.read_bytes_per_s, "write": cap.written_bytes_per_s}
    told = [
        f"{word} {rate / 1e6:.1f} MB/s on {device}"
        for word, by_device in rates.items()
        for device, rate in sorted(by_device.items())
    ]
    return f" (may {' and '.join(told)} at most)" if told else ""


def _resumed(state: State, job: Job, now_s: float) -> list[str]:
    evidence = state.evidence.get(job.id)
    if evidence is None or now_s - evidence.at_s > RECENT_S:
        return []
    row = next((row for row in evidence.jobs if row.job_id == job.id), None)
    if row is None or row.verdict != "resume":
        return []
    return [f"it came back {duration(now_s - evidence.at_s)} ago" + _after_colon(row.why)]


def _in_shadow(shadow: Shadow, job: Job, now_s: float) -> list[str]:
    stood_s = shadow.stood_s(now_s).get(job.id)
    if stood_s is None:
        return []
    held = shadow.held_for(job.id)
    if held is None:
        return [f"in shadow it would have stood still for {duration(stood_s)} in all"]
    since_s, why = held
    total = f", {duration(stood_s)} in all" if stood_s > now_s - since_s else ""
    lasted = f"in shadow it would stand still, since {duration(now_s - since_s)} ago{total}"
    return [lasted + _after_colon(why)]


def _after_colon(text: str) -> str:
    return f": {text}" if text else ""


def _waits_for_turn(
    state: State, rules: Rules, job: Job, phase: Phase, now_s: float
) -> Explanation:
    is_so = f"runs on socket {job.partition}; {text_of(state.reason(job.id))}{_expected(phase)}"
    until = "its turn"
    ends_s = wait_ends_s(rules, job)
    if ends_s is not None:
        until += f", and at the latest in {duration(ends_s - now_s)} it goes on in any case"
    return Explanation(is_so=is_so, since_s=phase.asked_s, until=until)


def _expected(phase: Phase) -> str:
    return "" if phase.expect_bytes is None else f"; it told of {phase.expect_bytes / 1e6:.0f} MB"


def find_silence(state: State, job: Job) -> int | None:
    """The process for which the I/O of a job that runs is unknown; None: there is none."""
    counters = state.meter.counters(job.id) if job.is_live else None
    return None if counters is None else counters.silent_pid


def silence(pid: int) -> Reason:
    """Why a job's I/O is unknown, where this process does not answer; 0: what else does not."""
    what = f"process {pid} does not answer" if pid else "its output's disk does not answer"
    return Reason(code="ProcessSilent", text=f"I/O unknown: {what}")


def _unknown_io(state: State, job: Job) -> str:
    last = state.meter.last
    if last is None or state.meter.bandwidth(job.id) is not None:
        return ""
    counters = last.jobs.get(job.id)
    if counters is None and (job.started_s or 0.0) < last.at_s:
        return "its I/O cannot be read, so it is never suspended for it"
    if (silent := find_silence(state, job)) is not None:
        return f"{silence(silent).text}, so it is never suspended for it"
    if counters is not None and counters.read_bytes is None and counters.written_bytes is None:
        return "its I/O cannot be read, so it is never suspended for it"
    return "its I/O has not been measured yet"


# -- while it stands still ---------------------------------------------------------------------


def _suspended_io(state: State, rules: Rules, job: Job, now_s: float) -> Explanation:
    told = text_of(job.reason)
    if job.io_held_since_s is None:
        why = text_of(job.release_reason) or told
        is_so = f"stood still for others' I/O and is being resumed: {why}"
        if job.reason is not None and job.reason.code == "Adopted":
            is_so = told
        return plain(job, is_so, "its processes run again, usually within a second")
    evidence = state.evidence.get(job.id)
    until = _comes_back(job, evidence)
    until += f"; this is looked at every {duration(rules.regulation.timeslice_s)}"
    limit_s = rules.longest_suspension_s(job)
    if limit_s is not None:
        left = duration(job.io_held_since_s + limit_s - now_s)
        until += f", and at the latest in {left} it runs in any case"
    whose = "the others get on" if _is_one_too_many(state, job) else "the others' I/O gets on"
    return Explanation(
        is_so=f"stands still so that {whose}: {told}",
        since_s=job.since_s,
        until=until,
        evidence=evidence,
    )


def _comes_back(job: Job, evidence: Evidence | None) -> str:
    """What would let a job go on that the regulation holds."""
    if job.hold_reason is not None and job.hold_reason.code == TURN:
        return "it is its turn to do I/O"
    if job.hold_reason is not None and job.hold_reason.code == CONTENTION:
        return FEWER_OR_MORE
    return "there is room for its I/O" + _all_may(evidence)


def _all_may(evidence: Evidence | None) -> str:
    if evidence is None or evidence.allowed <= 0.0:
        return ""
    return f" (all together may bring {_figure(evidence.allowed, evidence)})"


def _figure(load: float, evidence: Evidence) -> str:
    """A load in its unit; of a disk's queue, how many requests are in it."""
    match evidence.quantity:
        case "bandwidth":
            return f"{load / 1e6:.1f} MB/s"
        case "wait" | "absence":
            return f"{load:.1f}"
        case _:
            assert_never(evidence.quantity)


def _suspended_user(state: State, job: Job) -> Explanation:
    is_so = f"stands still: {_wish(state, job)}"
    until = _cure(state, job)
    if not job.io_hold:
        return plain(job, is_so, until)
    evidence = state.evidence.get(job.id)
    return Explanation(
        is_so=f"{is_so}; the regulation holds it as well: {text_of(job.hold_reason)}",
        since_s=job.since_s,
        until=f"{until}, and then until {_comes_back(job, evidence)}",
        evidence=evidence,
    )


# -- its end -----------------------------------------------------------------------------------


def _stopping(job: Job, now_s: float) -> Explanation:
    is_so = f"is being ended: {text_of(job.stop_reason) or text_of(job.reason)}"
    if job.kill_at_s is not None:
        left = duration(job.kill_at_s - now_s)
        is_so += "; its processes were asked to end"
        if job.reason is not None and job.reason.code == "StopDelayed":
            is_so = f"is to be ended: {text_of(job.stop_reason)}; {job.reason.text}"
        return plain(job, is_so, f"they have ended, or are killed in {left}")
    is_so += "; its processes were killed"
    if job.reason is not None and job.reason.code == "StopDelayed":
        is_so += f", but not all are gone: {job.reason.text}"
    until = "all are gone; one that waits for a disk goes when the disk has answered"
    return plain(job, is_so, until)


def _left(state: State, job: Job, now_s: float) -> str:
    """What an ended job still has of a tier's space."""
    why = text_of(job.scratch_unwanted)
    if not job.shares:
        return f"; what it left in its scratch space was removed: {why}" if why else ""
    if job.scratch_kept is None:
        return "; its scratch space is being cleared" + _after_colon(why)
    frees = f"its user may copy it ('cp -a'); 'iod scratch remove {job.id}' frees it"
    ends = removed_in(state, job, now_s)
    return f"; its scratch space is kept: {job.scratch_kept.text}; {frees}{ends}"


def _ended(job: Job) -> str:
    told = text_of(job.reason)
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
