"""What is kept is read again as it was; what is none is refused by name."""

import json
import os

import msgspec
import pytest
from builders import device_load
from calibrating import MB, calibration, leaf, paced, point
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.calibration.record import (
    SUSTAIN_ABOVE,
    SUSTAIN_LONE,
    VERSION,
    Fit,
    Kept,
    calibrated,
    decode,
    encode,
    find_problem,
    judge,
    known_leaves,
)
from iodaemon.calibration.store import keep, kept_file
from iodaemon.core.platform import Device, LoneTimes, ServiceTimes
from iodaemon.errors import ConfigError

POINTS = st.lists(
    st.builds(
        point,
        kind=st.sampled_from(["read", "write"]),
        pattern=st.sampled_from(["order", "random"]),
        size=st.integers(1, 1 << 30),
        service_s=st.floats(1e-6, 10.0),
    ),
    max_size=30,
)


@given(POINTS, st.lists(st.tuples(st.integers(1, 8), st.floats(1e3, 1e11)), max_size=10))
def test_what_is_kept_is_read_as_it_was(points, steps):
    made = calibration(
        leaf(points=points), loads=tuple(paced(sockets, total) for sockets, total in steps)
    )
    kept = Kept(calibrations=(made,))

    assert decode(encode(kept), "there") == kept


def test_one_of_a_newer_iodaemon_is_refused_with_its_file_and_the_cure():
    text = json.dumps({"version": VERSION + 1, "x": 1}).encode()
    with pytest.raises(ConfigError, match=r"newer iodaemon.*; update iodaemon") as caught:
        decode(text, "/state/calibration.json")

    assert "/state/calibration.json" in str(caught.value)


def test_a_new_one_takes_the_place_of_the_last_of_the_same_disks():
    first, other = calibration(leaf(identity="a")), calibration(leaf(identity="b"))
    again = calibration(leaf(identity="a"), at_s=2e9)

    kept = Kept().with_new(first).with_new(other).with_new(again)

    assert kept.calibrations == (other, again)


def test_the_newest_measurement_of_a_disk_counts():
    both = calibration(leaf(identity="a"), leaf("sdb", "b"))
    alone = calibration(leaf(identity="b", loaded_bytes_per_s=70 * MB), at_s=2e9)
    kept = Kept(calibrations=(both, alone))

    found = known_leaves(kept, {"sdx": "b", "sdy": "a", "sdz": "c", "sdw": ""})

    assert set(found) == {"sdx", "sdy"}
    assert found["sdx"] == (alone, alone.leaves[0])
    devices = (Device(id="sdx"), Device(id="sdz", capacity_bytes_per_s=1.0))
    measured, unknown = calibrated(devices, found)
    assert measured.capacity_bytes_per_s == 70 * MB
    assert measured.service is not None
    assert unknown == Device(id="sdz")


@given(POINTS)
def test_rules_get_points_by_rising_size_above_zero(points):
    service = leaf(points=[*points, point()]).service

    for times in (service.reads, service.writes):
        for known in (times.in_order, times.at_random):
            sizes = [size for size, _ in known]
            assert sizes == sorted(set(sizes))
            assert all(spent_s > 0.0 for _, spent_s in known)


def test_another_kernel_is_told_and_the_same_is_not():
    assert find_problem(calibration(), "6.1.0") == ""
    assert "6.1.0" in find_problem(calibration(), "6.12.0")


def test_what_was_measured_by_force_is_told():
    method = msgspec.structs.replace(calibration().method, forced=True)

    assert "busy" in find_problem(calibration(method=method), "6.1.0")


def test_a_file_that_is_none_is_left_as_it_is(tmp_path):
    kept_file(tmp_path).write_text("mine")

    with pytest.raises(ConfigError, match="remove it"):
        keep(tmp_path, calibration())

    assert kept_file(tmp_path).read_text() == "mine"
    assert os.listdir(tmp_path) == [kept_file(tmp_path).name]


# -- what is seen of a device is held against what was measured ------------------------------------

SERVICE = ServiceTimes(reads=LoneTimes(in_order=((4096.0, 0.001),), at_random=((4096.0, 0.010),)))


def slice_of(*, reads=100.0, took_s=0.002, busy=None, moved=None):
    """One slice of reads of 4 KiB one at a time."""
    queue = reads * took_s
    return device_load(
        reads_per_s=reads,
        read_bytes_per_s=reads * 4096.0 if moved is None else moved,
        read_await_s=took_s,
        queue_length=queue,
        busy_ratio=min(1.0, queue) if busy is None else busy,
    )


def after(*slices):
    fit = Fit()
    for load in slices:
        fit = judge(fit, load, most_bytes_per_s=100 * MB, service=SERVICE)
    return fit


def test_far_more_than_was_measured_is_told_after_some_slices():
    fast = slice_of(moved=151 * MB)

    assert after(*[fast] * (SUSTAIN_ABOVE - 1)).problem == ""
    assert "151 MB/s, and at most 100 MB/s" in after(*[fast] * SUSTAIN_ABOVE).problem


def test_lone_requests_that_take_far_longer_are_told():
    slow = slice_of(took_s=0.031, reads=20.0)

    assert after(*[slow] * (SUSTAIN_LONE - 1)).problem == ""
    assert "31 ms" in after(*[slow] * SUSTAIN_LONE).problem


def test_requests_that_were_not_alone_say_nothing():
    burst = slice_of(took_s=0.050, reads=10.0, busy=0.1)
    few = slice_of(took_s=0.050, reads=4.0)

    assert after(*[burst, few] * 2 * SUSTAIN_LONE) == Fit()


@given(st.floats(0.001, 0.010), st.floats(5.0, 90.0), st.integers(1, 100))
def test_what_was_measured_always_fits(took_s, reads, slices):
    assert after(*[slice_of(took_s=took_s, reads=reads)] * slices).problem == ""


def test_what_did_not_fit_once_stays_told():
    fit = after(*[slice_of(moved=200 * MB)] * SUSTAIN_ABOVE, *[slice_of()] * 50)

    assert fit.problem != ""
