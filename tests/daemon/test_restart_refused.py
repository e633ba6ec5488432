"""What a daemon refuses to start on: one line that says what to do, and an exit code that
systemd understands where trying again does not help."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import MARK, PATIENCE_S, Server, is_listening, until

import iodaemon
from iodaemon.supervisor import anchor

pytestmark = pytest.mark.node


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


def other_release(place):
    """A copy of the root side that speaks another protocol."""
    package = place / "iodaemon" / "supervisor"
    shutil.copytree(Path(iodaemon.__path__[0]) / "supervisor", package)
    (package.parent / "__init__.py").touch()
    said = (package / "protocol.py").read_text()
    assert "VERSION: Final = 1\n" in said
    (package / "protocol.py").write_text(said.replace("VERSION: Final = 1\n", "VERSION = 99\n"))
    return place


def test_a_supervisor_of_another_release_that_cannot_become_this_one(make_server, tmp_path):
    server = make_server()
    server.runtime.mkdir(mode=0o700)
    config = anchor.Config(runtime=str(server.runtime), daemon_uid=os.geteuid(), cgroup="none")
    words = anchor.command("anchor", config.dump())
    root = str(Path(iodaemon.__path__[0]).parent)
    elsewhere = str(other_release(tmp_path))
    words = [word.replace(root, elsewhere) for word in words[1:]]
    other = subprocess.Popen([sys.executable, *words], env=server.environment)
    until(lambda: is_listening(server.runtime / anchor.SOCKET), "a supervisor")
    pid = server.supervisor_pid()
    exit_code, lines = refusal(server)
    other.terminate()
    other.wait()

    assert exit_code == 1
    assert len(lines) == 1
    assert f"the supervisor that runs (pid {pid}) is of another release" in lines[0]
    assert "restart it once no job runs" in lines[0]
    server.start()


def test_a_state_directory_that_another_daemon_has(server):
    exit_code, lines = refusal(server)

    assert exit_code == 78
    assert len(lines) == 1
    assert f"a daemon runs already on {server.state} (pid {server.process.pid}, " in lines[0]
    assert server.answers()


def test_a_supervisor_that_keeps_the_jobs_of_another_state_directory(server, means):
    """Its ended attempts would be forgotten, and its numbers taken for one's own."""
    job = server.gated("it")
    server.goes_on("it")
    server.kill()
    with Server(means) as other:
        other.start()
        other.outcome(other.script("exit 3"))
        other.stop()
        said = other.config.read_text()
        other.config.write_text(said.replace(str(other.runtime), str(server.runtime)))
        exit_code, lines = refusal(other, **{MARK: other.mark})
    server.restart()
    server.open_gate("it")

    assert exit_code == 1
    assert f"it keeps jobs of the daemon with state directory {server.state}" in lines[-1]
    assert [("COMPLETED", 0)] == server.outcome(job)
