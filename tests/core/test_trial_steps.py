"""What a regulation tries of how many jobs should contend, told and explained."""

import msgspec
import pytest
from builders import MB, counters, job, reason, sampled, submitted, suspended

from iodaemon.core import event as ev
from iodaemon.core.decision import AdmissionPlan, LimitState, RegulationPlan, StartLimit, TrialStep
from iodaemon.core.explain import explain
from iodaemon.core.job import JobId
from iodaemon.core.rule import Mode
from iodaemon.core.state import CONTENTION, KEPT_TRIALS

WHY = reason(CONTENTION, "2 jobs contend for memory, which is the most that gets on")
LIMIT = LimitState(resource="memory", contending=2, limit=2, text="6 got less done")
FREE = LimitState(resource="sim0", contending=4, limit=None, text="")
PLAN = RegulationPlan(starts=StartLimit(most=0, why=WHY), limits=(LIMIT, FREE))


def trial(tried=2, resource="memory", **fields):
    made = {"resource": resource, "verdict": "kept", "before": 6, "tried": tried}
    return TrialStep(**{**made, "gain": 2.6, "text": f"{tried} got more done than 6", **fields})


def regulate(rig, at_s, **fields):
    """A timeslice ends in which the rule decides this."""
    rig.regulation.plan = msgspec.structs.replace(PLAN, **fields)
    return rig.step(sampled(at_s, {made.id: counters(int(at_s * MB)) for made in rig.state.live}))


def told(rig, job_id, now_s=10.0):
    return explain(rig.state, rig.controller.rules, rig.job(job_id), now_s)


class Waiting:
    """An admission that starts nobody and says why."""

    def decide(self, view, memory):
        return AdmissionPlan(reasons={job.id: WHY for job in view.pending}), memory


@pytest.fixture
def waiting(rig):
    """A job that enough others contend without."""
    rules = msgspec.structs.replace(rig.controller.rules, admission=Waiting())
    rig.controller.use(rules)
    rig.step(submitted(job(1)))
    return rig


# -- told ------------------------------------------------------------------------------------------


def test_what_is_tried_is_in_the_plan_with_its_time(rig):
    plan = regulate(rig, 5.0, trials=(trial(),))

    assert (trial(at_s=5.0),) == plan.trials
    assert (LIMIT, FREE) == rig.state.limits
    assert PLAN.starts == rig.state.start_limit


def test_the_last_ones_are_kept(rig):
    for number in range(KEPT_TRIALS + 5):
        regulate(rig, 1.0 + number, trials=(trial(number),))

    assert list(range(5, KEPT_TRIALS + 5)) == [each.tried for each in rig.state.trials]


def test_in_shadow_it_is_told_and_nothing_is_limited(rig):
    rig.step(ev.ModeChanged(at_s=0.5, mode=Mode.SHADOW, by="ann"))
    plan = regulate(rig, 5.0, trials=(trial(),))

    assert (trial(at_s=5.0, is_shadow=True),) == plan.trials
    assert (None, (), []) == (rig.state.start_limit, rig.state.limits, [*rig.state.trials])


def test_another_mode_forgets_what_was_tried(rig):
    regulate(rig, 5.0, trials=(trial(),))
    rig.step(ev.ModeChanged(at_s=6.0, mode=Mode.OFF, by="ann"))

    assert (None, (), []) == (rig.state.start_limit, rig.state.limits, [*rig.state.trials])


# -- explained -------------------------------------------------------------------------------------


def test_of_a_job_that_waits_for_it_what_is_believed_and_was_tried_is_told(waiting):
    regulate(waiting, 5.0, trials=(trial(3), trial(2), trial(1, resource="sim0")))

    said = told(waiting, 1)

    assert f"waits: {WHY.text}" == said.is_so
    assert said.until.startswith("one of those that contend ends, or more of them at once are tri")
    assert (LIMIT,) == said.limits
    assert (trial(3, at_s=5.0), trial(2, at_s=5.0)) == said.trials


def test_the_last_five_are_told(waiting):
    for number in range(7):
        regulate(waiting, 1.0 + number, trials=(trial(number),))

    assert [2, 3, 4, 5, 6] == [each.tried for each in told(waiting, 1).trials]


@pytest.mark.parametrize(("code", "is_told"), [(CONTENTION, True), ("IoBound", False)])
def test_of_a_job_that_stands_still_for_it_as_well(rig, code, is_told):
    rig.run(job(1))
    rig.regulate(1.0)
    rig.regulate(2.0)
    why = reason(code, "6 jobs contend for memory, 2 get more done")
    regulate(rig, 5.0, suspends=(JobId(1),), reasons={JobId(1): why}, trials=(trial(),))
    rig.step(suspended(5.1))
    rig.backend.take()

    said = told(rig, 1)

    assert why.text in said.is_so
    assert is_told is ("others get on" in said.is_so)
    assert ((LIMIT,) if is_told else ()) == said.limits
    assert is_told is bool(said.trials)
    assert is_told is said.until.startswith("one of those that contend ends, or more")


def test_of_a_job_that_runs_or_waits_for_room_nothing_of_it_is_told(rig):
    rig.run(job(1), job(2, cpus=2), job(3, cpus=2))
    regulate(rig, 5.0, trials=(trial(),))

    assert [((), ())] * 3 == [
        (said.limits, said.trials) for said in map(told, [rig] * 3, (1, 2, 3))
    ]
