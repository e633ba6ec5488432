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
from tracing import then, timeslice

from iodaemon.core import event as ev
from iodaemon.core.job import JobId, Phase
from iodaemon.core.rule import Mode


class Turns(Script):
    """A script that is asked about phases as well."""

    hears_phases: ClassVar[bool] = True


def asked(at_s, job_id=1, expect_bytes=None):
    return ev.PhaseAsked(at_s=at_s, job_id=JobId(job_id), expect_bytes=expect_bytes)


def done(at_s, job_id=1):
    return ev.PhaseDone(at_s=at_s, job_id=JobId(job_id))


def switch(at_s, mode):
    return ev.ModeChanged(at_s=at_s, mode=mode, by="ann")


@pytest.fixture
def turns(rig):
    """Jobs 1 and 2 run under a rule that gives turns when its script says so."""
    rules = msgspec.structs.replace(rig.controller.rules, regulation=Turns())
    rig.controller.use(rules)
    rig.regulation = rules.regulation
    rig.run(job(1), job(2), at_s=1.0)
    return rig


@pytest.fixture
def waiting(turns):
    """Job 1 asked at 5 s."""
    then(turns, asked(5.0, expect_bytes=1), waits="IoTurn", waits_for_turn=True)
    return turns


@pytest.fixture
def having(waiting):
    """Job 1 has its turn since 6 s."""
    then(waiting, timeslice(waiting, 6.0, grants=(1,)), "grant 1", has_turn=True, waits=None)
    return waiting


# -- under a rule that does not hear of phases -----------------------------------------------------


def test_a_phase_is_granted_at_once_where_no_rule_gives_turns(rig):
    rig.run(job(1))
    phase = Phase(asked_s=5.0, expect_bytes=2_000, granted_s=5.0)
    then(rig, asked(5.0, expect_bytes=2_000), "grant 1", phase=phase)
    assert rig.regulation.asked == 0


def test_a_job_that_asks_before_its_start_is_known_is_heard(rig):
    then(rig, submitted(job(1)), "start 1")
    then(rig, asked(5.0), "grant 1", state="STARTING")


# -- under one that does ---------------------------------------------------------------------------


def test_a_job_waits_until_the_rule_says_that_it_is_its_turn(waiting):
    assert waiting.regulation.asked == 1
    granted = Phase(asked_s=5.0, expect_bytes=1, granted_s=6.0)
    then(waiting, timeslice(waiting, 6.0, grants=(1,)), "grant 1", phase=granted, waits=None)


def test_who_asks_twice_keeps_its_place(waiting):
    phase = Phase(asked_s=5.0, expect_bytes=1)
    assert then(waiting, asked(7.0, expect_bytes=2), phase=phase).changed == ()


def test_the_rule_is_asked_when_a_turn_is_given_back(having):
    then(having, asked(6.2, 2))
    timeslice(having, 6.5, grants=(2,))
    then(having, done(6.5), "grant 2", phase=None)


def test_a_wait_is_withdrawn_by_the_same_word_and_without_one_it_changes_nothing(waiting):
    then(waiting, done(6.0), phase=None)
    before = waiting.regulation.asked
    assert then(waiting, done(7.0)).changed == ()
    assert before == waiting.regulation.asked


@pytest.mark.parametrize("is_granted", [True, False])
def test_the_end_of_a_job_ends_its_phase_and_the_rule_is_asked(request, is_granted):
    rig = request.getfixturevalue("having" if is_granted else "waiting")
    before = rig.regulation.asked
    then(rig, exited(7.0), phase=None)
    assert before + 1 == rig.regulation.asked


def test_a_job_that_is_being_ended_keeps_its_turn_until_it_is_gone(having):
    then(having, cancel(7.0), "stop 1", has_turn=True)


def test_a_start_that_failed_takes_its_phase_with_it(turns):
    then(turns, submitted(job(3)), "start 3")
    then(turns, asked(5.0, 3))
    failed = ev.StartFailed(at_s=6.0, job_id=JobId(3), attempt=1, problem="no room")
    then(turns, failed, job_id=3, phase=None)


def test_a_turn_can_be_taken_back(having):
    then(having, timeslice(having, 7.0, revokes=(1,)), phase=None)


def test_of_a_job_that_is_not_there_nothing_is_heard(turns):
    then(turns, exited(2.0))
    assert then(turns, (asked(3.0), asked(3.0, 77), done(3.0, 77))).changed == ()


def test_the_rule_says_why_somebody_waits(turns):
    timeslice(turns, 5.0, reasons={JobId(1): reason("IoTurn", "job 2 has it")})
    then(turns, asked(5.0))
    assert turns.state.reason(JobId(1)).text == "job 2 has it"


def test_starting_and_waiting_at_once_is_one_step(turns):
    then(turns, submitted(job(3)), "start 3")
    both = {"state": "RUNNING", "waits_for_turn": True}
    then(turns, (started(5.0, 3), asked(5.0, 3)), job_id=3, **both)


# -- guards and modes ------------------------------------------------------------------------------


def test_nobody_waits_longer_than_it_may_be_suspended(turns):
    then(turns, asked(5.0), wakes=605.0)
    then(turns, timer(605.0), "grant 1", immune_until_s=1205.0)
    then(turns, timeslice(turns, 606.0, revokes=(1,)), has_turn=True)  # what the guard gave stays


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.OFF])
def test_whoever_waits_goes_on_when_regulation_is_switched(waiting, mode):
    then(waiting, switch(6.0, mode), "grant 1")
    then(waiting, asked(7.0, 2), "grant 2")


def test_whoever_waits_goes_on_under_another_rule(waiting):
    waiting.controller.use(msgspec.structs.replace(waiting.controller.rules, regulation=Script()))
    then(waiting, sampled(6.0), "grant 1")


def test_in_shadow_the_rule_sees_jobs_that_tell_of_nothing(turns):
    seen = []
    then(turns, switch(4.0, Mode.SHADOW))
    turns.regulation.look = lambda view: seen.extend(made.phase for made in view.live)
    then(turns, asked(5.0), "grant 1")
    then(turns, sampled(6.0, {1: counters()}))

    assert [None, None] == seen


def test_a_suspended_job_may_wait_and_gets_its_turn_with_its_resume(turns):
    then(turns, timeslice(turns, 2.0))
    then(turns, timeslice(turns, 3.0, suspends=(1,)), "suspend 1")
    then(turns, asked(3.1))
    then(turns, suspended(3.2))
    then(turns, timeslice(turns, 4.0, grants=(1,), resumes=(1,)), "grant 1", "resume 1")


def test_a_persons_hold_does_not_end_the_wait(waiting):
    then(waiting, hold(6.0), "suspend 1", waits_for_turn=True)


def test_a_phase_outlives_the_journal(having):
    record = msgspec.json.encode(having.job())

    assert having.job() == msgspec.json.decode(record, type=type(having.job()))
