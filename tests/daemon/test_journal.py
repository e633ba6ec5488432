"""The journal on a real disk: what was answered is there, whatever happens."""

import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading

import builders
import msgspec
import pytest
from bench import drive
from builders import counters, sample, sampled
from exploring import tries
from harness import until
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import store, write

from iodaemon.core.decision import Lesson, RegulationPlan, Suspend, Transition
from iodaemon.core.job import Exit, IoTotals, JobId, JobKind, JobSpec, JobState, Reason
from iodaemon.core.limits import Drain
from iodaemon.core.rule import Mode
from iodaemon.core.similarity import Key
from iodaemon.daemon.journal import writer
from iodaemon.daemon.journal.record import BandwidthMinute, Batch, Forgotten, Note, Request, join
from iodaemon.daemon.journal.writer import PRUNE_JOBS, Journal
from iodaemon.errors import JournalError

ENVIRONMENT = {"PATH": "/usr/bin", "NAME": "Größe\n"}


def job(job_id=1, state=JobState.PENDING, *, ended_s=100.0, env="", **fields):
    at_s = ended_s if state.is_final else 1.5
    return builders.job(job_id, state=state, at_s=at_s, environment_id=env, **fields)


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
    write(journal, jobs=jobs, environments={"a": ENVIRONMENT, "b": {"B": "2"}, "c": {}})
    write(journal, jobs=(job(3, env="a"),), environments={"a": {"other": "one"}})
    kept_while_open = journal.environment("c")
    restored = reopened(journal)
    again = Journal.open(journal.path)
    found = [again.environment(key) for key in "abc"]
    again.close()

    assert restored.environments == {"a": ENVIRONMENT}
    assert kept_while_open == {}
    assert found == [ENVIRONMENT, {"B": "2"}, None]  # nobody uses the last one


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

    assert [1, None, None] == [done and done.id for done in map(journal.finished, (1, 5, 9))]
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


def test_another_process_that_reads_it_meanwhile_takes_nothing_from_it(journal, path):
    """The last to close a database folds its log into it, unless a lock says that it is open."""
    write(journal, jobs=(job(1),))
    reads = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT * FROM job')"
    )
    subprocess.run([sys.executable, "-c", f"{reads}.fetchall(); db.close()", path], check=True)
    write(journal, jobs=(job(2),))

    assert [1, 2] == [found.id for found in reopened(journal).jobs]


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


@contextlib.contextmanager
def held_up(path):
    """The writer waits meanwhile for another process that holds the journal."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_all_that_is_queued_becomes_one_transaction(journal, path):
    before = journal.commits
    with held_up(path):
        journal.write(Batch(jobs=(job(1),)), lambda _: None)
        until(lambda: journal.lag_s, "the first batch, which waits")
        for number in range(2, 502):
            journal.write(Batch(jobs=(job(number),)), lambda _: None)
        waiting = journal.queued
    journal.flush()

    assert waiting == 501
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
        jobs = [job(i, state, ended_s=float(clock)) for i, state in states.items()]
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
    if journal.queued > 20:
        journal.flush()
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
    answers = []
    with held_up(path):
        journal.write(Batch(), lambda _: None)  # keeps the writer busy
        until(lambda: not journal._queue.qsize(), "the batch before them")
        for found in (job(1), big, job(3)):
            journal.write(Batch(jobs=(found,)), answers.append)
    journal.flush()

    assert [type(answer) for answer in answers] == [JournalError] * 3
    assert journal.restore().jobs == ()


UNWRITABLE = Batch(environments={"\ud800": {}})
"""Half of a surrogate pair, which SQLite's module raises a ValueError for."""


def test_one_bad_batch_of_a_transaction_takes_no_other_with_it(journal, path):
    answers = []
    with held_up(path):
        for batch in (Batch(jobs=(job(1),)), UNWRITABLE, Batch(jobs=(job(2),))):
            journal.write(batch, answers.append)
    journal.flush()

    assert [True, False, True] == [answer is None for answer in answers]
    assert isinstance(answers[1], JournalError)
    assert "UnicodeEncodeError" in str(answers[1])
    assert [1, 2] == [found.id for found in journal.restore().jobs]


# -- company -------------------------------------------------------------------------------------


def test_nobody_else_can_read_the_journal(journal):
    write(journal, jobs=(job(1),))

    names = ("journal.db", "journal.db-wal", "journal.db-shm")
    modes = {stat.S_IMODE(os.stat(journal.path.with_name(name)).st_mode) for name in names}
    assert modes == {0o600}


BEGUN = (JobState.STARTING, JobState.RUNNING)


def batch(*steps, jobs=1, **fields):
    transitions = tuple(Transition(job_id=JobId(1), at_s=1.0, before=b, after=a) for b, a in steps)
    return Batch(jobs=tuple(job(n + 1) for n in range(jobs)), transitions=transitions, **fields)


def test_what_can_wait_is_one_transaction_with_what_cannot(journal, monkeypatch):
    monkeypatch.setattr(writer, "LAZY_S", 60.0)
    answers = []
    journal.write(Batch(jobs=(job(1),)), answers.append, can_wait=True)
    journal.write(Batch(jobs=(job(2),)), answers.append)
    journal.flush()

    assert ([None, None], 1) == (answers, journal.commits)


def test_what_can_wait_is_written_soon_without_any_company(journal):
    answers = []
    journal.write(Batch(jobs=(job(1),)), answers.append, can_wait=True)
    until(lambda: answers, "its commit")

    assert [None] == answers


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
    ended = job(1, JobState.COMPLETED)

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


def test_of_what_was_learned_or_switched_the_last_word_counts(journal, monkeypatch):
    """What was learned last is the last, however often it was learned."""
    monkeypatch.setattr(writer, "LAZY_S", 60.0)
    first, other, gone = (JobKind(f"1 like:{name}") for name in ("Größe", "b", "c"))
    drain = Drain(since_s=1.0, by="ann")
    learned = {first: Lesson(limit=2), other: Lesson(limit=4), gone: Lesson()}
    for each in (
        Batch(meta={"mode": Mode.OFF}, lessons=learned),
        Batch(lessons={first: Lesson(limit=3), gone: None}, meta={"drain": drain}),
        Batch(meta={"anchor_s": 5.0, "mode": Mode.SHADOW}),
    ):
        journal.write(each, lambda _: None, can_wait=True)  # one transaction
    journal.flush()
    found = journal.restore()

    assert 1 == journal.commits
    assert ((other, Lesson(limit=4)), (first, Lesson(limit=3))) == found.lessons
    assert (Mode.SHADOW, drain, 5.0) == (found.mode, found.drain, found.anchor_s)
    store(journal, meta={"drain": None})
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


def test_a_lesson_holds_up_no_suspension_and_is_written_though_no_job_changes(tmp_path):
    one, other = JobKind("1 like:a"), JobKind("1 like:b")

    async def scenario(bench):
        await bench.run()
        for at_s in (1.0, 2.0):
            bench.post(sampled(bench.now_s + at_s, {1: counters(0)}))
            await bench.settle()
        with bench.stuck():
            bench.regulation.plan = RegulationPlan(suspends=(JobId(1),), lessons={one: Lesson()})
            bench.post(sampled(bench.now_s + 3.0, {1: counters(9)}))
            await bench.breathe()

            assert [Suspend] == [type(each) for each in bench.backend.take()]
            assert () == bench.journal.restore().lessons
        bench.regulation.plan = RegulationPlan(lessons={other: Lesson()})
        bench.post(sampled(bench.now_s + 4.0, {1: counters(9)}))
        await bench.settle()
        assert [one, other] == [kind for kind, _ in bench.journal.restore().lessons]

    drive(tmp_path, scenario)
