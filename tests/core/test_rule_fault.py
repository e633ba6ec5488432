"""A rule that fails is set aside with file and line, and the node goes on under the fallback."""

import inspect
import sys

import msgspec
import pytest
from builders import MB, FirstFit, InOrder, Script, counters, job, reason, sampled, submitted

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
from iodaemon.core.job import JobKind, JobState, ScratchRequest
from iodaemon.core.rule import Mode, Rules
from iodaemon.core.rule_error import RuleError, RuleTimeout
from iodaemon.core.state import State
from iodaemon.core.storage import Disk, Storage, StorageNode, Tier


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


BAD_ADMISSIONS = {
    "nothing": lambda view, memory: None,
    "no pair": lambda view, memory: AdmissionPlan(),
    "another plan": lambda view, memory: (RegulationPlan(), None),
    "no such job": lambda view, memory: (AdmissionPlan(starts=(Placed(job_id=9, partition=0),)), 0),
    "no such socket": lambda view, memory: (
        AdmissionPlan(starts=(Placed(job_id=1, partition=9),)),
        None,
    ),
    "twice": lambda view, memory: (
        AdmissionPlan(starts=(Placed(job_id=1, partition=0),) * 2),
        None,
    ),
    "more than there is": lambda view, memory: (
        AdmissionPlan(starts=tuple(Placed(job_id=each, partition=0) for each in (1, 2, 3))),
        None,
    ),
    "started and rejected": lambda view, memory: (
        AdmissionPlan(starts=(Placed(job_id=1, partition=0),), rejects={1: reason()}),
        None,
    ),
    "rejects no such job": lambda view, memory: (AdmissionPlan(rejects={9: reason()}), None),
    "a text for a reason": lambda view, memory: (AdmissionPlan(reasons={1: "no"}), None),
    "a reason of no such job": lambda view, memory: (AdmissionPlan(reasons={9: reason()}), None),
    "reasons that are none": lambda view, memory: (AdmissionPlan(reasons=7), None),
    "a text for the rest": lambda view, memory: (AdmissionPlan(rest="wait"), None),
    "no reservations": lambda view, memory: (AdmissionPlan(reservations=None), None),
    "ids for starts": lambda view, memory: (AdmissionPlan(starts=(1,)), None),
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


def limiting(**fields):
    """A regulation that limits starts so."""
    limit = StartLimit(**({"why": reason()} | fields))
    return lambda view, memory: (RegulationPlan(starts=limit), None)


BAD_REGULATIONS = {
    "nothing": lambda view, memory: None,
    "another plan": lambda view, memory: (AdmissionPlan(), None),
    "no such job": lambda view, memory: (RegulationPlan(suspends=(9,)), None),
    "resumes no such job": lambda view, memory: (RegulationPlan(resumes=(9,)), None),
    "a set": lambda view, memory: (RegulationPlan(suspends={1}), None),
    "no reasons": lambda view, memory: (RegulationPlan(reasons={1: "x"}), None),
    "no evidence": lambda view, memory: (RegulationPlan(evidence=("x",)), None),
    "no rate": lambda view, memory: (RegulationPlan(io_headroom_bytes_per_s=float("nan")), None),
    "a rate below 0": lambda view, memory: (RegulationPlan(io_headroom_bytes_per_s=-1.0), None),
    "a number for starts": lambda view, memory: (RegulationPlan(starts=3), None),
    "no words for who waits": limiting(why="wait"),
    "less than no start": limiting(most=-1),
    "half a start": limiting(most=0.5),
    "no number of what is free": limiting(free=float("nan")),
    "a share below 0": limiting(shares={JobKind("0 like:true"): -0.5}),
    "shares that are none": limiting(shares=0.5),
    "half a job above the cores": limiting(above_cores={0: 0.5}),
    "memory in words": limiting(memory_bytes="1G"),
    "less than no memory": limiting(footprint_bytes=-1.0),
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
    rule = Own(lambda view, memory: (RegulationPlan(suspends=(1,)), None))
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
    rule = Own(lambda view, memory: (AdmissionPlan(), None))
    rule.explain = boom
    using(rig, admission=rule)
    rig.step(submitted(job(1)))

    assert BOOM_AT in rig.controller.account(rig.job(1))
    assert "policy" not in rig.controller.faults


# -- the rule of a tier ------------------------------------------------------------------------


def tiered(rig, act):
    disks = tuple(
        Disk(id=name, capacity_bytes=100, read_bytes_per_s=1.0, write_bytes_per_s=1.0)
        for name in ("/a", "/b")
    )
    storage = Storage(nodes=(StorageNode(id="n", disks=disks),))
    tier = Tier(name="fast", bandwidth_bytes_per_s=1.0, storage=storage, rule=Own(act))
    rig.state = State(rig.state.platform, (tier,))
    return using(rig)


@pytest.mark.parametrize("act", [boom, lambda *_: ("/c", None), lambda *_: None])
@pytest.mark.parametrize("looks", [True, False])
def test_a_tier_goes_on_without_its_rule_and_the_policy_stays(rig, act, looks):
    tiered(rig, act)
    if not looks:  # the admission leaves the space to the controller
        first = Placed(job_id=1, partition=0)
        rule = Own(lambda view, memory: (AdmissionPlan(starts=(first,)), None))
        rig.controller.rules = msgspec.structs.replace(rig.controller.rules, admission=rule)

    plan = rig.step(submitted(job(1, scratch=ScratchRequest(size_bytes=10))))

    [start] = rig.backend.take()
    assert ["/a"] == [share.disk for share in start.shares]
    assert ["allocation"] == [fault.kind for fault in plan.faults]
    assert {"tier fast"} == set(rig.controller.faults)
    assert "test" == rig.controller.rules.name
