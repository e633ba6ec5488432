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


def test_the_queue_is_ordered_by_id_whatever_the_order_of_arrival(state):
    for job_id in (3, 1, 2):
        state.add(job(job_id))

    assert ids(state.pending) == [1, 2, 3]


def test_a_released_job_returns_to_its_place_in_the_queue(state):
    state.add(job(1, state=JobState.HELD))
    state.add(job(2))
    state.put(moved(state.jobs[1], JobState.PENDING, 1.0))

    assert ids(state.pending) == [1, 2]


def test_a_job_no_partition_can_hold_is_not_offered_to_the_rules(state):
    state.add(job(1, cpus=3))
    state.add(job(2, cpus=2))

    assert ids(state.pending) == [2]
    assert state.reason(JobId(1)).code == "Infeasible"


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


def test_restore_continues_the_numbers_of_the_journal(state):
    state.restore([job(4), job(2, state=JobState.COMPLETED)], JobId(9))

    assert state.next_id == 9


def test_an_id_is_never_used_twice(state):
    state.add(job(1))
    state.add(job(2))
    state.remove(JobId(2))

    assert state.next_id == 3
    with pytest.raises(InvariantError, match="ids are never used twice"):
        state.add(job(1))


def test_only_the_last_finished_jobs_are_kept_and_their_numbers_never_return():
    state = State(platform(1), kept_finished=1)
    for job_id in (1, 2, 3):
        state.add(job(job_id))
        finish(state, job_id)

    assert list(state.jobs) == [1, 2, 3], "the plan of the step still names them"

    state.forget_finished()

    assert list(state.jobs) == [3]
    assert state.next_id == 4


def test_a_starting_job_whose_submission_was_revoked_gives_its_slots_back(state):
    state.add(job(1, state=JobState.STARTING))
    state.remove(JobId(1))

    assert state.slots_free(PartitionId(0)) == 2
    assert list(state.live) == []


def test_a_running_job_cannot_be_revoked(state):
    state.add(job(1, state=JobState.RUNNING))

    with pytest.raises(InvariantError, match="job 1 is RUNNING"):
        state.remove(JobId(1))


def test_the_reason_of_a_pending_job_is_the_most_telling_one(state):
    state.add(job(1))
    state.reasons[JobId(1)] = reason("Slots")

    assert state.reason(JobId(1)).code == "Slots"

    state.starts_blocked = "the journal's disk is full"

    assert state.reason(JobId(1)).code == "Blocked"

    state.starts_blocked = ""
    state.reasons.clear()

    assert state.reason(JobId(1)).code == "Priority"


def test_a_running_job_needs_no_reason(state):
    state.add(job(1, state=JobState.RUNNING))

    assert state.reason(JobId(1)) is None


def test_every_state_is_counted(state):
    state.add(job(1))
    state.add(job(2, state=JobState.FAILED))
    counts = state.by_state()

    assert len(JobState) == len(counts)
    assert (
        counts[JobState.PENDING],
        counts[JobState.FAILED],
        counts[JobState.RUNNING],
    ) == (1, 1, 0)


def test_a_prediction_is_measured_else_declared_else_unknown(state):
    state.add(job(1, state=JobState.RUNNING, io_rate_bytes_per_s=5.0))
    state.add(job(2, io_rate_bytes_per_s=7.0))
    state.add(job(3))
    for at_s in (0.0, 1.0):
        taken = sample(at_s, {1: counters(int(at_s) * 100)})
        state.meter.take(taken, run_s={JobId(1): at_s})

    assert _source_and_rate(state, 1) == ("measured", 100.0)
    assert _source_and_rate(state, 2) == ("declared", 7.0)
    assert state.outlook.predicted(state.jobs[JobId(3)]) == UNKNOWN


def _source_and_rate(state, job_id):
    prediction = state.outlook.predicted(state.jobs[JobId(job_id)])
    return prediction.source, prediction.rate_bytes_per_s


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


@pytest.mark.parametrize("end", ["cancelled", "rejected"])
def test_a_submission_that_ended_as_it_arrived_and_was_revoked_is_not_listed_as_finished(end):
    rig = Rig(State(platform(1), kept_finished=1))
    if end == "rejected":
        rig.admission.rejects = {JobId(1): reason("Never")}
        rig.step(submitted(job(1)))
    else:
        rig.step(submitted(job(1)), cancel(0.0))
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
