"""What happened, in the past tense. Everything that changes the state is one of these."""

from __future__ import annotations

from typing import Literal

import msgspec

from iodaemon.core.job import DiskId, Exit, IoTotals, Job, JobId, JobKind, Staged
from iodaemon.core.limits import Sharing
from iodaemon.core.platform import Device
from iodaemon.core.rule import Mode, Rules
from iodaemon.core.sample import Sample


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    at_s: float


class _OfJob(_Event, frozen=True):
    job_id: JobId


class _OfAttempt(_OfJob, frozen=True):
    attempt: int


class JobSubmitted(_Event, frozen=True):
    """A job was accepted; ``job`` is PENDING or HELD and its id is new."""

    job: Job


class SubmitRevoked(_OfJob, frozen=True):
    """The journal could not take the job, so its client was told no: it never existed."""


class JobStarted(_OfAttempt, frozen=True):
    """The job's main process runs its command."""


class StartFailed(_OfAttempt, frozen=True):
    """The command does not run and never ran. Of its space, if any, ScratchRemoved tells.

    ``exit_code`` is set where trying again cannot help (127: not found, 126: not executable):
    the job has failed. None: the backend could not start it now; the job is pending again, and
    with ``holds`` it is held until somebody says that it may be tried again.
    ``disk``: the one of a tier that is of no use to anybody now, which is why; None: none is.
    """

    problem: str
    exit_code: int | None = None
    holds: bool = False
    disk: DiskId | None = None


class JobExited(_OfAttempt, frozen=True):
    """All processes of the job are gone. ``exit`` empty: its exit could not be learned.

    ``by_reboot``: they went with the machine. ``staged``: None where nothing is known of that.
    """

    exit: Exit
    io: IoTotals
    note: str = ""
    by_reboot: bool = False
    staged: Staged | None = None


class JobSuspended(_OfJob, frozen=True):
    """All processes of the job stand still: the world's word, whoever asked for it."""


class JobResumed(_OfJob, frozen=True):
    """The job's processes run again: the world's word, whoever asked for it."""


class SuspendFailed(_OfJob, frozen=True):
    """The job could not be brought to a standstill, or back: it is as ``frozen`` says."""

    frozen: bool
    problem: str


class CapFailed(_OfJob, frozen=True):
    """The job could not be slowed down: it moves what it can."""

    problem: str


class StopDelayed(_OfJob, frozen=True):
    """What was asked of a job's processes, an end or a standstill, is not done yet, and why."""

    problem: str


class SampleTaken(_Event, frozen=True):
    """The counters were read: the regulation's heartbeat, once a timeslice."""

    sample: Sample


class CancelRequested(_OfJob, frozen=True):
    """Somebody wants the job gone."""

    by: str
    grace_s: float


class RequeueRequested(_OfJob, frozen=True):
    """Somebody wants the job run again from its beginning, ended first where it runs.

    ``ended`` is its record where it ended so long ago that the state may not have it any more.
    ``by_uid``: who that is; None: the job's own user.
    """

    by: str
    grace_s: float
    by_uid: int | None = None
    ended: Job | None = None


class SuspendRequested(_OfJob, frozen=True):
    """A person wants the job to stand still until resumed by a person.

    ``by_uid``: who that is; None: the job's own user.
    """

    by: str
    by_uid: int | None = None


class ResumeRequested(_OfJob, frozen=True):
    """A person takes the hold back; the regulation's own hold stays."""

    by: str


class PhaseAsked(_OfJob, frozen=True):
    """A job is about to do I/O and waits for its turn; one that has or awaits it keeps it.

    ``expect_bytes``: how much it says it will read and write; None: not said.
    """

    expect_bytes: int | None = None


class PhaseDone(_OfJob, frozen=True):
    """A job's I/O phase is over, or it waits for its turn no longer."""


class ScratchRemoved(_OfAttempt, frozen=True):
    """Nothing is there any more of what an attempt had in its space, or ever was: it is free."""


class ScratchKept(_OfAttempt, frozen=True):
    """What an attempt that has ended had in its space is still there, for the reason given.

    Its space stays taken until ScratchRemoved. ``is_result``: it is what could not be copied out;
    None: nobody can tell now.
    """

    problem: str
    is_result: bool | None = None


class ScratchUsed(_OfAttempt, frozen=True):
    """How much a job that runs has in its space, told when that comes to be more than it asked for.

    ``is_over`` is False once it is not any more; with ``ends`` a job that has more is ended.
    ``is_all``: False where not all of it could be measured, so that it has ``used_bytes`` at least.
    """

    used_bytes: int
    is_over: bool
    ends: bool = False
    is_all: bool = True


class ScratchUnwanted(_OfJob, frozen=True):
    """Somebody wants what is kept in the space of a job that does not run to be removed."""

    by: str


class DiskSeen(_Event, frozen=True):
    """A tier's disk was looked at; ``problem`` is why it is of no use now, empty: it works."""

    disk: DiskId
    problem: str = ""


class LessonsForgotten(_Event, frozen=True):
    """Somebody wants nothing to be known any more of jobs of these kinds (``core.lessons``)."""

    kinds: tuple[JobKind, ...]


class TimerFired(_Event, frozen=True):
    """The time came that the last plan named in ``wake_at_s``."""


class StartsBlocked(_Event, frozen=True):
    """Why this side can start no job now; an empty ``problem``: it can again."""

    problem: str
    source: Literal["journal", "node"] = "node"


class DrainBegun(_Event, frozen=True):
    """Somebody wants the node empty; said again, the last one's words count from the beginning."""

    by: str
    reason: str = ""


class DrainEnded(_Event, frozen=True):
    """Jobs may start again."""

    by: str


class ModeChanged(_Event, frozen=True):
    """Somebody switched regulation on, to shadow, or off."""

    mode: Mode
    by: str


class Reconfigured(_Event, frozen=True):
    """Somebody had the configuration read again, and it says something else now.

    ``rules``, ``sharing``, ``devices``, ``output_max_bytes`` and ``scratch_keep_s`` are those in
    force from now on; None, or unset: as they were. ``changes`` tells people what else is, one
    setting each.
    """

    by: str
    changes: tuple[str, ...]
    rules: Rules | None = None
    sharing: Sharing | None = None
    devices: tuple[Device, ...] | None = None
    output_max_bytes: int | msgspec.UnsetType | None = msgspec.UNSET
    scratch_keep_s: float | msgspec.UnsetType | None = msgspec.UNSET


OneJobEvent = (
    JobStarted
    | StartFailed
    | JobExited
    | JobSuspended
    | JobResumed
    | CapFailed
    | SuspendFailed
    | StopDelayed
    | CancelRequested
    | SuspendRequested
    | ResumeRequested
    | PhaseAsked
    | PhaseDone
    | ScratchRemoved
    | ScratchKept
    | ScratchUsed
    | ScratchUnwanted
)
"""What concerns one job that is known already."""

JobEvent = (
    OneJobEvent
    | JobSubmitted
    | SubmitRevoked
    | RequeueRequested
    | SampleTaken
    | DiskSeen
    | LessonsForgotten
    | TimerFired
    | StartsBlocked
    | DrainBegun
    | DrainEnded
)
"""What concerns jobs and their starts."""

Event = JobEvent | ModeChanged | Reconfigured
