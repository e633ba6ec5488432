"""The I/O token: one at a time, in order, for jobs that tell of their I/O and for the others."""

import msgspec
import pytest
from builders import MB, counters, exited, job, resumed, sampled, suspended
from builders import platform as machine
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from talk import Talker, World

from iodaemon.core import event as ev
from iodaemon.core.decision import Grant, Resume, Suspend
from iodaemon.core.job import JobId, JobSpec, JobState
from iodaemon.core.rule import Mode, Rules
from iodaemon.core.sample import DeviceCounters
from iodaemon.model.node import Compute, Model, Profile, Read, SimulatedDisk
from iodaemon.policy.admission.fcfs import Rule as Fcfs
from iodaemon.policy.list_order import ORDERS
from iodaemon.policy.placement.least_io import Rule as LeastIo
from iodaemon.policy.regulation import exclusive
from iodaemon.simulator.run import simulate

HEAVY = 50 * MB


def Rule(**fields):  # noqa: N802 - the rule, quick to act
    return exclusive.Rule(**{"heavy_slices": 1, **fields})


# -- jobs that tell --------------------------------------------------------------------------------


def test_first_come_first_served():
    world = World(Rule(), [Talker(1.0, 5.0, 1), Talker(2.0, 5.0, 1), Talker(1.5, 5.0, 1)])

    assert [(1.0, 1), (6.0, 3), (11.0, 2)] == world.granted


def test_the_shortest_phase_first():
    talkers = [Talker(0.5, 5.0, 1), Talker(1.0, 3.0, 1), Talker(1.0, 2.0, 1)]

    assert [1, 3, 2] == [i for _, i in World(Rule(order="shortest_io"), talkers).granted]


def test_the_least_left_first_by_walltime():
    talkers = [
        Talker(0.5, 5.0, 1),
        Talker(1.0, 2.0, 1, {"walltime_s": 100.0}),
        Talker(1.0, 2.0, 1, {"walltime_s": 50.0}),
        Talker(0.9, 2.0, 1),
    ]

    assert [1, 3, 2, 4] == [i for _, i in World(Rule(order="shortest_remaining"), talkers).granted]


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


@given(talkers=TALKERS, order=st.sampled_from(sorted(ORDERS)), forget_s=st.floats(0.0, 20.0))
@settings(max_examples=tries(40))
def test_a_restart_in_the_middle_gives_nobody_elses_turn_away(talkers, order, forget_s):
    world = World(Rule(order=order), talkers, forget_s=[forget_s])

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


@given(talkers=TALKERS)
@settings(max_examples=tries(20))
def test_with_the_guard_all_still_end(talkers):
    world = World(Rule(), talkers, max_suspend_s=2.0)

    assert len(talkers) == len(world.ends)


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
    bench = Bench(rig, Rule(), jobs=3)

    assert [] == bench.slice(HEAVY, 5 * MB, 9 * MB)


def test_the_turn_goes_on_after_some_light_slices(rig):
    bench = Bench(rig, Rule(quiet_slices=2))
    bench.slice(HEAVY, HEAVY)

    assert [] == bench.slice(HEAVY)
    assert [] == bench.slice(0)
    assert [("Resume", 2)] == bench.slice(0)


def test_one_heavy_slice_keeps_the_turn(rig):
    bench = Bench(rig, Rule(quiet_slices=2))
    bench.slice(HEAVY, HEAVY)

    assert [[], [], [], []] == [bench.slice(rate) for rate in (0, HEAVY, 0, HEAVY)]


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
    bench.ask(1)
    bench.ask(2)
    bench.ask(3)

    assert rig.state.reason(JobId(2)).text == "waits for its turn to do I/O: job 1 has it"
    assert (
        rig.state.reason(JobId(3)).text
        == "waits for its turn to do I/O: job 1 has it, 1 more before it"
    )


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


def test_jobs_on_different_devices_do_not_wait_for_each_other(rig):
    rig.state.platform = two_disks(rig.state.platform)
    bench = Bench(rig, Rule(), jobs=3)
    bench.devices = {1: ("sda",), 2: ("sdb",), 3: ("sdb",)}
    bench.slice()

    assert [("Suspend", 3)] == bench.slice(HEAVY, HEAVY, HEAVY)


def test_a_told_phase_is_a_turn_on_every_device(rig):
    rig.state.platform = two_disks(rig.state.platform)
    bench = Bench(rig, Rule(), jobs=3)
    bench.devices = {1: ("sda",), 2: ("sdb",), 3: ("sdb",)}
    bench.ask(1)
    bench.slice()

    assert [("Suspend", 2), ("Suspend", 3)] == bench.slice(HEAVY, HEAVY, HEAVY)


def two_disks(one):
    device = one.devices[0]
    disks = tuple(msgspec.structs.replace(device, id=name) for name in ("sda", "sdb"))
    return msgspec.structs.replace(one, devices=disks)


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


def reading_together(slices):
    return max(len(each.running) for each in slices)


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_silent_readers_take_turns_in_any_order_and_all_end(order):
    rules = rules_of(Rule(order=order, heavy_bytes_per_s=5.0 * MB))

    result = simulate(machine(4), rules, READERS, model=DISK)

    assert [JobState.COMPLETED] * 4 == [made.state for made in result.jobs]
    assert reading_together(result.slices[4:]) <= 2  # one, and one that is being let go on
    assert sum(step.after is JobState.SUSPENDED_IO for step in result.transitions) == 3


def test_in_shadow_nobody_stands_still():
    rules = rules_of(Rule(heavy_bytes_per_s=5.0 * MB))

    result = simulate(machine(4), rules, READERS, model=DISK, mode=Mode.SHADOW)

    assert all(made.suspended_io_s == 0.0 for made in result.jobs)


def test_grants_are_offered_by_a_simulated_node():
    assert Grant in exclusive.Rule.needs
