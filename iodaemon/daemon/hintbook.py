"""The journal's tables of I/O hints: runs that were imported, and keys that were forgotten.

What was learned here is not among them: the finished jobs themselves are its only record.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

import msgspec

from iodaemon.core.signature import Key, find_key
from iodaemon.core.trace import Trace

MOST_TRACES: Final = 10_000
"""Imported runs that are kept; of the user who has most, the one imported first goes."""
TraceRow = tuple[int, str, str, float, str]

_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS trace (
    uid INTEGER NOT NULL, name TEXT NOT NULL, log TEXT NOT NULL, imported_s REAL NOT NULL,
    record TEXT NOT NULL, PRIMARY KEY (uid, name, log)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS forgotten (
    uid INTEGER NOT NULL, key TEXT NOT NULL, at_s REAL NOT NULL,
    PRIMARY KEY (uid, key)) WITHOUT ROWID""",
)
_DROP_SURPLUS: Final = """DELETE FROM trace WHERE (uid, name, log) IN (
    SELECT uid, name, log FROM (
        SELECT uid, name, log, imported_s,
            ROW_NUMBER() OVER (PARTITION BY uid ORDER BY imported_s DESC) AS place FROM trace)
    ORDER BY place DESC, imported_s LIMIT max(0, (SELECT count(*) FROM trace) - ?))"""
"""0.1 s for 10,000 of 20,000; NOT IN those that stay took 7 s."""
_decode: Final = msgspec.json.Decoder(Trace).decode


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """What runs taught of this key until then counts no more."""

    key: Key
    at_s: float


def add_tables(db: sqlite3.Connection) -> None:
    """Make them in a new journal."""
    for statement in _TABLES:
        db.execute(statement)


def trace_rows(traces: Iterable[Trace]) -> list[TraceRow]:
    """The runs as they are stored."""
    return [
        (trace.uid, trace.name, trace.log, trace.imported_s, msgspec.json.encode(trace).decode())
        for trace in traces
    ]


def store(
    db: sqlite3.Connection, traces: Iterable[TraceRow], forgotten: Iterable[Forgotten]
) -> None:
    """Add them, within a transaction; of a run that is there already the later import stays."""
    added = db.executemany("INSERT OR REPLACE INTO trace VALUES (?, ?, ?, ?, ?)", traces)
    if added.rowcount > 0:
        db.execute(_DROP_SURPLUS, (MOST_TRACES,))
    rows = [(each.key.uid, each.key.shown, each.at_s) for each in forgotten]
    db.executemany("INSERT OR REPLACE INTO forgotten VALUES (?, ?, ?)", rows)


def prune(db: sqlite3.Connection, before_s: float) -> None:
    """Remove what was imported or forgotten before: by then nothing that it concerns is left."""
    db.execute("DELETE FROM trace WHERE imported_s < ?", (before_s,))
    db.execute("DELETE FROM forgotten WHERE at_s < ?", (before_s,))


def traces(db: sqlite3.Connection) -> tuple[Trace, ...]:
    """All imported runs, those imported first at the beginning."""
    query = "SELECT record FROM trace ORDER BY imported_s, uid, name, log"
    return tuple(_decode(record) for (record,) in db.execute(query))


def forgotten(db: sqlite3.Connection) -> tuple[Forgotten, ...]:
    """All forgotten keys."""
    rows = db.execute("SELECT uid, key, at_s FROM forgotten ORDER BY uid, key")
    found = ((find_key(uid, shown), at_s) for uid, shown, at_s in rows)
    return tuple(Forgotten(key=key, at_s=at_s) for key, at_s in found if key is not None)
