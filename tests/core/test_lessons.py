"""What is learned of kinds of jobs: bounded, each user's own, merged with what memory they need."""

import math

import pytest
from builders import MB, counters, exited, job, sampled, started, submitted

from iodaemon.core import event as ev
from iodaemon.core.decision import Lesson, RegulationPlan
from iodaemon.core.error import IodaemonError
from iodaemon.core.job import Exit, JobId, JobKind
from iodaemon.core.lessons import Lessons, uid_of
from iodaemon.core.rule import Mode
from iodaemon.core.sample import JobCounters
from iodaemon.core.similarity import kind_of
from iodaemon.core.view import View

KIND = JobKind("1000 like:true")
LIMIT = Lesson(limit=2, too_many=6, gain=2.6, tries=2, at_s=5.0)


def kind(uid, number=0):
    return JobKind(f"{uid} like:program{number}")


def resident(size_mb):
    return JobCounters(read_bytes=0, written_bytes=0, resident_bytes=size_mb * MB)


def run(rig, job_id, *sizes_mb, end=None, **fields):
    """The job runs, has so much in memory at each sample, and ends; the plan of its end."""
    at_s = 100.0 * job_id
    rig.step(submitted(job(job_id, submitted_s=at_s, **fields)))
    rig.step(started(at_s, job_id))
    for place, size_mb in enumerate(sizes_mb, 1):
        rig.step(sampled(at_s + place, {job_id: resident(size_mb)}))
    rig.backend.take()
    return rig.step(exited(at_s + 50.0, job_id, end=end))


def footprint(rig, job_id, **fields):
    """What a job that was just submitted is expected to need."""
    rig.step(submitted(job(job_id, submitted_s=9000.0, **fields)))
    rig.backend.take()
    view = View(rig.state, rig.controller.rules.placement, 9000.0, None)
    return view.footprint_bytes(JobId(job_id))


def learned(rig, now_s, **lesson):
    """A timeslice in which the regulation learns this of the kind of ``job``."""
    rig.regulation.plan = RegulationPlan(lessons={KIND: Lesson(**lesson)})
    return rig.step(sampled(now_s, {}))


# -- bounds ----------------------------------------------------------------------------------------


def test_of_too_many_that_goes_of_which_nothing_was_learned_for_longest():
    lessons = Lessons(most=2)
    lessons.learn(kind(1, 1), LIMIT)
    lessons.learn(kind(1, 2), LIMIT)
    lessons.learn(kind(1, 1), LIMIT)

    changes = lessons.learn(kind(1, 3), LIMIT)

    assert {kind(1, 3): LIMIT, kind(1, 2): None} == changes
    assert {kind(1, 1), kind(1, 3)} == set(lessons)


def test_the_user_who_has_most_loses_one_whoever_learns():
    lessons = Lessons(most=4)
    for number in range(3):
        lessons.learn(kind(1, number), LIMIT)
    lessons.learn(kind(2), LIMIT)

    assert {kind(2, 1): LIMIT, kind(1, 0): None} == lessons.learn(kind(2, 1), LIMIT)
    assert 4 == len(lessons)


def test_a_newcomer_pushes_out_who_has_more():
    lessons = Lessons(most=1)
    lessons.learn(kind(1), LIMIT)

    assert {kind(2): LIMIT, kind(1): None} == lessons.learn(kind(2), LIMIT)
    assert [kind(2)] == list(lessons)


def test_what_is_dropped_is_not_known_and_makes_room():
    lessons = Lessons(most=1)
    lessons.learn(kind(1), LIMIT)

    assert lessons.drop(kind(1))
    assert not lessons.drop(kind(1))
    assert {kind(2): LIMIT} == lessons.learn(kind(2), LIMIT)


def test_a_kind_says_whose_it_is():
    assert 1000 == uid_of(kind_of(job()))


def test_an_empty_command_has_a_kind_as_well():
    assert JobKind("1000 command: in /a") == kind_of(job(command=("",), cwd="/a"))


# -- what the regulation learned -------------------------------------------------------------------


def test_what_the_regulation_learned_is_in_the_plan_and_in_the_view(rig):
    plan = learned(rig, 1.0, limit=2, too_many=6, gain=2.6, tries=2, at_s=5.0)

    assert {KIND: LIMIT} == plan.lessons
    view = View(rig.state, rig.controller.rules.placement, 1.0, None)
    assert LIMIT == view.lesson(KIND)


@pytest.mark.parametrize("field", ["limit", "too_many", "seen", "tries"])
def test_whatever_it_learned_is_in_the_view(rig, field):
    learned(rig, 1.0, **{field: 1})

    view = View(rig.state, rig.controller.rules.placement, 1.0, None)
    assert view.lesson(KIND) is not None


def test_a_step_in_which_nothing_was_learned_says_so(rig):
    learned(rig, 1.0, tries=1)
    rig.regulation.plan = RegulationPlan()

    assert {} == rig.step(sampled(2.0, {})).lessons


def test_an_endless_gain_is_a_large_one(rig):
    assert 1e6 == learned(rig, 1.0, tries=1, gain=math.inf).lessons[KIND].gain


def test_in_shadow_nothing_is_learned(rig):
    rig.step(ev.ModeChanged(at_s=0.5, mode=Mode.SHADOW, by="ann"))

    assert {} == learned(rig, 1.0, tries=1).lessons
    assert 0 == len(rig.state.lessons)


def test_what_somebody_wants_forgotten_is(rig):
    learned(rig, 1.0, tries=1)

    other = JobKind("1000 like:other")
    plan = rig.step(ev.LessonsForgotten(at_s=2.0, kinds=(KIND, other)))

    assert {KIND: None} == plan.lessons
    assert rig.state.lessons.get(KIND) is None


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
    rig.regulation.plan = RegulationPlan(**fields)

    with pytest.raises(IodaemonError, match=told):
        rig.step(sampled(1.0, {}))


# -- memory ----------------------------------------------------------------------------------------


def test_the_most_that_a_run_had_in_memory_is_what_its_kind_needs(rig):
    plan = run(rig, 1, 10, 300, 20)

    assert {KIND: Lesson(footprint_bytes=300 * MB)} == plan.lessons
    assert 300 * MB == footprint(rig, 2)


def test_what_a_job_asks_for_goes_before_what_is_known_of_its_kind(rig):
    run(rig, 1, 300)

    assert 5 == footprint(rig, 2, memory_bytes=5)
    assert footprint(rig, 3, command=("other",)) is None


def test_another_users_jobs_teach_nothing(rig):
    run(rig, 1, 300, uid=1)

    assert footprint(rig, 2) is None


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

    assert {} == less.lessons
    assert 400 * MB == more.lessons[KIND].footprint_bytes


def test_without_a_sample_of_its_memory_a_run_teaches_nothing(rig):
    rig.step(submitted(job(1)), started(0.0))
    rig.step(sampled(1.0, {1: counters(5)}))
    rig.backend.take()

    assert {} == rig.step(exited(2.0)).lessons


def test_a_peak_is_that_of_the_attempt(rig):
    run(rig, 1, 300)
    run(rig, 2)

    assert rig.state.meter.peak_bytes(JobId(1)) is None
    assert 300 * MB == footprint(rig, 3)


def test_what_is_needed_says_nothing_of_how_many_should_contend(rig):
    run(rig, 1, 300)

    view = View(rig.state, rig.controller.rules.placement, 1.0, None)
    assert view.lesson(KIND) is None


def test_neither_erases_the_other(rig):
    learned(rig, 1.0, limit=2, too_many=6, gain=2.6, tries=2, at_s=5.0)
    run(rig, 1, 300)
    rig.regulation.plan = RegulationPlan()
    both = rig.state.lessons[KIND]
    learned(rig, 9999.0, limit=3, footprint_bytes=7)

    assert (2, 2.6, 5.0, 300 * MB) == (both.limit, both.gain, both.at_s, both.footprint_bytes)
    assert Lesson(limit=3, footprint_bytes=300 * MB) == rig.state.lessons[KIND]
