"""What is expected of a job: what it says, what those like it did, what it has done until now."""

import msgspec
import pytest
from builders import counters, exited, job, sample, started, submitted
from builders import platform as machine

from iodaemon.core.controller import Controller
from iodaemon.core.decision import AdmissionPlan, Placed
from iodaemon.core.forecast import Outlook
from iodaemon.core.job import UNKNOWN, JobId, JobState, Prediction, Reason
from iodaemon.core.meter import Meter
from iodaemon.core.platform import PartitionId
from iodaemon.core.similarity import keys_of
from iodaemon.core.state import State

LEARNED = Prediction(rate_bytes_per_s=7.0, confidence=0.9, source="learned")


class Remembering:
    """An experience that knows of every job, once one has ended."""

    def __init__(self, told=LEARNED):
        self.asked, self.learned, self._told = [], [], told

    def find(self, made):
        self.asked.append(made.id)
        return self._told if self.learned else None

    def learn(self, made):
        self.learned.append(made)
        return keys_of(made)


def test_of_a_job_that_says_nothing_nothing_is_expected():
    assert UNKNOWN == Outlook(Meter()).expected(job())
    assert not UNKNOWN.is_known


@pytest.mark.parametrize(
    ("fields", "rate", "burst"),
    [
        ({}, 40.0, 40.0),
        ({"io_share": 0.25}, 10.0, 40.0),
        ({"io_share": 1.0}, 40.0, 40.0),
    ],
)
def test_a_declared_rate_is_that_of_the_time_in_io(fields, rate, burst):
    found = Outlook(Meter()).expected(job(io_rate_bytes_per_s=40.0, **fields))

    assert (rate, burst) == (found.rate_bytes_per_s, found.burst_bytes_per_s)
    assert "declared" == found.source


def test_declared_operations_are_of_the_time_in_io_too():
    made = job(io_rate_bytes_per_s=0.0, io_operations_per_s=1000.0, io_share=0.5)

    assert 500.0 == Outlook(Meter()).expected(made).operations_per_s


def test_what_a_job_says_goes_before_experience():
    experience = Remembering()
    experience.learn(job())

    limited = job(io_rate_bytes_per_s=1.0, walltime_s=60.0)
    assert "declared" == Outlook(Meter(), experience).expected(limited).source
    assert [] == experience.asked


def test_how_long_a_job_without_walltime_runs_is_learned_whatever_it_says_of_its_io():
    experience = Remembering(msgspec.structs.replace(LEARNED, run_s=90.0))
    experience.learn(job())

    found = Outlook(Meter(), experience).expected(job(io_rate_bytes_per_s=1.0))

    assert (1.0, "declared", 90.0) == (found.rate_bytes_per_s, found.source, found.run_s)


def test_experience_is_asked_once_until_something_was_learned():
    experience = Remembering()
    outlook = Outlook(Meter(), experience)

    assert [UNKNOWN, UNKNOWN] == [outlook.expected(job()), outlook.expected(job())]
    outlook.learn(job(2, state=JobState.COMPLETED))
    assert [LEARNED, LEARNED] == [outlook.expected(job()), outlook.expected(job())]
    assert [1, 1] == experience.asked


def test_what_was_learned_of_others_leaves_what_is_known_of_a_job():
    experience = Remembering()
    outlook = Outlook(Meter(), experience)
    outlook.expected(job(1, command=("a", "b")))
    outlook.expected(job(2, command=("b", "c")))

    outlook.learn(job(3, state=JobState.COMPLETED, command=("b", "c")))
    for number, command in ((1, ("a", "b")), (2, ("b", "c"))):
        outlook.expected(job(number, command=command))

    assert [1, 2, 2] == experience.asked


def test_nothing_is_kept_of_a_job_that_is_forgotten():
    outlook = Outlook(Meter(), Remembering())
    outlook.expected(job(1))

    outlook.forget(JobId(1))

    assert [{}, {}, {}] == [outlook._hints, outlook._kinds, outlook._jobs_of]


def test_of_one_that_runs_and_said_nothing_the_mean_until_now_is_expected():
    meter = Meter()
    made = job(state=JobState.RUNNING)
    meter.take(sample(4.0, {1: counters(100, 300)}), run_s={JobId(1): 4.0})

    found = Outlook(meter).expected(made)
    assert (100.0, "measured") == (found.rate_bytes_per_s, found.source)


def test_a_job_whose_counters_are_unknown_stays_unknown():
    meter = Meter()
    meter.take(sample(4.0, {1: counters(None, None)}), run_s={JobId(1): 4.0})

    assert UNKNOWN == Outlook(meter).expected(job(state=JobState.RUNNING))


class Hasty:
    """Starts the second job before the first."""

    why = Reason(code="Test", text="it is in a hurry")

    def decide(self, view, memory):
        starts = tuple(
            Placed(job_id=made.id, partition=PartitionId(0), why=self.why)
            for made in view.pending
            if made.id == 2
        )
        return AdmissionPlan(starts=starts), memory

    def explain(self, view, made, memory):
        return f"job {made.id} is in no hurry"


def test_what_was_expected_and_why_it_was_preferred_is_kept_with_the_job(rig):
    experience = Remembering()
    state = State(machine(2), experience=experience)
    controller = Controller(state, rig.controller.rules)
    controller.rules = type(rig.controller.rules)(
        name="hasty",
        admission=Hasty(),
        placement=rig.controller.rules.placement,
        regulation=rig.controller.rules.regulation,
    )
    declared = job(2, io_rate_bytes_per_s=5.0)
    plan = controller.step([submitted(job(1)), submitted(declared)])

    assert Hasty.why == state.jobs[2].started_because
    assert [Hasty.why] == [t.reason for t in plan.transitions if t.after is JobState.STARTING]
    assert declared.spec.declared == state.jobs[2].expected
    assert "job 1 is in no hurry" == controller.account(state.jobs[1])
    assert "" == controller.account(state.jobs[2])

    controller.step([started(1.0, 2)])
    controller.step([exited(9.0, 2)])
    assert [JobState.COMPLETED] == [made.state for made in experience.learned]
    assert declared.spec.declared == experience.learned[0].expected
