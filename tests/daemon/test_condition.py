"""Shadow mode and a drain: who may order one, and where it is seen."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from served import SHARED

from iodaemon.api.care import begin_drain, end_drain, reload_config, show_drain
from iodaemon.cli import main
from iodaemon.daemon.http.access import Actor
from iodaemon.doctor.running_daemon import judge_condition
from iodaemon.errors import NotPermitted

pytestmark = pytest.mark.node


@pytest.fixture
def iod(served, capsys):
    """Exit code and standard output of the command line."""

    def call(*words):
        code = main(["--api", served.socket_path, *words])
        return code, capsys.readouterr().out

    return call


def test_the_condition_stands_wherever_the_node_is_shown(served, iod):
    begin_drain(served.client, "new memory")
    begin_drain(served.client, "")  # the reason stays
    served.client.switch("shadow")
    drain = {"since_s": served.state.drain.since_s, "by": "root", "reason": "new memory"}
    expected = {"mode": "shadow", "drain": drain, "starts_blocked": ""}

    assert expected == served.client.jobs()["node"]["condition"]
    assert expected == served.client.node()["condition"]
    assert "iodaemon_draining 1.0" in served.ask("GET", "/metrics").body.decode()
    served.client.submit([{"command": ["exit=0"]}], {})
    mode, drain = judge_condition(served.client.node())
    assert "nothing starts, the node is drained by root: new memory" == drain.measured
    for verb in ("queue", "node", "mode", "drain"):
        code, told = iod(verb)
        assert 0 == code
        assert (verb != "drain") == (mode.measured in told)
        assert (verb != "mode") == (drain.measured in told)
    assert drain.measured in " ".join(iod("why", "1")[1].split())
    end_drain(served.client)
    began, ended = iod("events", "--kind", "drain")[1].splitlines()
    assert "new memory" in began
    assert "jobs start again" in ended
    served.client.switch("on")
    assert [] == list(judge_condition(served.client.node()))


def test_drain_alone_shows_and_changes_nothing(iod):
    for words, expected in (
        ((), False),
        (("on",), True),
        ((), True),
        (("off",), False),
        (("--reason", "x"), True),
        (("--off",), False),
        (("--wait",), True),
    ):
        code, told = iod("drain", "--json", *words)
        assert (0, expected) == (code, json.loads(told)["draining"])
    for words in (("on", "--off"), ("off", "--wait"), ("--off", "--wait"), ("onn",)):
        assert (2, "") == iod("drain", *words)


def test_a_wait_ends_when_somebody_ends_the_drain(served):
    job_id = served.running()
    begin_drain(served.client)
    with ThreadPoolExecutor() as others:
        waiting = others.submit(show_drain, served.client, 20)
        served.await_waiting(1)
        end_drain(served.client)
        told = waiting.result()

    assert (False, [job_id]) == (told["draining"], [job["id"] for job in told["holding"]])


def test_who_is_no_administrator_may_look_and_not_order(serve, monkeypatch):
    ann = Actor(pid=1, uid=1001, gids=frozenset({1001}))
    monkeypatch.setattr("iodaemon.daemon.http.access.read_peer", lambda _: ann)
    served = serve(rights=SHARED)

    assert not show_drain(served.client)["draining"]
    for order in (begin_drain, end_drain, reload_config):
        with pytest.raises(NotPermitted, match="root and the daemon's group may"):
            order(served.client)
