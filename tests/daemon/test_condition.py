"""Shadow mode and a drain are seen wherever the node is shown; unknown query keys are refused."""

import json

import pytest
from process import daemon
from served import Served

from iodaemon.api.care import begin_drain, end_drain
from iodaemon.cli import main
from iodaemon.daemon.http.route import SELECTOR_KEYS
from iodaemon.doctor.running_daemon import judge_condition

pytestmark = pytest.mark.node


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path)
    yield served
    served.close()


def test_the_condition_stands_in_queue_node_and_doctor(served, capsys):
    begin_drain(served.client, "new memory")
    served.client.switch("shadow")
    drain = {"since_s": served.state.drain.since_s, "by": "root", "reason": "new memory"}
    expected = {"mode": "shadow", "drain": drain, "starts_blocked": ""}

    assert expected == served.client.jobs()["node"]["condition"]
    assert expected == served.client.node()["condition"]
    served.client.submit([{"command": ["exit=0"]}], {})
    mode, drain = judge_condition(served.client.node())
    assert "nothing starts, the node is drained by root: new memory" == drain.measured
    for verb in ("queue", "node", "mode", "drain"):
        assert 0 == main(["--api", served.socket_path, verb])
        told = capsys.readouterr().out
        assert (verb != "drain") == (mode.measured in told)
        assert (verb != "mode") == (drain.measured in told)
    assert 0 == main(["--api", served.socket_path, "why", "1"])
    assert drain.measured in " ".join(capsys.readouterr().out.split())


def test_a_node_as_usual_shows_nothing_of_it(served, capsys):
    assert 0 == main(["--api", served.socket_path, "queue"])
    first, _ = capsys.readouterr().out.splitlines()

    assert first.startswith("policy ")
    assert [] == list(judge_condition(served.client.node()))
    assert [] == list(judge_condition({}))


def test_a_later_drain_without_a_reason_keeps_the_first(served):
    first = begin_drain(served.client, "new memory")
    second = begin_drain(served.client)
    third = begin_drain(served.client, "a new disk as well")

    assert ["new memory"] * 2 == [first["reason"], second["reason"]]
    assert first["since_s"] == second["since_s"] == third["since_s"]
    assert "a new disk as well" == third["reason"]


def test_drain_alone_shows_and_changes_nothing(served, capsys):
    def drain(*words):
        code = main(["--api", served.socket_path, "drain", "--json", *words])
        return code, json.loads(capsys.readouterr().out)["draining"]

    assert (0, False) == drain()
    assert (0, True) == drain("on")
    assert (0, True) == drain()
    assert (0, False) == drain("off")
    assert (0, True) == drain("--reason", "x")
    assert (0, False) == drain("--off")
    assert (0, True) == drain("--wait")
    for words in (("on", "--off"), ("off", "--wait"), ("onn",)):
        assert 2 == main(["--api", served.socket_path, "drain", *words])
    end_drain(served.client)


def test_the_ready_line_and_the_running_configuration_tell_the_mode(tmp_path):
    with daemon(tmp_path / "state", tmp_path / "run") as (client, _):
        client.switch("shadow")
        begin_drain(client, "new memory")
        [row] = [each for each in client.config()["settings"] if each["key"] == "mode"]

        assert '"shadow"' == row["value"]
        assert '"on"' in row["origin"]


# -- query keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "key"),
    [
        ("/v1/jobs?stat=FAILED", "stat"),
        ("/v1/history?since=1", "since"),
        ("/v1/events?follow=0&form=1", "form"),
        ("/v1/node?x=1", "x"),
        ("/v1/mode?mode=off", "mode"),
        ("/v1/drain?waits=1", "waits"),
        ("/v1/wait/all?all=1", "all"),
    ],
)
def test_an_unknown_query_key_is_refused_by_name(served, target, key):
    status, code, message = served.ask("GET", target).error

    assert (400, "refused") == (status, code)
    assert f"'{key}'" in message


def test_a_query_key_that_is_given_twice_is_refused(served):
    status, _, message = served.ask("GET", "/v1/jobs?limit=1&limit=2").error

    assert (400, "limit is given more than once; write it once") == (status, message)


def test_known_query_keys_are_taken(served):
    job_id = served.ended()
    selectors = "&".join(f"{key}=" for key in SELECTOR_KEYS[:3])

    for target in (
        f"/v1/jobs?{selectors}&all=1&limit=3&state=R",
        "/v1/history?name=*&limit=1&state=CD&since_s=0&until_s=1",
        "/v1/history?by=user",
        "/v1/hints?name=*&limit=1",
        "/v1/events?since=0&follow=0",
        "/v1/samples?since=0",
        "/v1/drain?wait=0",
        f"/v1/jobs/{job_id}",
    ):
        assert 200 == served.ask("GET", target).status, target
    assert 404 == served.ask("GET", "/v1/nothing?x=1").status


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("controls", "count"), [({"memory": False}, 1), ({"memory": True}, 0)])
def test_a_submission_is_told_that_the_machine_keeps_no_memory_limit(tmp_path, controls, count):
    served = Served(tmp_path, controls=controls)
    try:
        answer = served.client.submit_warned([{"command": ["exit=0"], "memory_bytes": 1 << 30}], {})
    finally:
        served.close()

    assert count == len(answer.get("warnings", []))
