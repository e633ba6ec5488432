"""The workload of EquilibrIO: what a seed gives, and what each field of it changes."""

from itertools import pairwise

import msgspec
import pytest
from exploring import tries
from hypothesis import given, settings
from hypothesis import strategies as st

from iodaemon.simulator.cluster import Cluster
from iodaemon.simulator.equilibrio import (
    HIGH_BYTES_PER_S,
    HIGH_SHARE,
    Mix,
    draw_workload,
    hinted_places,
    scaled,
)
from iodaemon.simulator.record import Record

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


def test_records_of_high_io_alone_make_no_workload():
    with pytest.raises(ValueError, match="next to no jobs with low or medium"):
        draw_workload(SMALL, CLUSTER, 7, records=(record(share=0.2, rate=50e9),))


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
