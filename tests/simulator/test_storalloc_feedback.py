"""StorAlloc with feedback: lives by hand, what always holds, and the study."""

import math
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.job import DiskId
from iodaemon.core.storage import StorageRequest
from iodaemon.registry import find_rule
from iodaemon.simulator.catalogue import load_experiment, with_parameters
from iodaemon.simulator.storalloc import GB, NodeClass, Placing, decide, storage_of
from iodaemon.simulator.storalloc_feedback import Pool, Stream, Way
from iodaemon.simulator.storalloc_feedback_run import (
    ComputeNodes,
    draw_nodes,
    live,
    lives,
    peak_bytes,
    run_stretch,
    storage_of_rate,
    stretch,
)
from iodaemon.simulator.storalloc_replay import replay

EXPERIMENTS = Path(__file__).parents[2] / "sim/experiments"
RULES = ("random", "round_robin", "worst_fit", "best_bandwidth", "balanced")


def wanted(gb, start, end, name="r"):
    return StorageRequest(
        id=name, size_bytes=round(gb * GB), start_s=float(start), end_s=float(end)
    )


def placing(name, **options):
    options.setdefault("block_bytes", 200 * GB)
    return Placing(rule=find_rule("allocation", name)(), **options)


def disks(count, *, gb=1000, rate=1.0):
    kind = NodeClass(
        name="n",
        nodes=1,
        disks=count,
        capacity_bytes=gb * GB,
        read_bytes_per_s=rate * GB,
        write_bytes_per_s=rate * GB,
    )
    return storage_of([kind])


def run(storage, requests, way, *, rule="balanced", nodes=None):
    return live(storage, placing(rule), way, requests, nodes or [1] * len(requests), 1)


# -- lives by hand ---------------------------------------------------------------------------------


FIXED = {"has_feedback": False}
LIVES = {
    # what each asks for, in which way and on how many nodes, and when they begin and end
    "two that write at once end later: 100 GB in 100 s each at 1 GB/s, all of it I/O": (
        [wanted(100, 0, 100)] * 2,
        (Way(io_part=1.0), None),
        ([0, 0], [200, 200]),
    ),
    "they compute first and meet only in their I/O, of the last 100 s: 50 s alone, then half": (
        [wanted(100, 0, 1000), wanted(100, 50, 1050)],
        (Way(io_part=0.1), None),
        ([0, 50], [1050, 1100]),
    ),
    "in two turns of 50 s computing and 50 s I/O, each at half speed beside the other": (
        [wanted(100, 0, 200)] * 2,
        (Way(io_part=0.5, cycles=2), None),
        ([0, 0], [300, 300]),
    ),
    "those on the file system share it": (
        [wanted(2000, 0, 100)] * 2,
        (Way(io_part=1.0, fallback_bytes_per_s=20.0 * GB), None),
        ([0, 0], [200, 200]),
    ),
    "three of one node on two: the third begins when the first two have ended, late": (
        [wanted(100, 0, 100), wanted(100, 0, 100), wanted(100, 10, 110)],
        (Way(io_part=1.0, admission="apart", nodes=2), None),
        ([0, 0, 200], [200, 200, 300]),
    ),
    # the head waits for 3 nodes until 100; of one node, 50 s end before, 500 s do not
    "backfill begins early what does not touch the promise": (
        [wanted(1, 0, 100), wanted(1, 1, 101), wanted(1, 2, 502), wanted(1, 3, 53)],
        (Way(**FIXED, admission="apart", nodes=3), [2, 3, 1, 1]),
        ([0, 100, 200, 3], [100, 200, 700, 53]),
    ),
    # the head waits for 900 GB until 100; 400 GB for long would take them
    "space is promised to the head as nodes are": (
        [wanted(500, 0, 100), wanted(900, 1, 51), wanted(400, 2, 302), wanted(400, 3, 53)],
        (Way(**FIXED, admission="together", nodes=9), None),
        ([0, 100, 150, 3], [100, 150, 450, 53]),
    ),
}


@pytest.mark.parametrize(("requests", "how", "times"), LIVES.values(), ids=LIVES)
def test_lives_by_hand(requests, how, times):
    way, nodes = how
    jobs = run(disks(1), requests, way, nodes=nodes)

    assert times[0] == [job.started_s for job in jobs]
    assert pytest.approx(times[1]) == [job.ended_s for job in jobs]


def test_the_stretch_counts_the_wait_and_the_one_of_a_run_does_not():
    requests = [wanted(100, 0, 100), wanted(100, 0, 100), wanted(100, 10, 110)]
    way = Way(io_part=1.0, admission="apart", nodes=2)
    jobs = run(disks(1), requests, way)

    assert [2.0, 2.0] == [run_stretch(job) for job in jobs[:2]]
    assert pytest.approx(2.9) == stretch(jobs[2])


def test_who_ends_later_holds_its_space_and_the_next_one_goes_to_the_file_system():
    """600 GB are free again after 100 s as recorded, after 105 s in truth."""
    requests = [wanted(600, 0, 100), wanted(30, 0, 100), wanted(500, 102, 202)]
    way = Way(io_part=1.0, fallback_bytes_per_s=math.inf)
    fixed, jobs = (
        run(disks(1, rate=6.0), requests, each)
        for each in (msgspec.structs.replace(way, has_feedback=False), way)
    )

    assert ["served", "served", "served"] == [job.fate for job in fixed]
    assert 105.0 == pytest.approx(jobs[0].ended_s)
    assert ["served", "served", "refused"] == [job.fate for job in jobs]
    assert 202.0 == jobs[2].ended_s


def test_apart_falls_back_where_together_waits():
    requests = [wanted(900, 0, 100), wanted(900, 10, 60)]
    fates = {}
    for admission in ("apart", "together"):
        way = Way(has_feedback=False, admission=admission, nodes=2)
        fates[admission] = [
            (job.fate, job.started_s, job.ended_s) for job in run(disks(1), requests, way)
        ]

    assert ("refused", 10.0, 60.0) == fates["apart"][1]
    assert ("served", 100.0, 150.0) == fates["together"][1]


def test_together_sends_away_what_the_storage_can_never_hold():
    requests = [wanted(10, 0, 100), wanted(1100, 10, 60), wanted(990, 20, 70)]
    way = Way(has_feedback=False, admission="together", nodes=5)
    jobs = run(disks(1), requests, way, rule="round_robin")

    # 1100 GB are more than there is; 990 fit, and four whole blocks with the rest do so here
    assert [0.0, 10.0, 100.0] == [job.started_s for job in jobs]
    assert ["served", "refused", "served"] == [job.fate for job in jobs]


# -- what always holds -----------------------------------------------------------------------------


@st.composite
def several(draw):
    count = draw(st.integers(1, 12))
    begins = sorted(draw(st.integers(0, 40)) for _ in range(count))
    return [
        wanted(draw(st.integers(1, 1500)), at, at + draw(st.integers(1, 30)), str(number))
        for number, at in enumerate(begins)
    ]


@given(several(), st.sampled_from(RULES), st.integers(1, 4), st.sampled_from([0.01, 0.1, 1 / 3, 1]))
def test_without_contention_feedback_changes_nothing_to_the_last_digit(
    requests, rule, cycles, io_part
):
    endless = storage_of_rate(disks(2), math.inf)
    way = Way(fallback_bytes_per_s=math.inf, cycles=cycles, io_part=io_part)
    fixed = msgspec.structs.replace(way, has_feedback=False)

    assert lives(run(endless, requests, fixed, rule=rule)) == lives(
        run(endless, requests, way, rule=rule)
    )


@given(several(), st.sampled_from(RULES))
def test_without_feedback_places_are_those_of_placing_and_replay(requests, rule):
    storage = disks(2)
    decisions = decide(storage, placing(rule), requests, 1)
    outcome = replay(storage, decisions)
    jobs = run(storage, requests, Way(has_feedback=False), rule=rule)

    if not outcome.failed:
        assert [[part.disk for part in each.placed.parts] for each in decisions] == [
            [part.disk for part in job.parts] for job in jobs
        ]
        served = [job for job in jobs if job.fate == "served"]
        assert outcome.served_bytes == sum(sum(job.sizes) for job in served)
        assert outcome.last_s == max((job.ended_s for job in served), default=outcome.last_s)


@given(
    several(),
    st.sampled_from(RULES),
    st.sampled_from(["open", "apart", "together"]),
    st.booleans(),
    st.data(),
)
def test_every_job_ends_and_nodes_and_disks_are_never_overdrawn(
    requests, rule, admission, has_feedback, data
):
    nodes = [data.draw(st.integers(1, 4)) for _ in requests]
    way = Way(
        admission=admission,
        nodes=4,
        has_feedback=has_feedback,
        io_part=0.5,
        volume=3.0,
        fallback_bytes_per_s=50.0 * GB,
    )
    jobs = run(disks(2, rate=20.0), requests, way, rule=rule, nodes=nodes)

    changes = defaultdict(list)
    for job in jobs:
        assert job.request.start_s <= job.started_s < job.ended_s < math.inf
        assert job.ended_s >= job.started_s + job.request.duration_s - 1e-9
        assert (job.fate == "served") == bool(job.parts)
        held = [("nodes", job.nodes, 4)] if admission != "open" else []
        held += [(part.disk, part.size_bytes, 1000 * GB) for part in job.parts]
        for what, size, most in held:
            changes[what, most] += [(job.started_s, size), (job.ended_s, -size)]
    for (_, most), of_one in changes.items():
        taken = 0
        for _, size in sorted(of_one):
            taken += size
            assert taken <= most
    assert peak_bytes([job for job in jobs if job.parts]) <= 2000 * GB


# -- the study -------------------------------------------------------------------------------------

TINY = {"trace": {"part": 0.01}}


def test_nodes_are_powers_of_two_in_their_range_and_those_of_the_seed():
    requests = [wanted(gb, 0, 10) for gb in (1, 500) * 50]
    drawn = draw_nodes(ComputeNodes(), requests, 3)

    assert (
        drawn == draw_nodes(ComputeNodes(), requests, 3) != draw_nodes(ComputeNodes(), requests, 4)
    )
    assert set(drawn[::2]) <= {2**n for n in range(8)}
    assert {64, 128, 256} == set(drawn[1::2])


@pytest.mark.slow
def test_every_value_has_a_target_and_every_target_a_value():
    """All of it on a few days of requests; what must hold holds."""
    file = load_experiment("storalloc-feedback", search=(EXPERIMENTS,))
    whole = with_parameters(file, {**file.experiment.parameters, "source": TINY})
    rows = [row for task in whole.tasks([1]) for row in whole.run(task)]
    values = whole.measure(rows)

    assert {target.id for target in file.experiment.targets} == values.keys()
    judged = [target for target in file.experiment.targets if target.has_band]
    assert {"pass"} == {target.verdict(values[target.id]) for target in judged}
    assert 7 == len(judged)
    assert {"cases", "served-fixed", "served-open", "run-together"} <= {
        figure.name for figure in whole.figures(rows)
    }
    assert len({(row["case"], row["rule"], row["tb"]) for row in rows}) < len(whole.summary(rows))


# -- streams to the disks of a node ----------------------------------------------------------------

A, B = DiskId("a"), DiskId("b")


def stream(disk, pace, *, full=10.0, weight=1):
    return Stream(None, disk, pace_bytes_per_s=pace, weight=weight, full_s=full)


def pool(*streams, a=10.0, b=10.0, link=100.0):
    made = Pool({A: a, B: b}, link)
    made.advance(0.0)
    made.add(streams)
    made.settle()
    return made


def test_work_that_was_lost_moves_the_end_and_what_comes_after_is_at_full_speed():
    """Both at half speed until the shorter one is done, 20 s; the other has lost 10 s by then."""
    short, long = stream(A, 10.0, full=10.0), stream(A, 10.0, full=30.0)
    shared = pool(short, long)

    assert (20.0, True) == (shared.next_s, shared.is_contended)
    shared.advance(15.0)
    assert pytest.approx(37.5) == shared.full_s(long, 15.0)
    shared.advance(20.0)
    assert [short] == shared.take_ended()
    shared.settle()
    assert (40.0, False, 1.0) == (shared.next_s, shared.is_contended, long.speed)


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.integers(1, 50), st.integers(1, 4)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_sharing_is_max_min_fair(wants, a, b, link):
    """Nobody can get more but from one who has no more by weight, on a full disk or link."""
    streams = [stream(disk, float(pace), weight=weight) for disk, pace, weight in wants]
    pool(*streams, a=float(a), b=float(b), link=float(link))
    rates = {each: each.speed * each.pace_bytes_per_s for each in streams}
    through = {name: [s for s in streams if s.disk == name] for name in (A, B)}
    through[None] = streams
    sizes = {A: a, B: b, None: link}
    full = {n: sum(rates[s] for s in ss) >= sizes[n] * (1 - 1e-9) for n, ss in through.items()}

    assert all(0.0 < each.speed <= 1.0 for each in streams)
    assert all(
        sum(rates[s] for s in ss) <= sizes[name] * (1 + 1e-9) for name, ss in through.items()
    )
    for each in streams:
        if each.speed < 1.0 - 1e-9:
            level = rates[each] / each.weight
            most = [
                max(rates[s] / s.weight for s in through[name])
                for name in (each.disk, None)
                if full[name]
            ]
            assert any(level >= other - 1e-9 * other for other in most)
