"""The journal's schema: its tables, their version, and the way from an older version to this one.

A journal of an older version is migrated when it is opened, in one transaction: it is of the old
version or of the new one, whenever it is interrupted. What it was stays beside it, as a copy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from iodaemon.daemon import hintbook, lesson_book
from iodaemon.daemon.replica import copy_database, sync_folder
from iodaemon.errors import HopelessError, JournalError

SCHEMA: Final = 5
"""Raised with every change that another version could not read or would misread.

4: ids of events, and jobs with space on tiers of storage.
5: lessons, which an earlier daemon would neither go by nor forget.
"""

_OLDEST: Final = 4
"""That can be migrated."""
_FIRST_BACKEND: Final = "linux"
"""Of journals that do not say which."""

_TABLES: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE job (
    id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, state TEXT NOT NULL, ended_s REAL,
    environment_id TEXT NOT NULL, record TEXT NOT NULL, holds INTEGER NOT NULL DEFAULT 0);
CREATE INDEX job_holds ON job (id) WHERE holds;
CREATE INDEX job_ended ON job (ended_s);
CREATE INDEX job_environment ON job (environment_id);
CREATE TABLE transition (
    seq INTEGER PRIMARY KEY, job_id INTEGER NOT NULL, record TEXT NOT NULL, event INTEGER);
CREATE INDEX transition_job ON transition (job_id);
CREATE INDEX transition_event ON transition (event) WHERE event IS NOT NULL;
CREATE TABLE environment (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE minute (
    job_id INTEGER NOT NULL, minute INTEGER NOT NULL, read_bytes INTEGER NOT NULL,
    written_bytes INTEGER NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (job_id, minute)) WITHOUT ROWID;
CREATE TABLE note (
    seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL, record TEXT NOT NULL,
    event INTEGER);
CREATE INDEX note_at ON note (at_s);
CREATE INDEX note_event ON note (event) WHERE event IS NOT NULL;
CREATE TABLE note_job (
    job_id INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (job_id, seq)) WITHOUT ROWID;
CREATE TABLE sample (at_s REAL PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
"""


def settle(db: sqlite3.Connection, path: Path, *, seed: int, backend: str) -> None:
    """Make a new journal's tables, or bring those of an older one to this version.

    Raises:
        JournalError: it is no journal, or of a newer version.
        HopelessError: it belongs to another backend.
    """
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    if not tables:
        _create(db, path, seed, backend)
        return
    check(db, path)
    check_backend(db, path, backend)
    if meta(db)["schema"] < SCHEMA:
        _migrate(db, path)


def check(db: sqlite3.Connection, path: Path) -> int:
    """The schema of a journal that this version can read or migrate.

    Raises:
        JournalError: it is no journal, or of a version unknown here: says what to do.
    """
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    if "meta" not in tables:
        raise JournalError(f"{path} is a database, but no journal of iodaemon; move it away")
    schema: int = meta(db)["schema"]
    if _OLDEST <= schema <= SCHEMA:
        return schema
    word = "newer" if schema > SCHEMA else "older"
    kept = kept_copy(path, SCHEMA)
    back = f", or go back to what it was before: 'iod restore {kept}'" if kept.exists() else ""
    raise JournalError(
        f"journal {path} has schema {schema}, {word} than {SCHEMA} of this iodaemon; use the "
        f"iodaemon that wrote it{back or ', or move it away'}"
    )


def check_backend(db: sqlite3.Connection, path: Path, backend: str) -> None:
    """A journal of the version before that recorded none is this machine's.

    Raises:
        HopelessError: it belongs to another backend, which would end its jobs without asking them.
    """
    found = meta(db).get("backend", _FIRST_BACKEND)
    if found != backend:
        raise HopelessError(
            f"journal {path} belongs to a daemon with backend {found!r}, not {backend!r}; give "
            "this one a directory of its own (--state-dir DIR), or start it with "
            f"--backend {found}"
        )


def kept_copy(path: Path, schema: int) -> Path:
    """Where a journal is kept as it was before it was migrated from this schema."""
    return path.with_name(f"{path.name}.schema-{schema}")


def meta(db: sqlite3.Connection) -> dict[str, Any]:
    """What the journal says of itself: ``schema``, ``next_id``, ``seed``, perhaps ``backend``.

    Raises:
        JournalError: something of it is missing or no number.
    """
    values: dict[str, Any] = dict(db.execute("SELECT key, value FROM meta"))
    for key, type_ in (("schema", int), ("next_id", int), ("seed", int)):
        if not isinstance(values.get(key), type_):
            raise JournalError(f"the journal has no {key}; it is damaged, restore a copy")
    return values


def _create(db: sqlite3.Connection, path: Path, seed: int, backend: str) -> None:
    db.execute("BEGIN IMMEDIATE")
    for statement in _TABLES.strip().split(";\n"):
        db.execute(statement)
    hintbook.add_tables(db)
    lesson_book.add_table(db)
    values = {"schema": SCHEMA, "next_id": 1, "seed": seed, "backend": backend}
    values |= {"next_event": 1, "events_gone": 0}
    db.executemany("INSERT INTO meta VALUES (?, ?)", values.items())
    db.execute("COMMIT")
    sync_folder(path.parent)  # the file's name is to survive a power failure as well


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    """Before anything is changed, the journal as it is goes into a file beside it."""
    before: int = meta(db)["schema"]
    kept = kept_copy(path, before)
    try:
        copy_database(db, kept, replace=True)
    except (OSError, sqlite3.Error) as error:
        problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise JournalError(
            f"journal {path} has schema {before} and is not migrated: no copy of it can be kept "
            f"in {kept} ({problem}); free some space there, or mend it"
        ) from error
    raise_schema(db)


def raise_schema(db: sqlite3.Connection) -> None:
    """All steps from its schema to this one, in one transaction; nothing is kept of before."""
    db.execute("BEGIN IMMEDIATE")
    try:
        for schema in range(meta(db)["schema"], SCHEMA):
            _STEPS[schema](db)
            db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (schema + 1,))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # most errors have rolled back already
            db.execute("ROLLBACK")
        raise


def _from_4(db: sqlite3.Connection) -> None:
    """Lessons are kept from now on."""
    lesson_book.add_table(db)


_STEPS: Final[Mapping[int, Callable[[sqlite3.Connection], None]]] = MappingProxyType({4: _from_4})
"""From each schema to the next."""
