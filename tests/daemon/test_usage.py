"""What jobs and devices moved: every byte is booked once, and once only."""

import msgspec
import pytest
from builders import counters, job
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.core import event as ev
from iodaemon.core.decision import Transition
from iodaemon.core.job import Exit, IoTotals, JobId, JobState
from iodaemon.core.sample import DeviceCounters, Sample
from iodaemon.daemon.usage import Usage

ONE = JobId(1)
SECTOR = 512


class Followed:
    """Usage that is told of job 1 on socket 0, and of devices."""

    def __init__(self, *, is_started=True):
        self.usage = Usage()
        self.jobs = {ONE: job(1, state=JobState.RUNNING)}
        if is_started:
            self.pass_on(steps=[JobState.STARTING])

    def pass_on(self, *events, steps=()):
        made = [
            Transition(job_id=ONE, at_s=0.0, before=JobState.PENDING, after=after)
            for after in steps
        ]
        return self.usage.follow(events, made, self.jobs)

    def sample(self, at_s, jobs=None, devices=None):
        made = Sample(at_s=at_s, jobs=jobs or {}, devices=devices or {})
        return self.pass_on(ev.SampleTaken(at_s=at_s, sample=made))

    def take(self, at_s, read_bytes, written_bytes=0, devices=None):
        moved = msgspec.structs.replace(counters(read_bytes, written_bytes), devices=devices)
        return self.sample(at_s, {ONE: moved})

    def end(self, at_s, read_bytes=None, written_bytes=None):
        io = IoTotals(read_bytes=read_bytes, written_bytes=written_bytes)
        return self.pass_on(exited(at_s, io), steps=[JobState.COMPLETED])

    def others(self, name, direction):
        return self.usage.others()[name, direction] // SECTOR

    def see(self, jobs, **devices):
        """A sample with devices and, by place and direction, what jobs have moved, in sectors."""
        for (place, direction), size in jobs.items():
            self.usage.moved["0", place, direction] = size * SECTOR
        self.sample(1.0, devices={name: device(*each) for name, each in devices.items()})


def exited(at_s, io):
    return ev.JobExited(at_s=at_s, job_id=ONE, attempt=1, exit=Exit(code=0), io=io)


def device(read, written, requests=0):
    fields = dict.fromkeys(DeviceCounters.__struct_fields__, 0)
    fields |= {"read_sectors": read, "written_sectors": written, "reads": requests}
    return DeviceCounters(**fields)


READ, WRITTEN = ("sda", "read"), ("sda", "write")
UNPLACED = {("unknown", "read"): 60, ("several", "read"): 30}


# -- jobs ------------------------------------------------------------------------------------------


def test_a_minute_is_a_row_once_it_is_over():
    one = Followed()

    assert [] == one.take(0.0, 0)
    assert [] == one.take(59.0, 590, 59)
    [row] = one.take(61.0, 610, 61)
    assert (1, 0, 610, 61, 61.0) == (
        row.job_id,
        row.minute,
        row.read_bytes,
        row.written_bytes,
        row.seconds,
    )


def test_an_adopted_job_counts_from_the_first_sample_that_could_read_it():
    one = Followed(is_started=False)
    one.take(0.0, None)
    one.take(1.0, 1000)
    one.take(2.0, 1007)
    [row] = one.end(3.0, 1010)

    assert 10 == row.read_bytes


def test_what_could_not_be_read_once_is_not_counted_twice():
    one = Followed()
    one.take(1.0, 100, 10)
    one.take(2.0, None, None)
    one.take(3.0, 150, None)
    [row] = one.end(4.0, 160, 20)

    assert (160, 20) == (row.read_bytes, row.written_bytes)


def test_a_job_that_ended_without_an_exit_has_no_more_rows():
    one = Followed()
    one.take(1.0, 100)
    one.jobs.clear()
    one.pass_on(steps=[JobState.LOST])

    assert [] == one.take(100.0, 200)
    assert [] == one.end(101.0, 200)


def test_a_sample_that_was_taken_while_the_job_ended_books_nothing():
    one = Followed()
    one.end(1.0, 5)
    one.jobs.clear()

    assert [] == one.take(2.0, 9)
    assert [] == one.take(99.0, 9)
    assert 5 == one.usage.moved.total()


def test_an_attempt_that_starts_as_another_ends_begins_at_0():
    one = Followed()
    io = IoTotals(read_bytes=7, written_bytes=0)
    [first] = one.pass_on(
        exited(1.0, io),
        steps=[JobState.PENDING, JobState.STARTING],
    )
    [second] = one.end(2.0, 5)

    assert (7, 5) == (first.read_bytes, second.read_bytes)


@settings(max_examples=tries(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 100.0), st.integers(0, 1000), st.booleans()),
        max_size=30,
    )
)
def test_the_rows_always_add_up_to_the_totals(slices):
    one, rows = Followed(), []
    at_s = moved = 0
    for step_s, more, is_readable in slices:
        at_s, moved = at_s + step_s, moved + more
        rows += one.take(at_s, moved if is_readable else None)
    rows += one.end(at_s, moved)

    assert moved == sum(row.read_bytes for row in rows) == one.usage.moved.total()


def test_what_jobs_moved_is_told_by_socket_and_disk_of_their_files():
    """What was moved between a look at the files and the next belongs to what was seen last."""
    one = Followed()
    looks = [None, ("sda",), ("sda", "sdb"), (), ("sda",)]
    for at_s, devices in enumerate(looks, start=1):
        one.take(float(at_s), at_s * 100, at_s, devices)
    one.end(9.0, 1000, 5)

    assert {
        ("0", "unknown", "read"): 100,
        ("0", "unknown", "write"): 1,
        ("0", "sda", "read"): 100 + 100 + 500,
        ("0", "sda", "write"): 1 + 1,
        ("0", "several", "read"): 100,
        ("0", "several", "write"): 1,
        ("0", "none", "read"): 100,
        ("0", "none", "write"): 1,
    } == one.usage.moved


# -- devices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("looks", "others"),
    [
        # What was moved before the daemon was there is nobody's.
        ([({}, (1000, 1000)), ({}, (1010, 1000))], {READ: 10, WRITTEN: 0}),
        # What jobs wrote ahead of the device is not others' when it arrives.
        ([({}, (0, 0)), ({WRITTEN: 100}, (0, 0)), ({}, (0, 60)), ({}, (0, 105))], {WRITTEN: 5}),
        ([({}, (0, 0)), ({("unknown", "write"): 100}, (0, 0)), ({}, (0, 100))], {WRITTEN: 0}),
        # The total of others never falls.
        ([({}, (0, 0)), ({}, (0, 50)), ({WRITTEN: 100}, (0, 50))], {WRITTEN: 50}),
        # What jobs moved on no disk is taken from none.
        ([({}, (0, 0)), ({("none", "read"): 60}, (80, 0))], {READ: 80}),
        # Another device of the same name begins anew.
        ([({}, (100, 0, 10)), ({}, (110, 0, 11)), ({}, (4, 0, 1)), ({}, (7, 0, 2))], {READ: 13}),
    ],
)
def test_what_others_moved_is_what_no_job_did(looks, others):
    seen = Followed()
    for jobs, counted in looks:
        seen.see(jobs, sda=counted)

    assert others == {way: seen.others(*way) for way in others}


def test_what_jobs_moved_on_an_unknown_disk_is_taken_from_those_that_moved():
    seen = Followed()
    seen.see({}, sda=(0, 0), sdb=(0, 0))
    seen.see(UNPLACED, sda=(80, 0), sdb=(40, 0))

    assert (20, 10) == (seen.others("sda", "read"), seen.others("sdb", "read"))
