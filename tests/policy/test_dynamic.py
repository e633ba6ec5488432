"""The published rule, beside a literal copy of its figure."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scene import MB, NOW_S, Scene, platform

from iodaemon.core.decision import RegulationPlan, Resume, Suspend
from iodaemon.core.job import JobState, Reason
from iodaemon.policy.regulation.dynamic import Rule


def decide(scene, *, bound_mb=40.0, memory=None, **parameters):
    rule = Rule(io_bound_bytes_per_s=bound_mb * MB, **parameters)
    return rule.decide(scene.view(), memory)


def scene_of(jobs):
    """Jobs from 1 on, each (socket, MB/s, whether it is suspended)."""
    scene = Scene(platform(24, 24, 24, 24))
    for number, (cmp, io_mb, held) in enumerate(jobs, start=1):
        if held:
            scene.live(number, cmp, held=True, last=io_mb * MB)
        else:
            scene.live(number, cmp, moved=io_mb * MB)
    return scene


def plan_of(scene, **parameters):
    return decide(scene, **parameters)[0]


def test_the_heaviest_of_each_socket_are_suspended_until_the_total_is_not_above_the_bound():
    scene = Scene(platform(3, 3))
    scene.live(1, 0, moved=10 * MB).live(2, 0, moved=20 * MB)
    scene.live(3, 1, moved=25 * MB).live(4, 1, moved=15 * MB)

    plan = plan_of(scene)

    # 70 MB/s; socket 0 gives 20 (50 left), socket 1 gives 25 (25 left): done.
    assert plan.suspends == (2, 3)
    assert plan.resumes == ()


def test_it_stops_in_the_middle_of_a_round():
    scene = Scene(platform(3, 3)).live(1, 0, moved=30 * MB).live(2, 1, moved=35 * MB)

    plan = plan_of(scene)

    # 65 MB/s; without the 30 of socket 0 it is 35: the heavier one on socket 1 goes on.
    assert plan.suspends == (1,)


def test_after_a_full_round_every_socket_gives_its_next_job():
    scene = Scene(platform(3, 3))
    scene.live(1, 0, moved=9 * MB).live(2, 0, moved=8 * MB).live(3, 0, moved=7 * MB)
    scene.live(4, 1, moved=30 * MB).live(5, 1, moved=29 * MB)

    plan = plan_of(scene, bound_mb=20.0)

    # 83: -9 = 74, -30 = 44, -8 = 36, -29 = 7.
    assert plan.suspends == (1, 4, 2, 5)


def test_a_socket_that_has_no_more_jobs_is_passed_over():
    scene = Scene(platform(3, 3)).live(1, 0, moved=1 * MB)
    scene.live(2, 1, moved=30 * MB).live(3, 1, moved=20 * MB).live(4, 1, moved=10 * MB)

    plan = plan_of(scene, bound_mb=15.0)

    assert plan.suspends == (1, 2, 3)


def test_a_total_at_the_bound_suspends_nothing():
    scene = Scene(platform(2, 2)).live(1, 0, moved=20 * MB).live(2, 1, moved=20 * MB)

    plan = plan_of(scene)

    assert plan == RegulationPlan()


def test_a_job_that_moved_nothing_is_not_suspended_as_the_figure_would():
    scene = Scene(platform(1, 1, 1, 1))
    for socket, moved in enumerate((0, 10, 20, 20)):
        scene.live(socket + 1, socket, moved=moved * MB)

    plan = plan_of(scene)

    assert plan.suspends == (2,)


def test_the_last_running_job_is_suspended_as_printed():
    scene = Scene(platform(2)).live(1, 0, moved=41 * MB)

    plan = plan_of(scene)

    assert plan.suspends == (1,)


def test_a_suspended_job_keeps_its_turn_with_the_rate_it_had():
    scene = Scene(platform(3, 3)).live(1, 0, held=True, last=50 * MB).live(2, 0, moved=25 * MB)
    scene.live(3, 1, moved=24 * MB)

    plan = plan_of(scene)

    # Socket 0's turn is taken by the suspended job 1, so socket 1 gives the first: 49 - 24 = 25.
    assert plan.suspends == (3,)


def test_the_rate_of_a_suspended_job_does_not_count_in_the_total():
    scene = Scene(platform(3)).live(1, 0, held=True, last=50 * MB).live(2, 0, moved=30 * MB)

    plan = plan_of(scene)

    assert plan.suspends == ()


def test_below_the_bound_every_socket_resumes_its_heaviest_suspended_job():
    scene = Scene(platform(4, 4)).live(1, 0, held=True, last=5 * MB)
    scene.live(2, 0, held=True, last=6 * MB).live(3, 1, held=True, last=1 * MB)
    scene.live(4, 1, moved=39 * MB).live(5, 1, held=True, last=90 * MB)

    plan = plan_of(scene)

    # By trial: that 39 + 6 + 90 is far above the bound is not asked.
    assert plan.resumes == (2, 5)
    assert plan.suspends == ()


def test_the_rate_before_the_suspension_is_remembered():
    scene = Scene(platform(4)).live(1, 0, moved=30 * MB).live(2, 0, moved=20 * MB)

    _, memory = decide(scene)

    assert memory == {1: 30 * MB}


def test_the_remembered_rate_outranks_the_predicted_one():
    scene = Scene(platform(4)).live(1, 0, held=True, last=9 * MB).live(2, 0, held=True, last=1 * MB)

    plan, memory = decide(scene, memory={2: 80.0 * MB})

    assert plan.resumes == (2,)
    assert memory == {1: 9 * MB}


def test_a_job_that_moved_nothing_is_no_candidate():
    scene = Scene(platform(4)).live(1, 0, moved=0.0).live(2, 0, moved=41 * MB)

    plan = plan_of(scene, bound_mb=1.0)

    assert plan.suspends == (2,)


def test_a_job_whose_io_is_unknown_is_left_alone():
    scene = Scene(platform(4)).live(1, 0, moved=None, last=90 * MB).live(2, 0, moved=41 * MB)

    plan = plan_of(scene, bound_mb=1.0)

    assert plan.suspends == (2,)


@pytest.mark.parametrize("protection", [{"no_suspend": True}, {"immune_until_s": NOW_S + 1.0}])
def test_a_protected_job_is_spared_but_counts_in_the_total(protection):
    scene = Scene(platform(4)).live(1, 0, moved=90 * MB, **protection).live(2, 0, moved=1 * MB)

    plan = plan_of(scene)

    assert plan.suspends == (2,)


def test_an_immunity_ends():
    scene = Scene(platform(4)).live(1, 0, moved=90 * MB, immune_until_s=NOW_S)

    plan = plan_of(scene)

    assert plan.suspends == (1,)


def test_a_job_that_is_being_stopped_counts_in_the_total_alone():
    reason = Reason(code="Cancelled", text="cancelled")
    scene = Scene(platform(4)).live(2, 0, moved=1 * MB)
    scene.live(1, 0, moved=90 * MB, state=JobState.STOPPING, stop=JobState.CANCELLED, reason=reason)

    plan = plan_of(scene)

    assert plan.suspends == (2,)


def test_a_suspend_on_its_way_is_not_asked_for_again():
    scene = Scene(platform(4)).live(1, 0, moved=90 * MB, io_hold=True, io_held_since_s=1.0)
    scene.live(2, 0, moved=41 * MB)

    plan = plan_of(scene)

    assert plan.suspends == (2,)


def test_reasons_name_the_numbers():
    scene = Scene(platform(3, 3)).live(1, 1, moved=30_100_000).live(2, 1, moved=31_100_000)

    plan = plan_of(scene, bound_mb=20.0)

    text = "total 61.2 MB/s is above the bound 20 MB/s; this job moved"
    assert plan.reasons == {
        2: Reason(code="IoBound", text=f"{text} 31.1 MB/s, the most on socket 1"),
        1: Reason(code="IoBound", text=f"{text} 30.1 MB/s, number 2 on socket 1"),
    }


def test_resumes_have_reasons():
    scene = Scene(platform(3)).live(1, 0, moved=30 * MB).live(2, 0, held=True, last=2 * MB)

    plan = plan_of(scene)

    text = (
        "total 30 MB/s is not above the bound 40 MB/s; of the suspended on socket 0 this job has "
        "the most I/O"
    )
    assert plan.reasons == {2: Reason(code="IoBound", text=text)}


def test_singly_the_one_with_the_most_io_of_all_sockets_comes_back():
    jobs = [(0, 2, True), (1, 9, True), (1, 8, True)]

    printed, singly = plan_of(scene_of(jobs)), plan_of(scene_of(jobs), resume_singly=True)

    assert ((1, 2), (2,)) == (printed.resumes, singly.resumes)
    assert printed.reasons[2] == singly.reasons[2]


def test_shares_touch_only_sockets_above_theirs():
    scene = Scene(platform(3, 3))
    scene.live(1, 0, moved=15 * MB).live(2, 1, moved=12 * MB).live(3, 1, moved=14 * MB)

    whole = plan_of(scene, bound_mb=40.0)
    scene = Scene(platform(3, 3))
    scene.live(1, 0, moved=15 * MB).live(2, 1, moved=12 * MB).live(3, 1, moved=14 * MB)
    shared = plan_of(scene, bound_mb=40.0, per_socket_share=True)

    # 41 of 40: printed, socket 0 goes first; by shares of 20 only socket 1 (26) is touched.
    assert (whole.suspends, shared.suspends) == ((1,), (3,))


def test_shares_leave_a_busy_socket_alone_while_the_whole_is_below_the_bound():
    scene = Scene(platform(3, 3)).live(1, 0, moved=30 * MB).live(2, 1, moved=5 * MB)

    plan = plan_of(scene, per_socket_share=True)

    assert plan == RegulationPlan()


def test_without_a_bound_nothing_is_regulated_and_the_suspended_go():
    scene = Scene(platform(4)).live(1, 0, moved=900 * MB).live(2, 0, held=True, last=9 * MB)
    scene.live(3, 0, held=True)

    plan, memory = Rule().decide(scene.view(), {2: 9.0 * MB})

    assert (RegulationPlan(resumes=(2, 3)), None) == (plan, memory)


def test_it_needs_a_backend_that_suspends_and_resumes():
    assert Rule.needs == {Suspend, Resume}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"timeslice_s": 0.0}, "timeslice_s is 0; it must be above 0"),
        ({"timeslice_s": float("nan")}, "timeslice_s is nan; it must be above 0"),
        ({"io_bound_bytes_per_s": 0.0}, "io_bound_bytes_per_s is 0; it must be above 0; leave"),
        ({"io_bound_bytes_per_s": -5.0}, "io_bound_bytes_per_s is -5; it must be above 0"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        Rule(**parameters)


class Row:
    """A job as figure 15 knows it."""

    def __init__(self, number, cmp, io, status):
        self.number, self.cmp, self.io, self.status = number, cmp, io, status
        self.next = None


def figure_15(rows, cmps, overall_io, io_bound_interval):
    """Procedure 4 line by line, pointers and all; returns who is suspended and resumed, in order.

    Two completions, both in the rule's docstring: every head moves on after a round (line 26), and
    the loop ends when no list has a head (the figure would loop for ever).
    """
    suspended, resumed = [], []
    head = []
    for i in range(cmps):  # lines 3, 10-12
        jobs = sorted((r for r in rows if r.cmp == i), key=lambda r: (-r.io, r.number))
        for job, following in itertools.pairwise(jobs):
            job.next = following
        head.append(jobs[0] if jobs else None)
    if overall_io > io_bound_interval:  # line 13
        while overall_io > io_bound_interval and any(head):  # line 17
            for i in range(cmps):  # line 18
                if head[i] is not None and head[i].status == "RUNNING":  # line 19
                    overall_io -= head[i].io  # line 20
                    head[i].status = "SUSPENDED"  # line 21
                    suspended.append(head[i].number)
                if overall_io <= io_bound_interval:  # line 23
                    break
            head = [job and job.next for job in head]  # line 26
    else:  # line 31
        for i in range(cmps):  # line 36
            while head[i] is not None:  # line 37
                if head[i].status == "SUSPENDED":  # line 38
                    head[i].status = "RESUMING"  # line 39
                    resumed.append(head[i].number)
                    break
                head[i] = head[i].next  # line 42
    return tuple(suspended), tuple(resumed)


JOB = st.tuples(st.integers(0, 3), st.integers(0, 12), st.booleans())


@given(st.lists(JOB, max_size=24), st.integers(1, 80))
def test_it_decides_as_figure_15_does(jobs, bound_mb):
    scene, rows, overall_io = scene_of(jobs), [], 0
    for number, (cmp, io_mb, held) in enumerate(jobs, start=1):
        overall_io += 0 if held else io_mb * MB
        if held or io_mb:  # section 3.2: jobs with non-zero I/O are put in the candidate queue
            status = "SUSPENDED" if held else "RUNNING"
            rows.append(Row(number, cmp, io_mb * MB, status))

    plan = plan_of(scene, bound_mb=float(bound_mb))

    expected = figure_15(rows, 4, overall_io, bound_mb * MB)
    assert expected == (plan.suspends, plan.resumes)


@given(st.lists(JOB, max_size=24), st.integers(1, 80))
def test_singly_it_suspends_as_ever_and_one_of_those_that_would_come_back_does(jobs, bound_mb):
    printed = plan_of(scene_of(jobs), bound_mb=float(bound_mb))
    singly = plan_of(scene_of(jobs), bound_mb=float(bound_mb), resume_singly=True)

    assert printed.suspends == singly.suspends
    assert len(singly.resumes) == min(1, len(printed.resumes))
    assert set(singly.resumes) <= set(printed.resumes)


@given(st.lists(JOB, max_size=24), st.integers(1, 80))
def test_by_shares_the_total_ends_below_the_bound_and_no_socket_below_its_share_is_touched(
    jobs, bound_mb
):
    scene, moved = Scene(platform(24, 24, 24, 24)), {}
    for number, (cmp, io_mb, _) in enumerate(jobs, start=1):
        scene.live(number, cmp, moved=io_mb * MB)
        moved[number] = (cmp, io_mb)

    plan = plan_of(scene, bound_mb=float(bound_mb), per_socket_share=True)

    left = sum(io for number, (_, io) in moved.items() if number not in plan.suspends)
    loads = [sum(io for cmp, io in moved.values() if cmp == socket) for socket in range(4)]
    assert left <= bound_mb
    assert all(loads[moved[number][0]] > bound_mb / 4 for number in plan.suspends)
