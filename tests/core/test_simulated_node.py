"""The simulated node: what jobs get of its disk, what it counts, and what it answers."""

import itertools

import pytest
from builders import MB
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import DISK, LateTimeline, Sim, approx, device_bytes, sectors

from iodaemon.core import event as ev
from iodaemon.core.decision import (
    Cap,
    Free,
    Grant,
    Kill,
    Reject,
    Resume,
    Start,
    Stop,
    Suspend,
    Throttle,
)
from iodaemon.core.job import Exit, IoTotals, Reason
from iodaemon.core.meter import device_load
from iodaemon.core.platform import COPY_STRIDE, Platform, oversubscribe
from iodaemon.errors import ConfigError
from iodaemon.model.node import (
    Compute,
    LinkSpec,
    Model,
    Profile,
    Read,
    SimulatedDisk,
    SimulatedNode,
    Transfer,
    Write,
    default_platform,
    lv_scaling,
    table_scaling,
)
from iodaemon.simulator.timeline import VirtualTimeline

SUSPEND, RESUME, STOP, KILL = (kind(job_id=1) for kind in (Suspend, Resume, Stop, Kill))
STUBBORN = Profile(steps=(Compute(10.0),), ignores_term=True)
CEILING = SimulatedDisk(capacity_bytes_per_s=100.0 * MB, stream_cap_bytes_per_s=25.0 * MB)
WANING = SimulatedDisk(capacity_bytes_per_s=100.0 * MB, scaling=table_scaling((1.0, 0.5)))


def cap(megabytes):
    return Throttle(job_id=1, cap=Cap(read_bytes_per_s={"sim0": megabytes * 1.0 * MB}))


def ends(*profiles, disk=DISK, acts=(), **options):
    """When jobs 1, 2, ... end; acts are (at_s, decision, ...), in the order of time."""
    sim = Sim(disk, **options).start(*profiles)
    for at_s, *decisions in acts:
        sim.at(at_s, *decisions)
    return sim.run().ends()


# -- what jobs get ---------------------------------------------------------------------------------

SHARING = {
    "two share until one is done": ({}, [[Read(100 * MB)], [Read(200 * MB)]], {1: 2.0, 2: 3.0}),
    "what a cap leaves": ({}, [[Read(40 * MB, 20.0 * MB)], [Read(160 * MB)]], {1: 2.0, 2: 2.0}),
    "a ceiling": ({"disk": CEILING}, [[Read(50 * MB)], [Read(100 * MB)]], {1: 2.0, 2: 4.0}),
    "a waning disk": ({"disk": WANING}, [[Read(50 * MB)], [Read(150 * MB)]], {1: 2.0, 2: 3.0}),
    "a direct write": ({}, [[Write(100 * MB, direct=True)], [Read(100 * MB)]], {1: 2.0, 2: 2.0}),
    "into the page cache": ({}, [[Write(100 * MB)]], {1: 0.1}),
    "beyond the limit": ({}, [[Write(1900 * MB)]], {1: 0.4 + 11.0}),  # 800 MB stay dirty
    "never held up": ({}, [[Write(5000 * MB, 50.0 * MB)]], {1: 100.0}),
    "in turn": ({}, [[Compute(1.0), Read(100 * MB), Compute(0.0), Read(0), Compute(2)]], {1: 4.0}),
    "nothing": ({}, [[]], {1: 0.0}),
    "suspended": ({"acts": [(1.0, SUSPEND), (11.0, RESUME)]}, [[Compute(5.0)]], {1: 15.0}),
    "the other doubles": (
        {"acts": [(2.0, SUSPEND), (10.0, RESUME)]},
        [[Read(300 * MB)], [Read(300 * MB)]],
        {2: 4.0, 1: 12.0},
    ),
    "a cap and its end": (
        {"acts": [(0.5, cap(20)), (1.5, Throttle(job_id=1))]},
        [[Read(100 * MB)]],
        {1: 1.8},
    ),
    "a resume clears the cap": (
        {"acts": [(0.5, cap(1), SUSPEND, RESUME)]},
        [[Read(100 * MB)]],
        {1: 1.0},
    ),
    "stopped": ({"acts": [(1.0, STOP)]}, [[Read(1000 * MB)]], {1: 1.0}),
    "stopped before it started": (
        {"acts": [(0.2, STOP)], "start_delay_s": 0.5},
        [[Compute(1.0)]],
        {1: 0.2},
    ),
    "it ignores SIGTERM": ({"acts": [(1.0, STOP), (2.0, KILL)]}, [STUBBORN], {1: 2.0}),
    "and runs again": ({"acts": [(1.0, SUSPEND), (5.0, STOP)]}, [STUBBORN], {1: 14.0}),
    "a late clock": (
        {"timeline": LateTimeline()},
        [[Read(50 * MB)], [Read(125 * MB)]],
        {1: 1.0, 2: 1.75},
    ),
}


@pytest.mark.parametrize(("options", "profiles", "expected"), SHARING.values(), ids=SHARING)
def test_jobs_end_when_they_should(options, profiles, expected):
    assert approx(expected) == ends(*profiles, **options)


def test_the_capacity_of_lv_is_0459_with_64_streams():
    assert pytest.approx([1.0, 1.0, 0.459], abs=0.001) == [lv_scaling(n) for n in (1, 8, 64)]


def test_a_disk_that_could_spin_or_stand_still_is_refused():
    with pytest.raises(ValueError, match="all figures above 0"):
        SimulatedDisk(dirty_background_bytes=0)
    with pytest.raises(ValueError, match="the limit not below"):
        SimulatedDisk(dirty_background_bytes=2, dirty_limit_bytes=1)


# -- writing ---------------------------------------------------------------------------------------


def test_a_writer_runs_ahead_of_the_device_which_catches_up_after_30_s():
    sim = Sim().start([Write(100 * MB), Compute(100.0)])
    early, middle, late = (sim.sample(at_s) for at_s in (20.0, 30.5, 31.5))

    assert (100 * MB, 0) == (early.jobs[1].written_bytes, device_bytes(early))
    assert (100 * MB, 0) == (early.node.dirty_bytes, early.node.writeback_bytes)
    assert device_bytes(middle) == sectors(50 * MB)
    assert approx(middle.node.dirty_bytes + middle.node.writeback_bytes) == 50 * MB
    assert middle.node.writeback_bytes == DISK.writeback_depth * DISK.request_bytes
    assert (sectors(100 * MB), 0) == (device_bytes(late), late.node.dirty_bytes)


@pytest.mark.parametrize("decision", [SUSPEND, KILL, STOP])
def test_writeback_goes_on_after_the_writer_was_suspended_or_ended(decision):
    sim = Sim().start([Write(100 * MB)]).at(0.05, decision)

    assert 0 == device_bytes(sim.sample(30.0))
    assert device_bytes(sim.sample(40.0)) == sectors(50 * MB)


def test_writers_beyond_the_limit_share_the_pace_within_their_caps():
    sim = Sim().start([Write(10_000 * MB)], [Write(10_000 * MB, 10.0 * MB)])
    start, end = sim.sample(20.0), sim.sample(21.0)

    moved = [end.jobs[i].written_bytes - start.jobs[i].written_bytes for i in (1, 2)]
    assert approx(moved) == [90 * MB, 10 * MB]
    assert approx(end.node.dirty_bytes + end.node.writeback_bytes) == 800 * MB


def test_above_the_background_limit_writeback_starts_at_once():
    sample = Sim().start([Write(600 * MB)]).sample(1.4)  # 400 MB are dirty at 0.4 s

    assert device_bytes(sample) == sectors(100 * MB)


def test_writeback_is_one_stream_beside_the_readers():
    sim = Sim().start([Write(100 * MB)]).at(30.0).start([Read(50 * MB)], first=2).run()

    assert approx(sim.ends()) == {1: 0.1, 2: 31.0}
    assert approx(sim.timeline.now_s) == 31.5


def test_writeback_that_is_just_as_fast_as_the_writers_at_the_limit_does_not_spin():
    writers = [Write(2000 * MB)], [Write(1000 * MB, 100.0 * MB)]

    assert {1, 2, 3} == set(ends(*writers, [Read(400 * MB)]))


# -- counters --------------------------------------------------------------------------------------


def load_between(sim, start_s, end_s):
    start, end = sim.sample(start_s), sim.sample(end_s)
    return device_load(start.devices["sim0"], end.devices["sim0"], end_s - start_s)


@pytest.mark.parametrize(
    ("profiles", "start_s", "queue", "busy", "in_flight"),
    [
        ([[Read(1000 * MB)]], 1.0, 1, 1.0, 1),
        ([[Read(1000 * MB)]] * 4, 1.0, 4, 1.0, 4),
        ([[Read(1000 * MB, 30.0 * MB)]], 1.0, 0.3, 0.3, 1),
        ([[Write(300 * MB)]], 30.5, DISK.writeback_depth, 1.0, DISK.writeback_depth),
        ([[Compute(10.0)]], 1.0, 0, 0.0, 0),
    ],
    ids=["one", "four", "a third", "writeback", "idle"],
)
def test_the_device_counters_obey_littles_law(profiles, start_s, queue, busy, in_flight):
    load = load_between(Sim().start(*profiles), start_s, start_s + 2.0)

    waits = (load.reads_per_s, load.read_await_s), (load.writes_per_s, load.write_await_s)
    assert load.queue_length == pytest.approx(queue, rel=0.01)
    assert sum(n * (await_s or 0.0) for n, await_s in waits) == pytest.approx(queue, rel=0.01)
    assert load.total_bytes_per_s == pytest.approx(100.0 * MB * busy, rel=0.01)
    assert (pytest.approx(busy, abs=0.001), in_flight) == (load.busy_ratio, load.in_flight)


def test_the_bytes_of_a_job_are_exact_at_its_end():
    sim = Sim().start([Read(100 * MB + 1), Write(7), Write(5, direct=True)]).run()

    requests = (100 * MB + 13) // DISK.request_bytes
    assert sim.said[-1].io == IoTotals(
        read_bytes=100 * MB + 1, written_bytes=12, operations=requests
    )


def test_the_reads_of_all_jobs_are_the_sectors_of_the_device():
    sim = Sim().start(*([Read(512 * 1000 * number)] for number in range(1, 6)))
    sim.at(0.011, Kill(job_id=5)).run()

    read = sum(e.io.read_bytes for e in sim.said if isinstance(e, ev.JobExited))
    assert read // 512 == sim.sample(100.0).devices["sim0"].read_sectors


def test_hidden_io_is_unknown_not_zero():
    sim = Sim().start(Profile(steps=(Read(100 * MB),), hides_io=True), [Read(100 * MB)])
    hidden, seen = (sim.sample(0.5).jobs[i] for i in (1, 2))
    sim.at(1.9, Kill(job_id=2)).run()

    numbers = ("read_bytes", "written_bytes", "logical_bytes", "devices")
    assert {None} == {getattr(hidden, name) for name in numbers}
    assert ("sim0",) == seen.devices
    assert sim.said[-1].io == IoTotals()


def test_cpu_and_stall_times_and_logical_bytes_are_counted():
    link = LinkSpec(id="net", capacity_bytes_per_s=100.0 * MB)
    steps = (Compute(2.0), Read(100 * MB), Write(50 * MB), Transfer(30 * MB, link="net"))
    profile = Profile(steps=(*steps, Compute(9.0)), resident_bytes=5)
    sim = Sim(model=Model(disk=DISK, links=(link,))).start(profile, [Compute(1.0)])
    sample = sim.sample(5.0)
    mine = sample.jobs[1]

    assert {1} == set(sample.jobs), "only jobs that live are sampled"
    assert approx((3.65, 3.65, 1.3, 5)) == (
        mine.cpu_s,
        mine.user_s,
        mine.io_stall_s,
        mine.resident_bytes,
    )
    assert (180 * MB, approx(1.0)) == (mine.logical_bytes, sample.node.io_stall_s)


@pytest.mark.parametrize(
    ("profiles", "acts", "idle_s"),
    [
        (
            [[Compute(2.0), Read(100 * MB), Compute(1.0)], [Compute(1.5)]],
            (),
            {1: 2, 2.5: 6.5, 10: 35.5},
        ),
        ([[Compute(9.0)], [Compute(9.0)]], [(1.0, SUSPEND), (2.0, Kill(job_id=2))], {5.0: 17.0}),
    ],
)
def test_a_socket_is_idle_where_nobody_computes(profiles, acts, idle_s):
    sim = Sim().start(*profiles)
    for at_s, decision in acts:
        sim.at(at_s, decision)

    for at_s, expected_s in idle_s.items():
        assert {0: approx(expected_s), 1: 4.0 * at_s} == sim.sample(at_s).node.idle_s


def test_cores_that_are_handed_out_several_times_are_idle_once():
    base = default_platform(sockets=1, slots=2)
    twice = Platform(partitions=(oversubscribe(base.partitions[0], 2),), devices=())
    timeline, said = VirtualTimeline(), []
    node = SimulatedNode(twice, timeline, said.append, {1: Profile(steps=(Compute(3.0),))}.get)
    node.perform(Start(job_id=1, attempt=1, partition=0, slots=(0, 1, COPY_STRIDE)))
    idle_s = []
    for at_s in (1.0, 3.0, 10.0):
        timeline.run_until(at_s)
        node.sample()
        timeline.run_until(at_s)
        idle_s.append(said[-1].sample.node.idle_s[0])

    assert idle_s == [0.0, 0.0, 20.0 - 9.0]


# -- what it says ----------------------------------------------------------------------------------


def test_a_start_and_an_end_are_reported():
    sim = Sim(start_delay_s=0.5).start(Profile(steps=(Compute(1.0),), exit_code=3), attempt=4).run()

    of = {"job_id": 1, "attempt": 4}
    io = IoTotals(read_bytes=0, written_bytes=0, operations=0)
    assert [
        ev.JobStarted(at_s=0.5, **of),
        ev.JobExited(at_s=1.5, exit=Exit(code=3), io=io, **of),
    ] == sim.said


def test_a_start_asked_for_twice_is_made_once_and_answered_twice():
    sim = Sim().start([Compute(1.0)]).at(0.5).start([Compute(1.0)]).at(1.0, SUSPEND).run()

    assert sim.kinds() == ["JobStarted", "JobStarted", "JobExited"]
    assert sim.ends() == {1: 1.0}


def test_a_profile_that_cannot_be_read_is_a_failed_start():
    timeline, said = VirtualTimeline(), []

    def profile_of(job_id):
        raise ConfigError("compute=x: no duration")

    node = SimulatedNode(default_platform(), timeline, said.append, profile_of)
    node.perform(Start(job_id=1, attempt=1, partition=0, slots=(0,)))
    timeline.run()

    assert [(e.problem, e.exit_code) for e in said] == [("compute=x: no duration", 126)]


@pytest.mark.parametrize(("decision", "signal"), [(STOP, 15), (KILL, 9)])
@pytest.mark.parametrize("before", [[], [SUSPEND]])
def test_a_job_is_ended_by_a_signal_at_once(decision, signal, before):
    sim = Sim().start([Read(1000 * MB)]).at(1.0, *before, decision).run()

    assert ({1: Exit(signal=signal)}, {1: 1.0}) == (sim.exits(), sim.ends())
    assert approx(sim.said[-1].io.read_bytes) == 100 * MB


def test_a_suspended_job_that_ignores_sigterm_runs_again():
    sim = Sim().start(STUBBORN).at(1.0, SUSPEND).at(5.0, STOP).at(6.0, KILL).run()

    assert sim.kinds() == ["JobStarted", "JobSuspended", "JobResumed", "JobExited"]


def test_of_an_unknown_job_nothing_is_said_and_all_kinds_of_decisions_are_offered():
    kinds = {Start, Suspend, Resume, Throttle, Stop, Kill, Reject, Grant, Free}
    reject = Reject(job_id=7, reason=Reason(code="x", text="y"))
    others = [kind(job_id=7) for kind in (Suspend, Resume, Stop, Kill, Grant)]

    assert [] == Sim().at(0.0, reject, *others).run().said
    assert kinds == Sim().node.offers


def test_nobody_is_answered_while_still_asking():
    sim = Sim().start([Compute(0.0)])
    sim.node.sample()

    assert sim.said == []


def test_the_default_platform_numbers_its_slots_through():
    machine = default_platform(sockets=2, slots=3)

    assert [[s.id for s in p.slots] for p in machine.partitions] == [[0, 1, 2], [3, 4, 5]]
    assert (6, 3, "sim0") == (machine.slot_count, machine.largest_partition, machine.devices[0].id)


# -- jobs that speak -------------------------------------------------------------------------------

READS = Profile(steps=(Compute(2.0), Read(300 * MB), Compute(1.0)), speaks=True)
WRITES = Profile(steps=(Write(900 * MB),), speaks=True)
GRANT = Grant(job_id=1)
SPEAKING = {
    "it asks, waits, reads and tells": (READS, [(10.0, GRANT)], {1: 14.0}),
    "without its turn it waits for ever": (READS, [], {}),
    "a turn before it asked means nothing": (READS, [(1.0, GRANT)], {}),
    "given twice it is one turn": (READS, [(10.0, GRANT, GRANT), (11.0, GRANT)], {1: 14.0}),
    "suspended while it waits": (READS, [(5.0, SUSPEND), (10.0, GRANT), (20.0, RESUME)], {1: 24.0}),
    "resumed before its turn": (READS, [(5.0, SUSPEND), (6.0, RESUME), (20.0, GRANT)], {1: 24.0}),
    "suspended in its turn": (READS, [(10.0, GRANT), (11.0, SUSPEND), (21.0, RESUME)], {1: 24.0}),
    "killed while it waits": (READS, [(5.0, KILL)], {1: 5.0}),
    "killed while it waits to write": (WRITES, [(5.0, KILL)], {1: 5.0}),
}


@pytest.mark.parametrize(("profile", "acts", "expected"), SPEAKING.values(), ids=SPEAKING)
def test_a_job_that_speaks_does_its_io_in_its_turn(profile, acts, expected):
    assert approx(expected) == ends(profile, acts=acts)


def phases(sim):
    """What was said of phases: when, and what was expected; None: it was done."""
    told = [e for e in sim.said if isinstance(e, ev.PhaseAsked | ev.PhaseDone)]
    return [(e.at_s, getattr(e, "expect_bytes", None)) for e in told]


def test_it_tells_when_it_asks_and_when_it_is_done():
    sim = Sim().start(READS).at(10.0, GRANT).at(11.0, SUSPEND).at(21.0, RESUME).run()
    waiting = Sim().start(READS)
    counters = waiting.sample(100.0).jobs[1]

    assert [(2.0, 300 * MB), (23.0, None)] == phases(sim)
    assert [(2.0, 300 * MB)] == phases(waiting)
    assert (0, 0.0) == (counters.read_bytes, counters.io_stall_s)


def test_each_step_and_each_round_is_a_phase_of_its_own():
    profile = Profile(steps=(Read(100 * MB), Write(MB, direct=True)), repeat=2, speaks=True)
    sim = Sim().start(profile)
    for at_s in (1.0, 3.0, 5.0, 7.0):
        sim.at(at_s, GRANT)
    sim.run()

    assert [100 * MB, None, MB, None] * 2 == [expected for _, expected in phases(sim)]


# -- no drift --------------------------------------------------------------------------------------

CAPS = st.one_of(st.none(), st.floats(1.0 * MB, 200.0 * MB))
SIZES = st.integers(0, 900 * MB)
STEPS = st.one_of(
    st.builds(Compute, st.floats(0.0, 10.0)),
    st.builds(Read, SIZES, CAPS),
    st.builds(Write, SIZES, CAPS, st.booleans()),
)
PROFILES = st.lists(st.lists(STEPS, max_size=6), min_size=1, max_size=6)
PAUSES = st.lists(st.tuples(st.integers(1, 6), st.floats(0.0, 20.0), st.floats(0.0, 20.0)))


def run_with_pauses(profiles, pauses, *, sampling_s=None, start_s=0.0):
    sim = Sim(timeline=VirtualTimeline(start_s=start_s)).start(*profiles)
    for job_id, from_s, for_s in pauses:
        for time_s, decision in ((from_s, Suspend), (from_s + for_s, Resume)):
            sim.timeline.call_at(
                start_s + time_s, lambda d=decision, j=job_id: sim.node.perform(d(job_id=j))
            )
    if sampling_s is not None:
        for number in range(1, 60):
            sim.timeline.call_at(start_s + number * sampling_s, sim.node.sample)
    return sim.run()


def size(steps, kind):
    return sum(step.size_bytes for step in steps if isinstance(step, kind))


@settings(max_examples=tries(60), deadline=None)
@given(PROFILES, PAUSES, st.sampled_from([0.0, 1.7e9]))
def test_every_byte_arrives_exactly_once(profiles, pauses, start_s):
    sim = run_with_pauses(profiles, pauses, start_s=start_s)

    totals = {e.job_id: e.io for e in sim.said if isinstance(e, ev.JobExited)}
    sizes = {i: (size(steps, Read), size(steps, Write)) for i, steps in enumerate(profiles, 1)}
    assert sizes == {i: (io.read_bytes, io.written_bytes) for i, io in totals.items()}
    device = sim.sample(sim.timeline.now_s).devices["sim0"]
    read, written = (sum(size(steps, kind) for steps in profiles) for kind in (Read, Write))
    assert (read // 512, written // 512) == (device.read_sectors, device.written_sectors)


@settings(max_examples=tries(30), deadline=None)
@given(PROFILES, PAUSES, st.floats(0.01, 3.0))
def test_to_look_changes_nothing_and_counters_only_grow(profiles, pauses, sampling_s):
    watched = run_with_pauses(profiles, pauses, sampling_s=sampling_s)
    alone = run_with_pauses(profiles, pauses)

    assert pytest.approx(alone.ends(), rel=1e-9, abs=1e-9) == watched.ends()
    samples = [e.sample for e in watched.said if isinstance(e, ev.SampleTaken)]
    for before, after in itertools.pairwise(samples):
        was, now = before.devices["sim0"], after.devices["sim0"]
        assert device_load(was, now, sampling_s) is not None
        assert was.written_sectors <= now.written_sectors
        for job_id in before.jobs.keys() & after.jobs.keys():
            was, now = before.jobs[job_id], after.jobs[job_id]
            assert (was.read_bytes, was.written_bytes) <= (now.read_bytes, now.written_bytes)
            assert was.written_bytes <= now.written_bytes
