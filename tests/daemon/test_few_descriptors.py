"""Where descriptors run out, daemon and root side do less and do not end."""

import resource

import pytest
from harness import Server, until

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
