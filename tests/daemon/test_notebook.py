"""Notes and raw samples in a real journal."""

import contextlib

from builders import counters, reason, sample
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import store

from iodaemon.core.decision import Evidence, ShadowStep, Weighed
from iodaemon.core.event import ModeChanged
from iodaemon.core.job import JobId
from iodaemon.core.rule import Mode
from iodaemon.core.sample import JobCounters, NodeCounters, Sample
from iodaemon.daemon.journal.record import Kind, note_of
from iodaemon.daemon.journal.writer import Journal


def write(journal, notes=(), samples=()):
    store(journal, notes=tuple(notes), samples=tuple(samples))


def prune(journal, before_s, **more):
    answers = []
    journal.prune(before_s, answers.append, **more)
    journal.flush()
    assert [None] == answers


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


def test_a_note_comes_back_as_it_was(journal):
    notes = (
        note_of(evidence("suspend", "spared", "resume")),
        shadow(7),
        note_of(ModeChanged(at_s=1.0, mode=Mode.SHADOW, by="ann")),
    )
    write(journal, notes)

    assert notes == every(journal)


def test_notes_are_found_by_time_and_the_newest_are_told(journal):
    write(journal, [shadow(1, 1.0), shadow(2, 2.0), note_of(evidence("suspend", at_s=3.0))])

    assert [2.0, 3.0] == [note.at_s for note in every(journal, since_s=2.0)]
    assert [2.0, 3.0] == [note.at_s for note in every(journal, limit=2)]


def test_the_past_of_a_closed_journal_is_there_again(tmp_path):
    with contextlib.closing(Journal.open(tmp_path / "journal.db")) as journal:
        write(journal, [shadow(1)], [sample(1.0)])

    with contextlib.closing(Journal.open(tmp_path / "journal.db")) as journal:
        assert (shadow(1),) == every(journal)
        assert (sample(1.0),) == journal.samples(since_s=0.0, limit=10)


def test_old_notes_go(journal):
    write(journal, [shadow(1, 1.0), shadow(1, 5.0)])
    prune(journal, 5.0)

    assert [5.0] == [note.at_s for note in every(journal)]


# -- samples -------------------------------------------------------------------------------------


def test_samples_come_in_order_of_time_however_they_were_written(journal):
    write(journal, samples=[sample(3.0), sample(1.0)])
    write(journal, samples=[sample(2.0)])

    found = journal.samples(since_s=1.5, limit=10)
    first = journal.samples(since_s=0.0, limit=2)

    assert [2.0, 3.0] == [each.at_s for each in found]
    assert [1.0, 2.0] == [each.at_s for each in first]


def test_of_two_samples_of_one_time_the_last_counts(journal):
    write(journal, samples=[sample(1.0), sample(1.0, {1: counters(5)})])

    assert (sample(1.0, {1: counters(5)}),) == journal.samples(since_s=0.0, limit=10)


def test_samples_go_by_a_time_of_their_own(journal):
    write(journal, [shadow(1, 5.0)], [sample(1.0), sample(5.0), sample(9.0)])
    prune(journal, 2.0, samples_before_s=5.0)
    left = journal.samples(since_s=0.0, limit=10)
    prune(journal, 9.0)

    assert [5.0, 9.0] == [each.at_s for each in left]
    assert ((), left) == (every(journal), journal.samples(since_s=0.0, limit=10))


def test_to_prune_an_empty_notebook_is_no_fault(journal):
    prune(journal, 1e9)

    assert () == every(journal)


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
        write(journal, notes, samples)

        assert notes == every(journal)
        found = journal.samples(since_s=0.0, limit=10)
        assert tuple(sorted(samples, key=lambda each: each.at_s)) == found


def test_the_kinds_of_notes_are_all_there_are():
    kinds = ("evidence", "shadow", "trial", "scratch", "mode", "drain", "config", "restored")
    assert kinds == Kind.__args__
