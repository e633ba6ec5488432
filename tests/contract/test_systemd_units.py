"""The shipped systemd files: valid, and the daemon's sandbox as tight as it was made."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from iodaemon.registry import shipped

UNITS = shipped("systemd")
SYSTEM = sorted((UNITS / "system").iterdir())
PROGRAM = "/opt/iodaemon/bin/iod"
WORST_EXPOSURE = 20
"""Tenths: systemd-analyze's measure from 0 to 10. 1.8 with systemd 252."""
CHANGING_OTHERS = (
    *("process_vm_writev", "process_vm_readv", "process_madvise"),
    *("ptrace", "pidfd_getfd", "kcmp"),
)
"""System calls that look into another process of the same user, or change it."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None
    and "systemd-analyze" not in os.environ.get("IOD_REQUIRE", ""),
    reason="no systemd-analyze here",
)


def text(name):
    return (UNITS / "system" / name).read_text()


def analyze(place, *words):
    """In units whose program exists."""
    for path in [*SYSTEM, UNITS / "user" / "iodaemon.service"]:
        kind = place / path.parent.name
        kind.mkdir(exist_ok=True)
        (kind / path.name).write_text(path.read_text().replace(PROGRAM, "/bin/true"))
    return subprocess.run(
        ["systemd-analyze", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        env={**os.environ, "XDG_RUNTIME_DIR": str(place), "HOME": str(place)},
    )


@needs_systemd
@pytest.mark.parametrize("manager", ["system", "user"])
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path, manager):
    names = [path.name for path in SYSTEM] if manager == "system" else ["iodaemon.service"]

    ended = analyze(tmp_path, "verify", f"--{manager}", *(f"{manager}/{name}" for name in names))

    assert (0, "") == (ended.returncode, ended.stderr)


@needs_systemd
def test_the_daemons_sandbox_is_as_tight_as_it_was(tmp_path):
    ended = analyze(
        tmp_path,
        *("security", "--offline=true", f"--threshold={WORST_EXPOSURE}"),
        "system/iodaemon.service",
    )

    assert 0 == ended.returncode, ended.stdout[-300:]


def test_the_daemon_has_none_of_roots_powers():
    assert "AmbientCapabilities" not in text("iodaemon.service")
    assert "\nCapabilityBoundingSet=\n" in text("iodaemon.service")
    assert "\nUser=iodaemon\n" in text("iodaemon.service")


def test_the_daemon_cannot_change_the_sampler_which_has_powers_and_is_its_users():
    filters = re.findall(r"^SystemCallFilter=(.*)$", text("iodaemon.service"), re.MULTILINE)

    assert "@system-service" == filters[0]  # a list of what may be called; the others take away
    assert all(words.startswith("~") for words in filters[1:])
    taken = " ".join(filters[1:]).replace("~", "").split()
    assert set(CHANGING_OTHERS) <= set(taken)


def test_nothing_that_jobs_would_inherit_is_taken_from_the_supervisor():
    sandbox = (
        r"^(Protect|Private|Restrict|NoNew|SystemCall|Capability|MemoryDeny|User|IPAddress)\w*"
    )

    assert [] == re.findall(sandbox, text("iodaemon-supervisor.service"), re.MULTILINE)


def test_a_restart_of_either_unit_ends_neither_jobs_nor_suspensions_unseen():
    for name in ("iodaemon.service", "iodaemon-supervisor.service"):
        assert re.search(r"^ExecStopPost=\+?/\S+ supervisor --thaw$", text(name), re.MULTILINE)
        assert "\nRestart=always\n" in text(name)
    assert "\nKillMode=process\n" in text("iodaemon-supervisor.service")


@pytest.mark.parametrize("name", ["iodaemon.service", "iodaemon-supervisor.service"])
def test_what_runs_as_root_loads_nothing_from_where_the_daemon_may_write(tmp_path, name):
    """``+`` lines have the home of the unit's user; a Python outside a venv looks there."""
    python, version = sys._base_executable, f"python{sys.version_info[0]}.{sys.version_info[1]}"
    place = tmp_path / f".local/lib/{version}/site-packages"
    place.mkdir(parents=True)
    (place / "usercustomize.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w')")
    [line] = re.findall(r"^Environment=(.+)$", text(name), re.MULTILINE)
    given = dict(word.split("=", 1) for word in line.split())

    for more in (given, {}):
        subprocess.run([python, "-c", "pass"], check=True, env={"HOME": str(tmp_path), **more})
        loaded = (tmp_path / "loaded").exists()
        assert loaded == (more == {}), more


def test_the_daemons_user_has_no_home_that_it_may_write_to():
    users = (UNITS / "sysusers.conf").read_text()
    [home] = re.findall(r'^u iodaemon - ".*" (\S+)$', users, re.MULTILINE)

    assert "/" == home
    assert "\nEnvironment=HOME=/ " in text("iodaemon.service")


def test_the_daemons_user_and_directories_are_declared():
    users = (UNITS / "sysusers.conf").read_text()
    places = (UNITS / "tmpfiles.conf").read_text()

    assert re.search(r"^u iodaemon ", users, re.MULTILINE)
    assert re.search(r"^d /run/iodaemon 0755 root root", places, re.MULTILINE)
    assert re.search(r"^d /var/lib/iodaemon-supervisor 0711 root root", places, re.MULTILINE)


def test_units_call_what_exists():
    called = {
        tuple(words.split())
        for path in [*SYSTEM, Path(UNITS / "user" / "iodaemon.service")]
        for words in re.findall(rf"^Exec\w+=\+?{PROGRAM} (.+)$", path.read_text(), re.MULTILINE)
    }

    assert {
        *(("daemon",), ("daemon", "--system"), ("config", "reload")),
        *(("supervisor",), ("supervisor", "--thaw")),
    } == called
