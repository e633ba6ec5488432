"""The journal's tables: what is stored how. SQL stands here and nowhere else.

Records are JSON of the core's own structs; what is searched by has a column beside it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from iodaemon.core.job import Job
from iodaemon.daemon import schema
from iodaemon.errors import JournalError

BUSY_S: Final = 10.0
"""How long another process that reads the file (a backup) may hold us up."""
LOG_BYTES: Final = 64 * 2**20
"""What the write-ahead log is cut back to after a burst (PRAGMA journal_size_limit)."""


# -- opening -----------------------------------------------------------------------------------


def connect(path: Path) -> sqlite3.Connection:
    """A connection that commits only when told to and whose commits are durable.

    The file is made for its owner alone (it holds environments); SQLite gives its log and index
    files the same mode.
    """
    with suppress(FileExistsError):
        # Never open and close a file that is there: that would drop the locks of the connections
        # this process has, and another program that closes the journal would delete its log.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_S)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
    except BaseException:
        db.close()
        raise
    return db


def prepare(db: sqlite3.Connection, path: Path, *, seed: int, backend: str) -> None:
    """Check that it is a sound journal; make the tables of a new one, migrate an older one.

    Raises:
        JournalError: it is not.
        HopelessError: it belongs to another backend.
    """
    problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        problem = " ".join(problem.split())
        raise JournalError(f"journal {path} is damaged ({problem}); move it away or restore a copy")
    schema.settle(db, path, seed=seed, backend=backend)
    # Only here: while a daemon runs it may refer again to one that it knows to be stored.
    db.execute("DELETE FROM environment WHERE id NOT IN (SELECT environment_id FROM job)")


# -- writing, always within a transaction -----------------------------------------------------


def store_jobs(db: sqlite3.Connection, rows: Iterable[Sequence[Any]]) -> None:
    """Rows of (id, uid, state, ended_s, environment_id, record, holds), each its job's newest."""
    db.executemany(
        "INSERT INTO job VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "state = excluded.state, ended_s = excluded.ended_s, record = excluded.record, "
        "environment_id = excluded.environment_id, holds = excluded.holds",
        rows,
    )


def job_row(job: Job) -> tuple[Any, ...]:
    """A job as ``store_jobs`` takes it."""
    record = msgspec.json.encode(job).decode()
    holds = int(bool(job.shares))
    return (job.id, job.uid, job.state, job.ended_s, job.spec.environment_id, record, holds)


def add_note(db: sqlite3.Connection, at_s: float, kind: str, record: Mapping[str, Any]) -> None:
    """A note that concerns no single job."""
    text = msgspec.json.encode(record).decode()
    row = (at_s, kind, text, claim_events(db, 1))
    db.execute("INSERT INTO note (at_s, kind, record, event) VALUES (?, ?, ?, ?)", row)


def store_transitions(db: sqlite3.Connection, rows: Sequence[tuple[int, str]]) -> None:
    """Rows of (job id, record), in order."""
    first = claim_events(db, len(rows))
    numbered = [(*row, event) for event, row in enumerate(rows, first)]
    db.executemany("INSERT INTO transition (job_id, record, event) VALUES (?, ?, ?)", numbered)


def claim_events(db: sqlite3.Connection, count: int) -> int:
    """The first of so many new ids of events; an id is used once in a journal's life.

    Rowids would not do: SQLite gives that of a removed last row again.
    """
    first = newest_event(db) + 1
    if count:
        db.execute("UPDATE meta SET value = value + ? WHERE key = 'next_event'", (count,))
    return first


def lose_events(db: sqlite3.Connection, last: int) -> None:
    """Remember that events up to this id may be missing; no new one has such an id."""
    db.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'events_gone'", (last,))
    db.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'next_event'", (last + 1,))


def store_environments(db: sqlite3.Connection, rows: Iterable[tuple[str, str]]) -> None:
    """Rows of (id, record); what is known stays."""
    db.executemany("INSERT INTO environment VALUES (?, ?) ON CONFLICT DO NOTHING", rows)


def store_minutes(db: sqlite3.Connection, rows: Iterable[Sequence[Any]]) -> None:
    """Rows of (job id, minute, read bytes, written bytes, seconds); added to what is there."""
    db.executemany(
        "INSERT INTO minute VALUES (?, ?, ?, ?, ?) ON CONFLICT (job_id, minute) DO UPDATE SET "
        "read_bytes = read_bytes + excluded.read_bytes, "
        "written_bytes = written_bytes + excluded.written_bytes, "
        "seconds = seconds + excluded.seconds",
        rows,
    )


def remove_jobs(db: sqlite3.Connection, job_ids: Iterable[int]) -> None:
    """Remove the jobs and their history."""
    ids = [(job_id,) for job_id in job_ids]
    for table, column in (("job", "id"), ("transition", "job_id"), ("minute", "job_id")):
        db.executemany(f"DELETE FROM {table} WHERE {column} = ?", ids)  # noqa: S608


def raise_next_id(db: sqlite3.Connection, next_id: int) -> None:
    """Remember the next id; it is never lowered."""
    db.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'next_id'", (next_id,))


def store_meta(db: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    """Remember what is said of the journal as a whole; what is None is forgotten."""
    for key, value in values.items():
        if value is None:
            db.execute("DELETE FROM meta WHERE key = ?", (key,))
        else:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def prune(db: sqlite3.Connection, before_s: float, *, limit: int) -> int:
    """Remove the oldest jobs that ended before this time and hold no space; returns how many."""
    query = "SELECT id FROM job WHERE ended_s < ? AND NOT holds ORDER BY ended_s LIMIT ?"
    ids = [job_id for (job_id,) in db.execute(query, (before_s, limit))]
    newest = "SELECT max(event) FROM transition WHERE job_id = ?"
    events = [db.execute(newest, (job_id,)).fetchone()[0] or 0 for job_id in ids]
    lose_events(db, max(events, default=0))
    remove_jobs(db, ids)
    return len(ids)


# -- reading -----------------------------------------------------------------------------------


@contextmanager
def named(record: str) -> Iterator[None]:
    """Name the record that cannot be decoded in the error that says so."""
    try:
        yield
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise msgspec.DecodeError(f"{record}: {error}") from error


JobRow = tuple[int, str]
"""Id and record of a job."""


def unfinished_jobs(db: sqlite3.Connection) -> list[JobRow]:
    """The jobs that are waiting or live."""
    query = "SELECT id, record FROM job WHERE ended_s IS NULL ORDER BY id"
    return db.execute(query).fetchall()


def holding_jobs(db: sqlite3.Connection) -> list[JobRow]:
    """The jobs that ended and still hold space."""
    query = "SELECT id, record FROM job WHERE holds AND ended_s IS NOT NULL ORDER BY id"
    return db.execute(query).fetchall()


def finished_jobs(
    db: sqlite3.Connection,
    *,
    limit: int,
    uid: int | None = None,
    states: Sequence[str] = (),
    first_id: int | None = None,
    last_id: int | None = None,
    ended_from_s: float | None = None,
    ended_before_s: float | None = None,
    after: tuple[float, int] | None = None,
) -> list[JobRow]:
    """Finished jobs, the one that ended last first; None and () do not restrict.

    Args:
        db: open.
        limit: at most so many.
        uid: whose.
        states: how they ended.
        first_id: no lower ids.
        last_id: no higher ids.
        ended_from_s: ended then or later.
        ended_before_s: ended before.
        after: only those that come behind the job which ended then and has this id.
    """
    query = "SELECT id, record FROM job WHERE ended_s IS NOT NULL"
    values: list[Any] = []
    restrictions = (("uid =", uid), ("id >=", first_id), ("id <=", last_id))
    times = (("ended_s >=", ended_from_s), ("ended_s <", ended_before_s))
    for test, value in (*restrictions, *times):
        if value is not None:
            query += f" AND {test} ?"
            values.append(value)
    if after is not None:
        query += " AND ended_s <= ? AND (ended_s, id) < (?, ?)"  # the first part uses the index
        values += (after[0], *after)
    if states:
        query += f" AND state IN ({', '.join('?' * len(states))})"
        values += states
    query += " ORDER BY ended_s DESC, id DESC LIMIT ?"
    return db.execute(query, (*values, limit)).fetchall()


def newest_job(db: sqlite3.Connection, uid: int) -> int | None:
    """The highest id among the jobs of this user; None: there is none."""
    row = db.execute("SELECT id FROM job WHERE uid = ? ORDER BY id DESC LIMIT 1", (uid,)).fetchone()
    return None if row is None else int(row[0])


def count_jobs(db: sqlite3.Connection) -> tuple[int, int]:
    """How many jobs there are, and how many of them have not ended."""
    query = "SELECT count(*), count(*) - count(ended_s) FROM job"
    jobs, unfinished = db.execute(query).fetchone()
    return jobs, unfinished


def transitions(db: sqlite3.Connection, job_id: int) -> list[tuple[int | None, str]]:
    """The steps in the job's life, in order: id of the event (None: it has none), record."""
    query = "SELECT event, record FROM transition WHERE job_id = ? ORDER BY seq"
    return db.execute(query, (job_id,)).fetchall()


def recent_transitions(db: sqlite3.Connection, limit: int) -> list[tuple[int | None, str]]:
    """The newest steps in any job's life, in order: id of the event (None: it has none), record."""
    query = "SELECT event, record FROM transition ORDER BY seq DESC LIMIT ?"
    return db.execute(query, (limit,)).fetchall()[::-1]


def transitions_after(db: sqlite3.Connection, event: int, limit: int) -> list[tuple[int, str]]:
    """The first steps in any job's life after this event, in order: id of the event, record."""
    query = "SELECT event, record FROM transition WHERE event > ? ORDER BY event LIMIT ?"
    return db.execute(query, (event, limit)).fetchall()


def newest_event(db: sqlite3.Connection) -> int:
    """The highest id that an event ever had; 0: there was none."""
    query = "SELECT value FROM meta WHERE key = 'next_event'"
    return int(db.execute(query).fetchone()[0]) - 1


def events_gone(db: sqlite3.Connection) -> int:
    """Events up to this id may be missing; 0: none is."""
    query = "SELECT value FROM meta WHERE key = 'events_gone'"
    return int(db.execute(query).fetchone()[0])


def minutes(db: sqlite3.Connection, job_id: int) -> list[tuple[Any, ...]]:
    """Rows of (job id, minute, read bytes, written bytes, seconds), in order."""
    return db.execute("SELECT * FROM minute WHERE job_id = ? ORDER BY minute", (job_id,)).fetchall()


def environment(db: sqlite3.Connection, environment_id: str) -> str | None:
    """The record with this id."""
    query = "SELECT record FROM environment WHERE id = ?"
    row = db.execute(query, (environment_id,)).fetchone()
    return None if row is None else str(row[0])
