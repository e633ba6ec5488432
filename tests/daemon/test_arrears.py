"""What the disk owes, as one batch."""

from builders import job

from iodaemon.core.decision import Lesson, Transition
from iodaemon.core.job import JobId, JobKind, JobState
from iodaemon.daemon import arrears
from iodaemon.daemon.arrears import Arrears
from iodaemon.daemon.batch import BandwidthMinute, Batch


def step(job_id, after=JobState.RUNNING):
    return Transition(job_id=JobId(job_id), at_s=1.0, before=None, after=after)


def row(job_id):
    return BandwidthMinute(
        job_id=JobId(job_id), minute=1, read_bytes=1, written_bytes=1, seconds=1.0
    )


def batch(job_id, **fields):
    return Batch(jobs=(job(job_id, **fields),), transitions=(step(job_id),), minutes=(row(job_id),))


def test_nothing_is_owed_at_first_nor_once_it_was_taken():
    owed = Arrears()

    assert not owed
    owed.add(batch(1))
    assert owed
    owed.take({}, ())
    assert not owed


def test_the_newest_record_of_a_job_counts_and_history_keeps_its_order():
    owed = Arrears()
    owed.add(Batch(jobs=(job(2), job(1, name="old")), transitions=(step(1, JobState.PENDING),)))
    owed.add(batch(1, name="newer"))
    owed.add(batch(3, name="old"))

    taken = owed.take({JobId(3): job(3, name="in memory")}, ())

    names = [(made.id, made.spec.name) for made in taken.jobs]
    assert [(1, "newer"), (2, ""), (3, "in memory")] == names
    assert [(1, "PENDING"), (1, "RUNNING"), (3, "RUNNING")] == [
        (made.job_id, made.after) for made in taken.transitions
    ]


def test_what_failed_again_is_older_than_what_came_meanwhile():
    owed = Arrears()
    owed.add(batch(1, name="older"))
    taken = owed.take({}, ())
    owed.add(batch(1, name="newer"))
    owed.put_back(taken)

    assert ["newer"] == [made.spec.name for made in owed.take({}, ()).jobs]


def test_of_jobs_that_never_were_nothing_is_written():
    owed = Arrears()
    owed.add(batch(1))
    owed.add(batch(2))
    owed.add(Batch(removed=(JobId(2),)))

    taken = owed.take({}, {JobId(2)})

    assert ([1], [1], [1], (2,)) == (
        [made.id for made in taken.jobs],
        [made.job_id for made in taken.transitions],
        [made.job_id for made in taken.minutes],
        taken.removed,
    )


def test_of_the_history_only_so_much_is_kept(monkeypatch):
    monkeypatch.setattr(arrears, "MOST_STEPS", 3)
    owed = Arrears()
    for number in range(1, 10):
        owed.add(batch(number))

    taken = owed.take({}, ())

    assert [7, 8, 9] == [made.job_id for made in taken.transitions]
    assert 9 == len(taken.jobs)


def test_of_what_was_learned_the_last_word_counts():
    owed, first, other = Arrears(), JobKind("1 like:a"), JobKind("1 like:b")
    owed.add(Batch(lessons={first: Lesson(limit=2), other: Lesson(limit=4)}))
    owed.add(Batch(lessons={first: Lesson(limit=3), other: None}))

    assert {first: Lesson(limit=3), other: None} == owed.take({}, ()).lessons
