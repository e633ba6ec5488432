"""Packs: how they are made, which runs where, and what waits for what."""

import math

import msgspec
import pytest
from builders import MB, cancel, exited, hold, job, platform, release, started, submitted, timer
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core import event as ev
from iodaemon.core.controller import Controller
from iodaemon.core.decision import Start
from iodaemon.core.job import JobId, JobSpec, JobState
from iodaemon.core.rule import Rules
from iodaemon.core.state import State
from iodaemon.model.node import Compute, Profile
from iodaemon.policy.admission.pack import Rule
from iodaemon.policy.packing import Item, Pack, assign, make_packs
from iodaemon.policy.placement.least_io import Rule as LeastIo
from iodaemon.policy.regulation.none import Rule as Unregulated
from iodaemon.simulator.run import simulate

# -- making packs ----------------------------------------------------------------------------------

SLOTS = 16
BANDWIDTH = 4.0


def item(number, slots, alone_s, volume_bytes=0.0):
    return Item(id=number, slots=slots, alone_s=alone_s, volume_bytes=volume_bytes)


ROWS = st.tuples(
    st.integers(1, SLOTS),
    st.floats(0.5, 100.0),
    st.one_of(st.just(0.0), st.floats(1e-6, 1.0)),
)
ITEMS = st.lists(ROWS, max_size=12).map(
    lambda rows: [
        item(number, slots, alone_s, share * BANDWIDTH * alone_s)
        for number, (slots, alone_s, share) in enumerate(rows)
    ]
)
BOUNDS = st.one_of(st.floats(0.05, 5.0), st.just(math.inf))


def pack(items, bound=1.0, **options):
    return make_packs(
        items, slots=SLOTS, stretch_bound=bound, bandwidth_bytes_per_s=BANDWIDTH, **options
    )


def ids(packs):
    return [[item.id for item in pack.items] for pack in packs]


@given(ITEMS, BOUNDS, st.booleans())
def test_every_job_is_in_one_pack_within_the_slots_and_the_budget(items, bound, fullest_first):
    packs = pack(items, bound, fullest_first=fullest_first)

    assert items == sorted((i for p in packs for i in p.items), key=lambda item: item.id)
    assert packs == pack(items[::-1], bound, fullest_first=fullest_first)
    for made in packs:
        budget = bound * BANDWIDTH * made.alone_s * (1 + 1e-9)
        assert made.slots <= SLOTS
        assert len(made.items) == 1 or made.volume_bytes <= budget
    lengths = [made.alone_s for made in packs]
    assert sorted(lengths, reverse=True) == lengths
    assert math.ceil(sum(i.slots for i in items) / SLOTS) <= len(packs) <= len(items)


@given(ITEMS, st.booleans())
def test_without_a_bound_or_with_one_that_no_volume_reaches_it_is_first_fit(items, fullest_first):
    silent = [item(i.id, i.slots, i.alone_s) for i in items]
    moved = sum(i.volume_bytes for i in items)
    shortest_s = min((i.alone_s for i in items), default=1.0)
    enough = max(1.0, 2.0 * moved / (BANDWIDTH * shortest_s))
    unbound = ids(pack(items, math.inf, fullest_first=fullest_first))

    assert unbound == ids(pack(silent, 1.0, fullest_first=fullest_first))
    assert unbound == ids(pack(items, enough, fullest_first=fullest_first))


@given(ITEMS)
def test_a_bound_that_every_volume_breaks_gives_each_job_its_own_pack(items):
    moving = [i for i in items if i.volume_bytes > 0.0]
    least = min((i.volume_bytes / (BANDWIDTH * i.alone_s) for i in moving), default=1.0)
    longest_s = max((i.alone_s for i in moving), default=1.0)
    shortest_s = min((i.alone_s for i in moving), default=1.0)

    assert len(moving) == len(pack(moving, least * shortest_s / longest_s))


def test_a_looser_bound_may_need_more_packs():
    """Packs(S) non-increasing in S, as one would think, does not hold: first fit has anomalies.

    With S = 0.3 the job of 9 s opens a pack of its own, which leaves room where the two short ones
    need it; with S = 0.5 it joins the first pack, and each of the others needs a new one.
    """
    jobs = [item(2, 1, 10.0, 4.0), item(0, 12, 9.0, 10.8), item(3, 10, 2.0, 4.0)]
    jobs.append(item(1, 4, 1.0, 0.4))

    assert [[2, 3, 1], [0]] == ids(pack(jobs, 0.3))
    assert [[2, 0], [3], [1]] == ids(pack(jobs, 0.5))


def test_the_fullest_pack_is_filled_first():
    jobs = [item(0, 10, 100.0, 200.0), item(1, 12, 90.0, 200.0), item(2, 3, 80.0)]

    assert [[0], [1, 2]] == ids(pack(jobs))
    assert [[0, 2], [1]] == ids(pack(jobs, fullest_first=False))


@given(st.integers(1, 400), st.integers(1, 40), st.integers(1, 7))
def test_a_volume_that_fits_exactly_fits_whatever_the_rounding(percent, bandwidth, jobs):
    """By equation 4 in whole numbers: equal is not too much, one part in a thousand more is."""

    def made(volume_bytes):
        return make_packs(
            [item(number, 1, 100.0, volume_bytes) for number in range(jobs + 1)],
            slots=SLOTS,
            stretch_bound=percent / 100.0,
            bandwidth_bytes_per_s=float(bandwidth),
        )

    share = percent * bandwidth / (jobs + 1)  # percent / 100 * bandwidth * 100 s, divided

    assert (1, 2) == (len(made(share)), len(made(share * 1.001)))


def test_a_job_larger_than_a_partition_is_refused_by_name_and_an_empty_pack_is_nothing():
    with pytest.raises(ValueError, match=r"job 7: needs 17 slots, a pack has 16"):
        pack([item(7, 17, 1.0)])
    empty = Pack(items=())
    assert (0, 0.0, 0.0) == (empty.slots, empty.alone_s, empty.volume_bytes)


# -- the longest first, where it ends first --------------------------------------------------------

LENGTHS = st.lists(st.integers(1, 50).map(float), max_size=9)


@pytest.mark.parametrize(
    ("lengths", "bins", "chosen"),
    [([4.0, 5.0, 3.0, 3.0], 2, (1, 0, 1, 0)), ([2.0, 2.0, 2.0, 2.0], 3, (0, 1, 2, 0))],
)
def test_equal_lengths_go_by_index_and_equal_loads_to_the_smaller_bin(lengths, bins, chosen):
    assert chosen == assign(lengths, bins)


@given(LENGTHS, st.integers(1, 4))
def test_lpt_places_each_pack_where_it_ends_first_within_grahams_bound_of_the_best(lengths, bins):
    """4/3 - 1/(3m) of the optimum, which is at least the mean load and the longest pack."""
    chosen = assign(lengths, bins)
    loads = [0.0] * bins
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        assert loads[chosen[index]] == min(loads)
        loads[chosen[index]] += lengths[index]
    best = optimum(sorted(lengths, reverse=True), [0.0] * bins)

    assert max(loads) <= best * (4 / 3 - 1 / (3 * bins)) + 1e-9


def optimum(lengths, so_far):
    """The least possible largest load, by trying all."""
    if not lengths:
        return max(so_far)
    found = math.inf
    for number in {load: number for number, load in enumerate(so_far)}.values():
        tried = list(so_far)
        tried[number] += lengths[0]
        found = min(found, optimum(lengths[1:], tried))
    return found


# -- running them ----------------------------------------------------------------------------------


class Desk:
    """A controller with rule pack; jobs start and end as the test says."""

    def __init__(self, machine, **parameters):
        self.state = State(machine)
        self.rules = rules_of(**parameters)
        self.controller = Controller(self.state, self.rules)
        self.now_s = 0.0

    def step(self, *events):
        """Which jobs start, and on which socket."""
        plan = self.controller.step(events)
        self.state.check()
        starts = [d for d in plan.decisions if isinstance(d, Start)]
        if starts:
            self.controller.step([started(self.now_s, d.job_id, d.attempt) for d in starts])
        return {d.job_id: d.partition for d in starts}

    def submit(self, *jobs):
        return self.step(*(submitted(made) for made in jobs))

    def end(self, *job_ids):
        self.now_s += 1.0
        return self.step(*(exited(self.now_s, i) for i in job_ids))

    def reasons(self, *job_ids):
        return [self.state.reason(JobId(job_id)).text for job_id in job_ids]


def rules_of(**parameters):
    return Rules(
        name="pack", admission=Rule(**parameters), placement=LeastIo(), regulation=Unregulated()
    )


def asked(job_id, *, hours=1.0, mb=None, cpus=1):
    walltime_s = None if hours is None else hours * 3600.0
    rate = None if mb is None else mb * 1.0 * MB
    return job(job_id, cpus=cpus, walltime_s=walltime_s, io_rate_bytes_per_s=rate)


def lasting(*hours):
    """Jobs 1, 2, ... that take so long."""
    return [asked(number, hours=each) for number, each in enumerate(hours, start=1)]


def with_capacity(machine, megabytes):
    capacity = None if megabytes is None else megabytes * 1.0 * MB
    disk = msgspec.structs.replace(machine.devices[0], capacity_bytes_per_s=capacity)
    return msgspec.structs.replace(machine, devices=(disk,))


AT_100 = {"bandwidth_bytes_per_s": 100.0 * MB}
STATIC = {"mapping": "static"}
THREE = [asked(i, mb=50) for i in (1, 2, 3)]
RUNS = {
    # machine, parameters, who comes, who starts, and who starts with the end of whom
    "what the socket carries, then the rest": (
        platform(4),
        AT_100,
        THREE,
        {1: 0, 2: 0},
        [(1, {}), (2, {3: 0})],
    ),
    "sockets share the storage": (platform(4, 4), AT_100, THREE, {1: 0, 2: 1}, [(2, {3: 1})]),
    "by CPUs without a bound": (
        platform(2),
        {"stretch_bound": None, "bandwidth_bytes_per_s": MB},
        THREE,
        {1: 0, 2: 0},
        [],
    ),
    "by CPUs without a bandwidth": (platform(2), {}, THREE, {1: 0, 2: 0}, []),
    "the capacity of devices counts": (with_capacity(platform(4), 60), {}, THREE[:2], {1: 0}, []),
    "who says nothing counts by CPUs": (
        platform(3),
        {"bandwidth_bytes_per_s": 50.0 * MB},
        [asked(1, mb=50), asked(2, hours=None), asked(3)],
        {1: 0, 2: 0, 3: 0},
        [],
    ),
    "long ones together, and first": (
        platform(2),
        {},
        lasting(1, 9, 2, 8),
        {2: 0, 4: 0},
        [(4, {}), (2, {1: 0, 3: 0})],
    ),
    "too large for any": (platform(2), {}, [asked(1, cpus=3), asked(2)], {2: 0}, []),
    "too large for one": (platform(2, 4), {}, [asked(1, cpus=4), asked(2)], {1: 1, 2: 0}, []),
    "the longest first": (platform(1, 1), {}, lasting(4, 3, 2, 2, 1), {1: 0, 2: 1}, []),
    "online to who is free first": (
        platform(1, 1),
        {},
        lasting(9, 8, 7, 6),
        {1: 0, 2: 1},
        [(1, {3: 0}), (3, {4: 0})],
    ),
    "static to its own": (
        platform(1, 1),
        STATIC,
        lasting(9, 8, 7, 6),
        {1: 0, 2: 1},
        [(1, {4: 0}), (4, {}), (2, {3: 1})],
    ),
}


@pytest.mark.parametrize(("machine", "options", "jobs", "starts", "ends"), RUNS.values(), ids=RUNS)
def test_packs_run_one_after_the_other(machine, options, jobs, starts, ends):
    desk = Desk(machine, **options)

    assert starts == desk.submit(*jobs)
    for job_id, then in ends:
        assert then == desk.end(job_id)


def test_jobs_that_come_later_wait_for_the_next_packs():
    desk = Desk(platform(2))
    desk.submit(asked(1, cpus=2), asked(2))
    desk.submit(asked(3, hours=50))

    told = "came after the packs were made; the next ones are made when these have begun"
    assert [told] == desk.reasons(3)
    assert [{2: 0}, {3: 0}] == [desk.end(1), desk.end(2)]


def test_a_cancelled_job_leaves_its_pack_and_an_empty_pack_is_none():
    desk = Desk(platform(2))
    desk.submit(*(asked(i, cpus=2) for i in (1, 2, 3)), asked(4), asked(5))
    desk.step(cancel(0.0, 2), cancel(0.0, 4))

    assert [{3: 0}, {5: 0}] == [desk.end(1), desk.end(3)]


def test_a_held_job_is_packed_anew_when_it_is_released():
    desk = Desk(platform(2))
    desk.submit(asked(1, cpus=2), asked(2), asked(3))
    desk.step(hold(0.0, 2))
    assert {3: 0} == desk.end(1)
    desk.step(release(1.0, 2))

    assert {2: 0} == desk.end(3)


def test_after_a_restart_what_runs_is_the_present_pack():
    desk = Desk(platform(2))
    desk.submit(asked(1), asked(2), asked(3), asked(4))
    desk.controller.use(desk.rules)

    assert [{}, {3: 0, 4: 0}] == [desk.end(1), desk.end(2)]


def test_a_start_that_failed_is_packed_anew():
    desk = Desk(platform(2))
    desk.controller.step([submitted(asked(1)), submitted(asked(2))])
    failed = ev.StartFailed(at_s=1.0, job_id=JobId(1), attempt=1, problem="no room")
    desk.controller.step([failed, started(1.0, 2)])
    desk.now_s = 2.0

    assert [{}, {1: 0}] == [desk.end(2), desk.step(timer(20.0))]


def test_who_waits_is_told_for_which_pack_and_which_job():
    desk, static = Desk(platform(1, 1)), Desk(platform(1, 1), **STATIC)
    several = Desk(platform(2))
    for each in (desk, static):
        each.submit(*lasting(9, 8, 7, 6, 5))
    several.submit(*lasting(2, 9, 1))

    ends = "socket 0 with the end of job 1, socket 1 with the end of job 2"
    assert [
        f"is in pack 3, the next to start, when a socket is free: {ends}",
        "is in pack 4, behind pack 3",
    ] == desk.reasons(3, 4)
    assert [
        "is in pack 3 of socket 1, behind what runs there, which ends with job 2",
        "is in pack 4 of socket 0, behind what runs there, which ends with job 1",
        "is in pack 5 of socket 0, behind pack 4",
    ] == static.reasons(3, 4, 5)
    assert several.reasons(3)[0].endswith("socket 0 with the end of job 2"), "it has most left"


JOBS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 9), st.none() | st.integers(1, 90)),
    min_size=1,
    max_size=14,
)


@given(
    jobs=JOBS,
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    mapping=st.sampled_from(["online", "static"]),
    late=st.integers(0, 13),
)
def test_all_that_start_at_one_time_have_ended_before_others_start_there(
    jobs, sizes, mapping, late
):
    work = [
        (
            0.0 if i < late else 2.5,
            JobSpec(
                command=("x",),
                cpus=min(cpus, max(sizes)),
                walltime_s=float(seconds),
                io_rate_bytes_per_s=None if rate is None else float(rate) * MB,
            ),
            Profile(steps=(Compute(seconds - 0.5),)),
        )
        for i, (cpus, seconds, rate) in enumerate(jobs)
    ]

    result = simulate(platform(*sizes), rules_of(**AT_100, mapping=mapping), work)

    assert all(made.state is JobState.COMPLETED for made in result.jobs)
    for made in result.jobs:
        for other in result.jobs:
            if made.partition == other.partition and made.started_s < other.started_s:
                assert made.ended_s <= other.started_s


@pytest.mark.parametrize(
    ("capacity_mb", "parameters", "warns"),
    [
        (None, {}, True),
        (None, AT_100, False),
        (None, {"stretch_bound": None}, False),
        (500, {}, False),
    ],
)
def test_it_warns_where_no_bandwidth_is_known(capacity_mb, parameters, warns):
    cautions = rules_of(**parameters).cautions(with_capacity(platform(4), capacity_mb))

    text = "no capacity is known, so packs are made by CPUs alone; set [admission] bandwidth"
    assert ((f"policy pack: {text}",) if warns else ()) == cautions
