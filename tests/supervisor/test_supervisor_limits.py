"""What holds up nobody else: hanging disks and commands, too few descriptors, too many ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hanging
import pytest
from root_side import RootSide, children_of, wait_until
from stuck_exec import SilentFileSystem, silent_file_system, stuck_command

from iodaemon.supervisor.cgroup import Cgroups
from iodaemon.supervisor.ledger import Key
from iodaemon.supervisor.protocol import Limits

pytestmark = [pytest.mark.node, pytest.mark.slow]


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[SilentFileSystem]:
    point = tmp_path / "silent"
    point.mkdir()
    file_system = silent_file_system(point, b"x")
    yield file_system
    file_system.let_go()


def assert_others_go_on(root: RootSide, daemon: object, key: str) -> None:
    daemon.run(key, "true")
    assert 0 == daemon.await_state(key, "ended")["exit"]["code"]
    daemon.run("500.1", "sleep", "1000")
    daemon.say("freeze", key="500.1")
    daemon.await_state("500.1", "running", frozen=True)
    daemon.say("kill", key="500.1")
    daemon.await_state("500.1", "ended")


def pending_signals(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line.split()[1].lstrip("0") for line in lines if line.startswith(("SigPnd", "ShdPnd"))]


def test_a_hanging_execve_holds_up_nobody(root: RootSide, silent: SilentFileSystem) -> None:
    daemon = root.connect()
    pid = daemon.run("1.1", *stuck_command(silent.path))["pid"]
    wait_until(lambda: silent.stuck)
    assert_others_go_on(root, daemon, "2.1")
    root.kill("iod-supervisor")
    daemon = root.connect()
    daemon.sync(**{"1_1": "run"})
    daemon.run("3.1", "true")
    daemon.await_state("3.1", "ended")
    daemon.say("kill", key="1.1")
    wait_until(lambda: "100" in pending_signals(pid))
    silent.let_go()  # until its server is gone, not even SIGKILL ends it

    assert 9 == daemon.await_state("1.1", "ended")["exit"]["signal"]


def test_a_dead_directory_holds_up_nobody(root: RootSide, silent: SilentFileSystem) -> None:
    daemon = root.connect()
    silent.is_mute = True
    for number in range(3):
        daemon.start(f"{number}.1", "true", stdout=f"{silent.point}/new-{number}")
    assert_others_go_on(root, daemon, "9.1")
    root.kill("iod-supervisor")
    daemon = root.connect()
    daemon.sync(**{"0_1": "run"})
    silent.let_go()

    assert "absent" == daemon.await_state("0.1", "absent")["state"]


def test_silent_account_databases_hold_up_nobody(
    make_root: Callable[..., RootSide], tmp_path: Path
) -> None:
    databases = hanging.databases_of(tmp_path)
    tmp_path.chmod(0o755)
    root = make_root("cgroup", *databases.command(), min_uid=1)
    daemon = root.connect()
    daemon.run("1.1", "sleep", "1000", uid=65534)
    databases.fall_silent()
    daemon.start("2.1", "true", uid=12345)
    daemon.say("freeze", key="1.1")
    daemon.await_state("1.1", "running", frozen=True)
    daemon.beat()
    databases.answer()

    assert "no_account" == daemon.await_state("2.1", "failed")["code"]


def test_a_directory_that_cannot_be_written_to_fails_the_job_alone(
    make_root: Callable[..., RootSide],
) -> None:
    root = make_root("cgroup")
    daemon = root.connect()
    daemon.start("1.1", "true", stdout="/proc/no-such-file")

    assert "output" == daemon.await_state("1.1", "failed")["code"]

    daemon.start("2.1", "sh", "-c", "echo x", stdout="/dev/full")

    assert 0 != daemon.await_state("2.1", "ended")["exit"]["code"]

    daemon.start("3.1", "true", directory=str(root.directory / "missing"))

    assert "directory" == daemon.await_state("3.1", "failed")["code"]


def test_with_64_descriptors_nothing_is_lost(
    means: str, make_root: Callable[..., RootSide]
) -> None:
    root = make_root(means, "prlimit", "--nofile=64:64")
    daemon = root.connect()
    keys = [f"{number}.1" for number in range(60)]
    for key in keys:
        daemon.start(key, *root.gate.wait_and("exit 4"))
    states = [daemon.await_state(key, "running", "failed") for key in keys]
    failed = [report for report in states if report["state"] == "failed"]
    ran = [report["key"] for report in states if report["state"] == "running"]

    assert all(not report["is_lasting"] for report in failed)
    assert len(ran) >= 10

    daemon.close()
    daemon = root.connect()
    root.kill("iod-supervisor")
    daemon = root.connect()
    daemon.sync(**{key.replace(".", "_"): "run" for key in ran})
    root.gate.open()

    assert {4} == {daemon.await_state(key, "ended")["exit"]["code"] for key in ran}

    daemon.run(failed[0]["key"], "true")

    assert 0 == daemon.await_state(failed[0]["key"], "ended")["exit"]["code"]


def test_thousands_of_ends_at_once_lose_nothing(make_root: Callable[..., RootSide]) -> None:
    """200 jobs, and 4,800 orphans of one more."""
    root = make_root("cgroup")
    daemon = root.connect()
    program = (
        "import os, signal\n"
        "for _ in range(48):\n"
        "    if os.fork() == 0:\n"
        "        for _ in range(100):\n"
        "            if os.fork() == 0:\n"
        "                signal.pause()\n"
        "        os._exit(0)\n"
        "while True:\n"
        "    try:\n"
        "        os.wait()\n"
        "    except ChildProcessError:\n"
        "        break\n"
        "signal.pause()\n"
    )
    daemon.run("9999.1", sys.executable, "-ISc", program)
    keys = [f"{number}.1" for number in range(200)]
    for key in keys:
        daemon.start(key, "sleep", "1000")
    for key in keys:
        daemon.await_state(key, "running")
    wait_until(lambda: len(root.members("9999.1")) == 4801)
    daemon.say("kill", key="9999.1")
    for key in keys:
        daemon.say("kill", key=key)
    daemon.beat()
    ended = [daemon.await_state(key, "ended") for key in [*keys, "9999.1"]]

    assert {(9, True)} == {(report["exit"]["signal"], report["whole"]) for report in ended}

    supervisor = root.role("iod-supervisor")
    wait_until(lambda: len(children_of(supervisor)) == 1)  # the launcher


def test_the_cgroup_tree_is_removed_under_it(make_root: Callable[..., RootSide]) -> None:
    root = make_root("cgroup")
    daemon = root.connect()
    (root.cgroup / "jobs").rmdir()
    daemon.run("1.1", "sh", "-c", "exit 3")

    assert 3 == daemon.await_state("1.1", "ended")["exit"]["code"]


def test_limits_are_written_where_a_controller_is_delegated(tmp_path: Path) -> None:
    """No controller can be had on most machines that tests run on: a directory stands for it."""
    cgroups = Cgroups(str(tmp_path))
    cgroups.controls = ("cpuset", "io", "pids", "memory")
    (tmp_path / "jobs" / "1.1").mkdir(parents=True)
    files = ["cpuset.cpus", "cpuset.mems", "memory.oom.group", "memory.max", "pids.max", "io.max"]
    for name in files:
        (tmp_path / "jobs" / "1.1" / name).touch()
    limits = Limits(1 << 30, 100, (2, 1), (0,), {"8:0": "rbps=1000"})
    fd, problems = cgroups.prepare(Key(1, 1), limits)
    os.close(fd)
    os.close(cgroups.fd)
    written = [(tmp_path / "jobs" / "1.1" / name).read_text() for name in files]

    assert (["1,2", "0", "1", "1073741824", "100", "8:0 rbps=1000"], []) == (written, problems)


def test_a_launcher_that_is_stopped_holds_up_starts_alone(
    make_root: Callable[..., RootSide],
) -> None:
    root = make_root("cgroup")
    daemon = root.connect()
    daemon.run("1.1", "sleep", "1000")
    launcher = root.kill("iod-launcher", signal.SIGSTOP)
    for number in range(2, 150):
        daemon.start(f"{number}.1", "true")
    daemon.say("freeze", key="1.1")
    daemon.await_state("1.1", "running", frozen=True)
    os.kill(launcher, signal.SIGKILL)
    for number in range(2, 150):
        assert 0 == daemon.await_state(f"{number}.1", "ended")["exit"]["code"]
