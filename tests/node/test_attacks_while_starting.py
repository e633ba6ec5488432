"""What a daemon that was taken over may ask of a keeper about a job that is just being started."""

import os
import random

import pytest

from iodaemon.backend.linux import protocol

FUZZED_JOBS = 60
ASKED_OF_EACH = 15
OF_A_JOB = ["start", "freeze", "thaw", "kill", "tidy"]

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others"),
]


def answers(keeper):
    line = keeper.line()
    return "pid" in line.ask("hello", version=protocol.VERSION, state=str(keeper.state.resolve()))


@pytest.mark.parametrize("number", [99, -1, 0, 65.5, "x", None, [], 10**40])
def test_a_signal_that_is_none_is_refused_also_of_a_job_that_is_starting(keeper, number):
    line = keeper.begin()
    about = {"job": 1, "attempt": 1}
    launch = keeper.launch("sleep 60")
    line.say(("start", {**about, "launch": launch}), ("kill", {**about, "signal": number}))
    told = [line.hear() for _ in range(2)]
    line.ask("kill", job=1, attempt=1, signal=9)

    errors = [each["error"] for each in told if "error" in each]
    assert 1 == len(errors)
    assert "malformed request" in errors[0]
    assert answers(keeper)


@pytest.mark.parametrize("verb", OF_A_JOB)
def test_what_is_about_a_job_names_one(keeper, verb):
    line = keeper.begin()
    before = sorted(keeper.state.rglob("*"))

    told = line.ask(verb, signal=9, launch=keeper.launch("true"))

    assert "malformed request" in told["error"]
    assert before == sorted(keeper.state.rglob("*"))


def test_a_kill_while_a_job_begins_is_done_though_its_note_cannot_be_made(keeper):
    """As on a disk that is full: nothing is written down, and the job ends all the same."""
    line = keeper.begin()
    about = {"job": 1, "attempt": 1}
    launch = keeper.launch("exec sleep 60")
    line.say(("start", {**about, "launch": launch}))
    line.hear()
    (keeper.directory(1) / "told").symlink_to("/nowhere/at/all/..")
    (keeper.directory(1) / "told").unlink()
    (keeper.directory(1) / "told").mkdir()
    told = line.ask("kill", **about, signal=15)
    (keeper.directory(1) / "told").rmdir()

    assert {"signalled": 1} == told
    assert answers(keeper)
    line.ask("kill", **about, signal=9)


def odd(generator):
    plain = [None, "", 0, 1, 2, 9, 15, 19, 64, 99, -1, 10**40, float("nan"), True, [], {}, "\0"]
    return generator.choice(plain)


def test_a_keeper_outlives_whatever_it_is_asked_of_jobs_that_are_starting(keeper):
    generator = random.Random(21)
    line = keeper.begin()
    for job in range(1, FUZZED_JOBS + 1):
        launch = keeper.launch("true")
        if generator.random() < 0.2:
            launch[generator.choice(sorted(launch))] = odd(generator)
        asked = [("start", {"job": job, "attempt": 1, "launch": launch})]
        for _ in range(ASKED_OF_EACH):
            fields = {"job": job, "attempt": 1, "signal": odd(generator), "jobs": [[job, 1]]}
            if generator.random() < 0.2:
                fields[generator.choice(sorted(fields))] = odd(generator)
            verb = generator.choice([*OF_A_JOB, "kill", "kill", "list"])
            asked.append((verb, fields))
        about = {"job": job, "attempt": 1}  # frozen before its exec it waits for a thaw
        asked += [("thaw", about), ("kill", {**about, "signal": 9})]
        line.say(*asked)
        for _ in asked:
            line.hear()

    assert answers(keeper)
