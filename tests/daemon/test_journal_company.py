"""What nobody waits for is committed together with what comes next, and soon in any case."""

import time

import msgspec
import pytest
from builders import sample

from iodaemon.core.decision import Lesson, Transition
from iodaemon.core.job import Job, JobId, JobKind, JobSpec, JobState
from iodaemon.core.limits import Drain
from iodaemon.core.rule import Mode
from iodaemon.core.similarity import Key
from iodaemon.daemon.journal.record import (
    BandwidthMinute,
    Batch,
    Forgotten,
    Note,
    Request,
    join,
)
from iodaemon.daemon.journal.writer import LAZY_S, Journal

BEGUN = (JobState.STARTING, JobState.RUNNING)


def job(number=1):
    return Job(
        id=JobId(number),
        spec=JobSpec(command=("true",)),
        uid=0,
        state=JobState.PENDING,
        since_s=1.0,
        submitted_s=1.0,
    )


def batch(*steps, jobs=1, **fields):
    transitions = tuple(Transition(job_id=JobId(1), at_s=1.0, before=b, after=a) for b, a in steps)
    return Batch(jobs=tuple(job(n + 1) for n in range(jobs)), transitions=transitions, **fields)


def test_what_can_wait_is_one_transaction_with_what_cannot(journal):
    answers = []
    journal.write(Batch(jobs=(job(1),)), answers.append, can_wait=True)
    journal.write(Batch(jobs=(job(2),)), answers.append)
    journal.flush()

    assert ([None, None], 1) == (answers, journal.commits)


def test_what_can_wait_is_written_soon_without_any_company(journal):
    answers = []
    journal.write(Batch(jobs=(job(1),)), answers.append, can_wait=True)
    until_s = time.monotonic() + 100 * LAZY_S
    while not answers and time.monotonic() < until_s:
        time.sleep(LAZY_S / 5)

    assert [None] == answers


def test_closing_writes_what_could_have_waited(tmp_path):
    journal = Journal.open(tmp_path / "journal.db")
    journal.write(Batch(jobs=(job(1),)), lambda _: None, can_wait=True)
    journal.close()
    again = Journal.open(tmp_path / "journal.db")
    found = again.restore().jobs
    again.close()

    assert (job(1),) == found


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (batch(BEGUN), True),
        (batch(BEGUN, BEGUN, jobs=2), True),
        (batch(BEGUN, jobs=2), False),
        (batch((JobState.PENDING, JobState.STARTING)), False),
        (batch(BEGUN, (JobState.RUNNING, JobState.COMPLETED), jobs=2), False),
        (batch(BEGUN, removed=(JobId(7),)), False),
        (batch(jobs=0), False),
    ],
    ids=["begun", "two", "another job", "start", "end", "removed", "nothing"],
)
def test_only_the_news_that_jobs_run_can_wait(written, expected):
    assert expected == written.only_begins


def test_of_several_batches_the_last_record_of_a_job_counts_and_history_keeps_its_order():
    first, later = batch(BEGUN), batch((JobState.RUNNING, JobState.COMPLETED))
    ended = msgspec.structs.replace(job(1), state=JobState.COMPLETED)

    joined = join([first, msgspec.structs.replace(later, jobs=(ended, job(3)))])

    assert (ended, job(3)) == joined.jobs
    assert [JobState.RUNNING, JobState.COMPLETED] == [step.after for step in joined.transitions]


def test_of_a_job_that_a_later_batch_removes_nothing_is_left(journal):
    row = BandwidthMinute(job_id=JobId(1), minute=1, read_bytes=1, written_bytes=1, seconds=1.0)
    request = Request(first_id=JobId(1), jobs=1, uid=0, key="k", digest="d")
    first = batch(BEGUN, jobs=2, minutes=(row,), requests=(request,))

    joined = join([first, Batch(removed=(JobId(1),))])
    journal.write(joined, lambda _: None)
    journal.flush()

    # Not even to be written: a disk that is full refused it.
    assert ((job(2),), (), (), ()) == (
        joined.jobs, joined.transitions, joined.minutes, joined.requests,
    )  # fmt: skip
    assert ([], ()) == (journal.steps(JobId(1)), journal.minutes(JobId(1)))
    assert ((job(2),), ()) == (journal.restore().jobs, journal.restore().requests)


def test_of_what_was_learned_or_switched_the_last_word_counts(journal):
    first, other = JobKind("1 like:a"), JobKind("1 like:b")
    drain = Drain(since_s=1.0, by="ann")
    for each in (
        Batch(meta={"mode": Mode.OFF}, lessons={first: Lesson(limit=2), other: Lesson(limit=4)}),
        Batch(lessons={first: Lesson(limit=3), other: None}, meta={"drain": drain}),
        Batch(meta={"anchor_s": 5.0, "mode": Mode.SHADOW}),
    ):
        journal.write(each, lambda _: None, can_wait=True)  # one transaction
    journal.flush()
    found = journal.restore()

    assert 1 == journal.commits
    assert ((first, Lesson(limit=3)),) == found.lessons
    assert (Mode.SHADOW, drain, 5.0) == (found.mode, found.drain, found.anchor_s)
    journal.write(Batch(meta={"drain": None}), lambda _: None)
    journal.flush()
    assert journal.restore().drain is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("environments", {"a": {"A": "b"}}),
        ("notes", (Note(at_s=1.0, kind="mode", record={}),)),
        ("samples", (sample(1.0),)),
        ("forgotten", (Forgotten(key=Key(0, "program", "x"), at_s=1.0),)),
    ],
)
def test_joining_loses_nothing(name, value):
    assert value == getattr(join([Batch(**{name: value}), Batch()]), name)
    assert value == getattr(join([Batch(), Batch(**{name: value})]), name)
