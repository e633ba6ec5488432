"""Every statement that writes to a journal; always within a transaction of the caller's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from iodaemon.core.job import Job
from iodaemon.daemon.journal.record import Batch, encode, life_row, note_row, step_row

MOST_TRACES: Final = 10_000
"""Imported runs that are kept; beyond, the oldest import of the user who has most goes."""
_DROP_SURPLUS: Final = """DELETE FROM trace WHERE (uid, name, log) IN (
    SELECT uid, name, log FROM (
        SELECT uid, name, log, imported_s,
            ROW_NUMBER() OVER (PARTITION BY uid ORDER BY imported_s DESC) AS place FROM trace)
    ORDER BY place DESC, imported_s LIMIT max(0, (SELECT count(*) FROM trace) - ?))"""
"""0.1 s for 10,000 of 20,000; NOT IN those that stay took 7 s."""
_UPDATE_LIFE: Final = (
    "UPDATE life SET state = ?, ended_s = ?, holds = ?, record = ? WHERE job_id = ?"
)
_INSERT_LIFE: Final = (
    "INSERT INTO life (state, ended_s, holds, record, job_id) VALUES (?, ?, ?, ?, ?)"
)
_ADD_ENVIRONMENT: Final = "INSERT INTO environment VALUES (?, ?) ON CONFLICT DO NOTHING"
_ADD_REQUEST: Final = "INSERT INTO request VALUES (?, ?, ?, ?, ?)"
_PUT_SAMPLE: Final = "INSERT OR REPLACE INTO sample VALUES (?, ?)"
_PUT_TRACE: Final = "INSERT OR REPLACE INTO trace VALUES (?, ?, ?, ?, ?)"
"""Of a run that is there already the later import stays."""
_PUT_FORGOTTEN: Final = "INSERT OR REPLACE INTO forgotten VALUES (?, ?, ?)"
_ADD_MINUTE: Final = (
    "INSERT INTO usage VALUES (?, ?, ?, ?, ?) ON CONFLICT (job_id, minute) DO UPDATE SET "
    "read_bytes = read_bytes + excluded.read_bytes, "
    "written_bytes = written_bytes + excluded.written_bytes, "
    "seconds = seconds + excluded.seconds"
)
OF_A_JOB: Final = {
    "job": "id",
    "life": "job_id",
    "event": "job_id",
    "request": "first_id",
    "usage": "job_id",
}
"""The tables that have rows of one job, and the column that names it."""
_encode_sample: Final = msgspec.msgpack.Encoder(enc_hook=dict).encode
"""Counters may stand in a read-only mapping, which msgspec does not know."""


def store(db: sqlite3.Connection, batch: Batch, next_id: int, next_event: int) -> int:
    """Write the batch.

    Args:
        next_id: no job from this id on is stored yet.
        next_event: id of its first event.

    Returns:
        The id of the next event.
    """
    store_jobs(db, batch.jobs, next_id)
    events = [*map(step_row, batch.transitions), *map(note_row, batch.notes)]
    next_event = store_events(db, events, next_event)
    as_tuple = msgspec.structs.astuple
    rows: dict[str, list[tuple[Any, ...]]] = {
        _ADD_ENVIRONMENT: [(key, encode(dict(env))) for key, env in batch.environments.items()],
        _ADD_MINUTE: [as_tuple(each) for each in batch.minutes],
        _ADD_REQUEST: [as_tuple(each) for each in batch.requests],
        _PUT_SAMPLE: [(each.at_s, _encode_sample(each)) for each in batch.samples],
        _PUT_TRACE: [
            (each.uid, each.name, each.log, each.imported_s, encode(each)) for each in batch.traces
        ],
        _PUT_FORGOTTEN: [(each.key.uid, each.key.shown, each.at_s) for each in batch.forgotten],
    }
    for statement, each in rows.items():
        if each:
            db.executemany(statement, each)
    remove_jobs(db, batch.removed)  # with what was written above of a job that a batch removes
    if batch.traces:
        db.execute(_DROP_SURPLUS, (MOST_TRACES,))
    for kind, lesson in batch.lessons.items():
        if lesson is None:
            db.execute("DELETE FROM lesson WHERE kind = ?", (kind,))
        else:  # a replaced row gets a new place at the end
            row = (kind, encode(lesson))
            db.execute("INSERT OR REPLACE INTO lesson (kind, record) VALUES (?, ?)", row)
    store_meta(db, batch.meta)
    return next_event


def store_jobs(db: sqlite3.Connection, jobs: Iterable[Job], next_id: int) -> None:
    """The newest record of each; what was submitted is written with the first one only."""
    lives, specs = [], []
    for job in jobs:
        row = life_row(job)
        if job.id >= next_id or not db.execute(_UPDATE_LIFE, row).rowcount:
            lives.append(row)
            specs.append((job.id, job.uid, job.spec.environment_id, encode(job.spec)))
    db.executemany(_INSERT_LIFE, lives)
    db.executemany("INSERT INTO job VALUES (?, ?, ?, ?)", specs)


def store_events(
    db: sqlite3.Connection, rows: Iterable[tuple[float, str, int | None, str]], next_event: int
) -> int:
    """Append them, with ids from ``next_event`` on. Returns the next one."""
    numbered = [(event, *row) for event, row in enumerate(rows, next_event)]
    db.executemany("INSERT INTO event VALUES (?, ?, ?, ?, ?)", numbered)
    return next_event + len(numbered)


def remove_jobs(db: sqlite3.Connection, job_ids: Iterable[int]) -> None:
    """Remove jobs with all that is kept of them."""
    rows = [(job_id,) for job_id in job_ids]
    if rows:
        for table, column in OF_A_JOB.items():
            db.executemany(f"DELETE FROM {table} WHERE {column} = ?", rows)  # noqa: S608


def store_meta(db: sqlite3.Connection, values: Mapping[str, object]) -> None:
    """Set these keys; None removes one."""
    for key, value in values.items():
        if value is None:
            db.execute("DELETE FROM meta WHERE key = ?", (key,))
        else:
            plain = value if isinstance(value, int | float | str) else encode(value)
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, plain))


def raise_meta(db: sqlite3.Connection, **values: int) -> None:
    """Raise these numbers to at least so much; none falls."""
    for key, value in values.items():
        db.execute("UPDATE meta SET value = max(value, ?) WHERE key = ?", (value, key))


def prune(db: sqlite3.Connection, before_s: float, samples_before_s: float, *, limit: int) -> int:
    """Remove what is older than these times, and at most ``limit`` jobs; returns how many.

    Jobs go by their end, those that hold space stay. Events up to the newest that is removed count
    as gone.
    """
    query = "SELECT job_id FROM life WHERE ended_s < ? AND NOT holds ORDER BY ended_s LIMIT ?"
    ids = [job_id for (job_id,) in db.execute(query, (before_s, limit))]
    newest = [_newest(db, "job_id = ?", job_id) for job_id in ids]
    newest.append(_newest(db, "job_id IS NULL AND at_s < ?", before_s))
    raise_meta(db, events_gone=max(newest))
    remove_jobs(db, ids)
    db.execute("DELETE FROM event WHERE job_id IS NULL AND at_s < ?", (before_s,))
    db.execute("DELETE FROM sample WHERE at_s < ?", (samples_before_s,))
    db.execute("DELETE FROM trace WHERE imported_s < ?", (before_s,))
    db.execute("DELETE FROM forgotten WHERE at_s < ?", (before_s,))
    return len(ids)


def _newest(db: sqlite3.Connection, test: str, value: float) -> int:
    query = f"SELECT coalesce(max(id), 0) FROM event WHERE {test}"  # noqa: S608
    return int(db.execute(query, (value,)).fetchone()[0])
