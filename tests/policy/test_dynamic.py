"""The published rule, beside a literal copy of its figure."""

import itertools

import pytest
from builders import reason
from hypothesis import given
from hypothesis import strategies as st
from scene import MB, NOW_S, Scene, platform

from iodaemon.core.decision import RegulationPlan
from iodaemon.core.job import JobState, Reason
from iodaemon.policy.regulation.dynamic import Rule


def decide(scene, *, bound_mb=40.0, memory=None, **parameters):
    rule = Rule(io_bound_bytes_per_s=bound_mb * MB, **parameters)
    return rule.decide(scene.view(), memory)


def scene_of(jobs, *sockets):
    """Jobs from 1 on, each (socket, MB/s, whether it is suspended)."""
    scene = Scene(platform(*(sockets or [24] * 4)))
    for number, (cmp, io_mb, held) in enumerate(jobs, start=1):
        if held:
            scene.live(number, cmp, held=True, last=io_mb * MB)
        else:
            scene.live(number, cmp, moved=io_mb * MB)
    return scene


def plan_of(scene, **parameters):
    return decide(scene, **parameters)[0]


STOPPING = {"state": JobState.STOPPING, "stop": JobState.CANCELLED, "reason": reason("Cancelled")}
ONE_HELD = {"io_hold": True, "io_held_since_s": 1.0}
SPARED = {
    "what moved nothing": {"moved": 0.0},
    "what is not known": {"moved": None, "last": 90 * MB},
    "what may not be suspended": {"moved": 90 * MB, "no_suspend": True},
    "what is immune": {"moved": 90 * MB, "immune_until_s": NOW_S + 1.0},
    "what is being stopped": {"moved": 90 * MB, **STOPPING},
    "what is about to stand still": {"moved": 90 * MB, **ONE_HELD},
}


@pytest.mark.parametrize("known", SPARED.values(), ids=SPARED)
def test_it_suspends_another_than(known):
    """It may count in the total all the same."""
    scene = Scene(platform(4)).live(1, 0, **known).live(2, 0, moved=41 * MB)

    assert (2,) == plan_of(scene).suspends


def test_an_immunity_ends_and_the_last_running_job_is_suspended_as_printed():
    assert (1,) == plan_of(
        Scene(platform(4)).live(1, 0, moved=41 * MB, immune_until_s=NOW_S)
    ).suspends


def test_the_rate_before_the_suspension_is_remembered_and_outranks_the_predicted_one():
    scene = Scene(platform(4)).live(1, 0, moved=30 * MB).live(2, 0, moved=20 * MB)
    held = Scene(platform(4)).live(1, 0, held=True, last=9 * MB).live(2, 0, held=True, last=1 * MB)
    plan, memory = decide(held, memory={2: 80.0 * MB})

    assert {1: 30 * MB} == decide(scene)[1]
    assert ((2,), {1: 9 * MB}) == (plan.resumes, memory)


def test_reasons_name_the_numbers():
    scene = Scene(platform(3, 3)).live(1, 1, moved=30_100_000).live(2, 1, moved=31_100_000)

    plan = plan_of(scene, bound_mb=20.0)

    text = "total 61.2 MB/s is above the bound 20 MB/s; this job moved"
    assert plan.reasons == {
        2: Reason(code="IoBound", text=f"{text} 31.1 MB/s, the most on socket 1"),
        1: Reason(code="IoBound", text=f"{text} 30.1 MB/s, number 2 on socket 1"),
    }


def test_shares_touch_only_sockets_above_theirs_and_none_while_the_whole_is_below_the_bound():
    # 41 of 40: printed, socket 0 goes first; by shares of 20 only socket 1 (26) is touched.
    jobs = [(0, 15, False), (1, 12, False), (1, 14, False)]
    busy = Scene(platform(3, 3)).live(1, 0, moved=30 * MB).live(2, 1, moved=5 * MB)
    two = [
        plan_of(scene_of(jobs, 24, 24), per_socket_share=shared).suspends
        for shared in (False, True)
    ]

    assert [(1,), (3,)] == two
    assert RegulationPlan() == plan_of(busy, per_socket_share=True)


def test_without_a_bound_nothing_is_regulated_and_the_suspended_go():
    scene = Scene(platform(4)).live(1, 0, moved=900 * MB).live(2, 0, held=True, last=9 * MB)
    scene.live(3, 0, held=True)

    plan, memory = Rule().decide(scene.view(), {2: 9.0 * MB})

    assert (RegulationPlan(resumes=(2, 3)), None) == (plan, memory)


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
