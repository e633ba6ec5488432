"""Jobs that tell of their I/O phases: asked, granted, over, whatever becomes of them meanwhile."""

from typing import ClassVar

import msgspec
import pytest
from builders import (
    Script,
    cancel,
    counters,
    exited,
    hold,
    job,
    reason,
    sampled,
    started,
    submitted,
    suspended,
    timer,
)

from iodaemon.core import event as ev
from iodaemon.core.decision import Grant, RegulationPlan, Resume, Stop, Suspend
from iodaemon.core.job import JobId, JobState, Phase
from iodaemon.core.rule import Mode


class Turns(Script):
    """A script that is asked about phases as well."""

    hears_phases: ClassVar[bool] = True


def asked(at_s, job_id=1, expect_bytes=None):
    return ev.PhaseAsked(at_s=at_s, job_id=JobId(job_id), expect_bytes=expect_bytes)


def done(at_s, job_id=1):
    return ev.PhaseDone(at_s=at_s, job_id=JobId(job_id))


@pytest.fixture
def turns(rig):
    """The rig under a rule that gives turns when its script says so."""
    rules = msgspec.structs.replace(rig.controller.rules, regulation=Turns())
    rig.controller.use(rules)
    rig.regulation = rules.regulation
    rig.run(job(1), job(2), at_s=1.0)
    return rig


def give(rig, *job_ids):
    rig.regulation.plan = RegulationPlan(grants=tuple(map(JobId, job_ids)))


# -- under a rule that does not hear of phases -----------------------------------------------------


def test_a_phase_is_granted_at_once_where_no_rule_gives_turns(rig):
    rig.run(job(1))

    rig.step(asked(5.0, expect_bytes=2_000))

    assert [Grant(job_id=1)] == rig.backend.take()
    assert Phase(asked_s=5.0, expect_bytes=2_000, granted_s=5.0) == rig.job().phase
    assert rig.regulation.asked == 0


def test_a_job_that_asks_before_its_start_is_known_is_heard(rig):
    rig.step(submitted(job(1)))
    rig.backend.take()

    rig.step(asked(5.0))

    assert [Grant(job_id=1)] == rig.backend.take()
    assert rig.job().state is JobState.STARTING


# -- under one that does ---------------------------------------------------------------------------


def test_a_job_waits_until_the_rule_says_that_it_is_its_turn(turns):
    turns.step(asked(5.0))

    assert turns.regulation.asked == 1
    assert turns.job().waits_for_turn
    assert turns.state.reason(JobId(1)).code == "IoTurn"

    give(turns, 1)
    turns.step(sampled(6.0))

    assert [Grant(job_id=1)] == turns.backend.take()
    assert turns.job().phase.granted_s == 6.0
    assert turns.state.reason(JobId(1)) is None


def test_who_asks_twice_keeps_its_place(turns):
    turns.step(asked(5.0, expect_bytes=1))

    plan = turns.step(asked(7.0, expect_bytes=2))

    assert plan.changed == ()
    assert Phase(asked_s=5.0, expect_bytes=1) == turns.job().phase


def test_the_rule_is_asked_when_a_turn_is_given_back(turns):
    turns.step(asked(5.0), asked(5.0, 2))
    give(turns, 1)
    turns.step(sampled(6.0))
    turns.backend.take()

    give(turns, 2)
    turns.step(done(6.5))

    assert [Grant(job_id=2)] == turns.backend.take()
    assert turns.job(1).phase is None


def test_a_wait_is_withdrawn_by_the_same_word(turns):
    turns.step(asked(5.0))
    turns.step(done(6.0))

    assert turns.job().phase is None


def test_done_without_a_phase_changes_nothing(turns):
    plan = turns.step(done(6.0))

    assert plan.changed == ()
    assert turns.regulation.asked == 0


@pytest.mark.parametrize("is_granted", [True, False])
def test_the_end_of_a_job_ends_its_phase_and_the_rule_is_asked(turns, is_granted):
    if is_granted:
        give(turns, 1)
    turns.step(asked(5.0))
    turns.backend.take()

    turns.step(exited(6.0))

    assert turns.job().phase is None
    assert turns.regulation.asked == 2


def test_a_job_that_is_being_ended_keeps_its_turn_until_it_is_gone(turns):
    give(turns, 1)
    turns.step(asked(5.0))
    turns.step(cancel(6.0))

    assert [Grant(job_id=1), Stop(job_id=1)] == turns.backend.take()
    assert turns.job().has_turn


def test_a_start_that_failed_takes_its_phase_with_it(turns):
    turns.step(submitted(job(3)))
    turns.step(asked(5.0, 3))
    turns.backend.take()

    turns.step(ev.StartFailed(at_s=6.0, job_id=JobId(3), attempt=1, problem="no room"))

    assert turns.job(3).phase is None


def test_a_turn_can_be_taken_back(turns):
    give(turns, 1)
    turns.step(asked(5.0))
    turns.backend.take()

    turns.regulation.plan = RegulationPlan(revokes=(JobId(1),))
    turns.step(sampled(6.0))

    assert turns.job().phase is None


def test_of_a_job_that_is_not_there_nothing_is_heard(turns):
    turns.step(exited(2.0))

    assert turns.step(asked(3.0), asked(3.0, 77), done(3.0, 77)).changed == ()


def test_the_rule_says_why_somebody_waits(turns):
    turns.regulation.plan = RegulationPlan(reasons={JobId(1): reason("IoTurn", "job 2 has it")})
    turns.step(asked(5.0))

    assert turns.state.reason(JobId(1)).text == "job 2 has it"


# -- guards and modes ------------------------------------------------------------------------------


def test_nobody_waits_longer_than_it_may_be_suspended(turns):
    plan = turns.step(asked(5.0))
    assert plan.wake_at_s == 605.0

    turns.step(timer(605.0))

    assert [Grant(job_id=1)] == turns.backend.take()
    assert turns.job().immune_until_s == 1205.0


def test_a_turn_that_the_guard_gave_is_not_taken_back(turns):
    turns.step(asked(5.0))
    turns.step(timer(605.0))
    turns.backend.take()

    turns.regulation.plan = RegulationPlan(revokes=(JobId(1),))
    turns.step(sampled(606.0))

    assert turns.job().has_turn


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.OFF])
def test_whoever_waits_goes_on_when_regulation_is_switched(turns, mode):
    turns.step(asked(5.0))

    turns.step(ev.ModeChanged(at_s=6.0, mode=mode, by="ann"))

    assert [Grant(job_id=1)] == turns.backend.take()
    turns.step(asked(7.0, 2))
    assert [Grant(job_id=2)] == turns.backend.take()


def test_in_shadow_the_rule_sees_jobs_that_tell_of_nothing(turns):
    seen = []
    turns.step(ev.ModeChanged(at_s=4.0, mode=Mode.SHADOW, by="ann"))
    turns.regulation.look = lambda view: seen.extend(made.phase for made in view.live)
    turns.step(asked(5.0))
    turns.backend.take()

    turns.step(sampled(6.0, {1: counters()}))

    assert [None, None] == seen


def test_whoever_waits_goes_on_under_another_rule(turns):
    turns.step(asked(5.0))
    turns.controller.use(msgspec.structs.replace(turns.controller.rules, regulation=Script()))

    turns.step(sampled(6.0))

    assert [Grant(job_id=1)] == turns.backend.take()


def test_a_suspended_job_may_wait_and_gets_its_turn_with_its_resume(turns):
    turns.regulate(2.0)
    turns.regulate(3.0, suspends=(1,))
    turns.step(asked(3.1))
    turns.step(suspended(3.2))
    turns.regulation.plan = RegulationPlan(grants=(JobId(1),), resumes=(JobId(1),))
    turns.step(sampled(4.0))

    assert [Suspend(job_id=1), Grant(job_id=1), Resume(job_id=1)] == turns.backend.take()


def test_a_persons_hold_does_not_end_the_wait(turns):
    turns.step(asked(5.0))
    turns.step(hold(6.0))
    turns.backend.take()

    assert turns.job().waits_for_turn


def test_a_phase_outlives_the_journal(turns):
    give(turns, 1)
    turns.step(asked(5.0, expect_bytes=3))
    turns.backend.take()

    record = msgspec.json.encode(turns.job())

    assert msgspec.json.decode(record, type=type(turns.job())) == turns.job()


def test_starting_and_waiting_at_once_is_one_step(turns):
    turns.step(submitted(job(3)))
    turns.backend.take()

    turns.step(started(5.0, 3), asked(5.0, 3))

    assert turns.job(3).state is JobState.RUNNING
    assert turns.job(3).waits_for_turn
