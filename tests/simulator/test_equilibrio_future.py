"""What EquilibrIO leaves as future work: the studies that ask for it, small."""

import pytest

from iodaemon.config import decode_table
from iodaemon.simulator.balanced import admission_rules
from iodaemon.simulator.cluster import Cluster
from iodaemon.simulator.draw import check
from iodaemon.simulator.equilibrio import Mix
from iodaemon.simulator.study import equilibrio_auto, equilibrio_operations
from iodaemon.simulator.study.equilibrio_operations import Small, draw_requesters, run_requesters

POLICIES = {
    "0": {"rule": "equilibrio", "alpha": 0.0},
    "auto": {"rule": "equilibrio", "alpha": 0.5},
}
TINY = {"low_jobs": 15, "peaks": 1, "peak_jobs": 4}
CALM = {"low_jobs": 10, "peaks": 0, "low": "1 MB/s"}
WORKLOADS = [
    {"id": "waves", "mix": TINY},
    {"id": "change", "mix": CALM, "then": TINY},
]


def auto(**parameters):
    made = {"policies": POLICIES, "workloads": WORKLOADS, "cluster": {"nodes": 300}} | parameters
    return decode_table(made, equilibrio_auto.Study, where="mine.toml [parameters]")


def operations(**parameters):
    made = {
        "policies": POLICIES,
        "workloads": [{"id": "both", "mix": TINY, "small": {"peaks": 1, "peak_jobs": 5}}],
    }
    return decode_table(made | parameters, equilibrio_operations.Study, where="mine.toml")


def rows_of(made, seeds=(1,)):
    return [row for task in made.tasks(seeds) for row in made.run(task)]


def test_the_second_kind_of_jobs_comes_when_the_first_has_come():
    made = auto()
    jobs = made.workloads[1].draw(made.cluster, 1)
    submits_s = [job.submit_s for job in jobs]

    assert 10 + 19 == len(jobs)
    assert sorted(submits_s) == submits_s
    assert all(job.intensity_bytes_per_s < 2e6 for job in jobs[:10])
    assert 4 == sum(job.is_high for job in jobs[10:])


@pytest.mark.parametrize("made", [auto(), operations()])
def test_every_policy_meets_the_same_jobs_and_all_can_be_shown(made):
    rows = rows_of(made, (1, 2))
    values = made.measure(rows)

    assert rows == rows_of(made, (1, 2))
    assert {19, 29} >= {row["jobs"] for row in rows} or {24} == {row["jobs"] for row in rows}
    assert len(made.workloads) * 2 == len(made.summary(rows))
    assert values
    for figure in made.figures(rows):
        check(figure)


def test_the_same_rule_under_another_name_gains_nothing():
    made = auto(policies={"0": POLICIES["0"], "auto": POLICIES["0"]})
    values = made.measure(rows_of(made))

    assert {1.0} == {values[f"waves.{key}"] for key in ("distance", "wait", "displacement")}


def test_small_requests_wait_for_each_other_and_large_ones_do_not_notice():
    cluster, mix = Cluster(nodes=2000), Mix(low_jobs=20, peaks=0, low_bytes_per_s=1e6)
    jobs = draw_requesters(mix, Small(peaks=1, peak_jobs=10, peak_s=0.0), cluster, 1)
    rules = admission_rules("fcfs", {})
    calm = run_requesters(cluster, 1e9, rules, jobs)
    busy = run_requesters(cluster, 100e3, rules, jobs)

    for job, alone, shared in zip(jobs, calm, busy, strict=True):
        assert alone.run_s == pytest.approx(alone.alone_s)
        assert not job.is_small or shared.run_s > alone.run_s * 1.01
