"""Rows are kept and read back as they were; what does not fit is told, not overwritten."""

import math

import msgspec
import pytest

from iodaemon.errors import NotFound, RequestError
from iodaemon.simulator.archive import (
    MANIFEST,
    Manifest,
    Run,
    arranged,
    check_folder,
    differences,
    find_run,
    keep,
    read_manifest,
    read_rows,
    seed_words,
    write_run,
)

MINE = Manifest(
    experiment="mine",
    version="0.2.0",
    study="tiny_study:Study",
    seeds=(1, 2),
    is_quick=False,
    has_other_policies=False,
    parameters={"sizes": [10], "bound": math.inf},
)
ROWS = arranged(
    [
        {"kind": "run", "seed": 1, "text": 'a, "b"\nc', "x": 0.1 + 0.2},
        {"kind": "job", "id": 3, "y": math.nan},
        {"kind": "run", "seed": 2, "text": "", "x": 5},
    ]
)


def other(**changes):
    return msgspec.structs.replace(MINE, **changes)


def test_rows_are_read_back_as_they_were_kept(tmp_path):
    keep(tmp_path, MINE, ROWS)

    read = read_rows(tmp_path, read_manifest(tmp_path))

    assert repr(ROWS) == repr(read)
    assert ["job", "run", "run"] == [row["kind"] for row in read]


def test_a_column_with_one_fraction_is_one_of_fractions():
    rows = arranged([{"kind": "a", "x": 1}, {"kind": "a", "x": 0.5}])

    assert [1.0, 0.5] == [row["x"] for row in rows]
    assert isinstance(rows[0]["x"], float)


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
    keep(tmp_path, MINE, ROWS)
    (tmp_path / "old.png").touch()
    (tmp_path / "notes.txt").touch()

    keep(tmp_path, MINE, arranged([{"kind": "only", "x": 1}]))

    assert {"only.csv", "notes.txt", MANIFEST} == {path.name for path in tmp_path.iterdir()}


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.csv").touch()

    with pytest.raises(RequestError, match="is not empty and holds no results"):
        check_folder(tmp_path, MINE)


def test_a_file_is_no_folder(tmp_path):
    path = tmp_path / "file"
    path.touch()

    for folder in (path, path / "below"):
        with pytest.raises(RequestError, match="file is no folder"):
            check_folder(folder, MINE)


def test_an_older_version_does_not_replace_what_a_newer_one_made(tmp_path):
    keep(tmp_path, other(version="0.10.0"), ROWS)

    with pytest.raises(RequestError, match=r"of iodaemon 0\.10\.0, newer than this 0\.2\.0"):
        check_folder(tmp_path, MINE)


def test_what_will_be_replaced_is_said(tmp_path):
    keep(tmp_path, MINE, ROWS)

    assert () == check_folder(tmp_path, MINE)
    assert ("seeds 1,2 instead of 7",) == check_folder(tmp_path, other(seeds=(7,)))


def test_every_parameter_that_differs_is_named():
    changed = other(parameters={"sizes": [11], "pause": 1})

    assert ("other parameters: bound, pause, sizes",) == differences(MINE, changed)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"experiment": 3}'])
def test_a_damaged_manifest_is_told(tmp_path, text):
    (tmp_path / MANIFEST).write_text(text)

    with pytest.raises(RequestError, match=r"manifest\.json is of another version or damaged"):
        read_manifest(tmp_path)


def test_nothing_kept_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="holds no results"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "gone", "letters", "column"])
def test_damaged_rows_are_told(tmp_path, damage):
    keep(tmp_path, MINE, ROWS)
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


@pytest.mark.parametrize(
    ("seeds", "words"), [((1, 2, 3), "1-3"), ((4,), "4"), ((1, 2), "1,2"), ((1, 2, 7), "1,2,7")]
)
def test_seeds_are_told_in_short(seeds, words):
    assert words == seed_words(seeds)
