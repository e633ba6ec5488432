"""Ends that are asked for: a cancel, the walltime, and what is kept of limits while a job ends."""

import msgspec
import pytest
from builders import (
    Rig,
    cancel,
    exited,
    hold,
    job,
    platform,
    release,
    requeue,
    resumed,
    started,
    submitted,
    suspended,
    timer,
)
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from tracing import then, timeslice, told

from iodaemon.core import event as ev
from iodaemon.core.controller import WALLTIME_GRACE_S
from iodaemon.core.job import Exit, JobId, JobState
from iodaemon.core.state import State

FOR_EVER_S = 1e300
KILLED = Exit(signal=9)


def rig_of(*restored):
    state = State(platform(8))
    state.restore(restored, JobId(100))
    return Rig(state)


# -- a cancel --------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [JobState.PENDING, JobState.HELD])
def test_a_cancel_before_the_start_is_final_at_once(before):
    rig = Rig(State(platform(1)))
    rig.run(job(1))
    then(rig, submitted(job(2, state=before)))
    then(rig, cancel(1.0, 2), job_id=2, state="CANCELLED", why="cancelled by ann")


def test_a_cancel_of_a_starting_job_stops_it(rig):
    then(rig, submitted(job(1)), "start 1")
    then(rig, cancel(1.0), "stop 1")
    then(rig, started(2.0))
    then(rig, exited(3.0, end=Exit(signal=15)), state="CANCELLED", started_s=2.0)


def test_a_cancelled_job_is_killed_after_the_grace_time(rig):
    rig.run(job(1))
    then(rig, cancel(5.0, grace_s=10.0), "stop 1", wakes=15.0)
    then(rig, timer(14.9))
    then(rig, timer(15.0), "kill 1", wakes=None)
    then(rig, exited(16.0, end=KILLED), state="CANCELLED", why="cancelled by ann")


@pytest.mark.parametrize("ask", [cancel, requeue])
def test_asked_again_the_kill_can_only_come_sooner(rig, ask):
    rig.run(job(1))
    then(rig, ask(5.0, grace_s=10.0), "stop 1")
    then(rig, ask(6.0, grace_s=60.0), wakes=15.0)
    then(rig, ask(7.0, grace_s=2.0), wakes=9.0)
    then(rig, timer(9.0), "kill 1")


def test_without_grace_it_is_killed_at_once_and_again_when_asked_again(rig):
    rig.run(job(1))
    then(rig, cancel(5.0, grace_s=0.0), "stop 1", "kill 1")
    then(rig, cancel(9.0, grace_s=10.0), "kill 1")


@pytest.mark.parametrize("end", [Exit(signal=15), Exit(code=0), Exit(code=3), Exit()])
def test_a_stopped_job_is_called_by_why_it_was_stopped(rig, end):
    rig.run(job(1))
    then(rig, cancel(5.0), "stop 1")
    stuck = ev.StopDelayed(at_s=6.0, job_id=1, problem="in uninterruptible sleep")
    then(rig, stuck, why="in uninterruptible sleep")
    then(rig, exited(7.0, end=end), state="CANCELLED", why="cancelled by ann")


def test_a_cancel_ends_every_hold(rig):
    rig.run(job(1))
    then(rig, hold(1.0), "suspend 1")
    then(rig, suspended(2.0))
    then(rig, cancel(3.0), "stop 1", wants_freeze=False)
    then(rig, resumed(3.0))
    then(rig, exited(4.0), state="CANCELLED")


# -- limits stay in force while a job is being ended -----------------------------------------------


@pytest.mark.parametrize("ask", [cancel, requeue])
def test_a_grace_time_does_not_outlast_the_walltime(rig, ask):
    rig.run(job(1, walltime_s=100.0))
    then(rig, ask(40.0, grace_s=FOR_EVER_S), "stop 1")
    then(rig, timer(50.0), wakes=100.0 + WALLTIME_GRACE_S)
    then(rig, timer(100.0 + WALLTIME_GRACE_S), "kill 1")


def test_time_in_which_a_job_stood_still_is_no_part_of_its_walltime_when_it_is_ended(rig):
    rig.run(job(1, walltime_s=100.0))
    then(rig, hold(30.0), "suspend 1")
    then(rig, suspended(30.0))
    then(rig, cancel(500.0, grace_s=FOR_EVER_S), "stop 1", wakes=570.0 + WALLTIME_GRACE_S)


def test_a_shorter_grace_time_counts_and_the_walltime_kills_nobody_again(rig):
    rig.run(job(1, walltime_s=100.0))
    then(rig, cancel(40.0, grace_s=5.0), "stop 1", wakes=45.0)
    then(rig, timer(45.0), "kill 1")
    then(rig, timer(500.0), wakes=None)


# -- the walltime ----------------------------------------------------------------------------------


def test_a_job_past_its_walltime_is_stopped_then_killed(rig):
    rig.run(job(1, walltime_s=10.0))
    then(rig, timer(1.0), wakes=10.0)
    then(rig, timer(10.0), "stop 1", wakes=10.0 + WALLTIME_GRACE_S)
    then(rig, timer(10.0 + WALLTIME_GRACE_S), "kill 1")
    then(rig, exited(21.0, end=KILLED), state="TIMEOUT", why="ran for its walltime of 10 s")


def test_suspended_time_does_not_count_against_the_walltime(rig):
    rig.run(job(1, walltime_s=10.0))
    then(rig, hold(4.0), "suspend 1")
    then(rig, suspended(4.0))
    then(rig, timer(100.0), wakes=None)
    then(rig, release(104.0), "resume 1")
    then(rig, resumed(104.0), wakes=110.0)
    then(rig, timer(110.0), "stop 1", state="STOPPING")


def test_a_job_that_ends_at_its_walltime_has_completed(rig):
    rig.run(job(1, walltime_s=10.0))
    then(rig, (exited(10.0), timer(10.0)), state="COMPLETED")


def test_a_cancel_of_a_job_past_its_walltime_leaves_it_a_timeout(rig):
    rig.run(job(1, walltime_s=10.0))
    then(rig, timer(10.0), "stop 1")
    then(rig, cancel(11.0, grace_s=0.0), "kill 1")
    then(rig, exited(12.0, end=KILLED), state="TIMEOUT")


def test_where_a_walltime_is_no_bound_nobody_is_ended_at_it():
    rig = rig_of()
    rig.controller.use(msgspec.structs.replace(rig.controller.rules, ends_overdue=False))
    rig.run(job(1, walltime_s=50.0))
    then(rig, timer(60.0), wakes=None, state="RUNNING")


# -- limits are kept though only jobs that changed are looked at -----------------------------------


def test_the_next_limit_is_that_of_a_job_that_nothing_happens_to():
    rig = rig_of()
    rig.run(job(1, walltime_s=50.0), job(2, walltime_s=30.0), job(3))
    then(rig, timer(1.0), wakes=30.0)
    then(rig, timer(2.0), wakes=30.0)
    then(rig, timer(30.0), "stop 2")
    then(rig, exited(31.0, 2), wakes=50.0)
    then(rig, exited(32.0, 1), wakes=None)


def test_jobs_found_at_a_restart_are_all_looked_at_once():
    running = job(1, state=JobState.RUNNING, walltime_s=40.0, started_s=0.0)
    stopping = job(2, state=JobState.STOPPING)
    freed = job(3, state=JobState.SUSPENDED_IO, io_hold=False, io_held_since_s=None)
    rig = rig_of(running, stopping, freed)
    then(rig, timer(5.0), "resume 3", wakes=10.0)
    then(rig, timer(10.0), "kill 2", wakes=40.0)


def test_other_rules_have_other_limits():
    rig = rig_of()
    rig.run(job(1))
    then(rig, timeslice(rig, 1.0))
    then(rig, timeslice(rig, 2.0, suspends=(1,)), "suspend 1", wakes=602.0)
    rig.controller.use(msgspec.structs.replace(rig.controller.rules, max_suspend_s=5.0))
    then(rig, timer(3.0), wakes=7.0)
    then(rig, timer(7.0), "resume 1")


WALLTIMES = st.lists(st.one_of(st.none(), st.integers(1, 50)), min_size=1, max_size=6)


@settings(max_examples=tries(100), deadline=None)
@given(WALLTIMES, st.lists(st.integers(0, 60), max_size=10))
def test_every_job_is_stopped_at_its_walltime_and_not_before(walltimes, looks):
    rig = rig_of()
    rig.run(*(job(n, walltime_s=limit_s) for n, limit_s in enumerate(walltimes, start=1)))
    stopped = {}
    for at_s in sorted({*looks, *range(0, 61, 7), *filter(None, walltimes)}):
        rig.step(timer(float(at_s)))
        stops = [each for each in told(rig.backend.take()) if each.startswith("stop")]
        stopped |= {int(each.split()[1]): at_s for each in stops}

    assert {n: s for n, s in enumerate(walltimes, start=1) if s is not None} == stopped
