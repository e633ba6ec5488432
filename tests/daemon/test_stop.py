"""``iod stop``: the daemon ends, its jobs run on; one that systemd keeps up is left to systemd."""

from __future__ import annotations

import os
import sys
from subprocess import run

import pytest
from process import READY_S, daemon, environment

from iodaemon.systemd import is_unit

pytestmark = pytest.mark.node


def iod(runtime, *words):
    ended = run(
        [sys.executable, "-m", "iodaemon.cli", "--api", str(runtime / "iod.sock"), *words],
        env=environment(runtime),
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture
def places(tmp_path):
    runtime = tmp_path / "run"
    runtime.mkdir(0o700)
    return tmp_path / "state", runtime


def test_a_daemon_that_systemd_keeps_up_is_not_stopped(places, monkeypatch):
    state, runtime = places
    with daemon(state, runtime) as (client, process):
        assert "iod stop" == client.node()["stopped_by"]
    script = 'SYSTEMD_EXEC_PID=$$ exec "$0" "$@"'
    monkeypatch.setattr("process.command", lambda *words, **_: ["sh", "-c", script, *made(*words)])
    with daemon(state, runtime) as (client, process):
        code, out, err = iod(runtime, "stop")

        assert (1, "") == (code, out)
        assert "'systemctl --user stop iodaemon'" in err
        assert process.poll() is None


def made(state, runtime):
    options = ("--state-dir", str(state), "--socket", str(runtime / "iod.sock"))
    return [sys.executable, "-m", "iodaemon.cli", "daemon", "--backend", "simulated", *options]


def test_a_process_below_a_unit_is_no_unit(monkeypatch):
    monkeypatch.setenv("SYSTEMD_EXEC_PID", str(os.getppid()))
    assert not is_unit()
    monkeypatch.setenv("SYSTEMD_EXEC_PID", str(os.getpid()))
    assert is_unit()
