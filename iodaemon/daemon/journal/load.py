"""Every query of a journal: what a daemon needs at its start, finished jobs, events, samples."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import starmap
from pathlib import Path
from typing import Any, Final

import msgspec

from iodaemon.core.decision import Lesson
from iodaemon.core.forecast import Trace
from iodaemon.core.job import Job, JobId, JobKind, JobState
from iodaemon.core.lessons import is_kind
from iodaemon.core.sample import Sample
from iodaemon.core.similarity import find_key
from iodaemon.core.state import KEPT_FINISHED
from iodaemon.daemon.journal import schema
from iodaemon.daemon.journal.record import (
    META,
    MOST_REQUESTS,
    BandwidthMinute,
    Event,
    Forgotten,
    JobRow,
    Known,
    Request,
    Restored,
    decode_event,
    decode_jobs,
    named,
)
from iodaemon.errors import Gone, JournalError

_JOBS: Final = "SELECT job_id, uid, spec, record FROM life JOIN job ON job.id = life.job_id"
_EVENTS: Final = "SELECT id, at_s, kind, job_id, record FROM event"
_NEWEST_REQUESTS: Final = """SELECT first_id, jobs, uid, key, digest FROM (
    SELECT *, row_number() OVER (PARTITION BY uid ORDER BY first_id DESC) AS place FROM request)
    WHERE place <= ? ORDER BY first_id"""
"""Of each user."""
_decode_environment: Final = msgspec.json.Decoder(dict[str, str]).decode
_decode_sample: Final = msgspec.msgpack.Decoder(Sample).decode
_decode_lesson: Final = msgspec.json.Decoder(Lesson).decode
_decode_trace: Final = msgspec.json.Decoder(Trace).decode


class JournalReader:
    """Reads a journal on a connection of its own, one query at a time, from any thread.

    Each method raises JournalError where the journal is damaged or closed.
    """

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self._db = db
        self._reading = threading.Lock()

    def close(self) -> None:
        with self._reading:
            self._db.close()

    def restore(self, *, finished: int = KEPT_FINISHED) -> Restored:
        """What a daemon needs to go on, with so many of the newest finished jobs."""
        with self._read() as db:
            return _restore(db, finished)

    def finished(self, job_id: JobId) -> Job | None:
        """The finished job with this id; None: there is none, or it is not finished."""
        return next(iter(self.list_finished(1, first_id=job_id, last_id=job_id)), None)

    def list_finished(
        self,
        limit: int,
        *,
        uid: int | None = None,
        states: Collection[JobState] = (),
        first_id: int | None = None,
        last_id: int | None = None,
        ended_from_s: float | None = None,
        ended_before_s: float | None = None,
        after: tuple[float, int] | None = None,
    ) -> tuple[Job, ...]:
        """Finished jobs, the one that ended last first; what is None or empty does not restrict.

        ``after`` is the end and the id of the job behind which the list goes on.
        """
        tests = {
            "uid =": uid,
            "job_id >=": first_id,
            "job_id <=": last_id,
            "ended_s >=": ended_from_s,
            "ended_s <": ended_before_s,
        }
        query = f"{_JOBS} WHERE ended_s IS NOT NULL"
        query += "".join(f" AND {test} ?" for test, value in tests.items() if value is not None)
        values: list[Any] = [value for value in tests.values() if value is not None]
        if after is not None:
            query += " AND ended_s <= ? AND (ended_s, job_id) < (?, ?)"  # the first: for the index
            values += (after[0], *after)
        if states:
            query += f" AND state IN ({', '.join('?' * len(states))})"
            values += map(str, states)
        query += " ORDER BY ended_s DESC, job_id DESC LIMIT ?"
        with self._read() as db:
            return tuple(decode_jobs(db.execute(query, (*values, limit))))

    def newest_job(self, uid: int) -> int:
        """The highest id among the jobs of this user; 0: there is none."""
        query = "SELECT coalesce(max(id), 0) FROM job WHERE uid = ?"
        with self._read() as db:
            return int(db.execute(query, (uid,)).fetchone()[0])

    def steps(self, job_id: JobId) -> list[Event]:
        """The steps of the job, in order."""
        with self._read() as db:
            rows = db.execute(f"{_EVENTS} WHERE job_id = ? ORDER BY id", (job_id,))
            return list(map(decode_event, rows))

    def minutes(self, job_id: JobId) -> tuple[BandwidthMinute, ...]:
        """What the job moved, one row a minute in which it was measured, in order."""
        with self._read() as db:
            query = "SELECT * FROM usage WHERE job_id = ? ORDER BY minute"
            return tuple(starmap(BandwidthMinute, db.execute(query, (job_id,))))

    def samples(self, *, since_s: float, limit: int) -> tuple[Sample, ...]:
        """The first samples since then, in order."""
        query = "SELECT record FROM sample WHERE at_s >= ? ORDER BY at_s LIMIT ?"
        with self._read() as db:
            rows = db.execute(query, (since_s, limit))
            return tuple(_decode_sample(record) for (record,) in rows)

    def events_since(self, since_s: float, *, limit: int) -> tuple[list[Event], int]:
        """Those of the newest ``limit`` events that were since then, and the newest event's id."""
        with self._read() as db:
            newest = schema.meta(db)["next_event"] - 1
            query = f"{_EVENTS} WHERE id > ? AND at_s >= ? ORDER BY id"
            rows = db.execute(query, (newest - limit, since_s))
            return list(map(decode_event, rows)), newest

    def events_after(self, event: int, *, limit: int) -> list[Event]:
        """The first events after this one, in order.

        Raises:
            Gone: not all of them are in the journal.
        """
        with self._read() as db:
            meta = schema.meta(db)
            gone, newest = meta["events_gone"], meta["next_event"] - 1
            if not gone <= event <= newest:
                raise Gone(
                    f"event {event} is not among those after which all are known ({gone} to "
                    f"{newest}): retention or a restore removed some; ask by time ('iod events "
                    "--since WHEN', since=SECONDS)"
                )
            rows = db.execute(f"{_EVENTS} WHERE id > ? ORDER BY id LIMIT ?", (event, limit))
            return list(map(decode_event, rows))

    def environment(self, environment_id: str) -> dict[str, str] | None:
        with self._read() as db:
            return _environment(db, environment_id)

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one at a time, on one snapshot."""
        with self._reading, schema.spoken(self.path):
            self._db.execute("BEGIN")
            try:
                yield self._db
            except msgspec.DecodeError as e:
                raise JournalError(f"journal {self.path} has a damaged record: {e}") from e
            finally:
                if self._db.in_transaction:
                    self._db.execute("COMMIT")


def unfinished_jobs(db: sqlite3.Connection) -> list[JobRow]:
    return db.execute(f"{_JOBS} WHERE ended_s IS NULL ORDER BY job_id").fetchall()


def count_jobs(db: sqlite3.Connection) -> tuple[int, int]:
    """How many jobs there are, and how many of them have not ended."""
    query = "SELECT count(*), count(*) - count(ended_s) FROM life"
    jobs, unfinished = db.execute(query).fetchone()
    return jobs, unfinished


def _restore(db: sqlite3.Connection, finished: int) -> Restored:
    newest = f"{_JOBS} WHERE ended_s IS NOT NULL ORDER BY ended_s DESC, job_id DESC LIMIT ?"
    rows = [
        *unfinished_jobs(db),
        *db.execute(f"{_JOBS} WHERE holds AND ended_s IS NOT NULL"),
        *db.execute(newest, (finished,)),
    ]
    found = {job.id: job for job in decode_jobs(rows)}
    used = {job.spec.environment_id for job in found.values() if not job.state.is_final}
    environments = {
        key: environment for key in sorted(used) if (environment := _environment(db, key))
    }
    meta = schema.meta(db)
    kept: dict[str, Any] = {}
    for key, kind in META.items():
        if key in meta:
            with named(f"meta {key}"):
                is_record = issubclass(kind, msgspec.Struct)
                kept[key] = (
                    msgspec.json.decode(meta[key], type=kind) if is_record else kind(meta[key])
                )
    with named("an imported run"):
        query = "SELECT record FROM trace ORDER BY imported_s, uid, name, log"
        traces = tuple(_decode_trace(record) for (record,) in db.execute(query))
    with named("a lesson"):
        query = "SELECT kind, record FROM lesson ORDER BY seq"
        lessons = tuple(_lesson(*row) for row in db.execute(query))
    query = "SELECT uid, key, at_s FROM forgotten ORDER BY uid, key"
    forgotten = ((find_key(uid, shown), at_s) for uid, shown, at_s in db.execute(query))
    return Restored(
        jobs=tuple(job for _, job in sorted(found.items())),
        next_id=JobId(meta["next_id"]),
        seed=meta["seed"],
        environments=environments,
        traces=traces,
        forgotten=tuple(Forgotten(key=key, at_s=at_s) for key, at_s in forgotten if key),
        lessons=lessons,
        requests=tuple(starmap(Request, db.execute(_NEWEST_REQUESTS, (MOST_REQUESTS,)))),
        **kept,
    )


def _environment(db: sqlite3.Connection, key: str) -> dict[str, str] | None:
    row = db.execute("SELECT record FROM environment WHERE id = ?", (key,)).fetchone()
    if row is None:
        return None
    with named(f"environment {key}"):
        return _decode_environment(row[0])


def _lesson(kind: str, record: str) -> Known:
    if not is_kind(kind):
        raise ValueError(f"{kind!r} is no kind of jobs")
    return JobKind(kind), _decode_lesson(record)
