"""A daemon of this version beside a keeper of the version before, as after an upgrade."""

import subprocess
import sys
from pathlib import Path

import pytest
from harness import end, is_listening, until

from iodaemon.backend.linux import protocol

pytestmark = pytest.mark.node

PACKAGE = Path(__file__).parents[1] / "data" / "keeper-protocol-1.zip"
"""The keeper of the last version with protocol 1, as it was."""
CODE = (
    f"import sys; sys.path.append({str(PACKAGE)!r}); "
    "from iodaemon.backend.linux.keeper_main import main; sys.exit(main())"
)


@pytest.fixture
def server(make_server):
    """A server whose keeper is of the version before."""
    server = make_server(orphan_grace="60 s")
    for path in (server.state, server.runtime):
        path.mkdir(mode=0o700)
    socket = server.runtime / "keeper.sock"
    means = "signals" if server.means == "signals" else "auto"
    words = [sys.executable, "-I", "-S", "-c", CODE, server.state, socket, "60", means]
    with open(server.state / "keeper.log", "ab") as log:
        server.old_keeper = subprocess.Popen(words, stderr=log, env=server.environment, cwd="/")
    until(lambda: is_listening(socket), "keeper")
    return server.start()


def test_a_keeper_of_the_version_before_serves_until_another_takes_its_jobs(server):
    ended, killed, lasting = (server.gated(name, code=3) for name in ("a", "b", "c"))
    for job in (ended, killed, lasting):
        server.await_state(job, "RUNNING")
    assert server.old_keeper.pid == server.keeper_pid()
    server.suspend(lasting)
    server.await_state(lasting, "SUSPENDED_USER")
    frozen = server.frozen()
    server.client.resume(lasting)
    server.goes_on("c")
    cancelled = server.client.cancel(killed, grace_s=5.0)
    server.kill()
    server.restart()
    server.open_gate("a")
    first = server.outcome(ended)
    end(server.old_keeper.pid)
    server.old_keeper.wait()
    until(lambda: server.keeper_pid() != server.old_keeper.pid, "another keeper")
    server.suspend(lasting)
    server.await_state(lasting, "SUSPENDED_USER")
    server.client.resume(lasting)
    server.open_gate("c")

    assert frozen
    assert "CANCELLED" == cancelled["job"]["state"]
    assert [("FAILED", 3)] == first == server.outcome(lasting)
    assert not any((server.directory(job) / "shim.lock").exists() for job in (ended, lasting))


@pytest.mark.parametrize(
    ("hello", "common"),
    [
        ({"version": 1}, 1),
        ({"version": protocol.VERSION}, protocol.VERSION),
        ({"version": 1, "newest": 1}, 1),
        ({"version": 1, "newest": 99}, protocol.VERSION),
        ({"version": protocol.VERSION, "newest": 99}, protocol.VERSION),
        ({"version": 99, "newest": 100}, None),
        ({"version": 0, "newest": 0}, None),
        ({"version": 0}, None),
    ],
)
def test_the_newest_version_that_both_speak_is_agreed_on(hello, common):
    assert common == protocol.common_version(hello)
