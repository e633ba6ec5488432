"""The parts of the rule ``adaptive``: numbers that are tried, proof, progress, slow start."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scene import NOW_S, Scene, platform

from iodaemon.core.job import JobId
from iodaemon.core.sample import NodeCounters
from iodaemon.policy.regulation.adaptive.contender import MEMORY, Doing, find_contenders
from iodaemon.policy.regulation.adaptive.evidence import Reads
from iodaemon.policy.regulation.adaptive.limiter import (
    Limiter,
    Window,
    gain,
    with_slice,
)
from iodaemon.policy.regulation.adaptive.selector import RunOrder
from iodaemon.policy.regulation.adaptive.slow_start import fits, most_for_idle

MB = 1e6


def window(many, speed, slices=4, first=1):
    """So many jobs that move so much in each slice."""
    made = Window()
    for _ in range(slices):
        doing = {JobId(first + i): Doing(moved_bytes=speed, active_s=1.0) for i in range(many)}
        made = with_slice(made, doing)
    return made


# -- progress --------------------------------------------------------------------------------------


def doing(**of):
    """One slice, of jobs by name: megabytes moved, or seconds computed if negative."""
    made = {
        JobId(int(name.removeprefix("of_"))): Doing(moved_bytes=amount * MB, active_s=1.0)
        if amount > 0
        else Doing(user_s=-amount, active_s=1.0)
        for name, amount in of.items()
    }
    return with_slice(Window(), made)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (window(8, MB), window(4, 2 * MB), 1.0),  # half as many at twice the speed
        (doing(of_1=100, of_2=1), doing(of_1=100, of_2=2), 2.0 / 1.5),  # each counts the same
        (doing(of_1=-0.5), doing(of_1=-1.0), 2.0),  # one that computes, by its time
        (window(2, MB), window(2, 1.5 * MB, first=10), 1.5),  # strangers, by the mean
        (Window(), window(2, MB), None),
    ],
)
def test_a_gain_is_in_what_gets_done(before, after, expected):
    assert (expected and pytest.approx(expected)) == gain(before, after)


# -- the limiter -----------------------------------------------------------------------------------


WAITED = {"fewer_s": 0.0, "lasted_s": 10.0}


@pytest.mark.parametrize(
    ("limiter", "many", "now_s", "fewer"),
    [
        *((Limiter(), many, 0.0, fewer) for many, fewer in ((8, 4), (4, 2), (2, 1), (1, None))),
        (Limiter(good=3), 8, 0.0, 3),  # it was last seen to do no harm
        (Limiter(too_few=4, **WAITED), 8, 100.0, 6),
        (Limiter(too_few=7, **WAITED), 8, 100.0, None),
        (Limiter(too_few=4, **WAITED), 8, 600.0, 4),  # tried again only after long
        (Limiter(too_few=7, **WAITED), 8, 600.0, 4),
    ],
)
def test_half_is_tried_or_halfway_to_too_few(limiter, many, now_s, fewer):
    assert fewer == limiter.fewer(many, now_s, 0.02)


@given(
    st.integers(0, 20),
    st.integers(0, 20),
    st.one_of(st.none(), st.integers(1, 40)),
    st.integers(1, 40),
)
def test_what_is_tried_is_always_another_number(good, too_few, too_many, many):
    limiter = Limiter(limit=many, good=good, too_few=too_few, too_many=too_many, fewer_s=0.0)
    fewer, more = limiter.fewer(many, 0.0, 0.02), limiter.more(1e9, 0.02)

    assert fewer is None or too_few < fewer < many
    assert more is None or more != many


# -- memory ----------------------------------------------------------------------------------------


READS = Reads(
    since_s=0.0,
    peak_bytes_per_s=100 * MB,
    read_bytes=500 * MB,
    reread_bytes=300 * MB,
    rate_bytes_per_s=80 * MB,
    reread_ratio=0.8,
    stall_ratio=0.6,
    cache_bytes=400 * MB,
    memory_bytes=400 * MB,
)


def thrashes(**changes):
    reads = msgspec.structs.replace(READS, **changes)
    return reads.is_thrash(reread_share=0.3, stall_share=0.2, load_bytes=0.0)


@pytest.mark.parametrize(
    ("changes", "is_thrash"),
    [
        ({}, True),
        ({"stall_ratio": None}, True),  # without pressure it rests on what is read again
        ({"reread_ratio": 0.1}, False),
        ({"rate_bytes_per_s": 1 * MB}, False),
        ({"stall_ratio": 0.05}, False),
        ({"reread_bytes": 50 * MB}, False),
    ],
)
def test_proof_is_reads_that_had_been_in_memory_and_stalls(changes, is_thrash):
    assert is_thrash == thrashes(**changes)


@pytest.mark.parametrize(
    ("changes", "is_in"),
    [
        ({"rate_bytes_per_s": 20 * MB, "reread_bytes": 0.0}, True),
        ({"rate_bytes_per_s": 90 * MB, "reread_bytes": 0.0, "read_bytes": 200 * MB}, False),
        ({"rate_bytes_per_s": 90 * MB, "reread_bytes": 0.0, "read_bytes": 500 * MB}, True),
        ({"rate_bytes_per_s": 90 * MB, "reread_bytes": 900 * MB}, True),
        ({"rate_bytes_per_s": 90 * MB, "reread_bytes": 300 * MB}, False),
    ],
    ids=["loaded", "loads", "streams", "does not fit", "thrashes"],
)
def test_sets_are_in_when_volume_says_so(changes, is_in):
    assert is_in is msgspec.structs.replace(READS, **changes).is_in(5.0)


def test_what_a_new_job_read_counts_from_its_start():
    """All of it for one that was started in the slice; nothing for one that is merely unknown."""
    view = Scene(platform(4)).live(1, 0, moved=50 * MB).view()

    assert 50 * MB == find_contenders(view, {}, interval_s=NOW_S).read_bytes
    assert 0.0 == find_contenders(view, {}, interval_s=1.0).read_bytes


# -- who stands still ------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", [MEMORY, "sda"])
def test_users_take_turns_at_a_resource(resource):
    scene = Scene(platform(6))
    for number, uid in enumerate((1, 1, 1, 2, 2, 3)):
        scene.live(number, 0, moved=50 * MB, uid=uid)
    view = scene.view()

    order = RunOrder(view).in_order(resource, view.running)

    assert [0, 3, 5, 1, 4, 2] == [job.id for job in order]


# -- slow start ------------------------------------------------------------------------------------


def test_no_more_run_than_idle_cores_can_take():
    idle = ((2, 2, 1.9), (2, 2, 0.05), (2, 2, 0.3), (8, 8, 2.7))

    assert [4, 2, 3, 12] == [most_for_idle(many, cores, idle=free) for many, cores, free in idle]


@pytest.mark.parametrize(("available", "does"), [(240 * MB, False), (260 * MB, True)])
def test_another_job_is_taken_to_keep_what_the_largest_has_read(available, does):
    scene = Scene(platform(4)).live(1, 0, moved=100 * MB).live(2, 0, moved=50 * MB)
    view = scene.view()
    view.node = NodeCounters(memory_bytes=int(400 * MB), available_bytes=int(available))

    assert does is fits(view, view.running, 1)
