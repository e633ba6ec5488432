"""Ours beside what is published, in words, as JSON and as the table of all experiments."""

import json
import math
from typing import get_args

import msgspec
import pytest

from iodaemon.errors import RequestError
from iodaemon.simulator.archive import Manifest, Rate, Run
from iodaemon.simulator.experiment import Choice, Experiment, Means, Target
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


def test_the_document_has_these_keys_and_no_others():
    one = compare(EXPERIMENT, OURS)[0]

    assert {
        "experiment": "mine",
        "results": [
            {
                "id": "C1a",
                "quantity": "max stretch",
                "published": 1.8,
                "ours": 1.75,
                "low": 1.75,
                "high": 1.9,
                "means": "fitted",
                "verdict": "pass",
            }
        ],
    } == document(EXPERIMENT, [one])


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


def test_without_targets_every_value_is_reported():
    results = compare(msgspec.structs.replace(EXPERIMENT, targets=()), {"none.jain": 1.0})

    assert [("none.jain", None, 1.0, "report")] == [
        (result.id, result.published, result.ours, result.verdict) for result in results
    ]


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


def test_an_experiment_without_targets_or_table_shows_its_values():
    free = msgspec.structs.replace(EXPERIMENT, targets=())

    lines = markdown([chapter(experiment=free, results=compare(free, OURS))], head="").splitlines()

    assert "| value | ours |" in lines
    assert "| C1d | 1.35 |" in lines


def test_an_experiment_without_targets_shows_the_studys_own_table():
    free = msgspec.structs.replace(EXPERIMENT, targets=())
    summary = ({"kind": "summary", "policy": "a|b", "mean_stretch": 1.23456},)

    lines = markdown([chapter(experiment=free, results=(), summary=summary)], head="").splitlines()

    assert "| policy | mean stretch |" in lines
    assert "| a\\|b | 1.235 |" in lines
    assert not any(line.startswith("| Laplace") for line in lines)
