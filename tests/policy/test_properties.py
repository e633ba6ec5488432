"""What must hold for every rule and every policy file, those not yet written included."""

import math
from typing import Any, get_args

import msgspec
import pytest
from builders import platform
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.config import find_policies, load_policy
from iodaemon.core import event as ev
from iodaemon.core.decision import Plan, RegulationPlan, Resume, ShadowStep, Start, Suspend
from iodaemon.core.job import SUSPENDED, JobId, JobState
from iodaemon.core.limits import Sharing
from iodaemon.core.rule import Mode, Rules
from iodaemon.core.sample import Sample
from iodaemon.core.state import State
from iodaemon.model.node import Model, SimulatedDisk, lv_scaling
from iodaemon.registry import Kind, find_rule, rule_names, shipped
from iodaemon.simulator.replay import Recording, replay
from iodaemon.simulator.run import simulate
from iodaemon.simulator.workload import MB, Mix, random_workload

DISK = SimulatedDisk(
    capacity_bytes_per_s=100.0 * MB,
    scaling=lv_scaling,
    memory_bytes_per_s=500.0 * MB,
    dirty_background_bytes=100 * MB,
    dirty_limit_bytes=200 * MB,
)
BOUND_BYTES_PER_S = 40.0 * MB
MAX_SUSPEND_S = 4.0
"""Short, so that the guard is needed in nearly every run."""
NEVER_S = 20_000.0
"""All work of a run together is far below this."""
BASE = {"admission": "fcfs", "placement": "least_io", "regulation": "dynamic"}


def composed(kind: Kind, name: str, **beside: str) -> Rules:
    """The rule among well-known others; a regulation with a bound gets one that binds."""
    chosen = BASE | beside | {kind: name}
    made: dict[str, Any] = {}
    for each in get_args(Kind):
        type_ = find_rule(each, chosen[each])
        is_capped = "io_bound_bytes_per_s" in type_.__struct_fields__
        made[each] = type_(**({"io_bound_bytes_per_s": BOUND_BYTES_PER_S} if is_capped else {}))
    return Rules(name=f"{kind}-{name}", max_suspend_s=MAX_SUSPEND_S, **made)


def from_file(name: str) -> Rules:
    rules = load_policy(name, overrides={}, search=[shipped("policies")]).rules
    return msgspec.structs.replace(rules, max_suspend_s=MAX_SUSPEND_S)


class Hostile(msgspec.Struct, frozen=True):
    """A regulation that would suspend everything for ever, were it not for the guards."""

    timeslice_s: float = 1.0

    def decide(self, view, memory):
        everyone = tuple(job.id for job in view.live)
        return RegulationPlan(
            suspends=everyone, resumes=tuple(i for i in everyone if view.rng.random() < 0.1)
        ), memory


HOSTILE = msgspec.structs.replace(composed("regulation", "none"), regulation=Hostile())
SUBJECTS = [
    pytest.param(HOSTILE, id="hostile"),
    *(
        pytest.param(from_file(name), id=f"{name}.toml")
        for name in find_policies([shipped("policies")])
    ),
    *(
        pytest.param(composed(kind, name), id=f"{kind}-{name}")
        for kind in get_args(Kind)
        for name in rule_names(kind)
    ),
    *(  # which leaves little headroom
        pytest.param(composed("admission", name, regulation="adaptive"), id=f"{name}-adaptive")
        for name in ("easy", "equilibrio")
    ),
]
MIXES = st.builds(
    Mix,
    jobs=st.integers(1, 14),
    mean_gap_s=st.sampled_from([0.0, 0.5, 3.0]),
    cpus=st.sampled_from([(1, 1), (1, 3), (1, 5)]),
    steps=st.just((1, 4)),
    compute_s=st.just((0.1, 6.0)),
    transfer_bytes=st.just((1 * MB, 400 * MB)),
    io_ratio=st.sampled_from([0.3, 0.7, 1.0]),
    no_suspend_ratio=st.just(0.2),
    hides_io_ratio=st.just(0.2),
    io_alone_bytes_per_s=st.just(100.0 * MB),
)
MACHINES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(lambda sizes: platform(*sizes))
examples = settings(max_examples=tries(40), deadline=None)


class Watch:
    """Checks the state and the controller's guards after every step."""

    def __init__(self) -> None:
        self._immune_until_s: dict[JobId, float] = {}
        self._held: set[JobId] = set()

    def __call__(self, state: State, plan: Plan) -> None:
        state.check()
        for decision in plan.decisions:
            if isinstance(decision, Start):
                assert len(set(decision.slots)) == state.jobs[decision.job_id].spec.cpus
            if isinstance(decision, Suspend):
                assert state.meter.bandwidth(decision.job_id) is not None, "unknown I/O"
        for job in state.live:
            self._check_hold(state, job)

    def _check_hold(self, state, job) -> None:
        now_s = state.meter.last.at_s if state.meter.last else 0.0
        assert not (job.io_hold and job.spec.no_suspend), "--no-suspend"
        assert not (job.state is JobState.SUSPENDED_IO and job.spec.no_suspend), "--no-suspend"
        if not job.io_hold:
            self._held.discard(job.id)
            if job.immune_until_s is not None:
                self._immune_until_s[job.id] = job.immune_until_s
            return
        assert now_s - job.io_held_since_s <= MAX_SUSPEND_S, "held too long in a row"
        if job.id not in self._held:
            assert job.io_held_since_s >= self._immune_until_s.get(job.id, 0.0), "immune"
        self._held.add(job.id)


def run(rules, machine, mix, seed, on_step=None, **options):
    made = {"seed": seed, "until_s": NEVER_S, "on_step": on_step, "model": Model(disk=DISK)}
    return simulate(machine, rules, random_workload(mix, seed), **made, **options)


@pytest.mark.parametrize("rules", SUBJECTS)
@examples
@given(machine=MACHINES, mix=MIXES, seed=st.integers(0, 2**32))
def test_every_feasible_job_ends_once_within_the_slots_and_the_guards(rules, machine, mix, seed):
    result = run(rules, machine, mix, seed, Watch())

    ends = [step.job_id for step in result.transitions if step.after.is_final]
    largest = machine.largest_partition
    feasible = [job.id for job in result.jobs if job.spec.cpus <= largest]
    assert feasible == sorted(ends)
    assert mix.jobs == len(result.jobs)
    assert longest_suspension_s(result) <= MAX_SUSPEND_S + 1e-9


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in get_args(Kind) for name in rule_names(kind)]
)
def test_a_number_that_means_nothing_is_refused_by_its_name(kind, name):
    type_ = find_rule(kind, name)
    for field in msgspec.structs.fields(type_):
        for word, bad in (("float", math.nan), ("float", -1.0), ("int", -1)):
            if word in str(field.type):
                with pytest.raises(ValueError, match=field.name):
                    type_(**{field.name: bad})


class Recorder:
    """In shadow: nothing is touched, and everything is written down."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.steps: list[ShadowStep] = []

    def __call__(self, state: State, plan: Plan) -> None:
        state.check()
        assert not any(isinstance(d, Suspend | Resume) for d in plan.decisions)
        assert not any(job.io_hold for job in state.live)
        assert all(evidence.is_shadow for evidence in plan.evidence)
        assert state.io_headroom_bytes_per_s is None
        self.steps += plan.shadow
        last = state.meter.last
        if last is not None and last not in self.samples[-1:]:
            self.samples.append(last)


@pytest.mark.parametrize("rules", SUBJECTS)
@settings(max_examples=tries(15), deadline=None)
@given(machine=MACHINES, mix=MIXES, seed=st.integers(0, 2**32))
def test_in_shadow_nothing_is_touched_and_a_replay_says_the_same(rules, machine, mix, seed):
    recorder = Recorder()
    result = run(rules, machine, mix, seed, recorder, mode=Mode.SHADOW)
    recording = Recording(samples=tuple(recorder.samples), jobs=result.jobs, platform=machine)

    assert all(job.suspended_io_s == 0.0 for job in result.jobs)
    if rules is not HOSTILE:  # draws lots for each job; within one instant a replay may err
        assert tuple(recorder.steps) == replay(recording, rules, seed=seed).steps
    for step in recorder.steps:
        assert not result.jobs[step.job_id - 1].spec.no_suspend
        assert (step.lasted_s or 0.0) <= MAX_SUSPEND_S + rules.regulation.timeslice_s


def longest_suspension_s(result):
    since_s: dict[JobId, float] = {}
    spells_s = [0.0]
    for step in result.transitions:
        if step.before is JobState.SUSPENDED_IO:
            spells_s.append(step.at_s - since_s[step.job_id])
        since_s[step.job_id] = step.at_s
    return max(spells_s)


@pytest.mark.parametrize("rules", SUBJECTS)
@settings(max_examples=tries(4), deadline=None)
@given(machine=MACHINES, mix=MIXES, seed=st.integers(0, 2**32))
def test_the_same_input_gives_the_same_plan(rules, machine, mix, seed):
    first, second = (run(rules, machine, mix, seed) for _ in range(2))

    assert first.transitions == second.transitions
    assert first == second


@pytest.mark.parametrize("rules", SUBJECTS)
def test_no_memory_is_always_legal(rules):
    """A restarted daemon has forgotten what its rules remembered: everything still ends."""

    class Forgetful:
        timeslice_s = rules.regulation.timeslice_s

        def __init__(self, rule):
            self.rule = rule

        def decide(self, view, memory):
            return self.rule.decide(view, None)[0], None

    forgetful = msgspec.structs.replace(
        rules, regulation=Forgetful(rules.regulation), admission=Forgetful(rules.admission)
    )
    mix = Mix(jobs=15, mean_gap_s=1.0, transfer_bytes=(MB, 300 * MB))
    result = run(forgetful, platform(2, 2), mix, 5, lambda state, plan: state.check())

    assert len(result.finished) == 15


@pytest.mark.parametrize("rules", [HOSTILE, composed("regulation", "dynamic")])
def test_the_runs_do_put_the_guards_to_the_test(rules):
    """The properties above would hold of runs in which nothing is ever suspended, too."""
    mix = Mix(jobs=14, mean_gap_s=0.5, transfer_bytes=(MB, 400 * MB), io_ratio=0.7)

    result = run(rules, platform(4, 4), mix, 1, Watch())

    assert sum(step.after is JobState.SUSPENDED_IO for step in result.transitions) > 10
    assert max(job.suspended_io_s for job in result.jobs) > MAX_SUSPEND_S


# -- policies that change while jobs run, and drains between ---------------------------------------

POLICIES = [HOSTILE, *(from_file(name) for name in find_policies([shipped("policies")]))]
TIMES_S = st.floats(0.0, 60.0, allow_nan=False).map(lambda at_s: round(at_s, 1))
"""To a tenth: some changes fall on the very instant of a sample."""
LAST_S = 61.0


def changed(at_s, rules=None, sharing=None):
    return ev.Reconfigured(at_s=at_s, by="ann", changes=(), rules=rules, sharing=sharing)


SHARINGS = st.builds(Sharing, max_running=st.sampled_from([None, 1, 3]), fair=st.booleans())
CHANGES = st.lists(
    st.one_of(
        st.builds(changed, TIMES_S, st.sampled_from(POLICIES), st.none() | SHARINGS),
        st.builds(ev.DrainBegun, at_s=TIMES_S, by=st.just("ann")),
        st.builds(ev.DrainEnded, at_s=TIMES_S, by=st.just("ann")),
        st.builds(ev.ModeChanged, at_s=TIMES_S, mode=st.sampled_from(Mode), by=st.just("ann")),
    ),
    max_size=12,
)


class Draining:
    def __init__(self):
        self.starts_while_drained = 0
        self.not_asked = 0

    def __call__(self, state, plan):
        state.check()
        if state.drain is not None:
            self.starts_while_drained += sum(isinstance(d, Start) for d in plan.decisions)
        for job in state.live:
            if job.state in SUSPENDED and not job.wants_freeze and job.freeze_asked:
                self.not_asked += 1


@settings(max_examples=tries(120), deadline=None)
@given(
    machine=MACHINES,
    mix=MIXES,
    seed=st.integers(0, 2**32),
    first=st.sampled_from(POLICIES),
    changes=CHANGES,
)
def test_every_feasible_job_ends_whatever_is_changed_meanwhile(machine, mix, seed, first, changes):
    watch = Draining()
    events = [*changes, ev.DrainEnded(at_s=LAST_S, by="ann")]
    result = run(first, machine, mix, seed, watch, events=events)

    largest = machine.largest_partition
    feasible = {job.id for job in result.jobs if job.spec.cpus <= largest}
    assert feasible <= {job.id for job in result.finished}
    assert 0 == watch.starts_while_drained
    assert 0 == watch.not_asked


def test_a_hostile_rule_that_is_replaced_leaves_nobody_behind():
    mix = Mix(jobs=8, mean_gap_s=0.0, cpus=(1, 1), transfer_bytes=(100 * MB, 400 * MB))
    forever, none = (
        msgspec.structs.replace(each, max_suspend_s=None) for each in (HOSTILE, from_file("none"))
    )
    result = run(forever, platform(4, 4), mix, 7, None, events=[changed(20.0, none)])

    stood_s = [job.suspended_io_s for job in result.jobs]
    assert max(stood_s) > MAX_SUSPEND_S  # with the guard lifted it held them
    assert 8 == len(result.finished)
