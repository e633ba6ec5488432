"""Waiting and serving from counters of disks that behave in a known way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.meter import await_of
from iodaemon.core.platform import DeviceId, LoneTimes, ServiceTimes
from iodaemon.core.sample import DeviceCounters
from iodaemon.trial.latency import (
    Look,
    Uncontended,
    is_contended,
    latency_of,
    slices_of,
    uncontended,
)

DISK = DeviceId("sda")
MIB_SECTORS = 2048


def looks(*seconds, device=DISK):
    """Of each second: requests, ms of each, ms busy, sectors of each."""
    reads = ms = busy = sectors = 0
    found = [look(0.0, device, reads=0, ms=0, busy=0, sectors=0)]
    for at, (count, each_ms, busy_ms, each_sectors) in enumerate(seconds, start=1):
        reads, ms = reads + count, ms + count * each_ms
        busy, sectors = busy + busy_ms, sectors + count * each_sectors
        found.append(look(float(at), device, reads=reads, ms=ms, busy=busy, sectors=sectors))
    return found


def look(at_s, device, *, reads, ms, busy, sectors):
    counters = DeviceCounters(
        reads=reads,
        reads_merged=0,
        read_sectors=sectors,
        read_ms=ms,
        writes=0,
        writes_merged=0,
        written_sectors=0,
        write_ms=0,
        in_flight=0,
        busy_ms=busy,
        queue_ms=ms,
    )
    return Look(at_s=at_s, devices={device: counters})


def test_what_goes_beyond_the_uncontended_time_is_waiting():
    alone, crowded = slices_of(looks((100, 5, 500, 8))), slices_of(looks((100, 45, 990, 8)))
    base_s = uncontended([*alone, *crowded])
    quiet, full = latency_of(alone, base_s), latency_of(crowded, base_s)

    assert (pytest.approx(0.005), pytest.approx(0.0)) == (quiet.serving_s, quiet.waiting_s)
    assert (pytest.approx(0.005), pytest.approx(0.040)) == (full.serving_s, full.waiting_s)
    assert pytest.approx(0.0099) == full.busy_s


def test_requests_that_were_alone_say_what_one_takes_alone():
    hits, lone = (1000, 2, 900, 8), (50, 8, 400, 8)  # of two readers at once; of one
    slices = slices_of(looks(hits, lone))

    assert [pytest.approx(0.008)] == list(uncontended(slices).seen_s.values())


def test_a_few_quick_requests_among_many_are_not_what_they_take_alone():
    stream, hits = (90, 8, 720, 512), (6, 0, 0, 512)
    slices = slices_of(looks(stream, hits))
    base_s = uncontended(slices)

    assert [pytest.approx(0.008)] == list(base_s.seen_s.values())
    assert not is_contended(slices[0], base_s)


def test_a_few_lone_requests_say_nothing_of_other_sizes():
    zeroes, stream = (6, 0, 0, 4096), (90, 20, 990, 512)
    slices = slices_of(looks(zeroes, stream))

    assert pytest.approx(0.020) == uncontended(slices).time_s(slices[1])


def test_where_none_of_a_size_was_alone_other_sizes_say_what_it_takes_at_most():
    lone, small, large = (50, 8, 400, 64), (100, 90, 990, 32), (100, 90, 990, 256)
    slices = slices_of(looks(lone, small, large))
    base_s = uncontended(slices)

    assert [pytest.approx(s) for s in (0.008, 0.008, 0.032)] == [base_s.time_s(x) for x in slices]


def test_what_was_calibrated_bounds_what_is_seen():
    reads = LoneTimes(in_order=((4096.0, 0.002),), at_random=((4096.0, 0.006),))
    measured = {DISK: ServiceTimes(reads=reads)}
    quick, slow = slices_of(looks((100, 1, 90, 8))), slices_of(looks((100, 20, 990, 8)))

    assert pytest.approx(0.002) == uncontended(quick, measured).time_s(quick[0])
    assert pytest.approx(0.006) == uncontended(slow, measured).time_s(slow[0])
    assert pytest.approx(0.002) == Uncontended(measured=measured).time_s(slow[0])


def test_large_requests_are_held_against_large_ones_alone():
    small, large = slices_of(looks((100, 5, 500, 8))), slices_of(looks((50, 20, 990, MIB_SECTORS)))
    base_s = uncontended([*small, *large])

    assert pytest.approx(0.020) == latency_of(large, base_s).serving_s


def test_contention_is_the_part_of_the_time_in_which_requests_take_twice_as_long():
    slices = slices_of(looks((100, 5, 500, 8), (100, 9, 900, 8), (100, 11, 990, 8), (0, 0, 0, 0)))
    base_s = uncontended(slices)

    assert [False, False, True, False] == [is_contended(each, base_s) for each in slices]
    assert pytest.approx(0.25) == latency_of(slices, base_s).contended_ratio


def test_a_second_with_hardly_a_request_is_no_measure_of_the_uncontended_time():
    slices = slices_of(looks((2, 1, 2, 8), (100, 5, 500, 8)))

    assert [pytest.approx(0.005)] == list(uncontended(slices).seen_s.values())


def test_a_disk_with_nothing_to_do_has_no_latency():
    assert latency_of(slices_of(looks((0, 0, 0, 0))), Uncontended()) is None
    assert latency_of((), Uncontended()) is None


def test_counters_that_went_backwards_say_nothing():
    there = looks((100, 5, 500, 8))

    assert () == slices_of([there[1], Look(at_s=2.0, devices=there[0].devices)])


def test_of_two_disks_each_has_its_own_uncontended_time():
    fast, slow = looks((100, 1, 100, 8)), looks((100, 10, 990, 8), device=DeviceId("sdb"))
    both = [
        Look(at_s=a.at_s, devices={**a.devices, **b.devices})
        for a, b in zip(fast, slow, strict=True)
    ]
    slices = slices_of(both)

    assert {0.001, 0.01} == {round(value, 6) for value in uncontended(slices).seen_s.values()}


second = st.tuples(
    st.integers(0, 5000), st.integers(0, 2000), st.integers(0, 1000), st.integers(1, 4096)
)


@given(st.lists(st.lists(second, min_size=1, max_size=6), min_size=1, max_size=4))
def test_waiting_and_serving_are_all_of_the_time_and_neither_is_negative(runs):
    groups = [slices_of(looks(*run)) for run in runs]
    base_s = uncontended(each for group in groups for each in group)

    for group in groups:
        latency = latency_of(group, base_s)
        if latency is not None:
            assert latency.waiting_s >= 0.0
            assert latency.serving_s >= 0.0
            spent_s = sum(await_of(each.load) * each.requests for each in group)
            requests = sum(each.requests for each in group)
            assert latency.waiting_s + latency.serving_s == pytest.approx(spent_s / requests)
            assert 0.0 <= latency.contended_ratio <= 1.0
