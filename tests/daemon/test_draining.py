"""``iod drain`` on a daemon: who may, what is told, what outlives it."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from process import daemon, iod, wait_until
from served import Served

from iodaemon.api.care import begin_drain, end_drain, reload_config, show_drain
from iodaemon.daemon.http.access import Actor, Rights
from iodaemon.errors import NotPermitted, RequestError

pytestmark = pytest.mark.node


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path)
    yield served
    served.close()


@pytest.fixture
def places(tmp_path):
    return tmp_path / "state", tmp_path / "run"


def submit(client, *words):
    [job_id] = client.submit([{"command": list(words)}], {})
    return job_id


def state(client, job_id):
    return client.job(job_id)["state"]


def test_what_is_submitted_to_a_drained_node_is_accepted_and_waits_with_the_reason(served):
    told = begin_drain(served.client, "disk swap\n\x1b[2J  and more")
    job_id = submit(served.client, "compute=0s")

    job = served.client.job(job_id)
    assert told["draining"]
    assert ("PENDING", "Drain") == (job["state"], job["reason"]["code"])
    assert f"drained by {told['by']}: disk swap" in job["reason"]["text"]
    assert "\x1b" not in job["reason"]["text"]
    assert ", for " in job["reason"]["text"]
    assert "'iod drain --off'" in served.client.why(job_id)["until"]


def test_a_wait_ends_when_somebody_ends_the_drain(served):
    job_id = served.running()
    begin_drain(served.client)
    with ThreadPoolExecutor() as others:
        waiting = others.submit(show_drain, served.client, 20)
        served.await_waiting(1)
        end_drain(served.client)
        told = waiting.result()

    assert (False, [job_id]) == (told["draining"], [job["id"] for job in told["holding"]])


def test_what_runs_can_be_suspended_and_resumed_meanwhile(served):
    job_id = served.running()
    begin_drain(served.client)

    assert "SUSPENDED_USER" == served.client.suspend(job_id)["job"]["state"]
    assert "RUNNING" == served.client.resume(job_id)["job"]["state"]


def test_who_is_no_administrator_may_look_and_not_order(tmp_path, monkeypatch):
    ann = Actor(pid=1, uid=1001, gids=frozenset({1001}))
    monkeypatch.setattr("iodaemon.daemon.http.access.read_peer", lambda _: ann)
    served = Served(tmp_path, rights=Rights(owner_uid=4242, is_shared=True))
    try:
        assert not show_drain(served.client)["draining"]
        for order in (begin_drain, end_drain, reload_config):
            with pytest.raises(NotPermitted, match="root and the daemon's group may"):
                order(served.client)
    finally:
        served.close()


def test_a_reason_beyond_a_line_is_refused(served):
    with pytest.raises(RequestError, match="has 201 characters; say it in 200"):
        begin_drain(served.client, "x" * 201)

    assert not show_drain(served.client)["draining"]


def test_it_outlives_the_daemon_and_is_in_node_metrics_and_events(places):
    with daemon(*places) as (client, process):
        begun = iod(places[1] / "iod.sock", "drain", "--reason", "new memory")
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    assert (0, "") == (begun.returncode, begun.stderr)
    begins, _, ends = begun.stdout.partition(" (since ")
    assert begins == "nothing starts, the node is drained by root: new memory"
    assert ends.endswith("); no job holds CPUs\n")

    with daemon(*places) as (client, _):
        job_id = submit(client, "compute=0s")
        socket = places[1] / "iod.sock"
        node, queue, why = iod(socket, "node"), iod(socket, "queue"), iod(socket, "why", "1")
        page = subprocess.run(
            ["curl", "-s", "--unix-socket", str(socket), "http://localhost/metrics"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "PENDING" == state(client, job_id)
        assert "draining" in node.stdout
        assert "new memory" in node.stdout
        assert "new memory" in queue.stdout
        assert "new memory" in why.stdout
        assert "iodaemon_draining 1.0" in page
        assert "jobs start" in iod(socket, "drain", "--off").stdout
        assert client.wait([job_id], timeout_s=20)["finished"]
        told = iod(socket, "events", "--kind", "drain").stdout.splitlines()
    assert 2 == len(told)
    assert "new memory" in told[0]
    assert "jobs start again" in told[1]


def test_the_command_waits_and_names_what_will_not_end_by_itself(places):
    with daemon(*places) as (client, _):
        job_id = submit(client, "compute=60s")
        assert wait_until(lambda: state(client, job_id) == "RUNNING")
        client.suspend(job_id)
        words = [sys.executable, "-m", "iodaemon.cli", "--api", str(places[1] / "iod.sock")]
        waiting = subprocess.Popen(
            [*words, "drain", "--wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert waiting.stderr is not None
        assert "CPUs are held by 1" in waiting.stderr.readline()
        client.cancel(job_id, grace_s=0)
        out, _ = waiting.communicate(timeout=30)

    assert 0 == waiting.returncode
    assert out.endswith("; no job holds CPUs\n")


def test_off_goes_with_nothing_else(places):
    ended = iod(places[1] / "iod.sock", "drain", "--off", "--wait")

    assert 2 == ended.returncode
    assert 1 == len(ended.stderr.splitlines())
