"""The model of a cluster held to times computed by hand, and to those that ElastiSim printed."""

import csv
import math
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from iodaemon.core.job import JobSpec
from iodaemon.core.rule import Rules
from iodaemon.model.profile import Compute, Profile
from iodaemon.policy.admission import fcfs
from iodaemon.policy.placement import least_io
from iodaemon.policy.regulation import none
from iodaemon.simulator.cluster import Cluster
from iodaemon.simulator.run import simulate

GB = 10**9
BY_HAND = (
    "job,submit_s,nodes,iterations,compute_s,io_bytes,start_s,end_s",
    # 8 nodes of 1 GB/s, a file system of 6 GB/s, shared by nodes: a job of k nodes weighs k.
    # 0-2 s: A (4 nodes) and B (2) compute, C (1) from 1 s to 3 s. 2-3 s: A has 4 GB/s, B 2 (caps).
    # From 3 s on C wants 1 more than there is: each node has 6/7 GB/s, A 24/7. A's last 2 GB take
    # 7/12 s.
    f"A,0,4,1,2,{6 * GB},0,{3 + 7 / 12}",
    # B has moved 2 + 1 GB by then, and has its cap again: the last one takes half a second.
    f"B,0,2,1,2,{4 * GB},0,{4 + 1 / 12}",
    # C has moved half a GB when A ends, and its cap from then on: until 5 1/12 s. Two more rounds
    # of 2 s and 2 GB, alone.
    f"C,1,1,3,2,{2 * GB},1,{5 + 1 / 12 + 2 * 4}",
    # D finds no room beside C for its 6 nodes until B has ended. It computes for 1 s, and when it
    # begins to write C has just ended its first phase: 3 GB at 6 GB/s.
    f"D,2,6,1,1,{3 * GB},{4 + 1 / 12},{5 + 1 / 12 + 0.5}",
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
