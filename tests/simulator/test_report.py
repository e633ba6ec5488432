"""Ours beside what is published, in words, as JSON and as the table of all experiments."""

import json
import math
import statistics
from typing import get_args

import msgspec
import pytest

from iodaemon.errors import RequestError
from iodaemon.simulator.archive import (
    MANIFEST,
    Manifest,
    Rate,
    Run,
    arranged,
    check_folder,
    find_run,
    keep,
    read_manifest,
    read_rows,
    write_run,
)
from iodaemon.simulator.experiment import Choice, Experiment, Means, Series, Target
from iodaemon.simulator.report import (
    LEGEND,
    Chapter,
    cells,
    compare,
    document,
    head,
    left_out,
    markdown,
    meanings,
    notes,
)
from iodaemon.simulator.table import ranged, where


def target(id_, **fields):
    return Target(**{"id": id_, "quantity": "q", "source": "table 1", "published": 1.8} | fields)


EXPERIMENT = Experiment(
    name="mine",
    title="Mine",
    source="Laplace 1812",
    study="tiny_study:Study",
    seeds=(1, 2, 3),
    targets=(
        target(
            "C1a", quantity="max stretch", low=1.75, high=1.9, band_from="paper", means="fitted"
        ),
        target("C1d", published="much better", high=1.34, note="the text says 'much'"),
        target("C1i", published="<= 15 %", note="no Tucan here"),
    ),
    choices=(Choice(silent="the law", chosen="binomial", why="its mean is exact", option="law"),),
)
OURS = {"C1a": 1.75, "C1d": 1.35, "C1i": 0.04, "unasked": 3.0}
RESULTS = compare(EXPERIMENT, OURS)


def test_the_ends_of_a_band_are_within_it():
    assert ["pass", "miss", "report"] == [result.verdict for result in RESULTS]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_a_miss_and_valid_json(value):
    results = compare(EXPERIMENT, OURS | {"C1a": value})

    assert ("miss", None) == (results[0].verdict, results[0].ours)
    assert json.loads(json.dumps(document(EXPERIMENT, results), allow_nan=False))


def test_a_target_without_value_is_refused():
    with pytest.raises(RequestError, match="gives no value for target C1d, C1i of"):
        compare(EXPERIMENT, {"C1a": 1.0})


def test_a_value_that_the_study_has_not_is_reported_and_no_band_lets_it_pass():
    results = compare(EXPERIMENT, OURS | {"C1a": None, "C1i": None})

    assert [("miss", None), ("report", None)] == [
        (result.verdict, result.ours) for result in (results[0], results[2])
    ]
    assert ("C1i", "q", "<= 15 %", "-", "-", "-", "-", "report") == cells(results[2])


def test_of_a_part_targets_without_value_are_left_out_and_named():
    results = compare(EXPERIMENT, {"C1a": 1.0}, is_partial=True)

    assert ["C1a"] == [result.id for result in results]
    assert ("no value with these parameters: C1d, C1i",) == left_out(EXPERIMENT, results)
    assert () == left_out(EXPERIMENT, RESULTS)


def test_a_result_in_words():
    assert [
        ("C1a", "max stretch", "1.8", "1.75", "1.75..1.9", "paper", "fitted", "pass"),
        ("C1d", "q", "much better", "1.35", "<= 1.34", "ours", "-", "miss"),
        ("C1i", "q", "<= 15 %", "0.04", "-", "-", "-", "report"),
    ] == [cells(result) for result in RESULTS]


def test_what_a_pass_means_is_told_for_each_word_that_is_used():
    assert set(LEGEND) == set(get_args(Means))
    assert meanings(RESULTS) == ("fitted",)
    assert all(f"- `{word}`: {meaning}" in head("1", "today") for word, meaning in LEGEND.items())


def test_notes_are_told_whatever_the_verdict_and_each_once():
    again = target("C1j", note="no Tucan here")
    experiment = msgspec.structs.replace(EXPERIMENT, targets=(*EXPERIMENT.targets, again))

    assert ("C1d: the text says 'much'", "C1i, C1j: no Tucan here") == notes(
        experiment, compare(experiment, OURS | {"C1j": 1.0})
    )
    assert ("C1d: the text says 'much'",) == notes(experiment, RESULTS[:2])


def chapter(**fields):
    manifest = Manifest(
        experiment="mine",
        version="0.2.0",
        study="tiny_study:Study",
        seeds=(1, 2, 3),
        is_quick=False,
        has_other_policies=False,
        parameters={},
    )
    run = Run(ended="2026-11-21T14:31", elapsed_s=12.34, tasks=3, processes=2)
    made = {"experiment": EXPERIMENT, "results": RESULTS, "manifest": manifest, "run": run}
    return Chapter(**made | fields)


def test_the_table_of_all_experiments_has_a_line_a_target():
    rates = {"C1d": Rate(held=3, values=(1.3,) * 3 + (1.4,) * 9)}
    lines = markdown([chapter(rates=rates)], head="# All").splitlines()

    assert lines[0] == "# All"
    words = "Laplace 1812 | mine | C1a | max stretch (table 1) | 1.8 | 1.75 | 1.75..1.9"
    assert f"| {words} | paper | fitted | pass | 1-3 | - |" in lines
    assert any("| <= 1.34 | ours | - | **miss** | 1-3 | 3 of 12 |" in line for line in lines)
    assert "- C1d: the text says 'much'" in lines
    assert "- the law: binomial [law]; its mean is exact" in lines


def test_what_was_not_run_is_in_the_table_as_such():
    lines = markdown([Chapter(experiment=EXPERIMENT)], head="").splitlines()

    assert "| Laplace 1812 | mine | - | - | - | - | - | - | - | not run | - | - |" in lines
    assert "Not run yet: iod sim run mine" in lines


def test_an_experiment_without_targets_shows_the_studys_own_table():
    free = msgspec.structs.replace(EXPERIMENT, targets=())
    summary = ({"kind": "summary", "policy": "a|b", "mean_stretch": 1.23456},)

    lines = markdown([chapter(experiment=free, results=(), summary=summary)], head="").splitlines()

    assert "| policy | mean stretch |" in lines
    assert "| a\\|b | 1.235 |" in lines
    assert not any(line.startswith("| Laplace") for line in lines)


# -- rows filtered and grouped ---------------------------------------------------------------------

ROWS = [
    {"kind": "run", "rule": rule, "gb": gb, "seed": seed, "took": float(seed * gb)}
    for rule in ("b", "a")
    for gb in (20, 10)
    for seed in (1, 3)
]


def test_rows_are_filtered_by_values_and_a_tuple_is_any_of_them():
    assert ROWS[:2] == where(ROWS, kind="run", rule="b", gb=20.0)
    assert ROWS[4:] == where(ROWS, rule="a", gb=(10, 20))
    with pytest.raises(KeyError, match="gbs"):
        where(ROWS, gbs=20)


def test_a_series_has_the_middle_and_the_range_at_each_place_in_their_order():
    found = {"b": [3.0, 1.0, 8.0], "a": [2.0]}

    assert Series(label="x", x=("b", "a"), y=(4.0, 2.0), low=(1.0, 2.0), high=(8.0, 2.0)) == ranged(
        "x", found
    )
    assert (3.0, 2.0) == ranged("x", found, statistics.median).y


# -- rows that are kept ----------------------------------------------------------------------------

MINE = Manifest(
    experiment="mine",
    version="0.2.0",
    study="tiny_study:Study",
    seeds=(1, 2),
    is_quick=False,
    has_other_policies=False,
    parameters={"sizes": [10], "bound": math.inf},
)
KEPT = arranged(
    [
        {"kind": "run", "seed": 1, "text": 'a, "b"\nc', "x": 0.1 + 0.2},
        {"kind": "job", "id": 3, "y": math.nan},
        {"kind": "run", "seed": 2, "text": "", "x": 5},
    ]
)


def other(**changes):
    return msgspec.structs.replace(MINE, **changes)


def test_rows_are_read_back_as_they_were_kept(tmp_path):
    keep(tmp_path, MINE, KEPT)

    read = read_rows(tmp_path, read_manifest(tmp_path))

    assert repr(KEPT) == repr(read)
    assert ["job", "run", "run"] == [row["kind"] for row in read]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"kind": "a", "x": 1}, {"kind": "a", "y": 1}], "rows of kind 'a' differ in columns x, y"),
        ([{"kind": "a", "x": 1}, {"kind": "a", "x": "1"}], "column 'x' .* mixes text and numbers"),
        ([{"kind": "../a", "x": 1}], "is no file name"),
    ],
)
def test_rows_that_make_no_table_are_refused(rows, message):
    with pytest.raises(RequestError, match=message):
        arranged(rows)


def test_what_was_kept_before_is_replaced_and_nothing_else(tmp_path):
    keep(tmp_path, MINE, KEPT)
    (tmp_path / "old.png").touch()
    (tmp_path / "notes.txt").touch()

    keep(tmp_path, MINE, arranged([{"kind": "only", "x": 1}]))

    assert {"only.csv", "notes.txt", MANIFEST} == {path.name for path in tmp_path.iterdir()}


def test_an_older_version_does_not_replace_what_a_newer_one_made(tmp_path):
    keep(tmp_path, other(version="0.10.0"), KEPT)

    with pytest.raises(RequestError, match=r"of iodaemon 0\.10\.0, newer than this 0\.2\.0"):
        check_folder(tmp_path, MINE)


def test_what_will_be_replaced_is_said(tmp_path):
    keep(tmp_path, MINE, KEPT)

    assert () == check_folder(tmp_path, MINE)
    assert ("seeds 1,2 instead of 7",) == check_folder(tmp_path, other(seeds=(7,)))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"experiment": 3}'])
def test_a_damaged_manifest_is_told(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)

    with pytest.raises(RequestError, match=r"manifest\.json is of another version or damaged"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "gone", "letters", "column"])
def test_damaged_rows_are_told(tmp_path, damage):
    keep(tmp_path, MINE, KEPT)
    path = tmp_path / "job.csv"
    match damage:
        case "cut":
            path.write_text("id,y\n")
        case "gone":
            path.unlink()
        case "letters":
            path.write_text("id,y\nthree,0.5\n")
        case "column":
            path.write_text("id\n3\n")

    with pytest.raises(RequestError, match=r"job\.csv .*: run again"):
        read_rows(tmp_path, read_manifest(tmp_path))


def test_a_run_is_noted_and_found(tmp_path):
    run = Run(ended="2026-11-21T14:31", elapsed_s=1.25, tasks=3, processes=2)

    write_run(tmp_path, run)

    assert run == find_run(tmp_path)


@pytest.mark.parametrize("text", [None, "", "ended", "ended=1 elapsed_s=x tasks=1 processes=1"])
def test_a_run_that_was_not_noted_is_unknown(tmp_path, text):
    if text is not None:
        (tmp_path / "run.log").write_text(text)

    assert find_run(tmp_path) is None
