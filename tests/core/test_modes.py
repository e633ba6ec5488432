"""Regulation on, in shadow, off; and the evidence that it leaves."""

import pytest
from builders import job, resumed, suspended

from iodaemon.core import event as ev
from iodaemon.core.decision import RegulationPlan, Resume, Suspend
from iodaemon.core.job import JobId, JobState, Reason
from iodaemon.core.rule import Mode


@pytest.fixture
def busy(rig):
    """Jobs 1 and 2 run and their I/O is known."""
    rig.run(job(1), job(2))
    rig.regulate(1.0)
    rig.regulate(2.0)
    return rig


def switch(at_s, mode):
    return ev.ModeChanged(at_s=at_s, mode=mode, by="ann")


def test_in_shadow_nothing_is_touched_and_what_would_have_been_done_is_told(busy):
    busy.step(switch(2.5, Mode.SHADOW))

    plan = busy.regulate(3.0, suspends=(1,))

    assert plan.decisions == ()
    assert [(s.job_id, s.verdict) for s in plan.shadow] == [(1, "suspend")]
    assert busy.job().state is JobState.RUNNING


def test_in_shadow_the_rule_goes_on_from_its_own_decisions(busy):
    busy.step(switch(2.5, Mode.SHADOW))
    busy.regulate(3.0, suspends=(1,))
    seen = []
    busy.regulation.look = lambda view: seen.append(
        ([j.id for j in view.running], [j.id for j in view.suspended])
    )

    plan = busy.regulate(7.0, resumes=(1,))

    assert seen == [([2], [1])]
    assert [(s.verdict, s.lasted_s) for s in plan.shadow] == [("resume", 4.0)]


def test_shadow_lets_go_after_max_suspend_as_the_guard_would(busy):
    busy.step(switch(2.5, Mode.SHADOW))
    busy.regulate(3.0, suspends=(1,))

    plan = busy.regulate(603.0)

    assert [(s.verdict, s.reason.code, s.lasted_s) for s in plan.shadow] == [
        ("resume", "MaxSuspend", 600.0)
    ]


def test_in_shadow_a_job_that_asked_not_to_be_suspended_would_not_be(rig):
    rig.run(job(1, no_suspend=True))
    rig.regulate(1.0)
    rig.step(switch(1.5, Mode.SHADOW))

    assert rig.regulate(2.0, suspends=(1,)).shadow == ()


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.OFF])
def test_any_mode_but_on_lets_go_what_is_held(busy, mode):
    busy.regulate(3.0, suspends=(1,))
    busy.step(suspended(3.1))
    busy.backend.take()

    busy.step(switch(4.0, mode))

    assert busy.backend.take() == [Resume(job_id=1)]


def test_a_persons_hold_is_kept_by_every_mode(busy):
    busy.step(ev.SuspendRequested(at_s=2.2, job_id=1, by="ann"))
    busy.step(suspended(2.3))
    busy.backend.take()

    busy.step(switch(3.0, Mode.OFF))

    assert busy.backend.take() == []
    assert busy.job().state is JobState.SUSPENDED_USER


def test_switched_off_the_rule_is_not_asked(busy):
    busy.step(switch(2.5, Mode.OFF))

    plan = busy.regulate(3.0, suspends=(1,))

    assert plan.decisions == ()
    assert plan.shadow == ()


def test_switched_on_again_it_acts(busy):
    busy.step(switch(2.5, Mode.OFF))
    busy.step(switch(2.6, Mode.ON))

    busy.regulate(3.0, suspends=(1,))

    assert busy.backend.take() == [Suspend(job_id=1)]


def test_a_suspension_keeps_the_slices_table(busy):
    plan = busy.regulate(3.0, suspends=(1,))

    [evidence] = plan.evidence
    assert busy.backend.take() == [Suspend(job_id=1)]
    assert [(row.job_id, row.verdict) for row in evidence.jobs] == [(1, "suspend"), (2, "spared")]
    assert busy.state.evidence == {JobId(1): evidence}


def test_a_slice_without_action_leaves_no_evidence(busy):
    assert busy.regulate(3.0).evidence == ()


def test_evidence_of_a_shadow_says_so_and_is_not_the_jobs(busy):
    busy.step(switch(2.5, Mode.SHADOW))

    plan = busy.regulate(3.0, suspends=(1,))

    assert [evidence.is_shadow for evidence in plan.evidence] == [True]
    assert busy.state.evidence == {}
    for live in (1, 2):
        assert busy.job(live).state is JobState.RUNNING


# -- why it goes on --------------------------------------------------------------------------------


def history(plan):
    return [(step.after, step.reason and step.reason.code) for step in plan.transitions]


def held(busy):
    busy.regulate(3.0, suspends=(1,))
    busy.step(suspended(3.1))
    busy.backend.take()
    return busy


def test_a_resume_has_the_rules_reason_in_the_jobs_history(busy):
    held(busy)
    why = Reason(code="Fits", text="there is room")
    busy.regulation.plan = RegulationPlan(resumes=(JobId(1),), reasons={JobId(1): why})
    busy.step(ev.SampleTaken(at_s=4.0, sample=busy.state.meter.last))
    busy.backend.take()

    assert [(JobState.RUNNING, "Fits")] == history(busy.step(resumed(4.1)))
    assert busy.job().reason is None


def test_a_resume_by_the_guard_says_so(busy):
    held(busy)
    busy.step(ev.TimerFired(at_s=603.0))
    busy.backend.take()

    assert [(JobState.RUNNING, "MaxSuspend")] == history(busy.step(resumed(603.1)))


def test_a_resume_by_a_switch_says_so(busy):
    held(busy)
    busy.step(switch(4.0, Mode.OFF))
    busy.backend.take()

    assert [(JobState.RUNNING, "Mode")] == history(busy.step(resumed(4.1)))


def test_a_resume_by_a_person_is_not_the_regulations(busy):
    held(busy)
    busy.step(ev.SuspendRequested(at_s=3.2, job_id=JobId(1), by="ann"))
    busy.step(switch(4.0, Mode.OFF))
    busy.step(ev.ResumeRequested(at_s=5.0, job_id=JobId(1), by="ann"))
    busy.backend.take()

    assert [(JobState.RUNNING, None)] == history(busy.step(resumed(5.1)))
