"""Two independent hold bits, and the guards over every rule."""

import itertools

import msgspec
import pytest
from builders import (
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
from tracing import measured, then, timeslice

from iodaemon.core import event as ev
from iodaemon.core.decision import Suspend
from iodaemon.core.job import Exit, JobState


@pytest.fixture
def busy(rig):
    """Job 1 runs and its I/O is known."""
    return measured(rig, job(1))


@pytest.fixture
def held(busy):
    """Job 1 stands still for its I/O since 3 s."""
    then(busy, timeslice(busy, 3.0, suspends=(1,)), "suspend 1")
    then(busy, suspended(3.0), state="SUSPENDED_IO")
    return busy


def suspend_failed(at_s, *, frozen):
    return ev.SuspendFailed(at_s=at_s, job_id=1, frozen=frozen, problem="hung mount")


def answer(rig, at_s):
    """Do what a backend does with the decisions so far, until there are no more."""
    while decisions := rig.backend.take():
        for decision in decisions:
            word = suspended if isinstance(decision, Suspend) else resumed
            rig.step(word(at_s, decision.job_id))


def test_a_regulated_job_stands_still_when_the_world_says_so(busy):
    shown = {"state": "RUNNING", "state_shown": "SUSPENDED_IO..."}
    then(busy, timeslice(busy, 3.0, suspends=(1,)), "suspend 1", **shown)
    then(busy, suspended(3.5), state="SUSPENDED_IO", code="IoBound")
    then(busy, timeslice(busy, 4.0, resumes=(1,)), "resume 1", state="SUSPENDED_IO")
    then(busy, resumed(4.5), state="RUNNING", run_s=3.5, suspended_io_s=1.0)


ACTS = ("hold", "release", "suspend", "resume")


@pytest.mark.parametrize("order", list(itertools.permutations(ACTS)), ids="-".join)
def test_a_job_runs_exactly_when_both_holds_are_clear_in_every_order(busy, order):
    user_hold = io_hold = False
    for at_s, what in enumerate(order, start=3):
        match what:
            case "hold" | "release":
                busy.step((hold if what == "hold" else release)(at_s))
                user_hold = what == "hold"
            case "suspend":
                busy.regulate(at_s, suspends=(1,))
                io_hold = not user_hold  # a job that stands still is not suspended again
            case "resume":
                busy.regulate(at_s, resumes=(1,))
                io_hold = False
        answer(busy, at_s + 0.5)

        assert (user_hold, io_hold) == (busy.job().user_hold, busy.job().io_hold)
        by = "USER" if user_hold else "IO"
        assert (f"SUSPENDED_{by}" if user_hold or io_hold else "RUNNING") == busy.job().state


def test_each_hold_shows_its_own_reason(held):
    then(held, hold(4.0), why="suspended by ann")
    then(held, release(5.0), code="IoBound")


def test_a_hold_taken_back_before_it_was_confirmed_leaves_the_job_running(busy):
    busy.step(hold(3.0))
    busy.step(release(3.1))
    answer(busy, 3.2)

    assert ("RUNNING", False) == (busy.job().state, busy.job().frozen)


def test_a_hold_renewed_before_the_resume_was_confirmed_keeps_the_job_still(busy):
    busy.step(hold(3.0))
    busy.step(release(3.1))
    busy.step(hold(3.2))
    answer(busy, 3.3)

    assert busy.job().state is JobState.SUSPENDED_USER


def test_a_waiting_job_is_held_and_released(rig):
    rig.run(job(1, cpus=2), job(2, cpus=2))
    then(rig, submitted(job(3)))
    then(rig, hold(1.0, 3), job_id=3, state="HELD")
    then(rig, exited(2.0, 1))
    then(rig, release(3.0, 3), "start 3")


def test_a_job_held_while_it_starts_is_stopped_as_soon_as_it_runs(rig):
    then(rig, submitted(job(1)), "start 1")
    then(rig, hold(1.0))
    then(rig, started(2.0), "suspend 1")


# -- what the world does of itself -----------------------------------------------------------------


def test_a_thaw_nobody_asked_for_ends_the_hold_of_the_regulation(held):
    then(held, resumed(9.0), state="RUNNING", io_hold=False)


def test_a_thaw_nobody_asked_for_is_undone_where_a_person_holds_the_job(busy):
    then(busy, hold(3.0), "suspend 1")
    then(busy, suspended(3.0))
    then(busy, resumed(9.0), "suspend 1", user_hold=True)


def test_a_standstill_nobody_asked_for_is_undone(busy):
    then(busy, suspended(9.0), "resume 1", code="Adopted")


def test_a_suspend_that_failed_is_not_tried_for_ever(busy):
    then(busy, timeslice(busy, 3.0, suspends=(1,)), "suspend 1")
    facts = {"state": "RUNNING", "why": "hung mount", "wants_freeze": False}
    then(busy, suspend_failed(8.0, frozen=False), **facts)


def test_a_failure_that_left_the_job_running_makes_a_suspended_job_run(held):
    then(held, suspend_failed(8.0, frozen=False), state="RUNNING")


def test_a_resume_that_failed_is_asked_again(held):
    then(held, timeslice(held, 4.0, resumes=(1,)), "resume 1")
    then(held, suspend_failed(8.0, frozen=True), "resume 1", state="SUSPENDED_IO")


def test_a_failure_to_suspend_a_stopping_job_does_not_hide_why_it_stops(busy):
    then(busy, hold(3.0), "suspend 1")
    then(busy, cancel(4.0), "stop 1")
    then(busy, suspend_failed(5.0, frozen=False), why="cancelled by ann")


def delayed(at_s):
    return ev.StopDelayed(at_s=at_s, job_id=1, problem="the supervisor does not answer")


def test_a_standstill_that_is_delayed_says_why_until_it_is_there(busy):
    then(busy, hold(3.0), "suspend 1")
    then(busy, delayed(4.0), state="RUNNING", code="HoldDelayed")
    then(busy, suspended(5.0), state="SUSPENDED_USER", code="Suspended")
    then(busy, release(6.0), "resume 1")
    then(busy, delayed(7.0), state="SUSPENDED_USER", code="HoldDelayed")
    then(busy, hold(8.0), "suspend 1")
    then(busy, suspended(9.0), state="SUSPENDED_USER", code="Suspended")


def test_a_standstill_that_nobody_wants_any_more_leaves_no_reason(busy):
    then(busy, hold(3.0), "suspend 1")
    then(busy, delayed(4.0))
    then(busy, release(5.0), "resume 1")
    then(busy, resumed(6.0), state="RUNNING", reason=None)


def test_an_end_that_is_delayed_says_why_until_the_job_has_been_told(busy):
    then(busy, cancel(3.0), "stop 1")
    then(busy, delayed(4.0), code="StopDelayed")
    then(busy, resumed(5.0), code="Cancelled")


# -- the guards over every rule --------------------------------------------------------------------


def test_a_job_submitted_with_no_suspend_is_never_suspended(rig):
    measured(rig, job(1, no_suspend=True))
    then(rig, timeslice(rig, 3.0, suspends=(1,)), io_hold=False)


def test_a_job_whose_io_is_unknown_is_left_alone(rig):
    rig.run(job(1))
    then(rig, timeslice(rig, 1.0))
    then(rig, sampled(2.0, {1: counters(None, None)}))
    then(rig, timeslice(rig, 2.5, suspends=(1,)), io_hold=False)


def test_a_job_that_is_only_starting_cannot_be_suspended(rig):
    then(rig, submitted(job(1)), "start 1")
    then(rig, sampled(1.0, {1: counters()}))
    then(rig, timeslice(rig, 2.0, suspends=(1,)), io_hold=False)


def test_a_job_is_suspended_for_so_long_in_a_row_and_then_immune_for_as_long(busy):
    then(busy, timeslice(busy, 3.0, suspends=(1,)), "suspend 1", wakes=603.0)
    then(busy, suspended(3.0))
    then(busy, timer(603.0), "resume 1")
    then(busy, resumed(603.0), immune_until_s=1203.0)
    then(busy, timeslice(busy, 1202.0, suspends=(1,)), io_hold=False)
    then(busy, timeslice(busy, 1203.0, suspends=(1,)), "suspend 1")


def test_the_job_may_ask_for_a_shorter_guard(rig):
    measured(rig, job(1, max_suspend_s=30.0))
    then(rig, timeslice(rig, 3.0, suspends=(1,)), "suspend 1", wakes=33.0)


def test_the_guard_holds_where_the_job_is_released_and_suspended_in_one_plan(busy):
    then(busy, timeslice(busy, 3.0, suspends=(1,)), "suspend 1")
    then(busy, timeslice(busy, 4.0, suspends=(1,), resumes=(1,)), "resume 1", io_hold=False)


def test_the_guard_also_ends_a_hold_behind_a_persons_hold(held):
    then(held, hold(4.0))
    then(held, timer(603.0), io_hold=False, user_hold=True)


# -- an administrator's hold -----------------------------------------------------------------------

ROOT, OWNER = 0, 1000


def hold_by(uid, at_s=1.0, job_id=1):
    return msgspec.structs.replace(hold(at_s, job_id), by_uid=uid)


@pytest.mark.parametrize(
    ("order", "by_uid"),
    [((OWNER,), None), ((ROOT, OWNER), ROOT), ((OWNER, ROOT), ROOT), ((OWNER, ROOT, OWNER), ROOT)],
)
def test_an_administrators_hold_stays_one_whoever_else_suspends_the_job(rig, order, by_uid):
    rig.run(job(1))
    then(rig, hold_by(order[0]), "suspend 1")
    then(rig, suspended(1.5))
    for uid in order[1:]:
        then(rig, hold_by(uid, 2.0))

    assert (True, by_uid) == (rig.job().user_hold, rig.job().held_by_uid)
    assert rig.job().reason == rig.job().user_hold_reason
    then(rig, release(3.0), "resume 1", user_hold=False, held_by_uid=None)


def test_a_persons_hold_outlives_a_restart_of_the_machine(rig):
    rig.run(job(1, requeue=True))
    then(rig, hold_by(ROOT), "suspend 1")
    then(rig, suspended(2.0))
    end = msgspec.structs.replace(exited(9.0, end=Exit()), by_reboot=True)
    then(rig, end, state="HELD", held_by_uid=ROOT)
