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
    begin,
    end,
    gain,
    is_decided,
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


def tried(before, after, had, window_now, *, proven=False):
    """A limiter in the middle of a trial."""
    limiter = begin(Limiter(window=had), after, before=before, now_s=10.0, is_proven=proven)
    trial = msgspec.structs.replace(limiter.trial, window=window_now)
    return msgspec.structs.replace(limiter, trial=trial)


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


def test_what_pays_is_kept():
    limiter = tried(8, 4, window(8, MB), window(4, 3 * MB))

    known, verdict = end(limiter, 1.5, 14.0)

    assert ("kept", 4, 8) == (verdict, known.limit, known.too_many)
    assert known.trial is None


def test_what_does_not_pay_is_undone_and_costs():
    limiter = tried(8, 4, window(8, MB), window(4, MB))

    known, verdict = end(limiter, 0.5, 14.0)

    assert ("undone", None, 4) == (verdict, known.limit, known.too_few)
    assert 2.0 == pytest.approx(known.spent_s)


def test_a_gain_that_is_noise_is_not_kept_and_without_an_answer_proof_decides():
    noisy = msgspec.structs.replace(window(8, MB), slices=(1.0, 5.0, 2.0))
    silent = tried(8, 4, window(8, MB), Window())
    proven = tried(8, 4, window(8, MB), Window(), proven=True)

    assert "undone" == end(tried(8, 4, noisy, window(4, 2.1 * MB)), 1.05, 14.0)[1]
    assert ("kept", "undone") == (end(proven, None, 14.0)[1], end(silent, None, 14.0)[1])


def test_a_trial_that_is_clear_is_decided_soon_and_any_at_last():
    clear = tried(8, 4, window(8, MB), window(4, 4 * MB, slices=2)).trial
    noisy = msgspec.structs.replace(
        clear, had=msgspec.structs.replace(clear.had, slices=(1.0, 9.0, 2.0))
    )

    assert (True, False) == (is_decided(clear, 2.0), is_decided(noisy, 1.1))
    assert is_decided(msgspec.structs.replace(noisy, window=window(4, MB, slices=8)), 1.1)


def test_the_first_failure_is_free_and_the_next_has_a_budget():
    failed, _ = end(tried(8, 4, window(8, MB), window(4, MB)), 0.5, 14.0)

    assert Limiter().may_try(0.0, 0.02)
    assert (False, True) == (failed.may_try(20.0, 0.02), failed.may_try(500.0, 0.02))


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


def test_a_set_that_is_read_for_a_job_that_came_back_is_no_proof():
    assert not READS.is_thrash(reread_share=0.3, stall_share=0.2, load_bytes=400 * MB)


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


def test_there_is_room_while_memory_would_take_long_to_fill():
    loads = msgspec.structs.replace(READS, reread_ratio=0.0, reread_bytes=0.0, stall_ratio=0.01)

    assert not loads.has_room()
    assert msgspec.structs.replace(loads, cache_bytes=4000 * MB).has_room()
    assert not msgspec.structs.replace(READS, cache_bytes=4000 * MB).has_room()


@pytest.mark.parametrize(("available", "does"), [(240 * MB, False), (260 * MB, True)])
def test_another_job_is_taken_to_keep_what_the_largest_has_read(available, does):
    scene = Scene(platform(4)).live(1, 0, moved=100 * MB).live(2, 0, moved=50 * MB)
    view = scene.view()
    view.node = NodeCounters(memory_bytes=int(400 * MB), available_bytes=int(available))

    assert does is fits(view, view.running, 1)
