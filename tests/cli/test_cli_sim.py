"""``iod sim``, as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import tiny_study
from storalloc_files import ROWS, YAML, told

from iodaemon.simulator import archive
from iodaemon.simulator.archive import MANIFEST, read_manifest
from iodaemon.simulator.storalloc_file import read_requests

pytestmark = pytest.mark.node

TESTS = Path(__file__).parents[1]
HERE = ("--jobs", "1")
"""No other process, which would take its time to begin."""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty folder to work in, and a home without experiments."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tiny(place):
    """The experiment of the tests, as a file of the user's own; how it is named."""
    (place / "tiny.toml").write_text(tiny_study.FILE)
    return "./tiny.toml"


@pytest.fixture
def own(place):
    """The user's own experiments."""
    folder = place / "home" / ".config" / "iodaemon" / "experiments"
    folder.mkdir(parents=True)
    return folder


def contents(folder):
    files = (path for path in Path(folder).iterdir() if path.name != archive.RUN_LOG)
    return {path.name: path.read_bytes() for path in files}


# -- list ------------------------------------------------------------------------------------------


def test_the_experiments_are_listed(iod):
    lines = iod("sim", "list").out.splitlines()

    assert lines[0].split() == ["NAME", "TARGETS", "TOOK", "TITLE", "SOURCE"]
    assert any(line.startswith("first-steps ") for line in lines)


def test_a_wrong_experiment_does_not_hide_the_others(iod, own):
    (own / "bad.toml").write_text('title = "x"\n')

    result = iod("sim", "list")

    assert (0, True) == (result.code, "first-steps" in result.out)
    assert result.err == f"iod: {own}/bad.toml: 'source' is missing; add it\n"


# -- run -------------------------------------------------------------------------------------------


def test_a_run_prints_quantity_published_ours_and_verdict(iod, tiny):
    result = iod("sim", "run", tiny, *HERE)

    assert 0 == result.code
    assert (
        "ID  QUANTITY                   PUBLISHED         OURS BAND       BAND FROM MEANS VERDICT\n"
        in result.out
    )
    assert "T1b greatest mean              below a quarter" in result.out
    assert "1 pass, 1 miss, 1 reported\nT1b: it cannot be\n" in result.out
    assert "- how many numbers: 1000 [sizes]; enough to see it\n" in result.out


def test_results_are_json_and_are_kept_with_rows_and_figures(iod, tiny):
    document = iod("sim", "run", tiny, "--json", *HERE).json
    kept = contents("iod-sim/tiny")

    assert (["experiment", "results"], "tiny") == (list(document), document["experiment"])
    assert ["id", "quantity", "published", "ours", "low", "high", "means", "verdict"] == list(
        document["results"][0]
    )
    assert [("T1a", "pass"), ("T1b", "miss"), ("T1c", "report")] == [
        (result["id"], result["verdict"]) for result in document["results"]
    ]
    assert {"mean.csv", "end.csv", "results.json", MANIFEST, "figure-2.svg", "figure-2.png"} == set(
        kept
    )
    assert document == json.loads(kept["results.json"])
    assert kept["mean.csv"].startswith(b"seed,size,mean\n1,10,0.")


def test_the_same_seeds_give_the_same_bytes_in_one_process_or_several(iod, tiny):
    iod("sim", "run", tiny, "--output", "a", *HERE)
    iod("sim", "run", tiny, "--output", "b", "--jobs", "3")

    assert contents("a") == contents("b")


def test_the_quick_version_is_kept_beside_the_whole_one_and_a_miss_fails_if_strict(iod, tiny):
    quick = iod("sim", "run", tiny, "--quick", "--json", *HERE)

    assert (0, 1.0) == (quick.code, quick.json["results"][2]["ours"])
    assert (1,) == read_manifest(Path("iod-sim/tiny-quick")).seeds
    assert not Path("iod-sim/tiny").exists()
    assert 1 == iod("sim", "run", tiny, "--quick", "--strict", *HERE).code


@pytest.mark.slow
def test_bands_are_tried_on_other_sets_of_seeds_and_the_report_has_on_how_many_they_hold(iod, own):
    """Not any more where the band has changed."""
    sets = '[seed_sets]\ntargets = ["T1a", "T1b"]\n[quick]'
    text = tiny_study.FILE.replace("[quick]", sets)
    (own / "tiny.toml").write_text(text)
    iod("sim", "run", "tiny")

    tried = iod("sim", "run", "tiny", "--seed-sets", "4", "--jobs", "1")
    kept = json.loads(Path("iod-sim/tiny/seed-sets.json").read_text())
    reports = [iod("sim", "report").out]
    (own / "tiny.toml").write_text(text.replace("high = 0.25", "high = 0.9"))
    reports.append(iod("sim", "report").out)

    assert tried.code == 0
    assert kept["sets"][3] == [4001, 4002, 4003]
    assert (kept["rates"]["T1a"]["held"], kept["rates"]["T1b"]["held"]) == (4, 0)
    rows = [line.split() for line in tried.out.splitlines() if line.startswith("T1")]
    assert [(row[0], row[-5:-3]) for row in rows] == [("T1a", ["of", "4"]), ("T1b", ["of", "4"])]
    before, after = (
        [line.split(" | ")[-1] for line in report.splitlines() if "| tiny | T1" in line]
        for report in reports
    )
    assert ["4 of 4 |", "0 of 4 |", "- |"] == before
    assert "- |" == after[1]


def test_an_experiment_that_fails_does_not_stop_the_others(iod, tiny, place):
    text = tiny_study.FILE.replace("sizes = [10, 1000]", 'sizes = [10]\nfails = "error"')
    (place / "bad.toml").write_text(text)

    result = iod("sim", "run", "./bad.toml", tiny, "--json", *HERE)

    assert (1, "tiny") == (result.code, result.json["experiment"])
    assert "iod: bad: task " in result.err
    assert "ArithmeticError: no such mean" in result.err


def test_a_study_that_fails_on_its_rows_is_told_and_the_rows_are_kept(iod, place):
    text = tiny_study.FILE.replace("sizes = [10, 1000]", 'sizes = [10]\nfails = "late"')
    (place / "late.toml").write_text(text)

    assert (
        1,
        "study 'tiny_study:Study' fails on its rows, which are kept: KeyError: 'fifo'",
    ) == iod.fails("sim", "run", "./late.toml", *HERE)
    assert {"mean.csv", "end.csv", MANIFEST} == set(contents("iod-sim/late"))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run"], 2, "name experiments, or give --all: 'iod sim list' shows them"),
        (["run", "a", "b", "--output", "c"], 2, "--output takes the results of one experiment"),
        (["run", "./tiny.toml", "--seed-sets", "0"], 2, "--seed-sets: '0' is no number of sets"),
        (["run", "./tiny.toml", "--seed-sets", "2", "--seeds", "3"], 2, "give one of the two"),
        (["storage", "--scheduler", "x.csv"], 2, "--scheduler belongs to a FILE"),
        (["run", "./tiny.toml", "--jobs", "x"], 2, "--jobs: 'x' is no number of processes"),
        (["run", "./tiny.toml", "--seeds", "a"], 2, "--seeds a: write how many, as in 5, or"),
        (["run", "./tiny.toml", "--seeds", "1,1"], 1, "--seeds: seeds: 1 is there 2 times"),
        (["run", "./tiny.toml", "--output", "."], 1, ". is not empty and holds no results of"),
        (["run", "frist-steps"], 3, "no experiment 'frist-steps'; did you mean 'first-steps'?"),
        (["run", "./nothing.toml"], 3, "experiment file nothing.toml does not exist"),
        (["run", "first-steps", "--policy", "nix"], 1, "first-steps.toml [parameters]: no policy"),
        (["plot"], 2, "name an experiment"),
        (["plot", "./tiny.toml"], 3, "iod-sim/tiny holds no results: make them with 'iod sim run'"),
        (["runn"], 2, "no verb 'runn': did you mean run?"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(iod, tiny, words, code, message):
    got, line = iod.fails("sim", *words)

    assert (code, True) == (got, message in line), line


def test_without_matplotlib_all_but_the_figures_is_done(iod, tiny, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    result = iod("sim", "run", tiny, *HERE)

    assert (0, True) == (result.code, "1 pass, 1 miss" in result.out)
    assert "iod: figures need matplotlib, all else is there: pip install 'iodaemon[sim]'" in (
        result.err
    )
    assert {"mean.csv", "end.csv", "results.json", MANIFEST} == set(contents("iod-sim/tiny"))
    assert (1, True) == (iod("sim", "plot", tiny).code, "rows and 0 figures" in result.err)


@pytest.mark.parametrize("whom", ["group", "one"])
def test_an_interrupt_ends_it_and_leaves_no_process(place, whom):
    """As at the keyboard, where all processes get the signal, and as by kill."""
    text = tiny_study.FILE.replace("sizes = [10, 1000]", 'sizes = [10]\npause = "1 h"')
    (place / "slow.toml").write_text(text)
    program = [sys.executable, "-m", "iodaemon.cli", "sim", "run", "./slow.toml", "--jobs", "2"]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    started = subprocess.Popen(
        program, stdout=-1, stderr=-1, env=environment, start_new_session=True, text=True
    )
    children = _wait_for_children(started.pid)

    (os.killpg if whom == "group" else os.kill)(started.pid, signal.SIGINT)
    out, err = started.communicate(timeout=60)

    assert (130, "", "") == (started.returncode, out, err)
    assert [] == [pid for pid in children if _is_alive(pid)]


def _wait_for_children(pid):
    """The two that run tasks; each has begun to run Python code of ours."""
    import psutil

    parent = psutil.Process(pid)
    while True:
        children = [child for child in parent.children() if "spawn_main" in str(child.cmdline())]
        if len(children) == 2:
            return [child.pid for child in children]
        assert parent.is_running()
        assert parent.status() != psutil.STATUS_ZOMBIE


def _is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# -- plot and report -------------------------------------------------------------------------------


@pytest.mark.slow
def test_figures_are_drawn_again_from_the_rows_also_of_something_else(iod, tiny):
    iod("sim", "run", tiny, "--seeds", "2")
    before = contents("iod-sim/tiny")
    Path("iod-sim/tiny/figure-2.svg").unlink()
    again = iod("sim", "plot", tiny)
    after = contents("iod-sim/tiny")
    path = Path("iod-sim/tiny") / MANIFEST
    kept = msgspec.structs.replace(read_manifest(path.parent), version="0.0.1")
    path.write_text(json.dumps(msgspec.to_builtins(kept)))
    other = iod("sim", "plot", tiny)

    assert (0, 0, before) == (again.code, other.code, after)
    assert "iod-sim/tiny/figure-2.svg\niod-sim/tiny/figure-2.png\n" == again.out
    assert "are not what tiny.toml says now: seeds 1,2 instead of 1-3; made by iodaemon 0.0.1" in (
        other.err
    )


@pytest.mark.slow
def test_the_report_has_what_fits_and_names_what_does_not(iod, own):
    (own / "tiny.toml").write_text(tiny_study.FILE)
    (own / "tiny2.toml").write_text(tiny_study.FILE)
    iod("sim", "run", "tiny")
    iod("sim", "run", "tiny2", "--seeds", "2")

    result = iod("sim", "report")

    assert "| Laplace 1812, chapter 1 | tiny | T1a | mean of the largest sample (section 2) |" in (
        result.out
    )
    assert "| Laplace 1812, chapter 1 | tiny2 | - | - | - | - | - | - | - | not run | - | - |" in (
        result.out
    )
    assert "iod: tiny2 is left out: seeds 1,2 instead of 1-3\n" in result.err
    assert "iod: first-steps is left out: not run yet\n" in result.err


def test_the_report_is_written_where_it_is_wanted_and_ends_with_what_is_by_hand(iod, place):
    result = iod("sim", "report", "--output", "README.md")
    alone = (place / "README.md").read_text()
    (place / "figures.md").write_text("## All figures\n\n| Fig. 1 | left out |\n")
    iod("sim", "report", "--output", "README.md")
    text = (place / "README.md").read_text()

    assert ("", True) == (result.out, result.err.endswith("iod: wrote README.md\n"))
    assert alone.startswith("# Experiments: published, and ours\n")
    assert "The end is by hand" not in alone
    assert "\n\nThe end is by hand: [All figures](#all-figures).\n\n" in text
    assert text.endswith("\n\n## All figures\n\n| Fig. 1 | left out |\n")


# -- iod sim storage -------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path):
    def write(text, name="requests.yml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_the_command_shows_indicators_and_json(iod, write):
    path = str(write(YAML))
    shown = iod("sim", "storage", path, "--capacity", "8 TB", "--rule", "round_robin")
    document = iod("sim", "storage", path, "--split", "none", "--json").json

    assert "sum_cap    475 GB, 4 parts" in shown.out
    assert "allocated  100.00 %, served whole 100.00 %" in shown.out
    assert (2, 0) == (document["parts"], document["split"])


def test_the_command_writes_requests_for_other_programs(iod, write, tmp_path):
    to = tmp_path / "own.csv"
    written = iod("sim", "storage", str(write(YAML)), "--write", str(to))

    assert (0, 3) == (written.code, len(to.read_text().splitlines()))
    assert ROWS == told(read_requests(Path(to)).requests)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--layout", "2N2D"), "--layout 2N2D: write 1N1D, 1NnD, nN1D, nNnD"),
        (("--capacity", "0"), "--capacity 0: write at least 1 GB"),
        (("--rule", "nobody"), "unknown allocation rule 'nobody'"),
    ],
)
def test_the_command_refuses_in_one_line(iod, write, words, message):
    ended = iod("sim", "storage", str(write(YAML)), *words)

    assert ended.code != 0
    assert message in ended.err
    assert 1 == len(ended.err.splitlines())
