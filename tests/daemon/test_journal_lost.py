"""A journal whose file is removed, replaced or damaged is refused, never written for nothing."""

import contextlib
import sqlite3

import msgspec
import pytest

from iodaemon.cli import main
from iodaemon.core.job import Job, JobSpec, JobState
from iodaemon.daemon.journal.record import Batch
from iodaemon.daemon.journal.writer import Journal
from iodaemon.errors import JournalError


def job(number):
    spec = JobSpec(command=("true",))
    return Job(id=number, spec=spec, uid=0, state=JobState.PENDING, since_s=0.0, submitted_s=0.0)


UNWRITABLE = Batch(environments={"\ud800": {}})
"""Half of a surrogate pair, which SQLite's module raises a ValueError for."""


def write(journal, *jobs):
    """The answer to one batch."""
    answers = []
    journal.write(Batch(jobs=jobs), answers.append)
    journal.flush(20.0)
    return answers[0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.db"


def edit(path, statement, *values):
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(statement, values)


# -- its files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["journal.db", "journal.db-wal"])
def test_what_is_written_after_its_file_was_removed_is_not_acknowledged(journal, path, name):
    before = write(journal, job(1))
    file = path.with_name(name)
    file.rename(path.with_name("aside"))
    refused = write(journal, job(2))
    path.with_name("aside").rename(file)
    after = write(journal, job(3))

    assert None is before
    assert f"{file} was removed or replaced" in str(refused)
    assert None is after
    assert [1, 3] == [found.id for found in journal.restore().jobs]


def test_what_is_written_after_its_file_was_replaced_is_not_acknowledged(journal, path):
    write(journal, job(1))
    path.unlink()
    path.touch()

    assert "was removed or replaced" in str(write(journal, job(2)))


def test_an_error_that_is_none_of_sqlites_refuses_its_batch_and_no_later_one(journal):
    answers = []
    journal.write(UNWRITABLE, answers.append)
    journal.flush(20.0)
    [refused] = answers
    after = write(journal, job(1))

    assert isinstance(refused, JournalError)
    assert "UnicodeEncodeError" in str(refused)
    assert None is after


def test_one_bad_batch_of_a_transaction_takes_no_other_with_it(journal, path):
    answers = []
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")  # the writer waits with the first
        for batch in (Batch(jobs=(job(1),)), UNWRITABLE, Batch(jobs=(job(2),))):
            journal.write(batch, answers.append)
        other.execute("ROLLBACK")
    journal.flush(20.0)

    assert [True, False, True] == [answer is None for answer in answers]
    assert [1, 2] == [found.id for found in journal.restore().jobs]


# -- attempts that it does not know ----------------------------------------------------------------


@pytest.fixture
def start(tmp_path, capsys):
    """Start a daemon of this machine that is expected to refuse; its exit code and its line."""

    def call():
        words = ["--state-dir", str(tmp_path), "--socket", str(tmp_path / "iod.sock")]
        code = main(["daemon", *words])
        lines = [line for line in capsys.readouterr().err.splitlines() if " level=" not in line]
        return code, lines[0]

    return call


@pytest.mark.parametrize("known", [0, 6])
def test_a_journal_that_does_not_know_the_outputs_of_jobs_is_refused(tmp_path, start, known):
    with contextlib.closing(Journal.open(tmp_path / "journal.db")) as journal:
        for number in range(1, known + 1):
            write(journal, job(number))
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "7.1").write_text("it\n")

    code, line = start()

    assert 78 == code
    assert f"{tmp_path}/journal.db" in line
    assert "7" in line
    assert "iod restore" in line


# -- its records -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("UPDATE life SET record = '{'", "job 1"),
        ("UPDATE life SET record = X'ff'", "job 1"),
        ("UPDATE life SET record = 5", "job 1"),
        ("UPDATE life SET record = '{\"id\": 2}'", "job 1"),
        ("UPDATE job SET spec = '{'", "job 1"),
        ("UPDATE job SET spec = 'null'", "job 1"),
        ("UPDATE environment SET record = '[1]'", "environment e"),
        ("INSERT INTO meta VALUES ('mode', 'sideways')", "meta mode"),
        ("INSERT INTO meta VALUES ('drain', '{')", "meta drain"),
        ("INSERT INTO meta VALUES ('anchor_s', 'noon')", "meta anchor_s"),
        ("INSERT INTO trace VALUES (1, 'n', 'l', 1.0, '{')", "an imported run"),
    ],
)
def test_a_damaged_record_is_refused_by_its_name(path, statement, name):
    with contextlib.closing(Journal.open(path)) as journal:
        one = job(1)
        one = msgspec.structs.replace(
            one, spec=msgspec.structs.replace(one.spec, environment_id="e")
        )
        batch = Batch(jobs=(one,), environments={"e": {"A": "b"}})
        journal.write(batch, lambda _: None)
    edit(path, statement)

    with (
        contextlib.closing(Journal.open(path)) as journal,
        pytest.raises(JournalError, match=f"damaged record: {name}"),
    ):
        journal.restore()
