"""Other rules and limits while jobs run and stand still."""

import msgspec
import pytest
from builders import (
    MB,
    InOrder,
    Script,
    counters,
    job,
    resumed,
    sampled,
    started,
    submitted,
    suspended,
    timer,
)

from iodaemon.core import event as ev
from iodaemon.core.decision import RegulationPlan, Resume, Start
from iodaemon.core.job import JobState
from iodaemon.core.limits import Sharing
from iodaemon.core.rule import Mode


@pytest.fixture
def held(rig):
    """Job 1 stands still, job 2 runs."""
    rig.run(job(1), job(2))
    rig.regulate(1.0)
    rig.regulate(2.0, suspends=(1,))
    rig.step(suspended(2.1))
    rig.backend.take()
    return rig


def changed(rig, at_s, *, sharing=None, **rules):
    made = msgspec.structs.replace(rig.controller.rules, **rules) if rules else None
    return ev.Reconfigured(at_s=at_s, by="ann", changes=("x",), rules=made, sharing=sharing)


def test_what_another_regulation_held_is_let_go(held):
    plan = held.step(changed(held, 3.0, regulation=Script()))

    assert [Resume(job_id=1)] == held.backend.take()
    [evidence] = plan.evidence
    assert ("resume", "the policy was changed") == (
        evidence.jobs[0].verdict,
        evidence.jobs[0].why,
    )
    held.step(resumed(3.1))
    assert JobState.RUNNING is held.job(1).state


def test_a_sample_in_the_same_instant_does_not_hold_it_again(held):
    rule = Script()
    rule.plan = RegulationPlan(suspends=(1,))
    moved = sampled(3.0, {1: counters(3 * MB), 2: counters(3 * MB)})

    held.step(changed(held, 3.0, regulation=rule), moved)

    assert 0 == rule.asked
    assert [Resume(job_id=1)] == held.backend.take()


def test_with_the_same_regulation_what_is_held_stays_held(held):
    held.step(changed(held, 3.0, admission=InOrder()))

    assert [] == held.backend.take()
    assert JobState.SUSPENDED_IO is held.job(1).state


def test_a_persons_hold_is_nobodys_to_change(rig):
    rig.run(job(1))
    rig.step(ev.SuspendRequested(at_s=1.0, job_id=1, by="ann"))
    rig.step(suspended(1.1))
    rig.backend.take()

    rig.step(changed(rig, 2.0, regulation=Script()))

    assert [] == rig.backend.take()
    assert JobState.SUSPENDED_USER is rig.job(1).state


def test_a_shorter_longest_suspension_binds_what_stands_still_already(held):
    plan = held.step(changed(held, 3.0, max_suspend_s=5.0))

    assert 7.0 == plan.wake_at_s
    held.step(timer(7.0))
    assert [Resume(job_id=1)] == held.backend.take()


def test_in_shadow_what_would_stand_still_ends_with_its_rule(rig):
    rig.run(job(1), job(2))
    rig.regulate(1.0)
    rig.step(ev.ModeChanged(at_s=1.5, mode=Mode.SHADOW, by="ann"))
    rig.regulate(2.0, suspends=(1,))

    plan = rig.step(changed(rig, 3.0, regulation=Script()))

    assert [(1, "resume", 1.0)] == [(s.job_id, s.verdict, s.lasted_s) for s in plan.shadow]


def test_a_raised_limit_starts_who_waited_for_it_at_once(rig):
    rig.step(changed(rig, 0.0, sharing=Sharing(max_running=1)))
    rig.step(submitted(job(1)), submitted(job(2)))
    assert [1] == [d.job_id for d in rig.backend.take()]

    rig.step(changed(rig, 1.0, sharing=Sharing(max_running=2)))

    assert [2] == [d.job_id for d in rig.backend.take() if isinstance(d, Start)]


def test_a_lowered_limit_takes_nothing_from_anybody(rig):
    rig.run(job(1), job(2))

    rig.step(changed(rig, 1.0, sharing=Sharing(max_running=1)))
    rig.step(submitted(job(3)))

    assert [] == rig.backend.take()
    assert "UserLimit" == rig.state.reason(3).code


def test_a_job_that_was_starting_goes_on(rig):
    rig.step(submitted(job(1)))
    rig.backend.take()
    rig.step(changed(rig, 1.0, regulation=Script()))
    rig.step(started(1.1))

    assert JobState.RUNNING is rig.job(1).state
