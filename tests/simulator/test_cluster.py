"""A cluster of compute nodes with one file system, by hand-computed times."""

import csv
import math
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iodaemon.core.job import JobSpec
from iodaemon.core.rule import Rules
from iodaemon.model.profile import Compute, Profile
from iodaemon.policy.admission import equilibrio, fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import none
from iodaemon.simulator.cluster import Cluster, ClusterJob, run_cluster, submission
from iodaemon.simulator.run import simulate

FCFS = Rules(name="fcfs", admission=fcfs.Rule(), placement=least_io.Rule(), regulation=none.Rule())
GB = 1e9
SMALL = Cluster(nodes=4, file_system_bytes_per_s=12 * GB, node_bytes_per_s=4 * GB, cycles=1)


def job(submit_s, nodes, compute_s, io_bytes=0.0, own=math.inf, **fields):
    """A job with one phase of computing and one of I/O, at this bandwidth when alone."""
    own = min(own, 12 * GB, 4 * GB * nodes)
    io_s = io_bytes / own
    return ClusterJob(
        submit_s=submit_s,
        nodes=nodes,
        run_s=compute_s + io_s,
        io_share=io_s / (compute_s + io_s),
        io_bytes_per_s=own,
        **fields,
    )


def times(lives):
    return [(round(each.start_s, 9), round(each.end_s, 9)) for each in lives]


def test_bandwidth_is_shared_equally_within_caps_and_the_queue_keeps_its_order():
    """Times by hand: 12 GB/s, 4 GB/s a node, each job at most as fast as alone.

    0-1 s: A, B and C compute. From 1 s A (cap 8), B (cap 4) and C (own cap 2) do I/O: C has 2, B
    4, A the rest, 6. A has moved its 12 GB at 3 s. B (16 GB) ends at 5 s, C (10 GB) at 6 s. D
    needs all 4 nodes and starts then, though 2 nodes are free from 3 s on; E waits behind it.
    """
    jobs = [
        job(0.0, 2, 1.0, 12 * GB),
        job(0.0, 1, 1.0, 16 * GB),
        job(0.0, 1, 1.0, 10 * GB, own=2 * GB),
        job(0.5, 4, 2.0, 24 * GB),
        job(0.6, 1, 1.0, 4 * GB),
    ]

    lives = run_cluster(SMALL, FCFS, jobs)

    assert times(lives) == [(0, 3), (0, 5), (0, 6), (6, 10), (10, 12)]
    assert [each.io_alone_s for each in lives] == pytest.approx([1.5, 4, 5, 2, 1])
    assert [each.io_s for each in lives] == pytest.approx([2, 4, 5, 2, 1])
    assert [each.alone_s for each in lives] == pytest.approx([2.5, 5, 6, 4, 2])
    assert not any(each.is_backfilled for each in lives)


def test_by_weight_a_job_of_more_nodes_has_more_of_the_link():
    """From 1 s on 12 GB/s go to 2 nodes (cap 8) and 1 node (cap 4) by 2 to 1, and all fits.

    With a link of 6 GB/s it is 4 and 2: A has moved 12 GB at 4 s, B then 6, and has 4 (its cap)
    from there on: the last 2 GB take half a second.
    """
    jobs = [job(0.0, 2, 1.0, 12 * GB), job(0.0, 1, 1.0, 8 * GB)]
    narrow = Cluster(
        nodes=4, file_system_bytes_per_s=6 * GB, node_bytes_per_s=4 * GB, cycles=1, weights="nodes"
    )

    lives = run_cluster(narrow, FCFS, jobs)

    assert times(lives) == [(0, 4), (0, 4.5)]


def test_a_job_without_a_cap_of_its_own_goes_as_fast_as_its_network():
    alone = job(0.0, 2, 1.0, 16 * GB, own=2 * GB)
    free = Cluster(
        nodes=4, file_system_bytes_per_s=12 * GB, node_bytes_per_s=4 * GB, caps="network", cycles=1
    )

    (own,), (network,) = run_cluster(SMALL, FCFS, [alone]), run_cluster(free, FCFS, [alone])

    assert (own.end_s, own.io_alone_s) == (pytest.approx(9.0), 8.0)
    assert (network.end_s, network.io_alone_s) == (pytest.approx(3.0), 2.0)


def test_each_phase_of_io_begins_with_the_latency_and_a_node_moves_a_window_a_round_trip():
    """0.5 s each way and 3 GB a window: 3 GB/s a node of 4; two cycles of 2 s, 0.5 s and 6 GB."""
    far = Cluster(
        nodes=4,
        file_system_bytes_per_s=12 * GB,
        node_bytes_per_s=4 * GB,
        latency_s=0.5,
        window_bytes=3 * 10**9,
        cycles=2,
    )

    (life,) = run_cluster(far, FCFS, [job(0.0, 1, 4.0, 12 * GB)])

    assert (life.end_s, life.io_alone_s) == (pytest.approx(9.0), pytest.approx(5.0))


def test_computing_and_io_take_turns_in_so_many_cycles():
    cycles = Cluster(nodes=4, file_system_bytes_per_s=12 * GB, node_bytes_per_s=4 * GB, cycles=10)
    (life,) = run_cluster(cycles, FCFS, [job(3.0, 1, 5.0, 20 * GB)])

    _, _, profile = submission(cycles, job(3.0, 1, 5.0, 20 * GB), is_hinted=True)
    assert (profile.repeat, len(profile.steps)) == (10, 2)
    assert profile.steps[0].seconds == pytest.approx(0.5)
    assert (life.start_s, life.end_s) == (3.0, pytest.approx(13.0))


@pytest.mark.parametrize(
    ("step_per", "starts"), [("event", {"C": 15, "D": 10}), ("instant", {"C": 10, "D": 16})]
)
def test_two_ends_of_one_instant_are_two_decisions_or_one(step_per, starts):
    """A (2 nodes) and B (1) end at 10 s, E (1) runs on; C (3) and D (1, 5 s) wait.

    After A's end alone C does not fit and D is backfilled, and with B's end C still lacks a node
    until D has ended at 15 s. Decided at once for both ends, C takes all three nodes, for 6 s.
    """
    jobs = {
        "A": ClusterJob(submit_s=0.0, nodes=2, run_s=10.0, walltime_s=10.0),
        "B": ClusterJob(submit_s=0.0, nodes=1, run_s=10.0, walltime_s=10.0),
        "E": ClusterJob(submit_s=0.0, nodes=1, run_s=30.0, walltime_s=30.0),
        "C": ClusterJob(submit_s=1.0, nodes=3, run_s=6.0, walltime_s=6.0),
        "D": ClusterJob(submit_s=2.0, nodes=1, run_s=5.0, walltime_s=5.0),
    }
    slides = Rules(
        name="equilibrio",
        admission=equilibrio.Rule(alpha=0.0),
        placement=least_io.Rule(),
        regulation=none.Rule(),
    )

    lives = run_cluster(SMALL, slides, list(jobs.values()), step_per=step_per)

    by_name = dict(zip(jobs, (life.start_s for life in lives), strict=True))
    assert {name: by_name[name] for name in starts} == starts


def test_a_job_runs_on_beyond_its_walltime():
    (life,) = run_cluster(SMALL, FCFS, [job(0.0, 1, 5.0, walltime_s=1.0)])

    assert life.end_s == 5.0


def test_a_job_whose_io_is_not_known_does_none_and_tells_nothing():
    unknown = ClusterJob(submit_s=0.0, nodes=1, run_s=7.0)
    _, told, profile = submission(SMALL, unknown, is_hinted=True)

    assert (told.declared, len(profile.steps)) == (None, 1)
    assert run_cluster(SMALL, FCFS, [unknown])[0].end_s == 7.0


def test_a_job_that_never_fits_is_named():
    with pytest.raises(ValueError, match="5 nodes are asked for, the cluster has 4"):
        run_cluster(SMALL, FCFS, [ClusterJob(submit_s=0.0, nodes=5, run_s=1.0)])


JOBS = st.lists(
    st.builds(
        job,
        st.integers(0, 6).map(float),
        st.integers(1, 4),
        st.integers(1, 5).map(float),
        st.integers(0, 20).map(lambda gb: gb * GB),
        st.sampled_from([math.inf, 2 * GB]),
    ),
    min_size=1,
    max_size=8,
).map(lambda jobs: sorted(jobs, key=lambda each: each.submit_s))


@given(JOBS, st.sampled_from(["equal", "nodes"]), st.sampled_from(["own", "network"]))
def test_nobody_is_faster_than_alone_and_no_more_is_moved_than_fits(jobs, weights, caps):
    cluster = Cluster(
        nodes=4,
        file_system_bytes_per_s=12 * GB,
        node_bytes_per_s=4 * GB,
        weights=weights,
        caps=caps,
        cycles=2,
    )

    lives = run_cluster(cluster, FCFS, jobs)

    assert [each.job for each in lives] == jobs
    for life in lives:
        assert life.start_s >= life.job.submit_s
        assert life.run_s >= life.alone_s * (1.0 - 1e-9)
    starts = [each.start_s for each in lives]
    assert starts == sorted(starts)
    moved = sum(each.job.io_bytes for each in lives)
    assert moved <= 12 * GB * max(each.end_s for each in lives) * (1.0 + 1e-9)


# -- times by hand, and those that ElastiSim printed -----------------------------------------------

BY_HAND = (
    "job,submit_s,nodes,iterations,compute_s,io_bytes,start_s,end_s",
    # 8 nodes of 1 GB/s, a file system of 6 GB/s, shared by nodes: a job of k nodes weighs k.
    # 0-2 s: A (4 nodes) and B (2) compute, C (1) from 1 s to 3 s. 2-3 s: A has 4 GB/s, B 2 (caps).
    # From 3 s on C wants 1 more than there is: each node has 6/7 GB/s, A 24/7. A's last 2 GB take
    # 7/12 s.
    f"A,0,4,1,2,{6 * GB:.0f},0,{3 + 7 / 12}",
    # B has moved 2 + 1 GB by then, and has its cap again: the last one takes half a second.
    f"B,0,2,1,2,{4 * GB:.0f},0,{4 + 1 / 12}",
    # C has moved half a GB when A ends, and its cap from then on: until 5 1/12 s. Two more rounds
    # of 2 s and 2 GB, alone.
    f"C,1,1,3,2,{2 * GB:.0f},1,{5 + 1 / 12 + 2 * 4}",
    # D finds no room beside C for its 6 nodes until B has ended. It computes for 1 s, and when it
    # begins to write C has just ended its first phase: 3 GB at 6 GB/s.
    f"D,2,6,1,1,{3 * GB:.0f},{4 + 1 / 12},{5 + 1 / 12 + 0.5}",
    # E would find room at 2.5 s, but D came first. It has no I/O.
    f"E,2.5,1,5,0.5,0,{4 + 1 / 12},{4 + 1 / 12 + 2.5}",
)
CLUSTER = Cluster(
    nodes=8,
    file_system_bytes_per_s=6e9,
    node_bytes_per_s=1e9,
    weights="nodes",
    caps="network",
)
ELASTISIM = Cluster(weights="nodes", caps="network", latency_s=0.55e-3)
"""Every node of a job is a flow there. Latencies are those of ElastiSim's example platform: 50 us
of a node's link and 500 us of the file system's."""
PRINTED = Path(__file__).parents[1] / "data" / "elastisim-200.csv"


class Life(NamedTuple):
    start_s: float
    end_s: float


def read(lines):
    """The rows of CSV with the columns of ``BY_HAND``; bytes and seconds are of one iteration."""
    rows = [
        {key: text if key == "job" else float(text) for key, text in row.items()}
        for row in csv.DictReader(lines)
    ]
    return sorted(rows, key=lambda row: row["submit_s"])


def theirs(rows):
    """When each job began and ended there."""
    return [Life(row["start_s"], row["end_s"]) for row in rows]


def ours(rows, cluster):
    """When each job begins and ends here, first come, first served."""
    rules = Rules(
        name="fcfs", admission=fcfs.Rule(), placement=least_io.Rule(), regulation=none.Rule()
    )
    work = []
    for row in rows:
        nodes, size = int(row["nodes"]), row["io_bytes"]
        phase = (*cluster.delay, cluster.transfer(nodes, size)) if size else ()
        profile = Profile(steps=(Compute(row["compute_s"]), *phase), repeat=int(row["iterations"]))
        spec = JobSpec(command=("simulated",), cpus=nodes, name=row["job"])
        work.append((row["submit_s"], spec, profile))
    done = simulate(cluster.platform(), rules, work, model=cluster.model(), sampling=False)
    return [Life(job.started_s, job.ended_s) for job in done.jobs]


def largest_error_s(rows, cluster):
    """Of all starts and ends."""
    pairs = zip(ours(rows, cluster), theirs(rows), strict=True)
    return max(abs(x - y) for here, there in pairs for x, y in zip(here, there, strict=True))


def test_times_computed_by_hand_are_met():
    assert largest_error_s(read(BY_HAND), CLUSTER) < 1e-8


def test_a_stream_has_one_window_under_way_in_each_round_trip():
    """4 MiB in 2 x 0.55 ms are 3.813 GB/s a node, though its network carries 12.5.

    ElastiSim printed 796.031 for the end of this job: 10 times 75.8956 s of computing, 0.55 ms, and
    2.98 GB of each of 8 nodes.
    """
    alone = read([BY_HAND[0], "0,29.24655,8,10,75.8955819,23862413461.85,29.24655,796.031"])

    assert ELASTISIM.flow_bytes_per_s == pytest.approx(3.813004e9, rel=1e-6)
    assert largest_error_s(alone, ELASTISIM) < 0.0005
    assert largest_error_s(alone, msgspec.structs.replace(ELASTISIM, latency_s=0.0)) > 2.0


def test_elastisims_times_are_met_to_the_last_printed_digit():
    rows = read(PRINTED.read_text().splitlines())
    begun_s = rows[-1]["submit_s"]  # nothing that ends before depends on the jobs that come later

    lives = zip(ours(rows, ELASTISIM), theirs(rows), strict=True)

    pairs = [(here, there) for here, there in lives if there.end_s < begun_s]
    assert len(pairs) == 146
    for here, there in pairs:
        assert here.start_s == pytest.approx(there.start_s, abs=half_a_digit(there.start_s))
        assert here.end_s == pytest.approx(there.end_s, abs=half_a_digit(there.end_s))


def half_a_digit(time_s):
    """Half of the last of six printed digits, and a little for the sum of their own rounding."""
    return 0.52 * 10.0 ** (math.floor(math.log10(time_s)) - 5)
