"""The machine of Lv et al.: streams that wait, memory that is paged, demand beside what is done."""

import math

import pytest
from builders import MB
from hypothesis import example, given
from hypothesis import strategies as st
from simulation import DISK, Sim

from iodaemon.core.decision import Resume, Suspend
from iodaemon.model.backlog import waiting_capacity
from iodaemon.model.fair_link import FairLink
from iodaemon.model.flow import Flow
from iodaemon.model.memory import Memory, SimulatedMemory
from iodaemon.model.node import SimulatedDisk
from iodaemon.model.profile import Compute, Profile, Read, Touch, Write
from iodaemon.model.scaling import lv_scaling, table_scaling, waning_scaling
from iodaemon.model.spec import Model

PACES = st.one_of(st.just(math.inf), st.floats(0.5, 50.0), st.sampled_from([5.0, 10.0]))
FLOWS = st.lists(st.tuples(PACES, st.sampled_from([1, 2, 8])), min_size=1, max_size=12)
SCALINGS = st.one_of(
    st.builds(waning_scaling, st.integers(1, 8), st.floats(0.0, 2.0)),
    st.lists(st.floats(0.05, 1.0), min_size=1, max_size=10).map(
        lambda parts: table_scaling(sorted(parts, reverse=True))
    ),
)


def lanes_of(flows):
    weights = {}
    for pace, weight in flows:
        weights[pace] = weights.get(pace, 0.0) + weight
    return sorted(weights.items())


def level_of(capacity, lanes):
    """What a flow of weight 1 gets that no pace holds back; infinite where none is held back."""
    left, weight = capacity, sum(each for _, each in lanes)
    for pace, own in lanes:
        if pace > left / weight:
            return left / weight
        left -= pace * own
        weight -= own
        if weight <= 0:
            return math.inf
    return math.inf


# -- streams that wait -----------------------------------------------------------------------------


@given(FLOWS, SCALINGS, st.floats(1.0, 200.0))
def test_the_streams_that_were_counted_are_those_that_are_held_back(flows, scaling, full):
    lanes = lanes_of(flows)
    capacity = waiting_capacity(full, scaling, lanes)

    level = level_of(capacity, lanes)
    waiting = sum(weight for pace, weight in lanes if pace > level)
    assert capacity == full * scaling(max(1, round(waiting)))


@given(FLOWS, SCALINGS, st.floats(1.0, 200.0))
def test_no_solution_has_fewer_streams_that_wait(flows, scaling, full):
    lanes = lanes_of(flows)
    capacity = waiting_capacity(full, scaling, lanes)

    for waiting in range(1, sum(weight for _, weight in flows) + 1):
        other = full * scaling(waiting)
        if other > capacity:
            level = level_of(other, lanes)
            assert waiting != sum(weight for pace, weight in lanes if pace > level)


@given(FLOWS, SCALINGS)
@example([(math.inf, 1), (10.0, 8)], waning_scaling(1, 1.0))
def test_a_link_gives_what_its_streams_that_wait_leave_it(flows, scaling):
    link = FairLink(100.0, scaling=scaling, counts_waiting=True)
    made = [
        Flow(1e6, number=number, cap_bytes_per_s=pace * weight, weight=float(weight))
        for number, (pace, weight) in enumerate(flows)
    ]
    for flow in made:
        link.add(flow)
    link.settle()

    lanes = lanes_of(flows)
    wanted = sum(pace * weight for pace, weight in lanes)
    capacity = waiting_capacity(100.0, scaling, lanes)
    given_out = sum(link.rate(flow) for flow in made)
    assert given_out == pytest.approx(min(wanted, capacity))


def test_those_who_pace_themselves_lower_nothing_until_they_want_too_much():
    pace, scaling = 5.63e6 / 8, lv_scaling

    assert 50e6 == waiting_capacity(50e6, scaling, [(pace, 64.0)])
    assert 50e6 * lv_scaling(80) == waiting_capacity(50e6, scaling, [(pace, 80.0)])


def test_the_law_of_the_disk_is_that_of_figures_1_and_14():
    assert [1.0, 1.0, 0.459] == [round(lv_scaling(n), 3) for n in (1, 8, 64)]
    with pytest.raises(ValueError, match="knee 0"):
        waning_scaling(0, 1.0)


def test_a_job_of_two_threads_gets_twice_the_share_and_counts_twice():
    disk = SimulatedDisk(
        capacity_bytes_per_s=90.0 * MB, scaling=waning_scaling(2, 1.0), counted="waiting"
    )
    sim = Sim(disk=disk).start([Read(40 * MB, streams=2)], [Read(20 * MB)]).run()

    assert sim.ends() == {1: pytest.approx(1.0), 2: pytest.approx(1.0)}  # 90 x 2/3 for three


# -- memory ----------------------------------------------------------------------------------------

ROOM = 1_000 * MB
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "leave", "hold", "release", "fault"]),
        st.integers(1, 6),
        st.integers(0, 900 * MB),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_nobody_has_more_than_his_set_and_all_no_more_than_the_room(operations):
    memory, sizes = Memory(SimulatedMemory(capacity_bytes=2 * ROOM)), {}
    for what, job_id, size in operations:
        if what == "enter" and job_id not in sizes:
            memory.enter(job_id, float(size))
            sizes[job_id] = size
        elif what == "leave":
            memory.leave(job_id)
            sizes.pop(job_id, None)
        elif what == "fault":
            before = memory.here(job_id)
            read = memory.fault(job_id, float(size))
            missing = sizes.get(job_id, 0) - before
            assert 0.0 <= read <= min(size, max(0.0, missing)) * (1.0 + 1e-9)
        elif what in ("hold", "release"):
            getattr(memory, what)(job_id)
        here = {each: memory.here(each) for each in sizes}
        assert all(-1.0 <= here[each] <= sizes[each] + 1.0 for each in sizes)
        assert sum(here.values()) <= ROOM * (1.0 + 1e-9)
        assert memory.available_bytes == pytest.approx(ROOM - sum(here.values()), abs=1e3)


@given(st.lists(st.integers(0, 100 * MB), max_size=10), st.integers(0, 900 * MB))
def test_where_all_fit_nothing_is_ever_read(sizes, touched):
    memory = Memory(SimulatedMemory(capacity_bytes=2 * ROOM))
    for number, size in enumerate(sizes):
        memory.enter(number, float(size))

    assert 0.0 == sum(memory.fault(number, float(touched)) for number in range(len(sizes)))


def test_pages_of_those_who_stand_still_go_first():
    memory = Memory(SimulatedMemory(capacity_bytes=2 * ROOM))
    for number in (1, 2, 3):
        memory.enter(number, 300.0 * MB)
    memory.hold(2)
    memory.enter(4, 400.0 * MB)

    assert [300, 0, 300, 400] == [round(memory.here(n) / MB) for n in (1, 2, 3, 4)]


def test_with_all_running_each_touch_misses_what_does_not_fit():
    memory = Memory(SimulatedMemory(capacity_bytes=2 * ROOM))
    for number in range(10):
        memory.enter(number, 125.0 * MB)
    read = [memory.fault(n % 10, float(MB)) for n in range(5000)]

    assert sum(read[-1000:]) / 1000 / MB == pytest.approx(1.0 - 1000 / 1250, rel=0.01)


TOUCHER = Profile(steps=(Compute(1.0), Touch(100 * MB)), repeat=10, resident_bytes=400 * MB)


def paged(**fields):
    return Model(disk=DISK, memory=SimulatedMemory(capacity_bytes=1000 * MB, **fields))


def test_page_ins_are_no_logical_bytes_but_reads_beside_them_are():
    reader = Profile(
        steps=(Read(30 * MB), Touch(100 * MB), Write(7 * MB)), repeat=5, resident_bytes=400 * MB
    )
    sim = Sim(model=paged()).start(reader, TOUCHER)
    logical = []
    for step in range(100):
        sample = sim.sample(step / 10.0)
        job = sample.jobs.get(1)
        if job is None:
            break
        logical.append(job.logical_bytes)
        paged_in = job.read_bytes + job.written_bytes - job.logical_bytes
        assert -1 <= paged_in <= sample.node.refault_bytes + 1

    assert logical == sorted(logical)
    assert 150 * MB < logical[-1] <= 185 * MB


def test_a_job_that_stands_still_gives_its_room_and_comes_back_to_less():
    sim = Sim(model=paged()).start(TOUCHER, TOUCHER).at(0.5, Suspend(job_id=1))
    sim.sample(8.5)
    assert sim.sample(8.6).jobs[1].resident_bytes < 150 * MB

    ends = sim.at(12.0, Resume(job_id=1)).run().ends()
    assert ends[2] < 12.0 < ends[1]


# -- demand ----------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.floats(0.0, 3.0).map(Compute),
        st.integers(0, 300 * MB).map(Read),
        st.integers(0, 300 * MB).map(lambda size: Write(size, direct=True)),
    ),
    min_size=1,
    max_size=5,
)


@given(
    st.lists(STEPS, min_size=1, max_size=4),
    st.lists(st.floats(0.1, 4.0), max_size=6),
    st.one_of(st.none(), st.integers(1, 400 * MB)),
)
def test_demand_is_what_was_done_and_more_and_never_goes_back(jobs, gaps, asked):
    kernel, demand = (
        Sim(model=Model(disk=DISK, counting=counting, asked_bytes=asked)).start(*jobs)
        for counting in ("kernel", "demand")
    )
    told, at_s = {}, 0.0
    for gap_s in [0.0, *gaps]:
        at_s += gap_s
        done, wanted = kernel.sample(at_s).jobs, demand.sample(at_s).jobs
        assert done.keys() == wanted.keys()
        for job_id, counters in wanted.items():
            now = counters.read_bytes + counters.written_bytes
            actual = done[job_id].read_bytes + done[job_id].written_bytes
            before = told.get(job_id, (0, 0))
            assert now >= actual
            assert now - before[0] >= actual - before[1]
            # of each kind the peak, or what was done within the slice
            most = max(2 * 100 * MB * gap_s, actual - before[1] + 100 * MB * gap_s)
            assert now - before[0] <= most + 4
            told[job_id] = (now, actual)


def test_a_reader_among_others_is_counted_with_what_it_waits_for():
    sim = Sim(model=Model(disk=DISK, counting="demand"))
    sim.start([Read(1000 * MB)], [Read(60 * MB)])
    first, second = (sim.sample(at_s).jobs for at_s in (0.0, 1.0))

    assert 0 == first[1].read_bytes
    assert 100 * MB == second[1].read_bytes  # its peak, of which it got the half
    assert 60 * MB == second[2].read_bytes  # all that it asked for


def test_what_a_reader_asks_for_can_be_bounded_by_stream():
    """100 MB/s for five streams: each reads 20 MB, and has asked for 10 more."""
    sim = Sim(model=Model(disk=DISK, counting="demand", asked_bytes=10 * MB))
    sim.start([Read(1000 * MB, streams=4)], [Read(1000 * MB)])
    sim.sample(0.0)
    counted = sim.sample(1.0).jobs

    assert [100 * MB, 30 * MB] == [counted[job].read_bytes for job in (1, 2)]
