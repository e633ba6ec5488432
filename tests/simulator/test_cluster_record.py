"""Records of real jobs are read as far as they make sense; else jobs like them are drawn."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.errors import NotFound, RequestError
from iodaemon.simulator.record import COLUMNS, SIZE_CLASSES, Record, draw_record, read_records

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
        ("1,x,-2,3527,3600,1,1,1,1,1,10,1", "left out: nodes is -2"),
        ("1,x,2,0,3600,1,1,1,1,1,10,1", "left out: runtime is 0"),
        ("1,x,2,long,3600,1,1,1,1,1,10,1", "left out: runtime is 'long', no number"),
        ("1,x,2,nan,3600,1,1,1,1,1,10,1", "left out: runtime is nan"),
        ("1", "left out: nodes is empty"),
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
        ("1,x,2,100,3600,1,1,1,1,1,0,1", "I/O not known: a count below 0, or no ranks"),
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
