"""Where descriptors run out, daemon and root side do less and do not end."""

import contextlib
import http.client
import json
import os
import resource
import socket

import pytest
from harness import PATIENCE_S, Server, end, until

pytestmark = pytest.mark.node

FEW = 44
JOBS = 12


@pytest.fixture
def server():
    with Server("signals") as server:
        yield server.start()


def allow(pid, files):
    hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (files, hard))


def pid_of(server, who):
    if who == "daemon":
        return server.process.pid
    return server.supervisor_pid() if who == "supervisor" else server.anchor_pid()


@pytest.mark.parametrize("who", ["daemon", "supervisor", "anchor"])
def test_more_jobs_than_descriptors_end_nobody(server, who):
    pid = pid_of(server, who)
    allow(pid, FEW)
    jobs = [server.gated("it", code=3) for _ in range(JOBS)]
    until(lambda: len(server.lines()) > 2, "some starts")
    server.client.jobs()
    server.open_gate("it")

    assert [("FAILED", 3)] * JOBS == server.outcome(*jobs)
    assert pid == pid_of(server, who)
    assert server.is_running()


class Connection(http.client.HTTPConnection):
    """One that stays open to a daemon."""

    def __init__(self, server):
        super().__init__("iod", timeout=PATIENCE_S)
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(server.runtime / "iod.sock"))

    def ask(self, method, path, body=None):
        text = None if body is None else json.dumps(body)
        self.request(method, path, text, {"Content-Type": "application/json"})
        answer = self.getresponse()
        return answer.status, json.loads(answer.read())


def test_clients_that_take_all_descriptors_end_no_daemon(server):
    """A sample, a request and a new line to the root side all find none."""
    daemon, asking = server.process.pid, Connection(server)
    until(lambda: asking.ask("GET", "/v1/node")[1]["devices"][0]["load"], "a sample")
    files = f"/proc/{daemon}/fd"
    allow(daemon, most := max(map(int, os.listdir(files))) + 8)
    with contextlib.ExitStack() as others:
        for _ in range(2 * FEW):
            others.enter_context(Connection(server).sock)
        until(lambda: len(os.listdir(files)) == most, "connections that take all")
        text = f"until [ -e {server.gate('it')} ]; do sleep 0.05; done; exit 3"
        command = ["/bin/sh", "-c", text]
        submission = {"jobs": [{"command": command, "cwd": "/"}], "environment": {}}
        _, made = asking.ask("POST", "/v1/jobs", submission)
        [job] = made["ids"]
        path = f"/v1/jobs/{job}"
        until(lambda: asking.ask("GET", path)[1]["operations"], "a sample of the job")
        status, refusal = asking.ask("GET", "/v1/node")
        assert (503, "unavailable") == (status, refusal["error"]["code"])

        supervisor = server.supervisor_pid()
        end(server.anchor_pid())
        end(supervisor)
        _, made = asking.ask("POST", "/v1/jobs", submission)
        [waits] = made["ids"]
        path = f"/v1/jobs/{waits}"
        none_left = "supervisor.sock: Too many open files"
        until(lambda: none_left in str(asking.ask("GET", path)[1]["reason"]), "no new line")

    asking.close()
    server.open_gate("it")
    assert [("FAILED", 3)] * 2 == server.outcome(job, waits)
    assert server.log.read_text().count("event=not_accepted") == 1
