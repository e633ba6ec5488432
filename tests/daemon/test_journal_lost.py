"""A journal whose file is removed, replaced or damaged is refused, never written for nothing."""

import os
import shutil
import sqlite3
from contextlib import closing

import pytest
from builders import job
from journals import write

from iodaemon.cli import main
from iodaemon.daemon.journal.schema import SCHEMA
from iodaemon.daemon.journal.writer import Journal
from iodaemon.errors import JournalError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.db"


# -- its files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["journal.db", "journal.db-wal"])
def test_what_is_written_after_its_file_was_removed_is_not_acknowledged(journal, path, name):
    before = write(journal, jobs=(job(1),))
    file = path.with_name(name)
    file.rename(path.with_name("aside"))
    refused = write(journal, jobs=(job(2),))
    path.with_name("aside").rename(file)
    after = write(journal, jobs=(job(3),))

    assert None is before
    assert f"{file} was removed or replaced" in str(refused)
    assert None is after
    assert [1, 3] == [found.id for found in journal.restore().jobs]


def test_what_is_written_after_its_file_was_replaced_is_not_acknowledged(journal, path):
    write(journal, jobs=(job(1),))
    path.unlink()
    path.touch()

    assert "was removed or replaced" in str(write(journal, jobs=(job(2),)))


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
    with closing(Journal.open(tmp_path / "journal.db")) as journal:
        for number in range(1, known + 1):
            write(journal, jobs=(job(number),))
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "7.1").write_text("it\n")

    code, line = start()

    assert 78 == code
    assert f"{tmp_path}/journal.db" in line
    assert "7" in line
    assert "iod restore" in line


# -- its records -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE life SET record = '{'", "a damaged record: job 1"),
        ("UPDATE life SET record = X'ff'", "a damaged record: job 1"),
        ("UPDATE life SET record = 5", "a damaged record: job 1"),
        ("UPDATE life SET record = '{\"id\": 2}'", "a damaged record: job 1"),
        ("UPDATE job SET spec = '{'", "a damaged record: job 1"),
        ("UPDATE job SET spec = 'null'", "a damaged record: job 1"),
        ("UPDATE environment SET record = '[1]'", "a damaged record: environment e"),
        ("INSERT INTO meta VALUES ('mode', 'sideways')", "a damaged record: meta mode"),
        ("INSERT INTO meta VALUES ('drain', '{')", "a damaged record: meta drain"),
        ("INSERT INTO meta VALUES ('anchor_s', 'noon')", "a damaged record: meta anchor_s"),
        ("INSERT INTO trace VALUES (1, 'n', 'l', 1.0, '{')", "a damaged record: an imported run"),
        ("INSERT INTO lesson VALUES (1, 'solve', '{}')", "a lesson: 'solve' is no kind of jobs"),
        ("UPDATE meta SET value = 0 WHERE key = 'schema'", f"schema 0, older than {SCHEMA}, the"),
        ("UPDATE meta SET value = 99 WHERE key = 'schema'", "schema 99, newer than"),
        ("DELETE FROM meta WHERE key = 'schema'", "has no schema"),
        ("DELETE FROM meta WHERE key = 'next_id'", "has no next_id; it is damaged"),
    ],
)
def test_what_no_daemon_writes_is_refused_by_its_name(path, statement, told):
    with closing(Journal.open(path)) as journal:
        write(journal, jobs=(job(1, environment_id="e"),), environments={"e": {"A": "b"}})
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)

    assert told in refusal(path)


def refusal(path):
    """The line in which a daemon is told that it cannot go on from this journal."""
    with pytest.raises(JournalError) as refused, closing(Journal.open(path)) as journal:
        journal.restore()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def foreign(path):
    path.unlink()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE songs (title)")


def overwrite(path, place, data):
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


HARMS = {
    "garbage": (lambda path: overwrite(path, 0, b"no database at all, this is"), "move it away"),
    "zeros": (lambda path: overwrite(path, 0, bytes(4096)), "move it away"),
    "damaged pages": (lambda path: overwrite(path, 5 * 4096, b"\xff" * 8192), "damaged"),
    "cut": (lambda path: os.truncate(path, 5000), "restore a copy"),
    "foreign": (foreign, "no journal of iodaemon"),
    "a directory": (lambda path: (path.unlink(), path.mkdir()), "it cannot be opened"),
    "no folder": (lambda path: shutil.rmtree(path.parent), "(No such file or directory)"),
}


@pytest.mark.parametrize("name", HARMS)
def test_a_file_that_is_no_journal_is_refused_by_its_path(tmp_path, name):
    path = tmp_path / "folder" / "journal.db"
    path.parent.mkdir()
    with closing(Journal.open(path)) as journal:
        write(journal, jobs=tuple(job(number) for number in range(1, 2000)))
    harm, told = HARMS[name]
    harm(path)

    found = refusal(path)
    assert told in found
    assert str(path) in found
