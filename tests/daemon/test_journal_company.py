"""What nobody waits for is committed together with what comes next, and soon in any case."""

import time

import pytest

from iodaemon.core.decision import Transition
from iodaemon.core.job import Job, JobId, JobSpec, JobState
from iodaemon.daemon.batch import Batch
from iodaemon.daemon.journal import LAZY_S, Journal

BEGUN = (JobState.STARTING, JobState.RUNNING)


@pytest.fixture
def journal(tmp_path):
    journal = Journal.open(tmp_path / "journal.db")
    yield journal
    journal.close()


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
