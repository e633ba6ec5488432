"""The journal's tables, its one version, connections to it, and what SQLite's errors mean."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from iodaemon.daemon.place import sync_folder
from iodaemon.errors import HopelessError, JournalError
from iodaemon.node.condition import find_disk_error, of_error

SCHEMA: Final = 7
"""Raised with every change that another version could not read or would misread; a journal of
another version is refused."""
BUSY_S: Final = 10.0
"""How long another process that reads the file (a backup) may delay a commit."""
LOG_BYTES: Final = 64 * 2**20
"""The write-ahead log is cut back to this size after a burst (PRAGMA journal_size_limit)."""

CHECKPOINT_PAGES: Final = 4000
"""Pages of the log after which they go into the file (16 MiB): with 1,000, SQLite's own number, a
commit of one job's end took 330 us in place of 290."""

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
        db.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
    except BaseException:
        db.close()
        raise
    return db


def prepare(db: sqlite3.Connection, path: Path, *, seed: int, backend: str) -> None:
    """``check`` it, and that it is sound; make the tables of a new one."""
    problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        problem = " ".join(problem.split())
        raise JournalError(f"journal {path} is damaged ({problem}); move it away or restore a copy")
    if not _tables(db):
        _create(db, path, seed, backend)
        return
    check(db, path, backend=backend)
    # Only here: while a daemon runs it may refer again to one that it knows to be stored.
    db.execute("DELETE FROM environment WHERE id NOT IN (SELECT environment_id FROM job)")


def check(db: sqlite3.Connection, path: Path, *, backend: str | None = None) -> None:
    """Check that it is a journal of this version and, unless None, of this backend.

    Raises:
        JournalError: it is not; says what to do.
        HopelessError: it belongs to another backend, which would end its jobs without asking them.
    """
    if "meta" not in _tables(db):
        raise JournalError(f"{path} is a database, but no journal of iodaemon; move it away")
    schema = _read_meta(db, "schema")["schema"]
    if schema != SCHEMA:
        word = "newer" if schema > SCHEMA else "older"
        raise JournalError(
            f"journal {path} has schema {schema}, {word} than {SCHEMA}, the only one that this "
            "iodaemon reads; use the iodaemon that wrote it, or move it away to begin a new one"
        )
    found = meta(db).get("backend")
    if backend not in (None, found):
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
    return _read_meta(db, *_NUMBERS)


def _read_meta(db: sqlite3.Connection, *numbers: str) -> dict[str, Any]:
    values = dict(db.execute("SELECT key, value FROM meta"))
    for key in numbers:
        if not isinstance(values.get(key), int):
            raise JournalError(f"the journal has no {key}; it is damaged, restore a copy")
    return values


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


# -- errors --------------------------------------------------------------------------------------

_ADVICE: Final = (
    ("SQLITE_READONLY", "it cannot be written; check the permissions of file and folder"),
    ("SQLITE_CANTOPEN", "it cannot be opened; check that the folder exists and is accessible"),
    ("SQLITE_BUSY", "another process holds it; end that process"),
    (
        "SQLITE_IOERR",
        (
            "free some space there; where there is some, the disk fails or became read-only: "
            "see 'dmesg', repair it and mount it writable"
        ),
    ),
    ("SQLITE_CORRUPT", "it is damaged; move it away or restore a copy"),
    ("SQLITE_NOTADB", "it is damaged or no journal; move it away or restore a copy"),
)
"""Beginnings of SQLite's error names (https://www.sqlite.org/rescode.html), what to do."""
_BY_THE_DISK: Final = ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR")
"""Those that a disk which is full or read-only may give as well."""


def error_name(error: BaseException | None) -> str:
    """SQLite's name of the error; empty: it is none of SQLite's."""
    return str(getattr(error, "sqlite_errorname", ""))


def disk_error(folder: Path, error: sqlite3.Error) -> OSError | None:
    """The error of the disk that is behind one of SQLite's about this folder; None: there is none.

    Call it while what was written is still there: removing it may mend the disk.
    """
    name = error_name(error)
    if name.startswith("SQLITE_FULL"):  # also where a few blocks are left
        found = find_disk_error(folder)
        return found or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return find_disk_error(folder) if name.startswith(_BY_THE_DISK) else None


def journal_error(path: Path, error: sqlite3.Error, folder: Path | None = None) -> JournalError:
    """The error in one line that says what to do."""
    place = folder or path.parent
    if (behind := disk_error(place, error)) is not None:
        return JournalError(f"journal {path}: {of_error(place, behind)}")
    advice = [text for start, text in _ADVICE if error_name(error).startswith(start)]
    return JournalError(f"journal {path}: {error}" + (f"; {advice[0]}" if advice else ""))


@contextmanager
def spoken(path: Path, folder: Path | None = None) -> Iterator[None]:
    """Turn what SQLite and the system raise into a JournalError that names this journal.

    ``folder`` is where is written; None: where the journal is.
    """
    try:
        yield
    except sqlite3.Error as e:
        raise journal_error(path, e, folder) from e
    except OSError as e:
        place = Path(e.filename).parent if e.filename else folder or path.parent
        raise JournalError(f"journal {path}: {of_error(place, e)}") from e
