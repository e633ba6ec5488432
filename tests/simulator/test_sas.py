"""SAS: its workload, its cluster by hand, its fits, its experiments."""

import random
import tomllib
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import targets

from iodaemon.policy.admission.storage_aware import Rule, extra_s
from iodaemon.simulator.catalogue import load_experiment, prepare
from iodaemon.simulator.draw import draw
from iodaemon.simulator.sas import (
    FAST,
    GB,
    SLOW,
    Feitelson,
    Load,
    SasJob,
    Site,
    draw_jobs,
    draw_workload,
    size_weight,
)
from iodaemon.simulator.sas_rows import fitted
from iodaemon.simulator.sas_run import World
from iodaemon.simulator.study import sas_inaccuracy, sas_random, sas_staging
from iodaemon.units import key_of

EXPERIMENTS = Path(__file__).parents[2] / "sim/experiments"
NAMES = ("sas-random", "sas-staging", "sas-inaccuracy")
TINY = Load(model=Feitelson(jobs=25))


# -- Feitelson 1996 --------------------------------------------------------------------------------


def test_the_model_has_the_sizes_run_times_and_repetitions_of_its_laws():
    model = Feitelson(jobs=40_000, power_of_two=4.0, run_s=(1e-9, 1e9), unit_s=1.0)
    jobs = draw_jobs(model, 128, random.Random(1))

    assert 40_000 == sum(job.runs for job in jobs)
    total = sum(size_weight(model, size) for size in range(1, 129))
    counts = Counter(job.nodes for job in jobs)
    for size in (1, 2, 3, 64, 128):
        share = size_weight(model, size) / total
        assert counts[size] / len(jobs) == pytest.approx(share, rel=0.25, abs=1e-3)
    assert sum(job.runs == 2 for job in jobs) / len(jobs) == pytest.approx(0.150, abs=0.01)
    small = [job.run_s for job in jobs if job.nodes == 1]
    part = 0.95 - 0.20 / 128
    assert sum(small) / len(small) == pytest.approx(part + 7.0 * (1.0 - part), rel=0.06)


# -- the workload ----------------------------------------------------------------------------------


def test_volumes_are_shares_of_the_run_at_the_pace_of_the_slow_tier():
    site = Site()
    jobs = draw_workload(Load(model=Feitelson(jobs=4000)), site, 1)

    shares = [job.input_bytes / site.slow_bytes_per_s / job.walltime_s for job in jobs]
    assert sum(shares) / len(shares) == pytest.approx(0.025, rel=0.05)
    for job in jobs:
        moved = job.input_bytes + job.output_bytes + job.data_bytes
        assert job.walltime_s == pytest.approx(job.compute_s + moved / site.slow_bytes_per_s)
        assert job.checkpoint_bytes == 16 * GB * job.nodes
        assert job.data_bytes <= 0.1 * job.walltime_s * site.slow_bytes_per_s
        assert job.checkpoints == 0 or job.walltime_s >= 3600.0
        assert job.space_bytes == max(job.input_bytes, job.output_bytes) + job.checkpoint_bytes


def test_other_laws_of_checkpoints_and_space():
    def of(**changes):
        return draw_workload(msgspec.structs.replace(Load(), **changes), Site(), 1)

    long = [job for job in of(checkpoint_law="least") if job.walltime_s >= 3600.0]
    assert min(job.checkpoints for job in long) == 1
    assert sum(job.checkpoints for job in of(checkpoint_share=0.0)) == 0
    spare = next(job for job in of(space="needed") if not job.checkpoints)
    assert spare.space_bytes == max(spare.input_bytes, spare.output_bytes)
    assert {job.checkpoints for job in of(checkpoint_law="drawn")} != {
        job.checkpoints for job in of()
    }


@given(st.integers(0, 2**32), st.floats(0.0, 0.4), st.floats(0.0, 3.0))
def test_no_workload_has_a_job_that_cannot_be(seed, share, spread):
    load = Load(model=Feitelson(jobs=30), io_share=share, io_share_sd=spread)

    for job in draw_workload(load, Site(), seed):
        assert job.compute_s >= 0.0
        assert min(job.input_bytes, job.output_bytes) >= 0
        assert job.space_bytes >= 1


# -- the cluster by hand ---------------------------------------------------------------------------

SITE = Site(nodes=4, slow_bytes_per_s=100.0, fast_bytes=5_000)


def job(arrive_s=0.0, *, nodes=1, compute_s=10.0, again=0, **fields):
    """Reads 1,000 bytes, writes 500 in the middle, writes 500."""
    made = {
        "input_bytes": 1_000,
        "output_bytes": 500,
        "checkpoint_bytes": 500,
        "checkpoints": 1,
        "space_bytes": 1_500,
    }
    return SasJob(
        arrive_s=arrive_s,
        nodes=nodes,
        walltime_s=compute_s + 20.0,
        compute_s=compute_s,
        again=again,
        **{**made, **fields},
    )


def lived(*jobs, tier=None, site=SITE):
    return World(site, Rule(), jobs, lambda each, _: each.asks(tier)).run()


def test_alone_a_job_takes_its_walltime_on_the_slow_tier():
    [life] = lived(job(), tier=SLOW)

    assert (0.0, 30.0, 30.0) == (life.start_s, life.nodes_s, life.end_s)


def test_and_on_the_fast_one_what_the_scheduler_reckons():
    """Staging 1,500 bytes at 500 a second, moving 2,000 at 1,500, computing 10 s."""
    [life] = lived(job(), tier=FAST)

    assert life.end_s == pytest.approx(3.0 + 2_000 / 1_500 + 10.0)
    reckoned_s = job().walltime_s + extra_s(job().asks(None), SITE.tiers()[0], SITE.tiers()[1])
    assert life.end_s == pytest.approx(reckoned_s)


def test_two_that_read_at_once_get_half_each():
    """Reading 20 s instead of 10, then 5 s, 5 s of writing at half pace, and so on: 50 s."""
    first, second = lived(job(), job(), tier=SLOW)

    assert (50.0, 50.0) == (first.end_s, second.end_s)


def test_links_do_not_know_of_each_other():
    def asking(each, number):
        return each.asks(FAST if number else SLOW)

    lives = World(SITE, Rule(), (job(), job()), asking).run()

    ends = sorted(life.end_s for life in lives)
    assert ends == pytest.approx([3.0 + 2_000 / 1_500 + 10.0, 30.0])


def test_a_repetition_comes_when_the_run_before_has_ended():
    first, second = lived(job(again=1), tier=SLOW)

    assert (0.0, 30.0, 60.0) == (first.submit_s, second.submit_s, second.end_s)


def test_nodes_may_be_given_back_before_the_output_is_staged_out():
    freed = msgspec.structs.replace(SITE, nodes_while_staging="freed")

    held, after = lived(job(nodes=4), job(nodes=4), tier=FAST)
    early, next_one = lived(job(nodes=4), job(nodes=4), tier=FAST, site=freed)

    assert after.start_s == held.end_s == held.nodes_s
    assert early.end_s - early.nodes_s == pytest.approx(2.0), "beside the next one's input"
    assert next_one.start_s == pytest.approx(early.nodes_s)


# -- fits ------------------------------------------------------------------------------------------


@given(st.tuples(*[st.integers(-9, 9)] * 3))
def test_a_fit_finds_the_polynomial_that_made_the_points(factors):
    points = {x / 4: sum(f * (x / 4) ** n for n, f in enumerate(factors)) for x in range(5)}

    assert fitted(points, 2).factors == pytest.approx(tuple(map(float, factors)), abs=1e-8)


def test_the_least_of_a_fit_is_in_the_valley_or_at_an_end():
    valley = fitted({x: (x - 0.7) ** 2 for x in (0.0, 0.5, 1.0)}, 2)
    slope = fitted({x: 3.0 - x for x in (0.0, 0.5, 1.0)}, 2)

    assert (pytest.approx(0.7), True) == (valley.lowest, valley.has_valley)
    assert (1.0, False) == (slope.lowest, slope.has_valley)


# -- experiments -----------------------------------------------------------------------------------


def document(name):
    return tomllib.loads((EXPERIMENTS / f"{name}.toml").read_text())


def run(study, *seeds):
    rows = [row for task in study.tasks(seeds) for row in study.run(task)]
    return study.measure(rows), study.figures(rows), study.summary(rows)


STUDIES = {
    "sas-random": sas_random.Study(load=TINY, p_steps=4, draws=2),
    "sas-staging": sas_staging.Study(load=TINY, p_steps=2, draws=1, sweep_ks=(1.0, 10.0)),
    "sas-inaccuracy": sas_inaccuracy.Study(load=TINY, theta_steps=2, draws=2, p_steps=2, p_draws=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_value_has_a_target_and_every_figure_can_be_drawn(name, tmp_path):
    values, figures, summary = run(STUDIES[name], 1, 2)

    assert targets(name).keys() == values.keys()
    assert len({tuple(line) for line in summary}) == 1
    for figure in figures[:2]:
        draw(figure, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_the_files_say_what_the_workload_is_and_have_the_paper_s_size(name):
    file = load_experiment(str(EXPERIMENTS / f"{name}.toml"), search=())
    parameters = document(name)["parameters"]

    study = prepare(file).study
    assert study.load.model.jobs == 500
    assert study.site.nodes == 128
    left_out = {"fast"}  # the capacities are the study's own
    assert parameters["site"].keys() | left_out == {key_of(f) for f in Site.__struct_fields__}
    load = {key_of(f) for f in Load.__struct_fields__}
    assert parameters["load"].keys() == load
    model = {key_of(f) for f in Feitelson.__struct_fields__}
    assert parameters["load"]["model"].keys() == model
    assert len(prepare(file).seeds) == 10
