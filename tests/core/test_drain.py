"""Draining: nothing starts, nothing else changes."""

from builders import exited, job, requeue, started, submitted, suspended

from iodaemon.core import event as ev
from iodaemon.core.decision import Resume, Start, Stop, Suspend
from iodaemon.core.explain import explain
from iodaemon.core.job import JobState
from iodaemon.core.limits import Drain
from iodaemon.core.state import State


def drain(at_s, reason="", by="ann"):
    return ev.DrainBegun(at_s=at_s, by=by, reason=reason)


def undrain(at_s):
    return ev.DrainEnded(at_s=at_s, by="bob")


def starts(rig):
    return [d.job_id for d in rig.backend.take() if isinstance(d, Start)]


def test_what_is_submitted_waits_and_starts_at_the_end_in_the_old_order(rig):
    rig.step(drain(1.0))
    rig.step(submitted(job(1)), submitted(job(2)))

    assert [] == starts(rig)
    assert [JobState.PENDING] * 2 == [rig.job(1).state, rig.job(2).state]
    rig.step(undrain(2.0))
    assert [1, 2] == starts(rig)


def test_a_drain_in_the_instant_of_a_submission_comes_before_its_start(rig):
    rig.step(submitted(job(1)), drain(0.0))

    assert [] == starts(rig)


def test_what_runs_goes_on_and_is_regulated(rig):
    rig.run(job(1), job(2))
    rig.regulate(1.0)
    rig.step(drain(1.5))

    rig.regulate(2.0, suspends=(1,))
    assert [Suspend(job_id=1)] == rig.backend.take()
    rig.step(suspended(2.1))
    rig.regulate(3.0, resumes=(1,))
    assert [Resume(job_id=1)] == rig.backend.take()
    rig.step(exited(4.0, 2))
    assert JobState.COMPLETED is rig.job(2).state


def test_a_freed_place_is_not_given_away(rig):
    rig.run(*(job(number) for number in range(1, 6)))
    rig.step(drain(1.0))

    rig.step(exited(2.0, 1))

    assert [] == rig.backend.take()
    assert JobState.PENDING is rig.job(5).state


def test_a_job_on_its_way_when_the_drain_begins_runs(rig):
    rig.step(submitted(job(1)))
    rig.backend.take()
    rig.step(drain(1.0))
    rig.step(started(1.1))

    assert JobState.RUNNING is rig.job(1).state


def test_a_requeued_job_waits(rig):
    rig.run(job(1))
    rig.step(drain(1.0), requeue(1.0))
    assert [Stop(job_id=1)] == rig.backend.take()
    rig.step(exited(2.0))

    assert JobState.PENDING is rig.job(1).state
    assert [] == rig.backend.take()


def test_who_since_when_and_why_is_told(rig):
    rig.step(drain(10.0, "disk swap"))
    rig.step(submitted(job(1, at_s=20.0)))

    told = rig.state.reason(1)
    why = explain(rig.state, rig.controller.rules, rig.job(1), 130.0)

    assert "Drain" == told.code
    assert "nothing starts, the node is drained by ann: disk swap" == told.text
    assert (
        "waits, as every job now: nothing starts, the node is drained by ann: disk swap, for 2 min"
    ) == why.is_so
    assert "'iod drain --off' by an administrator; it keeps its place in the queue" == why.until


def test_said_again_it_goes_on_with_the_new_words(rig):
    rig.step(drain(10.0, "disk swap"))
    rig.step(drain(20.0, "and new memory", by="bob"))

    assert Drain(since_s=10.0, by="bob", reason="and new memory") == rig.state.drain


def test_a_fault_is_told_before_a_drain_and_outlasts_neither(rig):
    rig.step(drain(1.0), ev.StartsBlocked(at_s=1.0, problem="the disk is full"))
    rig.step(submitted(job(1)))
    assert "Blocked" == rig.state.reason(1).code
    rig.step(ev.StartsBlocked(at_s=2.0, problem=""))
    assert "Drain" == rig.state.reason(1).code
    assert [] == starts(rig)


def test_no_start_is_promised_any_more(rig):
    rig.step(submitted(job(1)))
    rig.backend.take()
    rig.state.reservations = {2: 50.0}

    rig.step(drain(1.0))

    assert {} == rig.state.reservations


def test_it_outlives_the_daemon(rig):
    found = Drain(since_s=1.0, by="ann")
    state = State(rig.state.platform)

    state.restore([job(1)], 2, found)

    assert not state.may_start
    assert "Drain" == state.reason(1).code
