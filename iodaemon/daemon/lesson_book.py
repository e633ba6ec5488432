"""The journal's table of lessons: what was learned of kinds of jobs (``core.lessons``).

How many there may be is for the core to say, which names what goes; they are in the order in which
they were learned.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from iodaemon.core.decision import Lesson
from iodaemon.core.job import JobKind
from iodaemon.core.lessons import is_kind

Known = tuple[JobKind, Lesson]
"""A kind, and what is known of it."""
LessonRow = tuple[JobKind, str | None]
"""The record of a kind. None: it goes."""

_TABLE: Final = """CREATE TABLE IF NOT EXISTS lesson (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL UNIQUE, record TEXT NOT NULL)"""
_decode: Final = msgspec.json.Decoder(Lesson).decode


def add_table(db: sqlite3.Connection) -> None:
    """Make it in a journal that has none."""
    db.execute(_TABLE)


def lesson_rows(lessons: Mapping[JobKind, Lesson | None]) -> list[LessonRow]:
    """The lessons as they are stored."""
    return [
        (kind, None if lesson is None else msgspec.json.encode(lesson).decode())
        for kind, lesson in lessons.items()
    ]


def store(db: sqlite3.Connection, rows: Iterable[LessonRow]) -> None:
    """Put them in, within a transaction; what is known of a kind already is replaced."""
    for kind, record in rows:
        if record is None:
            db.execute("DELETE FROM lesson WHERE kind = ?", (kind,))
        else:  # replaced, the row gets a new place at the end
            db.execute("INSERT OR REPLACE INTO lesson (kind, record) VALUES (?, ?)", (kind, record))


def lessons(db: sqlite3.Connection) -> tuple[Known, ...]:
    """All of them; what was learned last is at the end.

    Raises:
        msgspec.DecodeError, ValueError: one is damaged.
    """
    rows = db.execute("SELECT kind, record FROM lesson ORDER BY seq")
    return tuple((_checked(kind), _decode(record)) for kind, record in rows)


def _checked(kind: str) -> JobKind:
    if not is_kind(kind):
        raise ValueError(f"{kind!r} is no kind of jobs")
    return JobKind(kind)
