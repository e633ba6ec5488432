"""Bandwidth by the minute: every byte is booked once."""

import msgspec
from builders import counters, job, sample
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.core.job import IoTotals, JobId, JobState
from iodaemon.daemon.aggregate import MinuteBook

ONE = JobId(1)


def totals(read_bytes, written_bytes=0):
    return IoTotals(read_bytes=read_bytes, written_bytes=written_bytes)


def take(book, at_s, read_bytes, written_bytes=0, job_id=1):
    return book.take(
        sample(at_s, {job_id: counters(read_bytes, written_bytes)}),
        {job_id: job(job_id, state=JobState.RUNNING)},
    )


def test_a_minute_is_a_row_once_it_is_over():
    book = MinuteBook()
    book.begin(ONE)

    assert [] == take(book, 0.0, 0)
    assert [] == take(book, 59.0, 590, 59)
    [row] = take(book, 61.0, 610, 61)
    assert (1, 0, 610, 61, 61.0) == (
        row.job_id,
        row.minute,
        row.read_bytes,
        row.written_bytes,
        row.seconds,
    )


def test_an_adopted_job_counts_from_its_first_sample():
    book = MinuteBook()
    take(book, 0.0, 1000)
    take(book, 1.0, 1007)
    [row] = book.end(ONE, 2.0, totals(1010))

    assert 10 == row.read_bytes


def test_a_job_that_was_never_sampled_has_one_row():
    book = MinuteBook()
    book.begin(ONE)
    [row] = book.end(ONE, 61.0, totals(7, 8))

    assert (1, 7, 8, 0.0) == (row.minute, row.read_bytes, row.written_bytes, row.seconds)


def test_what_could_not_be_read_once_is_not_counted_twice():
    book = MinuteBook()
    book.begin(ONE)
    take(book, 1.0, 100, 10)
    take(book, 2.0, None, None)
    take(book, 3.0, 150, None)
    [row] = book.end(ONE, 4.0, totals(160, 20))

    assert (160, 20) == (row.read_bytes, row.written_bytes)


def test_an_end_without_totals_keeps_what_was_measured():
    book = MinuteBook()
    book.begin(ONE)
    take(book, 1.0, 100)
    [row] = book.end(ONE, 2.0, IoTotals())

    assert 100 == row.read_bytes


def test_a_forgotten_job_leaves_nothing_behind():
    book = MinuteBook()
    book.begin(ONE)
    take(book, 1.0, 100)
    book.forget(ONE)

    assert not book.knows(ONE)
    assert [] == book.take(sample(100.0, {}), {})


def test_a_sample_taken_while_the_job_ended_is_left_alone():
    book = MinuteBook()
    book.begin(ONE)
    book.end(ONE, 1.0, totals(5))

    assert [] == book.take(sample(2.0, {1: counters(5)}), {})
    assert not book.knows(ONE)


@settings(max_examples=tries(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 100.0), st.integers(0, 1000), st.booleans()),
        max_size=30,
    )
)
def test_the_rows_always_add_up_to_the_totals(slices):
    book, rows = MinuteBook(), []
    book.begin(ONE)
    at_s = moved = 0
    for step_s, more, is_readable in slices:
        at_s, moved = at_s + step_s, moved + more
        rows += take(book, at_s, moved if is_readable else None)
    rows += book.end(ONE, at_s, totals(moved))

    assert moved == sum(row.read_bytes for row in rows)


def test_what_jobs_moved_is_told_by_socket_and_disk_of_their_files():
    """What was moved between a look at the files and the next belongs to what was seen last."""
    book = MinuteBook()
    looks = [None, ("sda",), ("sda", "sdb"), (), ("sda",)]
    here = job(1, state=JobState.RUNNING)
    book.begin(ONE, here)
    for at_s, devices in enumerate(looks, start=1):
        seen = msgspec.structs.replace(counters(at_s * 100, at_s), devices=devices)
        book.take(sample(float(at_s), {1: seen}), {1: here})
    book.end(ONE, 9.0, totals(1000, 5))

    assert {
        ("0", "unknown", "read"): 100,
        ("0", "unknown", "write"): 1,
        ("0", "sda", "read"): 100 + 100 + 500,
        ("0", "sda", "write"): 1 + 1,
        ("0", "several", "read"): 100,
        ("0", "several", "write"): 1,
        ("0", "none", "read"): 100,
        ("0", "none", "write"): 1,
    } == book.moved


def test_of_a_job_that_was_never_sampled_the_disk_is_unknown():
    book = MinuteBook()
    book.begin(ONE)
    book.end(ONE, 1.0, totals(7, 8))

    assert {("unknown", "unknown", "read"): 7, ("unknown", "unknown", "write"): 8} == book.moved
