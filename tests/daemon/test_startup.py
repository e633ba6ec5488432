"""A daemon that cannot start says why in one line; one that can, does, and ends in order."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from harness import MARK, PATIENCE_S, Server, end, is_listening, until
from process import await_read, command, daemon, iod, read_until, stop, wait_until

import iodaemon
from iodaemon.cli import main
from iodaemon.daemon.journal.writer import Journal
from iodaemon.supervisor import anchor
from iodaemon.systemd import is_unit

pytestmark = pytest.mark.node


HOPELESS = 78
"""systemd does not try again (RestartPreventExitStatus=)."""


@pytest.fixture
def places(tmp_path):
    """State and runtime directory."""
    return tmp_path / "state", tmp_path / "run"


@pytest.fixture
def cannot_start(places, tmp_path, capsys, monkeypatch):
    """Call ``iod daemon`` in this process; its exit code and its one line."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "IOD_API_SOCKET"):
        monkeypatch.delenv(name, raising=False)

    def call(*options, state=places[0], runtime=places[1]):
        capsys.readouterr()
        words = ["--state-dir", str(state), "--socket", str(runtime / "iod.sock"), *options]
        code = main(["daemon", "--backend", "simulated", *words])
        told = capsys.readouterr()
        lines = [line for line in told.err.splitlines() if " level=" not in line]
        assert told.out == ""
        assert len(lines) == 1, told.err
        assert lines[0].startswith("iod: ")
        assert "Traceback" not in told.err
        return code, lines[0][len("iod: ") :]

    return call


# -- it starts and stops ---------------------------------------------------------------------------


def test_a_daemon_serves_and_a_signal_ends_it_with_an_answer_to_who_waits(places):
    state, runtime = places
    with daemon(state, runtime) as (client, process):
        [ended, runs] = client.submit([{"command": ["exit=3"]}, {"command": ["compute=1000s"]}], {})
        assert 3 == client.wait([ended])["jobs"][0]["exit_code"]
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(str(runtime / "iod.sock"))
            body = b'{"ids":[%d],"timeout_s":30}' % runs
            head = b"POST /v1/wait HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            waiting.sendall(head + body)
            await_read(waiting)
            client.jobs()  # in its turn after what was read before
            told = stop(process)
            answer = waiting.recv(1 << 16)

    assert 0 == process.returncode
    assert b'"finished":false' in answer
    assert "event=ready" in told
    assert "event=stopped" in told
    assert "Traceback" not in told
    assert not (runtime / "iod.sock").exists()
    assert 0o700 == (state.stat().st_mode & 0o777)
    assert 0o600 == ((state / "journal.db").stat().st_mode & 0o777)


def test_after_a_kill_the_socket_is_replaced_jobs_are_known_and_ids_go_on(places):
    state, runtime = places
    with daemon(state, runtime) as (client, process):
        ids = client.submit([{"command": ["exit=3"]}, {"command": ["x"], "hold": True}], {})
        client.wait(ids[:1])
        stop(process, signal.SIGKILL)
    assert (runtime / "iod.sock").is_socket()
    with daemon(state, runtime) as (client, process):
        jobs = client.jobs(all_jobs=True)["jobs"]
        assert [("FAILED", 3), ("HELD", None)] == [(j["state"], j["exit_code"]) for j in jobs]
        assert [3] == client.submit([{"command": ["exit=0"]}], {})
        told = stop(process, signal.SIGINT)

    assert 0 == process.returncode
    assert "Traceback" not in told


def test_more_connections_than_files_do_not_end_the_daemon(places):
    state, runtime = places
    with daemon(state, runtime, open_files=64) as (client, process):
        many = []
        for _ in range(120):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(runtime / "iod.sock"))
            many.append(connection)
        read_until(process.stdout.fileno(), b"event=not_accepted")
        for connection in many:
            connection.close()
        assert wait_until(lambda: client.jobs()["jobs"] == [])
        stop(process)

    assert 0 == process.returncode


# -- another daemon --------------------------------------------------------------------------------


def test_a_second_daemon_on_the_same_directories_is_refused(places, cannot_start, tmp_path):
    with daemon(*places) as (client, process):
        code, line = cannot_start()
        assert HOPELESS == code
        assert f"a daemon runs already on {places[0]} (pid {process.pid}, " in line

        code, line = cannot_start(state=tmp_path / "other")
        assert HOPELESS == code
        assert f"a daemon runs already on {places[1]} (pid {process.pid}, " in line
        assert "set another runtime_dir" in line

        assert [] == client.jobs()["jobs"]


# -- places ----------------------------------------------------------------------------------------


def journal(state, backend="simulated", harm=""):
    state.mkdir(mode=0o700)
    Journal.open(state / "journal.db", backend=backend).close()
    with contextlib.closing(sqlite3.connect(state / "journal.db")) as db, db:
        db.executescript(harm)


def everybodys(place):
    place.mkdir()
    place.chmod(0o1777)


WRONG_PLACES = [
    (lambda state, run: everybodys(state), HOPELESS, "others may write to {state} (mode"),
    (lambda state, run: everybodys(run), HOPELESS, "others may write to {run} (mode"),
    (lambda state, run: (run / "iod.sock").mkdir(parents=True), HOPELESS, "iod.sock cannot be"),
    (lambda state, run: journal(state, harm="DROP TABLE meta"), 1, "no journal of iodaemon"),
    (
        lambda state, run: journal(state, harm="INSERT INTO meta VALUES ('mode', 'sideways')"),
        1,
        "journal {state}/journal.db has a damaged record",
    ),
    (  # a simulated node would end the jobs of the real one, and pretend to run those that wait
        lambda state, run: journal(state, backend="linux"),
        HOPELESS,
        "journal {state}/journal.db belongs to a daemon with backend 'linux'",
    ),
]


@pytest.mark.parametrize(("make", "code", "told"), WRONG_PLACES, ids=range(len(WRONG_PLACES)))
def test_a_place_that_cannot_be_used_is_told_in_one_line(places, cannot_start, make, code, told):
    """What else is refused of directories and disks: tests/doctor/test_conditions.py."""
    state, run = places
    make(state, run)
    before = {path: path.read_bytes() for path in state.glob("journal.db")}

    found, line = cannot_start()

    assert (code, True) == (found, told.format(state=state, run=run) in line), line
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_socket_path_that_no_socket_can_have_is_refused(cannot_start, tmp_path):
    code, line = cannot_start(runtime=tmp_path / ("x" * 120))

    assert (HOPELESS, True) == (code, "set runtime_dir to a shorter path" in line)


def test_a_daemon_that_systemd_keeps_up_is_not_stopped(places, monkeypatch):
    state, runtime = places
    script = 'SYSTEMD_EXEC_PID=$$ exec "$0" "$@"'
    words = ["sh", "-c", script, *command(state, runtime)]
    monkeypatch.setattr("process.command", lambda *_, **__: words)
    with daemon(state, runtime) as (_, process):
        ended = iod(runtime / "iod.sock", "stop")

        assert (1, "") == (ended.returncode, ended.stdout)
        assert "'systemctl --user stop iodaemon'" in ended.stderr
        assert process.poll() is None


def test_a_process_below_a_unit_is_no_unit(monkeypatch):
    monkeypatch.setenv("SYSTEMD_EXEC_PID", str(os.getppid()))
    assert not is_unit()
    monkeypatch.setenv("SYSTEMD_EXEC_PID", str(os.getpid()))
    assert is_unit()


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


FEW = 44
JOBS = 12


def allow(pid, files):
    hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (files, hard))


def test_more_jobs_than_descriptors_end_nobody():
    """Daemon and root side do less where descriptors run out."""
    with Server("signals") as server:
        server.start()
        pids = [server.process.pid, server.supervisor_pid(), server.anchor_pid()]
        for pid in pids:
            allow(pid, FEW)
        jobs = [server.gated("it", code=3) for _ in range(JOBS)]
        until(lambda: len(server.lines()) > 2, "some starts")
        server.client.jobs()
        server.open_gate("it")

        assert [("FAILED", 3)] * JOBS == server.outcome(*jobs)
        assert pids == [server.process.pid, server.supervisor_pid(), server.anchor_pid()]
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


def test_clients_that_take_all_descriptors_end_no_daemon():
    """A sample, a request and a new line to the root side all find none."""
    with Server("signals") as server:
        take_all_descriptors(server.start())


def take_all_descriptors(server):
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
    assert server.log.read_text().count("event=not_accepted") < 5
