"""What is to be done, in the imperative, and the plans that carry it.

A decision is an intent; the world answers with an event.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from iodaemon.core.job import Job, JobId, JobKind, JobState, Reason, Share, TierName
from iodaemon.core.platform import DeviceId, PartitionId, SlotId
from iodaemon.core.rule_error import RuleFault

_NONE: Mapping[Any, Any] = MappingProxyType({})


class _Decision(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    job_id: JobId


class Start(_Decision, frozen=True):
    """Run the job's command on these slots, with this space.

    Answered by JobStarted, StartFailed or JobExited.
    """

    attempt: int
    partition: PartitionId
    slots: tuple[SlotId, ...]
    shares: tuple[Share, ...] = ()


def start_of(job: Job) -> Start:
    """The start of a job that has its slots and its space.

    Raises:
        ValueError: it has none.
    """
    if job.partition is None:
        raise ValueError(f"job {job.id} has no partition")
    return Start(
        job_id=job.id,
        attempt=job.attempt,
        partition=job.partition,
        slots=job.slots,
        shares=job.shares,
    )


class Suspend(_Decision, frozen=True):
    """Bring all processes of the job to a standstill. Answered by JobSuspended."""


class Resume(_Decision, frozen=True):
    """Let the job's processes run again. Answered by JobResumed."""


class Cap(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a job may move, bytes/s, by device; a device that is not named has no cap.

    Attributes:
        read_bytes_per_s: read from it.
        written_bytes_per_s: written to it.
    """

    read_bytes_per_s: Mapping[DeviceId, float] = _NONE
    written_bytes_per_s: Mapping[DeviceId, float] = _NONE


class Capped(msgspec.Struct, frozen=True, kw_only=True):
    """A cap that is in force.

    Attributes:
        cap: the most that the job may move.
        since_s: since when it has one.
        reason: why; None: the rule gave none.
    """

    cap: Cap
    since_s: float
    reason: Reason | None = None


class Throttle(_Decision, frozen=True):
    """Let the job move no more than that; None: whatever it can. Only CapFailed answers.

    What lets a job's processes run again (Resume, Stop, Kill, the daemon's end) clears its cap.
    """

    cap: Cap | None = None
    reason: Reason | None = None


class Stop(_Decision, frozen=True):
    """Ask the job to end: SIGTERM to all its processes, then let them run. JobExited follows."""


class Kill(_Decision, frozen=True):
    """End the job: SIGKILL to all its processes. JobExited or StopDelayed follows."""


class Reject(_Decision, frozen=True):
    """Never: the job cannot run on this platform under this policy. The backend does nothing."""

    reason: Reason


class Grant(_Decision, frozen=True):
    """The job has its turn to do I/O. Nothing answers; a backend of real jobs does nothing."""


class Free(_Decision, frozen=True):
    """Remove what is left of an attempt in its space. ScratchRemoved or ScratchKept answers.

    Asked when the attempt has ended, which a backend may know before; once more after a restart;
    and when what was kept is to be removed: somebody wants it, or its time is over.

    Attributes:
        attempt: which.
        shares: its space.
        is_wanted: whether its removal was asked for. If False, files that could not be copied out
            are kept.
    """

    attempt: int
    shares: tuple[Share, ...] = ()
    is_wanted: bool = False


def clearing_of(job: Job) -> Free:
    """What is asked once more of a job that has ended and still holds space."""
    is_wanted = job.scratch_unwanted is not None
    return Free(job_id=job.id, attempt=job.attempt, shares=job.shares, is_wanted=is_wanted)


Decision = Start | Suspend | Resume | Throttle | Stop | Kill | Reject | Grant | Free


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """An admission: this job, on this partition, now.

    Attributes:
        why: why it starts before others that came earlier. None: it does not.
        shares: space of tiers that it gets.
        tier: where that is, or where it goes without. None: it asked for none; or the rule looked
            at no space, and the controller does.
    """

    job_id: JobId
    partition: PartitionId
    why: Reason | None = None
    shares: tuple[Share, ...] = ()
    tier: TierName | None = None


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """One job in the table of a decision.

    Attributes:
        job_id: which.
        rate_bytes_per_s: what it moved in the slice; None: unknown.
        load: its part of the load, in the load's unit.
        verdict: ``suspend``, ``resume``, ``spared``, ``runs`` or ``waits``.
        why: in words.
    """

    job_id: JobId
    rate_bytes_per_s: float | None
    load: float
    verdict: str
    why: str


Quantity = Literal["bandwidth", "wait", "absence"]
"""What a signal measures, and with it the units of its figures."""
ACTED: Final = frozenset({"suspend", "resume"})
"""Verdicts that are decisions."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a regulation saw in the slice in which it acted: enough to judge it afterwards.

    Attributes:
        at_s: when.
        signal: what was looked at, for example ``wait of sda``.
        quantity: what the figures are. ``bandwidth``: all in bytes/s. ``wait``: value and
            threshold in times of what a lone request takes, loads in requests in flight.
            ``absence``: value and threshold in slices without counters, loads as for ``wait``.
        value: what it was.
        threshold: what it was held against; 0 of a bandwidth: nothing.
        load: what all jobs together put on it.
        allowed: load down to which jobs are taken off when it is too much.
        fits: load up to which suspended jobs come back, their own part in it. None: the rule does
            not go by that.
        total_bytes_per_s: what all jobs moved.
        jobs: every live job that the signal concerns, ordered by id.
        is_shadow: nothing was touched; it only would have been.
    """

    at_s: float
    signal: str
    quantity: Quantity
    value: float
    threshold: float
    load: float
    allowed: float
    fits: float | None
    total_bytes_per_s: float
    jobs: tuple[Weighed, ...]
    is_shadow: bool = False


class AdmissionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an admission rule decided.

    Attributes:
        starts: in the order in which they take their slots.
        rejects: jobs that can never start, each with its reason.
        reasons: why jobs that were looked at do not start now.
        rest: why all others that wait do not. None: they wait behind those submitted earlier.
        reservations: job -> the time by which it is promised to start.
    """

    starts: tuple[Placed, ...] = ()
    rejects: Mapping[JobId, Reason] = _NONE
    reasons: Mapping[JobId, Reason] = _NONE
    rest: Reason | None = None
    reservations: Mapping[JobId, float] = _NONE


class StartLimit(msgspec.Struct, frozen=True, kw_only=True):
    """How many more jobs admission may start until the regulation decides again.

    A job starts while the share that it will take of what is contended for is free. When no job is
    live the first one starts whatever is written here.

    Attributes:
        most: so many jobs, whatever they take. None: no limit.
        free: what is left of the contended resource, 1 being all of it; may be below 0.
        shares: what one job of a kind takes, by kind; 0: nothing.
        share: what a job of any other kind takes.
        above_cores: by socket: so many jobs that share cores may run above the number of its cores;
            a socket that is not in it: none.
        memory_bytes: above the number of cores a job starts only if it needs no more memory than
            this. None: not limited.
        footprint_bytes: memory that a job is taken to need that neither asked for any nor is of a
            kind of which it is known.
        why: what to say of a job that waits for it.
    """

    most: int | None = None
    free: float = math.inf
    shares: Mapping[JobKind, float] = _NONE
    share: float = 0.0
    above_cores: Mapping[PartitionId, int] = _NONE
    memory_bytes: float | None = None
    footprint_bytes: float = 0.0
    why: Reason

    def share_of(self, kind: JobKind) -> float:
        """What a job of this kind takes of what is contended for, 1 being all of it."""
        return self.shares.get(kind, self.share)

    def needed_bytes(self, footprint_bytes: float | None) -> float:
        """Memory that a job is taken to need of which so much is expected; None: unknown."""
        return self.footprint_bytes if footprint_bytes is None else footprint_bytes

    def after(self, starts: int, share: float, *, memory_bytes: float = 0.0) -> StartLimit:
        """What is left when so many jobs that take this much have started; below 0: have ended."""
        most = None if self.most is None else self.most - starts
        left = None if self.memory_bytes is None else self.memory_bytes - starts * memory_bytes
        free = self.free - starts * share
        return msgspec.structs.replace(self, most=most, free=free, memory_bytes=left)


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned of how many jobs of a kind should contend at once; kept across restarts.

    Attributes:
        resource: that they contend for: ``memory``, or a device's name; empty: for none.
        limit: so many at once got the most done. None: no number was found to be too many.
        too_many: the least number that was found to be too many. None: none was.
        seen: most jobs at once, of whatever kind, that were seen to do no harm.
        gain: how many times as much got done at ``limit`` as at ``too_many``.
        tries: numbers that were tried.
        at_s: when it was learned, or seen to hold; on the timeline's clock.
        footprint_bytes: memory that a job of the kind needs, by the most that its runs had. None:
            not known. Measured: what a rule says of it is not heeded (``core.lessons``).
    """

    resource: str = ""
    limit: int | None = None
    too_many: int | None = None
    seen: int = 0
    gain: float = 1.0
    tries: int = 0
    at_s: float = 0.0
    footprint_bytes: int | None = None


TrialVerdict = Literal["began", "kept", "undone", "learned"]


class TrialStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of finding out how many jobs should contend for a resource at once.

    Attributes:
        resource: ``memory``, or a device's name.
        verdict: ``began``: another number is tried from now on. ``kept``, ``undone``: what became
            of it. ``learned``: evidence said so without a trial.
        before: jobs at once before it.
        tried: jobs at once that are, or were, tried.
        gain: how many times as much got done as before; None: not known (yet).
        text: in words, a whole sentence without its end.
        at_s: when; the controller fills it in.
        is_shadow: nothing was tried; it would have been. The controller fills it in.
    """

    resource: str
    verdict: TrialVerdict
    before: int
    tried: int
    gain: float | None = None
    text: str
    at_s: float = 0.0
    is_shadow: bool = False


class LimitState(msgspec.Struct, frozen=True, kw_only=True):
    """What a regulation believes of one contended resource now.

    Attributes:
        resource: ``memory``, or a device's name.
        contending: jobs that contend for it.
        limit: how many of them should at once. None: no limit is known to be needed.
        text: why, in words.
    """

    resource: str
    contending: int
    limit: int | None
    text: str


class RegulationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a regulation rule decided for the next timeslice.

    Attributes:
        suspends: running jobs to bring to a standstill.
        resumes: suspended jobs to let go.
        caps: what running jobs may move at most. Complete: a job that is not in it has no cap.
        grants: jobs that wait for their turn to do I/O and now have it.
        revokes: jobs that have the turn and lose it: their I/O phase counts as over.
        reasons: why, for each job named in one of these, and for those that go on waiting.
        evidence: what was seen, one for each signal that was acted on.
        io_headroom_bytes_per_s: I/O that admission may still add; None: no limit, 0: start
            nothing that does I/O.
        starts: how many more jobs admission may start. None: as many as find slots, and none above
            the number of cores.
        trials: what was tried, and what it brought.
        limits: what is believed now of each resource that is contended for.
        lessons: what was learned, by kind of job; it replaces what was known of the kind.
    """

    suspends: tuple[JobId, ...] = ()
    resumes: tuple[JobId, ...] = ()
    caps: Mapping[JobId, Cap] = _NONE
    grants: tuple[JobId, ...] = ()
    revokes: tuple[JobId, ...] = ()
    reasons: Mapping[JobId, Reason] = _NONE
    evidence: tuple[Evidence, ...] = ()
    io_headroom_bytes_per_s: float | None = None
    starts: StartLimit | None = None
    trials: tuple[TrialStep, ...] = ()
    limits: tuple[LimitState, ...] = ()
    lessons: Mapping[JobKind, Lesson] = _NONE

    def why_suspended(self, job_id: JobId) -> Reason:
        """The rule's reason, or that it gave none."""
        unsaid = Reason(code="IoBound", text="suspended by the regulation")
        return self.reasons.get(job_id, unsaid)


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """One step in a job's life; ``before`` is None for its beginning."""

    job_id: JobId
    at_s: float
    before: JobState | None
    after: JobState
    reason: Reason | None = None


class ShadowStep(msgspec.Struct, frozen=True, kw_only=True):
    """What regulation would have done to a job, had it been on.

    Attributes:
        job_id: which.
        at_s: when.
        verdict: ``suspend`` or ``resume``.
        reason: why.
        lasted_s: of a resume: how long the job would have stood still.
    """

    job_id: JobId
    at_s: float
    verdict: str
    reason: Reason | None = None
    lasted_s: float | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one step of the controller came to.

    Attributes:
        decisions: for the backend, in this order.
        changed: jobs whose record changed, each once, ordered by id.
        removed: jobs that never were (their submission was revoked).
        transitions: every step in a job's life, in the order they were made.
        evidence: what regulation saw in this step, if it acted.
        shadow: what it would have done, had it been on.
        trials: what it tried or learned of how many jobs should contend, or would have.
        faults: of rules that were set aside in this step.
        lessons: what is known now of kinds of jobs of which it was something else before. None:
            nothing any more.
        wake_at_s: the controller wants to be stepped at this time even if nothing happens.
    """

    decisions: tuple[Decision, ...] = ()
    changed: tuple[JobId, ...] = ()
    removed: tuple[JobId, ...] = ()
    transitions: tuple[Transition, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    shadow: tuple[ShadowStep, ...] = ()
    trials: tuple[TrialStep, ...] = ()
    faults: tuple[RuleFault, ...] = ()
    lessons: Mapping[JobKind, Lesson | None] = _NONE
    wake_at_s: float | None = None
