"""Limits of jobs are kept though only jobs that changed are looked at."""

import msgspec
from builders import Rig, exited, job, platform, timer
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.core.decision import Kill, Resume, Stop, Suspend
from iodaemon.core.job import JobId, JobState
from iodaemon.core.state import State


def rig(*restored, slots=8):
    state = State(platform(slots))
    state.restore(restored, JobId(100))
    return Rig(state)


def test_the_next_limit_is_that_of_a_job_that_nothing_happens_to():
    one = rig()
    one.run(job(1, walltime_s=50.0), job(2, walltime_s=30.0), job(3))

    assert one.step(timer(1.0)).wake_at_s == 30.0
    assert one.step(timer(2.0)).wake_at_s == 30.0
    one.step(timer(30.0))
    assert [Stop(job_id=2)] == one.backend.take()


def test_the_limit_of_a_job_that_ended_wakes_nobody():
    one = rig()
    one.run(job(1, walltime_s=50.0), job(2, walltime_s=80.0))

    assert one.step(exited(5.0, 1)).wake_at_s == 80.0
    assert one.step(exited(6.0, 2)).wake_at_s is None


def test_where_a_walltime_is_no_bound_nobody_is_ended_at_it():
    one = rig()
    one.controller.use(msgspec.structs.replace(one.controller.rules, ends_overdue=False))
    one.run(job(1, walltime_s=50.0))

    assert one.step(timer(60.0)).wake_at_s is None
    assert [] == one.backend.take()
    assert one.controller.state.jobs[JobId(1)].state is JobState.RUNNING


def test_jobs_found_at_a_restart_are_all_looked_at_once():
    running = job(1, state=JobState.RUNNING, walltime_s=40.0, started_s=0.0)
    stopping = job(2, state=JobState.STOPPING, at_s=0.0)
    held = job(3, state=JobState.SUSPENDED_IO, io_hold=False, io_held_since_s=None)
    one = rig(running, stopping, held)

    plan = one.step(timer(5.0))

    assert [Resume(job_id=3)] == one.backend.take()
    assert plan.wake_at_s == 10.0
    assert one.step(timer(10.0)).wake_at_s == 40.0
    assert [Kill(job_id=2)] == one.backend.take()


def test_other_rules_have_other_limits():
    one = rig()
    one.run(job(1))
    one.regulate(1.0)
    assert one.regulate(2.0, suspends=(1,)).wake_at_s == 602.0
    assert [Suspend(job_id=1)] == one.backend.take()[-1:]

    one.controller.use(msgspec.structs.replace(one.controller.rules, max_suspend_s=5.0))

    assert one.step(timer(3.0)).wake_at_s == 7.0
    one.step(timer(7.0))
    assert [Resume(job_id=1)] == one.backend.take()


WALLTIMES = st.lists(st.one_of(st.none(), st.integers(1, 50)), min_size=1, max_size=6)


@settings(max_examples=tries(100), deadline=None)
@given(WALLTIMES, st.lists(st.integers(0, 60), max_size=10))
def test_every_job_is_stopped_at_its_walltime_and_not_before(walltimes, looks):
    one = rig()
    one.run(*(job(n, walltime_s=limit_s) for n, limit_s in enumerate(walltimes, start=1)))
    one.backend.take()
    stopped = {}
    for at_s in sorted({*looks, *range(0, 61, 7), *filter(None, walltimes)}):
        one.step(timer(float(at_s)))
        for decision in one.backend.take():
            if isinstance(decision, Stop):
                stopped[decision.job_id] = at_s

    assert {n: s for n, s in enumerate(walltimes, start=1) if s is not None} == stopped
