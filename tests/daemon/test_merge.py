"""What a restored journal takes over from the one it replaces."""

import contextlib
import shutil
import sqlite3

import builders
import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.core.decision import Transition
from iodaemon.core.job import JobState
from iodaemon.core.platform import Partition, Platform, Slot
from iodaemon.core.state import State
from iodaemon.daemon.journal.backup import back_up
from iodaemon.daemon.journal.record import Batch
from iodaemon.daemon.journal.restore import merge
from iodaemon.daemon.journal.writer import Journal

S = JobState


def job(job_id, state, *, slot=None):
    live = state in (S.STARTING, S.RUNNING)
    fields = {"slots": (job_id if slot is None else slot,)} if live else {}
    attempt = 1 if live or state in (S.COMPLETED, S.FAILED) else 0
    return builders.job(
        job_id, state=state, at_s=2.0, environment_id=f"env{job_id}", attempt=attempt, **fields
    )


def written(path, *batches, prune=()):
    journal = Journal.open(path, seed=1)
    answers = []
    for jobs in batches:
        steps = tuple(Transition(job_id=j.id, at_s=1.0, before=None, after=j.state) for j in jobs)
        environments = {j.spec.environment_id: {"J": str(j.id)} for j in jobs}
        batch = Batch(jobs=tuple(jobs), transitions=steps, environments=environments)
        journal.write(batch, answers.append)
    journal.flush()
    journal.write(Batch(removed=tuple(prune)), answers.append)
    journal.flush()
    journal.close()
    assert set(answers) == {None}
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=DELETE")


def merged(folder, then, now, *, prune=()):
    """The copy had ``then``; the journal went on to ``now``. What a daemon finds, and is told."""
    old = folder / "old.db"
    old.unlink(missing_ok=True)
    new = folder / "new.db"
    written(old, then)
    shutil.copy(old, new)
    written(old, now, prune=prune)
    with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as db:
        told = merge(db, old)
    journal = Journal.open(new)
    try:
        return journal.restore(), told, {j.id: journal.steps(j.id) for j in now}
    finally:
        journal.close()


def test_what_had_not_ended_is_as_it_is_now_and_what_came_later_is_left(tmp_path):
    then = [job(1, S.COMPLETED), job(2, S.PENDING), job(3, S.RUNNING), job(4, S.PENDING)]
    now = [job(2, S.RUNNING), job(3, S.FAILED), job(5, S.RUNNING), job(6, S.PENDING)]

    found, told, steps = merged(tmp_path, then, now)

    states = {each.id: each.state for each in found.jobs}
    assert {
        1: S.COMPLETED,
        2: S.RUNNING,
        3: S.FAILED,
        4: S.PENDING,
        5: S.RUNNING,
    } == states
    assert ([(2, 5), (3,)], 1) == ([ids for _, ids in told.told], told.left)
    assert 7 == found.next_id
    assert {"J": "5"} == found.environments["env5"]
    assert [S.PENDING, S.RUNNING] == [step.after for _, step in steps[2]]


@pytest.mark.parametrize(
    ("state", "end"), [(S.PENDING, S.CANCELLED), (S.RUNNING, S.LOST), (S.STARTING, S.LOST)]
)
def test_what_is_known_no_longer_is_given_up_and_does_not_run_again(tmp_path, state, end):
    found, told, _ = merged(
        tmp_path, [job(1, state)], [job(1, S.COMPLETED), job(2, S.PENDING)], prune=[1]
    )

    [gone] = found.jobs
    assert (end, "Restored") == (gone.state, gone.reason.code)
    assert (("ended since, how is not known", (1,)),) == told.told


STATES = st.sampled_from([S.PENDING, S.STARTING, S.RUNNING, S.COMPLETED, S.FAILED, S.CANCELLED])


@settings(max_examples=tries(40), deadline=None)
@given(st.lists(st.tuples(STATES, STATES, st.booleans(), st.booleans()), min_size=1, max_size=7))
def test_whatever_happened_slots_are_held_once_and_nothing_runs_twice(tmp_path_factory, lives):
    """Of every job: its state in the copy, its state now, whether it is of later, or forgotten."""
    folder = tmp_path_factory.mktemp("merge")
    lives = [
        (then, now if not then.is_final else then, later, forgotten and now.is_final)
        for then, now, later, forgotten in lives
    ]
    ids = range(1, len(lives) + 1)
    slots = dict(zip(ids, reversed(ids), strict=True))
    then = [job(i, life[0]) for i, life in zip(ids, lives, strict=True) if not life[2]]
    now = [job(i, life[1], slot=slots[i]) for i, life in zip(ids, lives, strict=True)]
    prune = [i for i, life in zip(ids, lives, strict=True) if life[3]]

    found, _, _ = merged(folder, then, now, prune=prune)

    state = State(
        Platform(partitions=(Partition(id=0, slots=tuple(Slot(id=i, cpus=(i,)) for i in ids)),))
    )
    state.restore(found.jobs, found.next_id)
    state.check()
    live = {j.id for j in now if j.is_live}
    assert live == {j.id for j in found.jobs if j.is_live}
    ended = {j.id for j in now if j.state.is_final}
    assert not ended & {j.id for j in found.jobs if not j.state.is_final}
    assert found.next_id > len(lives)


def test_a_copy_knows_of_itself_and_a_restored_one_does_not(tmp_path):
    (tmp_path / "boot_id").write_text("a boot\n")
    written(tmp_path / "journal.db", [job(1, S.PENDING)])

    copied = back_up(tmp_path, tmp_path / "copy.db", replace=False)

    assert (1, 1) == (copied.jobs, copied.unfinished)
    with contextlib.closing(sqlite3.connect(tmp_path / "copy.db")) as db:
        assert "a boot" in dict(db.execute("SELECT * FROM meta"))["copy"]
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        assert "copy" not in dict(db.execute("SELECT * FROM meta"))
