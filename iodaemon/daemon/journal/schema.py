"""The journal's tables, its one version, and connections to it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from iodaemon.daemon.journal.copy import sync_folder
from iodaemon.errors import HopelessError, JournalError

SCHEMA: Final = 7
"""Raised with every change that another version could not read or would misread; a journal of
another version is refused."""
BUSY_S: Final = 10.0
"""How long another process that reads the file (a backup) may delay a commit."""
LOG_BYTES: Final = 64 * 2**20
"""The write-ahead log is cut back to this size after a burst (PRAGMA journal_size_limit)."""

_TABLES: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE job (
    id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, environment_id TEXT NOT NULL, spec TEXT NOT NULL);
CREATE TABLE life (
    job_id INTEGER PRIMARY KEY, state TEXT NOT NULL, ended_s REAL, holds INTEGER NOT NULL,
    record TEXT NOT NULL);
CREATE INDEX life_ended ON life (ended_s) WHERE ended_s IS NOT NULL;
CREATE INDEX life_unfinished ON life (job_id) WHERE ended_s IS NULL;
CREATE INDEX life_holds ON life (job_id) WHERE holds;
CREATE TABLE event (
    id INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL, job_id INTEGER,
    record TEXT NOT NULL);
CREATE INDEX event_job ON event (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX event_note ON event (at_s) WHERE job_id IS NULL;
CREATE TABLE request (
    first_id INTEGER PRIMARY KEY, jobs INTEGER NOT NULL, uid INTEGER NOT NULL, key TEXT NOT NULL,
    digest TEXT NOT NULL);
CREATE TABLE usage (
    job_id INTEGER NOT NULL, minute INTEGER NOT NULL, read_bytes INTEGER NOT NULL,
    written_bytes INTEGER NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (job_id, minute)) WITHOUT ROWID;
CREATE TABLE environment (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE sample (at_s REAL PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE lesson (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL UNIQUE, record TEXT NOT NULL);
CREATE TABLE trace (
    uid INTEGER NOT NULL, name TEXT NOT NULL, log TEXT NOT NULL, imported_s REAL NOT NULL,
    record TEXT NOT NULL, PRIMARY KEY (uid, name, log)) WITHOUT ROWID;
CREATE TABLE forgotten (
    uid INTEGER NOT NULL, key TEXT NOT NULL, at_s REAL NOT NULL,
    PRIMARY KEY (uid, key)) WITHOUT ROWID;
"""
_NUMBERS: Final = ("schema", "next_id", "seed", "next_event", "events_gone")


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
    """Check that it is a sound journal; make the tables of a new one.

    Raises:
        JournalError: it is not, or of another version.
        HopelessError: it belongs to another backend.
    """
    problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        problem = " ".join(problem.split())
        raise JournalError(f"journal {path} is damaged ({problem}); move it away or restore a copy")
    if not _tables(db):
        _create(db, path, seed, backend)
        return
    check(db, path)
    check_backend(db, path, backend)
    # Only here: while a daemon runs it may refer again to one that it knows to be stored.
    db.execute("DELETE FROM environment WHERE id NOT IN (SELECT environment_id FROM job)")


def check(db: sqlite3.Connection, path: Path) -> None:
    """Check that it is a journal of this version.

    Raises:
        JournalError: it is not; says what to do.
    """
    if "meta" not in _tables(db):
        raise JournalError(f"{path} is a database, but no journal of iodaemon; move it away")
    schema = _read_number(read_meta(db), "schema")
    if schema == SCHEMA:
        return
    word = "newer" if schema > SCHEMA else "older"
    raise JournalError(
        f"journal {path} has schema {schema}, {word} than {SCHEMA}, the only one that this "
        "iodaemon reads; use the iodaemon that wrote it, or move it away to begin a new one"
    )


def check_backend(db: sqlite3.Connection, path: Path, backend: str) -> None:
    """Check that this backend wrote it.

    Raises:
        HopelessError: it belongs to another backend, which would end its jobs without asking them.
    """
    found = meta(db).get("backend")
    if found != backend:
        raise HopelessError(
            f"journal {path} belongs to a daemon with backend {found!r}, not {backend!r}; give "
            "this one a directory of its own (--state-dir DIR), or start it with "
            f"--backend {found}"
        )


def meta(db: sqlite3.Connection) -> dict[str, Any]:
    """What concerns the journal as a whole, by key.

    Raises:
        JournalError: a number that each journal has is missing.
    """
    values = read_meta(db)
    for key in _NUMBERS:
        _read_number(values, key)
    return values


def _read_number(values: Mapping[str, Any], key: str) -> int:
    value = values.get(key)
    if not isinstance(value, int):
        raise JournalError(f"the journal has no {key}; it is damaged, restore a copy")
    return value


def read_meta(db: sqlite3.Connection) -> dict[str, Any]:
    """The same, unchecked."""
    return dict(db.execute("SELECT key, value FROM meta"))


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}


def _create(db: sqlite3.Connection, path: Path, seed: int, backend: str) -> None:
    db.execute("BEGIN IMMEDIATE")
    for statement in _TABLES.strip().split(";\n"):
        db.execute(statement)
    values = {"schema": SCHEMA, "next_id": 1, "seed": seed, "backend": backend}
    values |= {"next_event": 1, "events_gone": 0}
    db.executemany("INSERT INTO meta VALUES (?, ?)", values.items())
    db.execute("COMMIT")
    sync_folder(path.parent)  # the file's name is to survive a power failure as well
