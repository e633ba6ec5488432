"""The fluid model held to results of another simulator, here to times computed by hand."""

import gzip
import math
from pathlib import Path

import msgspec
import pytest

from iodaemon.errors import ConfigError, NotFound, RequestError
from iodaemon.simulator.fluid import (
    COLUMNS,
    ELASTISIM,
    Agreement,
    Spread,
    check_fluid,
    lives_of,
    named_cluster,
    quantile,
    read_reference,
)

HEAD = ",".join(COLUMNS)
GB = 10**9
BY_HAND = (
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
CLUSTER = named_cluster(nodes="8", file_system="6 GB/s", network="1 GB/s", latency="0")
PRINTED = Path(__file__).parents[1] / "data" / "elastisim-200.csv"


@pytest.fixture
def results(tmp_path):
    """Write a file of results; its path."""

    def write(*lines, name="results.csv"):
        path = tmp_path / name
        text = "\n".join(lines) + "\n"
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


@pytest.mark.parametrize("name", ["results.csv", "results.csv.gz"])
def test_times_computed_by_hand_are_met(results, name):
    agreement = check_fluid(read_reference(results(HEAD, *BY_HAND, name=name)), CLUSTER)

    assert agreement.jobs == 5
    assert agreement.is_near
    assert max(agreement.starts.most, agreement.ends.most, agreement.lengths.most) < 1e-9
    assert agreement.ended_s == pytest.approx(agreement.theirs_s)


def test_another_platform_is_found_out(results):
    slow = named_cluster(nodes="8", file_system="5.5 GB/s", network="1 GB/s", latency="0")

    agreement = check_fluid(read_reference(results(HEAD, *BY_HAND)), slow)

    assert not agreement.is_near
    assert agreement.ends.worst in "ABCDE"


def test_each_bound_of_each_kind_of_time_counts():
    met = Spread(median=1e-3, p99=1e-2, most=0.1, worst="x")
    rest = {"jobs": 9, "longer": 0, "ended_s": 1.0, "theirs_s": 1.0, "took_s": 1.0}
    agreement = Agreement(starts=met, ends=met, lengths=met, **rest)

    assert agreement.is_near
    for kind in ("starts", "ends", "lengths"):
        for beyond in ({"median": 1.1e-3}, {"p99": 1.1e-2}, {"most": 0.11}):
            worse = msgspec.structs.replace(met, **beyond)
            assert not msgspec.structs.replace(agreement, **{kind: worse}).is_near


def test_a_run_that_is_too_short_is_seen_beside_a_clock_that_ran_for_long(results):
    """At a clock of 10^6 s the end of a run of 20 s that should take 10 is off by 10^-5."""
    late = read_reference(results(HEAD, "A,1000000,1,1,20,0,1000000,1000010"))

    agreement = check_fluid(late)

    assert agreement.ends.most == pytest.approx(1e-5, rel=1e-3)
    assert (agreement.lengths.most, agreement.longer) == (1.0, 1)
    assert not agreement.is_near


def test_a_stream_has_one_window_under_way_in_each_round_trip(results):
    """4 MiB in 2 x 0.55 ms are 3.813 GB/s a node, though its network carries 12.5.

    ElastiSim printed 796.031 for the end of this job: 10 times 75.8956 s of computing, 0.55 ms, and
    2.98 GB of each of 8 nodes.
    """
    alone = read_reference(
        results(HEAD, "0,29.24655,8,10,75.8955819,23862413461.85,29.24655,796.031")
    )

    agreement = check_fluid(alone)

    assert ELASTISIM.flow_bytes_per_s == pytest.approx(3.813004e9, rel=1e-6)
    assert agreement.ends.most < 0.0005 / 796.031
    free = check_fluid(alone, named_cluster(latency="0"))
    assert free.ends.most > 2.0 / 796.031


def test_elastisims_times_are_met_to_the_last_printed_digit():
    jobs = read_reference(PRINTED)
    begun_s = jobs[-1].submit_s  # nothing that ends before depends on the jobs that come later

    ours = lives_of(jobs, ELASTISIM)

    pairs = [(job, life) for job, life in zip(jobs, ours, strict=True) if job.end_s < begun_s]
    assert len(pairs) == 146
    for job, (start_s, end_s) in pairs:
        assert start_s == pytest.approx(job.start_s, abs=half_a_digit(job.start_s))
        assert end_s == pytest.approx(job.end_s, abs=half_a_digit(job.end_s))


def half_a_digit(time_s):
    """Half of the last of six printed digits, and a little for the sum of their own rounding."""
    return 0.52 * 10.0 ** (math.floor(math.log10(time_s)) - 5)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("job,nodes", "A,1"), "no column submit_s, iterations"),
        ((HEAD,), "holds no job"),
        ((HEAD, "A,0,x,1,2,3,0,1"), r"results.csv:2: this is no job: .*'x'"),
        ((HEAD, "A,0,1"), "results.csv:2: this is no job"),
        ((HEAD, "A,0,0,1,2,3,0,1"), "at least 1"),
        ((HEAD, "A,0,1,1,nan,3,0,1"), "finite"),
        ((HEAD, "A,0,1,1,2,3,5,4"), "end_s is after start_s"),
        ((HEAD, "A,0,1,1,2,inf,0,1"), "finite"),
    ],
)
def test_what_is_no_file_of_results_is_refused_in_one_line(results, lines, words):
    with pytest.raises(RequestError, match=words) as refused:
        read_reference(results(*lines))

    assert "\n" not in str(refused.value)


def test_a_file_that_is_missing_or_damaged_is_named(results, tmp_path):
    with pytest.raises(NotFound, match=r"none.csv does not exist"):
        read_reference(tmp_path / "none.csv")
    damaged = results(HEAD, name="cut.csv.gz")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(RequestError, match=r"cut.csv.gz cannot be read"):
        read_reference(damaged)
    binary = results(HEAD)
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match="cannot be read"):
        read_reference(binary)


def test_a_job_larger_than_the_cluster_is_refused(results):
    small = named_cluster(nodes="5")

    with pytest.raises(RequestError, match="job D has 6 nodes, the cluster 5"):
        check_fluid(read_reference(results(HEAD, *BY_HAND)), small)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"nodes": "0"}, "--nodes 0"),
        ({"nodes": "many"}, "--nodes many"),
        ({"file_system": "0"}, "--file-system 0"),
        ({"network": "fast"}, "--network fast"),
        ({"latency": "-1"}, "--latency -1"),
    ],
)
def test_a_cluster_that_is_none_is_refused(words, problem):
    with pytest.raises(ConfigError, match=problem):
        named_cluster(**words)
    assert named_cluster() == ELASTISIM


def test_a_quantile_is_one_of_the_values():
    assert [quantile([3.0, 1.0, 2.0], part) for part in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0]
    assert quantile([], 0.5) == 0.0
