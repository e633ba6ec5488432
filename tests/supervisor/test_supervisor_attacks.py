"""What a user may try against another one, or against root, by way of what starts the jobs."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import until
from root_side import RootSide, Tracer, by_either_means, is_alive
from service import NOBODY, PATH

import iodaemon
from iodaemon.supervisor.reap import children_of

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become others"),
]
OTHER = 4_321
"""A uid without an account: the attacker."""
FUZZED_JOBS = 40
WISHES_OF_EACH = 15


# -- output files --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_what_another_user_laid_into_a_public_directory_is_not_written(service, name):
    """A link to a file of the submitter's own, or to where one would be made; a pipe, a file."""
    for what in ("precious", "new"):
        (service.tmp / what).symlink_to(service.home / what)
        os.chown(service.tmp / what, OTHER, OTHER, follow_symlinks=False)

        assert "somebody else put it there" in service.refusal(service.tmp / what, name)
    assert "before" == service.precious.read_text()
    assert not (service.home / "new").exists()

    os.mkfifo(service.tmp / "pipe")
    (service.tmp / "file").touch()
    for what in ("pipe", "file"):
        os.chown(service.tmp / what, OTHER, OTHER)
        (service.tmp / what).chmod(0o666)

        assert "somebody else put it there" in service.refusal(service.tmp / what, name)


def test_an_own_link_is_followed_also_there_and_a_file_of_another_name_is_not_emptied(service):
    link = service.tmp / "link"
    link.symlink_to(service.precious)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    service.precious.write_text("a longer text from the last time")

    assert "" == service.refusal(link)
    assert "after\n" == service.precious.read_text()

    os.link(service.precious, service.tmp / "name")
    service.precious.write_text("before")

    assert "other names as well" in service.refusal(service.tmp / "name")
    assert "before" == service.precious.read_text()


def test_a_pipe_needs_a_reader_and_is_then_written_as_any_is(service):
    pipe = service.home / "pipe"
    os.mkfifo(pipe)
    os.chown(pipe, NOBODY, NOBODY)

    for name in ("stdout", "stderr"):
        assert "it is a pipe that nobody reads" in service.refusal(pipe, name)

    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    code = "import os; print(os.get_blocking(1))"
    service.run(f"exec python3 -I -S -c '{code}'", stdout=str(pipe))
    heard = os.read(reader, 100)
    os.close(reader)

    assert b"True\n" == heard


DEVICES = ("/dev/null", "/dev/full", "/dev/zero")
OF_ROOT = ("/dev/mem", "/dev/tty", "/dev/kmsg", "/dev/port", "/proc/sysrq-trigger")
OUTSIDE = (
    "../../../../etc/iodaemon-was-here", "/proc/1/mem", "/etc/shadow", "/", "x" * 300,
    "/tmp/\udcff/x",
)  # fmt: skip


def test_devices_are_written_as_the_user_may_and_what_is_roots_is_not(service):
    for path in (*DEVICES, *filter(os.path.exists, OF_ROOT), *OUTSIDE):
        report = service.run("echo after", stdout=path)
        is_refused = "cannot be written" in report.get("problem", "")

        assert is_refused == (path not in DEVICES), (path, report)

    assert not Path("/etc/iodaemon-was-here").exists()


def test_the_directory_of_outputs_takes_and_shows_nothing_of_another_job(service):
    path = service.outputs / service.run("echo secret")["key"]
    os.chown(path, OTHER, OTHER)
    shown = service.printed(f"cat {path} 2>&1; ls {path.parent} 2>&1; true")

    assert "Permission denied" in service.refusal(service.outputs / "9999.1")
    assert "Permission denied" in shown
    assert "secret" not in shown


def test_files_and_the_directory_are_opened_as_the_user(service):
    of_root = service.home.with_name("of-root")
    of_root.mkdir(mode=0o700)
    (of_root / "file").write_text("before")
    link = service.home / "link"
    link.symlink_to(of_root / "file")
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    cases = [
        {"stdout": str(of_root / "file")},
        {"stderr": str(of_root / "file")},
        {"stdout": str(link)},
        {"directory": str(of_root)},
    ]
    for launch in cases:
        report = service.run("echo after", **launch)
        code = "directory" if "directory" in launch else "output"

        assert (code, True) == (report["code"], "Permission denied" in report["problem"])

    assert "before" == (of_root / "file").read_text()


# -- environment and modules ---------------------------------------------------------------------

LOADER = ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV")


def test_a_library_of_the_users_is_loaded_by_the_job_alone(service):
    place = service.home.parent
    source, library, loaded = (place / name for name in ("p.c", "p.so", "loaded"))
    source.write_text(
        "#include <stdio.h>\n#include <unistd.h>\n"
        "__attribute__((constructor)) static void say(void) {"
        f' FILE *f = fopen("{loaded}", "a");'
        ' if (f) { fprintf(f, "%d\\n", geteuid()); fclose(f); } }\n'
    )
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    loaded.touch()
    loaded.chmod(0o666)
    service.run("true; /bin/true", environment={**PATH, "LD_PRELOAD": str(library)})

    assert {str(NOBODY)} == set(loaded.read_text().split())


def standing(root: RootSide) -> list[int]:
    """The root side, as it is without jobs."""
    launchers = [] if root.config.cgroup == "none" else ["iod-launcher"]
    return [root.role(role) for role in ("iod-anchor", "iod-supervisor", *launchers)]


def test_loader_variables_reach_the_job_and_nobody_of_root(service):
    words = {name: f"/nowhere/{name}" for name in LOADER}
    printed = service.printed("env; exec sleep 0.2", environment={**PATH, **words})
    roles = standing(service.root)

    assert all(f"{name}={path}\n" in printed for name, path in words.items())
    for pid in roles:
        assert "/nowhere/" not in Path(f"/proc/{pid}/environ").read_text()


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Where root sides are begun from: the directory of a copy of the package."""
    site = tmp_path / "site"
    shutil.copytree(Path(iodaemon.__file__).parent / "supervisor", site / "iodaemon/supervisor")
    (site / "iodaemon/__init__.py").touch()
    code = f"import sys; sys.path.append({str(site)!r}); "
    code += "from iodaemon.supervisor.anchor import main; main()"
    words = [sys.executable, "-I", "-S", "-c", code]
    monkeypatch.setattr("root_side.command", lambda _, text: [*words, text])
    return site


def test_nothing_beside_the_package_takes_the_place_of_a_standard_module(
    make_root, copied, monkeypatch
):
    """As a distribution may have a ``socket.py`` beside it, and a user in the directory."""
    for name in ("socket", "json", "select", "struct", "signal", "typing", "pwd"):
        (copied / f"{name}.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(copied)
    root = make_root("processes", min_uid=1)
    daemon = root.connect()
    daemon.run("1.1", "sh", "-c", "exit 42", uid=NOBODY)

    assert 42 == daemon.await_state("1.1", "ended")["exit"]["code"]
    assert "not this one" not in root.log.read_text()


@by_either_means
def test_what_serves_reads_no_module_of_an_upgraded_package(means, make_root, copied, tmp_path):
    root = make_root(means, min_uid=1)
    daemon = root.connect()
    standing(root)
    for module in copied.glob("iodaemon/supervisor/*.py"):
        module.write_text("raise ImportError('another one')")
    shutil.rmtree(copied / "iodaemon/supervisor/__pycache__", ignore_errors=True)
    daemon.run("1.1", "sleep", "600", uid=NOBODY)
    daemon.hold("1.1")
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o755)
    for do in ("make", "measure", "remove"):
        daemon.say("scratch", id=do, do=do, disk=str(disk), name="1.1-a", uid=NOBODY)
        answer = daemon.await_message(lambda m, do=do: m.get("scratch") == do or "error" in m)
        assert answer["done"]
    daemon.kill("1.1")
    daemon.start("2.1", "true", uid=3_999_999)
    daemon.await_state("2.1", "failed")
    daemon.run("3.1", "no-such-command", uid=NOBODY)
    daemon.await_state("3.1", "ended")

    assert "another one" not in root.log.read_text()


# -- other jobs, the root side, cgroups ----------------------------------------------------------


def test_a_job_reaches_nobody_of_the_root_side(service):
    root = service.root
    roles = standing(root)
    attempts = [
        attempt
        for pid in [*roles, "$PPID"]
        for attempt in (
            f"kill -9 {pid}", f"kill -STOP {pid}", f"cat /proc/{pid}/environ",
            f"cat /proc/{pid}/mem", f"ls /proc/{pid}/fd", f"renice -n -5 -p {pid}",
        )
    ]  # fmt: skip
    attempts += [
        f"cat {root.runtime}/ledger", f"echo x >> {root.runtime}/ledger",
        f"rm {root.runtime}/lock", f"ls {root.runtime}", f"touch {service.outputs}/9998.1",
        f"ln -s /etc/shadow {service.outputs}/9999.1", "setpriv --reuid=0 true", "su -c true",
    ]  # fmt: skip
    script = "\n".join(
        f"({attempt}) </dev/null 2>/dev/null && echo reached: {number}"
        for number, attempt in enumerate(attempts)
    )
    printed = service.printed(f"{script}\necho done")

    assert "done\n" == printed, attempts
    assert all(map(is_alive, roles))


def test_a_job_moves_into_no_cgroup_and_freezes_and_kills_none(service):
    if service.root.config.cgroup == "none":
        pytest.skip("there is none")
    other = service.start("exec sleep 600")
    printed = service.printed(
        "before=$(grep ^0:: /proc/self/cgroup)\n"
        f"for f in $(find {service.root.cgroup} -type f); do\n"
        "case $f in *.procs|*.threads) word=$$;; *) word=1;; esac\n"
        "(echo $word > $f) 2>/dev/null && echo wrote $f; done\n"
        f"for d in $(find {service.root.cgroup} -type d); do\n"
        "mkdir $d/mine 2>/dev/null && echo made $d/mine; done\n"
        '[ "$before" = "$(grep ^0:: /proc/self/cgroup)" ] && echo "$before"\n'
    )

    [where] = printed.splitlines()

    assert "/jobs/" in where
    assert is_alive(other["pid"])
    service.daemon.kill(other["key"])


def test_a_job_that_was_taken_out_of_its_cgroup_holds_nothing_for_itself(service):
    """As a user's own systemd does it, who has one. Its end is known; killed, it is lost."""
    if service.root.config.cgroup == "none":
        pytest.skip("there is none")
    (service.root.cgroup / "away").mkdir()
    ends, killed = service.start("exec sleep 600"), service.start("exec sleep 600")
    for job in (ends, killed):
        (service.root.cgroup / "away/cgroup.procs").write_text(f"{job['pid']}")
    keys = (ends["key"], killed["key"])  # a daemon that is restarted has all seen
    service.daemon.sync(**{key.replace(".", "_"): "run" for key in keys})
    lost = service.daemon.kill(killed["key"])

    assert ("lost", False, True) == (lost["state"], lost["whole"], is_alive(killed["pid"]))
    assert not service.root.job_cgroup(killed["key"]).exists()

    os.kill(killed["pid"], signal.SIGKILL)
    os.kill(ends["pid"], signal.SIGTERM)

    assert 15 == service.daemon.await_state(ends["key"], "ended")["exit"]["signal"]


@pytest.mark.parametrize("text", ["exec sleep 600", "sleep 600 & wait"])
def test_a_job_ends_though_its_tracer_takes_no_notice(service, text):
    """Its end is the tracer's to hear of first, and a tracer outside of the job may sleep."""
    job = service.start(text)
    first = job["pid"]
    traced = until(lambda: first if "exec" in text else (children_of(first) or [0])[0])
    until(lambda: Path(f"/proc/{traced}/cmdline").read_bytes().startswith(b"sleep\0"))
    with Tracer(traced):
        ended = service.daemon.kill(job["key"])

    assert 9 == ended["exit"]["signal"]
    assert "exec" not in text or not ended["whole"]


# -- from a daemon that has been taken over ------------------------------------------------------


def odd(generator: random.Random) -> Any:
    plain: list[Any] = [None, "", 0, 1, 2, 9, 15, 19, 64, 99, -1, 10**40, True, [], {}, "\0"]
    return generator.choice(plain)


def test_what_is_asked_of_jobs_that_are_starting_hurts_nobody(service):
    generator = random.Random(21)
    daemon = service.daemon
    names = ["prepare", "run", "freeze", "thaw", "cap", "signal", "kill", "forget", "sync"]
    for job in range(1001, 1001 + FUZZED_JOBS):
        key = f"{job}.1"
        launch: dict[str, Any] = {
            "command": ["true"], "environment": PATH, "uid": NOBODY, "directory": "/",
            "umask": 0o22, "nice": 0, "affinity": [], "stdout": "/dev/null", "report": False,
        }  # fmt: skip
        if generator.random() < 0.2:
            launch[generator.choice(sorted(launch))] = odd(generator)
        daemon.say("prepare", key=key, launch=launch)
        for _ in range(WISHES_OF_EACH):
            fields = {"key": key, "number": odd(generator), "io": {}, "keys": [[key, "run"]]}
            if generator.random() < 0.2:
                fields[generator.choice(sorted(fields))] = odd(generator)
            wish = generator.choice([*names, "kill", "run"])
            daemon.say(wish, **fields, **({"launch": launch} if wish == "prepare" else {}))
        daemon.say("thaw", key=key)  # what is frozen before it executes waits for that
        daemon.say("kill", key=key)
    daemon.beat()
    supervisor = service.root.role("iod-supervisor")

    assert "exit" in service.run("exit 5")
    assert supervisor == service.root.role("iod-supervisor")
