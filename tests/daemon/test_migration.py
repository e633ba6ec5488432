"""The journal of the version before is read on: nothing is lost, and it is all or nothing."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from builders import job
from process import daemon, fails

from iodaemon.core.decision import Lesson
from iodaemon.core.job import Job, JobKind, JobState, Reason
from iodaemon.core.platform import Partition, Platform, Slot
from iodaemon.core.recollection import Recollection
from iodaemon.core.rule import Mode
from iodaemon.core.scratch import Share
from iodaemon.core.state import State
from iodaemon.core.work import LENGTH
from iodaemon.daemon.batch import Batch
from iodaemon.daemon.journal import Journal
from iodaemon.daemon.main import _awaken
from iodaemon.daemon.notebook import Note
from iodaemon.daemon.schema import SCHEMA, kept_copy
from iodaemon.errors import JournalError

DATA = Path(__file__).parent.parent / "data"
JOURNALS = sorted(DATA.glob("journal-*.sql"))
NAMES = [path.stem for path in JOURNALS]
BEGAN_S = 1_790_000_000.0

KILLED_AT = """
import os, sqlite3, sys
from pathlib import Path
import iodaemon.daemon.database as database
real, left = database.connect, int(sys.argv[2])
def connect(path):
    db = real(path)
    def count(statement):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
    db.set_trace_callback(count)
    return db
database.connect = connect
from iodaemon.daemon.journal import Journal
Journal.open(Path(sys.argv[1])).close()
"""


def made(folder, source):
    """A journal as the code of its time left it."""
    folder.mkdir(exist_ok=True, mode=0o700)
    path = folder / "journal.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(source.read_text())
        db.execute("PRAGMA journal_mode=WAL")
    path.chmod(0o600)
    return path


def rows(path, table):
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()


def tables(path):
    query = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return [name for (name,) in db.execute(query)]


def content(path):
    return {table: rows(path, table) for table in tables(path)}


def schema_of(path):
    return dict(rows(path, "meta"))["schema"]


@pytest.fixture(params=JOURNALS, ids=NAMES)
def old(request, tmp_path):
    return made(tmp_path / "state", request.param)


def test_no_job_step_minute_note_sample_or_environment_is_lost(old):
    before = content(old)

    Journal.open(old).close()

    after = content(old)
    assert SCHEMA == schema_of(old)
    for table in set(before) - {"meta"}:
        assert before[table] == after[table], table
    assert dict(before["meta"]).items() - {("schema", 4)} <= dict(after["meta"]).items()


def test_every_job_is_what_it_was(old):
    before = {row[0]: msgspec.json.decode(row[5], type=Job) for row in rows(old, "job")}

    journal = Journal.open(old)
    restored = journal.restore()
    journal.close()

    assert set(JobState) == {each.state for each in restored.jobs}
    assert 14 == restored.next_id
    for each in restored.jobs:
        then = before[each.id]
        if each.user_hold:
            cure = f"'iod resume {each.id}'"  # in these journals, a part of the text
            why = Reason(code="Suspended", text="suspended by ann", cure=cure)
            then = msgspec.structs.replace(then, reason=why, user_hold_reason=why)
        assert then == each
    assert {"PATH": "/usr/bin", "NAME": "Größe\n"} == restored.environments["e1"]


def test_what_no_earlier_version_wrote_of_a_job_says_nothing(old):
    journal = Journal.open(old)
    restored = journal.restore()
    journal.close()

    assert {""} == {each.work for each in restored.jobs}
    recollection = Recollection()
    for each in restored.jobs:
        recollection.learn(each)
    assert {None} == {row.sensitivity for row in recollection.remembered(BEGAN_S + 1e3)}


def test_what_a_later_version_adds_to_a_job_is_passed_over(tmp_path):
    """So is what this one added without another schema by the version before it."""
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    ended = job(1, state=JobState.COMPLETED, at_s=5.0, work=" ".join(["1"] * LENGTH))
    journal.write(Batch(jobs=(ended,)), lambda _: None)
    journal.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE job SET record = json_set(record, '$.novel', json('[1, 2]'))")

    journal = Journal.open(path)
    found = journal.restore()
    journal.close()
    assert (ended,) == found.jobs


def test_a_state_made_of_it_holds_together(old):
    journal = Journal.open(old)
    restored = journal.restore()
    journal.close()
    slots = tuple(Slot(id=number, cpus=(number,)) for number in range(8))
    state = State(
        Platform(partitions=(Partition(id=0, slots=slots[:4]), Partition(id=1, slots=slots[4:])))
    )

    state.restore(restored.jobs, restored.next_id)

    state.check()


def test_what_it_lacked_can_be_written_now(old):
    journal = Journal.open(old)
    answers = []
    note = Note(at_s=BEGAN_S + 100, kind="mode", jobs=(7,), record={"mode": "off"})
    kind, lesson = JobKind("1000 like:solve"), Lesson(limit=2, at_s=BEGAN_S)
    batch = Batch(mode=Mode.OFF, notes=(note,), anchor_s=5.0, lessons={kind: lesson})
    journal.write(batch, answers.append)
    journal.flush()
    journal.prune(BEGAN_S + 20.0, answers.append)
    journal.flush()
    found = journal.notes(since_s=BEGAN_S + 50, limit=9)
    restored = journal.restore()
    journal.close()

    assert [None, None] == answers
    assert (note,) == found
    assert [1, 2, *range(7, 14)] == [each.id for each in restored.jobs]
    assert ((kind, lesson),) == restored.lessons


def test_what_it_was_is_kept_beside_it(old):
    before = content(old)

    Journal.open(old).close()

    kept = kept_copy(old, 4)
    assert before == content(kept)
    assert 0o600 == stat.S_IMODE(kept.stat().st_mode)
    assert sorted([old.name, kept.name]) == sorted(os.listdir(old.parent))


def test_a_journal_of_this_version_is_not_copied(tmp_path):
    path = tmp_path / "journal.db"
    Journal.open(path).close()
    Journal.open(path).close()

    assert ["journal.db"] == os.listdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("source", JOURNALS[-1:], ids=NAMES[-1:])
def test_killed_at_any_statement_it_is_the_old_one_or_the_new_one(tmp_path, source):
    old = made(tmp_path / "old", source)
    new = made(tmp_path / "new", source)
    Journal.open(new).close()
    whole = {4: content(old), SCHEMA: content(new)}
    found = []
    for statement in range(1, 60):
        place = tmp_path / str(statement)
        shutil.copytree(old.parent, place)
        ended = subprocess.run(
            [sys.executable, "-c", KILLED_AT, place / "journal.db", str(statement)], check=False
        )
        if ended.returncode == 0:
            break
        assert -9 == ended.returncode
        found.append(schema_of(place / "journal.db"))
        assert whole[found[-1]] == content(place / "journal.db")
        Journal.open(place / "journal.db").close()  # the next daemon goes on from there
        assert whole[SCHEMA] == content(place / "journal.db")

    assert {4, SCHEMA} == set(found)
    assert found == sorted(found)


def test_where_no_copy_can_be_kept_it_stays_as_it_was_and_a_line_says_so(old):
    before = content(old)
    kept_copy(old, 4).mkdir()  # nothing can be put there

    with pytest.raises(JournalError) as caught:
        Journal.open(old)

    assert (
        f"journal {old} has schema 4 and is not migrated: no copy of it can be kept in "
        f"{old}.schema-4 (Is a directory); free some space there, or mend it"
    ) == str(caught.value)
    kept_copy(old, 4).rmdir()
    assert before == content(old)
    assert [] == list(old.parent.glob(".*"))


def test_who_ended_and_still_holds_space_is_found_again_however_long_ago(tmp_path):
    share = Share(tier="fast", disk="/mnt/a", size_bytes=2**30)
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    answers = []
    ended = [
        job(number, state=JobState.COMPLETED, at_s=float(number), shares=(share,) * (number == 1))
        for number in range(1, 5)
    ]
    journal.write(Batch(jobs=tuple(ended)), answers.append)
    journal.flush()
    journal.prune(3.5, answers.append)
    journal.flush()
    found = journal.restore(finished=0)
    journal.write(Batch(jobs=(msgspec.structs.replace(ended[0], shares=()),)), answers.append)
    journal.flush()
    then = journal.restore(finished=0)
    journal.close()

    assert [None] * 3 == answers
    assert [(1, (share,))] == [(each.id, each.shares) for each in found.jobs]
    assert () == then.jobs


def test_a_newer_one_is_refused_with_the_way_back(tmp_path):
    path = tmp_path / "journal.db"
    Journal.open(path).close()
    shutil.copy(path, kept_copy(path, SCHEMA))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (SCHEMA + 1,))

    with pytest.raises(JournalError) as caught:
        Journal.open(path)

    assert (
        f"journal {path} has schema {SCHEMA + 1}, newer than {SCHEMA} of this iodaemon; use the "
        "iodaemon that wrote it, or go back to what it was before: "
        f"'iod restore {path}.schema-{SCHEMA}'"
    ) == str(caught.value)


@pytest.mark.parametrize("source", JOURNALS[-1:], ids=NAMES[-1:])
def test_a_real_daemon_goes_on_from_it(tmp_path, source):
    with closing(sqlite3.connect(made(tmp_path / "state", source))) as db, db:
        db.execute("INSERT INTO meta VALUES ('backend', 'simulated')")  # else it is the machine's

    with daemon(tmp_path / "state", tmp_path / "run") as (client, _):
        [new] = client.submit([{"command": ["compute=0s"]}], {})
        client.wait([new])
        states = {job["id"]: job["state"] for job in client.jobs(all_jobs=True)["jobs"]}
        events = list(client.events(since_s=BEGAN_S - 1, follow=False))

    assert 14 == new
    assert (states[1], states[4], states[7], states[13]) == ("COMPLETED", "TIMEOUT", "LOST", "HELD")
    assert {event["job_id"] for event in events if event["kind"] == "moved"} == set(range(1, 15))


@pytest.mark.parametrize(("schema", "word"), [(9, "newer"), (3, "older")])
def test_a_real_daemon_refuses_another_one_in_a_line(tmp_path, schema, word):
    path = made(tmp_path / "state", JOURNALS[0])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (schema,))

    code, line = fails(tmp_path / "state", tmp_path / "run")

    assert 1 == code
    assert f"has schema {schema}, {word} than {SCHEMA} of this iodaemon; use the iodaemon" in line
    assert schema == schema_of(path)


@pytest.mark.parametrize(("kill_at_s", "expected"), [(1e300, 605.0), (15.0, 15.0), (None, None)])
def test_a_grace_time_of_an_earlier_version_is_no_longer_than_any_now(kill_at_s, expected):
    stopping = job(1, state=JobState.STOPPING, at_s=5.0, kill_at_s=kill_at_s)

    assert expected == _awaken(stopping, longest_grace_s=600.0).kill_at_s
