"""The controller's guards hold in shadow as they would if regulation were on."""

import pytest
from builders import exited, job, sampled

from iodaemon.core import event as ev
from iodaemon.core.decision import Evidence, RegulationPlan, Suspend, Weighed
from iodaemon.core.job import JobId
from iodaemon.core.rule import Mode


def in_shadow(rig, *jobs):
    """These jobs run, their I/O is known, and regulation is in shadow."""
    rig.run(*jobs)
    rig.regulate(1.0)
    rig.regulate(2.0)
    rig.step(ev.ModeChanged(at_s=2.5, mode=Mode.SHADOW, by="ann"))
    return rig


def told(plan):
    return [(step.job_id, step.verdict) for step in plan.shadow]


def test_what_would_have_stood_still_counts_while_it_does(rig):
    in_shadow(rig, job(1), job(2))
    rig.regulate(3.0, suspends=(2, 1))
    rig.regulate(5.0, resumes=(1,))

    assert {1: 2.0, 2: 3.0} == rig.controller.regulator.shadow.stood_s(6.0)


def test_a_jobs_own_limit_counts(rig):
    in_shadow(rig, job(1, max_suspend_s=5.0))
    rig.regulate(3.0, suspends=(1,))

    assert [] == told(rig.regulate(7.0))
    assert [(1, "resume")] == told(rig.regulate(8.0))


def test_who_stood_still_for_long_is_left_alone_for_as_long(rig):
    in_shadow(rig, job(1, max_suspend_s=5.0))
    rig.regulate(3.0, suspends=(1,))
    rig.regulate(8.0)

    assert [] == told(rig.regulate(12.0, suspends=(1,)))
    assert [(1, "suspend")] == told(rig.regulate(13.0, suspends=(1,)))


def test_a_job_whose_io_is_unknown_would_not_be_suspended(rig):
    in_shadow(rig, job(1))
    rig.regulation.plan = RegulationPlan(suspends=(JobId(1),))

    assert () == rig.step(sampled(3.0, {})).shadow


def test_a_job_that_a_person_holds_would_not_be_suspended(rig):
    in_shadow(rig, job(1))
    rig.step(ev.SuspendRequested(at_s=2.6, job_id=JobId(1), by="ann"))

    assert [Suspend(job_id=JobId(1))] == rig.backend.take()
    assert [] == told(rig.regulate(3.0, suspends=(1,)))


def test_a_job_that_ends_stands_still_no_more(rig):
    in_shadow(rig, job(1))
    rig.regulate(3.0, suspends=(1,))
    rig.step(exited(4.5))

    [step] = rig.regulate(5.0).shadow
    assert ("resume", "Ended", 4.5, 1.5) == (
        step.verdict,
        step.reason.code,
        step.at_s,
        step.lasted_s,
    )
    assert {} == rig.controller.regulator.shadow.stood_s(9.0)


def test_to_switch_to_the_same_mode_forgets_nothing(rig):
    in_shadow(rig, job(1))
    rig.regulate(3.0, suspends=(1,))
    rig.step(ev.ModeChanged(at_s=3.5, mode=Mode.SHADOW, by="ann"))

    assert {1: 1.0} == rig.controller.regulator.shadow.stood_s(4.0)


@pytest.mark.parametrize("mode", [Mode.ON, Mode.OFF])
def test_what_would_have_stood_still_ends_with_the_shadow(rig, mode):
    in_shadow(rig, job(1), job(2))
    rig.regulate(3.0, suspends=(1, 2))

    plan = rig.step(ev.ModeChanged(at_s=5.0, mode=mode, by="ann"))

    assert [(1, "resume", 2.0), (2, "resume", 2.0)] == [
        (step.job_id, step.verdict, step.lasted_s) for step in plan.shadow
    ]


@pytest.mark.parametrize("mode", [Mode.ON, Mode.SHADOW])
def test_a_table_says_what_became_of_it_not_what_the_rule_wanted(rig, mode):
    rig.run(job(1), job(2, no_suspend=True))
    rig.regulate(1.0)
    rig.regulate(2.0)
    rig.step(ev.ModeChanged(at_s=2.5, mode=mode, by="ann"))

    plan = rig.regulate(3.0, suspends=(1, 2))

    [evidence] = plan.evidence
    assert ["suspend", "spared"] == [row.verdict for row in evidence.jobs]
    assert "a guard of the controller" in evidence.jobs[1].why
    rig.backend.take()


@pytest.mark.parametrize("mode", [Mode.ON, Mode.SHADOW])
def test_a_table_of_which_a_guard_left_nothing_is_none(rig, mode):
    rig.run(job(1, no_suspend=True))
    rig.regulate(1.0)
    rig.regulate(2.0)
    rig.step(ev.ModeChanged(at_s=2.5, mode=mode, by="ann"))
    row = Weighed(job_id=JobId(1), rate_bytes_per_s=1.0, load=1.0, verdict="suspend", why="x")
    wanted = Evidence(
        at_s=3.0,
        signal="total of all jobs",
        quantity="bandwidth",
        value=1.0,
        threshold=1.0,
        load=1.0,
        allowed=1.0,
        fits=None,
        total_bytes_per_s=1.0,
        jobs=(row,),
    )
    rig.regulation.plan = RegulationPlan(suspends=(JobId(1),), evidence=(wanted,))

    assert () == rig.step(sampled(3.0, {})).evidence
