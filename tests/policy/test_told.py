"""``iod why`` of jobs under every shipped rule, with the reasons that the rules themselves give."""

import pytest
from builders import MB, counters, job, platform, resumed, sample, started, submitted, suspended

from iodaemon.config import load_policy
from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.decision import Resume, Start, Suspend
from iodaemon.core.explain import explain
from iodaemon.core.job import JobId, JobState
from iodaemon.core.rule import Mode, Rules
from iodaemon.core.sample import DeviceCounters
from iodaemon.core.state import State
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import adaptive, dynamic, exclusive
from iodaemon.registry import shipped

SLICE_S = 1.0
REQUESTS = 100
"""A slice, of 100 kB each."""


def rules_of(rule):
    return Rules(name="test", admission=fcfs.Rule(), placement=least_io.Rule(), regulation=rule)


class Machine:
    """Jobs on one disk under a rule; every call is a slice that says what they and it did."""

    def __init__(self, rule, jobs):
        self.state = State(platform(4))
        self.controller = Controller(self.state, rules_of(rule), seed=1)
        self.now_s = 0.0
        self.evidence = []
        self._moved = dict.fromkeys(range(1, jobs + 1), 0)
        self._disk = dict.fromkeys(("reads", "read_sectors", "queue_ms", "read_ms"), 0)
        self.controller.step([submitted(job(number)) for number in self._moved])
        self.controller.step([started(0.0, number) for number in self._moved])
        self.slice(queue=0.0)

    def slice(self, *, queue=None, mb=0):
        """One slice.

        Args:
            queue: requests in flight; None: nothing is counted of the disk.
            mb: what each running job reads.
        """
        for made in self.state.live:
            if made.state is JobState.RUNNING:
                self._moved[made.id] += mb * MB
        disks = {} if queue is None else {"sim0": self._count(queue)}
        told = {made.id: counters(self._moved[made.id]) for made in self.state.live}
        sampled = ev.SampleTaken(at_s=self.now_s, sample=sample(self.now_s, told, disks))
        plan = self.controller.step([sampled])
        self.state.check()
        for decision in plan.decisions:
            answer = {Suspend: suspended, Resume: resumed}[type(decision)]
            self.controller.step([answer(self.now_s, decision.job_id)])
        self.evidence += plan.evidence
        self.now_s += SLICE_S

    def _count(self, queue):
        self._disk["reads"] += REQUESTS
        self._disk["read_sectors"] += REQUESTS * 200
        self._disk["queue_ms"] += int(1000 * queue * SLICE_S)
        self._disk["read_ms"] += int(1000 * queue * SLICE_S)
        others = dict.fromkeys(
            ("reads_merged", "writes", "writes_merged", "written_sectors", "write_ms"), 0
        )
        return DeviceCounters(**self._disk, **others, in_flight=0, busy_ms=0)

    @property
    def held(self):
        return [made.id for made in self.state.live if made.io_hold]


SAFETY = "; this is looked at every 1 s, and at the latest in 10 min it runs in any case"


def why(machine, job_id):
    """What is said of a job at the moment at which it came to where it is."""
    made = machine.state.jobs[JobId(job_id)]
    return explain(machine.state, machine.controller.rules, made, made.since_s)


def capped(bound, *, mb=10, slices=3):
    """Two jobs that move so much each slice, of which one is held for the cap."""
    machine = Machine(adaptive.Rule(io_bound_bytes_per_s=bound * MB), 2)
    for _ in range(slices):
        machine.slice(queue=1.0, mb=mb)
    assert len(machine.held) == 1
    return machine


# -- held for I/O --------------------------------------------------------------------------------


def test_under_a_cap_the_cap_and_the_room_are_told():
    machine = capped(15.0)
    [held] = machine.held

    found = why(machine, held)

    assert found.is_so == (
        "stands still so that the others' I/O gets on: all jobs move 20.0 MB/s, io_bound is "
        "15.0 MB/s"
    )
    assert "there is room for its I/O (all together may bring 15.0 MB/s)" + SAFETY == found.until


def test_under_the_printed_rule_no_turn_is_promised():
    machine = Machine(dynamic.Rule(io_bound_bytes_per_s=15.0 * MB), 2)
    machine.slice(queue=1.0, mb=10)
    [held] = machine.held

    found = why(machine, held)

    assert ": total 20 MB/s is above the bound 15 MB/s; this job moved 10 MB/s, " in found.is_so
    room = "there is room for its I/O (all together may bring 15.0 MB/s)"
    assert room + SAFETY == found.until
    assert found.evidence.fits is None


def test_who_strayed_out_of_its_turn_waits_for_it():
    machine = Machine(exclusive.Rule(), 2)
    for _ in range(4):
        machine.slice(queue=1.0, mb=50)
    [held] = machine.held
    [other] = {1, 2} - {held}

    found = why(machine, held)

    assert f": moved 50.0 MB/s out of its turn: job {other} has it" in found.is_so
    assert "it is its turn to do I/O" + SAFETY == found.until


# -- let go by other hands than the rule's -------------------------------------------------------


@pytest.mark.parametrize(
    ("switch", "text"),
    [(True, "regulation was switched to off"), (False, "stood still for 600 s, the longest")],
)
def test_who_is_let_go_by_the_guard_or_a_switch_has_a_table_too(switch, text):
    machine = capped(20.0, mb=125)
    [held] = machine.held
    since_s = machine.state.jobs[JobId(held)].io_held_since_s
    happened = (
        ev.ModeChanged(at_s=machine.now_s, mode=Mode.OFF, by="ann")
        if switch
        else ev.TimerFired(at_s=since_s + 600.0)
    )

    [table] = machine.controller.step([happened]).evidence

    [row] = [row for row in table.jobs if row.job_id == held]
    assert ("resume", True) == (row.verdict, row.why.startswith(text))
    assert ("total of all jobs", 20.0 * MB) == (table.signal, table.threshold)
    assert table == machine.state.evidence[JobId(held)]


# -- in the queue --------------------------------------------------------------------------------


class Queue:
    """Jobs of two CPUs on one socket of four; those that are decided to start run at once."""

    def __init__(self, rules, jobs):
        self.state = State(platform(4))
        self.controller = Controller(self.state, rules, seed=1)
        plan = self.controller.step([submitted(job(n, cpus=2)) for n in range(1, jobs + 1)])
        starts = [d for d in plan.decisions if isinstance(d, Start)]
        self.controller.step([started(0.0, each.job_id) for each in starts])
        self.state.check()


def test_packs_say_which_pack_and_not_how_many_came_earlier():
    rules = load_policy("packs", overrides={}, search=[shipped("policies")]).rules
    queue = Queue(rules, 8)

    found = why(queue, 8)

    assert "waits: is in pack 4, behind pack 3" == found.is_so
    assert "that is over and 2 CPUs of one socket are free" == found.until
