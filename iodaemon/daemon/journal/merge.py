"""Takes over from the replaced journal what a restored one must know: see ``restore``."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.core.decision import Transition
from iodaemon.core.job import LIVE, JobState, Reason
from iodaemon.core.lifecycle import moved
from iodaemon.daemon.journal import schema, store
from iodaemon.daemon.journal.record import decode_jobs, step_row

_TAKE: Final = """
INSERT INTO job SELECT * FROM old.job WHERE id = ?;
INSERT INTO life SELECT * FROM old.life WHERE job_id = ?;
INSERT OR IGNORE INTO event SELECT * FROM old.event WHERE job_id = ?;
INSERT INTO request SELECT * FROM old.request WHERE first_id = ?;
INSERT INTO usage SELECT * FROM old.usage WHERE job_id = ?;
INSERT OR IGNORE INTO environment
    SELECT * FROM old.environment WHERE id = (SELECT environment_id FROM old.job WHERE id = ?)
"""
"""An id of an event is that of another one only where the copy is of another journal's life."""
_UNKNOWN_EVENTS: Final = 2**32
"""More events than a journal nobody can read will have had: 136 years of one a second."""
_LIVE: Final = ", ".join(f"'{state}'" for state in sorted(LIVE))


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs are not as the copy had them.

    Attributes:
        running: they hold CPUs now, and are known as the replaced journal knew them.
        changed: they had not ended in the copy; the replaced journal knew more of them.
        given_up: they had not ended in the copy, and the replaced journal had forgotten them: they
            ended so long ago that nothing is kept.
        left: how many jobs the replaced journal alone has.
    """

    running: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()
    given_up: tuple[int, ...] = ()
    left: int = 0

    @property
    def told(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """What there is to tell, with the jobs it is told of."""
        parts = (
            ("taken over because they hold CPUs", self.running),
            ("had gone on since", self.changed),
            ("ended since, how is not known", self.given_up),
        )
        return tuple((words, ids) for words, ids in parts if ids)


def merge(db: sqlite3.Connection, before: Path | None) -> Merged:
    """Change the restored journal by what the replaced one knows, in one transaction.

    Who heard events of the replaced journal goes on after its newest one, and no further back:
    not all of them are in the restored one.

    Args:
        db: the copy, of this schema, not in its place yet.
        before: the journal that is replaced, sound, in one file. None: there is none.

    Raises:
        sqlite3.Error: it cannot be written; then close it.
    """
    if before is None:
        _lose_events(db, schema.meta(db)["next_event"] - 1 + _UNKNOWN_EVENTS)
        return Merged()
    db.execute("ATTACH DATABASE ? AS old", (str(before),))
    db.execute("BEGIN")  # not IMMEDIATE: with a lock on both, the commit makes a file more
    merged = _merge(db)
    db.execute("COMMIT")
    db.execute("DETACH DATABASE old")
    return merged


def _merge(db: sqlite3.Connection) -> Merged:
    live = _ids(db, f"SELECT job_id FROM old.life WHERE state IN ({_LIVE})")  # noqa: S608
    changed = _ids(
        db,
        "SELECT job_id FROM life JOIN old.life AS now USING (job_id) "
        "WHERE life.ended_s IS NULL AND now.record <> life.record",
    )
    gone = _ids(
        db,
        "SELECT job_id FROM life WHERE ended_s IS NULL AND job_id NOT IN "
        "(SELECT job_id FROM old.life) "
        "AND job_id < (SELECT value FROM old.meta WHERE key = 'next_id')",
    )
    before = dict(db.execute("SELECT key, value FROM old.meta"))
    newest = max(before.get("next_event", 1), schema.meta(db)["next_event"]) - 1
    for job_id in sorted({*live, *changed}):
        _take(db, job_id)
    _lose_events(db, newest)
    for job_id in gone:
        _give_up(db, job_id)
    store.raise_meta(db, next_id=before["next_id"])
    store.store_meta(db, {"anchor_s": before.get("anchor_s")})
    [left] = db.execute(
        "SELECT count(*) FROM old.job WHERE id NOT IN (SELECT id FROM job)"
    ).fetchone()
    only_changed = tuple(job_id for job_id in changed if job_id not in live)
    return Merged(running=live, changed=only_changed, given_up=gone, left=left)


def _lose_events(db: sqlite3.Connection, last: int) -> None:
    """Events up to this id count as gone; no new one gets such an id."""
    store.raise_meta(db, events_gone=last, next_event=last + 1)


def _ids(db: sqlite3.Connection, query: str) -> tuple[int, ...]:
    return tuple(sorted(job_id for (job_id,) in db.execute(query)))


def _take(db: sqlite3.Connection, job_id: int) -> None:
    """All that the replaced journal has of a job, in place of what the copy has."""
    store.remove_jobs(db, [job_id])
    for query in _TAKE.split(";"):
        db.execute(query, (job_id,))


def _give_up(db: sqlite3.Connection, job_id: int) -> None:
    """It is not to run again: it waited or ran then, and nobody knows what became of it."""
    query = (
        "SELECT job_id, uid, spec, record FROM life JOIN job ON job.id = job_id WHERE job_id = ?"
    )
    [job] = decode_jobs(db.execute(query, (job_id,)))
    to = JobState.LOST if job.is_live else JobState.CANCELLED
    reason = Reason(
        code="Restored",
        text="had not ended when the restored copy was made, and has since; how is not known",
    )
    ended = moved(job, to, time.time(), reason)
    step = Transition(job_id=job.id, at_s=ended.since_s, before=job.state, after=to, reason=reason)
    store.store_jobs(db, [ended], ended.id + 1)
    next_event = store.store_events(db, [step_row(step)], schema.meta(db)["next_event"])
    store.raise_meta(db, next_event=next_event)
