"""A job: what was asked (JobSpec), what became of it (Job), and the states that it may be in.

A spec is all that a policy may see of a job before it runs, with what is expected of its I/O
(Prediction). What the job really does (its profile) exists in the simulator only. How a job goes
from one state to the next: ``core.lifecycle``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal, NewType, Protocol

import msgspec

from iodaemon.core.platform import PartitionId, SlotId

TierName = NewType("TierName", str)
DiskId = NewType("DiskId", str)
"""Unique among all disks of a storage."""
KEPT: Final = "ScratchKept"
"""The word for what an ended job still has in its space."""
Fallback = Literal["slow", "wait", "fail"]
"""What becomes of a request that no disk can hold now: the slowest tier, later, or its end."""


_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Path = Annotated[str, msgspec.Meta(pattern="^/")]


class ScratchRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Space that a job wants for its run: SCRATCH of docs/api.md.

    Attributes:
        size_bytes: above 0.
        tier: which one. None: the admission rule chooses (``--fast``); rules that do not, take
            the fastest.
        fallback: if that has no room.
        input_path: what is copied in before the command runs. None: nothing.
        output_path: where what it leaves is copied after. None: nothing is kept.
        output_on: whether that is done also where the command failed.
        input_bytes: how much is copied in; 0: nobody knows.
        output_bytes: how much is expected to be copied out; 0: nobody knows.
        data_bytes: what the job moves in between and does not keep; 0: nobody knows.
    """

    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    tier: Annotated[TierName, msgspec.Meta(max_length=32)] | None = None
    fallback: Fallback = "wait"
    input_path: _Path | None = None
    output_path: _Path | None = None
    output_on: Literal["success", "always"] = "success"
    input_bytes: _Size = 0
    output_bytes: _Size = 0
    data_bytes: _Size = 0

    @property
    def whole_bytes(self) -> int:
        """What has to fit one directory: the prolog copies all of the input there."""
        return 0 if self.input_path is None else self.input_bytes

    def __post_init__(self) -> None:
        """Refuse a request for nothing."""
        if self.size_bytes < 1:
            raise ValueError("scratch space must be at least one byte")
        if min(self.input_bytes, self.output_bytes, self.data_bytes) < 0:
            raise ValueError("input, output and data are 0 bytes or more")


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied for a job, in and out, as the kernel counts it.

    Attributes:
        came_bytes: written to disks by the prolog.
        went_bytes: written to disks by the epilog.
        moved_bytes: read and written by both; part of the job's I/O.
        has_come: whether all that was to be copied in was. None: nothing was to be, or unknown.
        has_gone: likewise out.
    """

    came_bytes: int
    went_bytes: int
    moved_bytes: int
    has_come: bool | None = None
    has_gone: bool | None = None

    @property
    def read_bytes(self) -> int:
        """The part of it that was read; what is copied is written once."""
        return max(0, self.moved_bytes - self.came_bytes - self.went_bytes)


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Space on one disk that a job holds."""

    tier: TierName
    disk: DiskId
    size_bytes: int


Source = Literal["measured", "declared", "learned", "imported", "unknown"]
"""Where it is known from. ``declared``: the job's submitter said it. ``learned``: earlier runs of
the same did it here. ``imported``: they did it elsewhere, by their Darshan logs."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job is expected to move, as a mean over the time it runs.

    Attributes:
        rate_bytes_per_s: read plus written. It is the job's I/O intensity as EquilibrIO defines
            it: the part of its time in I/O, times its bandwidth while in I/O.
        confidence: 0 (a guess) to 1 (measured in the last slice).
        source: where it is known from.
        io_share: the part of its run time in which it does I/O. None: not known.
        operations_per_s: read and write requests. None: not known.
        by: what earlier runs it is known by, for example ``name:solver``. Empty: none.
        runs: how many of them.
        run_s: how long they took, typically; no bound. None: not known.
    """

    rate_bytes_per_s: float
    confidence: float
    source: Source
    io_share: float | None = None
    operations_per_s: float | None = None
    by: str = ""
    runs: int = 0
    run_s: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether anything is; what is not known is not zero."""
        return self.source != "unknown"

    @property
    def burst_bytes_per_s(self) -> float:
        """What it moves while it does I/O; the mean where its share is not known."""
        return self.rate_bytes_per_s / self.io_share if self.io_share else self.rate_bytes_per_s


UNKNOWN: Final = Prediction(rate_bytes_per_s=0.0, confidence=0.0, source="unknown")


JobId = NewType("JobId", int)
"""Counts up from 1 for the whole life of a journal; never used twice."""
JobKind = NewType("JobKind", str)
"""What jobs of one user have in common: ``UID like:COMMAND`` (``core.similarity.kind_of``)."""


class JobState(enum.StrEnum):
    """Where a job is in its life. The value is what is shown; ``code`` is the short form."""

    HELD = "HELD"
    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUSPENDED_IO = "SUSPENDED_IO"
    SUSPENDED_USER = "SUSPENDED_USER"
    STOPPING = "STOPPING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    LOST = "LOST"

    @property
    def code(self) -> str:
        return _CODES[self]

    @property
    def is_final(self) -> bool:
        return self in FINAL


_CODES: Final[Mapping[JobState, str]] = MappingProxyType(
    {
        JobState.HELD: "H",
        JobState.PENDING: "PD",
        JobState.STARTING: "ST",
        JobState.RUNNING: "R",
        JobState.SUSPENDED_IO: "SI",
        JobState.SUSPENDED_USER: "SU",
        JobState.STOPPING: "SG",
        JobState.COMPLETED: "CD",
        JobState.FAILED: "F",
        JobState.CANCELLED: "CA",
        JobState.TIMEOUT: "TO",
        JobState.OUT_OF_MEMORY: "OM",
        JobState.LOST: "LO",
    }
)

_S = JobState
SUSPENDED: Final = frozenset({_S.SUSPENDED_IO, _S.SUSPENDED_USER})
WAITING: Final = frozenset({_S.HELD, _S.PENDING})
ENDS: Final = frozenset({_S.COMPLETED, _S.FAILED, _S.LOST, _S.OUT_OF_MEMORY})
FINAL: Final = ENDS | {_S.CANCELLED, _S.TIMEOUT}
LIVE: Final = frozenset({_S.STARTING, _S.RUNNING, _S.STOPPING}) | SUSPENDED


class Reason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a job is where it is: a stable word for programs, a text for people.

    The text stands by itself after a colon: what is the case, in words that begin small and end
    without a full stop. What has no subject is said of the job (``needs 2 free CPUs``), and is
    never glued to a word before it. Whatever else has its own (``all jobs move 90 MB/s``).

    Attributes:
        code: for programs; all that acts on a reason goes by it.
        text: for people.
        cure: what lets a held job go on, as a noun (``'iod resume 7'``); empty where nobody need
            act. Whoever shows the reason adds it, or leaves it out for those who may not.
    """

    code: str
    text: str
    cure: str = ""


def resume_command(job_id: JobId) -> str:
    """The command that lets a held job go, in quotes."""
    return f"'iod resume {job_id}'"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the submitter asked for; a policy may read all of it.

    Attributes:
        command: program and arguments, run without a shell.
        cwd: directory the command starts in.
        name: for people; does not identify the job.
        cpus: slots of one partition, at least 1.
        shares_cores: it asked for no CPUs, so where cores are shared it has none for its own. Then
            ``cpus`` is 1.
        walltime_s: bound on run time; suspended time does not count. None: no bound.
        memory_bytes: what the job says it needs. None: not said.
        io_rate_bytes_per_s: declared: what it moves while it does I/O. None: unknown, not zero.
        io_share: declared: the part of its run time in which it does. None: all of it.
        io_operations_per_s: declared: its requests, as the rate. None: unknown, not zero.
        no_suspend: the regulation never suspends this job.
        max_suspend_s: longest suspension in a row by the regulation. None: the daemon's.
        requeue: run it again from its beginning if the machine is restarted while it runs.
        stdout: file for standard output; None: the job's own output file. ``%j`` is the job id.
        stderr: file for standard error; None: the same as standard output.
        environment_id: key of the stored environment (stored once, shared by many jobs).
        umask: file mode mask the job starts with.
        scratch: space on a tier of storage that it wants for its run. None: none.
    """

    command: tuple[str, ...]
    cwd: str = "/"
    name: str = ""
    cpus: int = 1
    shares_cores: bool = False
    walltime_s: float | None = None
    memory_bytes: int | None = None
    io_rate_bytes_per_s: float | None = None
    io_share: float | None = None
    io_operations_per_s: float | None = None
    no_suspend: bool = False
    max_suspend_s: float | None = None
    requeue: bool = False
    stdout: str | None = None
    stderr: str | None = None
    environment_id: str = ""
    umask: int = 0o022
    scratch: ScratchRequest | None = None

    @property
    def declared(self) -> Prediction | None:
        """What the submitter says of its I/O, as a mean over its run; None: nothing."""
        if self.io_rate_bytes_per_s is None:
            return None
        share = 1.0 if self.io_share is None else self.io_share
        operations = self.io_operations_per_s
        return Prediction(
            rate_bytes_per_s=self.io_rate_bytes_per_s * share,
            confidence=0.5,
            source="declared",
            io_share=self.io_share,
            operations_per_s=None if operations is None else operations * share,
        )


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How the job's main process ended. Exactly one of code and signal is set, or neither.

    Neither: the exit could not be learned (the job is LOST); never reported as 0.
    """

    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False

    @property
    def shell_code(self) -> int:
        if self.signal is not None:
            return 128 + self.signal
        return 1 if self.code is None else self.code


class IoTotals(msgspec.Struct, frozen=True, kw_only=True):
    """A job's I/O from its start, as the kernel counts it; None where it could not be read.

    ``operations`` are read and write system calls. ``at_least``: it may have been more.
    """

    read_bytes: int | None = None
    written_bytes: int | None = None
    operations: int | None = None
    at_least: bool = False

    @property
    def total_bytes(self) -> int | None:
        if self.read_bytes is None and self.written_bytes is None:
            return None
        return (self.read_bytes or 0) + (self.written_bytes or 0)


class Phase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An I/O phase that a job told of: it waits for its turn, or is in it.

    Attributes:
        asked_s: when it asked.
        expect_bytes: how much it says it will read and write. None: not said.
        granted_s: since when it has its turn. None: it waits.
    """

    asked_s: float
    expect_bytes: int | None = None
    granted_s: float | None = None


class QueuePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the queue that a job took after its submission.

    Attributes:
        behind: the newest job that there was; all up to it come first.
        since_s: when it was taken.
    """

    behind: JobId
    since_s: float


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job and all that happened to it. Changed only within a step (``lifecycle``).

    Two independent bits, ``user_hold`` and ``io_hold``, say who wants it stopped; it runs only
    when both are clear. ``frozen`` is what the world last confirmed, ``freeze_asked`` what was
    last asked of the world; where they differ a suspend or resume is on its way.

    Attributes:
        id: the job's number.
        spec: what was asked.
        uid: the submitter.
        state: where it is in its life; ``since_s`` is when it got there.
        submitted_s: when it was accepted.
        place: in the queue. None: that of its submission.
        attempt: 1 for the first start; each further start is a new attempt. 0 before.
        partition: where it runs or ran.
        slots: the slots it holds, while it is live.
        run_s: seconds in RUNNING or STOPPING up to ``since_s``.
        suspended_io_s: seconds in SUSPENDED_IO up to ``since_s``.
        suspended_user_s: seconds in SUSPENDED_USER up to ``since_s``.
        io_held_since_s: when the regulation's present suspension began.
        immune_until_s: the regulation may not suspend it before this time.
        hold_reason: why the regulation last held it, shown while it stands still.
        release_reason: why the regulation lets it go, told with its next step to RUNNING.
        user_hold_reason: who holds it, shown while a person's hold keeps it still.
        held_by_uid: the administrator whose hold that is, which its own user may not end. None:
            its own user's, or nobody's.
        stop: what the end of a STOPPING job will be called; PENDING: it is being requeued.
        stop_reason: why it is being stopped; becomes the reason of its end.
        kill_at_s: when a STOPPING job is killed; None: it has been, or is not stopping.
        phase: the I/O phase it told of. None: it is in none, or tells of none.
        started_because: why it was started out of its turn. None: its turn had come.
        expected: what its I/O was thought to be when it started. None: nothing was known.
        shares: the space of tiers that it holds, from its start until nothing of it is left.
        tier: the tier that it was started on, which it keeps; None: it asked for none.
        staged: what was copied in and out for it. None: nothing, or nobody knows.
        charged_s: what it is charged for its run, where it asked for space (``core.storage``).
        scratch_over: that it has more in its space than it asked for. None: it has not.
        scratch_most_bytes: the most that it was seen to have there, where that was more than it
            asked for. 0: it never was.
        scratch_kept: why what it has in its space is still there, though it ended. None: it is not.
        scratch_kept_since_s: since when it is there because it could not be copied out. None: it
            is not, or for another reason.
        scratch_unwanted: why that goes, or went, without having been copied. None: it does not.
        scratch_unwanted_by: who asked for that. Empty: nobody did, or it is not known.
    """

    id: JobId
    spec: JobSpec
    uid: int
    state: JobState
    since_s: float
    submitted_s: float
    place: QueuePlace | None = None
    attempt: int = 0
    partition: PartitionId | None = None
    slots: tuple[SlotId, ...] = ()
    started_s: float | None = None
    ended_s: float | None = None
    run_s: float = 0.0
    suspended_io_s: float = 0.0
    suspended_user_s: float = 0.0
    user_hold: bool = False
    io_hold: bool = False
    frozen: bool = False
    freeze_asked: bool = False
    io_held_since_s: float | None = None
    immune_until_s: float | None = None
    hold_reason: Reason | None = None
    release_reason: Reason | None = None
    user_hold_reason: Reason | None = None
    held_by_uid: int | None = None
    stop: JobState | None = None
    stop_reason: Reason | None = None
    kill_at_s: float | None = None
    reason: Reason | None = None
    exit: Exit | None = None
    io: IoTotals = IoTotals()
    phase: Phase | None = None
    started_because: Reason | None = None
    expected: Prediction | None = None
    shares: tuple[Share, ...] = ()
    tier: TierName | None = None
    staged: Staged | None = None
    charged_s: float | None = None
    scratch_over: Reason | None = None
    scratch_most_bytes: int = 0
    scratch_kept: Reason | None = None
    scratch_kept_since_s: float | None = None
    scratch_unwanted: Reason | None = None
    scratch_unwanted_by: str = ""

    @property
    def queue_key(self) -> tuple[int, float, int]:
        """Smallest first in the queue."""
        if self.place is None:
            return self.id, -math.inf, self.id
        return self.place.behind, self.place.since_s, self.id

    @property
    def queued_s(self) -> float:
        """Since when it has its place in the queue."""
        return self.submitted_s if self.place is None else self.place.since_s

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    @property
    def wants_freeze(self) -> bool:
        return self.user_hold or self.io_hold

    @property
    def waits_for_turn(self) -> bool:
        """True when it asked for an I/O phase and has not got its turn."""
        return self.phase is not None and self.phase.granted_s is None

    @property
    def has_turn(self) -> bool:
        """True while it is in an I/O phase that it told of."""
        return self.phase is not None and self.phase.granted_s is not None

    def is_counted_at(self, at_s: float) -> bool:
        """Whether counters that were read from then on are those of its present attempt."""
        if self.attempt <= 1:
            return True
        return self.started_s is not None and self.started_s <= at_s

    def is_immune(self, now_s: float) -> bool:
        """Whether it stood still for so long that the regulation may not suspend it now."""
        return self.immune_until_s is not None and self.immune_until_s > now_s

    @property
    def keeps_result(self) -> bool:
        """True while what could not be copied out waits in its space for somebody who wants it."""
        is_kept = self.scratch_kept is not None and self.scratch_kept.code == KEPT
        return is_kept and self.scratch_kept_since_s is not None and self.scratch_unwanted is None

    @property
    def state_shown(self) -> str:
        """The state as shown: a suspend that is not yet confirmed carries dots."""
        if self.state is JobState.RUNNING and self.freeze_asked and not self.frozen:
            return f"{suspended_state(self)}..."
        return str(self.state)

    def run_s_at(self, now_s: float) -> float:
        """Seconds it has truly run until ``now_s``; suspended time is not in it."""
        running = self.state in (JobState.RUNNING, JobState.STOPPING)
        return self.run_s + (max(0.0, now_s - self.since_s) if running else 0.0)


def suspended_state(job: Job) -> JobState:
    """The state of this job when it stands still: a person's hold outranks the regulation's."""
    return JobState.SUSPENDED_USER if job.user_hold else JobState.SUSPENDED_IO


RECORD_BYTES: Final = 2560
"""A job without its texts, in all tables: 100,000 of the smallest, which count 2,960 bytes each,
took 2,690 of resident memory in the first submission, 1,290 and 810 in the next (CPython 3.11)."""
_ASCII_BYTES: Final = 80
"""Header (49 bytes), the pointer to it, and what the allocator rounds up."""
_OTHER_BYTES: Final = 144
"""Two headers, the pointer, and what the allocator rounds up twice."""
_WIDEST_BYTES: Final = 8
"""A character of 4 bytes, and 4 more in UTF-8."""
_ENTRY_BYTES: Final = 104
"""Of a dictionary with room for a third more."""


class Texts(Protocol):
    """The texts of a job, as it is submitted and as it is kept."""

    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def cwd(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def stdout(self) -> str | None: ...
    @property
    def stderr(self) -> str | None: ...
    @property
    def scratch(self) -> ScratchRequest | None: ...


def text_bytes(text: str) -> int:
    """At most so much memory is taken by a text that is referred to once.

    A text takes 1 to 4 bytes a character, by its widest one, and what is not ASCII is kept in UTF-8
    as well once it has been written somewhere. The bound is a function of the text alone, so that
    what is counted when a job comes is what is taken off when it goes.
    """
    if text.isascii():
        return _ASCII_BYTES + len(text)
    return _OTHER_BYTES + _WIDEST_BYTES * len(text)


def _bytes_of(texts: Collection[str]) -> int:
    """The sum of ``text_bytes``."""
    together = "".join(texts)
    if together.isascii():
        return _ASCII_BYTES * len(texts) + len(together)
    return sum(map(text_bytes, texts))


def job_bytes(job: Texts) -> int:
    """At most so much memory is taken by a job that waits, runs, or has ended."""
    texts = [*job.command, job.cwd, job.name, job.stdout or "", job.stderr or ""]
    if job.scratch is not None:
        texts += [job.scratch.input_path or "", job.scratch.output_path or ""]
    return RECORD_BYTES + _bytes_of(texts)


def environment_bytes(environment: Mapping[str, str]) -> int:
    """At most so much memory is taken by an environment, however many jobs share it."""
    texts = [*environment, *environment.values()]
    return RECORD_BYTES + _ENTRY_BYTES * len(environment) + _bytes_of(texts)
