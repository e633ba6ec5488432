"""The workload of EquilibrIO: what a seed gives, and what each field of it changes."""

import random
from itertools import pairwise

import msgspec
import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.errors import NotFound, RequestError
from iodaemon.simulator.cluster import Cluster
from iodaemon.simulator.equilibrio import (
    HIGH_BYTES_PER_S,
    HIGH_SHARE,
    Mix,
    draw_workload,
    hinted_places,
    scaled,
)
from iodaemon.simulator.record import COLUMNS, SIZE_CLASSES, Record, draw_record, read_records

CLUSTER = Cluster()
SMALL = Mix(low_jobs=200, peaks=2, peak_jobs=10)


def record(nodes=128, run_s=1000.0, walltime_s=3600.0, share=0.01, rate=4e9):
    return Record(
        nodes=nodes, run_s=run_s, walltime_s=walltime_s, io_share=share, io_bytes_per_s=rate
    )


def test_by_default_it_is_the_size_of_the_published_one():
    jobs = draw_workload(Mix(), CLUSTER, 7)

    high = [job for job in jobs if job.is_high]
    assert (len(jobs), len(high)) == (5160, 160)
    assert all(job.io_share >= HIGH_SHARE for job in high)
    assert all(job.io_bytes_per_s >= HIGH_BYTES_PER_S for job in high)
    assert {job.nodes for job in high} == {16, 32, 64}
    assert all(a.submit_s <= b.submit_s for a, b in pairwise(jobs))


def test_the_load_is_met_while_the_low_jobs_come():
    jobs = draw_workload(msgspec.structs.replace(SMALL, arrivals="even"), CLUSTER, 7)

    work = sum(job.nodes * job.run_s for job in jobs)
    last_s = max(job.submit_s for job in jobs if not job.is_high)
    span_s = last_s * 200 / 199.5
    assert work / (CLUSTER.nodes * span_s) == pytest.approx(1.05)


def test_waves_come_all_at_once_or_over_a_time():
    at_once = [
        job.submit_s
        for job in draw_workload(msgspec.structs.replace(SMALL, peak_s=0.0), CLUSTER, 7)
        if job.is_high
    ]
    spread = [job.submit_s for job in draw_workload(SMALL, CLUSTER, 7) if job.is_high]

    assert len(set(at_once)) == 2
    assert len(set(spread)) == 20
    assert max(spread[:10]) - min(spread[:10]) <= 600.0


def test_jobs_may_come_in_batches():
    batches = msgspec.structs.replace(SMALL, arrivals="batches", batch=20.0, peaks=0)

    times = {job.submit_s for job in draw_workload(batches, CLUSTER, 7)}

    assert 2 < len(times) < 40


def test_a_record_is_brought_to_the_size_of_the_cluster():
    job = scaled(record(nodes=130, run_s=9000.0, rate=8e9), SMALL, CLUSTER)

    assert (job.nodes, job.run_s, job.walltime_s) == (33, 7200.0, 7200.0)
    assert (job.io_share, job.io_bytes_per_s) == (0.01, 2e9)
    assert scaled(record(nodes=1, rate=1e12), SMALL, CLUSTER).io_bytes_per_s == 10e9
    assert scaled(record(nodes=9999), SMALL, CLUSTER).nodes == CLUSTER.nodes
    assert scaled(record(walltime_s=None), SMALL, CLUSTER).walltime_s is None
    assert scaled(record(share=None, rate=None), SMALL, CLUSTER).io_share is None
    assert scaled(record(share=0.0, rate=None), SMALL, CLUSTER).does_io is False


def test_records_with_high_io_are_not_among_the_low_jobs():
    records = (record(share=0.2, rate=50e9), record(nodes=4))

    jobs = draw_workload(SMALL, CLUSTER, 7, records=records)

    assert {1} == {job.nodes for job in jobs if not job.is_high}


def test_more_knowledge_holds_less():
    known = [hinted_places(100, part, 7) for part in (0.0, 0.1, 0.25, 0.7, 1.0)]

    assert [len(each) for each in known] == [0, 10, 25, 70, 100]
    assert all(less < more for less, more in pairwise(known))
    assert known[1] != hinted_places(100, 0.1, 8)
    assert known[1] != hinted_places(100, 0.1, 7, draw=1)


@settings(max_examples=tries(30))
@given(
    st.integers(0, 10**6),
    st.integers(1, 40),
    st.integers(0, 3),
    st.sampled_from(["poisson", "batches", "even"]),
    st.integers(1, 64),
)
def test_every_job_fits_the_cluster(seed, low, peaks, arrivals, nodes):
    mix = Mix(low_jobs=low, peaks=peaks, peak_jobs=3, arrivals=arrivals)
    cluster = Cluster(nodes=nodes)

    jobs = draw_workload(mix, cluster, seed)

    assert len(jobs) == low + 3 * peaks
    for job in jobs:
        assert 1 <= job.nodes <= nodes
        assert job.io_bytes_per_s <= cluster.fastest_bytes_per_s(job.nodes)
        assert cluster.io_alone_s(job) == pytest.approx(job.run_s * job.io_share)


# -- records of real jobs --------------------------------------------------------------------------

HEAD = "id,submit,nodes,runtime,walltime,read,written,rt,wt,mt,nprocs,runs"
GOOD = "7,2022-09-12 13:39:45,512,3527,3600,30000,10000,60,30,10,10,1"


@pytest.fixture
def table(tmp_path):
    """Write a CSV file; its path."""

    def write(*lines):
        path = tmp_path / "jobs.csv"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def test_io_is_the_mean_over_the_ranks(table):
    """100 s over 10 ranks are 10 s, of 3,527 s; 40,000 bytes in them are 4,000 bytes/s."""
    read = read_records(table(HEAD, GOOD))

    assert read.problems == ()
    assert read.records == (
        Record(
            nodes=512, run_s=3527.0, walltime_s=3600.0, io_share=10 / 3527, io_bytes_per_s=4000.0
        ),
    )


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("1,x,,3527,3600,1,1,1,1,1,10,1", "left out: nodes is empty"),
        ("1,x,2.5,3527,3600,1,1,1,1,1,10,1", "left out: nodes is 2.5, no whole number"),
        ("1,x,2,0,3600,1,1,1,1,1,10,1", "left out: runtime is 0"),
        ("1,x,2,long,3600,1,1,1,1,1,10,1", "left out: runtime is 'long', no number"),
    ],
)
def test_a_row_that_is_no_job_costs_that_row_alone(table, row, problem):
    path = table(HEAD, row, GOOD)
    read = read_records(path)

    assert len(read.records) == 1
    assert read.problems == (f"{path}:2: {problem}",)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("1,x,2,100,3600,1,1,1,1,1,,1", "I/O not known: nprocs is empty"),
        ("1,x,2,100,3600,-1,1,1,1,1,10,1", "I/O not known: a count below 0, or no ranks"),
        ("1,x,2,100,3600,5,5,0,0,0,10,1", "I/O not known: 10 bytes were moved in no time"),
        ("1,x,2,100,3600,1,1,9000,1,1,10,1", "I/O not known: 900.2 s in I/O, of a runtime of 100"),
    ],
)
def test_a_job_whose_io_makes_no_sense_is_one_whose_io_is_not_known(table, row, problem):
    (record,) = read_records(table(HEAD, row)).records
    (told,) = read_records(table(HEAD, row)).problems

    assert (record.nodes, record.run_s, record.io_share) == (2, 100.0, None)
    assert problem in told


def test_a_walltime_may_be_unknown_and_a_job_may_do_no_io(table):
    (record,) = read_records(table(HEAD, "1,x,2,100,,0,0,0,0,0,10,1")).records
    (problem,) = read_records(table(HEAD, "1,x,2,100,,0,0,0,0,0,10,1")).problems

    assert (record.walltime_s, record.io_share, record.io_bytes_per_s) == (None, 0.0, None)
    assert problem.endswith(":2: walltime not known: walltime is empty")


def test_a_file_that_is_none_is_refused_in_a_line(table, tmp_path):
    with pytest.raises(RequestError, match="no column runtime, nprocs; needed are nodes, runtime"):
        read_records(table("nodes,walltime,read,written,rt,wt,mt", "1,1,1,1,1,1,1"))
    with pytest.raises(RequestError, match=r"no row of it is a job$"):
        read_records(table(HEAD))
    with pytest.raises(RequestError, match=r"no row of it is a job; .*jobs.csv:2: left out"):
        read_records(table(HEAD, "1"))
    with pytest.raises(NotFound, match=r"none.csv does not exist"):
        read_records(tmp_path / "none.csv")
    (tmp_path / "jobs.csv").write_bytes(b"\xff\x00\xfe")
    with pytest.raises(RequestError, match="cannot be read"):
        read_records(tmp_path / "jobs.csv")


def test_what_lacking_columns_would_say_is_not_known_of_any_job(table):
    read = read_records(table("nodes,runtime,read,written,rt,wt,mt", "1,10,1,1,1,1,1", "2,20"))

    assert [Record(nodes=1, run_s=10.0), Record(nodes=2, run_s=20.0)] == list(read.records)
    assert [
        "no column walltime; the walltime of no job",
        "no column nprocs; the I/O of no job",
    ] == [problem.partition(": ")[2].removesuffix(" is known") for problem in read.problems]


@given(st.lists(st.text(max_size=30), max_size=6))
def test_no_text_is_worse_than_a_file_that_is_refused(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("csv") / "any.csv"
    path.write_text("\n".join([",".join(COLUMNS), *lines]), encoding="utf-8", errors="replace")

    try:
        read = read_records(path)
    except RequestError:
        return
    assert read.records


# -- laws ------------------------------------------------------------------------------------------


def quantile(values, part):
    held = sorted(values)
    return held[int(part * len(held))]


def test_drawn_jobs_are_like_those_of_theta():
    """Quantiles of 2,794 jobs of 2022; the laws were fitted to them, so this holds them still."""
    rng = random.Random(5)
    drawn = [draw_record(rng) for _ in range(20_000)]

    nodes = [each.nodes for each in drawn]
    run_s = [each.run_s for each in drawn]
    share = [each.io_share for each in drawn]
    intensity = [each.io_share * min(4e10, each.io_bytes_per_s) for each in drawn]

    assert [quantile(nodes, part) for part in (0.25, 0.5, 0.75, 0.9)] == [8, 128, 128, 512]
    assert quantile(run_s, 0.5) == pytest.approx(2356, rel=0.2)
    assert quantile(run_s, 0.75) == pytest.approx(6524, rel=0.2)
    assert quantile(share, 0.5) == pytest.approx(0.0009, rel=0.5)
    assert quantile(share, 0.9) == pytest.approx(0.049, rel=0.3)
    assert quantile(share, 0.95) == pytest.approx(0.094, rel=0.3)
    assert sum(intensity) / len(intensity) == pytest.approx(4 * 0.027e9, rel=0.25)
    assert sum(each.part for each in SIZE_CLASSES) == pytest.approx(1.0)


@given(st.integers())
def test_whatever_is_drawn_is_a_job(seed):
    record = draw_record(random.Random(seed))

    assert record.nodes >= 1
    assert 0.0 < record.run_s <= record.walltime_s
    assert 0.0 < record.io_share <= 1.0
    assert record.io_bytes_per_s > 0.0
