"""What a daemon refuses to start on: one line that says what to do, and an exit code that
systemd understands where trying again does not help."""

import shutil
import subprocess
import sys

import pytest
from harness import MARK, PATIENCE_S, Server, end, is_listening, until

import iodaemon

pytestmark = pytest.mark.node

OTHER_KEEPER = """
import sys
sys.path.insert(0, {root!r})
from iodaemon.backend.linux import keeper_main, protocol
protocol.VERSION = protocol.OLDEST_VERSION = 99
sys.exit(keeper_main.main())
"""


def refusal(server, **environment):
    """Exit code and last words of a daemon that is started and does not want to."""
    found = subprocess.run(
        server.command(),
        env={**server.environment, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    lines = [line for line in found.stderr.splitlines() if " level=INFO " not in line]
    return found.returncode, lines


@pytest.mark.slow
def test_a_keeper_of_another_protocol_version(make_server):
    server = make_server()
    for path in (server.state, server.runtime):
        path.mkdir(mode=0o700)
    code = OTHER_KEEPER.format(root=iodaemon.__path__[0] + "/..")
    socket = server.runtime / "keeper.sock"
    with open(server.state / "keeper.log", "ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-c", code, server.state, socket, "60", server.means],
            stderr=log,
            env=server.environment,
        )
    until(lambda: is_listening(socket), "keeper")
    exit_code, lines = refusal(server)
    end(keeper.pid)
    keeper.wait()
    told = (server.state / "keeper.log").read_text()
    socket.unlink()
    server.start()

    assert exit_code == 1
    assert len(lines) == 1
    assert "speaks protocol 99, not 1" in lines[0]  # the oldest that this daemon speaks
    assert "refused a daemon that speaks protocol 1, not 99" in told


def test_a_state_directory_that_another_daemon_has(server):
    exit_code, lines = refusal(server)

    assert exit_code == 78
    assert len(lines) == 1
    assert f"a daemon runs already on {server.state} (pid {server.process.pid}, " in lines[0]
    assert server.answers()


def test_a_keeper_that_keeps_the_jobs_of_another_state_directory(server, means):
    job = server.gated("it")
    server.goes_on("it")
    server.kill()
    with Server(means) as other:
        shutil.copy(server.config, other.config)
        other.config.write_text(
            server.config.read_text().replace(str(server.state), str(other.state))
        )
        exit_code, lines = refusal(other, **{MARK: other.mark})
        shutil.rmtree(other.runtime, ignore_errors=True)
        other.runtime.mkdir()
        (other.state / "keeper.log").touch()
        other.log.touch()
    server.restart()
    server.open_gate("it")

    assert exit_code == 1
    assert len(lines) == 1
    assert f"keeps the jobs of {server.state}" in lines[0]
    assert [("COMPLETED", 0)] == server.outcome(job)
