"""The help at 80 columns: whole lines, and the same words for the same thing."""

from __future__ import annotations

import re

import pytest

from iodaemon.cli.command import App
from iodaemon.cli.program import GROUPS, VERBS, find_top

FAMILIES = [name for name in VERBS if isinstance(find_top(name), App)]


@pytest.fixture(autouse=True)
def _on_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def verbs_of(out):
    """Each verb of a help and what it is said to do."""
    lines = re.split(r"\n(?:Commands|Jobs):\n", out)[1].splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))


@pytest.mark.parametrize("words", [[], *([name] for name in FAMILIES)], ids=" ".join)
def test_what_a_verb_does_is_told_in_one_whole_line(iod, words):
    cut = {
        name: text for name, text in verbs_of(iod(*words, "--help").out).items() if "..." in text
    }

    assert cut == {}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_verb_with_verbs_of_its_own_names_them_all(iod, name):
    told = verbs_of(iod("--help").out)[name].partition(": ")[2].rstrip(".").split(", ")

    assert sorted(told) == sorted(verbs_of(iod(name, "--help").out))


def test_what_hint_show_prints_is_explained_column_by_column(iod, daemon):
    from iodaemon.cli.hint import COLUMNS

    prose = iod("hint", "show", "--help").out.partition("\nOptions:\n")[0]
    titles = [column.title for column in COLUMNS]

    assert [title for title in titles if not is_a_word_of(prose, title)] == []


def is_a_word_of(prose, title):
    """True where it stands alone: RUN is not in RUNS, nor I/O in IN-I/O."""
    return re.search(rf"(?<!\S){re.escape(title)}(?=[\s,.])", prose) is not None


def test_the_verbs_are_shown_in_groups_and_internal_ones_are_not(iod):
    out = iod("--help").out
    titles = re.findall(r"^(\w+):$", out, re.MULTILINE)

    assert ["Options", "Jobs", "Regulation", "Administration", "Experiments"] == titles
    assert {*VERBS} - {*GROUPS[""]} == {*verbs_of(out)}
