"""JSON of whatever shape shown to people, and the line that says how far a long command is."""

from __future__ import annotations

import sys
import time

import pytest

from iodaemon.cli.output import REDRAWN_S, TOLD_S, Progress, document_lines, value_words


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("io_bound_bytes_per_s", 4e7, "40 MB/s"),
        ("reads_per_s", 13.25, "13.25/s"),
        ("memory_bytes", 2**30, "1 GiB"),
        ("timeslice_s", 1.0, "1 s"),
        ("load", 0.123456, "0.1235"),
        ("slots", 16, "16"),
        ("is_rotational", True, "yes"),
        ("cpus", [0, 1], "0, 1"),
        ("cpus", [], "none"),
        ("rate", {"a_s": 2, "b": None}, "a_s 2 s, b unknown"),
        ("source", "", "none"),
        ("capacity_bytes", None, "unknown"),
    ],
)
def test_values_carry_the_unit_of_their_name(key, value, words):
    assert words == value_words(key, value, "unknown")


def test_a_large_number_of_seconds_is_a_date():
    assert value_words("boot_s", 1_800_000_000.0, "")[:2] == "20"


def test_parts_stand_below_their_name_and_rows_in_a_table():
    document = {
        "sockets": [{"id": 0, "slots_free": 2}, {"id": 1, "slots_free": None}],
        "devices": [{"id": "vda", "load": {"busy_ratio": 0.5}}],
        "backend": "linux",
        "notes": [["a"], ["b"]],
    }

    expected = [
        "backend  linux",
        "sockets",
        "  ID SLOTS FREE",
        "  0  2",
        "  1  unknown",
        "devices",
        "  id  vda",
        "  load",
        "    busy ratio  0.5",
        "notes",
        "  a",
        "  b",
    ]
    assert expected == document_lines(document)


# -- progress --------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    return now_s


def told(line, clock, times_s, capsys):
    for at_s in times_s:
        clock[0] = at_s
        line.tell(f"at {at_s:g}")
    return capsys.readouterr().err


def test_elsewhere_it_is_a_line_now_and_then(clock, capsys):
    line = Progress()
    times_s = (1000.0, 1000.0 + TOLD_S, 1000.0 + 1.5 * TOLD_S, 1000.0 + 2 * TOLD_S)
    said = told(line, clock, times_s, capsys)
    line.close()

    assert [f"iod: at {1000.0 + n * TOLD_S:g}" for n in (1, 2)] == said.splitlines()
    assert "" == capsys.readouterr().err


def test_on_a_terminal_it_changes_and_is_taken_away_once(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    line = Progress()
    said = told(line, clock, (1001.0, 1001.0 + REDRAWN_S / 2.0, 1002.0), capsys)
    line.close()
    line.close()

    assert "\r\x1b[Kiod: at 1001\r\x1b[Kiod: at 1002" == said
    assert "\r\x1b[K" == capsys.readouterr().err


def test_the_time_left_is_reckoned_from_what_is_done(clock, capsys):
    line = Progress("x")
    for done, at_s in ((2, 1000.0 + TOLD_S), (8, 1000.0 + 2 * TOLD_S)):
        clock[0] = at_s
        line(done, 8)

    said = ["iod: x: 2 of 8 tasks, 1m30s left", "iod: x: 8 of 8 tasks"]
    assert said == capsys.readouterr().err.splitlines()
