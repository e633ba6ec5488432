"""Puts a copy of the journal in the journal's place, with what must not be lost of the old one.

No job runs twice and none that runs is forgotten: what the replaced journal knows of jobs that run
now, and of jobs that had not ended when the copy was made, is taken over from it.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from iodaemon.config import Config
from iodaemon.core.decision import Transition
from iodaemon.core.job import LIVE, Job, JobState, Reason
from iodaemon.core.lifecycle import moved
from iodaemon.daemon.account import user_name
from iodaemon.daemon.journal import load, schema, store
from iodaemon.daemon.journal.backup import (
    COPY,
    CopyNote,
    check_integrity,
    copied,
    opened,
    put_in_place,
)
from iodaemon.daemon.journal.record import decode_jobs, note_row, step_row, told_note
from iodaemon.daemon.journal.schema import error_name, spoken
from iodaemon.daemon.outputs import find_running, find_strangers, highest_job
from iodaemon.daemon.place import describe_holder, note_boot, sync_folder
from iodaemon.errors import IodaemonError, JournalError, NotFound, NotPermitted, RequestError
from iodaemon.socket_path import STATE_LOCK
from iodaemon.supervisor.ledger import Key, read_boot_id

_STOP: Final = {
    True: "systemctl stop iodaemon.socket iodaemon",
    False: "iod stop",
}
_DAMAGED: Final = (
    "SQLITE_CORRUPT",
    "SQLITE_NOTADB",
    "SQLITE_ERROR",
    "SQLITE_IOERR_READ",
    "SQLITE_IOERR_SHORT_READ",
    "SQLITE_IOERR_CORRUPTFS",
)
"""Beginnings of SQLite's names of errors that reading a journal again would give again."""
_UNKNOWN_EVENTS: Final = 2**32
"""More events than a journal nobody can read will have had: 136 years of one a second."""
_LIVE: Final = ", ".join(f"'{state}'" for state in sorted(LIVE))


class Merged(NamedTuple):
    """What a restored journal has from the one that it replaces.

    Attributes:
        told: jobs that are not as the copy had them, with the words for why.
        left: how many jobs only the replaced journal has.
    """

    told: tuple[tuple[str, tuple[int, ...]], ...] = ()
    left: int = 0


class Restored(NamedTuple):
    """What came of it.

    Attributes:
        jobs: how many the journal has now.
        unfinished: how many of them have not ended.
        copied_s: when the copy was made. None: it does not say.
        replaced: where the journal is that was there before. None: there was none.
        unreadable: why nothing could be taken over from that; empty: it could, or there was none.
        strangers: attempts that run and are in no journal any more, with their first pids.
        is_drained: the node is drained, as it was when the copy was made.
    """

    jobs: int
    unfinished: int
    copied_s: float | None
    replaced: Path | None
    unreadable: str
    merged: Merged
    strangers: list[tuple[Key, int]]
    is_drained: bool


def restore(config: Config, source: Path) -> Restored:
    """Check the copy, put it in the journal's place, keep what was there.

    Root reads the copy and what the supervisor knows; the owner of the state directory does the
    rest, so that no link in it leads root anywhere.

    Raises:
        RequestError: a daemon runs on that state directory, or the copy is its journal.
        NotFound, NotPermitted: copy or state directory.
        JournalError: the copy is damaged, or of an unknown version.
        HopelessError: the copy belongs to another backend.
    """
    state, path = Path(config.state_dir), config.journal_path
    if path.exists() and source.exists() and source.samefile(path):
        raise RequestError(f"{source} is the journal itself; name a copy of it")
    with opened(source) as copy, _alone(state, is_system=config.is_system):
        check_integrity(copy, source)
        schema.check(copy, source, backend=config.backend)
        copy.execute("BEGIN")  # it is open and read from here on, whoever may reach its path
        copy.execute("SELECT count(*) FROM sqlite_master").fetchone()
        running = find_running(Path(config.runtime_dir))
        highest = highest_job(config.supervisor_state / "output", running)
        with _as_owner_of(state):
            return _put(copy, source, path, running, highest)


def _put(
    source: sqlite3.Connection,
    source_path: Path,
    path: Path,
    running: list[tuple[Key, int]],
    highest: int,
) -> Restored:
    """Make the new journal beside the one that is there, and give it its name at once."""
    with spoken(source_path, path.parent), copied(source, path) as (part, db):
        unreadable = _fold(path)
        before = None if unreadable or not path.exists() else path
        note = _copy_note(db)
        merged = merge(db, before)
        unfinished = decode_jobs(load.unfinished_jobs(db))
        store.raise_meta(db, next_id=highest + 1)
        # Its records are of more than one journal: what is kept for a time is kept from now on.
        store.store_meta(db, {COPY: None, "passed": None})
        if before is None and (note is None or note.boot_id != read_boot_id()):
            store.store_meta(db, {"anchor_s": None})  # of another boot, it means nothing in this
        next_event = store.store_events(
            db, [_told(source_path, note, merged)], schema.meta(db)["next_event"]
        )
        store.raise_meta(db, next_event=next_event)
        jobs, _ = load.count_jobs(db)
        is_drained = "drain" in schema.meta(db)
        check_integrity(db, source_path)
        db.close()
        with spoken(path):
            if before is None and note is not None and note.boot_id:
                note_boot(path.parent, note.boot_id)
            replaced = _aside(path)
            put_in_place(part, path, replace=True)
    return Restored(
        jobs=jobs,
        unfinished=len(unfinished),
        copied_s=None if note is None else note.at_s,
        replaced=replaced,
        unreadable=unreadable,
        merged=merged,
        strangers=find_strangers(running, unfinished),
        is_drained=is_drained,
    )


@contextmanager
def _alone(state: Path, *, is_system: bool) -> Iterator[None]:
    """Keep every daemon out, as a daemon does."""
    try:
        with _as_owner_of(state):
            lock = os.open(state / STATE_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        raise NotFound(
            f"there is no {state}; install the service, or start the daemon once, and stop it"
        ) from error
    except PermissionError as error:
        raise NotPermitted(f"{state} may not be written: run this as its owner or root") from error
    with open(lock, "r+b", buffering=0):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RequestError(
                f"a daemon runs on {state} ({describe_holder(lock)}); stop it first "
                f"('{_STOP[is_system]}', jobs run on), then restore"
            ) from error
        os.ftruncate(lock, 0)
        with suppress(OSError):  # on a full disk; only who is kept out would read it
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield


def _fold(path: Path) -> str:
    """Make the journal that is there one file, and see that it can be read; why it cannot be.

    Raises:
        JournalError: it is not damaged, and cannot be read now: the disk is full, or another
            process holds it.
    """
    if not path.exists():
        return ""
    try:
        with spoken(path), closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA locking_mode=EXCLUSIVE")  # else it needs room for a -shm file
            schema.check(db, path)
            check_integrity(db, path)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("PRAGMA journal_mode=DELETE")
    except IodaemonError as error:
        name = error_name(error.__cause__)
        if name and not name.startswith(_DAMAGED):
            raise
        return str(error)
    return ""


def _copy_note(db: sqlite3.Connection) -> CopyNote | None:
    text = schema.meta(db).get(COPY)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=CopyNote)
    except msgspec.DecodeError as error:
        raise JournalError(f"the copy has a damaged record: {error}; use another") from error


def _told(
    source: Path, note: CopyNote | None, merged: Merged
) -> tuple[float, str, int | None, str]:
    """The event that tells of the restore."""
    text = f"from {source}"
    if note is not None:
        text += time.strftime(", of %Y-%m-%d %H:%M:%S", time.localtime(note.at_s))
    for words, ids in merged.told:
        text += f"; {words}: {', '.join(map(str, ids))}"
    return note_row(told_note("restored", time.time(), by=user_name(os.getuid()), text=text))


def _aside(path: Path) -> Path | None:
    """Give the journal that is there another name beside its own, with what belongs to it."""
    if not path.exists():
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S")
    replaced = path.with_name(f"{path.name}.replaced-{stamp}")
    number = 1
    while replaced.exists():
        number += 1
        replaced = path.with_name(f"{path.name}.replaced-{stamp}.{number}")
    os.link(path, replaced)  # the disk may have no room for another name
    for suffix in ("-wal", "-shm"):  # only of a damaged one; a new journal must not meet it
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(f"{replaced}{suffix}")
    sync_folder(path.parent)
    return replaced


@contextmanager
def _as_owner_of(directory: Path) -> Iterator[None]:
    """Have the owner's rights inside, and make files of that user; where root works, none else.

    Of the whole process (credentials(7)): not beside other threads.

    Raises:
        OSError: there is no such directory.
    """
    owner = directory.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    groups, gid = os.getgroups(), os.getegid()
    try:
        os.setgroups([owner.st_gid])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


# -- what the replaced journal knows ---------------------------------------------------------------


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
    then = dict(db.execute("SELECT key, value FROM old.meta"))
    newest = max(then.get("next_event", 1), schema.meta(db)["next_event"]) - 1
    for job_id in sorted({*live, *changed}):
        _take(db, job_id)
    _lose_events(db, newest)
    unknown = frozenset(gone)
    for job in decode_jobs(row for row in load.unfinished_jobs(db) if row[0] in unknown):
        _give_up(db, job)
    store.raise_meta(db, next_id=then["next_id"])
    store.store_meta(db, {"anchor_s": then.get("anchor_s")})
    [left] = db.execute(
        "SELECT count(*) FROM old.job WHERE id NOT IN (SELECT id FROM job)"
    ).fetchone()
    db.execute("COMMIT")
    db.execute("DETACH DATABASE old")
    parts = (
        ("taken over because they hold CPUs", live),
        ("had gone on since", tuple(sorted({*changed} - {*live}))),
        ("ended since, how is not known", gone),
    )
    return Merged(tuple((words, ids) for words, ids in parts if ids), left)


def _lose_events(db: sqlite3.Connection, last: int) -> None:
    """Events up to this id count as gone; no new one gets such an id."""
    store.raise_meta(db, events_gone=last, next_event=last + 1)


def _ids(db: sqlite3.Connection, query: str) -> tuple[int, ...]:
    return tuple(sorted(job_id for (job_id,) in db.execute(query)))


def _take(db: sqlite3.Connection, job_id: int) -> None:
    """All that the replaced journal has of a job, in place of what the copy has."""
    store.remove_jobs(db, [job_id])
    for table, column in store.OF_A_JOB.items():
        # An id of an event is that of another one only where the copy is of another journal's life.
        query = f"INSERT OR IGNORE INTO {table} SELECT * FROM old.{table} WHERE {column} = ?"  # noqa: S608
        db.execute(query, (job_id,))
    db.execute(
        "INSERT OR IGNORE INTO environment SELECT * FROM old.environment "
        "WHERE id = (SELECT environment_id FROM old.job WHERE id = ?)",
        (job_id,),
    )


def _give_up(db: sqlite3.Connection, job: Job) -> None:
    """It is not to run again: it waited or ran then, and nobody knows what became of it."""
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
