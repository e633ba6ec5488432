"""The journal's tables of hints."""

import sqlite3

import pytest

from iodaemon.core.trace import Trace
from iodaemon.daemon import hintbook


@pytest.fixture
def db():
    connection = sqlite3.connect(":memory:")
    hintbook.add_tables(connection)
    yield connection
    connection.close()


def trace(uid, number):
    return Trace(
        uid=uid,
        command=("job",),
        log=str(number),
        ended_s=1.0,
        imported_s=float(number),
        run_s=1.0,
        processes=1,
        read_bytes=0,
        written_bytes=0,
        io_s=0.5,
        operations=1,
    )


def test_of_too_many_runs_those_go_of_who_has_most_and_first_the_earliest(db, monkeypatch):
    monkeypatch.setattr(hintbook, "MOST_TRACES", 6)
    few, many = [trace(1, 0), trace(1, 1)], [trace(2, number) for number in range(2, 12)]

    hintbook.store(db, hintbook.trace_rows([*few, *many]), ())

    kept = [(each.uid, each.log) for each in hintbook.traces(db)]
    assert [(1, "0"), (1, "1"), (2, "8"), (2, "9"), (2, "10"), (2, "11")] == kept
