"""A requeue: from where, what is kept, what is forgotten, and what can no longer reach it."""

import msgspec
import pytest
from builders import (
    MB,
    Rig,
    cancel,
    counters,
    exited,
    hold,
    job,
    platform,
    release,
    requeue,
    resumed,
    sampled,
    started,
    submitted,
    suspended,
    timer,
)

from iodaemon.core import event as ev
from iodaemon.core.decision import Kill, Start, Stop
from iodaemon.core.handlers import START_RETRY_S
from iodaemon.core.job import FINAL, Exit, IoTotals, Job, JobState
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


def started_ids(rig):
    return [decision.job_id for decision in rig.backend.take() if isinstance(decision, Start)]


def run_out(rig, job_id, attempt=1, at_s=100.0):
    """The queue's order, by letting one job after the other run and end."""
    order = []
    while True:
        rig.step(exited(at_s, job_id, attempt))
        begun = started_ids(rig)
        if not begun:
            return order
        [job_id] = begun
        attempt = rig.job(job_id).attempt
        order.append(job_id)


@pytest.mark.parametrize("end", sorted(FINAL - {JobState.LOST}))
def test_an_ended_job_that_is_requeued_waits_behind_all_that_were_there(end):
    rig = rig_of_one_slot(job(2))
    rig.state.add(job(1, state=end, attempt=1))
    rig.step(submitted(job(3)), submitted(job(4)))
    rig.step(requeue(5.0, 1))
    rig.step(submitted(job(5, submitted_s=6.0)))

    assert [3, 4, 1, 5] == run_out(rig, 2)


def test_a_running_job_that_its_user_requeues_waits_behind_all_that_were_there():
    """Or it would keep its slot for ever, whatever it runs next."""
    rig = rig_of_one_slot(job(1))
    rig.step(submitted(job(2)), submitted(job(3)))
    rig.step(requeue(5.0))
    rig.backend.take()
    rig.step(submitted(job(4, submitted_s=6.0)))

    assert [2, 3, 1, 4] == run_out(rig, 1)


def test_a_running_job_that_somebody_else_requeues_keeps_its_place():
    rig = rig_of_one_slot(job(1))
    rig.step(submitted(job(2)), submitted(job(3)))
    rig.step(msgspec.structs.replace(requeue(5.0), by_uid=0))
    rig.backend.take()

    assert [1, 2, 3] == run_out(rig, 1)


def test_a_lost_job_that_is_requeued_keeps_its_place():
    rig = rig_of_one_slot(job(1))
    rig.step(submitted(job(2)), submitted(job(3)), submitted(job(4)))
    rig.step(exited(5.0, 1))
    rig.backend.take()
    rig.step(exited(6.0, 2, end=Exit()))
    rig.backend.take()
    rig.step(requeue(7.0, 2))

    assert JobState.PENDING is rig.job(2).state
    assert [2, 4] == run_out(rig, 3)


def test_a_job_that_was_running_when_the_machine_was_restarted_keeps_its_place():
    rig = rig_of_one_slot(job(1, requeue=True))
    rig.step(submitted(job(2)), submitted(job(3)))

    rig.step(reboot(6.0))

    assert [1] == started_ids(rig)


def test_a_job_whose_start_failed_keeps_its_place():
    rig = rig_of_one_slot(job(1))
    rig.step(submitted(job(2)), submitted(job(3)))
    rig.step(exited(5.0, 1))
    rig.backend.take()
    rig.step(ev.StartFailed(at_s=6.0, job_id=2, attempt=1, problem="no room in /run"))
    rig.backend.take()
    rig.step(timer(6.0 + START_RETRY_S))
    rig.step(submitted(job(4)))

    assert [2, 4] == run_out(rig, 3)


def test_a_job_that_was_held_keeps_its_place():
    rig = rig_of_one_slot(job(1))
    rig.step(submitted(job(2)), submitted(job(3)), hold(1.0, 2))
    rig.step(release(2.0, 2))

    assert [2, 3] == run_out(rig, 1)


def test_the_place_of_a_requeued_job_outlives_a_restart_of_the_daemon():
    rig = rig_of_one_slot(job(2))
    rig.state.add(job(1, state=JobState.FAILED, attempt=1))
    rig.step(submitted(job(3)))
    rig.step(requeue(5.0, 1))
    records = [msgspec.json.encode(rig.job(number)) for number in (1, 2, 3)]

    again = Rig(State(platform(1)))
    again.state.restore([msgspec.json.decode(each, type=Job) for each in records], 4)
    again.state.check()

    assert [3, 1] == run_out(again, 2)


def test_two_requeued_jobs_are_in_the_order_in_which_they_were_requeued():
    rig = rig_of_one_slot(job(3))
    for number in (1, 2):
        rig.state.add(job(number, state=JobState.FAILED, attempt=1))
    rig.step(requeue(5.0, 2))
    rig.step(requeue(6.0, 1))

    assert [2, 1] == run_out(rig, 3)


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


# -- what a new attempt moves ----------------------------------------------------------------------


def moved(at_s, megabytes):
    return sampled(at_s, {1: counters(megabytes * MB, 0)})


def test_what_the_former_attempt_moved_is_not_taken_from_what_the_new_one_does():
    rig = rig_of_one_slot(job(1))
    for at_s, megabytes in ((0.0, 0), (1.0, 100)):
        rig.step(moved(at_s, megabytes))
    rig.step(requeue(1.1))
    rig.step(exited(1.2, end=Exit(signal=15)))
    assert rig.state.meter.counters(1) is None
    rig.step(started(1.3, attempt=2))
    rig.backend.take()

    rig.step(moved(2.0, 150))

    assert 150 * MB == rig.state.meter.bandwidth(1).read_bytes_per_s


def test_counters_of_the_former_attempt_that_come_late_count_for_nothing():
    rig = rig_of_one_slot(job(1))
    rig.step(moved(0.0, 0))
    rig.step(moved(1.0, 100))
    rig.step(requeue(1.1))
    rig.step(exited(1.2, end=Exit(signal=15)))
    rig.step(started(2.5, attempt=2))
    rig.backend.take()

    rig.step(moved(2.0, 180))
    assert rig.state.meter.bandwidth(1) is None
    assert rig.state.meter.counters(1) is None

    rig.step(moved(3.0, 40))
    assert 40 * MB == rig.state.meter.bandwidth(1).read_bytes_per_s
