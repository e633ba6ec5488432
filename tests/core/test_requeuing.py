"""A requeue: from where, what is kept, what is forgotten, and what can no longer reach it."""

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
from iodaemon.core.decision import Kill, Start, Stop
from iodaemon.core.job import FINAL, Exit, IoTotals, JobState
from iodaemon.core.state import State


def rig_of_one_slot(*jobs):
    rig = Rig(State(platform(1)))
    rig.run(*jobs)
    return rig


def reboot(at_s, attempt=1):
    return ev.JobExited(
        at_s=at_s,
        job_id=1,
        attempt=attempt,
        exit=Exit(),
        io=IoTotals(),
        note="the machine was restarted while it ran",
        by_reboot=True,
    )


def test_a_running_job_is_stopped_and_starts_again_as_a_new_attempt(rig):
    rig.run(job(1))

    rig.step(requeue(5.0))

    assert rig.job().state is JobState.STOPPING
    assert [Stop(job_id=1)] == rig.backend.take()

    rig.step(exited(7.0, end=Exit(signal=15)))

    assert [Start(job_id=1, attempt=2, partition=0, slots=(0,))] == rig.backend.take()
    rig.step(started(8.0, attempt=2))
    rig.step(exited(9.0, attempt=2))
    assert (JobState.COMPLETED, 2) == (rig.job().state, rig.job().attempt)


def test_it_is_killed_after_the_grace_time(rig):
    rig.run(job(1))
    rig.step(requeue(5.0, grace_s=10.0))
    rig.backend.take()

    rig.step(timer(15.0))

    assert [Kill(job_id=1)] == rig.backend.take()


def test_a_second_requeue_can_only_bring_the_kill_forward(rig):
    rig.run(job(1))
    rig.step(requeue(5.0, grace_s=10.0))
    rig.backend.take()

    assert rig.step(requeue(6.0, grace_s=60.0)).wake_at_s == 15.0
    assert rig.step(requeue(7.0, grace_s=2.0)).wake_at_s == 9.0


def test_a_suspended_job_is_let_go_to_end_and_held_by_nobody_afterwards(rig):
    rig.run(job(1))
    rig.step(hold(1.0))
    rig.step(suspended(2.0))
    rig.backend.take()

    rig.step(requeue(3.0))

    assert [Stop(job_id=1)] == rig.backend.take()

    rig.step(resumed(3.0))
    rig.step(exited(4.0))

    assert [Start(job_id=1, attempt=2, partition=0, slots=(0,))] == rig.backend.take()
    assert not rig.job().wants_freeze


@pytest.mark.parametrize("end", sorted(FINAL))
def test_an_ended_job_waits_again(end):
    rig = rig_of_one_slot(job(1))
    rig.step(submitted(job(2)))
    rig.state.add(job(3, state=end, attempt=1, exit=Exit(code=3), run_s=4.0))

    plan = rig.step(requeue(5.0, 3))

    again = rig.job(3)
    assert JobState.PENDING is again.state
    assert (None, None, 0.0, IoTotals(), 1) == (
        again.exit,
        again.ended_s,
        again.run_s,
        again.io,
        again.attempt,
    )
    assert "requeued by ann" == plan.transitions[-1].reason.text


def test_it_takes_its_old_place_in_the_queue():
    rig = rig_of_one_slot(job(1))
    rig.step(submitted(job(2)), submitted(job(3)))

    rig.step(requeue(5.0))
    rig.backend.take()
    rig.step(exited(6.0, end=Exit(signal=15)))

    assert [Start(job_id=1, attempt=2, partition=0, slots=(0,))] == rig.backend.take()


def test_a_job_that_only_the_journal_knows_is_recalled(rig):
    long_ago = job(1, state=JobState.FAILED, attempt=4, exit=Exit(code=1))
    rig.step(submitted(job(9)))
    rig.backend.take()

    rig.step(requeue(5.0, ended=long_ago))

    [start] = rig.backend.take()
    assert (1, 5) == (start.job_id, start.attempt)


def test_one_that_nobody_knows_is_ignored(rig):
    assert rig.step(requeue(5.0)).transitions == ()


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.HELD])
def test_a_job_that_waits_stays_as_it_is(state):
    rig = rig_of_one_slot(job(1))
    rig.step(submitted(job(2, state=state)))
    before = rig.job(2)

    rig.step(requeue(5.0, 2))

    assert rig.job(2) is before


def test_a_job_that_is_being_cancelled_is_not_requeued(rig):
    rig.run(job(1))
    rig.step(cancel(5.0))
    rig.backend.take()

    rig.step(requeue(6.0))
    rig.step(exited(7.0))

    assert JobState.CANCELLED is rig.job().state


def test_a_cancel_outdoes_the_requeue_before_it(rig):
    rig.run(job(1))
    rig.step(requeue(5.0, grace_s=10.0))
    rig.backend.take()

    assert rig.step(cancel(6.0, grace_s=1.0)).wake_at_s == 7.0

    rig.step(exited(6.5))

    assert JobState.CANCELLED is rig.job().state
    assert "cancelled by ann" == rig.job().reason.text


def test_a_start_that_is_requeued_and_never_ran_is_made_again(rig):
    rig.step(submitted(job(1)))
    rig.step(requeue(1.0))
    rig.backend.take()

    rig.step(ev.StartFailed(at_s=2.0, job_id=1, attempt=1, problem="never asked for"))

    assert [Start(job_id=1, attempt=2, partition=0, slots=(0,))] == rig.backend.take()


def test_a_word_about_the_last_attempt_changes_nothing(rig):
    rig.run(job(1))
    rig.step(requeue(5.0))
    rig.step(exited(6.0))
    rig.backend.take()

    rig.step(started(6.5, attempt=1))
    rig.step(exited(7.0, attempt=1))

    assert (JobState.STARTING, 2) == (rig.job().state, rig.job().attempt)


@pytest.mark.parametrize(("asked", "after"), [(True, "STARTING"), (False, "LOST")])
def test_after_a_reboot_it_runs_again_if_it_asked_for_that(rig, asked, after):
    rig.run(job(1, requeue=asked))

    rig.step(reboot(9.0))
    rig.backend.take()

    assert after == rig.job().state


def test_a_cancelled_job_does_not_run_again_after_a_reboot(rig):
    rig.run(job(1, requeue=True))
    rig.step(cancel(5.0))
    rig.backend.take()

    rig.step(reboot(9.0))

    assert JobState.CANCELLED is rig.job().state
