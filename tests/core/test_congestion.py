"""The signal of a device that hardly counts any time, or is not counted at all."""

import msgspec
import pytest
from builders import device_load
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.meter import Sense, look
from iodaemon.core.platform import LoneTimes, ServiceTimes


def seen(sense, *, queue, requests_per_s=1000.0, size=131072):
    """One more slice of this many requests of a size."""
    load = device_load(
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
    load = device_load(
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
