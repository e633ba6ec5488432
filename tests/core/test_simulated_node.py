"""The simulated node: its counters and its answers, checked by hand."""

import pytest
from builders import MB, job
from simulation import DISK, LateTimeline, Sim, approx

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
    SimulatedNode,
    Transfer,
    Write,
    default_platform,
)
from iodaemon.simulator.timeline import VirtualTimeline

# -- counters ---------------------------------------------------------------------------------


def load_between(sim, start_s, end_s):
    start, end = sim.sample(start_s), sim.sample(end_s)
    return device_load(start.devices["sim0"], end.devices["sim0"], end_s - start_s)


@pytest.mark.parametrize("readers", [1, 4])
def test_the_device_counters_obey_littles_law(readers):
    sim = Sim().start(*([[Read(1000 * MB)]] * readers))

    load = load_between(sim, 1.0, 3.0)

    assert load.queue_length == pytest.approx(readers, rel=0.01)
    assert load.reads_per_s * load.read_await_s == pytest.approx(load.queue_length, rel=0.01)
    assert load.read_bytes_per_s == pytest.approx(100.0 * MB, rel=0.01)
    assert load.busy_ratio == pytest.approx(1.0, abs=0.001)
    assert load.in_flight == readers


def test_a_device_that_is_used_by_a_third_is_busy_a_third_of_the_time():
    sim = Sim().start([Read(1000 * MB, 30.0 * MB)])

    load = load_between(sim, 1.0, 3.0)

    assert load.busy_ratio == pytest.approx(0.3, abs=0.001)
    assert load.queue_length == pytest.approx(0.3, abs=0.001)
    assert load.in_flight == 1


def test_a_job_says_which_disk_its_files_are_on_unless_its_io_is_hidden():
    hidden = Profile(steps=(Read(10 * MB),), hides_io=True)
    sim = Sim().start([Read(10 * MB)], hidden)

    jobs = sim.sample(0.01).jobs

    assert (("sim0",), None) == (jobs[1].devices, jobs[2].devices)


def test_an_idle_device_counts_nothing():
    sim = Sim().start([Compute(10.0)])

    load = load_between(sim, 1.0, 3.0)

    assert (
        load.total_bytes_per_s,
        load.busy_ratio,
        load.queue_length,
        load.in_flight,
    ) == (0.0, 0.0, 0.0, 0)


def test_writeback_fills_the_queue_as_deep_as_it_goes():
    sim = Sim().start([Write(300 * MB)])

    load = load_between(sim, 30.5, 32.5)

    assert load.queue_length == pytest.approx(DISK.writeback_depth, rel=0.01)
    assert load.writes_per_s * load.write_await_s == pytest.approx(load.queue_length, rel=0.01)


def test_cpu_and_stall_times_are_counted():
    profile = Profile(steps=(Compute(2.0), Read(100 * MB), Compute(9.0)), resident_bytes=5)
    sample = Sim().start(profile).sample(4.0)

    assert approx(
        (sample.jobs[1].cpu_s, sample.jobs[1].io_stall_s, sample.jobs[1].resident_bytes)
    ) == (3.0, 1.0, 5)
    assert approx(sample.node.io_stall_s) == 1.0


def test_logical_bytes_are_those_of_reads_and_writes_wherever_they_go():
    link = LinkSpec(id="net", capacity_bytes_per_s=100.0 * MB)
    steps = (Read(100 * MB), Write(50 * MB), Transfer(30 * MB, link="net"), Compute(99.0))
    sample = Sim(model=Model(disk=DISK, links=(link,))).start(steps).sample(50.0)

    assert sample.jobs[1].logical_bytes == 180 * MB
    assert sample.jobs[1].user_s == sample.jobs[1].cpu_s > 0.0


def test_a_socket_is_idle_where_nobody_computes_also_after_jobs_have_ended():
    sim = Sim().start([Compute(2.0), Read(100 * MB), Compute(1.0)], [Compute(1.5)])
    idle_s = [sim.sample(at_s).node.idle_s for at_s in (1.0, 2.5, 10.0)]

    assert [approx(each[0]) for each in idle_s] == [4.0 - 2.0, 10.0 - 3.5, 40.0 - 4.5]
    assert [each[1] for each in idle_s] == [4.0, 10.0, 40.0]


def test_a_job_that_is_suspended_or_killed_has_computed_until_then():
    sim = Sim().start([Compute(9.0)], [Compute(9.0)])
    sim.at(1.0, Suspend(job_id=1)).at(2.0, Kill(job_id=2))

    assert approx(sim.sample(5.0).node.idle_s[0]) == 20.0 - 3.0


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


def test_hidden_io_is_unknown_not_zero():
    sim = Sim().start(Profile(steps=(Read(100 * MB),), hides_io=True))
    sample = sim.sample(0.5)
    sim.run()

    assert sample.jobs[1].read_bytes is None
    assert sample.jobs[1].written_bytes is None
    assert sample.jobs[1].logical_bytes is None
    assert sim.said[-1].io == IoTotals()


def test_only_jobs_that_live_are_sampled():
    sim = Sim().start([Compute(1.0)], [Compute(9.0)])

    assert {2} == set(sim.sample(2.0).jobs)


# -- decisions --------------------------------------------------------------------------------


def test_a_start_and_an_end_are_reported():
    sim = Sim().start([Compute(1.0)], attempt=4).run()

    assert [
        ev.JobStarted(at_s=0.0, job_id=1, attempt=4),
        ev.JobExited(
            at_s=1.0,
            job_id=1,
            attempt=4,
            exit=Exit(code=0),
            io=IoTotals(read_bytes=0, written_bytes=0, operations=0),
        ),
    ] == sim.said


def test_a_start_may_take_time():
    sim = Sim(start_delay_s=0.5).start([Compute(1.0)]).run()

    assert [event.at_s for event in sim.said] == [0.5, 1.5]


def test_a_job_stopped_before_it_started_never_starts():
    sim = Sim(start_delay_s=0.5).start([Compute(1.0)]).at(0.2, Stop(job_id=1)).run()

    assert sim.kinds() == ["JobExited"]
    assert sim.ends() == {1: 0.2}


def test_a_start_asked_for_twice_is_made_once_and_answered_twice():
    sim = Sim().start([Compute(1.0)]).at(0.5).start([Compute(1.0)]).run()

    assert sim.kinds() == ["JobStarted", "JobStarted", "JobExited"]
    assert sim.ends() == {1: 1.0}


def test_a_profile_that_cannot_be_read_is_a_failed_start():
    said = []
    timeline = VirtualTimeline()

    def profile_of(job_id):
        raise ConfigError("compute=x: no duration")

    node = SimulatedNode(default_platform(), timeline, said.append, profile_of)
    node.perform(Start(job_id=1, attempt=1, partition=0, slots=(0,)))
    timeline.run()

    assert [(e.problem, e.exit_code) for e in said] == [("compute=x: no duration", 126)]


@pytest.mark.parametrize(("decision", "signal"), [(Stop(job_id=1), 15), (Kill(job_id=1), 9)])
@pytest.mark.parametrize("suspended", [False, True])
def test_a_job_is_ended_by_a_signal_at_once(decision, signal, suspended):
    sim = Sim().start([Read(1000 * MB)])
    if suspended:
        sim.at(1.0, Suspend(job_id=1))
    sim.at(1.0, decision).run()

    assert {1: Exit(signal=signal)} == sim.exits()
    assert sim.ends() == {1: 1.0}
    assert approx(sim.said[-1].io.read_bytes) == 100 * MB


def test_a_job_that_ignores_sigterm_goes_on_until_it_is_killed():
    stubborn = Profile(steps=(Compute(10.0),), ignores_term=True)
    sim = Sim().start(stubborn).at(1.0, Stop(job_id=1)).at(2.0, Kill(job_id=1)).run()

    assert sim.ends() == {1: 2.0}
    assert {1: Exit(signal=9)} == sim.exits()


def test_a_suspended_job_that_ignores_sigterm_runs_again():
    stubborn = Profile(steps=(Compute(10.0),), ignores_term=True)
    sim = Sim().start(stubborn).at(1.0, Suspend(job_id=1)).at(5.0, Stop(job_id=1)).run()

    assert sim.kinds() == ["JobStarted", "JobSuspended", "JobResumed", "JobExited"]
    assert approx(sim.ends()) == {1: 14.0}


@pytest.mark.parametrize(
    "decision",
    [
        Suspend(job_id=7),
        Resume(job_id=7),
        Stop(job_id=7),
        Kill(job_id=7),
        Grant(job_id=7),
        Reject(job_id=7, reason=Reason(code="x", text="y")),
    ],
)
def test_of_an_unknown_job_nothing_is_said(decision):
    assert Sim().at(0.0, decision).run().said == []


def test_of_an_ended_job_nothing_is_said():
    sim = Sim().start([Compute(1.0)]).at(1.0, Suspend(job_id=1)).run()

    assert sim.kinds() == ["JobStarted", "JobExited"]


def test_all_kinds_of_decisions_are_offered():
    kinds = {Start, Suspend, Resume, Throttle, Stop, Kill, Reject, Grant, Free}

    assert kinds == Sim().node.offers


def test_a_capped_job_reads_at_its_cap_until_that_is_taken_back():
    cap = Throttle(job_id=1, cap=Cap(read_bytes_per_s={"sim0": 20.0 * MB}))
    sim = Sim().start([Read(100 * MB)]).at(0.5, cap).at(1.5, Throttle(job_id=1)).run()

    assert approx(sim.ends()) == {1: 1.8}


def test_a_resume_clears_the_cap():
    cap = Throttle(job_id=1, cap=Cap(read_bytes_per_s={"sim0": 1.0 * MB}))
    sim = Sim().start([Read(100 * MB)]).at(0.5, cap, Suspend(job_id=1), Resume(job_id=1)).run()

    assert approx(sim.ends()) == {1: 1.0}


def test_nobody_is_answered_while_still_asking():
    sim = Sim().start([Compute(0.0)])
    sim.node.sample()

    assert sim.said == []


def test_on_a_late_clock_ends_are_still_reported_as_of_when_they_were():
    sim = Sim(timeline=LateTimeline()).start([Read(50 * MB)], [Read(125 * MB)]).run()

    assert approx(sim.ends()) == {1: 1.0, 2: 1.75}
    assert sim.timeline.now_s == 2.0


def test_the_default_platform_numbers_its_slots_through():
    machine = default_platform(sockets=2, slots=3)

    assert [[s.id for s in p.slots] for p in machine.partitions] == [[0, 1, 2], [3, 4, 5]]
    assert (
        machine.slot_count,
        machine.largest_partition,
        machine.devices[0].id,
    ) == (6, 3, "sim0")
    assert job(1, cpus=3).spec.cpus == machine.largest_partition
