"""The signal of a device that hardly counts any time, or is not counted at all."""

import pytest

from iodaemon.core.bandwidth import DeviceLoad
from iodaemon.core.congestion import Sense, look


def seen(sense, *, queue, requests_per_s=1000.0, size=131072):
    """One more slice of this many requests of a size."""
    load = DeviceLoad(
        reads_per_s=requests_per_s,
        writes_per_s=0.0,
        discards_per_s=0.0,
        flushes_per_s=0.0,
        read_bytes_per_s=requests_per_s * size,
        written_bytes_per_s=0.0,
        read_await_s=queue / requests_per_s,
        write_await_s=None,
        discard_await_s=None,
        flush_await_s=None,
        queue_length=queue,
        busy_ratio=1.0,
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
