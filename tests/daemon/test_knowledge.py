"""What was learned is made again from the finished jobs, at once and in the background."""

import asyncio
import sqlite3

import pytest
from builders import MB, job, remembered

from iodaemon.core.forecast import Outlook
from iodaemon.core.job import IoTotals, JobState
from iodaemon.core.meter import Meter
from iodaemon.daemon import knowledge as module
from iodaemon.daemon.journal.record import Batch
from iodaemon.daemon.journal.writer import Journal
from iodaemon.daemon.knowledge import Knowledge

COUNT = 1300


def ended(number):
    return job(
        number,
        state=JobState.COMPLETED,
        at_s=1000.0 + number // 2,  # two end together
        name=f"n{number % 40}",
        run_s=10.0,
        io=IoTotals(read_bytes=number * MB, written_bytes=0),
    )


@pytest.fixture
def journal(tmp_path):
    journal = Journal.open(tmp_path / "journal.db", seed=1)
    journal.write(Batch(jobs=tuple(map(ended, range(1, COUNT + 1)))), lambda _: None)
    journal.flush()
    yield journal
    journal.close()


def recalled(journal, *, finished, now_s=1e9):
    """What is known after the background has done, and how many jobs that took."""
    knowledge = Knowledge()
    knowledge.recall(journal.restore(finished=finished), now_s)
    outlook = Outlook(Meter(), knowledge.recollection)
    return knowledge, asyncio.run(knowledge.learn_the_past(journal, outlook))


def rows(knowledge):
    return {
        row.key: (
            row.expected.runs,
            round(row.expected.confidence, 3),
            round(row.expected.rate_bytes_per_s / MB, 1),
        )
        for row in remembered(knowledge.recollection, 2000.0)
    }


def test_in_the_background_the_same_is_learned_as_at_once(journal):
    at_once, none = recalled(journal, finished=COUNT + 1)
    later, seen = recalled(journal, finished=100)

    assert (0, COUNT - 100) == (none, seen)
    assert rows(at_once) == rows(later)
    assert COUNT == max(runs for runs, *_ in rows(later).values())


def test_only_so_many_jobs_of_the_past_are_looked_through(journal, monkeypatch):
    monkeypatch.setattr(module, "MOST_PAST", 500)

    assert 500 == recalled(journal, finished=100)[1]


def test_a_hint_that_a_waiting_job_has_is_made_anew_by_the_past(journal):
    knowledge = Knowledge()
    knowledge.recall(journal.restore(finished=2), 1e9)
    outlook = Outlook(Meter(), knowledge.recollection)
    waits = job(9999, name="n7", command=("other",), submitted_s=2000.0)
    before = outlook.expected(waits)

    asyncio.run(knowledge.learn_the_past(journal, outlook))

    assert not before.is_known
    assert "name:n7" == outlook.expected(waits).by


def test_no_run_teaches_from_the_future(journal):
    knowledge, _ = recalled(journal, finished=100, now_s=100.0)

    assert 100.0 == max(row.last_s for row in remembered(knowledge.recollection, 100.0))


def test_a_damaged_past_is_no_reason_to_stop(journal, caplog):
    db = sqlite3.connect(journal.path)
    db.execute("UPDATE life SET record = 'x' WHERE job_id = 600")
    db.commit()
    db.close()

    knowledge, seen = recalled(journal, finished=100)

    assert 0 < seen < COUNT
    assert "event=past_unread problem=journal" in caplog.text
    assert rows(knowledge)


def test_an_empty_journal_teaches_nothing(tmp_path):
    journal = Journal.open(tmp_path / "empty.db", seed=1)
    try:
        knowledge, seen = recalled(journal, finished=100)
    finally:
        journal.close()

    assert (0, {}) == (seen, rows(knowledge))
