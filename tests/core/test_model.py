"""Jobs on a simulated platform of links and stores, checked by hand and against a plain model."""

import math

import pytest
from builders import platform
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import DISK, Sim, approx

from iodaemon.core import event as ev
from iodaemon.core.decision import Resume, Start, Suspend
from iodaemon.core.job import IoTotals, JobSpec
from iodaemon.core.rule import Rules
from iodaemon.model.node import (
    DEFAULT_MODEL,
    Compute,
    Hold,
    LinkSpec,
    Model,
    Profile,
    Read,
    Stage,
    StoreSpec,
    Transfer,
    Write,
    parse_profile,
)
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import none
from iodaemon.simulator.run import simulate

FAIR = LinkSpec(id="pfs", capacity_bytes_per_s=10.0)


def model(*links, stores=(), disk=None):
    return Model(links=links or (FAIR,), stores=stores, disk=disk)


def over(*sizes, link="pfs", **fields):
    return Profile(steps=tuple(Transfer(size, link, **fields) for size in sizes))


# -- steps ------------------------------------------------------------------------------------

CEILING = LinkSpec(id="pfs", capacity_bytes_per_s=10.0, stream_cap_bytes_per_s=2.0)
TWO_LINKS = (FAIR, LinkSpec(id="stage", capacity_bytes_per_s=5.0))


def steps(*made, **fields):
    return Profile(steps=made, **fields)


NOTHING = steps(Compute(0.0), Transfer(0.0, "pfs"), repeat=9)
ENDS = {
    "by weight within caps": (
        model(),
        [over(10.0, cap_bytes_per_s=1.0), over(30.0, weight=2.0), over(15.0)],
        {2: 5.0, 3: 5.0, 1: 10.0},
    ),
    "within a cap of each": (
        model(CEILING),
        [over(10.0), over(10.0, cap_bytes_per_s=1.0)],
        {1: 5.0, 2: 10.0},
    ),
    # 2 has the link alone for 4 s, then both have 5 bytes/s for 4 s, then 2 alone for 2 s
    "links beside each other": (
        model(*TWO_LINKS),
        [steps(Stage(20.0, "stage"), Transfer(20.0, "pfs")), over(80.0)],
        {1: 8.0, 2: 10.0},
    ),
    "repeated": (
        model(),
        [steps(Compute(1.0), Transfer(10.0, "pfs"), Compute(0.0), repeat=3)],
        {1: 6.0},
    ),
    "nothing repeated": (model(), [steps(repeat=9), NOTHING], {1: 0.0, 2: 0.0}),
    "the disk beside a link": (
        model(disk=DISK),
        [steps(Read(100_000_000), Transfer(10.0, "pfs"), Write(1000)), [Read(300_000_000)]],
        {1: 3.000001, 2: 4.0},
    ),
    "the words of the default platform": (
        DEFAULT_MODEL,
        [parse_profile(["job", "transfer=1GB", "stage=500MB", "repeat=2"])],
        {1: 3.0},
    ),
}


@pytest.mark.parametrize(("made", "profiles", "ends"), ENDS.values(), ids=ENDS)
def test_jobs_end_when_they_should(made, profiles, ends):
    assert approx(ends) == Sim(model=made).start(*profiles).run().ends()


def test_a_transfer_counts_as_written_and_a_stage_not_at_all():
    profile = steps(Transfer(20.0, "pfs"), Stage(20.0, "pfs"), Transfer(3.0, "pfs"))
    sim = Sim(model=model()).start(profile)
    written = [sim.sample(at_s).jobs[1].written_bytes for at_s in (1.0, 3.0)]
    sim.run()

    assert written == [10, 20]
    assert IoTotals(read_bytes=0, written_bytes=23, operations=0) == sim.said[-1].io


def test_each_partition_may_have_its_own_link():
    link = LinkSpec(id="pfs", capacity_bytes_per_s=10.0, per_partition=True)
    sim = Sim(model=model(link))
    for job_id, partition in ((1, 0), (2, 1), (3, 1)):
        sim.profiles[job_id] = over(20.0)
        sim.node.perform(Start(job_id=job_id, attempt=1, partition=partition, slots=(job_id,)))

    assert approx({1: 2.0, 2: 4.0, 3: 4.0}) == sim.run().ends()


def test_a_node_without_a_disk_has_no_device():
    sample = Sim(model=model()).start(over(20.0)).sample(1.0)

    assert {} == sample.devices
    assert sample.jobs[1].devices is None
    assert sample.node.io_stall_s is None


@pytest.mark.parametrize(
    ("profile", "problem"),
    [
        (over(1.0, link="bb"), "no link is called 'bb'; there are: pfs"),
        (Profile(steps=(Read(1),)), "it reads, but the platform has no disk"),
        (Profile(steps=(Write(1),)), "it writes, but the platform has no disk"),
        (Profile(steps=(), holds=(Hold("x", 1),)), "no store is called 'x'; there are: hps"),
        (
            Profile(steps=(), holds=(Hold("hps", 101),)),
            "101 bytes never fit into store hps of 100",
        ),
    ],
)
def test_what_the_platform_does_not_have_makes_a_start_fail_for_good(profile, problem):
    sim = Sim(model=model(stores=(StoreSpec(id="hps", capacity_bytes=100),))).start(profile).run()

    assert [
        ev.StartFailed(at_s=0.0, job_id=1, attempt=1, problem=problem, exit_code=126)
    ] == sim.said


# -- stores -----------------------------------------------------------------------------------


def test_room_is_held_from_start_to_end():
    sim = Sim(model=model(stores=(StoreSpec(id="hps", capacity_bytes=100),)))
    sim.start(Profile(steps=(Compute(5.0),), holds=(Hold("hps", 70),)))
    store = sim.node.stores["hps"]
    held = store.free(0.0)
    sim.run()

    assert [held, store.free(4.9), store.free(5.0)] == [30, 30, 100]


def test_a_start_without_room_is_tried_again_and_holds_nothing():
    stores = (StoreSpec(id="hps", capacity_bytes=100), StoreSpec(id="bb", capacity_bytes=100))
    holds = (Hold("bb", 60), Hold("hps", 40))
    sim = Sim(model=model(stores=stores))
    sim.start(Profile(steps=(Compute(5.0),), holds=(Hold("hps", 70),)))
    sim.start(Profile(steps=(Compute(1.0),), holds=holds), first=2).at(1.0)

    failed = [event for event in sim.said if isinstance(event, ev.StartFailed)]
    assert [(e.job_id, e.exit_code, e.problem) for e in failed] == [
        (2, None, "needs 40 bytes of room, 30 are free")
    ]
    assert sim.node.stores["bb"].free(0.0) == 100


@pytest.mark.parametrize(
    "make",
    [
        lambda: LinkSpec(id="a", capacity_bytes_per_s=0.0),
        lambda: LinkSpec(id="a", capacity_bytes_per_s=math.inf),
        lambda: LinkSpec(id="a", capacity_bytes_per_s=1.0, stream_cap_bytes_per_s=0.0),
        lambda: LinkSpec(id="a", capacity_bytes_per_s=1.0, order=lambda *_: 0.0),
        lambda: StoreSpec(id="a", capacity_bytes=0),
        lambda: Model(links=(FAIR, FAIR)),
        lambda: Model(stores=(StoreSpec(id="a", capacity_bytes=1),) * 2),
    ],
)
def test_a_platform_that_makes_no_sense_is_refused(make):
    with pytest.raises(ValueError):  # noqa: PT011 - the arguments are the reason
        make()


# -- whole runs -------------------------------------------------------------------------------

RULES = Rules(name="test", admission=fcfs.Rule(), placement=least_io.Rule(), regulation=none.Rule())


def submission(submit_s, *steps, **fields):
    return submit_s, JobSpec(command=("simulated",), **fields), Profile(steps=steps)


def run(*jobs, machine=None, rules=RULES, **options):
    options.setdefault("model", model())
    return simulate(platform(2) if machine is None else machine, rules, jobs, **options)


def test_without_sampling_there_are_no_timeslices_and_sampling_changes_no_times():
    jobs = [submission(n / 3, Compute(n), Transfer(7.0 * n, "pfs")) for n in range(1, 9)]
    watched, alone = run(*jobs), run(*jobs, sampling=False)

    assert [approx(job.ended_s) for job in alone.jobs] == [job.ended_s for job in watched.jobs]
    assert (True, ()) == (len(watched.slices) > 10, alone.slices)


@pytest.mark.parametrize("submit_s", [-1.0, math.nan])
def test_a_job_from_before_the_beginning_is_refused(submit_s):
    with pytest.raises(ValueError, match="time begins at 0"):
        run(submission(submit_s, Compute(1.0)))


# -- against a plain model --------------------------------------------------------------------

STEPS = st.one_of(
    st.builds(Compute, st.floats(0.1, 5.0)),
    st.builds(
        Transfer,
        st.floats(1.0, 60.0),
        st.sampled_from(["pfs", "slow"]),
        st.one_of(st.none(), st.floats(0.5, 10.0)),
        st.sampled_from([1.0, 2.0]),
    ),
)
PROFILES = st.lists(
    st.builds(
        lambda steps, repeat: Profile(steps=tuple(steps), repeat=repeat),
        st.lists(STEPS, min_size=1, max_size=4),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=6,
)
STANDS = st.lists(
    st.tuples(st.integers(1, 6), st.floats(0.0, 20.0), st.floats(0.0, 10.0)), max_size=5
)
LINKS = {"pfs": 10.0, "slow": 4.0}


class Plain:
    """All jobs looked at in every interval, rates by filling up, bytes by adding up."""

    def __init__(self, profiles):
        self.steps = {n: list(p.steps) * p.repeat for n, p in enumerate(profiles, start=1)}
        self.left = {n: size(steps[0]) for n, steps in self.steps.items()}
        self.still, self.ends, self.now_s = set(), {}, 0.0

    def rates(self):
        going = {n: s[0] for n, s in self.steps.items() if n not in self.still}
        rates = {n: 1.0 for n, step in going.items() if isinstance(step, Compute)}
        for link, capacity in LINKS.items():
            flows = {n: s for n, s in going.items() if getattr(s, "link", None) == link}
            caps = {n: s.cap_bytes_per_s or math.inf for n, s in flows.items()}
            weight = sum(s.weight for s in flows.values())
            for n in sorted(flows, key=lambda n: caps[n] / flows[n].weight):
                rates[n] = min(caps[n], capacity * flows[n].weight / weight)
                capacity -= rates[n]
                weight -= flows[n].weight
        return rates

    def run_to(self, to_s):
        while self.now_s < to_s:
            rates = self.rates()
            ends = {n: self.now_s + self.left[n] / rate for n, rate in rates.items()}
            next_s = min([*ends.values(), to_s])
            for n, rate in rates.items():
                self.left[n] -= rate * (next_s - self.now_s)
            self.now_s = next_s
            for n, end_s in ends.items():
                if end_s <= next_s:
                    self.go_on(n)
            if not self.steps:
                return

    def go_on(self, n):
        self.steps[n].pop(0)
        if self.steps[n]:
            self.left[n] = size(self.steps[n][0])
        else:
            del self.steps[n]
            self.ends[n] = self.now_s


def size(step):
    return step.seconds if isinstance(step, Compute) else step.size_bytes


@settings(max_examples=tries(150), deadline=None)
@given(PROFILES, STANDS)
def test_ends_are_those_of_looking_at_every_job(profiles, stands):
    plain = Plain(profiles)
    links = tuple(LinkSpec(id=name, capacity_bytes_per_s=c) for name, c in LINKS.items())
    sim = Sim(model=model(*links)).start(*profiles)
    acts = []
    for job_id, from_s, for_s in stands:
        acts += [(from_s, 0, Suspend, job_id), (from_s + for_s, 1, Resume, job_id)]
    for at_s, _, decision, job_id in sorted(acts, key=lambda act: act[:2]):
        sim.at(at_s, decision(job_id=job_id))
        plain.run_to(at_s)
        (plain.still.add if decision is Suspend else plain.still.discard)(job_id)
    sim.run()
    plain.run_to(math.inf)

    assert approx(plain.ends) == sim.ends()


@settings(max_examples=tries(60), deadline=None)
@given(PROFILES, st.booleans())
def test_to_run_ahead_of_the_timeline_changes_nothing(profiles, sampling):
    """``simulate`` lets the engine run ahead; a node alone is called for each event."""
    links = tuple(LinkSpec(id=name, capacity_bytes_per_s=c) for name, c in LINKS.items())
    jobs = [(0.0, JobSpec(command=("simulated",)), profile) for profile in profiles]
    options = {"machine": platform(len(jobs)), "model": model(*links), "sampling": sampling}
    ahead = run(*jobs, **options)
    called = Sim(model=model(*links)).start(*profiles).run()

    expected = {n: approx(end_s) if sampling else end_s for n, end_s in called.ends().items()}
    assert expected == {job.id: job.ended_s for job in ahead.jobs}
    assert ahead == run(*jobs, **options), "the same jobs give the same bytes"
