"""The journal's notes (what regulation saw, would have done, was told) and raw samples."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, assert_never

import msgspec

from iodaemon.core.decision import ACTED, Evidence, ShadowStep, TrialStep
from iodaemon.core.event import DrainBegun, DrainEnded, ModeChanged, Reconfigured
from iodaemon.core.job import Job, JobId
from iodaemon.core.sample import Sample
from iodaemon.daemon import database

Kind = Literal["evidence", "shadow", "trial", "scratch", "mode", "drain", "config", "restored"]
Order = ModeChanged | DrainBegun | DrainEnded | Reconfigured
"""What an administrator orders, which concerns no single job."""
NoteRow = tuple[tuple[float, str, str], list[JobId]]
KEEP_SAMPLES_S: Final = 86400.0
"""Raw samples are kept for a day; they are large, and only journalled when asked for."""

_decode_sample: Final = msgspec.msgpack.Decoder(Sample).decode
_encode_sample: Final = msgspec.msgpack.Encoder(enc_hook=dict).encode
"""Counters may stand in a read-only mapping, which msgspec does not know."""


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One thing worth knowing later.

    Attributes:
        at_s: when.
        kind: ``evidence`` (core.decision.Evidence), ``shadow`` (ShadowStep), ``trial``
            (TrialStep), ``scratch`` (``note_of_clearing``), or an ``Order``'s.
        jobs: whom it concerns.
        record: as JSON would have it.
    """

    at_s: float
    kind: Kind
    jobs: tuple[JobId, ...]
    record: dict[str, Any]


def note_of(thing: Evidence | ShadowStep | TrialStep | Order) -> Note:
    """The note that keeps it."""
    match thing:
        case Evidence():
            acted = tuple(r.job_id for r in thing.jobs if r.verdict in ACTED)
            return Note(at_s=thing.at_s, kind="evidence", jobs=acted, record=_record(thing))
        case ShadowStep():
            record = _record(thing)
            return Note(at_s=thing.at_s, kind="shadow", jobs=(thing.job_id,), record=record)
        case TrialStep():
            return Note(at_s=thing.at_s, kind="trial", jobs=(), record=_record(thing))
        case ModeChanged():
            return Note(at_s=thing.at_s, kind="mode", jobs=(), record=_record(thing))
        case DrainBegun():
            told = {"is_on": True, "by": thing.by, "reason": thing.reason}
            return _ordered("drain", thing.at_s, told)
        case DrainEnded():
            return _ordered("drain", thing.at_s, {"is_on": False, "by": thing.by, "reason": ""})
        case Reconfigured():
            told = {"by": thing.by, "changes": list(thing.changes)}
            return _ordered("config", thing.at_s, told)
        case _:
            assert_never(thing)


def note_of_clearing(job: Job, at_s: float) -> Note:
    """That what was kept in the space of a job goes, and why."""
    why = msgspec.to_builtins(job.scratch_unwanted)
    record = {"at_s": at_s, "job_id": job.id, "reason": why}
    return Note(at_s=at_s, kind="scratch", jobs=(job.id,), record=record)


def _record(thing: Evidence | ShadowStep | TrialStep | ModeChanged) -> dict[str, Any]:
    record: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(thing))
    return record


def _ordered(kind: Kind, at_s: float, told: dict[str, Any]) -> Note:
    return Note(at_s=at_s, kind=kind, jobs=(), record={"at_s": at_s, **told})


def note_rows(notes: Iterable[Note]) -> list[NoteRow]:
    """The notes as they are stored, each with whom it concerns."""
    return [
        ((note.at_s, note.kind, msgspec.json.encode(note.record).decode()), sorted(set(note.jobs)))
        for note in notes
    ]


def sample_rows(samples: Iterable[Sample]) -> list[tuple[float, bytes]]:
    """The samples as they are stored."""
    return [(sample.at_s, _encode_sample(sample)) for sample in samples]


def store(
    db: sqlite3.Connection, notes: Sequence[NoteRow], samples: Iterable[tuple[float, bytes]]
) -> None:
    """Append them, within a transaction."""
    first = database.claim_events(db, len(notes))
    query = "INSERT INTO note (at_s, kind, record, event) VALUES (?, ?, ?, ?)"
    for event, (row, job_ids) in enumerate(notes, first):
        seq = db.execute(query, (*row, event)).lastrowid
        db.executemany("INSERT INTO note_job VALUES (?, ?)", [(i, seq) for i in job_ids])
    db.executemany("INSERT OR REPLACE INTO sample VALUES (?, ?)", samples)


def prune(db: sqlite3.Connection, before_s: float, samples_before_s: float) -> None:
    """Remove notes and samples of before these times."""
    [newest] = db.execute("SELECT max(event) FROM note WHERE at_s < ?", (before_s,)).fetchone()
    database.lose_events(db, newest or 0)
    old = "SELECT seq FROM note WHERE at_s < ?"
    db.execute(f"DELETE FROM note_job WHERE seq IN ({old})", (before_s,))  # noqa: S608
    db.execute("DELETE FROM note WHERE at_s < ?", (before_s,))
    db.execute("DELETE FROM sample WHERE at_s < ?", (samples_before_s,))


def notes(
    db: sqlite3.Connection, *, since_s: float, limit: int, job_id: JobId | None, kind: str | None
) -> list[tuple[int | None, Note]]:
    """The newest since then, in order, each with the id of its event (None: it has none)."""
    query = "SELECT seq, at_s, kind, record, event FROM note WHERE at_s >= ?"
    values: list[Any] = [since_s]
    if job_id is not None:
        query += " AND seq IN (SELECT seq FROM note_job WHERE job_id = ?)"
        values.append(job_id)
    if kind is not None:
        query += " AND kind = ?"
        values.append(kind)
    rows = db.execute(query + " ORDER BY seq DESC LIMIT ?", (*values, limit)).fetchall()[::-1]
    return [(event, _note(db, *row)) for *row, event in rows]


def notes_after(db: sqlite3.Connection, event: int, limit: int) -> list[tuple[int, Note]]:
    """The first notes after this event, in order, each with the id of its event."""
    query = "SELECT seq, at_s, kind, record, event FROM note WHERE event > ? ORDER BY event LIMIT ?"
    rows = db.execute(query, (event, limit)).fetchall()
    return [(event, _note(db, *row)) for *row, event in rows]


def _note(db: sqlite3.Connection, seq: int, at_s: float, kind: Kind, record: str) -> Note:
    jobs = _jobs_of(db, seq)
    return Note(at_s=at_s, kind=kind, jobs=jobs, record=msgspec.json.decode(record))


def samples(db: sqlite3.Connection, *, since_s: float, limit: int) -> tuple[Sample, ...]:
    """The first since then, in order."""
    query = "SELECT record FROM sample WHERE at_s >= ? ORDER BY at_s LIMIT ?"
    return tuple(_decode_sample(record) for (record,) in db.execute(query, (since_s, limit)))


def _jobs_of(db: sqlite3.Connection, seq: int) -> tuple[JobId, ...]:
    query = "SELECT job_id FROM note_job WHERE seq = ? ORDER BY job_id"
    return tuple(JobId(job_id) for (job_id,) in db.execute(query, (seq,)))
