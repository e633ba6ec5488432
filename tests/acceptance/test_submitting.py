"""What the command line submits, and what a job that calls it meets."""

import shlex
import subprocess
import sys

import pytest

pytestmark = pytest.mark.node

LONGEST_BYTES = 131_071
"""Of a script from standard input, which is one word of a command (MAX_ARG_STRLEN)."""


def test_a_job_waits_for_all_others_and_not_for_itself(system):
    other = system.gated("other", code=3)
    words = shlex.join([sys.executable, "-m", "iodaemon.cli"])
    hidden = f"setsid env -i PATH=$PATH PYTHONPATH=$PYTHONPATH {words} --api $IOD_API_SOCKET"
    waits = system.submit(f"{hidden} wait all; echo $? > waited; {words} wait $IOD_JOB_ID 2> told")
    system.goes_on("other")
    system.open("other")

    assert system.outcome(waits, other) == [("FAILED", 1), ("FAILED", 3)]
    assert (system.work / "waited").read_text() == "3\n"
    assert "would never end" in (system.work / "told").read_text()


def test_a_script_from_standard_input_runs_after_its_sender_is_gone(system):
    script = '#!/bin/sh -e\n#IOD name=piped\necho "$0: $1" > said\nfalse\n'
    script += "#" * (LONGEST_BYTES - len(script))
    told = subprocess.run(
        system.command("submit", "--parsable", "-", "one"),
        input=script,
        cwd=system.work,
        env=system.environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert system.outcome(int(told.stdout)) == [("FAILED", 1)]
    assert (system.work / "said").read_text() == "standard-input: one\n"


def test_a_refusal_names_the_line_and_the_option_of_the_submitter(system):
    (system.work / "jobs.txt").write_text(f"true\n\n-J {'x' * 201} -- true\n")
    refused = system.iod("submit", "--from", "jobs.txt")
    alone = system.iod("submit", "-J", "x" * 201, "--", "true")

    assert refused.err == f"iod: jobs.txt:3: {alone.err.removeprefix('iod: ')}"
    assert alone.err.startswith("iod: --name has more than 200 characters")


def test_a_dry_run_is_refused_as_the_submission_is(system):
    before = system.get("/v1/jobs?all=1")["jobs"]
    for words in (("-J", "x" * 201), ("-n", "100000")):
        tried = system.iod("submit", "--dry-run", *words, "--", "true")
        done = system.iod("submit", *words, "--", "true")

        assert tried.code == done.code == 1
        assert tried.err == done.err
    assert system.iod("submit", "--dry-run", "--", "true").code == 0
    assert system.get("/v1/jobs?all=1")["jobs"] == before
