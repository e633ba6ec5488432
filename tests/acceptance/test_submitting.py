"""What the command line submits, and what a job that calls it meets."""

import shlex
import subprocess
import sys

import pytest

pytestmark = pytest.mark.node

LONGEST_BYTES = 131_071
"""Of a script from standard input, which is one word of a command (MAX_ARG_STRLEN)."""


def test_a_job_waits_for_all_others_and_not_for_itself(plain):
    other = plain.gated("other", code=3)
    words = shlex.join([sys.executable, "-m", "iodaemon.cli"])
    hidden = f"setsid env -i PATH=$PATH PYTHONPATH=$PYTHONPATH {words} --api $IOD_API_SOCKET"
    waits = plain.script(f"{hidden} wait all; echo $? > waited; {words} wait $IOD_JOB_ID 2> told")
    plain.goes_on("other")
    plain.open_gate("other")

    assert plain.outcome(waits, other) == [("FAILED", 1), ("FAILED", 3)]
    assert (plain.place / "waited").read_text() == "3\n"
    assert "would never end" in (plain.place / "told").read_text()


def test_a_script_from_standard_input_runs_after_its_sender_is_gone(plain):
    script = '#!/bin/sh -e\n#IOD name=piped\necho "$0: $1" > said\nfalse\n'
    script += "#" * (LONGEST_BYTES - len(script))
    told = subprocess.run(
        plain.words("submit", "--parsable", "-", "one"),
        input=script,
        cwd=plain.place,
        env=plain.environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert plain.outcome(int(told.stdout)) == [("FAILED", 1)]
    assert (plain.place / "said").read_text() == "standard-input: one\n"


def test_a_refusal_names_the_line_and_the_option_of_the_submitter(plain):
    (plain.place / "jobs.txt").write_text(f"true\n\n-J {'x' * 201} -- true\n")
    refused = plain.iod("submit", "--from", "jobs.txt")
    alone = plain.iod("submit", "-J", "x" * 201, "--", "true")

    assert refused.err == f"iod: jobs.txt:3: {alone.err.removeprefix('iod: ')}"
    assert alone.err.startswith("iod: --name has more than 200 characters")


def test_a_dry_run_is_refused_as_the_submission_is(plain):
    before = plain.get("/v1/jobs?all=1")["jobs"]
    for words in (("-J", "x" * 201), ("-n", "100000")):
        tried = plain.iod("submit", "--dry-run", *words, "--", "true")
        done = plain.iod("submit", *words, "--", "true")

        assert tried.code == done.code == 1
        assert tried.err == done.err
    assert plain.iod("submit", "--dry-run", "--", "true").code == 0
    assert plain.get("/v1/jobs?all=1")["jobs"] == before
