"""The single source of truth keeps its indexes, slots and ids."""

import pytest
from builders import (
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
    sample,
    started,
    submitted,
    timer,
)
from exploring import tries
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from iodaemon.core import event as ev
from iodaemon.core.error import InvariantError
from iodaemon.core.job import UNKNOWN, JobId, JobState
from iodaemon.core.lifecycle import moved
from iodaemon.core.platform import PartitionId
from iodaemon.core.state import State, with_fields


def ids(jobs):
    return [each.id for each in jobs]


def finish(state, job_id, at_s=1.0):
    state.put(moved(state.jobs[job_id], JobState.CANCELLED, at_s))


def test_the_queue_is_ordered_by_id_and_without_whom_no_partition_can_hold(state):
    for made in (job(3), job(1, state=JobState.HELD), job(2, cpus=2), job(4, cpus=3)):
        state.add(made)
    state.put(moved(state.jobs[1], JobState.PENDING, 1.0))

    assert [1, 2, 3] == ids(state.pending)
    assert state.reason(JobId(4)).code == "Infeasible"


def test_slots_follow_the_job(state):
    state.add(job(1))
    slots = state.choose_slots(PartitionId(0), 2)
    starting = with_fields(job(1), slots=slots, partition=PartitionId(0), attempt=1)
    state.put(moved(starting, JobState.STARTING, 1.0))

    assert (state.slots_free(PartitionId(0)), state.slots_free(PartitionId(1))) == (0, 2)

    state.put(moved(state.jobs[1], JobState.LOST, 2.0))

    assert state.slots_free(PartitionId(0)) == 2


def test_more_slots_than_are_free_are_refused(state):
    with pytest.raises(InvariantError, match="2 free slots, 3 were promised"):
        state.choose_slots(PartitionId(0), 3)


def test_a_slot_promised_twice_is_a_bug():
    state = State(platform(2))
    state.add(job(1, state=JobState.RUNNING))

    with pytest.raises(InvariantError, match="slot 0 is promised to job 2 and to another"):
        state.add(job(2, state=JobState.RUNNING, slots=(0,)))


def test_a_restored_job_keeps_its_slots_on_a_machine_divided_otherwise():
    state = State(platform(1, 1))
    state.restore([job(1, state=JobState.RUNNING, slots=(0, 1, 7))], JobId(2))

    state.check()
    assert (state.slots_free(PartitionId(0)), state.slots_free(PartitionId(1))) == (0, 0)

    state.put(moved(state.jobs[1], JobState.COMPLETED, 1.0))

    state.check()
    assert (state.slots_free(PartitionId(0)), state.slots_free(PartitionId(1))) == (1, 1)


def test_an_id_is_never_used_twice(state):
    state.restore([job(4), job(2, state=JobState.COMPLETED)], JobId(9))
    state.add(job(9))
    state.remove(JobId(9))

    assert state.next_id == 10
    with pytest.raises(InvariantError, match="ids are never used twice"):
        state.add(job(4))


def test_only_the_last_finished_jobs_are_kept_and_their_numbers_never_return():
    state = State(platform(1), kept_finished=1)
    for job_id in (1, 2, 3):
        state.add(job(job_id))
        finish(state, job_id)

    assert list(state.jobs) == [1, 2, 3], "the plan of the step still names them"

    state.forget_finished()

    assert list(state.jobs) == [3]
    assert state.next_id == 4


def test_a_starting_job_can_be_revoked_and_a_running_one_cannot(state):
    state.add(job(1, state=JobState.STARTING))
    state.remove(JobId(1))

    assert (2, []) == (state.slots_free(PartitionId(0)), list(state.live))
    state.add(job(2, state=JobState.RUNNING))
    with pytest.raises(InvariantError, match="job 2 is RUNNING"):
        state.remove(JobId(2))


def test_the_reason_of_a_pending_job_is_the_most_telling_one_and_a_running_one_has_none(state):
    state.add(job(1))
    state.add(job(2, state=JobState.RUNNING))
    state.reasons[JobId(1)] = reason("Slots")
    codes = [state.reason(JobId(1)).code]
    state.start_problems["journal"] = "the journal's disk is full"
    codes.append(state.reason(JobId(1)).code)
    state.start_problems.clear()
    state.reasons.clear()
    codes.append(state.reason(JobId(1)).code)

    assert (["Slots", "Blocked", "Priority"], None) == (codes, state.reason(JobId(2)))


def test_every_state_is_counted(state):
    state.add(job(1))
    state.add(job(2, state=JobState.FAILED))

    alone = {JobState.PENDING: 1, JobState.FAILED: 1}
    assert dict.fromkeys(JobState, 0) | alone == state.by_state()


def test_a_prediction_is_measured_else_declared_else_unknown(state):
    state.add(job(1, state=JobState.RUNNING, io_rate_bytes_per_s=5.0))
    state.add(job(2, io_rate_bytes_per_s=7.0))
    state.add(job(3))
    for at_s in (0.0, 1.0):
        taken = sample(at_s, {1: counters(int(at_s) * 100)})
        state.meter.take(taken, run_s={JobId(1): at_s})

    first, second, third = (state.outlook.predicted(state.jobs[JobId(n)]) for n in (1, 2, 3))
    assert ("measured", 100.0) == (first.source, first.rate_bytes_per_s)
    assert ("declared", 7.0, UNKNOWN) == (second.source, second.rate_bytes_per_s, third)


@pytest.mark.parametrize(
    ("broken", "claim"),
    [
        (job(state=JobState.RUNNING, frozen=True), "a running job does not"),
        (job(state=JobState.SUSPENDED_IO, frozen=False), "stands still"),
        (job(state=JobState.RUNNING, slots=()), "live jobs hold slots"),
        (job(io_hold=True, io_held_since_s=0.0), "only live jobs are held"),
        (job(state=JobState.RUNNING, io_hold=True), "hold has a time"),
        (job(state=JobState.COMPLETED, ended_s=None), "an end has a time"),
        (job(state=JobState.HELD, reason=None), "has a reason"),
        (job(state=JobState.STOPPING, stop=None), "stop has a cause"),
        (job(run_s=-1.0), "no time is negative"),
    ],
)
def test_check_finds_a_job_that_contradicts_itself(broken, claim):
    state = State(platform(2))
    state.add(broken)

    with pytest.raises(InvariantError, match=claim):
        state.check()


def test_check_finds_a_queue_reason_of_a_job_that_does_not_queue():
    state = State(platform(2))
    state.reasons[JobId(5)] = reason()

    with pytest.raises(InvariantError, match="only pending jobs have a queue reason"):
        state.check()


# -- submissions that are revoked ------------------------------------------------------------------


def revoked(at_s, job_id):
    return ev.SubmitRevoked(at_s=at_s, job_id=JobId(job_id))


@pytest.mark.parametrize("is_rejected", [True, False])
def test_a_submission_that_ended_as_it_arrived_and_was_revoked_is_not_listed_as_finished(
    is_rejected,
):
    rig = Rig(State(platform(1), kept_finished=1))
    rig.admission.rejects = {JobId(1): reason("Never")} if is_rejected else {}
    rig.step(submitted(job(1)), *(() if is_rejected else (cancel(0.0),)))
    rig.step(revoked(1.0, 1))
    for job_id in (2, 3, 4):
        rig.step(submitted(job(job_id)), cancel(2.0, job_id))
    rig.step(timer(3.0))

    assert [4] == list(rig.state.jobs)


class Lives(RuleBasedStateMachine):
    """Jobs come, end, are requeued and revoked in any order; the state never contradicts itself."""

    KEPT = 2

    def __init__(self):
        super().__init__()
        self.rig = Rig(State(platform(2), kept_finished=self.KEPT))
        self.at_s = 0.0
        self.next_id = 1

    def step(self, *events):
        self.at_s += 1.0
        self.rig.step(*events)
        self.rig.backend.take()

    def some(self, place):
        """The id of a job that is, or was, here."""
        return 1 + place % max(1, self.next_id - 1)

    @rule(
        words=st.lists(st.sampled_from(["a", "ä" * 300, "\N{GRINNING FACE}"]), min_size=1),
        held=st.booleans(),
        fate=st.sampled_from(["waits", "cancelled", "rejected", "revoked"]),
    )
    def submit(self, words, held, fate):
        state = JobState.HELD if held else JobState.PENDING
        made = job(self.next_id, state=state, at_s=self.at_s, command=tuple(words))
        self.next_id += 1
        if fate == "rejected" and not held:
            self.rig.admission.rejects = {made.id: reason("Never")}
        events = [submitted(made)]
        if fate == "cancelled":
            events.append(cancel(self.at_s, made.id))
        if fate == "revoked":
            events.append(revoked(self.at_s, made.id))
        self.step(*events)

    @rule(place=st.integers(0, 50), with_cancel=st.booleans())
    def revoke(self, place, with_cancel):
        """What has not started is revoked, whatever else has become of it."""
        job_id = self.some(place)
        found = self.rig.state.jobs.get(JobId(job_id))
        if found is None or (found.is_live and found.state is not JobState.STARTING):
            return
        if found.attempt > (found.state is JobState.STARTING):
            return
        before = [cancel(self.at_s, job_id)] if with_cancel and not found.is_live else []
        self.step(*before, revoked(self.at_s, job_id))

    @rule(
        place=st.integers(0, 50),
        make=st.sampled_from([started, exited, cancel, hold, release, requeue]),
    )
    def happen(self, place, make):
        job_id = self.some(place)
        found = self.rig.state.jobs.get(JobId(job_id))
        attempt = (
            {} if make not in (started, exited) else {"attempt": found.attempt if found else 1}
        )
        self.step(make(self.at_s, job_id, **attempt))

    @rule()
    def pass_time(self):
        self.step(timer(self.at_s))


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=tries(60), stateful_step_count=30)
