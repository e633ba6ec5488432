"""A daemon that cannot start says why in one line; one that can, does."""

import fcntl
import os
import signal
import socket
import sqlite3
import subprocess

import pytest
from process import (
    await_read,
    command,
    daemon,
    environment,
    fails,
    read_until,
    ready,
    stop,
    wait_until,
)

from iodaemon.cli import main
from iodaemon.config import check_offers, load_policy
from iodaemon.core.decision import Kill, Reject, Start, Stop
from iodaemon.daemon.journal.writer import Journal
from iodaemon.errors import ConfigError
from iodaemon.registry import shipped

pytestmark = pytest.mark.node

HOPELESS = 78
"""systemd does not try again (RestartPreventExitStatus=)."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")


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

    def call(*options, state=None, runtime=None):
        state, runtime = state or places[0], runtime or places[1]
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


def configured(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    return "--config", str(path)


# -- it starts and stops ---------------------------------------------------------------------------


def test_a_daemon_serves_and_stops_cleanly(places):
    state, runtime = places
    with daemon(state, runtime) as (client, process):
        [job_id] = client.submit([{"command": ["exit=3"]}], {})
        assert 3 == client.wait([job_id])["jobs"][0]["exit_code"]
        told = stop(process)

    assert 0 == process.returncode
    assert "event=ready" in told
    assert "event=stopped" in told
    assert "Traceback" not in told
    assert not (runtime / "iod.sock").exists()
    assert 0o700 == (state.stat().st_mode & 0o777)
    assert 0o600 == ((state / "journal.db").stat().st_mode & 0o777)


def test_ids_go_on_after_a_restart_and_finished_jobs_are_known(places):
    state, runtime = places
    with daemon(state, runtime) as (client, _):
        ids = client.submit([{"command": ["exit=3"]}, {"command": ["x"], "hold": True}], {})
        client.wait(ids[:1])
    with daemon(state, runtime) as (client, _):
        jobs = client.jobs(all_jobs=True)["jobs"]
        assert [("FAILED", 3), ("HELD", None)] == [(j["state"], j["exit_code"]) for j in jobs]
        assert [3] == client.submit([{"command": ["exit=0"]}], {})


def test_the_socket_of_a_killed_daemon_is_replaced(places):
    state, runtime = places
    with daemon(state, runtime) as (_, process):
        stop(process, signal.SIGKILL)
    assert (runtime / "iod.sock").is_socket()
    with daemon(state, runtime) as (client, _):
        assert [] == client.jobs()["jobs"]


def test_a_socket_that_another_has_put_in_place_of_its_own_is_left_there(places):
    path = places[1] / "iod.sock"
    with daemon(*places) as (_, process), socket.socket(socket.AF_UNIX) as other:
        path.unlink()
        other.bind(str(path))
        stop(process)

        assert path.is_socket()


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


def test_a_second_daemon_on_the_same_directories_is_refused(places, tmp_path):
    with daemon(*places) as (client, process):
        code, line = fails(*places)
        assert HOPELESS == code
        assert f"a daemon runs already on {places[0]} (pid {process.pid}, " in line

        code, line = fails(tmp_path / "other", places[1])
        assert HOPELESS == code
        assert f"a daemon runs already on {places[1]} (pid {process.pid}, " in line
        assert "set another runtime_dir" in line

        assert [] == client.jobs()["jobs"]


def test_a_lock_held_by_anybody_is_respected(places, cannot_start):
    places[0].mkdir(mode=0o700)
    with (places[0] / "daemon.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, line = cannot_start()

    assert (HOPELESS, True) == (code, "a daemon runs already" in line)


# -- places ----------------------------------------------------------------------------------------


def test_a_socket_path_that_no_socket_can_have_is_refused(cannot_start, tmp_path):
    code, line = cannot_start(runtime=tmp_path / ("x" * 120))

    assert HOPELESS == code
    assert "set runtime_dir to a shorter path" in line


@as_root
@pytest.mark.parametrize("which", [0, 1], ids=["state_dir", "runtime_dir"])
def test_a_directory_of_another_user_is_refused(places, cannot_start, which):
    places[which].mkdir(mode=0o700)
    os.chown(places[which], 65534, 65534)

    code, line = cannot_start()

    assert HOPELESS == code
    key = ("state_dir", "runtime_dir")[which]
    assert f"{key}: {places[which]} belongs to uid 65534, not to uid 0; " in line
    cure = f"chown {('-R 0 {}/', '0 {}')[which].format(places[which])}"
    assert f"; '{cure}' as root, or set another {key}" in line


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
@pytest.mark.parametrize("which", [0, 1], ids=["state_dir", "runtime_dir"])
def test_a_directory_that_others_may_write_to_is_refused(places, cannot_start, which, mode):
    places[which].mkdir()
    places[which].chmod(mode)

    code, line = cannot_start()

    assert (HOPELESS, True) == (code, f"others may write to {places[which]} (mode" in line)


@as_root
def test_what_a_daemon_of_another_user_left_in_the_directory_is_told(places, cannot_start):
    make_journal(places[0])
    os.chown(places[0] / "journal.db", 65534, 65534)

    code, line = cannot_start()

    assert HOPELESS == code
    assert f"state_dir: {places[0]}/journal.db belongs to uid 65534, not to uid 0; " in line
    assert f"'chown -R 0 {places[0]}/' as root" in line


@as_root
def test_a_link_that_somebody_else_made_is_refused(places, cannot_start, tmp_path):
    (tmp_path / "mine").mkdir(mode=0o700)
    places[1].symlink_to(tmp_path / "mine")
    os.lchown(places[1], 65534, 65534)

    code, line = cannot_start()

    assert (HOPELESS, True) == (code, f"the link {places[1]} belongs to uid 65534" in line)


@pytest.mark.parametrize("which", [0, 1], ids=["state_dir", "runtime_dir"])
def test_a_file_in_place_of_a_directory_is_refused(places, cannot_start, which):
    places[which].write_text("")

    code, line = cannot_start()

    assert (HOPELESS, True) == (code, f"{places[which]} is no directory; move it away" in line)


def test_a_directory_below_a_file_is_refused(cannot_start, tmp_path):
    (tmp_path / "file").write_text("")

    code, line = cannot_start(state=tmp_path / "file" / "state")

    assert (HOPELESS, True) == (code, "Not a directory" in line)


def test_a_directory_in_place_of_the_socket_is_refused(places, cannot_start):
    (places[1] / "iod.sock").mkdir(parents=True)
    places[1].chmod(0o700)

    code, line = cannot_start()

    assert HOPELESS == code
    assert "runtime_dir" in line
    assert "iod.sock cannot be used" in line


# -- configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('polcy = "default"', "unknown key 'polcy'; did you mean 'policy'?"),
        ("[regulation]\nio_bund = 1", "did you mean 'io_bound'?"),
        ('[regulation]\nio_bound = "0 MB/s"', "a finite number above 0"),
        ("[regulation]\nio_bound = [1]", "io_bound"),
        ('[regulation]\nrule = "magic"', "unknown regulation rule 'magic'"),
        ('policy = "defualt"', "did you mean 'default'?"),
        ('policy = "/nowhere/mine.toml"', "/nowhere/mine.toml does not exist"),
        ('[topology]\nsockets = ["0-3", "2"]', "CPU 2 is in '0-3' and in '2'"),
        ("what = is this", "no valid TOML"),
        ("\xff", "is no UTF-8 text"),
    ],
)
def test_a_wrong_configuration_is_told_with_its_key(cannot_start, tmp_path, text, expected):
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode("latin-1"))

    code, line = cannot_start("--config", str(path))

    assert code in (1, HOPELESS)
    assert expected in line


def test_a_configuration_file_that_is_not_there_is_told(cannot_start, tmp_path):
    code, line = cannot_start("--config", str(tmp_path / "none.toml"))

    assert (HOPELESS, True) == (code, "none.toml does not exist" in line)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "'admission' is missing"),
        ('[admission]\nrule = "fcfs"\n[regulation]\nrule = "dynamic"\nio_bound = 0', "above 0"),
        ('[admission]\nrule = "fcsf"\n[regulation]\nrule = "none"', "did you mean 'fcfs'?"),
        ("[admission]\n[regulation]", 'needs rule = "NAME"'),
        ('[admission]\nrule = "no.module:Rule"\n[regulation]\nrule = "none"', "no module 'no'"),
    ],
)
def test_a_wrong_policy_file_is_told_with_its_table(cannot_start, tmp_path, text, expected):
    (tmp_path / "mine.toml").write_text(text)

    code, line = cannot_start("--policy", str(tmp_path / "mine.toml"))

    assert 1 == code
    assert expected in line


@pytest.mark.parametrize(
    "words",
    [
        ["daemon", "--nonsense"],
        ["daemon", "--log-level", "loud"],
        ["daemon", "--socket", "/tmp/other.name"],
        ["daemon", "superfluous"],
        ["deamon"],
    ],
    ids=lambda words: words[-1],
)
def test_a_wrong_command_line_is_exit_code_2(capsys, words):
    code = main(words)
    told = capsys.readouterr()

    assert 2 == code
    assert told.err.startswith("iod: ")
    assert 1 == told.err.count("\n")


def test_a_policy_that_suspends_is_refused_where_nothing_can_be_suspended():
    rules = load_policy("dynamic", overrides={}, search=(shipped("policies"),)).rules

    with pytest.raises(ConfigError) as caught:
        check_offers(rules, {Start, Stop, Kill, Reject}, "slurm")

    message = str(caught.value)
    assert "policy 'dynamic'" in message
    assert "needs Resume and Suspend, which backend 'slurm' does not offer" in message


# -- journals that cannot be used ------------------------------------------------------------------


def make_journal(state):
    state.mkdir(mode=0o700)
    Journal.open(state / "journal.db", backend="simulated").close()
    return state / "journal.db"


def overwrite(path, data):
    with path.open("r+b") as file:
        file.seek(0)
        file.write(data)


def raise_schema(path):
    db = sqlite3.connect(path)
    db.execute("UPDATE meta SET value = 99 WHERE key = 'schema'")
    db.commit()
    db.close()


def forget_schema(path):
    db = sqlite3.connect(path)
    db.execute("DELETE FROM meta WHERE key = 'schema'")
    db.commit()
    db.close()


def foreign(path):
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE songs (title)")
    db.commit()
    db.close()


def damage_record(path):
    db = sqlite3.connect(path)
    db.execute("INSERT INTO job VALUES (1, 0, '', '{}')")
    db.execute("INSERT INTO life VALUES (1, 'PENDING', NULL, 0, '{')")
    db.commit()
    db.close()


def cut(path):
    os.truncate(path, 5000)


def as_directory(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (lambda path: overwrite(path, b"no database at all, this is"), "move it away"),
        (lambda path: overwrite(path, b"\0" * 4096), "move it away"),
        (cut, "restore a copy"),
        (raise_schema, "has schema 99, newer than"),
        (forget_schema, "has no schema"),
        (foreign, "no journal of iodaemon"),
        (damage_record, "has a damaged record"),
        (as_directory, "journal.db: unable to open database file; it cannot be opened"),
    ],
    ids=[
        "garbage",
        "zeros",
        "cut",
        "newer schema",
        "no schema",
        "foreign",
        "damaged record",
        "directory",
    ],
)
def test_a_journal_that_cannot_be_used_is_told_in_one_line(places, cannot_start, harm, expected):
    path = make_journal(places[0])
    harm(path)

    code, line = cannot_start()

    assert 1 == code
    assert "journal" in line
    assert expected in line


def test_a_journal_is_refused_to_another_backend_than_its_own(places, cannot_start):
    """A simulated node would end the jobs of the real one, and pretend to run those that wait."""
    state, _ = places
    state.mkdir(mode=0o700)
    Journal.open(state / "journal.db").close()
    before = (state / "journal.db").read_bytes()

    code, line = cannot_start()

    assert 78 == code
    assert f"journal {state}/journal.db belongs to a daemon with backend 'linux'" in line
    assert "--state-dir DIR" in line
    assert before == (state / "journal.db").read_bytes()


# -- signals --------------------------------------------------------------------------------------


def test_a_signal_in_the_middle_of_a_wait_ends_it_with_an_answer(places):
    state, runtime = places
    with daemon(state, runtime) as (client, process):
        [job_id] = client.submit([{"command": ["compute=1000s"]}], {})
        waiting = socket.socket(socket.AF_UNIX)
        waiting.connect(str(runtime / "iod.sock"))
        body = b'{"ids":[%d],"timeout_s":30}' % job_id
        waiting.sendall(
            b"POST /v1/wait HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        await_read(waiting)
        client.jobs()  # in its turn after what was read before
        stop(process)
        answer = waiting.recv(1 << 16)
        waiting.close()

    assert 0 == process.returncode
    assert b'"finished":false' in answer


def test_control_c_stops_it_like_a_signal(places):
    state, runtime = places
    process = subprocess.Popen(
        command(state, runtime),
        env=environment(state.parent),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        ready(process, runtime / "iod.sock")
    finally:
        told = stop(process, signal.SIGINT)

    assert 0 == process.returncode
    assert "Traceback" not in told
