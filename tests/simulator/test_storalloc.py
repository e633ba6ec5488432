"""StorAlloc's simulation: placing and replay by hand, its quirks, its figures, what it refuses."""

import gzip
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from storalloc_files import NEW_YEAR_S, ROWS, YAML, told

from iodaemon.core.measure import cohens_d, standard_deviation
from iodaemon.core.stock import split
from iodaemon.core.storage import StorageRequest
from iodaemon.errors import NotFound, RequestError
from iodaemon.registry import find_rule
from iodaemon.simulator.catalogue import load_experiment, with_parameters
from iodaemon.simulator.storalloc import (
    GB,
    NodeClass,
    Placing,
    decide,
    earliest_starts_s,
    layout,
    storage_of,
)
from iodaemon.simulator.storalloc_file import csv_lines, read_requests
from iodaemon.simulator.storalloc_replay import replay
from iodaemon.simulator.storalloc_run import Source, outcome_of, placing_of
from iodaemon.simulator.storalloc_trace import (
    FIRST_S,
    LARGE,
    SMALL,
    SPAN_S,
    Trace,
    draw_requests,
    ladder_gb,
)
from iodaemon.simulator.study import storalloc as study
from iodaemon.simulator.study import storalloc_hetero

DAY_S = 86_400
EXPERIMENTS = Path(__file__).parents[2] / "sim/experiments"


def wanted(gb, start, end, name="r"):
    return StorageRequest(
        id=name, size_bytes=round(gb * GB), start_s=float(start), end_s=float(end)
    )


def placing(name, **options):
    options.setdefault("block_bytes", 200 * GB)
    return Placing(rule=find_rule("allocation", name)(), **options)


ONE = storage_of([NodeClass(name="n", nodes=1, disks=1, capacity_bytes=1000 * GB)])
TWO = storage_of([NodeClass(name="n", nodes=1, disks=2, capacity_bytes=1000 * GB)])


def run(storage, requests, name="worst_fit", **options):
    return outcome_of(storage, placing(name, **options), requests, 1)


# -- by hand ---------------------------------------------------------------------------------------


def test_the_indicators_of_two_requests_on_one_disk_by_hand():
    """500 GB for 100 s, 250 GB (249.5 rounded up) for 100 s, 50 s of them together."""
    found = run(ONE, [wanted(500, 0, 100), wanted(249.5, 50, 150)], block_bytes=None)
    (disk,) = found.disks

    assert (750 * GB, 750 * GB, 2, 2) == (
        found.sum_cap,
        found.allocated_bytes,
        found.requests,
        found.parts,
    )
    assert (0.0, 150.0, 150.0) == (found.first_s, found.last_s, found.duration_s)
    assert 75.0 == disk.max_disk_use
    assert pytest.approx(100 * (500 * 100 + 250 * 100) / (1000 * 150)) == disk.mean_disk_use
    assert pytest.approx(200 / 150) == disk.mean_alloc
    assert (2, 2) == (disk.max_alloc, found.max_concurrent)
    assert 150.0 == disk.last_s
    # busy for 150 s, and 200 s of allocations share what it writes in them
    assert pytest.approx(2.93e9 * 150 / 200) == found.mean_bytes_per_s


ARTEFACT = {"bookkeeping": "artefact"}
DAY = wanted(100, 0, DAY_S + 3600)
AFTER = [wanted(600, 0, 100), wanted(600, 100, 200)]
OUTCOMES = {
    # on how many disks, who asks, by which rule and books, and what comes out
    "the parts of a split request go over the disks": (
        (TWO, [wanted(650, 0, 100)]),
        {},
        {"requests": 1, "parts": 4, "split": 1, "max_alloc": 2, "node_max_alloc": {"n0": 4}},
    ),
    "what does not fit when its time comes fails whole in correct books": (
        (ONE, [wanted(900, 0, 100), wanted(300, 50, 150)]),
        {},
        {"allocated_bytes": 900 * GB, "served_bytes": 900 * GB, "failed": 1, "failed_split": 1}
        | {"allocated": 1, "max_alloc": 5, "max_disk_use": 90.0},
    ),
    # of 500 GB one part of 200 fits beside 700; it is given back when the next does not
    "in artefact books parts that are given back count in the maxima": (
        (ONE, [wanted(700, 0, 100), wanted(500, 50, 150)]),
        ARTEFACT,
        {"allocated_bytes": 900 * GB, "served_bytes": 700 * GB, "failed": 1, "allocated": 1}
        | {"max_disk_use": 90.0, "max_alloc": 5, "mean_disk_use": pytest.approx(70.0)},
    ),
    "a request of a day and an hour": ((ONE, [DAY]), {}, {"last_s": DAY_S + 3600.0}),
    "the artefact holds it modulo a day": ((ONE, [DAY]), ARTEFACT, {"last_s": 3600.0}),
    "what ends when another begins makes room for it": ((ONE, AFTER), {}, {"failed": 0}),
    "but not in the artefact": ((ONE, AFTER), ARTEFACT, {"failed": 1}),
    "a delayed request holds its space for its whole length": (
        (ONE, [wanted(900, 0, 600), wanted(200, 300, 4000)], "balanced"),
        {"retries": True},
        {"delayed": 1, "requeued": 1, "delay_s": 300.0, "failed": 0, "last_s": 4300.0},
    ),
    "refused requests are counted with their parts": (
        (ONE, [wanted(1500, 0, 100), wanted(10, 0, 100)], "best_bandwidth"),
        {},
        {"refused": 1, "refused_parts": 8, "refused_split": 1, "failed": 0}
        | {"allocated_percent": pytest.approx(100 * 10 / 1510)},
    ),
}


@pytest.mark.parametrize(("asked", "options", "comes"), OUTCOMES.values(), ids=OUTCOMES)
def test_outcomes_by_hand(asked, options, comes):
    found = run(*asked, **options)

    for name, value in comes.items():
        of = found if hasattr(found, name) else found.disks[0]
        assert value == getattr(of, name), name


def test_platforms_are_those_of_table_3():
    for name, nodes, disks in (("1N1D", 1, 1), ("1NnD", 1, 8), ("nN1D", 8, 1), ("nNnD", 4, 2)):
        storage = layout(name, 32)

        assert (nodes, nodes * disks) == (len(storage.nodes), len(storage.disks))
        assert 32_000 * GB == storage.capacity_bytes
    assert 1.465e9 == layout("1N1D", 8).disks[0].write_bytes_per_s


# -- properties ------------------------------------------------------------------------------------


@st.composite
def several(draw):
    count = draw(st.integers(1, 12))
    begins = [draw(st.integers(0, 40)) for _ in range(count)]
    return [
        wanted(draw(st.integers(1, 1500)), at, at + draw(st.integers(1, 30)), str(number))
        for number, at in enumerate(begins)
    ]


@pytest.mark.parametrize("name", ["balanced", "best_bandwidth", "round_robin"])
@given(several())
def test_what_a_rule_with_correct_books_accepts_does_not_fail(name, requests):
    found = run(TWO, requests, name)

    assert 0 == found.failed
    assert all(disk.max_disk_use <= 100.0 for disk in found.disks)
    assert found.served_bytes == found.allocated_bytes
    assert found.requests == found.allocated + found.refused


@given(several(), st.sampled_from(["random", "worst_fit", "round_robin", "balanced"]))
def test_no_books_ever_hold_more_than_a_disk(requests, name):
    for books in ("correct", "artefact"):
        found = run(TWO, requests, name, bookkeeping=books)

        assert all(disk.max_disk_use <= 100.0 for disk in found.disks)
        assert found.requests == found.allocated + found.refused + found.failed
        assert found.served_bytes <= found.allocated_bytes <= found.sum_cap


@given(several(), st.randoms(use_true_random=False))
def test_the_order_of_decisions_does_not_matter_for_what_is_taken_in_time(requests, rng):
    """Where everything fits, totals and means are those of the requests alone."""
    huge = storage_of([NodeClass(name="n", nodes=2, disks=2, capacity_bytes=10**6 * GB)])
    decisions = decide(huge, placing("worst_fit"), requests, 1)
    mixed = rng.sample(decisions, len(decisions))

    first, second = replay(huge, decisions), replay(huge, mixed)

    assert first == second
    assert first.served_bytes == first.sum_cap


@given(several())
def test_requests_that_come_before_the_past_see_all_that_is_there(requests):
    """A file in no order: what is forgotten early enough changes nothing."""
    starts = earliest_starts_s(requests)

    assert [min(r.start_s for r in requests[at:]) for at in range(len(requests))] == starts
    assert run(TWO, requests, "balanced").failed == 0


# -- measures --------------------------------------------------------------------------------------


def test_cohens_d_by_hand():
    assert pytest.approx(2.0) == cohens_d([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    assert cohens_d([1.0, 1.0], [1.0, 1.0]) is None
    assert cohens_d([], [1.0]) is None
    assert pytest.approx(1.0) == standard_deviation([1.0, 2.0, 3.0])
    assert 0.0 == standard_deviation([1.0])


# -- the studies -----------------------------------------------------------------------------------

SOME_DAYS = Source(trace=msgspec.convert({"part": 0.03}, type=type(Source().trace)))


def test_all_256_configurations_are_run_and_ours_beside_them():
    tasks = study.Study().tasks([7])
    runs = [(task, retries) for task in tasks for retries in task.retries]

    assert 256 + 5 * 16 == len(runs)
    assert 256 == len({run for run in runs if run[0].books == "artefact"})
    assert {7} == {task.seed for task in tasks}


@pytest.mark.parametrize("rule", ["round_robin", "worst_fit"])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_run_with_requeuing_is_the_one_without_where_nothing_can_be_requeued(rule, is_split):
    small = study.Study(source=SOME_DAYS)
    task = study.Point(1, "artefact", rule, 8.0, "1N1D", is_split, (False, True))
    alone = small._outcome(task, retries=True)
    first, second = (row for row in small.run(task) if row["kind"] == "run")

    assert (0, 1) == (first["retries"], second["retries"])
    assert (alone.allocated_percent, alone.requeued, alone.delayed) == (
        second["allocated_percent"],
        second["requeued"],
        second["delayed"],
    )
    if rule == "worst_fit" or is_split:
        assert {**first, "retries": 1} == second


def test_a_study_gives_the_same_rows_for_a_seed_and_others_for_another():
    small = study.Study(
        source=SOME_DAYS, capacities_tb=(8.0,), layouts=("nNnD",), retries=(False,), splits=(True,)
    )
    ran = [[row for task in small.tasks([seed]) for row in small.run(task)] for seed in (1, 1, 2)]

    assert ran[0] == ran[1] != ran[2]
    values = small.measure(ran[0])
    assert {"S3-random", "S7", "C-8-balanced", "B-8-balanced"} <= values.keys()
    assert not {"S1-8", "S5-random", "S8", "S10"} & values.keys()
    names = [figure.name for figure in small.figures(ran[0])]
    assert ["figure-4-split-8TB", "figure-5", "figure-9"] == names
    assert 1 == len(small.summary(ran[0]))


def test_the_study_of_two_kinds_of_disks_tells_them_apart():
    small = storalloc_hetero.Study(source=SOME_DAYS)
    rows = [row for task in small.tasks([1]) for row in small.run(task)]
    values = small.measure(rows)

    assert 1.0 == values["S12-best_bandwidth"]
    assert values["S11-ratio"] > 1.5
    assert {"T5-2-random", "T5-4-worst_fit", "S11-balanced-correct"} <= values.keys()
    assert 10 == len(small.summary(rows))
    assert ["figure-10-mean", "figure-10-max", "figure-11"] == [f.name for f in small.figures(rows)]


TINY = {"trace": {"part": 0.01}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "missing"), [("storalloc", {"S2-32", "S2-64"}), ("storalloc-hetero", set())]
)
def test_every_value_has_a_target_and_every_target_a_value(name, missing):
    """All configurations on a few days of requests; effects have a value where disks differ."""
    file = load_experiment(name, search=(EXPERIMENTS,))
    whole = with_parameters(file, {**file.experiment.parameters, "source": TINY})
    values = whole.measure([row for task in whole.tasks([1]) for row in whole.run(task)])
    targets = {target.id for target in file.experiment.targets}

    assert set() == values.keys() - targets
    assert {id_ for id_ in targets - values.keys() if not id_.startswith("T5")} <= missing


# -- requests from files and from laws -------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    def write(text, name="requests.yml"):
        path = tmp_path / name
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


# -- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["requests.yml", "requests.yaml.gz"])
def test_requests_in_storallocs_yaml(write, name):
    """The larger of both counts; who moves nothing wants nothing."""
    found = read_requests(write(YAML, name))

    assert ROWS == told(found.requests)
    assert () == found.problems


def test_the_same_fields_as_csv_and_our_own_csv(write):
    text = (
        "id,startTime,endTime,writtenBytes,readBytes\n"
        "0,2020-01-01 01:00:00,2020-01-01 03:00:00,24068709827,12034354913\n"
        "1,2020-01-01 02:00:00,2020-01-01 02:30:00,0,450000000000\n"
    )
    found = read_requests(write(text, "r.csv"))
    own = read_requests(write("\n".join(csv_lines(found.requests)), "own.csv.gz"))

    assert ROWS == told(found.requests)
    assert found.requests == own.requests


DARSHAN = (
    "COBALT_JOBID,NPROCS,RUN_TIME,TOTAL_MPIIO_BYTES_READ,TOTAL_MPIIO_BYTES_WRITTEN,"
    "TOTAL_MPIIO_F_WRITE_TIME\n"
)
SCHEDULER = "COBALT_JOBID,QUEUED_TIMESTAMP,START_TIMESTAMP,END_TIMESTAMP,NODES_USED\n" + "".join(
    f"{job}.0,2020-01-01 00:00:00,2020-01-01 01:00:00,2020-01-01 02:00:00,8\n"
    for job in (1, 2, 3, 4)
)


def test_the_pair_of_theta_is_joined_and_filtered_as_it_was_published(write):
    """Much written, much read, or long in writing: one is enough. No bytes: no request."""
    text = DARSHAN + (
        "1,4,100,0,20e9,1\n"
        "2,4,100,10e9,0,0\n"
        "3,4,100,5,7,40\n"
        "4,4,100,9e9,9e9,39\n"
        "5,4,100,50e9,0,0\n"
        "1,0,100,50e9,0,0\n"
    )
    found = read_requests(write(text, "darshan.csv"), write(SCHEDULER, "djc.csv"))

    assert [("1", 20 * GB), ("2", 10 * GB), ("3", 7)] == [
        (r.id, r.size_bytes) for r in found.requests
    ]
    assert [(3600.0, 7200.0)] * 3 == [each[2:] for each in told(found.requests)]
    assert ["it has no START_TIMESTAMP", "NPROCS must be above 0"] == [
        problem.partition("left out: ")[2].removeprefix("RUN_TIME and ")
        for problem in found.problems
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.csv", "a,b\n1,2\n", "its columns are of no known kind"),
        ("r.csv", "id,size_bytes,start_s,end_s\n", "has no request"),
        ("r.csv", "id,size_bytes,start_s,end_s\n1,x,0,1\n", "size_bytes is 'x', no number"),
        ("r.csv", "id,size_bytes,start_s,end_s\n1,5,9,9\n", "its end is not after its start"),
        ("r.yml", "jobs: 3\n", "there is no list 'jobs'"),
        ("r.yml", "jobs:\n- id: 1\n", "entry 1 (id 1): left out: it has no writtenBytes"),
        ("r.yml", YAML.replace("2020-01-01 0", "yesterday "), "no time"),
        ("r.yml", "jobs: [1]\n", "r.yml: entry 1: left out: it has no"),
        ("r.yml", "a: 1\n  b: 2\n", "r.yml:2: mapping values are not allowed"),
        ("r.yml", "a: \a\n", "control characters are not allowed"),
        ("r.csv.gz", None, "cannot be read"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(write, name, text, message):
    path = write(text or "", name)
    if text is None:
        path.write_bytes(b"\x1f\x8bgarbage")

    with pytest.raises(RequestError) as caught:
        read_requests(path)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_files_and_a_missing_half_are_named(write, tmp_path):
    with pytest.raises(NotFound, match="does not exist"):
        read_requests(tmp_path / "none.yml")
    darshan = write(DARSHAN + "1,4,100,20e9,0,1\n", "darshan.csv")
    with pytest.raises(RequestError, match="name the scheduler's CSV"):
        read_requests(darshan)
    with pytest.raises(RequestError, match="no column START_TIMESTAMP, END_TIMESTAMP"):
        read_requests(darshan, write("COBALT_JOBID\n1\n", "djc.csv"))


def test_a_bad_entry_of_yaml_is_told_by_its_place_and_its_id(write):
    head, _, entry = YAML.partition("- id:")
    entry = "- id:" + entry.partition("- id:")[0]
    numbered = [entry.replace(entry.splitlines()[0], f"- id: {number}") for number in (5, 3, 2)]
    bad = numbered[2].replace("2020-01-01", "yesterday")
    found = read_requests(write(head + numbered[0] + numbered[1] + bad, "y.yml"))

    assert ["5", "3"] == [request.id for request in found.requests]
    assert 1 == len(found.problems)
    assert "y.yml: entry 3 (id 2): left out: " in found.problems[0]


# -- the substitute --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn():
    return draw_requests(Trace(), 1)


def test_the_substitute_has_the_published_counts_and_sums(drawn):
    whole = [-(-request.size_bytes // GB) for request in drawn]
    large = [gb for gb in whole if gb > 200]

    assert (24_001, 873, 1_629_931) == (len(drawn), len(large), sum(whole))
    bounds = [(200, 1000), (1000, 2000), (2000, 4000), (4000, 8000), (8000, 16_000)]
    classes = [[gb for gb in large if low < gb <= high] for low, high in bounds]
    assert [419, 237, 166, 6, 45] == [len(each) for each in classes]
    assert [217_475, 357_770, 368_690, 35_370, 563_140] == [sum(each) for each in classes]
    parts = sum(len(split(request.size_bytes, 200 * GB, GB)) for request in drawn)
    assert 31_160 == pytest.approx(parts, rel=0.01)


def test_the_substitute_has_the_published_concurrency_and_space(drawn):
    """2.895 at once on average, 183 at most; 386.6 GB on average, 29,178 at most."""
    held_s = sum(request.duration_s for request in drawn)
    space = sum(request.duration_s * request.size_bytes / GB for request in drawn)
    changes = sorted(
        change
        for request in drawn
        for change in (
            (request.start_s, 1, request.size_bytes / GB),
            (request.end_s, -1, -request.size_bytes / GB),
        )
    )
    count = used = most = most_used = 0
    for _, step, gb in changes:
        count, used = count + step, used + gb
        most, most_used = max(most, count), max(most_used, used)

    assert 2.895 == pytest.approx(held_s / SPAN_S, rel=0.08)
    assert 386.6 == pytest.approx(space / SPAN_S, rel=0.12)
    assert 183 == pytest.approx(most, rel=0.15)
    assert 26_000 < most_used < 30_500


def test_the_substitute_is_the_same_for_a_seed_in_order_and_within_the_year(drawn):
    small = Trace(part=0.05)
    assert draw_requests(small, 1) == draw_requests(small, 1) != draw_requests(small, 2)
    starts = [request.start_s for request in drawn]
    assert starts == sorted(starts)
    assert FIRST_S <= starts[0]
    assert max(request.end_s for request in drawn) <= FIRST_S + SPAN_S + 1
    assert all(30.0 <= request.duration_s <= 86_400.0 for request in drawn)
    assert all(float(request.start_s).is_integer() for request in drawn)


@pytest.mark.parametrize("kind", [SMALL, *LARGE], ids=lambda kind: f"{kind.most_gb:g}")
def test_a_ladder_rises_within_its_class_to_its_sum(kind):
    sizes = ladder_gb(kind)

    assert kind.count == len(sizes)
    assert kind.sum_gb == sum(map(math.ceil, sizes))
    assert kind.least_gb <= sizes[0]
    assert sizes[-1] <= kind.most_gb


def test_a_part_of_the_substitute_is_as_dense():
    small = draw_requests(Trace(part=0.1), 3)

    assert len(small) == pytest.approx(2400, rel=0.02)
    assert max(request.end_s for request in small) < FIRST_S + 0.11 * SPAN_S
    with pytest.raises(ValueError, match="part is 0;"):
        Trace(part=0.0)
    with pytest.raises(ValueError, match="too short a time"):
        Trace(part=0.001)


# -- one run by hand -------------------------------------------------------------------------------


def test_figures_by_hand_are_the_same_to_the_printed_digit(write):
    """25 GB for 2 h on one disk; 200 beside it, 250 on the other for half an hour."""
    kind = NodeClass(name="node", nodes=1, disks=2, capacity_bytes=4000 * GB)
    placing = placing_of(
        "round_robin", {}, block_bytes=200 * GB, bookkeeping="artefact", retries=True
    )
    found = outcome_of(storage_of([kind]), placing, read_requests(write(YAML)).requests, 1)

    assert [(3 * 3600, 5.625, 2, 1.875, 1.25), (2.5 * 3600, 6.25, 2, 1.562, 0.5)] == [
        (
            disk.last_s - NEW_YEAR_S,
            disk.max_disk_use,
            disk.max_alloc,
            round(disk.mean_disk_use, 3),
            disk.mean_alloc,
        )
        for disk in found.disks
    ]
    assert (4, 0, 4) == (found.parts, found.failed, found.max_concurrent)
    assert (7200.0, 475 * GB) == (found.duration_s, found.allocated_bytes)
    assert [4] == list(found.node_max_alloc.values())
