"""A cancel: at once, after the grace time, and what the end is called."""

import pytest
from builders import (
    Rig,
    cancel,
    exited,
    hold,
    job,
    platform,
    requeue,
    resumed,
    started,
    submitted,
    suspended,
    timer,
)

from iodaemon.core import event as ev
from iodaemon.core.controller import WALLTIME_GRACE_S
from iodaemon.core.decision import Kill, Stop
from iodaemon.core.job import Exit, JobState
from iodaemon.core.state import State


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.HELD])
def test_a_cancel_before_the_start_is_final_at_once(state):
    rig = Rig(State(platform(1)))
    rig.run(job(1))
    rig.step(submitted(job(2, state=state)))

    rig.step(cancel(1.0, 2))

    assert rig.job(2).state is JobState.CANCELLED
    assert rig.job(2).reason.text == "cancelled by ann"
    rig.backend.check()


def test_a_cancel_of_a_starting_job_stops_it(rig):
    rig.step(submitted(job(1)))
    rig.backend.take()

    rig.step(cancel(1.0))

    assert [Stop(job_id=1)] == rig.backend.take()

    rig.step(started(2.0))
    rig.step(exited(3.0, end=Exit(signal=15)))

    assert rig.job().state is JobState.CANCELLED
    assert rig.job().started_s == 2.0


def test_a_cancelled_job_is_killed_after_the_grace_time(rig):
    rig.run(job(1))

    plan = rig.step(cancel(5.0, grace_s=10.0))

    assert [Stop(job_id=1)] == rig.backend.take()
    assert plan.wake_at_s == 15.0

    rig.step(timer(14.9))
    rig.backend.check()
    plan = rig.step(timer(15.0))

    assert [Kill(job_id=1)] == rig.backend.take()
    assert plan.wake_at_s is None

    rig.step(exited(16.0, end=Exit(signal=9)))

    assert rig.job().state is JobState.CANCELLED
    assert rig.job().reason.text == "cancelled by ann"


def test_a_cancel_without_grace_kills_at_once(rig):
    rig.run(job(1))

    rig.step(cancel(5.0, grace_s=0.0))

    assert [Stop(job_id=1), Kill(job_id=1)] == rig.backend.take()


def test_a_second_cancel_can_only_bring_the_kill_forward(rig):
    rig.run(job(1))
    rig.step(cancel(5.0, grace_s=10.0))
    rig.backend.take()

    assert rig.step(cancel(6.0, grace_s=60.0)).wake_at_s == 15.0
    assert rig.step(cancel(7.0, grace_s=2.0)).wake_at_s == 9.0


def test_a_cancel_after_the_kill_kills_again(rig):
    rig.run(job(1))
    rig.step(cancel(5.0, grace_s=0.0))
    rig.backend.take()

    rig.step(cancel(9.0, grace_s=10.0))

    assert [Kill(job_id=1)] == rig.backend.take()


@pytest.mark.parametrize("end", [Exit(signal=15), Exit(code=0), Exit(code=3), Exit()])
def test_a_stopped_job_is_called_by_why_it_was_stopped(rig, end):
    rig.run(job(1))
    rig.step(cancel(5.0))
    rig.backend.take()
    rig.step(ev.StopDelayed(at_s=6.0, job_id=1, problem="in uninterruptible sleep"))

    assert rig.job().reason.text == "in uninterruptible sleep"

    rig.step(exited(7.0, end=end))

    assert rig.job().state is JobState.CANCELLED
    assert rig.job().reason.text == "cancelled by ann"


def test_a_cancel_ends_every_hold(rig):
    rig.run(job(1))
    rig.step(hold(1.0))
    rig.step(suspended(2.0))
    rig.backend.take()

    rig.step(cancel(3.0))

    assert [Stop(job_id=1)] == rig.backend.take()
    assert not rig.job().wants_freeze

    rig.step(resumed(3.0))
    rig.step(exited(4.0))

    assert rig.job().state is JobState.CANCELLED


# -- limits stay in force while a job is being ended ---------------------------------------------


FOR_EVER_S = 1e300


@pytest.mark.parametrize("ask", [cancel, requeue])
def test_a_grace_time_does_not_outlast_the_walltime(rig, ask):
    rig.run(job(1, walltime_s=100.0))

    rig.step(ask(40.0, grace_s=FOR_EVER_S))
    rig.backend.take()

    assert 100.0 + WALLTIME_GRACE_S == rig.step(timer(50.0)).wake_at_s
    rig.step(timer(100.0 + WALLTIME_GRACE_S))
    assert [Kill(job_id=1)] == rig.backend.take()


def test_time_in_which_a_job_stood_still_is_no_part_of_its_walltime_when_it_is_ended(rig):
    rig.run(job(1, walltime_s=100.0))
    rig.step(hold(30.0))
    rig.step(suspended(30.0))

    plan = rig.step(cancel(500.0, grace_s=FOR_EVER_S))
    rig.backend.take()

    assert 500.0 + 70.0 + WALLTIME_GRACE_S == plan.wake_at_s


def test_a_shorter_grace_time_than_what_is_left_of_the_walltime_counts(rig):
    rig.run(job(1, walltime_s=100.0))

    assert 45.0 == rig.step(cancel(40.0, grace_s=5.0)).wake_at_s
    rig.backend.take()


def test_a_job_that_was_killed_is_not_killed_again_by_its_walltime(rig):
    rig.run(job(1, walltime_s=100.0))
    rig.step(cancel(40.0, grace_s=5.0))
    rig.step(timer(45.0))
    rig.backend.take()

    assert rig.step(timer(500.0)).wake_at_s is None
