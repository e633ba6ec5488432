"""What regulation leaves of the storage, and which jobs start while it leaves little or nothing."""

import pytest
from scene import MB, Scene, platform, queued, started

from iodaemon.core.job import JobId, Reason
from iodaemon.core.state import with_fields
from iodaemon.policy.admission import easy, equilibrio
from iodaemon.policy.admission.easy import Rule

BUDGET = easy.Rule(bandwidth_bytes_per_s=60.0 * MB)
NONE_NOW = "regulation leaves room for none now"


def under_headroom(left, *jobs):
    scene = Scene(platform(4)).live(1, 0, moved=50.0 * MB).queue(*jobs)
    scene.state.io_headroom_bytes_per_s = left
    return scene.view()


def test_without_headroom_only_those_start_that_are_not_known_to_do_io():
    jobs = [queued(2, rate=MB), queued(3), queued(4, rate=MB), queued(5, rate=0.0), queued(6)]

    plan, _ = Rule().decide(under_headroom(0.0, *jobs), None)

    assert [3, 5] == started(plan)
    assert {} == plan.reservations
    why = f"would add 1.0 MB/s of I/O; {NONE_NOW}"
    assert Reason(code="IoHeadroom", text=why) == plan.reasons[2]
    text = "fits beside job 2, which waits for the storage: takes nothing that one needs"
    assert f"{text}; passes 1 earlier job" == plan.starts[0].why.text


def test_what_started_since_the_last_sample_has_used_it_too():
    scene = Scene(platform(4)).live(1, 0, moved=50.0 * MB)
    scene.live(2, 0, moved=None, io_rate_bytes_per_s=8.0 * MB)
    scene.queue(queued(3, rate=6 * MB))
    scene.state.io_headroom_bytes_per_s = 10.0 * MB
    view = scene.view()

    before, _ = Rule().decide(view, None)
    late = scene.state.jobs[JobId(2)]
    scene.state.put(with_fields(late, started_s=2.0))
    after, _ = Rule().decide(view, None)

    assert ([3], []) == (started(before), started(after))


def test_a_job_that_never_finds_so_much_room_starts_when_it_is_as_good_as_alone():
    scene = Scene(platform(4)).live(1, 0, moved=0.1 * MB).queue(queued(2, rate=50 * MB))
    scene.state.io_headroom_bytes_per_s = 20.0 * MB

    assert [2] == started(Rule().decide(scene.view(), None)[0])


@pytest.mark.parametrize(
    ("left", "rates", "starts"),
    [
        (10.0 * MB, [6 * MB, 6 * MB, 3 * MB], [2, 4]),  # it is used up by those who start
        (0.0, [0.6 * MB, 0.4 * MB], [3]),  # next to nothing is not held back
    ],
)
def test_those_start_for_whom_there_is_headroom(left, rates, starts):
    jobs = [queued(number, rate=rate) for number, rate in enumerate(rates, start=2)]

    assert starts == started(Rule().decide(under_headroom(left, *jobs), None)[0])


@pytest.mark.parametrize("rule", [easy.Rule(), BUDGET, equilibrio.Rule(alpha=0.0)])
def test_every_rule_but_the_printed_one_heeds_it(rule):
    jobs = [queued(2, rate=9 * MB), queued(3), queued(4, rate=2 * MB)]

    plans = [rule.decide(under_headroom(left, *jobs), None)[0] for left in (0.0, 10.0 * MB, None)]

    assert [[3], [2, 3], [2, 3, 4]] == [sorted(started(plan)) for plan in plans]


def test_equilibrio_ranks_those_for_whom_there_is_room_and_tells_the_others():
    waiting = queued(2, rate=30 * MB), queued(5, rate=20 * MB)
    jobs = [*waiting, queued(3, at_s=1.0), queued(4, at_s=2.0, rate=0.0)]
    plan, _ = equilibrio.Rule().decide(under_headroom(0.0, *jobs), None)

    assert [3, 4] == started(plan)
    assert "passes 2 earlier jobs" in plan.starts[0].why.text
    assert plan.rest is not None
    assert {
        number: Reason(code="IoHeadroom", text=f"would add {mb}.0 MB/s of I/O; {NONE_NOW}")
        for number, mb in ((2, 30), (5, 20))
    } == plan.reasons


def test_who_has_waited_for_long_keeps_its_slots_until_there_is_headroom():
    jobs = [queued(2, cpus=2, rate=30 * MB), *(queued(i, at_s=990.0) for i in (3, 4))]
    rules = [equilibrio.Rule(longest_wait_s=wait_s) for wait_s in (None, 500.0)]

    plans = [rule.decide(under_headroom(0.0, *jobs), None)[0] for rule in rules]

    assert [[3, 4], [3]] == [started(plan) for plan in plans]
    assert ["IoHeadroom"] * 2 == [plan.reasons[2].code for plan in plans]
