"""``iod hint``: what is known from earlier runs, logs to import, keys to forget."""

from __future__ import annotations

import importlib.resources
import os
import shutil
from pathlib import Path

import pytest
from fake_daemon import NOW_S, expected

from iodaemon.cli import hint

LOGS = Path(str(importlib.resources.files("darshan"))) / "examples/example_logs"
GRAPH = LOGS.parent / "darshan-graph"
ME = os.geteuid()


def known(key="name:lu", source="learned", **changes):
    told = expected(4e7, source, by=key, runs=7, confidence=0.875, operations_per_s=500.0)
    made = {"key": key, "user": "ann", "uid": 1000, "expected": told, "last_s": NOW_S}
    return made | {"run_s": 90.0, "predictions": 6, "off": 1.25} | changes


# -- show ------------------------------------------------------------------------------------------


def test_each_key_is_a_row_and_each_source_has_a_line(iod, daemon):
    other = expected(1e6, "imported", io_share=0.2, runs=1)
    daemon.hints = {
        "hints": [
            known(),
            known("like:a *.dat", "imported", expected=other, run_s=None, off=None),
        ],
        "accuracy": [
            {"source": "declared", "predictions": 1, "off": 20.0},
            {"source": "learned", "predictions": 6, "off": 1.25},
        ],
    }

    titles, first, second, *accuracy = iod("hint", "show").out.splitlines()

    names = "SOURCE EXPECTED IN-I/O REQ/s CONF RUNS RUN LAST WRONG USER KEY"
    assert names == " ".join(titles.split())
    when = first[first.index("2027") :][:16]
    told = f"learned 40 MB/s - 500 0.88 7 1m30s {when} 1.2x ann name:lu"
    assert told == " ".join(first.split())
    told = f"imported 1 MB/s 20% - 0.50 1 - {when} - ann like:a *.dat"
    assert told == " ".join(second.split())
    assert [
        "declared: wrong by 20x, typically, for 1 job",
        "learned: wrong by 1.2x, typically, for 6 jobs",
    ] == accuracy


def test_what_is_asked_for_reaches_the_daemon_and_its_answer_is_printed_as_json(iod, daemon):
    daemon.hints = {"hints": [known()], "accuracy": []}
    iod("hint", "show", "-u", "me", "--limit", "5", "lu*")
    told = iod("hint", "show", "-u", "ann", "--json")

    asked = [query for _, path, query in daemon.seen if path == "/v1/hints"]
    assert [{"user": [str(ME)], "limit": ["5"], "name": ["lu*"]}, {"user": ["ann"]}] == asked
    assert ([known()], "") == (told.json["hints"], told.err)


TEACH = "jobs teach when they end, 'iod hint import' takes Darshan logs"
ACCURACY = [{"source": "learned", "predictions": 6, "off": 1.25}]


@pytest.mark.parametrize(
    ("words", "accuracy", "out", "told"),
    [
        ((), [], "", f"iod: nothing is known yet: {TEACH}\n"),
        (("lu*",), [], "", "iod: nothing is known of these: 'iod hint show' lists all\n"),
        (("-u", "me"), [], "", "iod: nothing is known of these: 'iod hint show' lists all\n"),
        ((), ACCURACY, None, f"iod: no key is known now: {TEACH}\n"),  # all were forgotten
        (("x",), ACCURACY, "learned: wrong by 1.2x, typically, for 6 jobs\n", None),
    ],
)
def test_where_nothing_is_known_one_line_says_so_and_what_to_do(
    iod, daemon, words, accuracy, out, told
):
    daemon.hints["accuracy"] = accuracy
    result = iod("hint", "show", *words)

    assert 0 == result.code
    assert out in (None, result.out)
    assert told in (None, result.err)


def lesson(key="like:solve *.dat", **changes):
    made = {"key": key, "user": "ann", "uid": 1000, "limit": 2, "too_many": 6, "gain": 2.6}
    made |= {
        "resource": "memory",
        "seen": 2,
        "tries": 2,
        "at_s": NOW_S,
        "footprint_bytes": 2 * 2**30,
    }
    return made | changes


def test_what_was_learned_of_how_many_contend_is_a_table_below(iod, daemon):
    nothing = {
        "resource": "",
        "limit": None,
        "too_many": None,
        "gain": 1.0,
        "tries": 0,
        "at_s": 0.0,
    }
    daemon.hints = {
        "hints": [known()],
        "accuracy": [],
        "lessons": [lesson(), lesson("like:b", **nothing), lesson("like:c", footprint_bytes=None)],
    }

    lines = iod("hint", "show").out.splitlines()[2:]
    when = lines[2][lines[2].index("2027") :][:16]

    assert [
        "",
        "FOR AT-ONCE TOO-MANY GAIN TRIED MEMORY LEARNED USER KEY",
        f"memory 2 6 2.6x 2 2 GiB {when} ann like:solve *.dat",
        "- - - - 0 2 GiB - ann like:b",
        f"memory 2 6 2.6x 2 - {when} ann like:c",
    ] == [" ".join(line.split()) for line in lines]
    assert 1 == len(iod("hint", "show", "--no-header").out.splitlines())
    daemon.hints["hints"] = []
    alone = iod("hint", "show")
    assert (4, "") == (len(alone.out.splitlines()), alone.err)


# -- forget ----------------------------------------------------------------------------------------


def test_forgotten_keys_are_named_and_unknown_ones_are_exit_code_3(iod, daemon):
    daemon.hints = {"hints": [known("name:a"), known("name:b")], "accuracy": []}

    assert (0, "name:a forgotten\nname:b forgotten\n") == (
        (result := iod("hint", "forget", "name:a", "name:b")).code,
        result.out,
    )
    result = iod("hint", "forget", "-u", "1000", "name:a", "name:c")
    assert (3, "name:a forgotten\n") == (result.code, result.out)
    assert "iod: nothing is known under name:c: 'iod hint show' lists them\n" == result.err
    assert [None, 1000] == [body.get("uid") for body in daemon.bodies("/v1/hints/forget")]


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("forget",), 2, "no key given: 'iod hint show' lists them"),
        (("import",), 2, "no log given: name files or folders"),
        (
            ("forget", "-u", "no such user", "name:a"),
            3,
            "no user 'no such user' on this machine; write a name or a number",
        ),
    ],
    ids=str,
)
def test_what_means_nothing_is_told(iod, daemon, words, code, line):
    assert (code, line) == iod.fails("hint", *words)


# -- import ----------------------------------------------------------------------------------------


def test_logs_are_sent_as_what_their_runs_moved(iod, daemon):
    result = iod("hint", "import", "-u", "me", str(LOGS / "example.darshan"))

    assert (0, "1 run imported\n", "") == (result.code, result.out, result.err)
    [run] = daemon.runs
    assert {
        "ended_s": 1490000983.0,
        "run_s": 117.0,
        "processes": 2048,
        "read_bytes": 0,
        "written_bytes": 2199023263277,
        "operations": 16403,
        "uid": ME,
        "name": "",
        "job": "4478544",
    } == {key: value for key, value in run.items() if key not in ("command", "io_s")}
    assert run["command"][0].endswith("/vpicio_uni")


def test_what_cannot_be_used_is_one_line_each_and_the_others_are_imported(iod, daemon, tmp_path):
    shutil.copytree(GRAPH, tmp_path / "logs")
    (tmp_path / "logs/a.darshan").write_bytes((LOGS / "example.darshan").read_bytes()[:4000])
    (tmp_path / "logs/b.darshan").touch()
    (tmp_path / "logs/c.darshan").write_text("no log")
    missing, nameless = tmp_path / "none", LOGS / "dxt.darshan"

    result = iod("hint", "import", "-u", "me", str(tmp_path / "logs"), str(missing), str(nameless))

    assert (1, "6 runs imported\n", 6) == (result.code, result.out, len(daemon.runs))
    damaged, *others = (line.rpartition("/")[2] for line in result.err.splitlines())
    # The library reads on past the end of what it has: it gives up, or it breaks.
    assert damaged.startswith("a.darshan: damaged: ")
    assert [
        "b.darshan: empty",
        "c.darshan: no Darshan log, or damaged (Failed to open file.)",
        "none: No such file or directory",
        "dxt.darshan: names no program: say with --name of which jobs it is",
    ] == others


def test_another_users_log_is_not_imported_unless_as_ones_own(iod, daemon, monkeypatch):
    monkeypatch.setattr(hint.os, "geteuid", lambda: 4242)

    result = iod("hint", "import", str(LOGS / "example.darshan"))
    assert (1, "0 runs imported\n", []) == (result.code, result.out, daemon.runs)
    assert result.err.endswith(
        "example.darshan: of user 69615; you are 4242: --user me counts it as yours\n"
    )


def test_a_dry_run_shows_the_runs_and_needs_no_daemon(iod):
    result = iod("hint", "import", "-u", "5", "--dry-run", str(LOGS / "ior_hdf5_example.darshan"))

    titles, row = result.out.splitlines()
    assert "EXPECTED IN-I/O REQ/s RUN UID LOG COMMAND" == " ".join(titles.split())
    assert " ".join(row.split()).startswith("8.4 MB/s 16% 60 1 s 5 ior_hdf5_example.darshan /")
    assert "iod: 1 run would be imported; nothing was\n" == result.err


def test_without_the_library_it_is_said_how_to_get_it(iod, monkeypatch):
    monkeypatch.setattr(hint, "find_spec", lambda name: None)

    line = "Darshan's library is missing: pip install 'iodaemon[darshan]'"
    assert (1, line) == iod.fails("hint", "import", "x")
