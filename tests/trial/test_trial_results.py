"""What is told and kept of a trial, from made-up runs."""

import json
import sys

import msgspec
import pytest

from iodaemon.cli import compare
from iodaemon.cli.compare import outcome_lines
from iodaemon.errors import RequestError
from iodaemon.simulator.draw import check
from iodaemon.trial.comparing import Outcome, comparison_document
from iodaemon.trial.folder import Folder
from iodaemon.trial.latency import Look, Uncontended
from iodaemon.trial.picture import comparison_bars, comparison_figures
from iodaemon.trial.run import CommandFailedError, Raw, short_notes
from iodaemon.trial.summary import JobTime, Run, job_measures

MACHINE = {
    "kernel": "6.1",
    "cpus": 2,
    "cpu_model": "some",
    "memory_bytes": 1 << 30,
    "storage": "ext4 on disk sda",
    "filesystem": "ext4",
    "devices": ["sda"],
    "is_rotational": [True],
}


def run(policy, number, run_s, **values):
    jobs = tuple(JobTime(name=f"a.{n}", kind="a", run_s=run_s + n) for n in range(2))
    measures = job_measures(jobs, {"a": 1.0}, run_s + 1.0)
    return Run(
        policy=policy, round=number, suspensions=0, moved_bytes=10, jobs=jobs, **measures, **values
    )


def outcome(**values):
    runs = tuple(
        run(policy, number, run_s + number / 100.0, waiting_s=run_s / 100.0, serving_s=0.01)
        for number in range(1, 7)
        for policy, run_s in (("none", 4.0), ("default", 2.0))
    )
    made = Outcome(
        workload="w",
        path="/w.toml",
        policies=("none", "default"),
        rounds_asked=6,
        rounds=6,
        counts={"a": 2},
        alone_s={"a": 1.0},
        alone_times_s={"a": (0.9, 1.0, 1.2)},
        runs=runs,
        partial=(),
        slices=tuple(() for _ in runs),
        alone=Uncontended(seen_s={("sda", 12): 0.1}),
        machine=MACHINE,
        sockets=((0,), (1,)),
        slots=2,
        notes=("a note",),
        began_s=0.0,
    )
    return msgspec.structs.replace(made, **values)


def test_a_comparison_tells_medians_changes_and_what_it_was_made_on():
    text = "\n".join(outcome_lines(outcome()))

    assert "workload w: 2 jobs (2 a), 2 CPUs on 2 sockets" in text
    assert "makespan                       default" in text
    assert "better (p 0.03)" in text
    assert "ext4 on disk sda, rotational" in text
    assert "a note" in text
    assert "alone: a 1.00 s [0.90, 1.20]" in text


def test_rounds_that_are_missing_are_told():
    text = "\n".join(
        outcome_lines(outcome(rounds=0, runs=(), slices=(), alone_s={}, alone_times_s={}))
    )

    assert "rounds: 0 of 6 asked" in text
    assert "nothing to compare" in text
    assert "alone: not known" in text


def test_a_comparison_is_kept_as_json_with_what_ended_it():
    document = json.loads(
        json.dumps(comparison_document(outcome(failure=RequestError("it broke"))))
    )

    assert ("compare", 1, "it broke") == (
        document["kind"],
        document["version"],
        document["failure"],
    )
    assert {"none", "default"} == set(document["summary"])
    assert 8 == len(document["changes"])
    assert 12 == len(document["runs"])
    assert {"a": [0.9, 1.0, 1.2]} == document["alone_times_s"]
    assert not comparison_document(outcome(runs=(), slices=()))["changes"]


def test_the_figures_of_a_comparison_can_be_drawn():
    figures = comparison_figures(outcome())
    for figure in figures:
        check(figure)

    assert ["comparison", "run-times"] == [figure.name for figure in figures]
    assert () == comparison_figures(outcome(runs=(), slices=()))
    assert any("█" in line for line in comparison_bars(outcome()))


def bars_by_label(made):
    [figure] = [each for each in comparison_figures(made) if each.name == "comparison"]
    names = {each.label: tuple(" ".join(x.split()) for x in each.x) for each in figure.series}
    return names, figure.x_label


def test_what_is_not_more_than_noise_has_another_colour_in_the_picture():
    found, x_label = bars_by_label(outcome())

    assert {"default", "default: within the noise"} == set(found)
    assert "makespan (less)" in found["default"]
    assert ("serving (less)",) == found["default: within the noise"]
    assert x_label == ""


def looked(times):
    look = Look(at_s=0.0, devices={}, used_ratio=None)
    return Raw(jobs=(), looks=(look,) * times, suspensions=0)


def test_runs_that_were_hardly_looked_at_are_told():
    assert () == short_notes([looked(4), looked(9)])
    [note] = short_notes([looked(2), looked(3), looked(4)])
    assert note.startswith("2 of 3 runs took less than 1 s: ")


@pytest.fixture
def _no_drawing(monkeypatch):
    """Drawn figures are those of test_cli_trial.py."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.mark.usefixtures("_no_drawing")
def test_what_came_to_its_end_is_well_and_what_a_signal_ended_has_its_code(tmp_path, capsys):
    folder = Folder(path=tmp_path)
    assert 0 == compare.tell(outcome(), folder, as_json=True)
    assert "ended early" not in capsys.readouterr().err
    assert 130 == compare.tell(outcome(signal_number=2, rounds=4), folder, as_json=True)
    assert "ended early: 4 of 6 rounds are complete" in capsys.readouterr().err


@pytest.mark.usefixtures("_no_drawing")
def test_what_failed_is_raised_after_what_its_job_said_last(tmp_path, capsys):
    failure = CommandFailedError("job a is FAILED", ("one", "two"))
    with pytest.raises(CommandFailedError):
        compare.tell(outcome(failure=failure), Folder(path=tmp_path), as_json=True)

    assert ["iod: | one", "iod: | two"] == capsys.readouterr().err.splitlines()[-2:]


@pytest.mark.usefixtures("_no_drawing")
@pytest.mark.parametrize(("as_json", "begin"), [(True, "{"), (False, "workload w")])
def test_results_are_told_to_programs_or_to_people_and_kept_in_place_of_links(
    tmp_path, capsys, as_json, begin
):
    victim, place = tmp_path / "victim", tmp_path / "place"
    victim.write_text("as it was")
    place.mkdir()
    (place / "results.json").symlink_to(victim)
    compare.tell(outcome(), Folder(path=place), as_json=as_json)

    assert capsys.readouterr().out.startswith(begin)
    assert "as it was" == victim.read_text()
    assert 6 == json.loads((place / "results.json").read_text())["rounds"]
