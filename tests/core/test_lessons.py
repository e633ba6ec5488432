"""What is learned of kinds of jobs, and what regulation tries of how many should contend."""

import math

import msgspec
import pytest
from builders import MB, counters, exited, job, reason, sampled, started, submitted, suspended
from tracing import measured, then, timeslice

from iodaemon.core import event as ev
from iodaemon.core.decision import (
    AdmissionPlan,
    Lesson,
    LimitState,
    StartLimit,
    TrialStep,
)
from iodaemon.core.error import IodaemonError
from iodaemon.core.explain import explain
from iodaemon.core.job import Exit, JobId, JobKind
from iodaemon.core.lessons import Lessons, uid_of
from iodaemon.core.rule import Mode
from iodaemon.core.sample import JobCounters
from iodaemon.core.similarity import kind_of
from iodaemon.core.state import CONTENTION, KEPT_TRIALS
from iodaemon.core.view import View

KIND = JobKind("1000 like:true")
LIMIT = Lesson(limit=2, too_many=6, gain=2.6, tries=2, at_s=5.0)


def kind(uid, number=0):
    return JobKind(f"{uid} like:program{number}")


def view(rig):
    return View(rig.state, rig.controller.rules.placement, 9000.0, None)


def run(rig, job_id, *sizes_mb, end=None, **fields):
    """The job runs, has so much in memory at each sample, and ends; the plan of its end."""
    at_s = 100.0 * job_id
    then(rig, submitted(job(job_id, submitted_s=at_s, **fields)), f"start {job_id}")
    then(rig, started(at_s, job_id))
    for place, size_mb in enumerate(sizes_mb, 1):
        read = JobCounters(read_bytes=0, written_bytes=0, resident_bytes=size_mb * MB)
        then(rig, sampled(at_s + place, {job_id: read}))
    return then(rig, exited(at_s + 50.0, job_id, end=end))


def footprint(rig, job_id, **fields):
    """What a job that was just submitted is expected to need."""
    then(rig, submitted(job(job_id, submitted_s=9000.0, **fields)), f"start {job_id}")
    return view(rig).footprint_bytes(JobId(job_id))


def learned(rig, now_s, **lesson):
    """The plan of a timeslice in which the regulation learns this of the kind of ``job``."""
    return then(rig, timeslice(rig, now_s, lessons={KIND: Lesson(**lesson)}))


def switch(at_s, mode):
    return ev.ModeChanged(at_s=at_s, mode=mode, by="ann")


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "before", "new", "out"),
    [
        (2, [(1, 1), (1, 2), (1, 1)], (1, 3), (1, 2)),  # of which nothing was learned for longest
        (4, [(1, 0), (1, 1), (1, 2), (2, 0)], (2, 1), (1, 0)),  # of the user who has most
        (1, [(1, 0)], (2, 0), (1, 0)),
    ],
)
def test_of_too_many_one_of_the_user_who_has_most_goes(most, before, new, out):
    lessons = Lessons(most=most)
    for each in before:
        lessons.learn(kind(*each), LIMIT)

    assert {kind(*new): LIMIT, kind(*out): None} == lessons.learn(kind(*new), LIMIT)
    assert {kind(*each) for each in (*before, new)} - {kind(*out)} == set(lessons)
    assert most == len(lessons)


def test_what_is_dropped_is_not_known_and_makes_room():
    lessons = Lessons(most=1)
    lessons.learn(kind(1), LIMIT)

    assert (True, False) == (lessons.drop(kind(1)), lessons.drop(kind(1)))
    assert {kind(2): LIMIT} == lessons.learn(kind(2), LIMIT)


def test_a_kind_says_whose_it_is_also_of_an_empty_command():
    assert 1000 == uid_of(kind_of(job()))
    assert JobKind("1000 command: in /a") == kind_of(job(command=("",), cwd="/a"))


# -- what the regulation learned -------------------------------------------------------------------


def test_what_the_regulation_learned_is_in_the_plan_and_in_the_view_and_is_said_once(rig):
    plan = learned(rig, 1.0, limit=2, too_many=6, gain=2.6, tries=2, at_s=5.0)

    assert ({KIND: LIMIT}, LIMIT) == (plan.lessons, view(rig).lesson(KIND))
    assert {} == then(rig, timeslice(rig, 2.0)).lessons


@pytest.mark.parametrize("field", ["limit", "too_many", "seen", "tries"])
def test_whatever_it_learned_is_in_the_view(rig, field):
    learned(rig, 1.0, **{field: 1})

    assert view(rig).lesson(KIND) is not None


def test_an_endless_gain_is_a_large_one(rig):
    assert 1e6 == learned(rig, 1.0, tries=1, gain=math.inf).lessons[KIND].gain


def test_in_shadow_nothing_is_learned(rig):
    then(rig, switch(0.5, Mode.SHADOW))

    assert ({}, 0) == (learned(rig, 1.0, tries=1).lessons, len(rig.state.lessons))


def test_what_somebody_wants_forgotten_is(rig):
    learned(rig, 1.0, tries=1)
    other = JobKind("1000 like:other")
    plan = then(rig, ev.LessonsForgotten(at_s=2.0, kinds=(KIND, other)))

    assert ({KIND: None}, None) == (plan.lessons, rig.state.lessons.get(KIND))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"lessons": [1]}, "lessons is list, not a mapping"),
        ({"lessons": {"solve": Lesson()}}, "lessons has 'solve', which View.kind never returns"),
        ({"lessons": {KIND: 2}}, "lessons contains int, not Lesson"),
        ({"lessons": {KIND: Lesson(gain=math.nan)}}, "lessons has a gain of nan"),
        ({"lessons": {KIND: Lesson(at_s=math.inf)}}, "lessons has a gain of 1.0 at inf s"),
        ({"trials": (1,)}, "trials contains what is no TrialStep"),
        ({"limits": (1,)}, "limits contains what is no LimitState"),
    ],
)
def test_what_a_rule_may_not_say_of_kinds_and_limits_is_refused(rig, fields, told):
    with pytest.raises(IodaemonError, match=told):
        rig.step(timeslice(rig, 1.0, **fields))


# -- memory ----------------------------------------------------------------------------------------


def test_the_most_that_a_run_had_in_memory_is_what_its_kind_needs(rig):
    plan = run(rig, 1, 10, 300, 20)

    assert {KIND: Lesson(footprint_bytes=300 * MB)} == plan.lessons
    assert (300 * MB, None) == (footprint(rig, 2), view(rig).lesson(KIND))


def test_what_a_job_asks_for_goes_before_what_is_known_of_its_kind_and_user(rig):
    run(rig, 1, 300)

    assert 5 == footprint(rig, 2, memory_bytes=5)
    assert footprint(rig, 3, command=("other",)) is None
    assert footprint(rig, 4, uid=1) is None


def test_runs_that_complete_with_less_let_it_fade(rig):
    run(rig, 1, 300)
    run(rig, 2, 100)

    assert 250 * MB == footprint(rig, 3)


@pytest.mark.parametrize(
    "end", [Exit(code=1), Exit(signal=9), Exit(), Exit(signal=9, out_of_memory=True)]
)
def test_a_run_that_did_not_complete_shows_more_but_never_less(rig, end):
    run(rig, 1, 300)
    less = run(rig, 2, 100, end=end)
    more = run(rig, 3, 400, end=end)

    assert ({}, 400 * MB) == (less.lessons, more.lessons[KIND].footprint_bytes)


def test_a_run_without_a_sample_of_its_memory_teaches_nothing_and_a_peak_is_the_attempts(rig):
    run(rig, 1, 300)
    then(rig, (submitted(job(2)), started(200.0, 2)), "start 2")
    then(rig, sampled(201.0, {2: counters(5)}))

    assert {} == then(rig, exited(202.0, 2)).lessons
    assert (None, 300 * MB) == (rig.state.meter.peak_bytes(JobId(1)), footprint(rig, 3))


def test_what_is_needed_and_how_many_should_contend_do_not_erase_each_other(rig):
    learned(rig, 1.0, limit=2, too_many=6, gain=2.6, tries=2, at_s=5.0)
    rig.regulation.plan = type(rig.regulation.plan)()
    run(rig, 1, 300)
    both = rig.state.lessons[KIND]
    learned(rig, 9999.0, limit=3, footprint_bytes=7)

    assert msgspec.structs.replace(LIMIT, footprint_bytes=300 * MB) == both
    assert Lesson(limit=3, footprint_bytes=300 * MB) == rig.state.lessons[KIND]


# -- what is tried ---------------------------------------------------------------------------------

WHY = reason(CONTENTION, "2 jobs contend for memory, which is the most that gets on")
MEMORY = LimitState(resource="memory", contending=2, limit=2, text="6 got less done")
DISK = LimitState(resource="sim0", contending=4, limit=None, text="")
STARTS = StartLimit(most=0, why=WHY)


def trial(tried=2, resource="memory", **fields):
    made = {"resource": resource, "verdict": "kept", "before": 6, "tried": tried}
    return TrialStep(**{**made, "gain": 2.6, "text": f"{tried} got more done than 6", **fields})


def trying(rig, at_s, *trials, **plan):
    """The event of a timeslice in which the rule limits starts and tries this."""
    return timeslice(rig, at_s, starts=STARTS, limits=(MEMORY, DISK), trials=trials, **plan)


def told(rig, job_id):
    return explain(rig.state, rig.controller.rules, rig.job(job_id), 10.0)


class Waiting:
    """An admission that starts nobody and says why."""

    def decide(self, view, memory):
        return AdmissionPlan(reasons={each.id: WHY for each in view.pending}), memory


@pytest.fixture
def waiting(rig):
    """A job that enough others contend without."""
    rig.controller.use(msgspec.structs.replace(rig.controller.rules, admission=Waiting()))
    then(rig, submitted(job(1)))
    return rig


def kept(rig):
    return rig.state.start_limit, rig.state.limits, len(rig.state.trials)


def test_what_is_tried_is_in_the_plan_with_its_time_and_forgotten_in_another_mode(rig):
    assert (trial(at_s=5.0),) == then(rig, trying(rig, 5.0, trial())).trials
    assert (STARTS, (MEMORY, DISK), 1) == kept(rig)
    then(rig, switch(6.0, Mode.OFF))
    assert (None, (), 0) == kept(rig)


def test_in_shadow_it_is_told_and_nothing_is_limited(rig):
    then(rig, switch(0.5, Mode.SHADOW))
    plan = then(rig, trying(rig, 5.0, trial()))

    assert (trial(at_s=5.0, is_shadow=True),) == plan.trials
    assert (None, (), 0) == kept(rig)


def test_of_a_job_that_waits_for_it_what_is_believed_and_was_tried_is_told(waiting):
    then(waiting, trying(waiting, 5.0, trial(3), trial(2), trial(1, resource="sim0")))
    said = told(waiting, 1)

    assert f"waits: {WHY.text}" == said.is_so
    assert said.until.startswith("one of those that contend ends, or more of them at once are tri")
    assert (MEMORY,) == said.limits
    assert (trial(3, at_s=5.0), trial(2, at_s=5.0)) == said.trials


def test_so_many_are_kept_and_the_last_five_are_told(waiting):
    for number in range(KEPT_TRIALS + 5):
        then(waiting, trying(waiting, 1.0 + number, trial(number)))

    tried = [each.tried for each in waiting.state.trials]
    assert list(range(5, KEPT_TRIALS + 5)) == tried
    assert tried[-5:] == [each.tried for each in told(waiting, 1).trials]


@pytest.mark.parametrize(("code", "is_told"), [(CONTENTION, True), ("IoBound", False)])
def test_of_a_job_that_stands_still_for_it_as_well(rig, code, is_told):
    measured(rig, job(1))
    why = reason(code, "6 jobs contend for memory, 2 get more done")
    held = trying(rig, 5.0, trial(), suspends=(JobId(1),), reasons={JobId(1): why})
    then(rig, held, "suspend 1")
    then(rig, suspended(5.1))
    said = told(rig, 1)

    assert why.text in said.is_so
    assert (is_told, is_told) == ("others get on" in said.is_so, bool(said.trials))
    assert ((MEMORY,) if is_told else ()) == said.limits
    assert is_told is said.until.startswith("one of those that contend ends, or more")


def test_of_a_job_that_runs_or_waits_for_room_nothing_of_it_is_told(rig):
    rig.run(job(1), job(2, cpus=2), job(3, cpus=2))
    then(rig, trying(rig, 5.0, trial()))

    assert {((), ())} == {(told(rig, n).limits, told(rig, n).trials) for n in (1, 2, 3)}
