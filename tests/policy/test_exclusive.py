"""The I/O token: one at a time, in order, for jobs that tell of their I/O and for the others."""

import heapq
import math

import msgspec
import pytest
from builders import (
    MB,
    FirstFit,
    InOrder,
    counters,
    exited,
    job,
    platform,
    resumed,
    sampled,
    started,
    submitted,
    suspended,
)
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.decision import Grant, Resume, Start, Suspend
from iodaemon.core.job import JobId, JobSpec, JobState
from iodaemon.core.platform import DeviceId
from iodaemon.core.rule import Mode, Rules
from iodaemon.core.sample import DeviceCounters
from iodaemon.core.state import State
from iodaemon.model.node import Compute, Model, Profile, Read, SimulatedDisk
from iodaemon.policy.admission.fcfs import Rule as Fcfs
from iodaemon.policy.list_order import ORDERS
from iodaemon.policy.placement.least_io import Rule as LeastIo
from iodaemon.policy.regulation import exclusive
from iodaemon.policy.regulation.exclusive import Claim, hand_out, rank
from iodaemon.simulator.run import simulate

HEAVY = 50 * MB


def Rule(**fields):  # noqa: N802 - the rule, quick to act
    return exclusive.Rule(**{"heavy_slices": 1, **fields})


# -- jobs that tell -------------------------------------------------------------------------------


class Talker(msgspec.Struct, frozen=True):
    """What one job does: so often compute, then an I/O phase.

    Attributes:
        compute_s: without I/O.
        io_s: of each phase.
        times: how many of both.
        fields: of its spec.
    """

    compute_s: float
    io_s: float
    times: int
    fields: dict = {}


class World:
    """Runs talkers to their end; every step is looked at."""

    def __init__(self, regulation, talkers, *, max_suspend_s=None, until_s=None, forget_s=()):
        self.talkers = {JobId(i): t for i, t in enumerate(talkers, start=1)}
        self.state = State(platform(len(talkers)))
        rules = Rules(
            name="talk",
            admission=InOrder(),
            placement=FirstFit(),
            regulation=regulation,
            max_suspend_s=max_suspend_s,
        )
        self.controller = Controller(self.state, rules, mode=Mode.ON)
        self.granted: list[tuple[float, int]] = []
        self.over: list[tuple[float, int]] = []
        self.ends: dict[int, float] = {}
        self._agenda: list[tuple[float, int, object]] = []
        self._number = 0
        self._left = {i: t.times for i, t in self.talkers.items()}
        self._moved = dict.fromkeys(self.talkers, 0)
        self._forget_s = list(forget_s)
        self._wake_s = None
        for job_id, talker in self.talkers.items():
            self._at(0.0, submitted(job(job_id, **talker.fields)))
        self._at(regulation.timeslice_s, "sample")
        self.run(until_s)

    def run(self, until_s):
        while self._agenda and len(self.ends) < len(self.talkers):
            now_s = self._agenda[0][0]
            if until_s is not None and now_s > until_s:
                return
            self._step(now_s)

    def _at(self, at_s, what):
        self._number += 1
        heapq.heappush(self._agenda, (at_s, self._number, what))

    def _step(self, now_s):
        events = []
        while self._agenda and self._agenda[0][0] == now_s:
            what = heapq.heappop(self._agenda)[2]
            events += self._events(now_s, what)
        while self._forget_s and self._forget_s[0] <= now_s:
            self._forget_s.pop(0)
            self.controller.use(self.controller.rules)  # as a restart does
        plan = self.controller.step(events)
        self.state.check()
        for decision in plan.decisions:
            self._perform(now_s, decision)
        if plan.wake_at_s is not None and plan.wake_at_s != self._wake_s:
            self._wake_s = plan.wake_at_s
            self._at(plan.wake_at_s, ev.TimerFired(at_s=plan.wake_at_s))
        self.look()

    def _events(self, now_s, what):
        if what == "sample":
            self._at(now_s + self.controller.rules.regulation.timeslice_s, "sample")
            read = {made.id: counters(self._moved[made.id]) for made in self.state.live}
            return [sampled(now_s, read)]
        if isinstance(what, ev.PhaseDone):
            self.over.append((now_s, what.job_id))
            self._moved[what.job_id] += int(self.talkers[what.job_id].io_s * 100 * MB)
            self._left[what.job_id] -= 1
            self._go_on(now_s, what.job_id)
        return [what]

    def _go_on(self, now_s, job_id):
        if self._left[job_id]:
            size = int(self.talkers[job_id].io_s * 100 * MB)
            at_s = now_s + self.talkers[job_id].compute_s
            self._at(at_s, ev.PhaseAsked(at_s=at_s, job_id=job_id, expect_bytes=size))
        else:
            self.ends[job_id] = now_s
            self._at(now_s, exited(now_s, job_id))

    def _perform(self, now_s, decision):
        match decision:
            case Start(job_id=job_id):
                self._at(now_s, started(now_s, job_id))
                self._go_on(now_s, job_id)
            case Grant(job_id=job_id):
                self.granted.append((now_s, job_id))
                at_s = now_s + self.talkers[job_id].io_s
                self._at(at_s, ev.PhaseDone(at_s=at_s, job_id=job_id))

    def look(self):
        told = [made for made in self.state.live if made.phase is not None]
        having = [made.id for made in told if made.has_turn]
        if self.controller.rules.max_suspend_s is not None:
            return  # whom the guard let go on is not alone, and silent when its time is over
        assert len(having) <= 1, "two at a time"
        assert having or not any(made.waits_for_turn for made in told), "a free token"


@pytest.mark.parametrize(
    ("order", "talkers", "granted"),
    [
        ("fifo", [(1.0, 5.0), (2.0, 5.0), (1.5, 5.0)], [1, 3, 2]),
        ("shortest_io", [(0.5, 5.0), (1.0, 3.0), (1.0, 2.0)], [1, 3, 2]),
        (
            "shortest_remaining",
            [(0.5, 5.0), (1.0, 2.0, 100.0), (1.0, 2.0, 50.0), (0.9, 2.0)],
            [1, 3, 2, 4],
        ),
    ],
)
def test_turns_are_given_in_order(order, talkers, granted):
    """Of each: after how long it asks, for how long, and its walltime."""
    made = [
        Talker(compute_s, io_s, 1, {"walltime_s": limit[0]} if limit else {})
        for compute_s, io_s, *limit in talkers
    ]

    assert granted == [i for _, i in World(Rule(order=order), made).granted]


TALKERS = st.lists(
    st.builds(
        Talker,
        st.sampled_from([0.25, 1.0, 3.0, 7.5]),
        st.sampled_from([0.25, 0.5, 2.0, 6.0]),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=8,
)


@given(talkers=TALKERS, order=st.sampled_from(sorted(ORDERS)))
@settings(max_examples=tries(80))
def test_one_at_a_time_and_never_a_free_token_while_somebody_waits(talkers, order):
    world = World(Rule(order=order), talkers)

    lengths = {i: talker.io_s for i, talker in enumerate(talkers, start=1)}
    assert sum(talker.times for talker in talkers) == len(world.granted)
    for (at_s, job_id), (next_s, _) in zip(world.granted, world.granted[1:], strict=False):
        assert next_s >= at_s + lengths[job_id]


@given(talkers=TALKERS)
def test_in_order_of_asking_nobody_is_overtaken(talkers):
    world = World(Rule(), talkers)

    asked_s = [s for s, _ in world.granted]
    assert asked_s == sorted(asked_s)
    for made in world.talkers:
        waits = [s for s, i in world.granted if i == made]
        bound_s = sum(talker.io_s for talker in talkers) + talkers[made - 1].compute_s
        spans = [b - a for a, b in zip([0.0, *waits], waits, strict=False)]
        assert max(spans) <= bound_s + talkers[made - 1].io_s


@given(
    talkers=TALKERS,
    order=st.sampled_from(sorted(ORDERS)),
    forget_s=st.lists(st.floats(0.0, 20.0), max_size=1),
    max_suspend_s=st.sampled_from([None, None, 2.0]),
)
@settings(max_examples=tries(60))
def test_whoever_comes_anew_or_is_let_go_by_the_guard_all_end(
    talkers, order, forget_s, max_suspend_s
):
    world = World(Rule(order=order), talkers, forget_s=forget_s, max_suspend_s=max_suspend_s)

    assert len(talkers) == len(world.ends)


@pytest.mark.parametrize("forget_s", [4.0, 3.75])
def test_a_rule_that_comes_anew_does_not_blame_a_job_for_the_turn_it_just_had(forget_s):
    """Job 6 has its turn until 4, within the slice in which the rule comes anew: 4 is next."""
    talkers = [*[Talker(0.25, 0.25, 1)] * 3, Talker(0.25, 0.25, 3)]
    talkers += [Talker(0.25, 2.0, 1), Talker(0.25, 0.25, 3)]
    world = World(Rule(order="bandwidth_oriented"), talkers, forget_s=[forget_s])

    assert (4.0, 4) in world.granted


def test_a_rule_that_comes_between_two_samples_does_not_judge_the_slice_it_came_in():
    """Job 1 has its turn from 6.25 to 6.5, when the rule comes anew; job 2 asks at 7.5."""
    world = World(Rule(), [Talker(3.0, 0.25, 3), Talker(7.5, 0.25, 1)], forget_s=[6.5])

    assert [(3.0, 1), (6.25, 1), (7.5, 2), (9.5, 1)] == world.granted


def test_a_rule_that_comes_with_a_sample_does_not_blame_for_what_was_just_being_counted():
    """Job 4's turn ends at 4 like the slice; its bytes are read with the next, when none ask."""
    talkers = [*[Talker(3.0, 0.25, 1)] * 2, *[Talker(3.0, 0.25, 2)] * 2]
    world = World(Rule(), talkers, forget_s=[4.0])

    assert [3.0, 3.25, 3.5, 3.75, 6.75, 7.0] == [at_s for at_s, _ in world.granted]


# -- one job at a time in the hand ---------------------------------------------------------------


class Bench:
    """Jobs whose I/O the test decides, slice by slice."""

    def __init__(self, rig, rule, jobs=2, **last):
        rules = msgspec.structs.replace(rig.controller.rules, regulation=rule)
        rig.controller.use(rules)
        self.rig = rig
        self.now_s = 0.0
        self.moved = dict.fromkeys(range(1, jobs + 1), 0)
        self.stalled_s = dict.fromkeys(self.moved, 0.0)
        self.devices = dict.fromkeys(self.moved)
        rig.run(*(job(i, **(last if i == jobs else {})) for i in self.moved))
        self.slice()
        self.slice()

    def slice(self, *rates, seconds=1.0, stalls=()):
        """A timeslice in which job 1, 2, ... moved so much; suspends and resumes take effect."""
        self.now_s += seconds
        for job_id, rate in enumerate(rates, start=1):
            self.moved[job_id] += int(rate)
        for job_id, stall_s in enumerate(stalls, start=1):
            self.stalled_s[job_id] += stall_s
        live = [made.id for made in self.rig.state.live]
        read = {
            i: msgspec.structs.replace(
                counters(self.moved[i]), devices=self.devices[i], io_stall_s=self.stalled_s[i]
            )
            for i in live
        }
        disk = dict.fromkeys(
            ("reads", "reads_merged", "read_sectors", "read_ms", "writes", "writes_merged"), 0
        ) | dict.fromkeys(("written_sectors", "write_ms", "in_flight", "busy_ms", "queue_ms"), 0)
        event = sampled(self.now_s, read)
        sample = msgspec.structs.replace(event.sample, devices={"sim0": DeviceCounters(**disk)})
        return self._take(msgspec.structs.replace(event, sample=sample))

    def _take(self, event):
        self.rig.step(event)
        decisions = self.rig.backend.take()
        for decision in decisions:
            if isinstance(decision, Suspend):
                self.rig.step(suspended(self.now_s, decision.job_id))
            if isinstance(decision, Resume):
                self.rig.step(resumed(self.now_s, decision.job_id))
        return [(type(d).__name__, d.job_id) for d in decisions]

    def ask(self, job_id, expect_bytes=None):
        event = ev.PhaseAsked(at_s=self.now_s, job_id=JobId(job_id), expect_bytes=expect_bytes)
        return self._take(event)

    def done(self, job_id):
        return self._take(ev.PhaseDone(at_s=self.now_s, job_id=JobId(job_id)))

    def end(self, job_id):
        return self._take(exited(self.now_s, job_id))


def test_of_two_heavy_silent_jobs_one_stands_still(rig):
    bench = Bench(rig, Rule())

    assert [("Suspend", 2)] == bench.slice(HEAVY, HEAVY)
    assert rig.job(2).hold_reason.text == "moved 50.0 MB/s out of its turn: job 1 has it"
    assert [] == bench.slice(HEAVY)


def test_one_heavy_slice_is_no_claim_unless_so_configured(rig):
    bench = Bench(rig, exclusive.Rule())

    assert [[], [], [], [("Suspend", 2)]] == [
        bench.slice(HEAVY, rate) for rate in (HEAVY, 0, HEAVY, HEAVY)
    ]


def test_light_jobs_are_left_alone(rig):
    assert [] == Bench(rig, Rule(), jobs=3).slice(HEAVY, 5 * MB, 9 * MB)


def test_the_turn_goes_on_after_some_light_slices_and_one_heavy_slice_keeps_it(rig):
    bench = Bench(rig, Rule(quiet_slices=2))
    bench.slice(HEAVY, HEAVY)

    assert [[], [], [], []] == [bench.slice(rate) for rate in (0, HEAVY, 0, HEAVY)]
    assert [[], [("Resume", 2)]] == [bench.slice(0), bench.slice(0)]


def test_the_end_of_the_holder_lets_the_next_one_go_at_once(rig):
    bench = Bench(rig, Rule())
    bench.slice(HEAVY, HEAVY)

    assert [("Resume", 2)] == bench.end(1)


def test_a_told_phase_waits_for_a_silent_holder_and_the_other_way_round(rig):
    bench = Bench(rig, Rule(quiet_slices=1), jobs=2)
    bench.slice(HEAVY)

    assert [] == bench.ask(2)
    assert [] == bench.slice(HEAVY)
    assert [("Grant", 2)] == bench.slice()
    assert [] == bench.slice(HEAVY, HEAVY)  # part of it may be of its own turn
    assert [("Suspend", 1)] == bench.slice(HEAVY, HEAVY)
    assert [("Resume", 1)] == bench.done(2)


def test_what_was_moved_in_its_own_turn_is_held_against_nobody(rig):
    bench = Bench(rig, Rule())
    bench.ask(1)
    bench.now_s += 0.5
    bench.done(1)
    bench.ask(2)

    assert [] == bench.slice(HEAVY, HEAVY, seconds=0.5)


def test_a_job_that_waits_for_its_turn_and_does_its_io_all_the_same_stands_still(rig):
    bench = Bench(rig, Rule())
    bench.ask(1)
    bench.ask(2)
    assert [] == bench.slice(HEAVY, HEAVY)  # it may have moved that before it asked

    assert [("Suspend", 2)] == bench.slice(HEAVY, HEAVY)
    assert [("Grant", 2), ("Resume", 2)] == sorted(bench.done(1))


def test_a_job_that_waits_is_told_behind_whom(rig):
    bench = Bench(rig, Rule(), jobs=3)
    for number in (1, 2, 3):
        bench.ask(number)

    told = "waits for its turn to do I/O: job 1 has it"
    waits = [rig.state.reason(JobId(number)).text for number in (2, 3)]
    assert [told, f"{told}, 1 more before it"] == waits


def test_a_turn_without_any_io_is_over_after_a_while(rig):
    bench = Bench(rig, Rule(idle_s=3.0))
    bench.ask(1)
    bench.ask(2)

    assert [[], [], [], [("Grant", 2)]] == [bench.slice(HEAVY), *(bench.slice() for _ in range(3))]
    assert rig.job(1).phase is None
    assert rig.state.reason(JobId(1)).text == "its turn is over: no I/O for 3 s"
    bench.ask(1)
    assert rig.state.reason(JobId(1)).text.endswith("job 2 has it")


def test_who_waits_for_the_disk_is_doing_io(rig):
    bench = Bench(rig, Rule(idle_s=3.0))
    bench.ask(1)
    bench.ask(2)

    assert [[]] * 6 == [bench.slice(0, 0, stalls=(0.9,)) for _ in range(6)]


def test_a_persons_hold_passes_the_turn_on(rig):
    bench = Bench(rig, Rule())
    bench.ask(1)
    bench.ask(2)
    rig.step(ev.SuspendRequested(at_s=bench.now_s, job_id=JobId(1), by="ann"))
    rig.backend.take()

    assert [("Grant", 2)] == bench.slice()
    assert rig.job(1).phase is None


def test_a_person_who_holds_a_waiting_job_does_not_stop_the_others(rig):
    bench = Bench(rig, Rule(), jobs=3)
    bench.ask(1)
    bench.ask(2)
    bench.ask(3)
    rig.step(ev.SuspendRequested(at_s=bench.now_s, job_id=JobId(2), by="ann"))
    rig.backend.take()

    assert [("Grant", 3)] == bench.done(1)
    rig.step(ev.ResumeRequested(at_s=bench.now_s, job_id=JobId(2), by="ann"))
    rig.backend.take()
    assert [("Grant", 2)] == bench.done(3)


@pytest.mark.parametrize("is_told", [False, True])
def test_jobs_on_different_devices_do_not_wait_for_each_other_and_a_told_phase_is_on_all(
    rig, is_told
):
    [device] = rig.state.platform.devices
    disks = tuple(msgspec.structs.replace(device, id=name) for name in ("sda", "sdb"))
    rig.state.platform = msgspec.structs.replace(rig.state.platform, devices=disks)
    bench = Bench(rig, Rule(), jobs=3)
    bench.devices = {1: ("sda",), 2: ("sdb",), 3: ("sdb",)}
    if is_told:
        bench.ask(1)
    bench.slice()

    held = [("Suspend", 2), ("Suspend", 3)]
    assert (held if is_told else held[1:]) == bench.slice(HEAVY, HEAVY, HEAVY)


def test_a_job_that_may_not_be_suspended_runs_beside_the_one_whose_turn_it_is(rig):
    bench = Bench(rig, Rule(), no_suspend=True)

    assert [[], [], []] == [bench.slice(HEAVY, HEAVY) for _ in range(3)]


def test_who_stood_still_for_the_longest_time_allowed_runs_for_as_long(rig):
    bench = Bench(rig, Rule(), max_suspend_s=2.0)
    bench.slice(HEAVY, HEAVY)

    assert [[], [("Resume", 2)]] == [bench.slice(HEAVY), bench.slice(HEAVY)]
    assert [[], [("Suspend", 2)]] == [bench.slice(HEAVY, HEAVY), bench.slice(HEAVY, HEAVY)]


def test_what_it_saw_is_kept_with_the_job(rig):
    bench = Bench(rig, Rule(), jobs=3)
    bench.slice(HEAVY, HEAVY, MB)
    evidence = rig.state.evidence[JobId(2)]

    assert ["runs", "suspend", "spared"] == [row.verdict for row in evidence.jobs]
    assert (evidence.signal, evidence.value) == ("turn to do I/O", HEAVY)


@pytest.mark.parametrize("fields", [{"order": "fastest"}, {"quiet_slices": 0}, {"idle_s": 0.0}])
def test_parameters_that_mean_nothing_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        Rule(**fields)


# -- silent jobs over a simulated disk -------------------------------------------------------------


DISK = Model(disk=SimulatedDisk(capacity_bytes_per_s=100.0 * MB))
READERS = [
    (0.0, JobSpec(command=("x",)), Profile(steps=(Compute(1.0), Read(600 * MB)))) for _ in range(4)
]


def rules_of(rule):
    return Rules(name="x", admission=Fcfs(), placement=LeastIo(), regulation=rule)


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_silent_readers_take_turns_in_any_order_and_all_end(order):
    rules = rules_of(Rule(order=order, heavy_bytes_per_s=5.0 * MB))

    result = simulate(platform(4), rules, READERS, model=DISK)

    assert [JobState.COMPLETED] * 4 == [made.state for made in result.jobs]
    # one, and one that is being let go on
    assert max(len(each.running) for each in result.slices[4:]) <= 2
    assert sum(step.after is JobState.SUSPENDED_IO for step in result.transitions) == 3


# -- claims in order, devices handed out ----------------------------------------------------------

A, B = DeviceId("sda"), DeviceId("sdb")


def claim(job_id, *devices, asked=0.0, **known):
    return Claim(job_id=JobId(job_id), devices=devices or (A,), requested_s=asked, **known)


def ids(claims):
    return [each.job_id for each in claims]


# -- order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "known", "first"),
    [
        ("lowest_id", [{}, {}], 1),
        ("fifo", [{"asked": 2.0}, {"asked": 1.0}], 2),
        ("longest_io", [{"phase_s": 1.0}, {"phase_s": 2.0}], 2),
        ("shortest_io", [{"phase_s": 1.0}, {"phase_s": 2.0}], 1),
        ("shortest_remaining", [{"remaining_s": 9.0}, {"remaining_s": 2.0}], 2),
        ("longest_remaining", [{"remaining_s": 9.0}, {"remaining_s": 2.0}], 1),
        ("bandwidth_oriented", [{"io_done_s": 5.0}, {"io_done_s": 1.0}], 2),
        ("stretch_oriented", [{"ideal_done_s": 5.0}, {"ideal_done_s": 1.0}], 2),
    ],
)
def test_each_order_puts_its_own_first(order, known, first):
    claims = [claim(i, elapsed_s=10.0, **each) for i, each in enumerate(known, start=1)]

    assert first == rank(claims, order, 20.0)[0].job_id


@pytest.mark.parametrize(
    ("order", "fact"),
    [
        ("longest_io", "phase_s"),
        ("shortest_io", "phase_s"),
        ("shortest_remaining", "remaining_s"),
        ("longest_remaining", "remaining_s"),
        ("stretch_oriented", "ideal_done_s"),
    ],
)
def test_of_whom_too_little_is_known_comes_last_as_it_asked(order, fact):
    claims = [claim(1, asked=2.0), claim(2, asked=1.0), claim(3, asked=9.0, **{fact: 5.0})]

    assert [3, 2, 1] == ids(rank(claims, order, 20.0))


def test_equal_keys_go_by_request_then_by_id():
    claims = [claim(3, asked=1.0, phase_s=1.0), claim(2, asked=1.0, phase_s=1.0)]
    claims += [claim(1, asked=5.0, phase_s=1.0)]

    assert [2, 3, 1] == ids(rank(claims, "shortest_io", 9.0))


# -- devices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("holders", "claims", "winners", "behind", "places"),
    [
        ({}, [(2,), (1,)], (2,), {1: 2}, {1: 0}),
        ({A: 7}, [(2,), (1,)], (), {2: 7, 1: 7}, {2: 0, 1: 1}),
        ({}, [(1, A), (2, B)], (1, 2), {}, {}),
        ({A: 7}, [(1, A, B), (2, B)], (), {1: 7, 2: 1}, {1: 0, 2: 1}),  # none overtakes on B
    ],
)
def test_a_free_device_goes_to_the_first_who_asks_for_it(holders, claims, winners, behind, places):
    handed = hand_out(holders, [claim(*each) for each in claims])

    assert (winners, behind, places) == (handed.winners, handed.behind, handed.places)


CLAIMS = st.lists(
    st.builds(
        lambda devices, asked, phase: (devices, asked, phase),
        st.sets(st.sampled_from([A, B, DeviceId("sdc")]), min_size=1).map(sorted),
        st.floats(0, 100),
        st.none() | st.floats(0, 100),
    ),
    max_size=12,
).map(
    lambda rows: [
        claim(i, *devices, asked=asked, phase_s=phase)
        for i, (devices, asked, phase) in enumerate(rows, start=1)
    ]
)


@given(claims=CLAIMS, order=st.sampled_from(sorted(ORDERS)), taken=st.sets(st.sampled_from([A, B])))
def test_each_device_has_one_holder_and_none_is_free_for_nothing(claims, order, taken):
    holders = dict.fromkeys(taken, JobId(99))
    ranked = rank(claims, order, 100.0)
    handed = hand_out(holders, ranked)
    by_id = {each.job_id: each for each in claims}
    had = [device for winner in handed.winners for device in by_id[winner].devices]

    assert len(had) == len(set(had))
    assert taken.isdisjoint(had)
    assert sorted(by_id) == sorted([*handed.winners, *handed.behind])
    if ranked and not taken:
        assert ranked[0].job_id == handed.winners[0]
    for job_id in handed.behind:
        before = ids(ranked)[: ids(ranked).index(job_id)]
        wanted = {device for other in before for device in by_id[other].devices}
        assert not wanted.union(taken).isdisjoint(by_id[job_id].devices)


@given(claims=CLAIMS)
def test_in_order_of_asking_whoever_asked_before_all_others_is_first(claims):
    ranked = rank(claims, "fifo", math.inf)

    assert ranked == sorted(claims, key=lambda each: (each.requested_s, each.job_id))
