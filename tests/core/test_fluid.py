"""Sharing, page cache and exactness of the fluid model, checked by hand."""

import itertools

import pytest
from builders import MB
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import DISK, Sim, approx, device_bytes, sectors

from iodaemon.core import event as ev
from iodaemon.core.decision import Kill, Resume, Stop, Suspend
from iodaemon.core.job import Exit, IoTotals
from iodaemon.core.meter import device_load
from iodaemon.model.node import (
    Compute,
    Profile,
    Read,
    SimulatedDisk,
    Write,
    lv_scaling,
    table_scaling,
)
from iodaemon.simulator.timeline import VirtualTimeline

# -- sharing the disk -------------------------------------------------------------------------


def test_two_readers_share_the_disk_until_one_is_done():
    sim = Sim().start([Read(100 * MB)], [Read(200 * MB)]).run()

    assert approx(sim.ends()) == {1: 2.0, 2: 3.0}


def test_what_a_capped_reader_leaves_goes_to_the_other():
    sim = Sim().start([Read(40 * MB, 20.0 * MB)], [Read(160 * MB)]).run()

    assert approx(sim.ends()) == {1: 2.0, 2: 2.0}


def test_a_ceiling_per_stream_binds_every_reader():
    disk = SimulatedDisk(capacity_bytes_per_s=100.0 * MB, stream_cap_bytes_per_s=25.0 * MB)
    sim = Sim(disk).start([Read(50 * MB)], [Read(100 * MB)]).run()

    assert approx(sim.ends()) == {1: 2.0, 2: 4.0}


def test_the_capacity_may_shrink_with_the_number_of_streams():
    disk = SimulatedDisk(capacity_bytes_per_s=100.0 * MB, scaling=table_scaling((1.0, 0.5)))
    sim = Sim(disk).start([Read(50 * MB)], [Read(150 * MB)]).run()

    assert approx(sim.ends()) == {1: 2.0, 2: 3.0}


def test_the_capacity_of_lv_is_0459_with_64_streams():
    factors = [lv_scaling(streams) for streams in (1, 8, 64)]

    assert factors[:2] == [1.0, 1.0]
    assert factors[2] == pytest.approx(0.459, abs=0.001)


def test_steps_come_one_after_the_other():
    sim = Sim().start([Compute(1.0), Read(100 * MB), Compute(0.0), Read(0), Compute(2.0)]).run()

    assert approx(sim.ends()) == {1: 4.0}


def test_a_profile_without_steps_ends_at_once_with_its_exit_code():
    sim = Sim().start(Profile(steps=(), exit_code=3)).run()

    assert sim.kinds() == ["JobStarted", "JobExited"]
    assert {1: Exit(code=3)} == sim.exits()
    assert sim.ends() == {1: 0.0}


def test_a_suspended_reader_makes_no_progress_and_the_other_doubles():
    sim = Sim().start([Read(300 * MB)], [Read(300 * MB)])
    sim.at(2.0, Suspend(job_id=1))

    still = sim.sample(3.0)

    assert approx(still.jobs[1].read_bytes) == 100 * MB
    assert approx(still.jobs[2].read_bytes) == 200 * MB

    sim.at(10.0, Resume(job_id=1)).run()

    assert approx(sim.ends()) == {2: 4.0, 1: 12.0}


def test_a_suspended_job_does_not_compute_either():
    sim = Sim().start([Compute(5.0)]).at(1.0, Suspend(job_id=1)).at(11.0, Resume(job_id=1)).run()

    assert approx(sim.ends()) == {1: 15.0}


def test_the_bytes_of_a_job_are_exact_at_its_end():
    sim = Sim().start([Read(100 * MB + 1), Write(7), Write(5, direct=True)]).run()

    ends = [e.io for e in sim.said if isinstance(e, ev.JobExited)]
    requests = (100 * MB + 13) // DISK.request_bytes
    assert [IoTotals(read_bytes=100 * MB + 1, written_bytes=12, operations=requests)] == ends


def test_the_reads_of_all_jobs_are_the_sectors_of_the_device():
    sim = Sim().start(*([Read(512 * 1000 * number)] for number in range(1, 6)))
    sim.at(0.011, Kill(job_id=5)).run()

    read = sum(e.io.read_bytes for e in sim.said if isinstance(e, ev.JobExited))
    assert read // 512 == sim.sample(100.0).devices["sim0"].read_sectors


# -- writing ----------------------------------------------------------------------------------


def test_a_writer_runs_ahead_of_the_device_which_catches_up_after_30_s():
    sim = Sim().start([Write(100 * MB), Compute(100.0)])

    early = sim.sample(20.0)

    assert early.jobs[1].written_bytes == 100 * MB
    assert early.devices["sim0"].written_sectors == 0
    assert (early.node.dirty_bytes, early.node.writeback_bytes) == (100 * MB, 0)

    middle = sim.sample(30.5)

    assert device_bytes(middle) == sectors(50 * MB)
    assert approx(middle.node.dirty_bytes + middle.node.writeback_bytes) == 50 * MB
    assert middle.node.writeback_bytes == DISK.writeback_depth * DISK.request_bytes

    late = sim.sample(31.5)

    assert device_bytes(late) == sectors(100 * MB)
    assert late.node.dirty_bytes == 0


def test_a_writer_ends_when_the_page_cache_has_it_all():
    sim = Sim().start([Write(100 * MB)]).run()

    assert approx(sim.ends()) == {1: 0.1}
    assert approx(sim.timeline.now_s) == 31.0
    assert device_bytes(sim.sample(sim.timeline.now_s)) == sectors(100 * MB)


@pytest.mark.parametrize("decision", [Suspend(job_id=1), Kill(job_id=1), Stop(job_id=1)])
def test_writeback_goes_on_after_the_writer_was_suspended_or_ended(decision):
    sim = Sim().start([Write(100 * MB)]).at(0.05, decision)

    at_30_s = sim.sample(30.0)
    sim.at(40.0)

    assert at_30_s.devices["sim0"].written_sectors == 0
    assert device_bytes(sim.sample(sim.timeline.now_s)) == sectors(50 * MB)


def test_beyond_the_limit_a_writer_gets_the_pace_of_writeback():
    sim = Sim().start([Write(1900 * MB)]).run()

    assert approx(sim.ends()) == {1: 0.4 + 11.0}  # 800 MB stay dirty, 1100 go at 100 MB/s


def test_writers_beyond_the_limit_share_the_pace_within_their_caps():
    sim = Sim().start([Write(10_000 * MB)], [Write(10_000 * MB, 10.0 * MB)])
    start, end = sim.sample(20.0), sim.sample(21.0)

    moved = [end.jobs[i].written_bytes - start.jobs[i].written_bytes for i in (1, 2)]
    assert approx(moved) == [90 * MB, 10 * MB]
    assert approx(end.node.dirty_bytes + end.node.writeback_bytes) == 800 * MB


def test_a_slow_writer_is_never_held_up():
    sim = Sim().start([Write(5000 * MB, 50.0 * MB)]).run()

    assert approx(sim.ends()) == {1: 100.0}
    assert device_bytes(sim.sample(sim.timeline.now_s)) == sectors(5000 * MB)


def test_above_the_background_limit_writeback_starts_at_once():
    sim = Sim().start([Write(600 * MB)])
    sample = sim.sample(1.4)  # 400 MB are dirty at 0.4 s

    assert device_bytes(sample) == sectors(100 * MB)


def test_writeback_is_one_stream_beside_the_readers():
    sim = Sim().start([Write(100 * MB)])
    sim.at(30.0).start([Read(50 * MB)], first=2).run()

    assert approx(sim.ends()) == {1: 0.1, 2: 31.0}
    assert approx(sim.timeline.now_s) == 31.5


def test_a_direct_write_goes_at_the_pace_of_the_device():
    sim = Sim().start([Write(100 * MB, direct=True)], [Read(100 * MB)])
    sample = sim.sample(1.0)
    sim.run()

    assert approx(sample.jobs[1].written_bytes) == 50 * MB
    assert device_bytes(sample) == sectors(50 * MB)
    assert approx(sim.ends()) == {1: 2.0, 2: 2.0}


def test_a_disk_that_could_spin_or_stand_still_is_refused():
    with pytest.raises(ValueError, match="all figures above 0"):
        SimulatedDisk(dirty_background_bytes=0)
    with pytest.raises(ValueError, match="the limit not below"):
        SimulatedDisk(dirty_background_bytes=2, dirty_limit_bytes=1)


def test_writeback_that_is_just_as_fast_as_the_writers_at_the_limit_does_not_spin():
    sim = Sim().start([Write(2000 * MB)], [Write(1000 * MB, 100.0 * MB)], [Read(400 * MB)]).run()

    assert {1, 2, 3} == set(sim.ends())


# -- no drift ---------------------------------------------------------------------------------

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
def test_to_look_changes_nothing(profiles, pauses, sampling_s):
    watched = run_with_pauses(profiles, pauses, sampling_s=sampling_s)
    alone = run_with_pauses(profiles, pauses)

    assert pytest.approx(alone.ends(), rel=1e-9, abs=1e-9) == watched.ends()


@settings(max_examples=tries(30), deadline=None)
@given(PROFILES, PAUSES)
def test_counters_only_grow(profiles, pauses):
    sim = run_with_pauses(profiles, pauses, sampling_s=0.7)
    samples = [e.sample for e in sim.said if isinstance(e, ev.SampleTaken)]

    for before, after in itertools.pairwise(samples):
        assert device_load(before.devices["sim0"], after.devices["sim0"], 0.7) is not None
        assert before.devices["sim0"].written_sectors <= after.devices["sim0"].written_sectors
        for job_id in before.jobs.keys() & after.jobs.keys():
            assert before.jobs[job_id].read_bytes <= after.jobs[job_id].read_bytes
            assert before.jobs[job_id].written_bytes <= after.jobs[job_id].written_bytes
