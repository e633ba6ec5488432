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


def test_the_rate_is_the_growth_over_the_time():
    rate = job_bandwidth(counters(1 * MB, 2 * MB), counters(3 * MB, 8 * MB), 2.0)

    assert (rate.read_bytes_per_s, rate.written_bytes_per_s) == (1 * MB, 3 * MB)
    assert rate.total_bytes_per_s == 4 * MB


def test_everything_of_a_job_that_started_in_the_slice_belongs_to_it():
    rate = job_bandwidth(None, counters(3 * MB, 0), 1.0)

    assert rate.total_bytes_per_s == 3 * MB


def test_bytes_taken_back_by_a_truncate_are_no_negative_rate():
    rate = job_bandwidth(counters(0, 5 * MB), counters(0, 1 * MB), 1.0)

    assert rate.written_bytes_per_s == 0.0


@pytest.mark.parametrize("earlier", [counters(0, 0), None, counters(None, None)])
def test_unknown_counters_give_no_rate(earlier):
    assert job_bandwidth(earlier, counters(None, None), 1.0) is None


def test_counters_that_became_readable_in_the_slice_give_no_rate():
    assert job_bandwidth(counters(None, None), counters(9 * MB, 9 * MB), 1.0) is None


def test_half_known_counters_give_the_half_that_is_known():
    rate = job_bandwidth(counters(0, None), counters(3 * MB, None), 1.0)

    assert rate.total_bytes_per_s == 3 * MB


def test_a_device_is_described_as_iostat_does():
    earlier = disk()
    later = disk(
        reads=100,
        read_sectors=2048,
        read_ms=500,
        writes=50,
        written_sectors=4096,
        write_ms=1000,
        in_flight=3,
        busy_ms=1500,
        queue_ms=1500,
        discards=10,
        discard_ms=20,
        flushes=4,
        flush_ms=2,
    )

    load = device_load(earlier, later, 2.0)

    assert (
        load.reads_per_s,
        load.writes_per_s,
        load.discards_per_s,
        load.flushes_per_s,
    ) == (50.0, 25.0, 5.0, 2.0)
    assert (load.read_bytes_per_s, load.written_bytes_per_s) == (2048 * 512 / 2, 4096 * 512 / 2)
    assert (
        load.read_await_s,
        load.write_await_s,
        load.discard_await_s,
        load.flush_await_s,
    ) == (0.005, 0.02, 0.002, 0.0005)
    assert (load.queue_length, load.busy_ratio, load.in_flight) == (0.75, 0.75, 3)
    assert load.total_bytes_per_s == (2048 + 4096) * 512 / 2


def test_no_requests_have_no_waiting_time():
    load = device_load(disk(), disk(), 1.0)

    assert (load.read_await_s, load.write_await_s) == (None, None)


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


def test_a_device_is_never_busier_than_all_the_time():
    load = device_load(disk(), disk(busy_ms=1010), 1.0)

    assert load.busy_ratio == 1.0


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


def test_bytes_read_that_go_backwards_are_another_jobs():
    assert job_bandwidth(counters(5 * MB, 0), counters(1 * MB, 9 * MB), 1.0) is None


def test_a_replaced_device_is_left_out_until_there_are_two_samples_of_it():
    meter = Meter()
    take(meter, sample(0.0, devices={"sda": disk(reads=9), "sdb": disk()}))
    take(meter, sample(1.0, devices={"sda": disk(reads=1), "sdb": disk(), "sdc": disk()}))

    assert list(meter.devices) == ["sdb"]

    take(meter, sample(2.0, devices={"sda": disk(reads=3), "sdc": disk()}))

    assert meter.devices["sda"].reads_per_s == 2.0
    assert {"sda", "sdc"} == set(meter.devices)


def test_the_first_sample_gives_no_rates():
    meter = Meter()
    take(meter, sample(0.0, {1: counters(5)}), started=[JobId(1)])

    assert total(meter, 1) is None
    assert meter.counters(JobId(1)).read_bytes == 5


def test_a_job_that_was_not_there_before_has_a_rate_only_if_it_started_in_between():
    meter = Meter()
    take(meter, sample(0.0))
    take(meter, sample(2.0, {1: counters(8), 2: counters(8)}), started=[JobId(1)])

    assert (total(meter, 1), total(meter, 2)) == (4.0, None)


def test_a_job_that_is_no_longer_sampled_has_no_rate():
    meter = Meter()
    take(meter, sample(0.0, {1: counters(0)}))
    take(meter, sample(1.0, {1: counters(5)}))
    take(meter, sample(2.0))

    assert total(meter, 1) is None


def test_what_a_job_does_when_it_runs_is_remembered_while_it_stands():
    meter = Meter()
    take(meter, sample(0.0, {1: counters(0)}))
    take(meter, sample(1.0, {1: counters(5)}), run_s={JobId(1): 1.0})
    take(meter, sample(2.0, {1: counters(5)}))

    assert total(meter, 1) == 0.0
    assert meter.active(JobId(1)).total_bytes_per_s == 5.0

    meter.forget(JobId(1))

    assert (meter.active(JobId(1)), meter.bandwidth(JobId(1))) == (None, None)


def test_two_samples_of_one_time_give_no_rates():
    meter = Meter()
    take(meter, sample(1.0, {1: counters(0)}))
    take(meter, sample(1.0, {1: counters(5)}))

    assert total(meter, 1) is None


def test_what_a_job_does_while_it_runs_is_learned_from_the_time_it_ran():
    meter = Meter()
    take(meter, sample(0.0, {1: counters(0)}))
    take(meter, sample(1.0, {1: counters(6 * MB)}), run_s={JobId(1): 0.6})

    assert total(meter, 1) == 6 * MB
    assert meter.active(JobId(1)).total_bytes_per_s == pytest.approx(10 * MB)


def test_a_slice_in_which_a_job_hardly_ran_does_not_show_what_it_does():
    meter = Meter()
    take(meter, sample(0.0, {1: counters(0)}))
    take(meter, sample(1.0, {1: counters(6 * MB)}), run_s={JobId(1): 0.4})

    assert meter.active(JobId(1)) is None


def seen(sense, *, queue, requests_per_s=1000.0, size=131072):
    """One more slice of this many requests of a size."""
    load = load_of(
        reads_per_s=requests_per_s,
        read_bytes_per_s=requests_per_s * size,
        read_await_s=queue / requests_per_s,
        queue_length=queue,
        in_flight=int(queue),
    )
    return look(sense, load, 1.0, rotational=True, high_wait=3.0, least_queue=2.0)


def test_requests_too_short_to_be_counted_do_not_make_later_ones_endless():
    sense = seen(seen(Sense(), queue=0.0), queue=1.0)

    assert sense.last_wait is not None
    assert 1.0 < sense.last_wait < 100.0


@pytest.mark.parametrize("queue", [0.0, 1e-9])
def test_a_slice_of_such_requests_is_no_congestion(queue):
    sense = seen(Sense(), queue=queue)

    assert (sense.high_slices, sense.last_wait <= 1.0) == (0, True)


def test_an_outlier_is_forgotten_by_one_percent_a_minute_only_down_to_what_is_possible():
    sense = seen(Sense(), queue=0.0)

    assert min(sense.alone_s.values()) >= 10e-6


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
    return look(sense, load, 1.0, **marks), load


def test_before_a_request_was_seen_alone_the_least_that_was_measured_is_the_base():
    sense, _ = known(Sense(), queue=8.0)

    assert sense.last_wait == pytest.approx(8.0)
    assert sense.is_sure


def test_without_a_measurement_it_is_a_guess():
    sense, _ = known(Sense(), queue=8.0, service=None)

    assert sense.last_wait != pytest.approx(8.0)
    assert not sense.is_sure


def test_a_request_seen_alone_counts_while_it_took_no_longer_than_was_ever_measured():
    at_random, _ = known(Sense(), queue=1.0, requests_per_s=200.0)
    slow, _ = known(Sense(), queue=1.0, requests_per_s=10.0)
    later, _ = known(at_random, queue=8.0, requests_per_s=200.0)
    after_slow, _ = known(slow, queue=8.0, requests_per_s=200.0)

    assert at_random.last_wait == pytest.approx(1.0)
    assert later.last_wait == pytest.approx(8.0, rel=0.01)
    assert slow.last_wait == pytest.approx(10.0)
    assert after_slow.last_wait == pytest.approx(4.0)


def test_a_request_seen_alone_that_was_faster_than_any_measured_counts():
    faster, _ = known(Sense(), queue=1.0, requests_per_s=4000.0)
    later, _ = known(faster, queue=8.0, requests_per_s=4000.0)

    assert later.last_wait == pytest.approx(8.0, rel=0.01)


def test_a_device_that_gave_many_several_times_as_much_as_one_is_not_full_that_soon():
    wide = msgspec.structs.replace(MEASURED, width=4.0)

    unseen, _ = known(Sense(), queue=8.0, service=wide)
    alone, _ = known(Sense(), queue=1.0, service=wide)
    later, _ = known(alone, queue=8.0, service=wide)

    assert unseen.last_wait == pytest.approx(2.0)
    assert later.last_wait == pytest.approx(2.0, rel=0.01)
    assert later.is_sure


def test_a_size_that_was_not_measured_is_learned_as_on_any_device():
    writes_only = ServiceTimes(writes=LoneTimes(in_order=((4096.0, 0.001),)))

    measured, _ = known(Sense(), queue=8.0, service=writes_only)
    unknown, _ = known(Sense(), queue=8.0, service=None)

    assert measured == unknown


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
        sense, _ = known(sense, queue=earlier, requests_per_s=requests_per_s, service=service)

    sense, _ = known(sense, queue=queue, requests_per_s=rate, service=service)

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


@given(POINTS)
def test_a_measured_size_takes_what_was_measured(points):
    for size, spent_s in points:
        assert math.isclose(time_s(points, size), spent_s, rel_tol=1e-6)


@given(POINTS, SIZES)
def test_between_two_sizes_it_lies_between_their_times(points, size):
    found_s = time_s(points, size)

    assert found_s > 0.0
    below = [spent_s for known, spent_s in points if known <= size]
    above = [spent_s for known, spent_s in points if known >= size]
    if below and above:
        low, high = sorted((below[-1], above[0]))
        assert low * (1 - 1e-9) <= found_s <= high * (1 + 1e-9)


@given(POINTS, SIZES)
def test_a_larger_request_than_any_is_moved_as_fast_as_the_largest(points, factor):
    size, spent_s = points[-1]

    assert math.isclose(time_s(points, size * factor), spent_s * factor, rel_tol=1e-6)


def test_a_request_of_no_bytes_takes_as_long_as_the_smallest():
    assert time_s(((4096.0, 0.001), (8192.0, 0.002)), 0.0) == 0.001


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
