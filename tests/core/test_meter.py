"""Rates from counters, the wait of a device, and how long a lone request takes there."""

import math

import msgspec
import pytest
from builders import MB, counters, sample
from builders import device_load as load_of
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.job import JobId
from iodaemon.core.meter import Meter, Sense, device_load, job_bandwidth, lone_range_s, look
from iodaemon.core.platform import LoneTimes, ServiceTimes, time_s
from iodaemon.core.sample import DeviceCounters

WRAP_MS = 2**32


def disk(**fields):
    made = dict.fromkeys(DeviceCounters.__struct_fields__, 0) | fields
    return DeviceCounters(**made)


def total(meter, job_id):
    rate = meter.bandwidth(JobId(job_id))
    return None if rate is None else rate.total_bytes_per_s


def take(meter, taken, *, started=(), run_s=()):
    for job_id in started:
        meter.begin(job_id)
    meter.take(taken, run_s=dict(run_s))


@pytest.mark.parametrize(
    ("earlier", "later", "rates"),
    [
        ((1 * MB, 2 * MB), (5 * MB, 14 * MB), (2 * MB, 6 * MB, 8 * MB)),
        (None, (3 * MB, 0), (1.5 * MB, 0.0, 1.5 * MB)),  # all of a job that began in the slice
        ((0, 5 * MB), (0, 1 * MB), (0.0, 0.0, 0.0)),  # bytes were taken back by a truncate
        ((0, None), (3 * MB, None), (1.5 * MB, 0.0, 1.5 * MB)),
        ((0, 0), (None, None), None),
        (None, (None, None), None),
        ((None, None), (None, None), None),
        ((None, None), (9 * MB, 9 * MB), None),  # they became readable in the slice
        ((5 * MB, 0), (1 * MB, 9 * MB), None),  # bytes read never go backwards: another job's
    ],
)
def test_a_rate_is_the_growth_over_the_time(earlier, later, rates):
    rate = job_bandwidth(None if earlier is None else counters(*earlier), counters(*later), 2.0)

    if rate is not None:
        rate = rate.read_bytes_per_s, rate.written_bytes_per_s, rate.total_bytes_per_s
    assert rates == rate


def test_a_device_is_described_as_iostat_does():
    reads = {"reads": 100, "read_sectors": 2048, "read_ms": 500}
    writes = {"writes": 50, "written_sectors": 4096, "write_ms": 1000}
    others = {"discards": 10, "discard_ms": 20, "flushes": 4, "flush_ms": 2}
    busy = {"in_flight": 3, "busy_ms": 1500, "queue_ms": 1500}

    load = device_load(disk(), disk(**reads, **writes, **others, **busy), 2.0)

    assert load == load_of(
        reads_per_s=50.0,
        writes_per_s=25.0,
        discards_per_s=5.0,
        flushes_per_s=2.0,
        read_bytes_per_s=2048 * 512 / 2,
        written_bytes_per_s=4096 * 512 / 2,
        read_await_s=0.005,
        write_await_s=0.02,
        discard_await_s=0.002,
        flush_await_s=0.0005,
        queue_length=0.75,
        busy_ratio=0.75,
        in_flight=3,
    )
    assert load.total_bytes_per_s == (2048 + 4096) * 512 / 2


def test_no_requests_have_no_waiting_time_and_a_device_is_never_busier_than_all_the_time():
    load = device_load(disk(), disk(busy_ms=1010), 1.0)

    assert (None, None, 1.0) == (load.read_await_s, load.write_await_s, load.busy_ratio)


def test_the_millisecond_counters_wrap_at_32_bit():
    earlier = disk(
        read_ms=WRAP_MS - 100, busy_ms=WRAP_MS - 100, queue_ms=WRAP_MS - 1, writes=1, write_ms=5
    )
    later = disk(reads=4, read_ms=100, busy_ms=400, queue_ms=999, writes=2, write_ms=7)

    load = device_load(earlier, later, 1.0)

    assert (
        load.read_await_s,
        load.busy_ratio,
        load.queue_length,
        load.write_await_s,
    ) == (0.05, 0.5, 1.0, 0.002)


@pytest.mark.parametrize(
    "field",
    [
        *("reads", "read_sectors", "read_ms", "writes", "written_sectors", "write_ms"),
        *("discards", "discard_ms", "flushes", "flush_ms", "busy_ms", "queue_ms"),
    ],
)
def test_a_counter_that_goes_backwards_leaves_the_device_unknown_for_the_slice(field):
    """No rate of 2^64 sectors, and no queue of four million requests."""
    before = disk(**{field: 9000})

    assert device_load(before, disk(), 1.0) is None


def test_a_long_wait_that_ends_in_a_short_slice_is_no_step_backwards():
    """The kernel counts the time of a request when it is done: here of 100 that hung for 86 s."""
    hung_ms = 100 * 86_400

    load = device_load(disk(), disk(reads=100, read_ms=hung_ms, queue_ms=hung_ms), 1.0)

    assert load.read_await_s == 86.4


def test_a_replaced_device_is_left_out_until_there_are_two_samples_of_it():
    meter = Meter()
    take(meter, sample(0.0, devices={"sda": disk(reads=9), "sdb": disk()}))
    take(meter, sample(1.0, devices={"sda": disk(reads=1), "sdb": disk(), "sdc": disk()}))

    assert list(meter.devices) == ["sdb"]

    take(meter, sample(2.0, devices={"sda": disk(reads=3), "sdc": disk()}))

    assert meter.devices["sda"].reads_per_s == 2.0
    assert {"sda", "sdc"} == set(meter.devices)


def totals(meter, *job_ids):
    return [total(meter, job_id) for job_id in job_ids]


def test_a_job_has_a_rate_between_two_samples_or_from_its_start():
    meter = Meter()
    take(meter, sample(0.0, {1: counters(5)}), started=[JobId(1)])
    assert ([None], 5) == (totals(meter, 1), meter.counters(JobId(1)).read_bytes)
    take(meter, sample(2.0, {1: counters(9), 2: counters(8), 3: counters(8)}), started=[JobId(2)])
    assert [2.0, 4.0, None] == totals(meter, 1, 2, 3)
    take(meter, sample(2.0, {1: counters(99)}))  # two samples of one time
    assert [None] == totals(meter, 1)
    take(meter, sample(3.0))
    assert [None] == totals(meter, 1)


@pytest.mark.parametrize(("ran_s", "active"), [(1.0, 6 * MB), (0.6, 10 * MB), (0.4, None)])
def test_what_a_job_does_while_it_runs_is_learned_from_the_time_it_ran(ran_s, active):
    """A slice in which it hardly ran does not show it, and it is remembered while it stands."""
    meter = Meter()
    take(meter, sample(0.0, {1: counters(0)}))
    take(meter, sample(1.0, {1: counters(6 * MB)}), run_s={JobId(1): ran_s})
    rate = meter.active(JobId(1))

    assert [6 * MB] == totals(meter, 1)
    assert active is rate is None or active == pytest.approx(rate.total_bytes_per_s)

    take(meter, sample(2.0, {1: counters(6 * MB)}))

    assert ([0.0], rate) == (totals(meter, 1), meter.active(JobId(1)))

    meter.forget(JobId(1))

    assert (None, None) == (meter.active(JobId(1)), meter.bandwidth(JobId(1)))


# -- a device that was measured --------------------------------------------------------------------

SIZE = 131072
MEASURED = ServiceTimes(
    reads=LoneTimes(in_order=((float(SIZE), 0.001),), at_random=((float(SIZE), 0.010),))
)


def known(sense, *, queue, requests_per_s=1000.0, service=MEASURED, rotational=None):
    """One more slice of requests of the measured size; each takes queue / requests_per_s."""
    load = load_of(
        reads_per_s=requests_per_s,
        read_bytes_per_s=requests_per_s * SIZE,
        read_await_s=queue / requests_per_s,
        queue_length=queue,
        in_flight=int(queue),
    )
    marks = {"high_wait": 3.0, "least_queue": 2.0, "service": service, "rotational": rotational}
    return look(sense, load, 1.0, **marks)


def seen(sense, *, queue):
    return known(sense, queue=queue, service=None, rotational=True)


def test_requests_too_short_to_be_counted_do_not_make_later_ones_endless():
    """An outlier is forgotten by one percent a minute only down to what is possible."""
    first = seen(Sense(), queue=0.0)

    assert min(first.alone_s.values()) >= 10e-6
    assert 1.0 < seen(first, queue=1.0).last_wait < 100.0


@pytest.mark.parametrize("queue", [0.0, 1e-9])
def test_a_slice_of_such_requests_is_no_congestion(queue):
    sense = seen(Sense(), queue=queue)

    assert (sense.high_slices, sense.last_wait <= 1.0) == (0, True)


def test_before_a_request_was_seen_alone_the_least_that_was_measured_is_the_base():
    sense, guess = known(Sense(), queue=8.0), known(Sense(), queue=8.0, service=None)

    assert (pytest.approx(8.0), True) == (sense.last_wait, sense.is_sure)
    assert not guess.is_sure
    assert guess.last_wait != pytest.approx(8.0)


@pytest.mark.parametrize(
    ("alone_per_s", "then_per_s", "waits"),
    [
        (200.0, 200.0, (1.0, 8.0)),
        (10.0, 200.0, (10.0, 4.0)),  # it took longer than was ever measured, so it does not count
        (4000.0, 4000.0, (1.0, 8.0)),  # it was faster than any that was measured
    ],
)
def test_a_request_seen_alone_counts_while_it_took_no_longer_than_was_ever_measured(
    alone_per_s, then_per_s, waits
):
    alone = known(Sense(), queue=1.0, requests_per_s=alone_per_s)
    later = known(alone, queue=8.0, requests_per_s=then_per_s)

    assert (alone.last_wait, later.last_wait) == pytest.approx(waits, rel=0.01)


def test_a_device_that_gave_many_several_times_as_much_as_one_is_not_full_that_soon():
    wide = msgspec.structs.replace(MEASURED, width=4.0)
    unseen, alone = (known(Sense(), queue=queue, service=wide) for queue in (8.0, 1.0))
    later = known(alone, queue=8.0, service=wide)

    assert unseen.last_wait == pytest.approx(2.0)
    assert (later.last_wait, later.is_sure) == (pytest.approx(2.0, rel=0.01), True)


def test_a_size_that_was_not_measured_is_learned_as_on_any_device():
    writes_only = ServiceTimes(writes=LoneTimes(in_order=((4096.0, 0.001),)))

    assert known(Sense(), queue=8.0, service=writes_only) == known(Sense(), queue=8.0, service=None)


@given(
    st.floats(0.0, 1e4),
    st.floats(5.0, 1e6),
    st.floats(1e-6, 1.0),
    st.floats(1.0, 100.0),
    st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(5.0, 1e5)), max_size=5),
)
def test_the_base_is_never_above_the_longest_nor_guessed(queue, rate, low_s, factor, before):
    service = ServiceTimes(
        reads=LoneTimes(
            in_order=((float(SIZE), low_s),), at_random=((float(SIZE), low_s * factor),)
        )
    )
    sense = Sense()
    for earlier, requests_per_s in before:
        sense = known(sense, queue=earlier, requests_per_s=requests_per_s, service=service)

    sense = known(sense, queue=queue, requests_per_s=rate, service=service)

    longest_s = max(low_s * factor, 10e-6)
    assert sense.last_wait >= queue / rate / longest_s * (1 - 1e-9)
    assert sense.is_sure


SIZES = st.floats(min_value=1.0, max_value=1e9)
TIMES = st.floats(min_value=1e-6, max_value=10.0)
POINTS = st.dictionaries(SIZES, TIMES, min_size=1, max_size=6).map(
    lambda found: tuple(sorted(found.items()))
)


def load(*, reads=0.0, read=0.0, writes=0.0, written=0.0, flushes=0.0):
    return load_of(
        reads_per_s=reads,
        writes_per_s=writes,
        flushes_per_s=flushes,
        read_bytes_per_s=read,
        written_bytes_per_s=written,
    )


@given(POINTS, SIZES)
def test_the_time_of_a_size_lies_between_those_that_were_measured(points, size):
    for known_size, spent_s in points:
        assert math.isclose(time_s(points, known_size), spent_s, rel_tol=1e-6)
    below = [spent_s for known, spent_s in points if known <= size]
    above = [spent_s for known, spent_s in points if known >= size]
    if below and above:
        low, high = sorted((below[-1], above[0]))
        assert low * (1 - 1e-9) <= time_s(points, size) <= high * (1 + 1e-9)
    assert time_s(points, 0.0) == points[0][1]
    largest, spent_s = points[-1]  # a larger one is moved as fast as that
    assert math.isclose(time_s(points, largest * size), spent_s * size, rel_tol=1e-6)


@given(POINTS, POINTS, SIZES)
def test_the_range_is_from_the_shorter_pattern_to_the_longer(in_order, at_random, size):
    times = LoneTimes(in_order=in_order, at_random=at_random)

    low_s, high_s = times.range_s(size)

    assert {low_s, high_s} == {time_s(in_order, size), time_s(at_random, size)}
    assert low_s <= high_s


def test_nothing_is_said_of_what_was_not_measured():
    reads = LoneTimes(in_order=((4096.0, 0.001),))

    assert LoneTimes().range_s(4096.0) is None
    assert lone_range_s(load(), ServiceTimes(reads=reads)) is None
    assert lone_range_s(load(writes=10.0, written=4e4), ServiceTimes(reads=reads)) is None


def test_a_slice_of_reads_and_writes_is_held_against_both_by_their_number():
    service = ServiceTimes(
        reads=LoneTimes(in_order=((4096.0, 0.001),), at_random=((4096.0, 0.010),)),
        writes=LoneTimes(in_order=((4096.0, 0.003),)),
    )
    mixed = load(reads=30.0, read=30 * 4096.0, writes=10.0, written=10 * 4096.0)

    low_s, high_s = lone_range_s(mixed, service)

    assert math.isclose(low_s, 0.0015)
    assert math.isclose(high_s, 0.00825)


def test_a_slice_of_many_flushes_says_nothing():
    service = ServiceTimes(writes=LoneTimes(in_order=((4096.0, 0.003),)))
    few = load(writes=100.0, written=4e5, flushes=10.0)
    many = load(writes=100.0, written=4e5, flushes=11.0)

    assert lone_range_s(few, service) is not None
    assert lone_range_s(many, service) is None
