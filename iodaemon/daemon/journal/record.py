"""What goes into the journal in one piece, what a restart gets out of it, and the rows of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, assert_never

import msgspec

from iodaemon.core.decision import Evidence, Lesson, ShadowStep, Transition, TrialStep
from iodaemon.core.event import DrainBegun, DrainEnded, ModeChanged, Reconfigured
from iodaemon.core.forecast import Trace
from iodaemon.core.job import Job, JobId, JobKind, JobState, Reason
from iodaemon.core.limits import Drain
from iodaemon.core.rule import Mode
from iodaemon.core.sample import Sample
from iodaemon.core.similarity import Key

MOST_STEPS: Final = 100_000
"""Of the history, what waits for a full disk is cut to so much: it may stay full for weeks."""

MOST_REQUESTS: Final = 10_000
"""Submissions that can be repeated by their key: a client repeats one within minutes."""

Environment = Mapping[str, str]
Order = ModeChanged | DrainBegun | DrainEnded | Reconfigured
"""What an administrator orders, which concerns no single job."""
Kind = Literal["evidence", "shadow", "trial", "scratch", "mode", "drain", "config", "restored"]
Known = tuple[JobKind, Lesson]
"""A kind of jobs, and what was learned of it."""


class BandwidthMinute(msgspec.Struct, frozen=True):
    """What one job moved in one minute; two rows for one minute are added up.

    Attributes:
        minute: whole minutes since 1970.
        seconds: how much of the minute was measured.
    """

    job_id: JobId
    minute: int
    read_bytes: int
    written_bytes: int
    seconds: float


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """An event that is no step of a job; ``record`` is as JSON would have it."""

    at_s: float
    kind: Kind
    record: dict[str, Any]


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """Runs until ``at_s`` no longer count for this key."""

    key: Key
    at_s: float


class RequestKey(NamedTuple):
    """What makes a repeated submission the same one: the client's key, and the body's digest."""

    uid: int
    key: str
    digest: str


class Request(msgspec.Struct, frozen=True):
    """A submission with a key: it made so many jobs, with ids from ``first_id`` on."""

    first_id: JobId
    jobs: int
    uid: int
    key: str
    digest: str


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What the clocks showed at one time.

    Attributes:
        at_s: the daemon's, seconds since 1970.
        boot_id: of the machine's boot.
        uptime_s: CLOCK_BOOTTIME, which goes on while the machine is suspended.
    """

    at_s: float
    boot_id: str
    uptime_s: float


class Span(msgspec.Struct, frozen=True, array_like=True):
    """What the daemon's clock showed while some time passed, from the end of the span before on.

    Attributes:
        until_s: how much time had passed at its end, since this journal counts it.
        least_s: no record was given an earlier time in it.
    """

    until_s: float
    least_s: float


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """Time that has provably passed (``daemon.timeline``).

    Attributes:
        last: the newest reading.
        spans: in order, at least one; ``last`` ends the newest.
    """

    last: Reading
    spans: tuple[Span, ...]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What one step changed; all of it becomes durable, or nothing.

    Attributes:
        jobs: the newest record of every job that changed.
        removed: jobs whose submission was refused.
        transitions: steps of jobs, in order.
        environments: by id; one that is stored already stays as it is.
        samples: raw, for replay.
        lessons: what is known now of kinds of jobs; None: nothing any more.
        meta: values as of ``META``; None removes one.
    """

    jobs: tuple[Job, ...] = ()
    removed: tuple[JobId, ...] = ()
    transitions: tuple[Transition, ...] = ()
    environments: Mapping[str, Environment] = MappingProxyType({})
    minutes: tuple[BandwidthMinute, ...] = ()
    notes: tuple[Note, ...] = ()
    samples: tuple[Sample, ...] = ()
    traces: tuple[Trace, ...] = ()
    forgotten: tuple[Forgotten, ...] = ()
    lessons: Mapping[JobKind, Lesson | None] = MappingProxyType({})
    requests: tuple[Request, ...] = ()
    meta: Mapping[str, Mode | Drain | float | Passed | None] = MappingProxyType({})

    @property
    def only_begins(self) -> bool:
        """Whether it says only that started jobs run, which a restart would find out."""
        steps = self.transitions
        begun = all(
            step.before is JobState.STARTING and step.after is JobState.RUNNING for step in steps
        )
        others = len(self.jobs) - len(steps) or self.removed or self.meta
        return bool(steps) and begun and not others


_OF_JOBS: Final = (
    ("transitions", attrgetter("job_id")),
    ("minutes", attrgetter("job_id")),
    ("requests", attrgetter("first_id")),
)


def join(batches: Sequence[Batch]) -> Batch:
    """One batch with the effect of these, in order: of each job only its newest record is left.

    Nothing is left of a job that one of them removes: a disk that is full could not take it.
    """
    if len(batches) == 1:
        return batches[0]
    jobs: dict[JobId, Job] = {}
    removed: set[JobId] = set()
    joined: dict[str, Any] = {}
    for batch in batches:
        jobs.update((job.id, job) for job in batch.jobs)
        removed.difference_update(job.id for job in batch.jobs)
        removed.update(batch.removed)
    for name in Batch.__struct_fields__:
        values = [getattr(batch, name) for batch in batches]
        if isinstance(values[0], Mapping):
            newest: dict[Any, Any] = {}
            for key, value in chain.from_iterable(each.items() for each in values):
                newest.pop(key, None)  # what came last is last
                newest[key] = value
            joined[name] = newest
        else:
            joined[name] = tuple(chain.from_iterable(values))
    joined["jobs"] = tuple(job for job_id, job in sorted(jobs.items()) if job_id not in removed)
    joined["removed"] = tuple(sorted(removed))
    if removed:
        for name, id_of in _OF_JOBS:
            joined[name] = tuple(each for each in joined[name] if id_of(each) not in removed)
    return Batch(**joined)


META: Final = {"mode": Mode, "drain": Drain, "anchor_s": float, "passed": Passed}
"""What a daemon keeps of itself: regulation's mode as it was switched last, how the node is
drained, what the jobs' times are counted from (``WallTimeline``), and the time that has passed."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon needs to go on where the last one stopped.

    Attributes:
        jobs: all that are waiting or live, and the newest finished ones; ordered by id.
        next_id: above every id that was ever durable.
        seed: of the controller's random numbers; the same for the journal's whole life.
        environments: those of the waiting and live jobs.
        mode, drain, anchor_s, passed: as of ``META``; None: it was never written.
        traces: runs elsewhere, in the order of their import.
        lessons: what is known of kinds of jobs; learned last is at the end.
        requests: the newest submissions with a key, in order.
    """

    jobs: tuple[Job, ...]
    next_id: JobId
    seed: int
    environments: Mapping[str, Environment]
    mode: Mode | None = None
    drain: Drain | None = None
    anchor_s: float | None = None
    passed: Passed | None = None
    traces: tuple[Trace, ...] = ()
    forgotten: tuple[Forgotten, ...] = ()
    lessons: tuple[Known, ...] = ()
    requests: tuple[Request, ...] = ()


# -- notes ---------------------------------------------------------------------------------------

_KINDS: Final[Mapping[type, Kind]] = {
    Evidence: "evidence",
    ShadowStep: "shadow",
    TrialStep: "trial",
    ModeChanged: "mode",
}


def note_of(thing: Evidence | ShadowStep | TrialStep | Order) -> Note:
    """The note that keeps it."""
    match thing:
        case Evidence() | ShadowStep() | TrialStep() | ModeChanged():
            record = msgspec.json.decode(msgspec.json.encode(thing))
            return Note(at_s=thing.at_s, kind=_KINDS[type(thing)], record=record)
        case DrainBegun():
            return told_note("drain", thing.at_s, is_on=True, by=thing.by, reason=thing.reason)
        case DrainEnded():
            return told_note("drain", thing.at_s, is_on=False, by=thing.by, reason="")
        case Reconfigured():
            return told_note("config", thing.at_s, by=thing.by, changes=list(thing.changes))
        case _:
            assert_never(thing)


def note_of_clearing(job: Job, at_s: float) -> Note:
    """The note that a job's kept result is removed, and why."""
    why = msgspec.to_builtins(job.scratch_unwanted)
    return told_note("scratch", at_s, job_id=job.id, reason=why)


def told_note(kind: Kind, at_s: float, **record: object) -> Note:
    """A note whose record has these fields."""
    return Note(at_s=at_s, kind=kind, record={"at_s": at_s, **record})


# -- rows ----------------------------------------------------------------------------------------

_OF_THE_JOB: Final = ("id", "uid", "spec")
"""What never changes, and is in ``job``; the rest is in ``life``."""
_LIFE: Final = tuple(name for name in Job.__struct_fields__ if name not in _OF_THE_JOB)
_Life: Final = msgspec.defstruct(
    "Life",
    [
        (each.name, each.type, *(() if each.default is msgspec.NODEFAULT else (each.default,)))
        for each in msgspec.structs.fields(Job)
        if each.name in _LIFE
    ],
    frozen=True,
    omit_defaults=True,
)
_life_of: Final = attrgetter(*_LIFE)
_decode_job: Final = msgspec.json.Decoder(Job).decode
_decode_step: Final = msgspec.json.Decoder(tuple[JobState | None, JobState, Reason | None]).decode

MOVED: Final = "moved"
"""The kind of an event that is a step of a job."""
JobRow = tuple[int, int, str, str]
"""Id, uid, spec and life of a job."""
EventRow = tuple[int, float, str, int | None, str]
"""Id, time, kind, job (None: a note) and record of an event."""
Event = tuple[int, Transition | Note]
"""Its id, and what happened."""


def encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def life_row(job: Job) -> tuple[str, float | None, bool, str, int]:
    """State, end, whether it holds space, record, id."""
    record = encode(_Life(*_life_of(job)))
    return (job.state, job.ended_s, bool(job.shares), record, job.id)


def decode_jobs(rows: Iterable[JobRow]) -> list[Job]:
    """Raises msgspec.DecodeError, which names the job, where a record is damaged."""
    jobs = []
    for job_id, uid, spec, life in rows:
        with named(f"job {job_id}"):
            record = f'{life[:-1]},"id":{job_id},"uid":{uid},"spec":{spec}}}'
            jobs.append(_decode_job(record))
    return jobs


def step_row(step: Transition) -> tuple[float, str, int, str]:
    """A step as an event without its id."""
    return (step.at_s, MOVED, step.job_id, encode((step.before, step.after, step.reason)))


def note_row(note: Note) -> tuple[float, str, None, str]:
    """A note as an event without its id."""
    return (note.at_s, note.kind, None, encode(note.record))


def decode_event(row: EventRow) -> Event:
    """Raises msgspec.DecodeError, which names the event, where its record is damaged."""
    event, at_s, kind, job_id, record = row
    with named(f"event {event}"):
        if kind != MOVED or job_id is None:
            note: Any = {"at_s": at_s, "kind": kind, "record": msgspec.json.decode(record)}
            return event, msgspec.convert(note, Note)
        before, after, reason = _decode_step(record)
    step = Transition(job_id=JobId(job_id), at_s=at_s, before=before, after=after, reason=reason)
    return event, step


@contextmanager
def named(record: str) -> Iterator[None]:
    """Name the record that cannot be decoded in the error that says so."""
    try:
        yield
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise msgspec.DecodeError(f"{record}: {error}") from error
