"""The runtime directory is removed under a daemon, or is another one in another environment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from system import System, until

pytestmark = pytest.mark.node


@pytest.fixture
def moving(freezer: str) -> Iterator[System]:
    """A daemon of which the sockets may move."""
    with System(freezer) as system:
        yield system.start()


def elsewhere(system: System) -> Path:
    """The same configuration as another environment makes it: with another runtime directory."""
    other = system.config.with_name("other.toml")
    there = json.dumps(str(system.runtime.with_name("other-run")))
    text = system.config.read_text().replace(json.dumps(str(system.runtime)), there)
    other.write_text(text)
    return other


def answers(system: System) -> bool:
    try:
        system.get("/v1/mode")
    except OSError:
        return False
    return True


def refused(system: System, *words: str) -> str:
    """The one line of a command that fails."""
    ended = system.iod_with(*words)
    assert ended.code in (7, 78)
    return ended.err.splitlines()[-1]


def test_who_removes_the_runtime_directory_hinders_nobody(moving: System) -> None:
    moving.gated("first", code=3)
    moving.goes_on("first")
    shutil.rmtree(moving.runtime)
    until(lambda: answers(moving), "a daemon that answers again")
    moving.says("queue")
    moving.gated("second", code=4)
    moving.goes_on("first", "second")
    line = refused(moving, "daemon", "--config", str(moving.config))

    assert f"a daemon runs already on {moving.state} (pid {moving.role_pid('daemon')}" in line

    line = refused(moving, "--config", str(moving.config), "daemon", "--state-dir", "/tmp/none")

    assert f"a daemon runs already on {moving.runtime} (pid" in line

    shutil.rmtree(moving.runtime)
    moving.kill("daemon")
    moving.start()
    moving.open("first", "second")

    assert [("FAILED", 3), ("FAILED", 4)] == moving.outcome(1, 2)
    assert 4 == len(moving.ledger())


def test_a_daemon_that_cannot_make_its_socket_is_told_alike_by_all(moving: System) -> None:
    shutil.rmtree(moving.runtime)
    moving.runtime.touch()  # as /run/user/UID after the logout: it cannot be made
    daemon = refused(moving, "daemon", "--config", str(moving.config))
    client = refused(moving, "--config", str(elsewhere(moving)), "queue")

    assert daemon == client
    assert f"(pid {moving.role_pid('daemon')}) lost its socket {moving.socket_path}" in client

    moving.runtime.unlink()
    until(lambda: answers(moving), "a daemon that answers again")


def test_another_environment_finds_daemon_and_jobs_by_the_state_directory(moving: System) -> None:
    job = moving.gated("job", code=5)
    moving.goes_on("job")
    other = elsewhere(moving)
    ended = moving.iod_with("--config", str(other), "show", str(job))

    assert (0, "") == (ended.code, ended.err)

    moving.end()
    moving.config.write_text(other.read_text())
    moving.socket_path = moving.runtime.with_name("other-run") / "iod.sock"
    moving.start()
    moving.open("job")

    assert [("FAILED", 5)] == moving.outcome(job)
    assert ["begin job", "end job"] == moving.ledger()
