"""A rule that fails is set aside with file and line, and the node goes on under the fallback."""

import inspect
import sys

import msgspec
import pytest
from builders import MB, FirstFit, InOrder, Script, counters, job, reason, sampled, submitted
from test_tiers import tier, wants

from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.decision import (
    AdmissionPlan,
    Placed,
    RegulationPlan,
    Resume,
    Start,
    StartLimit,
)
from iodaemon.core.job import JobKind, JobState
from iodaemon.core.rule import Mode, Rules
from iodaemon.core.rule_error import RuleError, RuleTimeout
from iodaemon.core.state import State


class Own:
    """A rule of every kind that does what ``act`` does, with the arguments of the call."""

    timeslice_s = 1.0

    def __init__(self, act):
        self.act = act

    def decide(self, view, memory):
        return self.act(view, memory)

    refill = decide

    def choose(self, view, *rest):
        return self.act(view, *rest)


def boom(*_):
    raise ZeroDivisionError("division by zero")


BOOM_AT = f"{__file__}:{inspect.getsourcelines(boom)[1] + 1}"


def quit_(*_):
    sys.exit(3)


def never(*_):
    raise RuleTimeout("took longer than 10 s")


def using(rig, *, fallback=True, **rules):
    """The rig under other rules; what the controller was, with something to fall back on."""
    before = rig.controller
    spare = Rules(name="none", admission=InOrder(), placement=FirstFit(), regulation=Script())
    rig.controller = Controller(
        rig.state,
        msgspec.structs.replace(before.rules, **rules),
        fallback=spare if fallback else None,
    )
    return rig


def fault_of(rig):
    return rig.controller.faults["policy"]


# -- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["admission", "placement", "regulation"])
def test_a_rule_that_raises_is_set_aside_and_the_job_starts_all_the_same(rig, kind):
    using(rig, **{kind: Own(boom)})

    plan = rig.step(submitted(job(1)), sampled(1.0))

    assert [Start] == [type(each) for each in rig.backend.take()]
    assert "none" == rig.controller.rules.name
    [fault] = plan.faults
    assert fault == fault_of(rig)
    assert (kind, BOOM_AT, 1.0) == (fault.kind, fault.place, fault.at_s)
    assert "ZeroDivisionError: division by zero" == fault.problem
    assert fault.rule.endswith("test_rule_fault:Own")
    assert "in boom" in fault.trace


@pytest.mark.parametrize(("act", "problem"), [(quit_, "SystemExit: 3"), (never, "RuleTimeout")])
def test_a_rule_that_would_end_the_program_or_is_ended_is_set_aside(rig, act, problem):
    using(rig, regulation=Own(act))

    rig.step(sampled(1.0))

    assert fault_of(rig).problem.startswith(problem)


def admits(**fields):
    """An admission that answers so."""
    return lambda view, memory: (AdmissionPlan(**fields), None)


def regulates(**fields):
    return lambda view, memory: (RegulationPlan(**fields), None)


def limits(**fields):
    """A regulation that limits starts so."""
    return regulates(starts=StartLimit(**({"why": reason()} | fields)))


def placed(job_id=1, partition=0):
    return Placed(job_id=job_id, partition=partition)


BAD_ADMISSIONS = {
    "nothing": lambda view, memory: None,
    "no pair": lambda view, memory: AdmissionPlan(),
    "another plan": regulates(),
    "no such job": admits(starts=(placed(9),)),
    "no such socket": admits(starts=(placed(partition=9),)),
    "twice": admits(starts=(placed(),) * 2),
    "more than there is": admits(starts=(placed(1), placed(2), placed(3))),
    "started and rejected": admits(starts=(placed(),), rejects={1: reason()}),
    "rejects no such job": admits(rejects={9: reason()}),
    "a text for a reason": admits(reasons={1: "no"}),
    "a reason of no such job": admits(reasons={9: reason()}),
    "reasons that are none": admits(reasons=7),
    "a text for the rest": admits(rest="wait"),
    "no reservations": admits(reservations=None),
    "ids for starts": admits(starts=(1,)),
}


@pytest.mark.parametrize("name", BAD_ADMISSIONS)
def test_an_admission_that_answers_nonsense_is_set_aside_before_anything_is_done(rig, name):
    using(rig, admission=Own(BAD_ADMISSIONS[name]))

    rig.step(*(submitted(job(each)) for each in (1, 2, 3)))

    assert [1, 2, 3] == [start.job_id for start in rig.backend.take()]
    assert "admission" == fault_of(rig).kind
    line = inspect.getsourcelines(Own.decide)[1]
    assert (f"{__file__}:{line}", "") == (fault_of(rig).place, fault_of(rig).trace)


def test_a_job_that_runs_cannot_be_started_again(rig):
    rig.run(job(1))
    using(rig, admission=Own(BAD_ADMISSIONS["no such socket"]))

    rig.step(submitted(job(2)))

    assert [2] == [start.job_id for start in rig.backend.take()]
    assert "not in View.pending" in fault_of(rig).problem


BAD_REGULATIONS = {
    "nothing": lambda view, memory: None,
    "another plan": admits(),
    "no such job": regulates(suspends=(9,)),
    "resumes no such job": regulates(resumes=(9,)),
    "a set": regulates(suspends={1}),
    "no reasons": regulates(reasons={1: "x"}),
    "no evidence": regulates(evidence=("x",)),
    "no rate": regulates(io_headroom_bytes_per_s=float("nan")),
    "a rate below 0": regulates(io_headroom_bytes_per_s=-1.0),
    "a number for starts": regulates(starts=3),
    "no words for who waits": limits(why="wait"),
    "less than no start": limits(most=-1),
    "half a start": limits(most=0.5),
    "no number of what is free": limits(free=float("nan")),
    "a share below 0": limits(shares={JobKind("0 like:true"): -0.5}),
    "shares that are none": limits(shares=0.5),
    "half a job above the cores": limits(above_cores={0: 0.5}),
    "memory in words": limits(memory_bytes="1G"),
    "less than no memory": limits(footprint_bytes=-1.0),
}


@pytest.mark.parametrize("mode", [Mode.ON, Mode.SHADOW])
@pytest.mark.parametrize("name", BAD_REGULATIONS)
def test_a_regulation_that_answers_nonsense_is_set_aside(rig, name, mode):
    rig.run(job(1))
    using(rig, regulation=Own(BAD_REGULATIONS[name]))
    rig.controller.regulator.mode = mode

    rig.step(sampled(1.0, {1: counters(MB)}))

    assert "regulation" == fault_of(rig).kind
    assert JobState.RUNNING is rig.job(1).state


@pytest.mark.parametrize("answer", [None, 9, "0", [0]])
def test_a_placement_that_answers_nonsense_is_set_aside(rig, answer):
    using(rig, placement=Own(lambda view, made: answer))

    rig.step(submitted(job(1)))

    assert 1 == len(rig.backend.take())
    assert "placement" == fault_of(rig).kind


def test_a_placement_that_promises_slots_that_are_taken_is_set_aside(rig):
    using(rig, placement=Own(lambda view, made: 0))

    rig.step(*(submitted(job(each)) for each in (1, 2, 3)))

    assert 3 == len(rig.backend.take())
    assert "too few free slots" in fault_of(rig).problem


# -- what comes of it --------------------------------------------------------------------------


def test_what_a_regulation_held_is_let_go_when_it_fails(rig):
    rule = Own(regulates(suspends=(1,)))
    rig.run(job(1), job(2))
    using(rig, regulation=rule)
    moved = {1: counters(MB), 2: counters(MB)}
    rig.step(sampled(1.0, moved))
    rig.step(sampled(2.0, {each: counters(3 * MB) for each in moved}))
    assert rig.job(1).io_hold
    rig.backend.take()
    rule.act = boom

    rig.step(sampled(3.0, moved))

    assert not rig.job(1).io_hold
    assert [Resume(job_id=1)] == rig.backend.take()


def test_a_mended_rule_comes_back_by_another_configuration(rig):
    using(rig, admission=Own(boom))
    rig.step(submitted(job(1)))
    rig.backend.take()
    mended = msgspec.structs.replace(rig.controller.rules, name="mine")

    rig.step(ev.Reconfigured(at_s=2.0, by="ann", changes=(), rules=mended))

    assert ("mine", {}) == (rig.controller.rules.name, dict(rig.controller.faults))


def test_a_failure_of_the_fallback_itself_is_raised(rig):
    using(rig, admission=Own(boom))
    rig.controller.fallback = msgspec.structs.replace(rig.controller.fallback, admission=Own(boom))

    with pytest.raises(RuleError):
        rig.step(submitted(job(1)))


def test_without_a_fallback_the_failure_is_raised_with_file_and_line(rig):
    using(rig, fallback=False, regulation=Own(boom))

    with pytest.raises(RuleError) as e:
        rig.step(sampled(1.0))

    assert BOOM_AT in str(e.value)
    assert "\n" not in str(e.value)
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_a_rule_that_cannot_say_why_a_job_waits_does_no_harm(rig):
    rule = Own(admits())
    rule.explain = boom
    using(rig, admission=rule)
    rig.step(submitted(job(1)))

    assert BOOM_AT in rig.controller.account(rig.job(1))
    assert "policy" not in rig.controller.faults


# -- the rule of a tier ------------------------------------------------------------------------


def tiered(rig, act):
    one = msgspec.structs.replace(tier("fast", 100, 100), rule=Own(act))
    rig.state = State(rig.state.platform, (one,))
    return using(rig)


@pytest.mark.parametrize("act", [boom, lambda *_: ("/c", None), lambda *_: None])
@pytest.mark.parametrize("looks", [True, False])
def test_a_tier_goes_on_without_its_rule_and_the_policy_stays(rig, act, looks):
    tiered(rig, act)
    if not looks:  # the admission leaves the space to the controller
        rule = Own(admits(starts=(placed(),)))
        rig.controller.rules = msgspec.structs.replace(rig.controller.rules, admission=rule)

    plan = rig.step(submitted(job(1, scratch=wants(10))))

    [start] = rig.backend.take()
    assert ["fast0"] == [share.disk for share in start.shares]
    assert ["allocation"] == [fault.kind for fault in plan.faults]
    assert {"tier fast"} == set(rig.controller.faults)
    assert "test" == rig.controller.rules.name
