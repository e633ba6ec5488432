"""The rule ``adaptive`` beside counters that are missing, wrap or lie: it does less, never harm."""

import math
from types import MappingProxyType

import msgspec
import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from test_adaptive import ARM, FLASH, STREAM

from iodaemon.core.decision import Suspend
from iodaemon.core.job import JobSpec, JobState
from iodaemon.core.meter import job_bandwidth
from iodaemon.core.platform import share_cores
from iodaemon.core.rule import Rules
from iodaemon.core.sample import JobCounters, NodeCounters
from iodaemon.model.memory import SimulatedMemory
from iodaemon.model.node import default_platform
from iodaemon.model.profile import Compute, Profile, Read, Touch
from iodaemon.model.spec import Model
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import adaptive
from iodaemon.policy.regulation.adaptive.contender import what_it_did
from iodaemon.policy.regulation.adaptive.evidence import Reads, read_on
from iodaemon.policy.regulation.adaptive.slow_start import idle_cores, memory_left
from iodaemon.simulator.run import simulate

MB = 1_000_000
CORES = 4
ROOMY = SimulatedMemory(capacity_bytes=64_000 * MB, usable=0.9)
SMALL = SimulatedMemory(capacity_bytes=800 * MB, usable=0.625)
SPIN = Profile(steps=(Compute(12.0),))
HALF = Profile(steps=(Compute(0.5), Read(30 * MB)), repeat=8)
SWAPS = Profile(steps=(Compute(0.5), Touch(200 * MB)), repeat=8, resident_bytes=200 * MB)

OF_JOBS = (
    *("logical_bytes", "user_s", "cpu_s", "read_bytes", "written_bytes", "operations"),
    *("io_stall_s", "resident_bytes"),
)
OF_NODE = ("refault_bytes", "io_stall_s", "idle_s", "available_bytes", "memory_bytes")
OF_DEVICES = ("device", "in_flight", "queue_length", "reads_per_s", "read_bytes_per_s")
LIES = {
    "missing": lambda value, _: None,
    "flickering": lambda value, at: None if at % 2 else value,
    "backwards": lambda value, at: None if value is None else max(0, 10**9 - 10**6 * at),
    "stuck": lambda value, at: 7,
    "jumps by 2^63": lambda value, at: None if value is None else value + 2**63 * (at >= 4),
    "jumps by 2^32": lambda value, at: None if value is None else value + 2**32 * (at // 4),
    "wraps at 2^26": lambda value, at: None if value is None else value % 2**26,
    "zero": lambda value, at: 0,
    "NaN": lambda value, at: math.nan if at % 3 else value,
    "infinite": lambda value, at: math.inf if at >= 4 else value,
}


class Liar:
    """What the rule sees, with some counters otherwise than they are."""

    def __init__(self, view, lies, at):
        self._view, self._lies, self._at = view, lies, at

    def __getattr__(self, name):
        return getattr(self._view, name)

    def _told(self, name, value):
        made = LIES[self._lies[name]](value, self._at)
        return made if made is None or type(value) is not int else (_whole(made))

    def counters(self, job_id):
        found = self._view.counters(job_id)
        names = [name for name in self._lies if name in OF_JOBS]
        if found is None or not names:
            return found
        return msgspec.structs.replace(
            found, **{n: self._told(n, getattr(found, n)) for n in names}
        )

    @property
    def node(self):
        node = self._view.node
        made = {}
        for key in self._lies:
            name = key.removeprefix("node.")
            if key == "idle_s":
                told = {part: self._told(key, idle) for part, idle in node.idle_s.items()}
                made[key] = {part: idle for part, idle in told.items() if idle is not None}
            elif key.startswith("node."):
                made[name] = LIES[self._lies[key]](getattr(node, name), self._at)
        return msgspec.structs.replace(node, **made)

    @property
    def devices(self):
        loads = dict(self._view.devices)
        for name in set(self._lies).intersection(OF_DEVICES):
            for device, load in list(loads.items()):
                if name == "device":
                    loads = {} if self._told(name, 1.0) is None else loads
                else:
                    value = self._told(name, getattr(load, name))
                    sane = 0.0 if value is None or not math.isfinite(value) else value
                    loads[device] = msgspec.structs.replace(load, **{name: sane})
        return MappingProxyType(loads)


def _whole(value):
    """Kernel counters of bytes are whole numbers."""
    return int(value) if math.isfinite(value) else None


class Lied:
    """The rule, beside lies: between two samples the rates are those of the counters it sees."""

    def __init__(self, lies):
        self.rule, self.lies, self.at = adaptive.Rule(), lies, 0
        self.timeslice_s = self.rule.timeslice_s
        self.before = {}

    def decide(self, view, memory):
        self.at += 1
        seen = Liar(view, self.lies, self.at)
        now = {job.id: seen.counters(job.id) for job in view.live}
        rates = {
            i: job_bandwidth(self.before.get(i), each, 1.0)
            for i, each in now.items()
            if each is not None and view.bandwidth(i) is not None
        }
        self.before = {i: each for i, each in now.items() if each is not None}
        seen.bandwidth = rates.get
        return self.rule.decide(seen, memory)

    def refill(self, view, memory):
        return self.rule.refill(view, memory)


class Watch:
    """Somebody runs at all times, and no more than may."""

    def __init__(self):
        self.most, self.suspends = 0, 0

    def __call__(self, state, plan):
        state.check()
        self.suspends += sum(isinstance(each, Suspend) for each in plan.decisions)
        live = list(state.live)
        assert not live or any(not job.io_hold for job in live), "everybody stands still"
        self.most = max(self.most, len(live))


def run(profiles, lies, *, disk=FLASH, memory=ROOMY, rule=None):
    rules = Rules(
        name="test",
        admission=fcfs.Rule(),
        placement=least_io.Rule(),
        regulation=rule or Lied(lies),
        max_suspend_s=30.0,
    )
    machine = default_platform(1, CORES)
    parts = tuple(share_cores(part) for part in machine.partitions)
    work = [
        (0.0, JobSpec(command=(f"prog{number}",), shares_cores=True), profile)
        for number, profile in enumerate(profiles)
    ]
    watch = Watch()
    result = simulate(
        msgspec.structs.replace(machine, partitions=parts),
        rules,
        work,
        model=Model(disk=disk, memory=memory),
        seed=1,
        until_s=3000.0,
        on_step=watch,
    )
    assert all(job.state is JobState.COMPLETED for job in result.jobs), "held for ever"
    return watch


def lies_about(*names):
    return st.dictionaries(st.sampled_from(names), st.sampled_from(list(LIES)), max_size=3)


NODE_KEYS = ("idle_s", *(f"node.{name}" for name in OF_NODE if name != "idle_s"))
EVERYTHING = (*OF_JOBS, *NODE_KEYS, *OF_DEVICES)
IDLE_OR_MEMORY = ("idle_s", "node.available_bytes", "node.memory_bytes")


# -- whatever lies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", EVERYTHING)
def test_computing_jobs_are_let_be_and_as_many_as_cores_whatever_one_counter_says(name, lie):
    watch = run([SPIN] * (2 * CORES), {name: lie})

    assert (0, CORES) == (watch.suspends, watch.most)


@settings(max_examples=tries(30), deadline=None)
@given(lies_about(*EVERYTHING))
def test_all_end_and_somebody_always_runs_whatever_the_counters_say(lies):
    run([STREAM] * 4 + [HALF] * 3 + [SPIN], lies, disk=ARM)
    run([SWAPS] * 5, lies, memory=SMALL)


@settings(max_examples=tries(20), deadline=None)
@given(lies_about(*OF_JOBS, *NODE_KEYS))
def test_streams_that_disturb_nobody_are_never_stopped_for_a_lie(lies):
    assert 0 == run([STREAM] * CORES, lies).suspends


@pytest.mark.parametrize("name", IDLE_OR_MEMORY)
def test_without_idle_time_or_memory_no_job_starts_above_the_cores(name):
    sleeps = [HALF] * (3 * CORES)

    assert run(sleeps, {}).most > CORES
    assert CORES == run(sleeps, {name: "missing"}).most


@pytest.mark.parametrize("name", ["logical_bytes", "user_s"])
def test_a_job_whose_progress_is_hidden_is_left_alone(name):
    hidden = {"logical_bytes": "missing", "read_bytes": "missing", "written_bytes": "missing"}

    assert run([STREAM] * 6, {}, disk=ARM).suspends > 0
    assert 0 == run([STREAM] * 6, hidden | {name: "missing"}, disk=ARM).suspends


# -- what each lie is taken for --------------------------------------------------------------------


ALL = JobCounters(
    read_bytes=5 * MB, logical_bytes=6 * MB, user_s=1.0, cpu_s=2.0, operations=9, io_stall_s=1.0
)


def did(**changes):
    """What a job did of which one counter is otherwise at the end of a slice."""
    later = {"read_bytes": 7 * MB, "logical_bytes": 9 * MB, "user_s": 1.5, "cpu_s": 2.6}
    return what_it_did(ALL, msgspec.structs.replace(ALL, **{**later, **changes}), 1.0)


def test_a_job_is_measured_by_what_it_has_of_counters():
    assert (3e6, 0.5, True) == (did().moved_bytes, did().user_s, did().is_measured)
    assert did(user_s=None).user_s == pytest.approx(0.6)
    assert {0.0} == {
        did(user_s=1.0 + 2**32).user_s,
        *(did(io_stall_s=s).stalled_s for s in (0.5, 2.0**32)),
    }
    assert not any(did(logical_bytes=n).is_measured for n in (None, 1, 6 * MB + 2**63))
    none = msgspec.structs.replace(ALL, read_bytes=None, logical_bytes=None)
    new = what_it_did(none, ALL, 1.0)
    assert (0.0, 0.0) == (new.read_bytes, new.moved_bytes), "it has not grown by all of it"


def node(**fields):
    made = {"io_stall_s": 0.0, "available_bytes": 300 * MB, "memory_bytes": 400 * MB}
    return NodeCounters(**{**made, **fields})


class Beside:
    """A view of a machine without jobs."""

    def __init__(self, now, **fields):
        self.node, self.now_s, self.devices, self.live = now, 1.0, {}, ()
        self.__dict__.update(fields)


def reads(before, now, own_bytes=50 * MB):
    view = Beside(now)
    return read_on(Reads(since_s=0.0), before, view, 1.0, own_bytes=own_bytes, counts=True)


def test_without_the_size_of_the_memory_nothing_is_proof():
    thrash = {"refault_bytes": 400 * MB, "io_stall_s": 0.9}
    marks = {"reread_share": 0.3, "stall_share": 0.2, "load_bytes": 0.0}
    known, unknown = (
        reads(node(refault_bytes=0), node(**thrash, **more), own_bytes=500 * MB)
        for more in ({"available_bytes": 10 * MB}, {"available_bytes": None})
    )

    assert (True, False) == (known.is_thrash(**marks), unknown.is_thrash(**marks))


def test_memory_of_which_nothing_is_left_or_known_has_no_room():
    assert not reads(node(), node(available_bytes=0, io_stall_s=0.9)).has_room()
    assert (None, 0.0) == memory_left(Beside(node(available_bytes=None)))


@pytest.mark.parametrize(
    ("before", "now", "idle"),
    [
        ({0: 1.0}, {0: 2.5}, 1.5),
        ({0: 1.0}, {0: 0.5}, None),
        ({0: 1.0}, {0: 2.0**32}, None),
        ({0: 1.0}, {}, None),
        ({0: 1.0}, {0: 1.0, 1: 3.0}, None),
    ],
)
def test_idle_time_is_told_where_it_grows_lawfully(before, now, idle):
    assert idle == idle_cores(NodeCounters(idle_s=before), NodeCounters(idle_s=now), 1.0)


def test_nobody_is_held_for_what_is_not_there_any_more():
    """A disk that is gone, or a cap that was taken away."""
    for resource in ("sdz", "io_bound"):
        rule = Held(resource)
        run([STREAM] * 3, {}, rule=rule)
        assert rule.back_s is not None
        assert rule.back_s < 10.0


class Held:
    """The rule remembers that it holds job 1 for something of which nothing is known."""

    timeslice_s = 1.0

    def __init__(self, resource):
        self.rule, self.resource, self.at, self.back_s = adaptive.Rule(), resource, 0, None

    def decide(self, view, memory):
        self.at += 1
        plan, memory = self.rule.decide(view, memory)
        if self.at == 2:
            first = next(iter(view.running)).id
            plan = msgspec.structs.replace(plan, suspends=(first,))
            memory = msgspec.structs.replace(memory, held={first: self.resource})
        if plan.resumes and self.back_s is None:
            self.back_s = view.now_s
        return plan, memory


def test_the_cap_and_a_limit_together_leave_somebody_running():
    rule = Lied({})
    rule.rule = adaptive.Rule(io_bound_bytes_per_s=10e6)

    assert run([STREAM] * 6, {}, disk=ARM, rule=rule).suspends > 0
