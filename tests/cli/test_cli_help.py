"""The help at 80 columns: whole lines, and the same words for the same thing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from iodaemon.cli.command import App
from iodaemon.cli.completion import INSTALLED, MANUAL, SHELLS, completion_script, manual
from iodaemon.cli.install import _system_layout
from iodaemon.cli.program import GROUPS, VERBS, find_top
from iodaemon.config import default_settings
from iodaemon.install.program import Program

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


# -- what shells complete --------------------------------------------------------------------------


def complete(tmp_path, line):
    """What bash offers behind this line, with the script sourced and the cursor at its end."""
    (tmp_path / "iod").write_text(f'#!/bin/sh\nexec {sys.executable} -m iodaemon.cli "$@"\n')
    (tmp_path / "iod").chmod(0o755)
    words = line.replace("=", " = ").split(" ")  # as bash has them (COMP_WORDBREAKS)
    array = " ".join(f"'{word}'" for word in words)
    program = (
        f"{completion_script('bash')}\nCOMP_WORDS=({array}); COMP_CWORD={len(words) - 1}\n"
        '_iod_completion iod; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    told = subprocess.run(
        ["bash", "-c", program],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stderr == ""
    return told.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("iod su", {"submit", "suspend"}),
        ("iod config sh", {"show"}),
        ("iod --api=/x/iod.sock que", {"queue"}),
        ("iod queue -s RUNNING,P", {"RUNNING,PENDING"}),
        ("iod daemon --policy dyn", {"dynamic"}),
        ("iod history --by=", {"user", "name"}),
        ("iod cancel ", {"last", "all"}),
        ("iod nonsense --st", set()),
    ],
)
def test_bash_offers_verbs_options_and_their_values(tmp_path, line, offered):
    assert offered == {*complete(tmp_path, line)}


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script_that_calls_iod(iod, shell):
    told = iod("completion", shell)

    assert 0 == told.code
    assert "_IOD_COMPLETE" in told.out
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=told.out, text=True, check=True)


def test_another_shell_is_refused_with_those_there_are(iod):
    assert (2, True) == (iod("completion", "csh").code, "bash, zsh, fish" in iod("completion").err)


def test_the_manual_has_the_help_of_every_verb():
    page = manual()

    assert page.startswith(".TH IOD 1 ")
    for name in {*VERBS} - {*GROUPS[""]}:
        assert f"\n.SH IOD {name.upper()}\n" in page
    assert "\\-h, \\-\\-help" in page
    assert not [line for line in page.splitlines() if line.startswith("'")]


def test_the_service_is_installed_with_both():
    program = Program(path="/opt/iodaemon/bin/iod", parts=(), name="1")

    layout = _system_layout(program, default_settings({}, 0))

    assert {*INSTALLED.values(), MANUAL} <= layout.items.keys()
