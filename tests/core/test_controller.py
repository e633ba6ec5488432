"""From events to decisions: submit, start, end, cancel."""

import pytest
from builders import (
    MB,
    Rig,
    cancel,
    counters,
    exited,
    hold,
    job,
    reason,
    release,
    resumed,
    sampled,
    started,
    submitted,
    suspended,
    timer,
)

from iodaemon.core import event as ev
from iodaemon.core.decision import RegulationPlan, Reject, Resume, Start, Suspend
from iodaemon.core.error import InvariantError
from iodaemon.core.handlers import START_RETRY_S
from iodaemon.core.job import Exit, IoTotals, JobId, JobState


def start_failed(at_s, job_id=1, attempt=1, exit_code=None):
    return ev.StartFailed(
        at_s=at_s, job_id=job_id, attempt=attempt, problem="no room in /run", exit_code=exit_code
    )


def test_a_submitted_job_takes_its_slots_at_once(rig):
    plan = rig.step(submitted(job(1, cpus=2)))

    assert [Start(job_id=1, attempt=1, partition=0, slots=(0, 1))] == rig.backend.take()
    assert rig.job().state is JobState.STARTING
    assert rig.state.slots_free(0) == 0
    assert plan.changed == (1,)
    assert [(step.before, step.after) for step in plan.transitions] == [
        (None, "PENDING"),
        ("PENDING", "STARTING"),
    ]


def test_a_started_job_runs_from_the_moment_the_world_says_so(rig):
    rig.run(job(1), at_s=3.0)

    assert rig.job().state is JobState.RUNNING
    assert (rig.job().started_s, rig.job().since_s) == (3.0, 3.0)


def test_the_same_start_reported_twice_changes_nothing(rig):
    rig.run(job(1), at_s=3.0)

    plan = rig.step(started(9.0))

    assert plan.changed == ()
    assert rig.job().started_s == 3.0


def test_a_start_that_failed_for_now_gives_the_slots_back_and_waits_before_it_is_tried_again(rig):
    rig.step(submitted(job(1)))
    rig.backend.take()

    plan = rig.step(start_failed(2.0))

    assert rig.job().state is JobState.PENDING
    assert rig.state.slots_free(0) == 2
    assert (rig.job().slots, rig.job().partition, rig.job().started_s) == ((), None, None)
    assert rig.state.reason(JobId(1)).code == "StartFailed"
    assert plan.wake_at_s == 2.0 + START_RETRY_S

    rig.step(timer(plan.wake_at_s))

    assert [Start(job_id=1, attempt=2, partition=0, slots=(0,))] == rig.backend.take()
    assert rig.job().reason is None


def test_a_job_that_waits_to_be_started_again_does_not_block_those_behind_it(rig):
    rig.step(submitted(job(1, cpus=2)), submitted(job(2)), submitted(job(3, cpus=2)))
    rig.backend.take()

    rig.step(start_failed(2.0))

    assert [Start(job_id=3, attempt=1, partition=0, slots=(0, 1))] == rig.backend.take()


def test_a_start_that_can_never_succeed_fails_the_job(rig):
    rig.step(submitted(job(1)))
    rig.backend.take()

    rig.step(start_failed(2.0, exit_code=127))

    assert rig.job().state is JobState.FAILED
    assert Exit(code=127) == rig.job().exit
    assert rig.job().reason.text == "no room in /run"
    assert rig.state.slots_free(0) == 2


def test_a_start_that_failed_after_the_cancel_is_a_cancelled_job(rig):
    rig.step(submitted(job(1)))
    rig.step(cancel(1.0))
    rig.backend.take()

    rig.step(start_failed(2.0))

    assert rig.job().state is JobState.CANCELLED
    assert rig.job().reason.text == "cancelled by ann"


def test_a_job_held_while_its_start_failed_is_held(rig):
    rig.step(submitted(job(1)))
    rig.step(hold(1.0))
    rig.backend.take()

    rig.step(start_failed(2.0))

    assert rig.job().state is JobState.HELD
    assert rig.job().reason.code == "Suspended"

    rig.step(release(3.0))

    assert [Start(job_id=1, attempt=2, partition=0, slots=(0,))] == rig.backend.take()


@pytest.mark.parametrize(
    ("end", "after", "code"),
    [
        (Exit(code=0), JobState.COMPLETED, None),
        (Exit(code=3), JobState.FAILED, "ExitCode"),
        (Exit(signal=11), JobState.FAILED, "Signal"),
        (Exit(), JobState.LOST, "Lost"),
        (Exit(signal=9, out_of_memory=True), JobState.OUT_OF_MEMORY, "OutOfMemory"),
    ],
)
def test_an_end_is_called_what_it_is(rig, end, after, code):
    rig.run(job(1))

    rig.step(exited(5.0, end=end))

    assert after is rig.job().state
    assert code == (rig.job().reason and rig.job().reason.code)
    assert (rig.job().ended_s, rig.job().run_s) == (5.0, 5.0)


def test_an_end_brings_the_totals_and_the_note_of_the_backend(rig):
    rig.run(job(1))
    io = IoTotals(read_bytes=1, written_bytes=2)

    rig.step(
        ev.JobExited(at_s=5.0, job_id=1, attempt=1, exit=Exit(code=2), io=io, note="no such file")
    )

    assert io == rig.job().io
    assert rig.job().reason.text == "no such file"


def test_an_end_before_the_start_was_reported_is_an_end(rig):
    rig.step(submitted(job(1)))
    rig.backend.take()

    rig.step(exited(1.0))

    assert rig.job().state is JobState.COMPLETED
    assert rig.job().started_s is None


def test_free_slots_go_to_the_next_job_in_the_same_step(rig):
    rig.run(job(1, cpus=2), job(2, cpus=2), job(3))

    rig.step(exited(5.0, 2))

    assert [Start(job_id=3, attempt=1, partition=1, slots=(2,))] == rig.backend.take()


@pytest.mark.parametrize(
    "event", [started, start_failed, exited], ids=["started", "failed", "exited"]
)
def test_word_of_an_earlier_attempt_is_ignored(rig, event):
    rig.step(submitted(job(1)))
    plan = rig.step(start_failed(1.0))
    rig.step(timer(plan.wake_at_s))
    rig.backend.take()

    plan = rig.step(event(20.0, 1, 1))

    assert plan.changed == ()
    assert rig.job().state is JobState.STARTING


@pytest.mark.parametrize(
    "event",
    [
        started,
        start_failed,
        exited,
        suspended,
        resumed,
        cancel,
        hold,
        release,
        lambda at_s: ev.SuspendFailed(at_s=at_s, job_id=1, frozen=True, problem="stuck"),
        lambda at_s: ev.StopDelayed(at_s=at_s, job_id=1, problem="stuck"),
    ],
)
def test_events_of_a_finished_or_unknown_job_are_ignored(rig, event):
    plan = rig.step(event(1.0))

    assert plan.changed == ()

    rig.run(job(1))
    rig.step(exited(5.0))
    before = rig.job()

    plan = rig.step(event(6.0))

    assert plan.changed == ()
    assert before is rig.job()


@pytest.mark.parametrize("event", [suspended, resumed])
def test_late_word_of_a_job_that_waits_again_is_ignored(rig, event):
    rig.step(submitted(job(1)))
    rig.backend.take()
    rig.step(start_failed(1.0))

    plan = rig.step(event(2.0))

    assert plan.changed == ()


def test_a_standstill_reported_before_the_start_is_remembered(rig):
    rig.step(submitted(job(1)))
    rig.backend.take()

    rig.step(suspended(1.0), started(1.0))

    assert [Resume(job_id=1)] == rig.backend.take()
    assert rig.job().state is JobState.SUSPENDED_IO

    rig.step(resumed(2.0))

    assert rig.job().state is JobState.RUNNING


def test_a_rejected_job_has_failed_with_the_reason(rig):
    rig.admission.rejects = {JobId(1): reason("TooLong", "never fits")}

    rig.step(submitted(job(1)))

    assert [Reject(job_id=1, reason=reason("TooLong", "never fits"))] == rig.backend.take()
    assert rig.job().state is JobState.FAILED
    assert rig.job().reason.code == "TooLong"


def test_only_jobs_that_wait_keep_a_queue_reason(rig):
    rig.step(submitted(job(1, cpus=2)), submitted(job(2, cpus=2)), submitted(job(3)))
    rig.backend.take()

    assert list(rig.state.reasons) == [3]


def test_an_infeasible_job_never_blocks_the_queue(rig):
    rig.step(submitted(job(1, cpus=3)), submitted(job(2)))

    assert [Start(job_id=2, attempt=1, partition=0, slots=(0,))] == rig.backend.take()
    assert rig.state.reason(JobId(1)).code == "Infeasible"


def test_a_revoked_submission_never_was(rig):
    rig.state.starts_blocked = "journal"
    rig.step(submitted(job(1)))

    plan = rig.step(ev.SubmitRevoked(at_s=1.0, job_id=1))

    assert (plan.removed, plan.changed) == ((1,), ())
    assert rig.state.jobs == {}
    assert rig.state.next_id == 2


def test_a_submission_can_be_revoked_when_its_start_was_decided_but_not_performed(rig):
    rig.step(submitted(job(1)))
    rig.backend.take()

    plan = rig.step(ev.SubmitRevoked(at_s=1.0, job_id=1))

    assert plan.removed == (1,)
    assert rig.state.slots_free(0) == 2


def test_a_revocation_of_an_unknown_job_is_ignored(rig):
    assert rig.step(ev.SubmitRevoked(at_s=1.0, job_id=7)).removed == ()


def test_an_id_that_exists_is_refused(rig):
    rig.run(job(1))

    with pytest.raises(InvariantError):
        rig.controller.step([submitted(job(1))])


def test_blocked_starts_wait_and_everything_else_goes_on(rig):
    rig.run(job(1))
    rig.step(ev.StartsBlocked(at_s=1.0, problem="the journal's disk is full"))

    rig.step(submitted(job(2)), exited(2.0))

    assert rig.job(1).state is JobState.COMPLETED
    assert rig.job(2).state is JobState.PENDING
    assert rig.state.reason(JobId(2)).text == "the journal's disk is full"

    rig.step(ev.StartsBlocked(at_s=3.0, problem=""))

    assert [Start(job_id=2, attempt=1, partition=0, slots=(0,))] == rig.backend.take()


def test_regulation_is_asked_only_when_there_is_a_sample(rig):
    rig.run(job(1))
    rig.step(timer(1.0))
    asked_before = rig.regulation.asked

    rig.step(sampled(2.0, {1: counters()}))

    assert (asked_before, rig.regulation.asked) == (0, 1)


def test_regulation_hands_its_headroom_on_to_admission(rig):
    rig.regulation.plan = RegulationPlan(io_headroom_bytes_per_s=5.0)

    rig.step(sampled(1.0))

    assert rig.state.io_headroom_bytes_per_s == 5.0


def test_events_of_one_instant_are_one_step_with_one_clock(rig):
    plan = rig.step(submitted(job(1)), submitted(job(2)), timer(4.0))
    rig.backend.take()

    assert [step.at_s for step in plan.transitions] == [0.0, 0.0, 4.0, 4.0]
    assert plan.changed == (1, 2)


def test_a_job_that_started_late_in_the_slice_has_a_rate_but_no_prediction_of_it_yet(rig):
    rig.step(sampled(0.0))
    rig.run(job(1), at_s=0.75)

    rig.step(sampled(1.0, {1: counters(3 * MB)}))

    assert rig.state.meter.bandwidth(JobId(1)).total_bytes_per_s == 3 * MB
    assert rig.state.outlook.predicted(rig.state.jobs[JobId(1)]).source == "unknown"

    rig.step(sampled(2.0, {1: counters(7 * MB)}))

    assert rig.state.outlook.predicted(rig.state.jobs[JobId(1)]).rate_bytes_per_s == 4 * MB


def test_an_adopted_job_has_no_rate_at_first(state):
    state.restore([job(1, state=JobState.RUNNING)], JobId(2))
    rig = Rig(state)
    rig.step(sampled(0.0))

    rig.step(sampled(1.0, {1: counters(9 * MB)}))

    assert state.meter.bandwidth(JobId(1)) is None

    rig.step(sampled(2.0, {1: counters(9 * MB)}))

    assert state.meter.bandwidth(JobId(1)).total_bytes_per_s == 0.0


def test_a_slice_in_which_a_job_mostly_stood_still_says_nothing_of_what_it_does(rig):
    rig.run(job(1))
    rig.regulate(1.0)
    rig.regulate(2.0)
    rig.step(hold(2.1))
    rig.step(suspended(2.2))
    rig.step(release(2.7))
    rig.step(resumed(2.8))

    rig.step(sampled(3.0, {1: counters(2 * MB)}))

    assert [Suspend(job_id=1), Resume(job_id=1)] == rig.backend.take()
    assert rig.state.meter.bandwidth(JobId(1)).total_bytes_per_s == 0.0
    assert rig.state.outlook.predicted(rig.state.jobs[JobId(1)]).rate_bytes_per_s == 1 * MB


def test_other_rules_start_without_memory(rig):
    rules = rig.controller.rules
    rig.controller.use(rules)

    assert rules is rig.controller.rules


def test_an_end_that_became_known_late_is_booked_when_it_happened(rig):
    rig.run(job(1), at_s=0.0)
    rig.step(sampled(9.0))

    rig.step(exited(2.0, 1))

    assert (rig.job().ended_s, rig.job().run_s) == (2.0, 2.0)
