"""The parts of the rule ``adaptive``: numbers that are tried, proof, progress, slow start."""

import math

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
    Trial,
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


def test_half_as_many_at_twice_the_speed_get_as_much_done():
    assert 1.0 == pytest.approx(gain(window(8, MB), window(4, 2 * MB)))


def test_each_job_counts_the_same_whatever_it_moves():
    before = with_slice(
        Window(),
        {
            JobId(1): Doing(moved_bytes=100 * MB, active_s=1.0),
            JobId(2): Doing(moved_bytes=MB, active_s=1.0),
        },
    )
    after = with_slice(
        Window(),
        {
            JobId(1): Doing(moved_bytes=100 * MB, active_s=1.0),
            JobId(2): Doing(moved_bytes=2 * MB, active_s=1.0),
        },
    )

    assert 2.0 / 1.5 == pytest.approx(gain(before, after))


def test_a_job_that_computes_is_measured_by_its_time():
    before = with_slice(Window(), {JobId(1): Doing(user_s=0.5, active_s=1.0)})
    after = with_slice(Window(), {JobId(1): Doing(user_s=1.0, active_s=1.0)})

    assert 2.0 == pytest.approx(gain(before, after))


def test_strangers_are_compared_by_the_mean():
    assert 1.5 == pytest.approx(gain(window(2, MB), window(2, 1.5 * MB, first=10)))


def test_nothing_cannot_be_compared():
    assert gain(Window(), window(2, MB)) is None


def test_one_slice_says_nothing_of_noise():
    assert math.inf == window(2, MB, slices=1).noise
    assert 0.0 == window(2, MB).noise


# -- the limiter -----------------------------------------------------------------------------------


def test_half_is_tried_then_half_of_that():
    assert [4, 2, 1, None] == [Limiter().fewer(many, 0.0, 0.02) for many in (8, 4, 2, 1)]


def test_the_number_last_seen_to_do_no_harm_is_tried_first():
    assert 3 == Limiter(good=3).fewer(8, 0.0, 0.02)


def test_a_number_that_was_too_few_is_tried_again_only_after_long():
    below, next_to = (Limiter(too_few=n, fewer_s=0.0, lasted_s=10.0) for n in (4, 7))

    assert (6, None) == (below.fewer(8, 100.0, 0.02), next_to.fewer(8, 100.0, 0.02))
    assert (4, 4) == (below.fewer(8, 600.0, 0.02), next_to.fewer(8, 600.0, 0.02))


def test_more_is_halfway_to_too_many():
    assert 6 == Limiter(limit=4, too_many=9).more(0.0, 0.02)
    assert Limiter(limit=4, too_many=5, more_s=0.0, lasted_s=10.0).more(100.0, 0.02) is None
    assert 5 == Limiter(limit=4, too_many=5, more_s=0.0, lasted_s=10.0).more(600.0, 0.02)


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


def test_a_gain_that_is_noise_is_not_kept():
    noisy = msgspec.structs.replace(window(8, MB), slices=(1.0, 5.0, 2.0))
    limiter = tried(8, 4, noisy, window(4, 2.1 * MB))

    assert "undone" == end(limiter, 1.05, 14.0)[1]


def test_without_an_answer_proof_decides():
    had, now = window(8, MB), Window()

    assert "kept" == end(tried(8, 4, had, now, proven=True), None, 14.0)[1]
    assert "undone" == end(tried(8, 4, had, now), None, 14.0)[1]


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


def test_proof_is_reads_that_had_been_in_memory_and_stalls():
    assert thrashes()
    assert not thrashes(reread_ratio=0.1)
    assert not thrashes(rate_bytes_per_s=1 * MB)
    assert not thrashes(stall_ratio=0.05)
    assert not thrashes(reread_bytes=50 * MB)


def test_without_pressure_proof_rests_on_what_is_read_again():
    assert thrashes(stall_ratio=None)


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
    assert 4 == most_for_idle(2, 2, idle=1.9)
    assert 2 == most_for_idle(2, 2, idle=0.05)
    assert 3 == most_for_idle(2, 2, idle=0.3)
    assert 12 == most_for_idle(8, 8, idle=2.7)


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


def test_a_trial_knows_its_direction():
    assert Trial(before=2, tried=3, limit=2, began_s=0.0, had=Window()).is_up
    assert not Trial(before=3, tried=2, limit=None, began_s=0.0, had=Window()).is_up
