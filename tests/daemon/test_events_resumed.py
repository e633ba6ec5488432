"""Events have ids: a stream goes on behind any of them, over restarts, or says that it cannot."""

import json
import shutil
import sqlite3
from contextlib import closing

import pytest
from builders import job
from journals import store

from iodaemon.core.decision import Transition
from iodaemon.core.job import JobState
from iodaemon.daemon.journal.record import Batch, Note
from iodaemon.daemon.journal.restore import merge
from iodaemon.daemon.journal.writer import Journal
from iodaemon.errors import Gone


def past(served, **query):
    return list(served.client.events(follow=False, **query))


def ids(events):
    return [event["id"] for event in events]


def write(journal, *jobs, notes=()):
    steps = [
        Transition(job_id=each.id, at_s=each.since_s, before=None, after=each.state)
        for each in jobs
    ]
    store(journal, jobs=jobs, transitions=tuple(steps), notes=tuple(notes))


def note(at_s):
    return Note(at_s=at_s, kind="mode", record={"at_s": at_s, "mode": "off", "by": "ann"})


def prune(journal, before_s):
    journal.prune(before_s)
    journal.flush()


def after(journal, event, limit=1000):
    return [found for found, _ in journal.events_after(event, limit=limit)]


def test_what_follows_an_event_is_told_once_and_in_order(serve):
    served = serve()
    served.ended()
    served.client.switch("shadow")
    served.ended()
    every = past(served, since_s=0.0)

    assert list(range(1, len(every) + 1)) == ids(every)
    for place, event in enumerate(every, 1):
        assert every[place:] == past(served, after=event["id"])
    assert every == past(served, after=0)


def test_the_header_of_a_stream_that_is_resumed_goes_before_its_since(serve):
    served = serve()
    served.ended()
    every = past(served, since_s=0.0)

    answer = served.ask("GET", "/v1/events?follow=0&since=0", Last_Event_ID=str(every[1]["id"]))

    assert f"Last-Event-ID: {every[1]['id']}" in answer.head
    told = [part for part in answer.body.split(b"\r\n") if part.startswith(b"{")]
    assert every[2:] == [json.loads(line) for part in told for line in part.splitlines()]


def test_ids_go_on_after_a_restart(serve):
    served = serve()
    served.ended()
    before = past(served, since_s=0.0)
    served = serve()
    served.ended()

    later = past(served, after=before[-1]["id"])

    assert list(range(len(before) + 1, 2 * len(before) + 1)) == ids(later)


def test_a_follower_reads_pages_however_many_came(journal):
    write(journal, *(job(number) for number in range(1, 8)), notes=[note(1.0), note(2.0)])

    assert [1, 2, 3, 4] == after(journal, 0, limit=4)
    assert [5, 6, 7, 8] == after(journal, 4, limit=4)
    assert [9] == after(journal, 8, limit=4)


def test_behind_what_was_pruned_nothing_is_resumed(journal):
    write(journal, job(1, state=JobState.COMPLETED, at_s=5.0), notes=[note(6.0)])
    write(journal, job(2))
    prune(journal, 5.5)

    with pytest.raises(Gone):
        journal.events_after(0, limit=9)
    assert [2, 3] == after(journal, 1)
    prune(journal, 7.0)
    with pytest.raises(Gone):
        journal.events_after(1, limit=9)
    assert [3] == after(journal, 2)


def test_an_id_is_not_given_again_after_the_newest_event_was_pruned(tmp_path, journal):
    write(journal, job(1, state=JobState.COMPLETED, at_s=5.0), notes=[note(6.0)])
    prune(journal, 10.0)
    journal.close()
    with closing(Journal.open(tmp_path / "journal.db")) as again:
        write(again, job(2))

        assert [3] == after(again, 2)


def test_nothing_is_told_of_a_batch_that_did_not_become_durable(journal, monkeypatch):
    monkeypatch.setattr(journal, "_check_files", lambda: 1 / 0)
    answers = []
    step = Transition(job_id=1, at_s=1.0, before=None, after=JobState.PENDING)
    journal.write(Batch(transitions=(step,)), answers.append)
    journal.flush()
    monkeypatch.undo()

    assert answers != [None]
    assert 0 == journal.newest_event
    write(journal, job(1))
    assert [1] == after(journal, 0)


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_restored_journal_goes_on_behind_the_replaced_one_or_resumes_nothing_of_it(
    tmp_path, is_readable
):
    """The copy has events 1 and 2, the journal went on to 3."""
    path, copy = tmp_path / "journal.db", tmp_path / "copy.db"
    with closing(Journal.open(path)) as journal:
        write(journal, job(1), job(2))
    shutil.copy(path, copy)
    with closing(Journal.open(path)) as journal:
        write(journal, job(3))
    with closing(sqlite3.connect(copy, isolation_level=None)) as db:
        merge(db, path if is_readable else None)
    with closing(Journal.open(copy)) as journal:
        write(journal, job(4))

        if is_readable:
            assert [4] == after(journal, 3)
        for event in [0, 1, 2] if is_readable else range(10):
            with pytest.raises(Gone):
                journal.events_after(event, limit=9)
