"""The I/O token: one at a time, in order, for jobs that tell of their I/O and for the others."""

import msgspec
import pytest
from builders import (
    MB,
    counters,
    device_counters,
    exited,
    job,
    platform,
    resumed,
    sample,
    suspended,
)
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.core import event as ev
from iodaemon.core.decision import Grant, Resume, Suspend
from iodaemon.core.job import JobId, JobSpec, JobState
from iodaemon.core.platform import DeviceId
from iodaemon.core.rule import Rules
from iodaemon.model.node import (
    Compute,
    LinkSpec,
    Model,
    Profile,
    Read,
    SimulatedDisk,
    Transfer,
)
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

LINK = Model(links=(LinkSpec(id="io", capacity_bytes_per_s=100.0 * MB),), disk=None)


def rules_of(rule, **fields):
    return Rules(name="x", admission=Fcfs(), placement=LeastIo(), regulation=rule, **fields)


def talk(rules, talkers, look=None, forget_s=()):
    """Who had the turn, in order, and what came of it.

    Args:
        talkers: of each after how long it asks, for how long, how often, and its walltime.
        forget_s: when the rule comes anew, as after a restart.
    """
    granted = []

    def on_step(state, plan):
        state.check()
        granted.extend(d.job_id for d in plan.decisions if isinstance(d, Grant))
        if look is not None:
            look(state)

    jobs = [
        (
            0.0,
            JobSpec(command=("x",), walltime_s=limit),
            Profile(
                steps=(Compute(compute_s), Transfer(io_s * 100 * MB, "io")),
                repeat=times,
                speaks=True,
            ),
        )
        for compute_s, io_s, times, limit in talkers
    ]
    anew = [ev.Reconfigured(at_s=at_s, by="ann", changes=(), rules=rules) for at_s in forget_s]
    options = {"model": LINK, "on_step": on_step, "events": anew, "until_s": 5000.0}
    return granted, simulate(platform(len(talkers)), rules, jobs, **options)


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
    made = [(*each[:2], 1, each[2] if len(each) > 2 else None) for each in talkers]

    assert granted == talk(rules_of(Rule(order=order)), made)[0]


TALKERS = st.lists(
    st.tuples(
        st.sampled_from([0.25, 1.0, 3.0, 7.5]),
        st.sampled_from([0.25, 0.5, 2.0, 6.0]),
        st.integers(1, 4),
        st.none(),
    ),
    min_size=1,
    max_size=8,
)


@given(
    talkers=TALKERS,
    order=st.sampled_from(sorted(ORDERS)),
    forget_s=st.lists(st.integers(0, 80).map(lambda quarters: quarters / 4), max_size=1),
    max_suspend_s=st.sampled_from([None, 2.0]),
)
@settings(max_examples=tries(200))
def test_one_at_a_time_never_a_free_token_while_somebody_waits_and_all_end(
    talkers, order, forget_s, max_suspend_s
):
    """Where the rule comes anew they wait for it; whom the guard lets go on is not alone."""

    def look(state):
        told = [made for made in state.live if made.phase is not None]
        having = sum(made.has_turn for made in told)
        if max_suspend_s is None:
            assert having <= 1, "two at a time"
            is_free = not having and any(made.waits_for_turn for made in told)
            assert forget_s or not is_free, "a free token"

    rules = rules_of(Rule(order=order), max_suspend_s=max_suspend_s)
    granted, result = talk(rules, talkers, look, forget_s)

    assert sum(times for _, _, times, _ in talkers) == len(granted)
    assert {JobState.COMPLETED} == {made.state for made in result.jobs}


@pytest.mark.parametrize("forget_s", [4.0, 3.75])
def test_a_rule_that_comes_anew_does_not_blame_a_job_for_the_turn_it_just_had(forget_s):
    """Job 6 has its turn until 4, within the slice in which the rule comes anew."""
    short = (0.25, 0.25, 1, None)
    talkers = [short, short, short, (0.25, 0.25, 3, None), (0.25, 2.0, 1, None)]
    talkers.append((0.25, 0.25, 3, None))
    _, result = talk(rules_of(Rule(order="bandwidth_oriented")), talkers, forget_s=[forget_s])

    assert not any(step.after is JobState.SUSPENDED_IO for step in result.transitions)


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
        taken = sample(self.now_s, read, {"sim0": device_counters()})
        return self._take(ev.SampleTaken(at_s=self.now_s, sample=taken))

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

    def hold(self, job_id):
        event = ev.SuspendRequested(at_s=self.now_s, job_id=JobId(job_id), by="ann")
        return self._take(event)


BOTH, ONE = (HEAVY, HEAVY), (HEAVY,)
STOP, GO, TURN = [("Suspend", 2)], [("Resume", 2)], [("Grant", 2)]
STOP_1, GO_1 = [("Suspend", 1)], [("Resume", 1)]
TELL = ("ask 1", [("Grant", 1)]), ("ask 2", [])
PLAYS = {
    # the rule, what else is known of job 2; what each moved, or who says what, and what follows
    "two heavy slices in a row claim, one does not": (
        (exclusive.Rule(), {}),
        [(BOTH, []), ((HEAVY, 0), []), (BOTH, []), (BOTH, STOP)],
    ),
    "light jobs are left alone": ((Rule(), {}), [((HEAVY, 9 * MB), [])]),
    "a turn goes on after some light slices and one heavy slice keeps it": (
        (Rule(quiet_slices=2), {}),
        [(BOTH, STOP), *(((rate,), []) for rate in (0, HEAVY, 0, HEAVY, 0)), ((0,), GO)],
    ),
    "the end of the holder lets the next one go at once": (
        (Rule(), {}),
        [(BOTH, STOP), ("end 1", GO)],
    ),
    # part of the first slice after the grant may be of job 1's own turn
    "a told phase waits for a silent holder and the other way round": (
        (Rule(quiet_slices=1), {}),
        [(ONE, []), TELL[1], (ONE, []), ((), TURN), (BOTH, []), (BOTH, STOP_1), ("done 2", GO_1)],
    ),
    # it may have moved the first bytes before it asked
    "who waits and does its I/O all the same stands still": (
        (Rule(), {}),
        [*TELL, (BOTH, []), (BOTH, STOP), ("done 1", TURN + GO)],
    ),
    "who may not be suspended runs beside the one whose turn it is": (
        (Rule(), {"no_suspend": True}),
        [(BOTH, [])] * 3,
    ),
    "who stood still for the longest time allowed runs for as long": (
        (Rule(), {"max_suspend_s": 2.0}),
        [(BOTH, STOP), (ONE, []), (ONE, GO), (BOTH, []), (BOTH, STOP)],
    ),
    "a person's hold passes the turn on": (
        (Rule(), {}),
        [*TELL, ("hold 1", STOP_1), ((), TURN)],
    ),
}


@pytest.mark.parametrize(("made", "steps"), PLAYS.values(), ids=PLAYS)
def test_turns_are_kept_by_who_tells_and_who_does_not(rig, made, steps):
    rule, known = made
    bench = Bench(rig, rule, **known)
    for step, decided in steps:
        if isinstance(step, tuple):
            found = bench.slice(*step)
        else:
            verb, job_id = step.split()
            found = getattr(bench, verb)(int(job_id))
        assert decided == sorted(found), step


def test_who_stands_still_is_told_whose_turn_it_is(rig):
    Bench(rig, Rule()).slice(HEAVY, HEAVY)

    assert rig.job(2).hold_reason.text == "moved 50.0 MB/s out of its turn: job 1 has it"


def test_what_was_moved_in_its_own_turn_is_held_against_nobody(rig):
    bench = Bench(rig, Rule())
    bench.ask(1)
    bench.now_s += 0.5
    bench.done(1)
    bench.ask(2)

    assert [] == bench.slice(HEAVY, HEAVY, seconds=0.5)


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


def test_a_person_who_holds_a_waiting_job_does_not_stop_the_others(rig):
    bench = Bench(rig, Rule(), jobs=3)
    bench.ask(1)
    bench.ask(2)
    bench.ask(3)
    bench.hold(2)

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


def test_a_rule_that_comes_anew_lets_those_go_who_stand_still_and_judges_later_slices(rig):
    bench = Bench(rig, Rule(), jobs=3)
    bench.slice(HEAVY, HEAVY)
    rig.controller.use(rig.controller.rules)

    told = [bench.slice(HEAVY, HEAVY, HEAVY) for _ in range(3)]
    assert [[("Resume", 2)], [], [("Suspend", 1), ("Suspend", 3)]] == told


def test_what_it_saw_is_kept_with_the_job(rig):
    bench = Bench(rig, Rule(), jobs=3)
    bench.slice(HEAVY, HEAVY, MB)
    evidence = rig.state.evidence[JobId(2)]

    assert ["runs", "suspend", "spared"] == [row.verdict for row in evidence.jobs]
    assert (evidence.signal, evidence.value) == ("turn to do I/O", HEAVY)


# -- silent jobs over a simulated disk -------------------------------------------------------------


DISK = Model(disk=SimulatedDisk(capacity_bytes_per_s=100.0 * MB))
READERS = [
    (0.0, JobSpec(command=("x",)), Profile(steps=(Compute(1.0), Read(600 * MB)))) for _ in range(4)
]


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
