"""What was learned of kinds of jobs outlives the daemon, in the order in which it was learned."""

import contextlib
import sqlite3

import pytest
from bench import drive
from builders import counters, sampled
from journals import store

from iodaemon.core.decision import Lesson, RegulationPlan, Suspend
from iodaemon.core.job import JobId, JobKind
from iodaemon.daemon.journal.backup import back_up
from iodaemon.daemon.journal.writer import Journal
from iodaemon.errors import JournalError

KIND, OTHER = JobKind("1000 like:solve *.dat"), JobKind("1000 like:Größe")
LESSON = Lesson(limit=2, too_many=6, gain=2.6, tries=2, at_s=5.0, footprint_bytes=2**31)


def test_what_is_written_is_there_at_the_next_start(journal):
    store(journal, lessons={KIND: LESSON})

    assert ((KIND, LESSON),) == journal.restore().lessons


def test_what_was_learned_last_is_last_however_often(journal):
    store(journal, lessons={KIND: LESSON, OTHER: Lesson(tries=1)})
    store(journal, lessons={KIND: Lesson(tries=2)})

    assert ((OTHER, Lesson(tries=1)), (KIND, Lesson(tries=2))) == journal.restore().lessons


def test_what_goes_is_gone(journal):
    store(journal, lessons={KIND: LESSON, OTHER: LESSON})
    store(journal, lessons={KIND: None})

    assert ((OTHER, LESSON),) == journal.restore().lessons


def test_what_no_daemon_writes_is_refused_by_name(journal, tmp_path):
    store(journal, lessons={KIND: LESSON})
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as db, db:
        db.execute("UPDATE lesson SET kind = 'solve'")

    with pytest.raises(JournalError, match="a lesson: 'solve' is no kind of jobs"):
        journal.restore()


def test_a_copy_of_the_journal_has_it_too(journal, tmp_path):
    store(journal, lessons={KIND: LESSON})
    back_up(tmp_path, tmp_path / "copy.db", replace=False)

    with contextlib.closing(Journal.open(tmp_path / "copy.db")) as copy:
        assert ((KIND, LESSON),) == copy.restore().lessons


def test_a_lesson_holds_up_no_suspension_and_is_written_though_no_job_changes(tmp_path):
    async def scenario(bench):
        await bench.run()
        for at_s in (1.0, 2.0):
            bench.post(sampled(bench.now_s + at_s, {1: counters(0)}))
            await bench.settle()
        with bench.stuck():
            bench.regulation.plan = RegulationPlan(suspends=(JobId(1),), lessons={KIND: LESSON})
            bench.post(sampled(bench.now_s + 3.0, {1: counters(9)}))
            await bench.breathe()

            assert [Suspend] == [type(each) for each in bench.backend.take()]
            assert () == bench.journal.restore().lessons
        bench.regulation.plan = RegulationPlan(lessons={OTHER: LESSON})
        bench.post(sampled(bench.now_s + 4.0, {1: counters(9)}))
        await bench.settle()
        known = [(kind, each.limit) for kind, each in bench.journal.restore().lessons]
        assert [(KIND, 2), (OTHER, 2)] == known

    drive(tmp_path, scenario)
