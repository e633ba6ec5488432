"""Drain, reload and events of a daemon that has real jobs, and is killed meanwhile."""

import json
import subprocess

import pytest
from harness import until

pytestmark = pytest.mark.node

SETTINGS = {"policy": "default"}


def test_a_drain_waits_for_the_last_job_and_outlives_the_daemon(plain):
    runs = plain.gated("runs")
    plain.goes_on("runs")
    drained = plain.iod("drain", "--reason", "new disks")
    waits = plain.gated("waits")
    plain.kill()
    plain.start()
    waiting = plain.later(plain.iod, "drain", "--wait")
    plain.await_waiting()
    why = plain.await_state(waits, "PENDING")["reason"]
    is_early = waiting.done()
    plain.open_gate("runs", "waits")
    waited = waiting.result()
    states = plain.states(runs, waits)
    plain.says("drain", "off")

    assert (drained.code, waited.code, is_early) == (0, 0, False)
    assert why["code"] == "Drain"
    assert "new disks" in why["text"]
    assert states == ["COMPLETED", "PENDING"]
    assert plain.outcome(waits) == [("COMPLETED", 0)]


def test_a_configuration_is_read_again_while_jobs_run(plain):
    runs = plain.gated("runs")
    plain.goes_on("runs")
    before = plain.get("/v1/policy")["regulation"]["rule"]
    plain.configure('policy = "default"', 'policy = "none"')
    told = plain.says("config", "reload")
    after = plain.get("/v1/policy")["name"]
    plain.configure('policy = "none"', 'policy = "no-such"')
    refused = plain.iod("config", "reload")
    still = plain.get("/v1/policy")["name"]
    plain.configure('policy = "no-such"', 'policy = "default"')
    plain.says("config", "reload")
    plain.open_gate("runs")

    assert before == "adaptive"
    assert "none" in told
    assert (after, still) == ("none", "none")
    assert refused.code == 1
    assert "no-such" in refused.err
    assert plain.get("/v1/policy")["name"] == "default"
    assert plain.outcome(runs) == [("COMPLETED", 0)]


def test_a_reader_of_events_misses_none_when_the_daemon_is_killed(plain):
    told = plain.place / "told"

    def heard():
        whole, _, _ = told.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    words = plain.words("events", "-f", "--json")
    with told.open("w") as file:
        follower = subprocess.Popen(words, env=plain.environment, stdout=file)
    try:
        until(lambda: plain.outcome(plain.script("true")) and heard(), "the first event heard")
        plain.scripts(*["true"] * 5)
        plain.kill()
        plain.start()
        plain.outcome(*plain.scripts(*["true"] * 5))
        newest = plain.events()[-1]["id"]
        until(lambda: heard()[-1]["id"] >= newest, "the last event heard")
    finally:
        follower.kill()
        follower.wait()

    ids = [event["id"] for event in heard()]
    assert ids == list(range(ids[0], ids[-1] + 1))


def test_stop_names_the_jobs_that_run_on_and_they_do(plain):
    job = plain.gated("it")
    plain.goes_on("it")
    stopped = plain.iod("stop")
    plain.goes_on("it")
    again = plain.iod("stop")
    plain.process.wait()
    plain.start()
    plain.open_gate("it")

    assert stopped.code == 0
    assert f"{job} run" in stopped.out
    assert again.code == 7
    assert plain.outcome(job) == [("COMPLETED", 0)]
