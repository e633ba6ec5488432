"""Verbs that need no daemon, the places of things, and the edges of the program itself."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from mounting import full, small_disk
from scratching import needs_root

from iodaemon.cli import main, session
from iodaemon.cli.program import ALIASES, VERBS
from iodaemon.errors import NoDaemon
from iodaemon.supervisor import disk_trouble


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without any configuration."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.mark.parametrize("name", [*VERBS, *ALIASES])
def test_every_verb_has_help_without_boxes(iod, name):
    result = iod(name, "--help")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Usage: iod ")
    assert "╭" not in result.out
    assert max(map(len, result.out.splitlines())) <= 80
    assert result.out == iod(name, "-h").out


def test_policies_are_listed_shown_and_checked(iod, home):
    listed = iod("policy", "list", "--json").json

    assert "default" in [policy["name"] for policy in listed]
    assert "Suspends the heaviest jobs above a bound" in iod("policy", "list").out
    for policy in listed:
        assert policy["name"] == iod("policy", "show", "--json", policy["name"]).json["name"]
    assert "rule" in iod("policy", "show", "default").out
    assert "is valid" in iod("policy", "check", "none").out


def test_what_is_in_force_is_the_daemons(iod, daemon):
    assert iod("policy", "show", "--json").json["name"] == "policy"
    assert iod("config", "show", "--running", "--json").json["name"] == "config"
    assert "slots" in iod("config", "show", "--running").out


def test_without_a_daemon_the_policy_is_the_configured_one(iod, home):
    result = iod("policy", "show", "--json")

    assert result.json["name"] == "default"
    assert result.err.startswith("iod: no daemon runs; this is what one would start with")


@pytest.fixture
def config(home):
    """A configuration with a policy to which one of its parameters means nothing."""
    file = home / "config.toml"
    file.write_text('policy = "none"\n[regulation]\nio_bound = "9 MB/s"\n')
    return file


def test_the_configuration_is_shown_with_where_it_comes_from(iod, config):
    shown = ["--config", str(config), "config", "show"]

    out, as_json = iod(*shown).out, iod(*shown, "--json").json

    assert ["policy", '"none"', str(config)] in [line.split() for line in out.splitlines()]
    assert "regulation.io_bound" in out
    [policy] = [setting for setting in as_json["settings"] if setting["key"] == "policy"]
    assert (policy["value"], policy["origin"]) == ('"none"', str(config))


def test_a_setting_without_effect_under_this_policy_is_said_and_no_error(iod, config):
    result = iod("--config", str(config), "policy", "check")

    assert "policy none is valid" in result.out
    assert f"{config}, over policy 'none' [regulation]: io_bound has no effect" in result.err


POLICY = '[admission]\nrule = "fcfs"\n[regulation]\nrule = "none"\ntimeslyce = "1 s"\n'


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["policy", "show", "defalt"], 3, "did you mean 'default'?"),
        (["policy", "check", "./gone.toml"], 3, "gone.toml"),
        (["policy", "check", "{home}/mine.toml"], 1, "{home}/mine.toml"),
        (["policy", "check", "{home}/mine.toml"], 1, "timeslyce"),
        (
            ["--config", "{home}/wrong.toml", "config", "show"],
            1,
            "{home}/wrong.toml: unknown key 'polcy'; did you mean 'policy'?",
        ),
        (["config", "init", "{home}/mine.toml/config.toml"], 1, "be written: Not a directory"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_with_file_and_key(iod, home, words, code, line):
    (home / "mine.toml").write_text(POLICY)
    (home / "wrong.toml").write_text('polcy = "none"\n')

    found, told = iod.fails(*(word.replace("{home}", str(home)) for word in words))

    assert (code, True) == (found, line.replace("{home}", str(home)) in told), told


def test_a_first_configuration_is_printed_or_written_once(iod, home):
    file = home / "new" / "config.toml"

    first = iod("config", "init", str(file))
    text = file.read_text()
    again = iod.fails("config", "init", str(file))
    forced = iod("config", "init", "--force", str(file))

    assert (0, f"iod: wrote {file}\n", 0) == (first.code, first.err, forced.code)
    assert (1, f"{file} is there already: edit it, or replace it by --force") == again
    assert text == iod("config", "init").out == iod("config", "init", "-").out
    assert iod("--config", str(file), "config", "show").code == 0


@needs_root
def test_a_disk_that_jobs_filled_with_what_they_were_promised_is_right(iod, home, daemon):
    disk, file = home / "disk", home / "config.toml"
    disk.mkdir()
    file.write_text(f'[tier.fast]\n[[tier.fast.disk]]\npath = "{disk}"\n')
    with small_disk(disk, kib=64), full(disk):
        rows = [{"disk": str(disk), "size_bytes": size} for size in (32 << 10, 32 << 10)]
        found = []
        for allocated in (rows, rows[:1]):
            daemon.answers["/v1/node"] = (200, json.dumps({"allocated": allocated}).encode())
            found.append(iod("--config", str(file), "config", "check"))

    assert [0, 1] == [result.code for result in found]
    assert f"tier fast: disk {disk} {disk_trouble.FULL}\n" == found[1].out


# -- the daemon's options -------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch):
    """What ``iod daemon`` would run with."""
    runs = []

    def run(config, read):
        runs.append((config, read))
        return 0

    module = ModuleType("iodaemon.daemon.main")
    module.run = run
    monkeypatch.setitem(sys.modules, "iodaemon.daemon.main", module)
    return runs


def test_the_daemons_options_stand_above_its_file(started, home):
    file = home / "config.toml"
    file.write_text('policy = "none"\nstate_dir = "/from/file"\n')
    words = f"--backend simulated --state-dir {home}/state --log-level debug"
    listens = ["--socket", f"{home}/run/iod.sock"]
    code = main(["--config", str(file), "daemon", *words.split(), *listens])

    [(config, read)] = started
    assert (code, config.log_level) == (0, "debug")
    assert config == read()
    assert (config.policy, config.backend) == ("none", "simulated")
    assert (f"{home}/state", f"{home}/run/iod.sock") == (config.state_dir, str(config.socket_path))


# -- where the socket is --------------------------------------------------------------------------


def listen(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    return listener


def give_to(uid: int, *paths: Path) -> None:
    for path in paths:
        os.chown(path, uid, -1)


def test_ones_own_daemon_goes_before_the_systems(tmp_path):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path)}
    uid = os.geteuid() or 77
    system = tmp_path / "system"
    with listen(system / "iod.sock"):
        before = session.find_socket(environ, uid, "/none", str(system))
        with listen(tmp_path / "run" / "iodaemon" / "iod.sock"):
            give_to(uid, tmp_path / "run", tmp_path / "run" / "iodaemon")
            after = session.find_socket(environ, uid, "/none", str(system))

    assert f"{system}/iod.sock" == before
    assert f"{tmp_path}/run/iodaemon/iod.sock" == after


@pytest.mark.parametrize("uid", [0, os.geteuid() or 77])
def test_a_simulated_node_is_asked_only_where_there_is_no_daemon(tmp_path, uid):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    simulated = tmp_path / "iodaemon-simulated"
    with listen(simulated / "iod.sock"):
        give_to(uid, tmp_path, simulated)
        alone = session.find_socket(environ, uid, "/none", str(tmp_path / "iodaemon"))
        with listen(tmp_path / "iodaemon" / "iod.sock"):
            beside = session.find_socket(environ, uid, "/none", str(tmp_path / "iodaemon"))

    assert f"{simulated}/iod.sock" == alone
    assert f"{tmp_path}/iodaemon/iod.sock" == beside


def test_a_socket_that_somebody_else_may_have_put_there_is_not_used(tmp_path):
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    system = tmp_path / "system"
    with listen(system / "iod.sock"), listen(tmp_path / "iodaemon" / "iod.sock"):
        (tmp_path / "iodaemon").chmod(0o777)

        found = session.find_socket(environ, os.geteuid() or 77, "/none", str(system))

    assert f"{system}/iod.sock" == found


@pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "NOT_SET"], ids=["su", "cron"])
def test_in_another_environment_a_daemon_is_found_by_its_state_directory(tmp_path, variable):
    uid = os.geteuid() or 77
    anothers, state = tmp_path / "another", tmp_path / ".local" / "state" / "iodaemon"
    anothers.mkdir()
    state.mkdir(parents=True)
    give_to(uid, state)
    give_to(uid + 1 if os.geteuid() == 0 else uid, anothers)
    socket_path = tmp_path / "run" / "iod.sock"
    (state / "daemon.lock").write_text(f"1\n{socket_path}\n")
    environ = {variable: str(anothers), "HOME": str(tmp_path)}
    with (state / "daemon.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with listen(socket_path):
            found = session.find_socket(environ, uid, "/none", "/none")
        socket_path.unlink()
        with pytest.raises(NoDaemon, match=f"pid {os.getpid()}. lost its socket {socket_path}"):
            session.find_socket(environ, uid, "/none", "/none")
    after = session.find_socket({"HOME": str(tmp_path)}, uid, "/none", "/none")

    assert (str(socket_path), f"/tmp/iodaemon-{uid}/iod.sock") == (found, after)


def test_the_config_option_says_where_the_socket_is(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("IOD_API_SOCKET", raising=False)
    file = tmp_path / "config.toml"
    file.write_text(f'state_dir = "/s"\nruntime_dir = "{tmp_path}/there"\n')

    assert main(["--config", str(file), "queue"]) == 7
    assert f"{tmp_path}/there/iod.sock" in capsys.readouterr().err


# -- start-up -------------------------------------------------------------------------------------

HEAVY = ("pydantic", "rich", "msgspec", "aiohttp", "iodaemon.config", "iodaemon.core.job")


@pytest.mark.parametrize("words", [("queue",), ("show", "1"), ("wait", "1"), ("submit", "true")])
def test_the_verbs_in_loops_import_nothing_heavy(socket_path, words):
    program = (
        "import sys, typer; of_typer = set(sys.modules); from iodaemon.cli import main; "
        "code = main(sys.argv[1:]); ours = set(sys.modules) - of_typer; "
        f"print(*[name for name in {HEAVY!r} if name in ours]); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "--api", socket_path, *words]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (7, b"\n")


# -- the journal --------------------------------------------------------------------------------


def test_a_backup_is_that_of_the_daemon_on_the_socket(iod, daemon, here):
    rows = [{"key": "state_dir", "value": f'"{here}/theirs"', "from": "file"}]
    daemon.answers["/v1/config"] = (200, json.dumps({"settings": rows}).encode())

    code, line = iod.fails("backup", "copy.db")

    assert code == 3
    assert f"{here}/theirs/journal.db" in line


def test_without_a_daemon_on_the_socket_no_other_journal_is_taken(iod, here):
    for verb in ("backup", "restore"):
        code, line = iod.fails(verb, "copy.db")
        assert code == 7
        assert line.endswith("; or name the journal's directory with --state-dir")


@pytest.mark.parametrize(
    ("head", "what"), [(b"a text\n", "a text file"), (b"", "empty"), (b"\x1f\x8b", "another kind")]
)
def test_what_is_no_copy_of_a_journal_is_not_restored(iod, here, head, what):
    (here / "copy").write_bytes(head)
    (here / "state").mkdir()

    code, line = iod.fails("restore", "--state-dir", "state", "copy")

    assert code == 1
    assert f"copy is {what}" in line
    assert [*(here / "state").glob("journal*")] == []
