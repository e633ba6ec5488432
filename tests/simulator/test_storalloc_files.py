"""Requests from files and from laws, and figures of one run by hand."""

import gzip
import math

import pytest
from storalloc_files import NEW_YEAR_S, ROWS, YAML, told

from iodaemon.core.stock import split
from iodaemon.errors import NotFound, RequestError
from iodaemon.simulator.storalloc import GB, NodeClass, storage_of
from iodaemon.simulator.storalloc_file import csv_lines, read_requests
from iodaemon.simulator.storalloc_run import outcome_of, placing_of
from iodaemon.simulator.storalloc_trace import (
    FIRST_S,
    LARGE,
    SMALL,
    SPAN_S,
    Trace,
    draw_requests,
    ladder_gb,
)


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
        ("r.csv", "id,size_bytes,start_s,end_s\n1,-5,0,9\n", "-5 bytes are no size"),
        ("r.csv", "id,size_bytes,start_s,end_s\n1,nan,0,9\n", "nan bytes are no size"),
        ("r.yml", "jobs: 3\n", "there is no list 'jobs'"),
        ("r.yml", "jobs:\n- id: 1\n", "entry 1 (id 1): left out: it has no writtenBytes"),
        ("r.yml", "jobs:\n- use: 1\n", "r.yml: entry 1: left out: it has no"),
        ("r.yml", YAML.replace("2020-01-01 0", "yesterday "), "no time"),
        ("r.yml", "jobs: [1]\n", "r.yml: entry 1: left out: it has no"),
        ("r.yml", "jobs\n", "there is no list 'jobs'"),
        ("r.yml", "a: 1\n  b: 2\n", "r.yml:2: mapping values are not allowed"),
        ("r.yml", "a: *x\n", "r.yml:1: found undefined alias"),
        ("r.yml", "a: \a\n", "control characters are not allowed"),
        ("r.yml", "", "there is no list 'jobs'"),
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
