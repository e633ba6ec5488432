"""When there will be room: by walltimes, suspended time left out."""

import math

import pytest
from builders import job
from hypothesis import given
from hypothesis import strategies as st
from queueing import queued, running
from scene import NOW_S, Scene, platform

from iodaemon.core.job import JobId, JobState, Reason
from iodaemon.core.state import with_fields
from iodaemon.policy.admission.easy import Rule
from iodaemon.policy.headroom import Budget
from iodaemon.policy.shadow_time import Shadow, expected_end_s, find_shadow, latest_end_s

MB = 1e6


def test_a_job_ends_when_its_walltime_is_used_up():
    made = job(1, state=JobState.RUNNING, at_s=100.0, run_s=20.0, walltime_s=60.0)

    assert 140.0 == expected_end_s(made, 110.0)


def test_suspended_time_does_not_count_against_it():
    made = job(1, state=JobState.SUSPENDED_IO, at_s=100.0, run_s=20.0, walltime_s=60.0)

    assert [150.0, 1040.0] == [expected_end_s(made, now_s) for now_s in (110.0, 1000.0)]


def test_a_job_that_has_not_begun_has_all_of_it_before_it():
    made = job(1, state=JobState.STARTING, at_s=100.0, walltime_s=60.0)

    assert 170.0 == expected_end_s(made, 110.0)


@pytest.mark.parametrize(
    ("ran_s", "ends_s"), [(0.0, 60.0), (59.0, 60.0), (60.0, 120.0), (119.0, 120.0), (500.0, 960.0)]
)
def test_an_estimate_that_ran_out_is_doubled(ran_s, ends_s):
    made = job(1, state=JobState.RUNNING, at_s=100.0)
    limited = job(1, state=JobState.RUNNING, at_s=100.0, walltime_s=70.0)

    assert 100.0 + ends_s == expected_end_s(made, 100.0 + ran_s, typical_s=60.0)
    assert max(170.0, 100.0 + ran_s) == expected_end_s(limited, 100.0 + ran_s, typical_s=60.0)


def test_without_walltime_no_end_is_known():
    assert math.inf == expected_end_s(job(1, state=JobState.RUNNING), 5.0)


@pytest.mark.parametrize("walltime_s", [None, 1.0, 900.0])
@pytest.mark.parametrize(("kill_at_s", "expected"), [(130.0, 130.0), (None, 105.0), (90.0, 105.0)])
def test_a_job_that_is_being_ended_ends_when_it_is_killed(walltime_s, kill_at_s, expected):
    made = job(1, state=JobState.STOPPING, at_s=100.0, run_s=50.0, walltime_s=walltime_s)
    made = with_fields(made, kill_at_s=kill_at_s)

    assert expected == expected_end_s(made, 105.0)


def overrun(scene, kill_at_s):
    """Job 1 holds three slots of the first socket, past its walltime."""
    why = Reason(code="Walltime", text="ran for its walltime of 60 s")
    stop = {"state": JobState.STOPPING, "stop": JobState.TIMEOUT, "stop_reason": why, "reason": why}
    return scene.live(1, 0, cpus=3, moved=None, walltime_s=60.0, kill_at_s=kill_at_s, **stop)


@pytest.mark.parametrize(("kill_at_s", "promised_s"), [(NOW_S + 8.0, NOW_S + 8.0), (None, NOW_S)])
def test_a_promise_stays_while_a_job_past_its_walltime_does_not_end(kill_at_s, promised_s):
    scene = overrun(Scene(platform(4, 1)), kill_at_s)
    scene.queue(queued(2, cpus=3), queued(3, cpus=1), queued(4, cpus=1), queued(5, cpus=1))

    plan, _ = Rule().decide(scene.view(), None)

    assert ({2: promised_s}, [3, 4]) == (plan.reservations, [start.job_id for start in plan.starts])


def test_nor_does_it_move_to_room_elsewhere_that_comes_before_that_one_is_killed():
    scene = overrun(running(Scene(platform(4, 4)), 5, cpus=2, left_s=60.0, socket=1), NOW_S + 90.0)
    scene.queue(queued(2, cpus=4), queued(3), queued(4, walltime_s=1.0))
    scene.state.reservations = {JobId(2): NOW_S}
    view = scene.view()

    plan, _ = Rule().decide(view, None)

    assert {2: NOW_S} == plan.reservations
    assert [(3, 1), (4, 1)] == [(placed.job_id, placed.partition) for placed in plan.starts]


def test_who_has_overrun_ends_now():
    made = job(1, state=JobState.RUNNING, at_s=100.0, walltime_s=60.0)

    assert 500.0 == expected_end_s(made, 500.0)


def test_the_latest_end_is_of_those_with_a_walltime():
    jobs = [
        job(i, state=JobState.RUNNING, walltime_s=w) for i, w in ((1, 60.0), (2, 80.0), (3, None))
    ]

    assert 80.0 == latest_end_s(jobs, 5.0)
    assert latest_end_s(jobs[2:], 5.0) is None


def test_the_shadow_is_where_there_is_room_first():
    scene = Scene(platform(4, 4))
    running(scene, 1, cpus=3, left_s=50.0)
    running(scene, 2, cpus=1, left_s=90.0)
    running(scene, 3, cpus=3, left_s=60.0, socket=1)

    view = scene.queue(queued(9, cpus=3)).view()

    assert Shadow(partition=0, at_s=NOW_S + 50.0, spare=0) == find_shadow(
        view, queued(9, cpus=3), NOW_S
    )
    assert Shadow(partition=1, at_s=NOW_S + 60.0, spare=0) == find_shadow(
        view, queued(9, cpus=4), NOW_S
    )


def test_all_that_ends_at_one_time_is_spare():
    scene = Scene(platform(4))
    running(scene, 1, cpus=2, left_s=50.0)
    running(scene, 2, cpus=2, left_s=50.0)

    assert Shadow(partition=0, at_s=NOW_S + 50.0, spare=3) == find_shadow(
        scene.view(), queued(9, cpus=1), NOW_S
    )


def test_nothing_is_known_where_those_in_the_way_have_no_walltime():
    scene = running(Scene(platform(4)), 1, cpus=2)

    assert find_shadow(scene.view(), queued(9, cpus=3), NOW_S) is None


def test_a_socket_that_is_too_small_is_no_room():
    scene = running(Scene(platform(2, 4)), 1, cpus=1, left_s=900.0, socket=1)

    assert find_shadow(scene.view(), queued(9, cpus=4), NOW_S).at_s == NOW_S + 900.0


def test_the_budget_has_to_have_room_as_well():
    scene = Scene(platform(4))
    running(scene, 1, left_s=50.0, rate=20 * MB)
    running(scene, 2, left_s=80.0, rate=70 * MB)
    view = scene.queue(queued(9, rate=60 * MB)).view()
    budget = Budget(view, 100 * MB, lambda made: view.expected(made.id).rate_bytes_per_s)

    found = find_shadow(view, queued(9, rate=60 * MB), NOW_S, budget)

    assert Shadow(partition=0, at_s=NOW_S + 80.0, spare=3, spare_bytes_per_s=40 * MB) == found


@given(
    st.lists(st.tuples(st.integers(1, 4), st.none() | st.integers(0, 30)), max_size=6),
    st.integers(1, 24),
)
def test_before_the_shadow_there_is_no_room_and_from_then_on_there_is(live, cpus):
    scene = Scene(platform(24))
    for number, (size, left_s) in enumerate(live, start=1):
        running(scene, number, cpus=size, left_s=left_s)

    shadow = find_shadow(scene.view(), queued(9, cpus=cpus), NOW_S)

    def free_at(time_s):
        held = (size for size, left_s in live if left_s is None or NOW_S + left_s > time_s)
        return 24 - sum(held)

    if shadow is None:
        assert free_at(math.inf) < cpus
        return
    assert free_at(shadow.at_s) - cpus == shadow.spare >= 0
    earlier = [NOW_S, *(NOW_S + left_s for _, left_s in live if left_s is not None)]
    assert all(free_at(time_s) < cpus for time_s in earlier if time_s < shadow.at_s)
