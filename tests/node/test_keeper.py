"""A keeper alone, spoken to over its socket: it starts once, holds, lets go, is replaced."""

import json
import os
import signal
import subprocess

import pytest
from harness import end, until
from keeping import keeper, keeper_words

from iodaemon.backend.linux import protocol
from iodaemon.backend.linux.process import find_state

__all__ = ["keeper"]

pytestmark = pytest.mark.node


ONE = {"job": 1, "attempt": 1}


def test_a_start_asked_for_twice_at_once_happens_once(keeper):
    first, second = keeper.begin(), keeper.line()
    start = ("start", {**ONE, "launch": keeper.gated_launch()})
    first.say(start, start)
    second.say(start)
    answers = [first.hear(), first.hear(), second.hear()]
    keeper.open_gate("it")
    status = keeper.status()
    shims = {json.dumps(answer["ok"]["shim"]) for answer in answers}

    assert len(shims) == 1
    assert status["exit"]["code"] == 3
    assert keeper.lines() == ["done", "start"]
    assert first.ask("start", **ONE, launch=keeper.gated_launch()) == {"status": status}
    assert keeper.lines() == ["done", "start"]


def test_a_job_that_is_just_being_started_is_never_given_up(keeper):
    line = keeper.begin()
    list_it = ("list", {"jobs": [[1, 1]]})
    line.say(("start", {**ONE, "launch": keeper.gated_launch()}), list_it)
    answers = sorted([line.hear(), line.hear()], key=lambda answer: answer["id"])
    keeper.open_gate("it")
    [there] = answers[1]["ok"]["jobs"]

    assert "never_ran" not in there
    assert there["shim"]["main_pid"] == answers[0]["ok"]["shim"]["main_pid"]
    assert keeper.status()["exit"]["code"] == 3


def test_the_next_keeper_answers_for_jobs_of_the_last(keeper):
    line = keeper.begin()
    started = line.ask("start", **ONE, launch=keeper.gated_launch())
    end(keeper.process.pid)
    keeper.process.wait()
    line = keeper.begin()
    again = line.ask("start", **ONE, launch=keeper.gated_launch())
    keeper.open_gate("it")
    keeper.status()

    assert again["alive"]
    assert again["shim"]["main_pid"] == started["shim"]["main_pid"]
    assert keeper.lines() == ["done", "start"]


def test_a_shim_thaws_its_job_when_the_keeper_dies(keeper):
    line = keeper.begin()
    line.ask("start", **ONE, launch=keeper.gated_launch())
    frozen = line.ask("freeze", **ONE)
    end(keeper.process.pid)
    keeper.goes_on("it")
    keeper.open_gate("it")

    assert frozen == {"frozen": True}
    assert keeper.status()["exit"]["code"] == 3


def test_a_shim_that_hears_late_of_the_death_leaves_the_job_to_the_next_keeper(keeper):
    line = keeper.begin()
    shim = line.ask("start", **ONE, launch=keeper.gated_launch())["shim"]["pid"]
    line.ask("freeze", **ONE)
    os.kill(shim, signal.SIGSTOP)
    end(keeper.process.pid)
    keeper.process.wait()
    line = keeper.begin()
    [there] = line.ask("list", jobs=[[1, 1]])["jobs"]
    os.kill(shim, signal.SIGCONT)
    until(lambda: find_state(shim) == "S", "a shim that listens")
    still = keeper.stands_still("it")
    line.ask("thaw", **ONE)
    keeper.goes_on("it")
    keeper.open_gate("it")

    assert there["frozen"]
    assert still
    assert keeper.status()["exit"]["code"] == 3


def test_a_shim_thaws_its_job_when_the_next_keeper_dies_at_once_as_well(keeper):
    line = keeper.begin()
    line.ask("start", **ONE, launch=keeper.gated_launch())
    for _ in range(2):
        end(keeper.process.pid)
        keeper.process.wait()
        line = keeper.begin()
        line.ask("freeze", **ONE)
    end(keeper.process.pid)
    keeper.goes_on("it")
    keeper.open_gate("it")

    assert keeper.status()["exit"]["code"] == 3


def test_jobs_run_on_when_nobody_is_connected_for_the_grace_time(keeper):
    line = keeper.begin(grace_s=0.3)
    line.ask("start", **ONE, launch=keeper.gated_launch())
    line.ask("freeze", **ONE)
    line.close()
    keeper.goes_on("it")
    keeper.open_gate("it")
    keeper.process.wait(20)

    assert keeper.status()["exit"]["code"] == 3
    assert "run on" in (keeper.state / "keeper.log").read_text()
    assert not (keeper.state / "keeper.json").exists()


def test_a_second_keeper_of_one_state_directory_ends_by_itself(keeper):
    keeper.begin()
    command = keeper_words(keeper.state, keeper.runtime / "other.sock", 60, "signals")
    second = subprocess.run(command, env=keeper.environment, capture_output=True, timeout=20)

    assert second.returncode == 0
    assert (
        b"a keeper runs already on %s (pid %d)" % (os.fsencode(keeper.state), keeper.process.pid)
        in second.stderr
    )
    assert not (keeper.runtime / "other.sock").exists()


def test_what_makes_no_sense_is_refused_and_harms_nobody(keeper):
    line = keeper.begin()
    answers = [
        line.ask("dance"),
        line.ask("start", job=1),
        line.ask("freeze", job=9, attempt=1),
        line.ask("kill", job="../x", attempt=1, signal=15),
    ]

    assert all("error" in answer for answer in answers)
    assert line.ask("list", jobs=[[1, 1]]) == {
        "jobs": [{"job": 1, "attempt": 1, "frozen": False, "absent": True}]
    }


def test_a_daemon_of_another_version_or_state_is_refused(keeper):
    line = keeper.begin()
    old = line.ask("hello", version=0, state=os.path.realpath(keeper.state))
    strange = line.ask("hello", version=protocol.VERSION, state="/elsewhere")

    assert "speaks protocol 1, not 0" in old["error"]
    assert "keeps the jobs of" in strange["error"]
