"""The journal on a real disk: what was answered is there, whatever happens."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time

import msgspec
import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import write

from iodaemon.core.decision import Transition
from iodaemon.core.job import Exit, IoTotals, Job, JobId, JobSpec, JobState, Reason
from iodaemon.daemon.journal.record import BandwidthMinute, Batch
from iodaemon.daemon.journal.schema import SCHEMA
from iodaemon.daemon.journal.writer import PRUNE_JOBS, Journal
from iodaemon.errors import JournalError

ENVIRONMENT = {"PATH": "/usr/bin", "NAME": "Größe\n"}


def job(job_id=1, state=JobState.PENDING, *, ended_s=None, uid=1000, env="", **fields):
    if state.is_final and ended_s is None:
        ended_s = 100.0
    return Job(
        id=JobId(job_id),
        spec=JobSpec(command=("true",), environment_id=env),
        uid=uid,
        state=state,
        since_s=1.5,
        submitted_s=1.0,
        ended_s=ended_s,
        **fields,
    )


def step(job_id, after, before=None, at_s=1.0):
    return Transition(job_id=JobId(job_id), at_s=at_s, before=before, after=after)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.db"


def reopened(journal):
    """What the next daemon finds."""
    journal.close()
    again = Journal.open(journal.path)
    try:
        return again.restore()
    finally:
        again.close()


# -- what is kept ----------------------------------------------------------------------------


def test_a_job_is_there_with_all_that_is_known_of_it(journal):
    full = job(
        7,
        JobState.SUSPENDED_IO,
        partition=1,
        slots=(4, 5),
        attempt=2,
        io_hold=True,
        frozen=True,
        run_s=1 / 3,
        reason=Reason(code="IoBound", text="total 61.2 MB/s"),
        exit=Exit(signal=9),
        io=IoTotals(read_bytes=2**40),
    )

    write(journal, jobs=(full,))

    assert (full,) == reopened(journal).jobs


def test_a_job_that_never_was_is_gone_but_its_id_stays_used(journal):
    write(journal, jobs=(job(5),), transitions=(step(5, JobState.PENDING),))
    write(journal, removed=(5,))

    assert journal.steps(5) == []
    restored = reopened(journal)
    assert (restored.jobs, restored.next_id) == ((), 6)


def test_environments_of_unfinished_jobs_are_restored_and_each_is_stored_once(journal):
    jobs = (job(1, env="a"), job(2, JobState.COMPLETED, env="b"))
    write(journal, jobs=jobs, environments={"a": ENVIRONMENT, "b": {"B": "2"}})
    write(journal, jobs=(job(3, env="a"),), environments={"a": {"other": "one"}})

    restored = reopened(journal)

    assert restored.environments == {"a": ENVIRONMENT}


def test_environments_that_nobody_uses_go_when_the_journal_is_opened(journal, path):
    write(journal, jobs=(job(1, env="a"),), environments={"a": ENVIRONMENT, "b": {}})
    kept_while_open = journal.environment("b")
    journal.close()
    again = Journal.open(path)
    found = again.environment("a"), again.environment("b")
    again.close()

    assert kept_while_open == {}
    assert found == (ENVIRONMENT, None)


def test_a_seed_is_of_one_journal_for_its_whole_life(tmp_path):
    seeds = [reopened(Journal.open(tmp_path / name)).seed for name in "aab"]

    assert seeds[0] == seeds[1] != seeds[2]


def test_steps_come_back_in_order(journal):
    first = (step(1, JobState.PENDING), step(2, JobState.PENDING))
    write(journal, transitions=first)
    later = (step(1, JobState.STARTING, JobState.PENDING, 1.0), step(1, JobState.RUNNING))
    write(journal, transitions=later)

    found = tuple(step for _, step in journal.steps(1))

    assert (first[0], *later) == found


def test_minutes_of_one_job_add_up(journal):
    row = BandwidthMinute(job_id=1, minute=28, read_bytes=5, written_bytes=7, seconds=20.0)
    later = BandwidthMinute(job_id=1, minute=29, read_bytes=1, written_bytes=0, seconds=60.0)
    write(journal, minutes=(later, row))
    write(journal, minutes=(row,))

    found = journal.minutes(1)

    twice = BandwidthMinute(job_id=1, minute=28, read_bytes=10, written_bytes=14, seconds=40.0)
    assert (twice, later) == found


# -- finished jobs ----------------------------------------------------------------------------


def test_a_finished_job_is_found_by_its_id(journal):
    done = job(3, JobState.FAILED)
    write(journal, jobs=(done, job(4)))

    assert done == journal.finished(3)
    assert journal.finished(4) is None
    assert journal.finished(5) is None


@pytest.mark.parametrize(
    ("restriction", "expected"),
    [
        ({}, [4, 3, 2, 1]),
        ({"uid": 7}, [4, 2]),
        ({"states": [JobState.FAILED]}, [3]),
        ({"states": (JobState.FAILED, JobState.TIMEOUT)}, [4, 3]),
        ({"first_id": 2, "last_id": 3}, [3, 2]),
        ({"ended_before_s": 30.0}, [2, 1]),
        ({"uid": 7, "ended_before_s": 30.0}, [2]),
        ({"uid": 8}, []),
    ],
)
def test_finished_jobs_are_listed_the_last_first(journal, restriction, expected):
    write(
        journal,
        jobs=(
            job(1, JobState.COMPLETED, ended_s=10.0),
            job(2, JobState.COMPLETED, ended_s=20.0, uid=7),
            job(3, JobState.FAILED, ended_s=30.0),
            job(4, JobState.TIMEOUT, ended_s=40.0, uid=7),
            job(5, JobState.RUNNING),
        ),
    )

    for limit in (10, 1):
        found = journal.list_finished(limit, **restriction)

        assert expected[:limit] == [done.id for done in found]


def test_reading_goes_on_beside_writing_from_any_thread(journal):
    write(journal, jobs=(job(1, JobState.COMPLETED),))
    found = []
    reader = threading.Thread(target=lambda: found.append(journal.finished(1)))
    for number in range(2, 200):
        journal.write(Batch(jobs=(job(number),)), lambda _: None)
    reader.start()
    reader.join()

    assert [done.id for done in found] == [1]


# -- pruning ----------------------------------------------------------------------------------


def test_pruning_removes_old_finished_jobs_and_their_history(journal):
    row = BandwidthMinute(job_id=1, minute=1, read_bytes=1, written_bytes=1, seconds=1.0)
    old, new = job(1, JobState.COMPLETED, ended_s=10.0), job(2, JobState.COMPLETED, ended_s=20.0)
    steps = (step(1, JobState.PENDING), step(2, JobState.PENDING))
    write(journal, jobs=(old, new, job(3)), transitions=steps, minutes=(row,))

    journal.prune(20.0)
    journal.flush()

    assert [found.id for found in journal.restore().jobs] == [2, 3]
    assert (journal.steps(1), journal.minutes(1)) == ([], ())
    assert len(journal.steps(2)) == 1


def test_pruning_is_done_in_portions_between_which_others_are_served(journal):
    many = tuple(job(i, JobState.COMPLETED, ended_s=1.0) for i in range(1, 2 * PRUNE_JOBS + 2))
    write(journal, jobs=many)
    order = []

    journal.prune(2.0, lambda _: order.append("pruned"))
    journal.write(Batch(jobs=(job(9999),)), lambda _: order.append("written"))
    while journal.queued:
        journal.flush()

    assert order == ["written", "pruned"]
    assert [found.id for found in journal.restore().jobs] == [9999]


def test_an_environment_in_use_again_survives_the_pruning_of_its_first_job(journal):
    done = job(1, JobState.COMPLETED, ended_s=1.0, env="a")
    write(journal, jobs=(done,), environments={"a": ENVIRONMENT})
    journal.prune(2.0)
    write(journal, jobs=(job(2, env="a"),))  # the daemon knows that "a" is stored

    restored = reopened(journal)

    assert restored.environments == {"a": ENVIRONMENT}


# -- transactions ------------------------------------------------------------------------------


def held_up(path):
    """A lock on the journal that keeps its writer waiting, as another process might."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


def test_all_that_is_queued_becomes_one_transaction(journal, path):
    before = journal.commits
    other = held_up(path)
    journal.write(Batch(jobs=(job(1),)), lambda _: None)
    while not journal.lag_s:
        time.sleep(0.001)
    for number in range(2, 502):
        journal.write(Batch(jobs=(job(number),)), lambda _: None)

    waiting, lag_s = journal.queued, journal.lag_s
    other.execute("COMMIT")
    other.close()
    journal.flush()

    assert waiting == 501
    assert lag_s > 0.0
    assert (journal.queued, journal.lag_s) == (0, 0.0)
    assert journal.commits - before <= 2
    assert len(journal.restore().jobs) == 501


def test_answers_come_in_order_from_the_writers_thread(journal):
    answers = []
    for number in range(1, 101):
        journal.write(
            Batch(jobs=(job(number),)),
            lambda error, n=number: answers.append((n, error, threading.current_thread().name)),
        )
    journal.flush()

    assert answers == [(number, None, "journal") for number in range(1, 101)]


def test_a_loop_that_is_closed_does_not_stop_the_writer(journal):
    def nobody_there(_):
        raise RuntimeError("Event loop is closed")

    journal.write(Batch(jobs=(job(1),)), nobody_there)

    assert write(journal, jobs=(job(2),)) is None


def test_a_closed_journal_takes_and_gives_nothing(journal):
    journal.close()
    journal.close()

    with pytest.raises(JournalError, match="is closed"):
        journal.write(Batch(), lambda _: None)
    with pytest.raises(JournalError, match="closed database"):
        journal.finished(1)


JOB_IDS = st.integers(1, 12)
STATES = st.sampled_from([JobState.PENDING, JobState.RUNNING, JobState.COMPLETED])
CHANGE = st.tuples(st.dictionaries(JOB_IDS, STATES, max_size=4), st.sets(JOB_IDS, max_size=1))


@settings(max_examples=tries(50), deadline=None)
@given(changes=st.lists(CHANGE, max_size=12), kept=st.integers(0, 12))
def test_what_is_restored_is_what_was_written(tmp_path_factory, changes, kept):
    journal = Journal.open(tmp_path_factory.mktemp("journal") / "journal.db")
    model, highest = {}, 0
    for clock, (states, removed) in enumerate(changes):
        jobs = [
            job(i, state, ended_s=clock if state.is_final else None) for i, state in states.items()
        ]
        journal.write(Batch(jobs=tuple(jobs), removed=tuple(removed)), lambda _: None)
        model |= {found.id: found for found in jobs}
        highest = max([highest, *states])
        for job_id in removed:
            model.pop(job_id, None)

    journal.flush()
    restored = journal.restore(finished=kept)

    journal.close()
    finished = [found for found in model.values() if found.state.is_final]
    finished.sort(key=lambda found: (-found.ended_s, -found.id))
    expected = [found for found in model.values() if not found.state.is_final] + finished[:kept]
    assert tuple(sorted(expected, key=lambda found: found.id)) == restored.jobs
    assert restored.next_id == highest + 1


# -- crashes -----------------------------------------------------------------------------------

WRITER = """
import os, sys
from pathlib import Path
from iodaemon.core.job import Job, JobSpec, JobState
from iodaemon.daemon.journal.record import Batch
from iodaemon.daemon.journal.writer import Journal

journal = Journal.open(Path(sys.argv[1]))
first = journal.restore().next_id
for number in range(first, first + 100_000):
    job = Job(id=number, spec=JobSpec(command=("true",)), uid=0, state=JobState.PENDING,
              since_s=0.0, submitted_s=0.0)
    def done(error, number=number):
        assert error is None, error
        os.write(1, b"%d\\n" % number)
    journal.write(Batch(jobs=(job,)), done)
    while journal.queued > 20:
        pass
"""


def test_what_was_answered_survives_a_kill(path):
    answered = []
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE
        ) as child:
            answered += [int(child.stdout.readline()) for _ in range(300)]
            child.send_signal(signal.SIGKILL)
            answered += [int(line) for line in child.stdout.read().splitlines()]
        journal = Journal.open(path)
        restored = journal.restore()
        journal.close()

        assert set(answered) <= {found.id for found in restored.jobs}
        assert restored.next_id > max(answered)


# -- a disk that does not take it -----------------------------------------------------------------

FULL = """
import resource, sys
from pathlib import Path
from iodaemon.core.job import Job, JobSpec, JobState
from iodaemon.daemon.journal.record import Batch
from iodaemon.daemon.journal.writer import Journal

def write(number, size):
    job = Job(id=number, spec=JobSpec(command=("x" * size,)), uid=0, state=JobState.PENDING,
              since_s=0.0, submitted_s=0.0)
    answers = []
    journal.write(Batch(jobs=(job,)), answers.append)
    journal.flush()
    print(number, answers[0], flush=True)

journal = Journal.open(Path(sys.argv[1]))
write(1, 10)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
write(2, 1_000_000)
write(3, 10)
write(4, 1_000_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
write(5, 1_000_000)
print("jobs", [job.id for job in journal.restore().jobs], journal.restore().next_id)
journal.close()
"""


def test_a_disk_that_refuses_a_batch_refuses_only_that(path):
    child = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True
    )

    lines = child.stdout.splitlines()
    assert [line.split()[:2] for line in (lines[0], lines[2], lines[4])] == [
        ["1", "None"],
        ["3", "None"],
        ["5", "None"],
    ]
    for line in (lines[1], lines[3]):
        assert f"journal {path}: " in line
        assert "; free some space there" in line
    assert lines[5:] == ["jobs [1, 3, 5] 6"]


def test_an_id_that_could_not_be_written_is_not_given_out_again(journal, path):
    journal._writer.execute("PRAGMA max_page_count = 20")  # a full disk, as SQLite sees it
    big = JobSpec(command=("x" * 1_000_000,))

    refused = write(journal, jobs=(msgspec.structs.replace(job(9), spec=big),))
    accepted = write(journal, jobs=(job(1),))

    restored = reopened(journal)
    assert "no space is left on the file system of" in str(refused)
    assert accepted is None
    assert ([found.id for found in restored.jobs], restored.next_id) == ([1], 10)


def test_all_batches_of_a_refused_transaction_are_told(journal, path):
    journal._writer.execute("PRAGMA max_page_count = 20")
    journal._writer.execute("PRAGMA busy_timeout = 60000")
    big = msgspec.structs.replace(job(2), spec=JobSpec(command=("x" * 1_000_000,)))
    other = held_up(path)
    answers = []
    journal.write(Batch(), lambda _: None)  # keeps the writer busy
    while journal._queue.qsize():
        time.sleep(0.001)
    for found in (job(1), big, job(3)):
        journal.write(Batch(jobs=(found,)), answers.append)

    other.execute("COMMIT")
    other.close()
    journal.flush()

    assert [type(answer) for answer in answers] == [JournalError] * 3
    assert journal.restore().jobs == ()


# -- files that are no journal ----------------------------------------------------------------


def refusal(path):
    with pytest.raises(JournalError) as e:
        Journal.open(path)
    assert "\n" not in str(e.value)
    return str(e.value)


def edit(path, statement):
    other = sqlite3.connect(path)
    other.execute(statement)
    other.commit()
    other.close()


@pytest.mark.parametrize(("schema", "word"), [(0, "older"), (SCHEMA + 1, "newer")])
def test_another_version_is_refused_by_name(journal, path, schema, word):
    journal.close()
    edit(path, f"UPDATE meta SET value = {schema} WHERE key = 'schema'")

    problem = refusal(path)

    assert (
        f"has schema {schema}, {word} than {SCHEMA}, the only one that this iodaemon reads; use"
        in problem
    )


def test_a_damaged_page_is_noticed_when_the_journal_is_opened(journal, path):
    write(journal, jobs=tuple(job(number) for number in range(1, 2000)))
    journal.close()
    with path.open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 8192)

    problem = refusal(path)

    assert "damaged" in problem


def test_a_journal_without_its_counters_is_damaged(journal, path):
    journal.close()
    edit(path, "DELETE FROM meta WHERE key = 'next_id'")

    problem = refusal(path)

    assert "has no next_id; it is damaged" in problem


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    problem = refusal(tmp_path / "gone" / "journal.db")

    assert f"{tmp_path / 'gone'} cannot be used (No such file or directory)" in problem


def test_nobody_else_can_read_the_journal(journal):
    write(journal, jobs=(job(1),))

    names = ("journal.db", "journal.db-wal", "journal.db-shm")
    modes = {stat.S_IMODE(os.stat(journal.path.with_name(name)).st_mode) for name in names}
    assert modes == {0o600}
