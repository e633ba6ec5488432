"""The runtime directory is removed under a daemon, or is another one in another environment."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import cgroup_is_writable, until
from system import System

pytestmark = pytest.mark.node

NOBODY = 65534


@pytest.fixture
def moving():
    """A daemon of which the sockets may move."""
    with System("cgroup" if cgroup_is_writable() else "signals") as system:
        yield system.start()


def elsewhere(system: System) -> Path:
    """The same configuration as another environment makes it: with another runtime directory."""
    other = system.config.with_name("other.toml")
    there = json.dumps(str(system.runtime.with_name("other-run")))
    text = system.config.read_text().replace(json.dumps(str(system.runtime)), there)
    other.write_text(text)
    return other


def refused(system: System, *words: str) -> str:
    """The one line of a command that fails."""
    ended = system.iod_alone(*words)
    assert ended.code in (7, 78)
    return ended.err.splitlines()[-1]


def abstract_names(pid: int) -> set[str]:
    """Where a process listens beside the file system."""
    links = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            links.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    mine = [line[7] for line in lines if line[7:] and f"socket:[{line[6]}]" in links]
    return {name[1:] for name in mine if name.startswith("@")}


@contextlib.contextmanager
def taken_by_another_user(names: set[str]) -> Iterator[None]:
    """Somebody listens at these abstract addresses, and never accepts."""
    with contextlib.ExitStack() as kept:
        taken = [kept.enter_context(socket.socket(socket.AF_UNIX)) for _ in names]
        pid = os.fork()
        if pid == 0:  # whoever listens is the peer that is seen
            try:
                os.setuid(NOBODY)
                for each, name in zip(taken, names, strict=True):
                    each.bind(f"\0{name}")
                    each.listen(16)
                os._exit(0)
            finally:
                os._exit(1)
        assert (pid, 0) == os.waitpid(pid, 0)
        yield


def lives_on(system: System, *, is_found_elsewhere: bool) -> None:
    """A job and its supervisor outlive the runtime directory, and are found by another daemon."""
    job = system.gated("job", code=5)
    system.goes_on("job")
    supervisor = system.supervisor_pid()
    assert is_found_elsewhere == bool(abstract_names(supervisor))
    sockets = {path.name for path in system.runtime.iterdir() if path.is_socket()}
    shutil.rmtree(system.runtime)
    if not is_found_elsewhere:
        there = system.runtime.joinpath
        until(lambda: all(there(name).exists() for name in sockets), "sockets made again")
    system.kill()
    system.start()
    system.goes_on("job")
    assert supervisor == system.supervisor_pid()
    second = system.gated("second", code=6)
    system.open_gate("job", "second")

    assert [("FAILED", 5), ("FAILED", 6)] == system.outcome(job, second)
    assert 4 == len(system.lines())
    assert supervisor == system.supervisor_pid()


def test_a_restart_finds_job_and_supervisor_without_the_runtime_directory(moving):
    lives_on(moving, is_found_elsewhere=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_also_where_another_user_has_the_second_address(moving):
    names = abstract_names(moving.supervisor_pid())
    moving.stop()
    until(lambda: not moving.supervisor_lives(), "end of the supervisor")
    with taken_by_another_user(names):
        moving.start()
        lives_on(moving, is_found_elsewhere=False)


def test_who_removes_the_runtime_directory_hinders_nobody(moving):
    moving.gated("first", code=3)
    moving.goes_on("first")
    shutil.rmtree(moving.runtime)
    until(lambda: moving.answers(), "a daemon that answers again")
    moving.says("queue")
    moving.gated("second", code=4)
    moving.goes_on("first")
    moving.goes_on("second")
    line = refused(moving, "daemon", "--config", str(moving.config))

    assert f"a daemon runs already on {moving.state} (pid {moving.process.pid}" in line

    line = refused(moving, "--config", str(moving.config), "daemon", "--state-dir", "/tmp/none")

    assert f"a daemon runs already on {moving.runtime} (pid" in line

    shutil.rmtree(moving.runtime)
    moving.kill()
    moving.start()
    moving.open_gate("first", "second")

    assert [("FAILED", 3), ("FAILED", 4)] == moving.outcome(1, 2)
    assert 4 == len(moving.lines())


def test_a_daemon_that_cannot_make_its_socket_is_told_alike_by_all(moving):
    shutil.rmtree(moving.runtime)
    moving.runtime.touch()  # as /run/user/UID after the logout: it cannot be made
    daemon = refused(moving, "daemon", "--config", str(moving.config))
    client = refused(moving, "--config", str(elsewhere(moving)), "queue")

    assert daemon == client
    assert f"(pid {moving.process.pid}) lost its socket {moving.client.socket_path}" in client

    moving.runtime.unlink()
    until(lambda: moving.answers(), "a daemon that answers again")


def test_another_environment_finds_daemon_and_jobs_by_the_state_directory(moving):
    job = moving.gated("job", code=5)
    moving.goes_on("job")
    other = elsewhere(moving)
    ended = moving.iod_alone("--config", str(other), "show", str(job))

    assert (0, "") == (ended.code, ended.err)

    moving.stop()
    moving.config.write_text(other.read_text())
    moving.client.socket_path = str(moving.runtime.with_name("other-run") / "iod.sock")
    moving.start()
    moving.open_gate("job")

    assert [("FAILED", 5)] == moving.outcome(job)
    assert ["done job", "start job"] == moving.lines()
