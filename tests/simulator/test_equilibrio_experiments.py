"""The experiments of EquilibrIO: what is published, what comes out, what is refused."""

import itertools
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import targets

from iodaemon.errors import RequestError
from iodaemon.simulator.catalogue import load_experiment, prepare
from iodaemon.simulator.cluster import Cluster
from iodaemon.simulator.equilibrio import Mix
from iodaemon.simulator.equilibrio_run import (
    Moment,
    Setup,
    Stay,
    in_bins,
    intensity_course,
    mean_distance_bytes_per_s,
    mean_running,
)
from iodaemon.simulator.study import equilibrio_alpha, equilibrio_knowledge
from iodaemon.simulator.study.equilibrio_knowledge import kept_gains
from iodaemon.simulator.table import where
from iodaemon.units import key_of

EXPERIMENTS = Path(__file__).parents[2] / "sim/experiments"
NAMES = ("equilibrio-alpha", "equilibrio-knowledge")
TINY = Mix(low_jobs=120, peaks=1, peak_jobs=20, load=1.5)


def run(study, *seeds):
    rows = [row for task in study.tasks(seeds) for row in study.run(task)]
    return rows, study.measure(rows), study.figures(rows)


# -- what is published -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alphas():
    return run(equilibrio_alpha.Study(mix=TINY), 7)


@pytest.fixture(scope="module")
def knowledge():
    return run(equilibrio_knowledge.Study(mix=TINY, knowledge=(1.0, 0.5, 0.0), draws=1), 7)


@pytest.mark.slow
def test_every_value_has_a_target_and_every_target_a_source(alphas):
    _, values, _ = run(equilibrio_knowledge.Study(mix=TINY, draws=2), 7)
    for name, measured in (("equilibrio-alpha", alphas[1]), ("equilibrio-knowledge", values)):
        assert targets(name).keys() == measured.keys()
        assert all(target["source"] for target in targets(name).values())


@pytest.mark.parametrize("name", NAMES)
def test_the_experiments_are_of_the_published_size_on_five_seeds(name):
    file = load_experiment(str(EXPERIMENTS / f"{name}.toml"), search=())
    trial, quick = prepare(file), prepare(file, is_quick=True)

    mix = trial.study.mix
    assert (mix.low_jobs, mix.peaks * mix.peak_jobs) == (5000, 160)
    assert trial.study.cluster == Cluster()
    assert len(trial.seeds) == 5
    assert quick.study.mix.low_jobs < 2000


def test_the_files_say_what_the_workload_is():
    """Nothing of it is hidden in a default."""
    for name in NAMES:
        document = tomllib.loads((EXPERIMENTS / f"{name}.toml").read_text())
        mix, cluster = (document["parameters"][key].keys() for key in ("mix", "cluster"))
        left_out = {"batch", "low_io", "low"}  # of no effect with their defaults
        assert mix | left_out == {key_of(field) for field in Mix.__struct_fields__}
        near = {"latency", "window"}  # likewise
        assert cluster | near == {key_of(field) for field in Cluster.__struct_fields__}


# -- alpha -----------------------------------------------------------------------------------------


def test_alpha_0_is_first_come_first_served_but_for_the_backfilled(alphas):
    rows, values, _ = alphas

    assert values["E4-in-turn-0"] == 0.0
    assert all(
        row["displacement_in_turn"] == 0.0 for row in where(rows, kind="run") if row["alpha"] == 0.0
    )
    assert values["E4-0"] > 0.0


def test_reordering_brings_what_runs_nearer_to_the_whole_workload(alphas):
    _, values, _ = alphas

    assert values["E1-0.5"] < values["E1-0"]
    assert values["E1"] == pytest.approx(1.0 - values["E1-0.5"] / values["E1-0"])
    assert values["E1-factor"] == pytest.approx(values["E1-0"] / values["E1-0.5"])


# -- knowledge -------------------------------------------------------------------------------------


def test_with_nothing_known_everything_happens_as_with_alpha_0(knowledge):
    _, values, _ = knowledge

    assert values["E6"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["max", "easy"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_known_and_alpha_0_are_the_same_to_the_last_bit(seed, bound):
    setup = Setup(mix=TINY, bound=bound)
    jobs = setup.jobs(seed)

    unknown = setup.live(jobs, alpha=0.5, knowledge=0.0, seed=seed)
    arrival = setup.live(jobs, alpha=0.0, seed=seed)

    assert unknown == arrival


def test_a_gain_is_kept_in_parts_of_the_whole_gain():
    rows = [
        {"kind": "run", "seed": seed, "knowledge": part, "io_slowdown_percent": io}
        for seed, ios in ((1, (10.0, 60.0, 110.0)), (2, (5.0, 5.0, 5.0)))
        for part, io in zip((1.0, 0.25, 0.0), ios, strict=True)
    ]

    assert kept_gains(rows) == {1.0: [1.0, 1.0], 0.25: [0.5, 1.0], 0.0: [0.0, 1.0]}


# -- records ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "study",
    [equilibrio_alpha.Study, equilibrio_knowledge.Study],
)
def test_real_jobs_are_taken_from_a_file_and_its_problems_told(study, tmp_path):
    path = tmp_path / "jobs.csv"
    head = "nodes,runtime,walltime,read,written,rt,wt,mt,nprocs"
    bad = ["x,1,1,1,1,1,1,1,1"] * 8
    path.write_text("\n".join([head, *bad, "400,3000,3600,1000000,0,10,0,0,10"]) + "\n")

    made = study(records=str(path))

    told = made.remarks()
    assert told[0] == f"{path}:2: left out: nodes is 'x', no number"
    assert told[-1] == f"{path}: 3 more rows like these"
    assert study().remarks() == ()
    path.write_text("a,b\n1,2\n")
    with pytest.raises(RequestError, match="no column"):
        made.remarks()


def test_the_jobs_of_a_workload_are_those_of_the_file(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(
        "nodes,runtime,walltime,read,written,rt,wt,mt,nprocs\n400,3000,3600,1000000,0,10,0,0,10\n"
    )

    low = [job for job in Setup(mix=TINY, records=str(path)).jobs(1) if not job.is_high]

    assert {(100, 3000.0, 3600.0, 1 / 3000, 250_000.0)} == {
        (job.nodes, job.run_s, job.walltime_s, job.io_share, job.io_bytes_per_s) for job in low
    }


# -- S and W over time -----------------------------------------------------------------------------


def stay(submit_s, start_s, end_s, intensity, weight=1.0):
    return Stay(
        submit_s=submit_s,
        start_s=start_s,
        end_s=end_s,
        intensity_bytes_per_s=intensity,
        weight=weight,
    )


def moment(at_s, system, workload, running):
    return Moment(
        at_s=at_s, system_bytes_per_s=system, workload_bytes_per_s=workload, running=running
    )


TWO = (stay(0.0, 0.0, 10.0, 4.0), stay(2.0, 10.0, 14.0, 8.0))
"""The second waits for the end of the first."""


def test_both_means_change_when_a_job_comes_starts_or_ends():
    assert intensity_course(TWO) == (
        moment(0.0, 4.0, 4.0, 1),
        moment(2.0, 4.0, 6.0, 1),
        moment(10.0, 8.0, 8.0, 1),
        moment(14.0, 0.0, 0.0, 0),
    )


def test_the_mean_distance_is_over_the_time_in_which_something_runs():
    late = (*TWO, stay(20.0, 24.0, 26.0, 1.0))

    assert mean_distance_bytes_per_s(intensity_course(TWO)) == pytest.approx(2.0 * 8.0 / 14.0)
    assert mean_distance_bytes_per_s(intensity_course(late)) == pytest.approx(2.0 * 8.0 / 16.0)
    assert mean_distance_bytes_per_s(()) == 0.0


def test_the_mean_number_of_running_jobs_is_over_the_time_in_which_one_runs():
    three = (*TWO, stay(0.0, 12.0, 14.0, 1.0), stay(20.0, 24.0, 26.0, 1.0))

    assert mean_running(intensity_course(three)) == pytest.approx((14.0 + 2.0 + 2.0) / 16.0)
    assert mean_running(()) == 0.0


def test_bins_hold_the_means_over_their_time():
    bins = in_bins(intensity_course(TWO), 7)

    assert [each.at_s for each in bins] == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0]
    assert [each.system_bytes_per_s for each in bins] == pytest.approx([4.0] * 5 + [8.0] * 2)
    assert [each.workload_bytes_per_s for each in bins] == pytest.approx(
        [4.0] + [6.0] * 4 + [8] * 2
    )


TIMES = st.integers(0, 20).map(float)
STAYS = st.lists(
    st.tuples(TIMES, TIMES, TIMES, st.integers(0, 9)).map(
        lambda drawn: stay(*sorted(drawn[:3]), float(drawn[3]))
    ),
    max_size=12,
)


@given(STAYS)
def test_the_course_is_what_counting_at_any_time_gives(stays):
    course = intensity_course(stays)

    for one in course:
        runs = [s for s in stays if s.start_s <= one.at_s < s.end_s]
        there = [s for s in stays if s.submit_s <= one.at_s < s.end_s]
        for held, found in (
            (runs, one.system_bytes_per_s),
            (there, one.workload_bytes_per_s),
        ):
            mean = math.fsum(s.intensity_bytes_per_s for s in held) / max(1, len(held))
            assert found == pytest.approx(mean, abs=1e-9)
        assert one.running == len(runs)


@given(STAYS, st.integers(1, 9))
def test_bins_keep_the_sum_over_time(stays, count):
    course = intensity_course(stays)
    if len(course) < 2:
        return
    width_s = (course[-1].at_s - course[0].at_s) / count
    whole = math.fsum(
        a.system_bytes_per_s * (b.at_s - a.at_s) for a, b in itertools.pairwise(course)
    )

    binned = math.fsum(each.system_bytes_per_s * width_s for each in in_bins(course, count))

    assert binned == pytest.approx(whole, abs=1e-6)
