"""From counters to rates."""

import pytest
from builders import MB, counters, sample

from iodaemon.core.job import JobId
from iodaemon.core.meter import Meter, device_load, job_bandwidth
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
