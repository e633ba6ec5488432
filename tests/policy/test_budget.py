"""One congested thing in one slice: signal, hold-off, relief, patience."""

from types import SimpleNamespace

import pytest
from builders import device_load, job

from iodaemon.core.bandwidth import Bandwidth
from iodaemon.core.congestion import Sense, look
from iodaemon.core.job import JobState
from iodaemon.core.platform import Device
from iodaemon.core.sample import JobCounters
from iodaemon.policy.budget import Marks, Place, device_budget

MB = 1e6
SDA = Device(id="sda", rotational=True)
MARKS = Marks(high_wait=3.0, least_queue=2.0, sustain=2, writeback_s=35.0, crowd_slices=10)


def load(*, queue, requests_per_s=100.0, read=0.0, written=0.0):
    return device_load(
        reads_per_s=requests_per_s,
        read_bytes_per_s=read,
        written_bytes_per_s=written,
        read_await_s=queue / requests_per_s,
        queue_length=queue,
        in_flight=int(queue),
    )


def view(device_load, *, now_s=100.0, running=(), suspended=(), rates=None):
    """The part of a view that a budget reads."""
    rates = rates or {}
    return SimpleNamespace(
        now_s=now_s,
        devices={"sda": device_load},
        running=list(running),
        suspended=list(suspended),
        bandwidth=rates.get,
        counters=lambda _: JobCounters(devices=("sda",)),
    )


def running(job_id):
    return job(job_id, state=JobState.RUNNING)


def held(job_id, since_s):
    return job(
        job_id,
        state=JobState.SUSPENDED_IO,
        io_hold=True,
        io_held_since_s=since_s,
        frozen=True,
        freeze_asked=True,
    )


def slices(count, given, place=None):
    budget = None
    for _ in range(count):
        place, budget = device_budget(given, SDA, place or Place(), 1.0, MARKS)
    return place, budget


def readers(count, rate=10 * MB):
    jobs = [running(number) for number in range(1, count + 1)]
    rates = {made.id: Bandwidth(read_bytes_per_s=rate) for made in jobs}
    return jobs, rates


def test_a_long_wait_counts_when_it_lasts():
    jobs, rates = readers(8)
    busy = view(load(queue=8.0, read=80 * MB), running=jobs, rates=rates)

    assert [slices(count, busy)[1].is_exceeded for count in (1, 2)] == [False, True]


def test_a_long_wait_of_one_or_two_requests_is_no_queue():
    jobs, rates = readers(2)
    busy = view(load(queue=2.0, requests_per_s=5.0, read=5 * MB), running=jobs, rates=rates)

    assert not slices(4, busy)[1].is_exceeded


def test_the_queue_is_taken_down_to_where_the_wait_would_be_twice_the_uncontended():
    jobs, rates = readers(8)
    busy = view(load(queue=8.0, read=80 * MB), running=jobs, rates=rates)

    budget = slices(2, busy)[1]

    assert budget.target == pytest.approx(max(1.0, 8.0 * 2.0 / budget.value))


def test_each_running_job_has_its_part_of_the_queue_by_the_bytes_it_moved():
    jobs, rates = readers(2)
    rates[2] = Bandwidth(read_bytes_per_s=30 * MB)
    budget = slices(1, view(load(queue=4.0, read=40 * MB), running=jobs, rates=rates))[1]

    assert budget.parts == {1: 1.0, 2: 3.0}


def test_what_nobody_who_runs_moved_is_nobodys_part():
    jobs, rates = readers(1)
    budget = slices(1, view(load(queue=4.0, read=40 * MB), running=jobs, rates=rates))[1]

    assert budget.parts == {1: 1.0}


def test_the_writeback_of_writers_suspended_lately_suspends_nobody_else():
    jobs, rates = readers(2, rate=1 * MB)
    writing = load(queue=20.0, read=2 * MB, written=80 * MB)
    lately = view(writing, running=jobs, rates=rates, suspended=[held(9, since_s=80.0)])
    long_ago = view(writing, running=jobs, rates=rates, suspended=[held(9, since_s=20.0)])

    assert not slices(2, lately)[1].is_exceeded
    assert slices(2, long_ago)[1].is_exceeded


def test_a_wait_that_falls_by_itself_is_left_alone():
    jobs, rates = readers(8)
    place, _ = slices(1, view(load(queue=40.0, read=80 * MB), running=jobs, rates=rates))

    falling = view(load(queue=20.0, read=80 * MB), running=jobs, rates=rates)

    assert not slices(1, falling, place)[1].is_exceeded


def test_what_a_lone_request_takes_is_learned_and_then_compared_with():
    sense = Sense()
    for queue, requests in ((1.0, 100.0), (8.0, 100.0)):
        sense = look(
            sense,
            load(queue=queue, requests_per_s=requests, read=100 * MB),
            1.0,
            rotational=True,
            high_wait=3.0,
            least_queue=2.0,
        )

    assert sense.last_wait == pytest.approx(8.0, rel=1e-3)


def test_a_knee_that_was_seen_is_remembered():
    sense = Sense()
    for queue, requests in ((1.0, 1000.0), (6.0, 5000.0), (1.0, 1000.0)):
        sense = look(
            sense,
            load(queue=queue, requests_per_s=requests, read=0.4 * MB * requests),
            1.0,
            rotational=False,
            high_wait=3.0,
            least_queue=2.0,
        )

    assert sense.knee == pytest.approx(6.0, rel=1e-3)


def test_too_few_requests_say_nothing():
    sense = look(
        Sense(),
        load(queue=9.0, requests_per_s=1.0, read=1.0),
        1.0,
        rotational=None,
        high_wait=3.0,
        least_queue=2.0,
    )

    assert (sense.last_wait, sense.high_slices) == (None, 0)
