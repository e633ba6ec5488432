"""Two independent hold bits, the guards over every rule, and the walltime."""

import itertools

import msgspec
import pytest
from builders import (
    Rig,
    cancel,
    counters,
    exited,
    hold,
    job,
    release,
    resumed,
    sampled,
    started,
    submitted,
    suspended,
    timer,
)

from iodaemon.core import event as ev
from iodaemon.core.controller import WALLTIME_GRACE_S
from iodaemon.core.decision import Kill, Resume, Start, Stop, Suspend
from iodaemon.core.job import Exit, JobState


@pytest.fixture
def busy(rig):
    """Job 1 runs and its I/O is known."""
    rig.run(job(1))
    rig.regulate(1.0)
    rig.regulate(2.0)
    return rig


def suspend_failed(at_s, *, frozen):
    return ev.SuspendFailed(at_s=at_s, job_id=1, frozen=frozen, problem="hung mount")


def answer(rig, at_s):
    """Do what a backend does with the decisions so far, until there are no more."""
    while decisions := rig.backend.take():
        for decision in decisions:
            word = suspended if isinstance(decision, Suspend) else resumed
            rig.step(word(at_s, decision.job_id))


def test_a_regulated_job_stands_still_when_the_world_says_so(busy):
    busy.regulate(3.0, suspends=(1,))

    assert [Suspend(job_id=1)] == busy.backend.take()
    assert (busy.job().state, busy.job().state_shown) == (JobState.RUNNING, "SUSPENDED_IO...")

    busy.step(suspended(3.5))

    assert busy.job().state is JobState.SUSPENDED_IO
    assert busy.job().reason.code == "IoBound"

    busy.regulate(4.0, resumes=(1,))

    assert [Resume(job_id=1)] == busy.backend.take()
    assert busy.job().state is JobState.SUSPENDED_IO

    busy.step(resumed(4.5))

    assert busy.job().state is JobState.RUNNING
    assert (busy.job().run_s, busy.job().suspended_io_s) == (3.5, 1.0)


HOLD, RELEASE, HEAVY, LIGHT = "hold", "release", "suspend", "resume"


@pytest.mark.parametrize(
    "order",
    sorted(set(itertools.permutations([HOLD, RELEASE, HEAVY, LIGHT]))),
    ids="-".join,
)
def test_a_job_runs_exactly_when_both_holds_are_clear_in_every_order(busy, order):
    user_hold = io_hold = False
    for number, what in enumerate(order):
        at_s = 3.0 + number
        match what:
            case "hold":
                busy.step(hold(at_s))
                user_hold = True
            case "release":
                busy.step(release(at_s))
                user_hold = False
            case "suspend":
                busy.regulate(at_s, suspends=(1,))
                io_hold = not user_hold  # a job that stands still is not suspended again
            case "resume":
                busy.regulate(at_s, resumes=(1,))
                io_hold = False
        answer(busy, at_s + 0.5)

        assert (user_hold, io_hold) == (busy.job().user_hold, busy.job().io_hold)
        assert _state_of(user_hold=user_hold, io_hold=io_hold) is busy.job().state


def _state_of(*, user_hold, io_hold):
    if user_hold:
        return JobState.SUSPENDED_USER
    return JobState.SUSPENDED_IO if io_hold else JobState.RUNNING


def test_each_hold_shows_its_own_reason(busy):
    busy.regulate(3.0, suspends=(1,))
    answer(busy, 3.0)
    busy.step(hold(4.0))

    assert busy.job().reason.text == "suspended by ann"

    busy.step(release(5.0))

    assert busy.job().reason.code == "IoBound"


def test_a_hold_taken_back_before_it_was_confirmed_leaves_the_job_running(busy):
    busy.step(hold(3.0))
    busy.step(release(3.1))
    answer(busy, 3.2)

    assert busy.job().state is JobState.RUNNING
    assert not busy.job().frozen


def test_a_hold_renewed_before_the_resume_was_confirmed_keeps_the_job_still(busy):
    busy.step(hold(3.0))
    busy.step(release(3.1))
    busy.step(hold(3.2))
    answer(busy, 3.3)

    assert busy.job().state is JobState.SUSPENDED_USER


def test_a_waiting_job_is_held_and_released(rig):
    rig.run(job(1, cpus=2), job(2, cpus=2))
    rig.step(submitted(job(3)))
    rig.step(hold(1.0, 3))

    assert rig.job(3).state is JobState.HELD

    rig.step(exited(2.0, 1))
    rig.backend.check()
    rig.step(release(3.0, 3))

    assert [Start(job_id=3, attempt=1, partition=0, slots=(0,))] == rig.backend.take()


def test_a_job_held_while_it_starts_is_stopped_as_soon_as_it_runs(rig):
    rig.step(submitted(job(1)))
    rig.backend.take()
    rig.step(hold(1.0))
    rig.backend.check()

    rig.step(started(2.0))

    assert [Suspend(job_id=1)] == rig.backend.take()


def test_a_thaw_nobody_asked_for_ends_the_hold_of_the_regulation(busy):
    busy.regulate(3.0, suspends=(1,))
    answer(busy, 3.0)

    busy.step(resumed(9.0))

    assert busy.job().state is JobState.RUNNING
    assert not busy.job().io_hold


def test_a_thaw_nobody_asked_for_is_undone_where_a_person_holds_the_job(busy):
    busy.step(hold(3.0))
    answer(busy, 3.0)

    busy.step(resumed(9.0))

    assert [Suspend(job_id=1)] == busy.backend.take()
    assert busy.job().user_hold


def test_a_standstill_nobody_asked_for_is_undone(busy):
    busy.step(suspended(9.0))

    assert [Resume(job_id=1)] == busy.backend.take()
    assert busy.job().reason.code == "Adopted"


def test_a_suspend_that_failed_is_not_tried_for_ever(busy):
    busy.regulate(3.0, suspends=(1,))
    busy.backend.take()

    busy.step(suspend_failed(8.0, frozen=False))

    assert busy.job().state is JobState.RUNNING
    assert busy.job().reason.text == "hung mount"
    assert not busy.job().wants_freeze


def test_a_failure_that_left_the_job_running_makes_a_suspended_job_run(busy):
    busy.regulate(3.0, suspends=(1,))
    answer(busy, 3.0)

    busy.step(suspend_failed(8.0, frozen=False))

    assert busy.job().state is JobState.RUNNING


def test_a_resume_that_failed_is_asked_again(busy):
    busy.regulate(3.0, suspends=(1,))
    answer(busy, 3.0)
    busy.regulate(4.0, resumes=(1,))
    busy.backend.take()

    busy.step(suspend_failed(8.0, frozen=True))

    assert [Resume(job_id=1)] == busy.backend.take()
    assert busy.job().state is JobState.SUSPENDED_IO


def test_a_failure_to_suspend_a_stopping_job_does_not_hide_why_it_stops(busy):
    busy.step(hold(3.0))
    busy.step(cancel(4.0))
    busy.backend.take()

    busy.step(suspend_failed(5.0, frozen=False))

    assert busy.job().reason.text == "cancelled by ann"


# -- the guards over every rule ---------------------------------------------------------------


def test_a_job_submitted_with_no_suspend_is_never_suspended(rig):
    rig.run(job(1, no_suspend=True))
    rig.regulate(1.0)
    rig.regulate(2.0)

    rig.regulate(3.0, suspends=(1,))

    assert not rig.job().io_hold


def test_a_job_whose_io_is_unknown_is_left_alone(rig):
    rig.run(job(1))
    rig.regulate(1.0)
    rig.step(sampled(2.0, {1: counters(None, None)}))

    rig.regulate(2.5, suspends=(1,))

    assert not rig.job().io_hold


def test_a_job_that_is_only_starting_cannot_be_suspended(rig):
    rig.step(submitted(job(1)))
    rig.backend.take()
    rig.step(sampled(1.0, {1: counters()}))

    rig.regulate(2.0, suspends=(1,))

    assert not rig.job().io_hold


def test_a_job_is_suspended_no_longer_in_a_row_than_the_guard_allows(busy):
    plan = busy.regulate(3.0, suspends=(1,))
    answer(busy, 3.0)

    assert plan.wake_at_s == 603.0

    busy.step(timer(603.0))

    assert [Resume(job_id=1)] == busy.backend.take()

    busy.step(resumed(603.0))

    assert busy.job().immune_until_s == 1203.0


def test_a_job_that_was_held_too_long_is_immune_for_as_long(busy):
    busy.regulate(3.0, suspends=(1,))
    answer(busy, 3.0)
    busy.step(timer(603.0))
    answer(busy, 603.0)

    busy.regulate(1202.0, suspends=(1,))

    assert not busy.job().io_hold

    busy.regulate(1203.0, suspends=(1,))

    assert [Suspend(job_id=1)] == busy.backend.take()


def test_the_job_may_ask_for_a_shorter_guard(rig):
    rig.run(job(1, max_suspend_s=30.0))
    rig.regulate(1.0)
    rig.regulate(2.0)

    assert rig.regulate(3.0, suspends=(1,)).wake_at_s == 33.0
    assert [Suspend(job_id=1)] == rig.backend.take()


def test_the_guard_holds_where_the_job_is_released_and_suspended_in_one_plan(busy):
    busy.regulate(3.0, suspends=(1,))
    busy.regulate(4.0, suspends=(1,), resumes=(1,))

    assert [Suspend(job_id=1), Resume(job_id=1)] == busy.backend.take()
    assert not busy.job().io_hold


def test_the_guard_also_ends_a_hold_behind_a_persons_hold(busy):
    busy.regulate(3.0, suspends=(1,))
    answer(busy, 3.0)
    busy.step(hold(4.0))

    busy.step(timer(603.0))

    assert (busy.job().io_hold, busy.job().user_hold) == (False, True)


# -- walltime ---------------------------------------------------------------------------------


def test_a_job_past_its_walltime_is_stopped_then_killed(rig):
    rig.run(job(1, walltime_s=10.0))

    assert rig.step(timer(1.0)).wake_at_s == 10.0

    plan = rig.step(timer(10.0))

    assert [Stop(job_id=1)] == rig.backend.take()
    assert plan.wake_at_s == 10.0 + WALLTIME_GRACE_S

    rig.step(timer(plan.wake_at_s))

    assert [Kill(job_id=1)] == rig.backend.take()

    rig.step(exited(21.0, end=Exit(signal=9)))

    assert rig.job().state is JobState.TIMEOUT
    assert rig.job().reason.text == "ran for its walltime of 10 s"


def test_suspended_time_does_not_count_against_the_walltime(rig):
    rig.run(job(1, walltime_s=10.0))
    rig.step(hold(4.0))
    rig.step(suspended(4.0))

    assert rig.step(timer(100.0)).wake_at_s is None

    rig.step(release(104.0))
    plan = rig.step(resumed(104.0))
    rig.backend.take()

    assert plan.wake_at_s == 110.0

    rig.step(timer(110.0))

    assert [Stop(job_id=1)] == rig.backend.take()
    assert rig.job().state is JobState.STOPPING


def test_a_job_that_ends_at_its_walltime_has_completed(rig):
    rig.run(job(1, walltime_s=10.0))

    rig.step(exited(10.0), timer(10.0))

    assert rig.job().state is JobState.COMPLETED


def test_a_cancel_of_a_job_past_its_walltime_leaves_it_a_timeout(rig: Rig):
    rig.run(job(1, walltime_s=10.0))
    rig.step(timer(10.0))
    rig.step(cancel(11.0, grace_s=0.0))
    rig.backend.take()

    rig.step(exited(12.0, end=Exit(signal=9)))

    assert rig.job().state is JobState.TIMEOUT


def delayed(at_s):
    return ev.StopDelayed(at_s=at_s, job_id=1, problem="the supervisor does not answer")


def test_a_standstill_that_is_delayed_says_why_until_it_is_there(busy):
    busy.step(hold(3.0, 1))
    busy.step(delayed(4.0))

    assert ("RUNNING", "HoldDelayed") == (str(busy.job().state), busy.job().reason.code)

    busy.step(suspended(5.0))

    assert ("SUSPENDED_USER", "Suspended") == (str(busy.job().state), busy.job().reason.code)

    busy.step(release(6.0, 1))
    busy.step(delayed(7.0))

    assert ("SUSPENDED_USER", "HoldDelayed") == (str(busy.job().state), busy.job().reason.code)

    busy.step(hold(8.0, 1))
    busy.step(suspended(9.0))

    assert ("SUSPENDED_USER", "Suspended") == (str(busy.job().state), busy.job().reason.code)
    assert [Suspend, Resume, Suspend] == [type(each) for each in busy.backend.take()]


def test_a_standstill_that_nobody_wants_any_more_leaves_no_reason(busy):
    busy.step(hold(3.0, 1))
    busy.step(delayed(4.0))
    busy.step(release(5.0, 1))
    busy.step(resumed(6.0))

    assert (JobState.RUNNING, None) == (busy.job().state, busy.job().reason)
    assert [Suspend, Resume] == [type(each) for each in busy.backend.take()]


def test_an_end_that_is_delayed_says_why_until_the_job_has_been_told(busy):
    busy.step(cancel(3.0, 1))
    busy.step(delayed(4.0))

    assert "StopDelayed" == busy.job().reason.code

    busy.step(resumed(5.0))

    assert "Cancelled" == busy.job().reason.code
    assert [Stop] == [type(each) for each in busy.backend.take()]


# -- an administrator's hold -----------------------------------------------------------------------


ROOT, OWNER = 0, 1000


def hold_by(uid, at_s=1.0, job_id=1):
    return msgspec.structs.replace(hold(at_s, job_id), by_uid=uid)


def test_who_suspended_a_job_is_recorded_where_it_is_not_its_own_user(rig):
    rig.run(job(1), job(2))
    rig.step(hold_by(ROOT), hold_by(OWNER, job_id=2))
    rig.backend.take()

    assert (ROOT, None) == (rig.job(1).held_by_uid, rig.job(2).held_by_uid)


@pytest.mark.parametrize("order", [(ROOT, OWNER), (OWNER, ROOT), (OWNER, ROOT, OWNER)])
def test_an_administrators_hold_stays_one_whoever_else_suspends_the_job(rig, order):
    rig.run(job(1))
    rig.step(hold_by(order[0]))
    rig.step(suspended(1.5))
    for uid in order[1:]:
        rig.step(hold_by(uid, 2.0))
    rig.backend.take()

    assert (True, ROOT) == (rig.job().user_hold, rig.job().held_by_uid)
    assert rig.job().reason == rig.job().user_hold_reason


def test_once_resumed_it_is_nobodys(rig):
    rig.run(job(1))
    rig.step(hold_by(ROOT))
    rig.step(suspended(2.0), release(3.0))
    rig.backend.take()

    assert (False, None) == (rig.job().user_hold, rig.job().held_by_uid)


def test_a_persons_hold_outlives_a_restart_of_the_machine(rig):
    rig.run(job(1, requeue=True))
    rig.step(hold_by(ROOT))
    rig.step(suspended(2.0))
    rig.backend.take()
    end = msgspec.structs.replace(exited(9.0, end=Exit()), by_reboot=True)

    rig.step(end)

    assert (JobState.HELD, ROOT) == (rig.job().state, rig.job().held_by_uid)
