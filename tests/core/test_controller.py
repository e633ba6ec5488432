"""From events to decisions: submit, start, end, revocation, and what keeps every start waiting."""

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
    reason,
    release,
    requeue,
    resumed,
    sampled,
    started,
    submitted,
    suspended,
    timer,
)
from tracing import then, timeslice

from iodaemon.core import event as ev
from iodaemon.core.decision import Reject, Start
from iodaemon.core.error import InvariantError
from iodaemon.core.explain import explain
from iodaemon.core.handlers import START_RETRY_S
from iodaemon.core.job import Exit, IoTotals, JobId, JobState
from iodaemon.core.limits import Drain
from iodaemon.core.state import State


def start_failed(at_s, job_id=1, attempt=1, problem="no room in /run", **fields):
    return ev.StartFailed(at_s=at_s, job_id=job_id, attempt=attempt, problem=problem, **fields)


@pytest.fixture
def starting(rig):
    """Job 1 is being started."""
    then(rig, submitted(job(1)), "start 1", state="STARTING", attempt=1)
    return rig


# -- starts ----------------------------------------------------------------------------------------


def test_a_submitted_job_takes_its_slots_at_once(rig):
    plan = rig.step(submitted(job(1, cpus=2)))

    assert [Start(job_id=1, attempt=1, partition=0, slots=(0, 1))] == rig.backend.take()
    assert ("STARTING", 0) == (rig.job().state, rig.state.slots_free(0))
    assert plan.changed == (1,)
    steps = [(step.before, step.after) for step in plan.transitions]
    assert [(None, "PENDING"), ("PENDING", "STARTING")] == steps


def test_a_job_runs_from_the_first_word_of_its_start(starting):
    then(starting, started(3.0), state="RUNNING", started_s=3.0, since_s=3.0)
    assert then(starting, started(9.0), started_s=3.0).changed == ()


def test_a_start_that_failed_for_now_waits_before_it_is_tried_again(starting):
    given_back = {"state": "PENDING", "slots": (), "partition": None, "started_s": None}
    again_s = 2.0 + START_RETRY_S
    then(starting, start_failed(2.0), waits="StartFailed", wakes=again_s, **given_back)
    assert starting.state.slots_free(0) == 2
    then(starting, timer(again_s), "start 1", attempt=2, partition=0, slots=(0,), reason=None)


def test_a_job_that_waits_to_be_started_again_does_not_block_those_behind_it(rig):
    jobs = submitted(job(1, cpus=2)), submitted(job(2)), submitted(job(3, cpus=2))
    then(rig, jobs, "start 1", "start 2")
    then(rig, start_failed(2.0), "start 3", job_id=3, partition=0, slots=(0, 1))


def test_a_start_that_can_never_succeed_fails_the_job(starting):
    failed = {"state": "FAILED", "exit": Exit(code=127), "why": "no room in /run"}
    then(starting, start_failed(2.0, exit_code=127), **failed)
    assert starting.state.slots_free(0) == 2


def test_a_start_that_failed_after_the_cancel_is_a_cancelled_job(starting):
    then(starting, cancel(1.0), "stop 1")
    then(starting, start_failed(2.0), state="CANCELLED", why="cancelled by ann")


def test_a_job_held_while_its_start_failed_is_held(starting):
    then(starting, hold(1.0))
    then(starting, start_failed(2.0), state="HELD", code="Suspended")
    then(starting, release(3.0), "start 1", attempt=2)


NOBODY = "uid 1003 has no account on this machine (any more)"


def test_a_job_whose_user_is_gone_is_held_until_somebody_releases_it():
    rig = Rig(State(platform(1)))
    then(rig, (submitted(job(1)), submitted(job(2))), "start 1")
    held = {"state": "HELD", "user_hold": True, "slots": (), "why": NOBODY}
    then(rig, start_failed(1.0, problem=NOBODY, holds=True), "start 2", **held)
    assert "'iod resume 1'" == rig.job().reason.cure
    then(rig, cancel(2.0, 2), "stop 2")
    then(rig, exited(3.0, 2))
    then(rig, timer(3.0 + 9 * START_RETRY_S))
    then(rig, release(100.0), "start 1", attempt=2)


@pytest.mark.parametrize("is_suspended", [False, True])
@pytest.mark.parametrize("holds", [False, True])
def test_what_was_taken_for_running_by_the_next_daemon_gives_its_slots_back(
    starting, holds, is_suspended
):
    then(starting, started(1.0))
    if is_suspended:
        then(starting, suspended(2.0), "resume 1")
    given_back = {"slots": (), "started_s": None, "run_s": 0.0, "why": NOBODY}
    state = "HELD" if holds else "PENDING"
    then(starting, start_failed(5.0, problem=NOBODY, holds=holds), state=state, **given_back)
    if not holds:
        then(starting, timer(5.0 + START_RETRY_S), "start 1", attempt=2, slots=(0,))


def test_a_standstill_reported_before_the_start_is_remembered(starting):
    then(starting, (suspended(1.0), started(1.0)), "resume 1", state="SUSPENDED_IO")
    then(starting, resumed(2.0), state="RUNNING")


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "after", "code"),
    [
        (Exit(code=0), "COMPLETED", None),
        (Exit(code=3), "FAILED", "ExitCode"),
        (Exit(signal=11), "FAILED", "Signal"),
        (Exit(), "LOST", "Lost"),
        (Exit(signal=9, out_of_memory=True), "OUT_OF_MEMORY", "OutOfMemory"),
    ],
)
def test_an_end_is_called_what_it_is(rig, end, after, code):
    rig.run(job(1))
    then(rig, exited(5.0, end=end), state=after, code=code, ended_s=5.0, run_s=5.0)


def test_an_end_brings_the_totals_and_the_note_of_the_backend(rig):
    rig.run(job(1))
    brought = {"exit": Exit(code=2), "io": IoTotals(read_bytes=1, written_bytes=2)}
    end = ev.JobExited(at_s=5.0, job_id=1, attempt=1, note="no such file", **brought)
    then(rig, end, why="no such file", **brought)


def test_an_end_before_the_start_was_reported_is_an_end(starting):
    then(starting, exited(1.0), state="COMPLETED", started_s=None)


def test_an_end_that_became_known_late_is_booked_when_it_happened(rig):
    rig.run(job(1))
    then(rig, sampled(9.0))
    then(rig, exited(2.0), ended_s=2.0, run_s=2.0)


def test_free_slots_go_to_the_next_job_in_the_same_step(rig):
    rig.run(job(1, cpus=2), job(2, cpus=2), job(3))
    then(rig, exited(5.0, 2), "start 3", job_id=3, partition=1, slots=(2,))


# -- what comes late -------------------------------------------------------------------------------

STUCK = {"job_id": 1, "problem": "stuck"}
OF_A_JOB = {
    **{event.__name__: event for event in (started, start_failed, exited, suspended, resumed)},
    **{event.__name__: event for event in (cancel, hold, release)},
    "suspend failed": lambda at_s: ev.SuspendFailed(at_s=at_s, frozen=True, **STUCK),
    "stop delayed": lambda at_s: ev.StopDelayed(at_s=at_s, **STUCK),
}


@pytest.mark.parametrize("event", OF_A_JOB.values(), ids=OF_A_JOB)
def test_events_of_a_finished_or_unknown_job_are_ignored(rig, event):
    assert then(rig, event(1.0)).changed == ()
    rig.run(job(1))
    then(rig, exited(5.0))
    before = rig.job()
    assert then(rig, event(6.0)).changed == ()
    assert before is rig.job()


@pytest.mark.parametrize("event", [started, start_failed, exited])
def test_word_of_an_earlier_attempt_is_ignored(starting, event):
    plan = then(starting, start_failed(1.0))
    then(starting, timer(plan.wake_at_s), "start 1")
    assert then(starting, event(20.0, 1, 1), state="STARTING").changed == ()


@pytest.mark.parametrize("event", [suspended, resumed])
def test_late_word_of_a_job_that_waits_again_is_ignored(starting, event):
    then(starting, start_failed(1.0))
    assert then(starting, event(2.0)).changed == ()


# -- submissions that come to nothing --------------------------------------------------------------


def test_a_rejected_job_has_failed_with_the_reason(rig):
    why = reason("TooLong", "never fits")
    rig.admission.rejects = {JobId(1): why}
    rig.step(submitted(job(1)))

    assert [Reject(job_id=1, reason=why)] == rig.backend.take()
    assert ("FAILED", why) == (rig.job().state, rig.job().reason)


def test_an_infeasible_job_never_blocks_the_queue(rig):
    then(rig, (submitted(job(1, cpus=3)), submitted(job(2))), "start 2", waits="Infeasible")


def test_only_jobs_that_wait_keep_a_queue_reason(rig):
    jobs = submitted(job(1, cpus=2)), submitted(job(2, cpus=2)), submitted(job(3))
    then(rig, jobs, "start 1", "start 2")
    assert [3] == list(rig.state.reasons)


@pytest.mark.parametrize("is_starting", [True, False])
def test_a_revoked_submission_never_was(rig, is_starting):
    """Also one whose start was decided, but not performed."""
    if not is_starting:
        then(rig, blocked(0.0))
    then(rig, submitted(job(1)), *(["start 1"] if is_starting else []))

    plan = rig.step(ev.SubmitRevoked(at_s=1.0, job_id=1))

    assert ((1,), ()) == (plan.removed, plan.changed)
    assert ({}, 2, 2) == (rig.state.jobs, rig.state.next_id, rig.state.slots_free(0))
    assert rig.step(ev.SubmitRevoked(at_s=1.0, job_id=7)).removed == ()


def test_an_id_that_exists_is_refused(rig):
    rig.run(job(1))

    with pytest.raises(InvariantError):
        rig.controller.step([submitted(job(1))])


# -- nothing starts --------------------------------------------------------------------------------


def drain(at_s, why="", by="ann"):
    return ev.DrainBegun(at_s=at_s, by=by, reason=why)


def undrain(at_s):
    return ev.DrainEnded(at_s=at_s, by="bob")


def blocked(at_s, problem="the journal's disk is full", source="journal"):
    return ev.StartsBlocked(at_s=at_s, problem=problem, source=source)


def test_blocked_starts_wait_and_everything_else_goes_on(rig):
    rig.run(job(1))
    then(rig, blocked(1.0))
    then(rig, (submitted(job(2)), exited(2.0)), state="COMPLETED")
    assert "the journal's disk is full" == rig.state.reason(JobId(2)).text
    then(rig, blocked(3.0, "no supervisor answers", "node"))
    then(rig, blocked(4.0, ""))
    assert "no supervisor answers" == rig.state.reason(JobId(2)).text
    then(rig, blocked(5.0, "", "node"), "start 2")


def test_while_drained_nothing_starts_and_then_all_do_in_the_old_order(rig):
    then(rig, (submitted(job(1)), drain(0.0)), state="PENDING")
    then(rig, submitted(job(2)), job_id=2, state="PENDING")
    then(rig, undrain(2.0), "start 1", "start 2")


def test_what_runs_or_starts_in_a_drain_goes_on_and_is_regulated(rig):
    rig.run(*(job(number) for number in range(1, 6)))
    then(rig, timeslice(rig, 1.0))
    then(rig, drain(1.5))
    then(rig, timeslice(rig, 2.0, suspends=(1,)), "suspend 1")
    then(rig, suspended(2.1))
    then(rig, timeslice(rig, 3.0, resumes=(1,)), "resume 1")
    then(rig, exited(4.0, 2), job_id=2, state="COMPLETED")
    then(rig, requeue(5.0, 3), "stop 3")
    then(rig, exited(6.0, 3), job_id=3, state="PENDING")
    assert "PENDING" == rig.job(5).state


def test_a_job_on_its_way_when_the_drain_begins_runs(starting):
    then(starting, drain(1.0))
    then(starting, started(1.1), state="RUNNING")


def test_who_drained_since_when_and_why_is_told(rig):
    then(rig, drain(10.0, "disk swap"))
    then(rig, submitted(job(1, at_s=20.0)), waits="Drain")
    why = explain(rig.state, rig.controller.rules, rig.job(1), 130.0)

    said = "nothing starts, the node is drained by ann: disk swap"
    assert said == rig.state.reason(1).text
    assert f"waits, as every job now: {said}, for 2 min" == why.is_so
    assert "'iod drain --off' by an administrator; it keeps its place in the queue" == why.until


def test_a_drain_said_again_goes_on_with_the_new_words(rig):
    then(rig, drain(10.0, "disk swap"))
    then(rig, drain(20.0, "and new memory", by="bob"))

    assert Drain(since_s=10.0, by="bob", reason="and new memory") == rig.state.drain


def test_a_fault_is_told_before_a_drain_and_outlasts_neither(rig):
    then(rig, (drain(1.0), blocked(1.0)))
    then(rig, submitted(job(1)), waits="Blocked")
    then(rig, blocked(2.0, ""), waits="Drain")


def test_a_drain_promises_no_start_and_outlives_the_daemon(rig):
    rig.state.reservations = {2: 50.0}
    then(rig, drain(1.0))
    again = State(rig.state.platform)
    again.restore([job(1)], 2, rig.state.drain)

    assert {} == rig.state.reservations
    assert (False, "Drain") == (again.may_start, again.reason(1).code)


# -- one step --------------------------------------------------------------------------------------


def test_events_of_one_instant_are_one_step_with_one_clock(rig):
    plan = then(rig, (submitted(job(1)), submitted(job(2)), timer(4.0)), "start 1", "start 2")

    assert [0.0, 0.0, 4.0, 4.0] == [step.at_s for step in plan.transitions]
    assert plan.changed == (1, 2)


def test_regulation_is_asked_at_each_sample_only_and_hands_its_headroom_on(rig):
    rig.run(job(1))
    then(rig, timer(1.0))
    asked_before = rig.regulation.asked
    then(rig, timeslice(rig, 2.0, io_headroom_bytes_per_s=5.0))

    assert (0, 1, 5.0) == (asked_before, rig.regulation.asked, rig.state.io_headroom_bytes_per_s)


def rate_of(rig):
    rate = rig.state.meter.bandwidth(JobId(1))
    return rate and rate.total_bytes_per_s


def test_a_job_that_started_late_in_the_slice_has_a_rate_but_no_prediction_of_it_yet(rig):
    rig.step(sampled(0.0))
    rig.run(job(1), at_s=0.75)

    rig.step(sampled(1.0, {1: counters(3 * MB)}))

    assert (3 * MB, "unknown") == (rate_of(rig), rig.state.outlook.predicted(rig.job()).source)

    rig.step(sampled(2.0, {1: counters(7 * MB)}))

    assert rig.state.outlook.predicted(rig.job()).rate_bytes_per_s == 4 * MB


def test_an_adopted_job_has_no_rate_at_first(state):
    state.restore([job(1, state=JobState.RUNNING)], JobId(2))
    rig = Rig(state)
    rates = []
    for at_s, read in ((0.0, {}), (1.0, {1: counters(9 * MB)}), (2.0, {1: counters(9 * MB)})):
        then(rig, sampled(at_s, read))
        rates.append(rate_of(rig))

    assert [None, None, 0.0] == rates


def test_a_slice_in_which_a_job_mostly_stood_still_says_nothing_of_what_it_does(rig):
    rig.run(job(1))
    then(rig, timeslice(rig, 1.0))
    then(rig, timeslice(rig, 2.0))
    then(rig, hold(2.1), "suspend 1")
    then(rig, suspended(2.2))
    then(rig, release(2.7), "resume 1")
    then(rig, resumed(2.8))
    then(rig, sampled(3.0, {1: counters(2 * MB)}))

    predicted = rig.state.outlook.predicted(rig.job())
    assert (0.0, MB) == (rate_of(rig), predicted.rate_bytes_per_s)
