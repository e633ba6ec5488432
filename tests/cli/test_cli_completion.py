"""What shells complete, and the manual page."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from iodaemon.cli.completion import INSTALLED, MANUAL, SHELLS, completion_script, manual
from iodaemon.cli.install import _system_layout
from iodaemon.cli.program import GROUPS, VERBS
from iodaemon.config import default_settings
from iodaemon.install.program import Program


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
