"""The line that says how far a long command is."""

import sys
import time

import pytest

from iodaemon.cli.progress import REDRAWN_S, TOLD_S, Line


@pytest.fixture
def clock(monkeypatch):
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    return now_s


def told(line, clock, times_s, capsys):
    for at_s in times_s:
        clock[0] = at_s
        line.say(f"at {at_s:g}")
    return capsys.readouterr().err


def test_elsewhere_it_is_a_line_now_and_then(clock, capsys):
    line = Line()
    said = told(line, clock, (1000.0, 1000.0 + TOLD_S / 2.0, 1000.0 + TOLD_S), capsys)
    line.close()

    assert ["iod: at 1000", f"iod: at {1000.0 + TOLD_S:g}"] == said.splitlines()
    assert "" == capsys.readouterr().err


def test_who_has_told_something_just_now_is_quiet_for_a_while(clock, capsys):
    assert "" == told(Line(told_s=1000.0), clock, (1000.0, 1001.0), capsys)


def test_on_a_terminal_it_changes_and_is_taken_away_once(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    line = Line()
    said = told(line, clock, (1000.0, 1000.0 + REDRAWN_S / 2.0, 1001.0), capsys)
    line.close()
    line.close()

    assert "\r\x1b[Kiod: at 1000\r\x1b[Kiod: at 1001" == said
    assert "\r\x1b[K" == capsys.readouterr().err
