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
from tracing import then

from iodaemon.core import event as ev
from iodaemon.core.decision import Start
from iodaemon.core.handlers import START_RETRY_S
from iodaemon.core.job import FINAL, Exit, IoTotals, Job, JobState
from iodaemon.core.state import State


def rig_of_one_slot(*jobs, waiting=()):
    """The first of these runs, the others and then those numbers wait."""
    rig = Rig(State(platform(1)))
    rig.run(*jobs)
    for number in waiting:
        then(rig, submitted(job(number)))
    return rig


def reboot(at_s):
    note = "the machine was restarted while it ran"
    return msgspec.structs.replace(exited(at_s, end=Exit()), note=note, by_reboot=True)


def test_a_running_job_is_stopped_and_starts_again_as_a_new_attempt(rig):
    rig.run(job(1))
    then(rig, requeue(5.0), "stop 1", state="STOPPING")
    again = {"state": "STARTING", "attempt": 2, "partition": 0, "slots": (0,)}
    then(rig, exited(7.0, end=Exit(signal=15)), "start 1", **again)
    assert then(rig, (started(7.5, attempt=1), exited(7.6, attempt=1))).changed == ()
    then(rig, started(8.0, attempt=2))
    then(rig, exited(9.0, attempt=2), state="COMPLETED", attempt=2)


def test_a_suspended_job_is_let_go_to_end_and_held_by_nobody_afterwards(rig):
    rig.run(job(1))
    then(rig, hold(1.0), "suspend 1")
    then(rig, suspended(2.0))
    then(rig, requeue(3.0), "stop 1")
    then(rig, resumed(3.0))
    then(rig, exited(4.0), "start 1", attempt=2, wants_freeze=False)


@pytest.mark.parametrize("end", sorted(FINAL))
def test_an_ended_job_waits_again(end):
    rig = rig_of_one_slot(job(1), waiting=[2])
    rig.state.add(job(3, state=end, attempt=1, exit=Exit(code=3), run_s=4.0))
    anew = {"exit": None, "ended_s": None, "run_s": 0.0, "io": IoTotals(), "attempt": 1}
    plan = then(rig, requeue(5.0, 3), job_id=3, state="PENDING", **anew)

    assert "requeued by ann" == plan.transitions[-1].reason.text


# -- its place -------------------------------------------------------------------------------------


def run_out(rig, job_id, attempt=1):
    """The queue's order, by letting one job after the other run and end."""
    order = []
    while True:
        rig.step(exited(100.0, job_id, attempt))
        begun = [each.job_id for each in rig.backend.take() if isinstance(each, Start)]
        if not begun:
            return order
        [job_id] = begun
        attempt = rig.job(job_id).attempt
        order.append(job_id)


@pytest.mark.parametrize("end", sorted(FINAL - {JobState.LOST}))
def test_an_ended_job_that_is_requeued_waits_behind_all_that_were_there(end):
    rig = rig_of_one_slot(job(2))
    rig.state.add(job(1, state=end, attempt=1))
    then(rig, (submitted(job(3)), submitted(job(4))))
    then(rig, requeue(5.0, 1))
    then(rig, submitted(job(5, submitted_s=6.0)))

    assert [3, 4, 1, 5] == run_out(rig, 2)


@pytest.mark.parametrize(("by_uid", "order"), [(None, [2, 3, 1, 4]), (0, [1, 2, 3, 4])])
def test_a_running_job_waits_behind_all_if_its_user_requeues_it_and_else_keeps_its_place(
    by_uid, order
):
    """Or its user would keep the slot for ever, whatever it runs next."""
    rig = rig_of_one_slot(job(1), waiting=[2, 3])
    then(rig, msgspec.structs.replace(requeue(5.0), by_uid=by_uid), "stop 1")
    then(rig, submitted(job(4, submitted_s=6.0)))

    assert order == run_out(rig, 1)


def test_a_lost_job_that_is_requeued_keeps_its_place():
    rig = rig_of_one_slot(job(1), waiting=[2, 3, 4])
    then(rig, exited(5.0, 1), "start 2")
    then(rig, exited(6.0, 2, end=Exit()), "start 3")
    then(rig, requeue(7.0, 2), job_id=2, state="PENDING")

    assert [2, 4] == run_out(rig, 3)


def test_a_job_whose_start_failed_keeps_its_place():
    rig = rig_of_one_slot(job(1), waiting=[2, 3])
    then(rig, exited(5.0, 1), "start 2")
    failed = ev.StartFailed(at_s=6.0, job_id=2, attempt=1, problem="no room in /run")
    then(rig, failed, "start 3")
    then(rig, timer(6.0 + START_RETRY_S))
    then(rig, submitted(job(4)))

    assert [2, 4] == run_out(rig, 3)


def test_a_job_that_was_held_keeps_its_place():
    rig = rig_of_one_slot(job(1), waiting=[2, 3])
    then(rig, hold(1.0, 2))
    then(rig, release(2.0, 2))

    assert [2, 3] == run_out(rig, 1)


def test_the_place_of_a_requeued_job_outlives_a_restart_of_the_daemon():
    rig = rig_of_one_slot(job(2))
    rig.state.add(job(1, state=JobState.FAILED, attempt=1))
    then(rig, submitted(job(3)))
    then(rig, requeue(5.0, 1))
    records = [msgspec.json.encode(rig.job(number)) for number in (1, 2, 3)]

    again = Rig(State(platform(1)))
    again.state.restore([msgspec.json.decode(each, type=Job) for each in records], 4)
    again.state.check()

    assert [3, 1] == run_out(again, 2)


def test_two_requeued_jobs_are_in_the_order_in_which_they_were_requeued():
    rig = rig_of_one_slot(job(3))
    for number in (1, 2):
        rig.state.add(job(number, state=JobState.FAILED, attempt=1))
    then(rig, requeue(5.0, 2))
    then(rig, requeue(6.0, 1))

    assert [2, 1] == run_out(rig, 3)


# -- who is not, or no longer ----------------------------------------------------------------------


def test_a_job_that_only_the_journal_knows_is_recalled(rig):
    long_ago = job(1, state=JobState.FAILED, attempt=4, exit=Exit(code=1))
    then(rig, submitted(job(9)), "start 9", job_id=9)
    then(rig, requeue(5.0, ended=long_ago), "start 1", attempt=5)


def test_one_that_nobody_knows_is_ignored(rig):
    assert rig.step(requeue(5.0)).transitions == ()


@pytest.mark.parametrize("waits", [JobState.PENDING, JobState.HELD])
def test_a_job_that_waits_stays_as_it_is(waits):
    rig = rig_of_one_slot(job(1))
    then(rig, submitted(job(2, state=waits)))
    before = rig.job(2)
    then(rig, requeue(5.0, 2))

    assert rig.job(2) is before


def test_a_job_that_is_being_cancelled_is_not_requeued(rig):
    rig.run(job(1))
    then(rig, cancel(5.0), "stop 1")
    then(rig, requeue(6.0))
    then(rig, exited(7.0), state="CANCELLED")


def test_a_cancel_outdoes_the_requeue_before_it(rig):
    rig.run(job(1))
    then(rig, requeue(5.0, grace_s=10.0), "stop 1")
    then(rig, cancel(6.0, grace_s=1.0), wakes=7.0)
    then(rig, exited(6.5), state="CANCELLED", why="cancelled by ann")


def test_a_start_that_is_requeued_and_never_ran_is_made_again(rig):
    then(rig, submitted(job(1)), "start 1")
    then(rig, requeue(1.0), "stop 1")
    failed = ev.StartFailed(at_s=2.0, job_id=1, attempt=1, problem="never asked for")
    then(rig, failed, "start 1", attempt=2)


@pytest.mark.parametrize("asked", [True, False])
def test_after_a_reboot_it_runs_again_in_its_place_if_it_asked_for_that(asked):
    rig = rig_of_one_slot(job(1, requeue=asked), waiting=[2])
    then(rig, reboot(9.0), f"start {1 if asked else 2}", state="STARTING" if asked else "LOST")


def test_a_cancelled_job_does_not_run_again_after_a_reboot(rig):
    rig.run(job(1, requeue=True))
    then(rig, cancel(5.0), "stop 1")
    then(rig, reboot(9.0), state="CANCELLED")


# -- what a new attempt moves ----------------------------------------------------------------------


def moved(at_s, megabytes):
    return sampled(at_s, {1: counters(megabytes * MB, 0)})


def read_rate(rig):
    rate = rig.state.meter.bandwidth(1)
    return rate and rate.read_bytes_per_s


@pytest.mark.parametrize(
    ("started_s", "reads", "rates"),
    [
        (1.3, [(2.0, 150)], [150 * MB]),
        (2.5, [(2.0, 180), (3.0, 40)], [None, 40 * MB]),  # the first is of the last attempt
    ],
)
def test_the_counters_of_an_attempt_are_its_own(started_s, reads, rates):
    rig = rig_of_one_slot(job(1))
    then(rig, moved(0.0, 0))
    then(rig, moved(1.0, 100))
    then(rig, requeue(1.1), "stop 1")
    then(rig, exited(1.2, end=Exit(signal=15)), "start 1")
    assert rig.state.meter.counters(1) is None
    then(rig, started(started_s, attempt=2))
    for (at_s, megabytes), rate in zip(reads, rates, strict=True):
        then(rig, moved(at_s, megabytes))

        assert (rate, rate is None) == (read_rate(rig), rig.state.meter.counters(1) is None)
