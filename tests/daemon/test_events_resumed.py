"""Events have ids, by which a stream goes on over restarts; notes and raw samples come back."""

import contextlib
import json
import shutil
import sqlite3
from contextlib import closing

import pytest
from builders import job, reason, sample
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import store

from iodaemon.core.decision import Evidence, ShadowStep, Transition, Weighed
from iodaemon.core.event import ModeChanged
from iodaemon.core.job import JobId, JobState
from iodaemon.core.rule import Mode
from iodaemon.core.sample import JobCounters, NodeCounters, Sample
from iodaemon.daemon.journal.record import Batch, Note, note_of
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


def prune(journal, before_s, **more):
    answers = []
    journal.prune(before_s, answers.append, **more)
    journal.flush()
    assert [None] == answers


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
    later = [event for event in every if event["at_s"] >= every[-1]["at_s"]]
    assert later == past(served, since_s=every[-1]["at_s"])
    assert [] == past(served)  # without a time there is no past


def test_the_header_of_a_stream_that_is_resumed_goes_before_its_since(serve):
    served = serve()
    served.ended()
    every = past(served, since_s=0.0)

    answer = served.ask("GET", "/v1/events?follow=0&since=0", Last_Event_ID=str(every[1]["id"]))

    assert f"Last-Event-ID: {every[1]['id']}" in answer.head
    told = [part for part in answer.body.split(b"\r\n") if part.startswith(b"{")]
    assert every[2:] == [json.loads(line) for part in told for line in part.splitlines()]


def test_behind_what_was_pruned_nothing_is_resumed(journal):
    write(journal, job(1, state=JobState.COMPLETED, at_s=5.0), notes=[note(6.0)])
    write(journal, job(2))
    prune(journal, 5.5)

    with pytest.raises(Gone):
        journal.events_after(0, limit=9)
    assert ([2, 3], [2]) == (after(journal, 1), after(journal, 1, limit=1))
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


def note_down(journal, notes=(), samples=()):
    store(journal, notes=tuple(notes), samples=tuple(samples))


def shadow(job_id, at_s=1.0):
    step = ShadowStep(job_id=JobId(job_id), at_s=at_s, verdict="suspend", reason=reason())
    return note_of(step)


def evidence(*verdicts, at_s=1.0):
    """Jobs 1, 2, ... with these verdicts."""
    rows = tuple(
        Weighed(job_id=JobId(n), rate_bytes_per_s=None, load=1.5, verdict=verdict, why="x")
        for n, verdict in enumerate(verdicts, start=1)
    )
    return Evidence(
        at_s=at_s,
        signal="total of all jobs",
        quantity="bandwidth",
        value=2.0,
        threshold=1.0,
        load=2.0,
        allowed=1.0,
        fits=0.7,
        total_bytes_per_s=2.0,
        jobs=rows,
    )


def every(journal, since_s=0.0, limit=100):
    found, _ = journal.events_since(since_s, limit=limit)
    return tuple(note for _, note in found)


# -- notes ---------------------------------------------------------------------------------------


# -- samples -------------------------------------------------------------------------------------


def test_samples_come_in_order_of_time_however_they_were_written(journal):
    note_down(journal, samples=[sample(3.0), sample(1.0)])
    note_down(journal, samples=[sample(2.0)])

    found = journal.samples(since_s=1.5, limit=10)
    first = journal.samples(since_s=0.0, limit=2)

    assert [2.0, 3.0] == [each.at_s for each in found]
    assert [1.0, 2.0] == [each.at_s for each in first]


def test_samples_go_by_a_time_of_their_own(journal):
    note_down(journal, [shadow(1, 5.0)], [sample(1.0), sample(5.0), sample(9.0)])
    prune(journal, 2.0, samples_before_s=5.0)
    left = journal.samples(since_s=0.0, limit=10)
    prune(journal, 9.0)

    assert [5.0, 9.0] == [each.at_s for each in left]
    assert ((), left) == (every(journal), journal.samples(since_s=0.0, limit=10))


# -- whatever it is, it comes back ---------------------------------------------------------------

numbers = st.none() | st.integers(0, 2**63 - 1)
seconds = st.none() | st.floats(0, 1e12)
TIMES = st.floats(0, 1e12)
JOB_COUNTERS = st.builds(
    JobCounters,
    read_bytes=numbers,
    written_bytes=numbers,
    operations=numbers,
    cpu_s=seconds,
    resident_bytes=numbers,
    io_stall_s=seconds,
    devices=st.none() | st.lists(st.text(max_size=5), max_size=3).map(tuple),
)
SAMPLES = st.builds(
    Sample,
    at_s=TIMES,
    jobs=st.dictionaries(st.integers(1, 2**31), JOB_COUNTERS, max_size=4),
    node=st.builds(NodeCounters, io_stall_s=seconds, dirty_bytes=numbers),
)
EVIDENCE = st.builds(
    evidence, st.sampled_from(["suspend", "resume", "spared", "runs", "waits"]), at_s=TIMES
)
SHADOWS = st.builds(
    ShadowStep,
    job_id=st.integers(1, 2**31),
    at_s=TIMES,
    verdict=st.sampled_from(["suspend", "resume"]),
    reason=st.none() | st.builds(reason, st.text(), st.text()),
    lasted_s=seconds,
)
MODES = st.builds(ModeChanged, at_s=TIMES, mode=st.sampled_from(Mode), by=st.text())


@settings(max_examples=tries(60), deadline=None)
@given(
    things=st.lists(EVIDENCE | SHADOWS | MODES, max_size=6),
    samples=st.lists(SAMPLES, max_size=5, unique_by=lambda each: each.at_s),
)
def test_whatever_is_stored_comes_back_in_order(tmp_path_factory, things, samples):
    path = tmp_path_factory.mktemp("notes") / "journal.db"
    notes = tuple(map(note_of, things))
    with contextlib.closing(Journal.open(path)) as journal:
        note_down(journal, notes, samples)

    with contextlib.closing(Journal.open(path)) as journal:
        assert notes == every(journal)
        found = journal.samples(since_s=0.0, limit=10)
        assert tuple(sorted(samples, key=lambda each: each.at_s)) == found
