"""What a user's shell, editor and locale make of a command line, and what must not come of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from iodaemon.cli.failure import nearest
from iodaemon.cli.request import absolute


def only(daemon):
    [spec] = daemon.seen[-1][2]["jobs"]
    return spec


@pytest.fixture
def link(here):
    """``there/link`` leads to ``far/away``, which has a file beside it."""
    (here / "far" / "away").mkdir(parents=True)
    (here / "there").mkdir()
    (here / "there" / "link").symlink_to(here / "far" / "away")
    return here


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/b", "{0}/a/b"),
        ("./a//b/", "{0}/a/b"),
        ("there/link/x", "{0}/there/link/x"),
        ("there/link/../x", "{0}/far/x"),
        ("there/link/..", "{0}/far"),
        ("../here/x", "{0}/x"),
        ("/a/./b", "/a/b"),
    ],
)
def test_a_path_is_where_the_kernel_finds_it(link, name, expected):
    found = absolute(str(link), name)

    assert expected.format(link) == found


def test_what_is_not_there_leads_nowhere(iod, daemon, here):
    (here / "victim").write_text("kept")

    for option in ("-o", "-D"):
        code, told = iod.fails("submit", option, "nodir/../victim", "--", "true")
        assert code == 1
        assert f"{here}/nodir" in told
        assert "No such file or directory" in told
    assert daemon.bodies("/v1/jobs") == []


@pytest.mark.parametrize(
    "words",
    [
        ("queue", "-J", "\udcff"),
        ("history", "-u", "a\udcff"),
        ("submit", "-J", "\udcff", "--", "true"),
        ("drain", "on", "--reason", "\udcff"),
    ],
    ids=" ".join,
)
def test_what_is_no_text_is_told_and_not_sent(iod, daemon, here, words):
    code, told = iod.fails(*words)

    assert code == 1
    assert r"\xff' is no UTF-8 text; nothing was done" in told


def run(socket_path, words, **variables):
    """``iod`` in a process with these variables alone; its exit code and standard error."""
    kept = {"PATH": os.environ["PATH"], "HOME": "/"}
    ended = subprocess.run(
        [sys.executable, "-m", "iodaemon.cli", "--api", socket_path, *words],
        env={**kept, **variables},
        capture_output=True,
        check=False,
    )
    return ended.returncode, ended.stderr.decode(errors="replace")


def test_what_python_sets_for_itself_gets_into_no_job(daemon, socket_path):
    run(socket_path, ["submit", "--", "true"], LC_ALL="")
    python = daemon.seen[-1][2]["environment"]
    run(socket_path, ["submit", "--", "true"], LC_CTYPE="C.UTF-8")
    asked = daemon.seen[-1][2]["environment"]

    assert "LC_CTYPE" not in python
    assert "C.UTF-8" == asked["LC_CTYPE"]


@pytest.mark.parametrize(
    ("begins", "problem", "cure"),
    [
        (b"#!/bin/sh\r\necho a\r\n", "has line ends of DOS", "sed -i 's/\\r$//' ./job"),
        (b"\xef\xbb\xbf#!/bin/sh\n", "begins with a byte order", "sed -i '1s/^\\xef\\xbb\\xbf//'"),
    ],
)
def test_a_script_of_another_system_is_refused_with_the_cure(
    iod, daemon, here, begins, problem, cure
):
    script = here / "job"
    script.write_bytes(begins)
    script.chmod(0o755)

    code, line = iod.fails("submit", "--", "./job")

    assert 1 == code
    assert f"./job: {problem}" in line
    assert cure in line
    subprocess.run(line.partition("name: ")[2].partition(";")[0], shell=True, check=True)
    assert 0 == iod("submit", "--", "./job").code
    subprocess.run(["./job"], check=True, capture_output=True)


@pytest.mark.parametrize(
    "line",
    [
        *("FOO=1 true", "cd / && true", ". ./env && true"),
    ],
)
def test_what_a_shell_would_understand_is_pointed_to_it(iod, here, line):
    (here / "jobs").write_text(f"{line}\n")

    code, told = iod.fails("submit", "--from", "jobs")

    assert 1 == code
    assert "--shell has it run by a shell" in told


@pytest.mark.parametrize("time", ["unlimited", "UNLIMITED", "infinite"])
def test_no_limit_is_said_in_an_option_and_in_a_script(iod, daemon, here, time):
    (here / "job").write_text(f"#!/bin/sh\n#IOD time={time}\n")
    (here / "job").chmod(0o755)

    for words in (("-t", time, "--", "true"), ("--", "./job")):
        assert 0 == iod("submit", *words).code
        assert "walltime_s" not in only(daemon)


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("unsuspend", ["suspend"], ": none"),
        ("--no-wait", ["--wait"], ": none"),
        ("--suspend", ["--no-suspend"], ": none"),
        ("suspendd", ["suspend"], ": did you mean suspend?"),
        ("suspned", ["suspend"], ": did you mean suspend?"),
        ("--wiat", ["--wait"], ": did you mean --wait?"),
        ("hist", ["history", "hint"], ": did you mean history?"),
        ("s", ["show", "stop"], ": none"),
    ],
)
def test_the_opposite_is_not_offered(word, known, expected):
    assert expected == nearest(word, known, "none")


def test_an_interrupt_while_modules_load_shows_no_traceback():
    """The module that is loaded last sends it."""
    code = """
import os, signal, sys, types
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "iodaemon.cli.program":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["iod", "queue"]
from iodaemon.cli import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert (-signal.SIGINT, b"") == (ended.returncode, ended.stderr)
