"""Regulation on, in shadow, off and under another rule, refills, and the evidence it leaves."""

import msgspec
import pytest
from builders import (
    MB,
    InOrder,
    Script,
    counters,
    exited,
    hold,
    job,
    reason,
    release,
    resumed,
    sampled,
    started,
    submitted,
    suspended,
    timer,
)
from tracing import measured, then, timeslice

from iodaemon.core import event as ev
from iodaemon.core.decision import Evidence, RegulationPlan, Weighed
from iodaemon.core.job import JobId, JobState
from iodaemon.core.limits import Sharing
from iodaemon.core.rule import Mode

LEAVING = [Mode.OFF, Mode.SHADOW]


@pytest.fixture
def busy(rig):
    """Jobs 1 and 2 run and their I/O is known."""
    return measured(rig, job(1), job(2))


@pytest.fixture
def held(busy):
    """Job 1 stands still since 3 s."""
    then(busy, timeslice(busy, 3.0, suspends=(1,)), "suspend 1")
    then(busy, suspended(3.1), state="SUSPENDED_IO")
    return busy


def switch(at_s, mode):
    return ev.ModeChanged(at_s=at_s, mode=mode, by="ann")


@pytest.fixture
def shadow(busy):
    then(busy, switch(2.5, Mode.SHADOW))
    return busy


def shown(plan):
    """What would have been done: job, verdict, and for how long it would have stood still."""
    return [(step.job_id, step.verdict, step.lasted_s) for step in plan.shadow]


# -- switched --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", LEAVING)
def test_any_mode_but_on_lets_go_what_is_held(held, mode):
    then(held, switch(4.0, mode), "resume 1")


def test_a_persons_hold_is_kept_by_every_mode_and_rule(busy):
    then(busy, hold(2.2), "suspend 1")
    then(busy, suspended(2.3))
    then(busy, switch(3.0, Mode.OFF))
    then(busy, changed(busy, 4.0, regulation=Script()), state="SUSPENDED_USER")


def test_switched_off_the_rule_is_not_asked_and_switched_on_again_it_acts(busy):
    then(busy, switch(2.5, Mode.OFF))
    assert () == then(busy, timeslice(busy, 3.0, suspends=(1,))).shadow
    then(busy, switch(3.5, Mode.ON))
    then(busy, timeslice(busy, 4.0, suspends=(1,)), "suspend 1")


# -- in shadow -------------------------------------------------------------------------------------


def test_in_shadow_nothing_is_touched_and_what_would_have_been_done_is_told(shadow):
    plan = then(shadow, timeslice(shadow, 3.0, suspends=(1,)), state="RUNNING")

    assert [(1, "suspend", None)] == shown(plan)
    assert ([True], {}) == ([each.is_shadow for each in plan.evidence], shadow.state.evidence)


def test_in_shadow_the_rule_goes_on_from_its_own_decisions(shadow):
    then(shadow, timeslice(shadow, 3.0, suspends=(1,)))
    seen = []
    shadow.regulation.look = lambda view: seen.append(
        ([each.id for each in view.running], [each.id for each in view.suspended])
    )
    plan = then(shadow, timeslice(shadow, 7.0, resumes=(1,)))

    assert [([2], [1])] == seen
    assert [(1, "resume", 4.0)] == shown(plan)


def test_shadow_lets_go_after_max_suspend_as_the_guard_would(shadow):
    then(shadow, timeslice(shadow, 3.0, suspends=(1,)))
    [step] = then(shadow, timeslice(shadow, 603.0)).shadow

    assert ("resume", "MaxSuspend", 600.0) == (step.verdict, step.reason.code, step.lasted_s)


def test_in_shadow_a_jobs_own_limit_counts_and_then_it_is_immune_for_as_long(rig):
    measured(rig, job(1, max_suspend_s=5.0))
    then(rig, switch(2.5, Mode.SHADOW))
    seen = [
        shown(then(rig, timeslice(rig, at_s, suspends=suspends)))
        for at_s, suspends in ((3.0, (1,)), (7.0, ()), (8.0, ()), (12.0, (1,)), (13.0, (1,)))
    ]

    assert [[(1, "suspend", None)], [], [(1, "resume", 5.0)], [], [(1, "suspend", None)]] == seen


@pytest.mark.parametrize("why", ["no suspend", "unknown", "held"])
def test_in_shadow_the_guards_hold(rig, why):
    measured(rig, job(1, no_suspend=why == "no suspend"))
    then(rig, switch(2.5, Mode.SHADOW))
    if why == "held":
        then(rig, hold(2.6), "suspend 1")
    event = timeslice(rig, 3.0, suspends=(1,))

    assert () == then(rig, sampled(3.0, {}) if why == "unknown" else event).shadow


def test_what_would_have_stood_still_counts_while_it_does(shadow):
    stood_s = shadow.controller.regulator.shadow.stood_s
    then(shadow, timeslice(shadow, 3.0, suspends=(2, 1)))
    then(shadow, switch(3.5, Mode.SHADOW))  # the same mode forgets nothing
    then(shadow, timeslice(shadow, 5.0, resumes=(1,)))

    assert {1: 2.0, 2: 3.0} == stood_s(6.0)

    then(shadow, exited(6.5, 2))
    [step] = then(shadow, timeslice(shadow, 7.0)).shadow

    assert ("resume", "Ended", 6.5, 3.5) == (
        step.verdict,
        step.reason.code,
        step.at_s,
        step.lasted_s,
    )
    assert {1: 2.0} == stood_s(9.0)


@pytest.mark.parametrize("leave", [Mode.ON, Mode.OFF, "another rule"])
def test_what_would_have_stood_still_ends_with_the_shadow_or_its_rule(shadow, leave):
    then(shadow, timeslice(shadow, 3.0, suspends=(1, 2)))
    by = leave in list(Mode)
    event = switch(5.0, leave) if by else changed(shadow, 5.0, regulation=Script())

    assert [(1, "resume", 2.0), (2, "resume", 2.0)] == shown(then(shadow, event))


# -- evidence --------------------------------------------------------------------------------------


def test_a_suspension_keeps_the_slices_table_and_a_slice_without_action_leaves_none(busy):
    assert () == then(busy, timeslice(busy, 2.5)).evidence
    [evidence] = then(busy, timeslice(busy, 3.0, suspends=(1,)), "suspend 1").evidence

    assert [(1, "suspend"), (2, "spared")] == [(row.job_id, row.verdict) for row in evidence.jobs]
    assert {JobId(1): evidence} == busy.state.evidence


@pytest.mark.parametrize("mode", [Mode.ON, Mode.SHADOW])
def test_a_table_says_what_became_of_it_not_what_the_rule_wanted(rig, mode):
    measured(rig, job(1), job(2, no_suspend=True))
    then(rig, switch(2.5, mode))
    decided = ["suspend 1"] if mode is Mode.ON else []
    [evidence] = then(rig, timeslice(rig, 3.0, suspends=(1, 2)), *decided).evidence

    assert ["suspend", "spared"] == [row.verdict for row in evidence.jobs]
    assert "a guard of the controller" in evidence.jobs[1].why


@pytest.mark.parametrize("mode", [Mode.ON, Mode.SHADOW])
def test_a_table_of_which_a_guard_left_nothing_is_none(rig, mode):
    measured(rig, job(1, no_suspend=True))
    then(rig, switch(2.5, mode))
    row = Weighed(job_id=JobId(1), rate_bytes_per_s=1.0, load=1.0, verdict="suspend", why="x")
    numbers = ("at_s", "value", "threshold", "load", "allowed", "total_bytes_per_s")
    wanted = Evidence(
        signal="total", quantity="bandwidth", fits=None, jobs=(row,), **dict.fromkeys(numbers, 1.0)
    )
    event = timeslice(rig, 3.0, suspends=(1,), evidence=(wanted,))

    assert () == then(rig, event).evidence


# -- why it goes on --------------------------------------------------------------------------------

RELEASES = {
    "Fits": lambda rig: timeslice(rig, 4.0, resumes=(1,), reasons={1: reason("Fits")}),
    "MaxSuspend": lambda rig: timer(603.0),
    "Mode": lambda rig: switch(4.0, Mode.OFF),
}


@pytest.mark.parametrize("code", RELEASES)
def test_a_resume_has_its_reason_in_the_jobs_history(held, code):
    then(held, RELEASES[code](held), "resume 1")
    plan = then(held, resumed(700.0), reason=None)

    assert [("RUNNING", code)] == [(step.after, step.reason.code) for step in plan.transitions]


def test_a_resume_by_a_person_is_not_the_regulations(held):
    then(held, hold(3.2))
    then(held, switch(4.0, Mode.OFF))
    then(held, release(5.0), "resume 1")
    plan = then(held, resumed(5.1))

    assert [("RUNNING", None)] == [(step.after, step.reason) for step in plan.transitions]


# -- reconfigured ----------------------------------------------------------------------------------


def changed(rig, at_s, *, sharing=None, **rules):
    made = msgspec.structs.replace(rig.controller.rules, **rules) if rules else None
    return ev.Reconfigured(at_s=at_s, by="ann", changes=("x",), rules=made, sharing=sharing)


def test_what_another_regulation_held_is_let_go(held):
    [evidence] = then(held, changed(held, 3.5, regulation=Script()), "resume 1").evidence

    assert "resume" == evidence.jobs[0].verdict
    assert "the policy was changed" == evidence.jobs[0].why
    then(held, resumed(3.6), state="RUNNING")


def test_a_sample_in_the_same_instant_does_not_hold_it_again(held):
    rule = Script()
    rule.plan = RegulationPlan(suspends=(1,))
    moved = sampled(4.0, {1: counters(3 * MB), 2: counters(3 * MB)})
    then(held, (changed(held, 4.0, regulation=rule), moved), "resume 1")

    assert 0 == rule.asked


def test_with_the_same_regulation_what_is_held_stays_held(held):
    then(held, changed(held, 4.0, admission=InOrder()), state="SUSPENDED_IO")


def test_a_shorter_longest_suspension_binds_what_stands_still_already(held):
    then(held, changed(held, 4.0, max_suspend_s=5.0), wakes=8.0)
    then(held, timer(8.0), "resume 1")


def test_another_limit_of_users_starts_who_waited_for_it_and_takes_nothing_from_anybody(rig):
    then(rig, changed(rig, 0.0, sharing=Sharing(max_running=1)))
    then(rig, (submitted(job(1)), submitted(job(2))), "start 1")
    then(rig, changed(rig, 1.0, sharing=Sharing(max_running=2)), "start 2")
    then(rig, changed(rig, 2.0, sharing=Sharing(max_running=1)))
    then(rig, submitted(job(3)), job_id=3, waits="UserLimit")


def test_a_job_that_was_starting_goes_on_under_another_rule(rig):
    then(rig, submitted(job(1)), "start 1")
    then(rig, changed(rig, 1.0, regulation=Script()))
    then(rig, started(1.1), state="RUNNING")


# -- a job ends between two samples ----------------------------------------------------------------


class Refiller(Script):
    """Resumes job 2 whenever a job ends, and counts how often it is asked to."""

    def __init__(self):
        super().__init__()
        self.refills = 0

    def refill(self, view, memory):
        self.refills += 1
        held = tuple(each.id for each in view.suspended if each.id == 2)
        return RegulationPlan(resumes=held, io_headroom_bytes_per_s=7.0), memory


@pytest.fixture
def refiller(rig):
    """Jobs 1, 2 and 3 run; their rule refills."""
    rig.regulation = Refiller()
    rig.controller.use(msgspec.structs.replace(rig.controller.rules, regulation=rig.regulation))
    return measured(rig, job(1), job(2), job(3))


def hold_second(rig):
    then(rig, timeslice(rig, 3.0, suspends=(2,)), "suspend 2")
    then(rig, suspended(3.1, 2), job_id=2, state=JobState.SUSPENDED_IO)


def test_the_end_of_a_job_lets_another_go_at_once(refiller):
    hold_second(refiller)
    then(refiller, exited(3.4, 1), "resume 2")

    assert 7.0 == refiller.state.io_headroom_bytes_per_s


@pytest.mark.parametrize("why", ["with a sample", "nobody is held", "switched off"])
def test_the_rule_is_not_asked_to_refill(refiller, why):
    if why != "nobody is held":
        hold_second(refiller)
    if why == "switched off":
        then(refiller, switch(3.2, Mode.OFF), "resume 2")
    event = exited(3.4, 1)
    then(refiller, (event, timeslice(refiller, 3.4)) if why == "with a sample" else event)

    assert 0 == refiller.regulation.refills


def test_a_rule_that_does_not_refill_waits_for_its_timeslice(busy):
    hold_second(busy)
    then(busy, exited(3.4, 1))

    assert 3 == busy.regulation.asked


def test_in_shadow_it_is_asked_to_refill_and_nothing_is_touched(refiller):
    then(refiller, switch(2.5, Mode.SHADOW))
    then(refiller, timeslice(refiller, 3.0, suspends=(2,)))
    [step] = then(refiller, exited(3.4, 1)).shadow

    assert (2, "resume", 3.4) == (step.job_id, step.verdict, step.at_s)
