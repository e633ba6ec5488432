"""What holds up nobody else: hanging disks and commands, too few descriptors, too many ends."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import hanging
import pytest
from harness import until
from root_side import RootSide, by_either_means, over_both_launchers
from stuck_exec import silent_file_system, stuck_command

from iodaemon.supervisor.anchor import command
from iodaemon.supervisor.launch import PROGRAM
from iodaemon.supervisor.reap import children_of

pytestmark = pytest.mark.node


@pytest.fixture
def silent(tmp_path):
    point = tmp_path / "silent"
    point.mkdir()
    file_system = silent_file_system(point, b"x")
    yield file_system
    file_system.let_go()


def assert_others_go_on(root: RootSide, daemon: object, key: str) -> None:
    daemon.run(key, "true")
    assert 0 == daemon.await_state(key, "ended")["exit"]["code"]
    daemon.run("500.1", "sleep", "1000")
    daemon.hold("500.1")
    daemon.kill("500.1")


def pending_signals(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line.split()[1].lstrip("0") for line in lines if line.startswith(("SigPnd", "ShdPnd"))]


@pytest.mark.parametrize(
    ("means", "killed"), [("cgroup", ""), ("processes", ""), ("processes", "iod-holder")]
)
def test_a_hanging_execve_holds_up_nobody(killed, root, silent):
    daemon = root.connect()
    pid = daemon.run("1.1", *stuck_command(silent.path))["pid"]
    until(lambda: silent.stuck)
    if killed:
        root.kill(killed)
    assert_others_go_on(root, daemon, "2.1")
    root.kill("iod-supervisor")
    daemon = root.find("1.1")
    daemon.run("3.1", "true")
    daemon.await_state("3.1", "ended")
    daemon.say("kill", key="1.1")
    until(lambda: "100" in pending_signals(pid))
    silent.let_go()  # until its server is gone, not even SIGKILL ends it

    assert 9 == daemon.await_state("1.1", "ended")["exit"]["signal"]


def test_a_dead_directory_holds_up_nobody(root, silent):
    daemon = root.connect()
    silent.is_mute = True
    for number in range(3):
        daemon.start(f"{number}.1", "true", stdout=f"{silent.point}/new-{number}")
    assert_others_go_on(root, daemon, "9.1")
    root.kill("iod-supervisor")
    daemon = root.find("0.1")
    silent.let_go()

    assert "absent" == daemon.await_state("0.1", "absent")["state"]


def test_account_databases_that_say_nothing_hold_up_nobody_and_are_given_up_in_time(tmp_path):
    """By either launcher, side by side: each gives up after 10 s."""
    databases = hanging.databases_of(tmp_path)
    tmp_path.chmod(0o755)
    roots = [RootSide("cgroup", launcher, min_uid=1) for launcher in ("compiled", "python")]
    try:
        for root in roots:
            root.begin(*databases.command())
        daemons = [root.connect() for root in roots]
        for daemon in daemons:
            daemon.run("1.1", "sleep", "1000", uid=65534)
        databases.fall_silent()
        for daemon in daemons:
            daemon.start("2.1", "true", uid=12345)
            daemon.hold("1.1")
            daemon.beat()
        failed = [daemon.await_state("2.1", "failed") for daemon in daemons]
        databases.answer()
        for daemon in daemons:
            daemon.start("3.1", "true", uid=12345)
            failed.append(daemon.await_state("3.1", "failed"))
            daemon.run("2.1", "true", uid=65534)

            assert 0 == daemon.await_state("2.1", "ended")["exit"]["code"]
    finally:
        for root in roots:
            root.end()

    told = [(report["code"], report["is_lasting"]) for report in failed]
    assert [("no_answer", False)] * 2 + [("no_account", False)] * 2 == told


@by_either_means
def test_with_64_descriptors_nothing_is_lost(means, make_root):
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


def test_thousands_of_ends_at_once_lose_nothing(make_root):
    """100 jobs, and 2,400 orphans of one more."""
    root = make_root("cgroup")
    daemon = root.connect()
    program = (
        "import os, signal\n"
        "for _ in range(24):\n"
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
    keys = [f"{number}.1" for number in range(100)]
    for key in keys:
        daemon.start(key, "sleep", "1000")
    for key in keys:
        daemon.await_state(key, "running")
    until(lambda: len(root.members("9999.1")) == 2401)
    daemon.say("kill", key="9999.1")
    for key in keys:
        daemon.say("kill", key=key)
    daemon.beat()
    ended = [daemon.await_state(key, "ended") for key in [*keys, "9999.1"]]

    assert {(9, True)} == {(report["exit"]["signal"], report["whole"]) for report in ended}

    supervisor = root.role("iod-supervisor")
    until(lambda: len(children_of(supervisor)) == 1)  # the launcher


def test_the_cgroup_tree_is_removed_under_it(make_root):
    root = make_root("cgroup")
    daemon = root.connect()
    (root.cgroup / "jobs").rmdir()
    daemon.start("1.1", "sh", "-c", "exit 3")
    daemon.await_end()
    daemon = root.connect()

    assert 3 == daemon.code_of("1.1", "exit 3")


def test_a_full_cgroup_tree_fails_the_start_in_words_and_keeps_nobody_busy(make_root):
    root = make_root("cgroup")
    daemon = root.connect()
    (root.cgroup / "jobs" / "cgroup.max.descendants").write_text("0")
    failed = daemon.run("1.1", "true")
    (root.cgroup / "jobs" / "cgroup.max.descendants").write_text("max")
    daemon.start("1.2", "true")

    assert (failed["state"], failed["code"]) == ("failed", "system")
    assert "raise cgroup.max.descendants" in failed["problem"]
    assert daemon.await_state("1.2", "ended")["exit"]["code"] == 0


def test_a_cap_that_cannot_be_had_is_refused_by_name(root):
    daemon = root.connect()
    daemon.run("1.1", "sleep", "1000")
    for io in ({"8:0": "rbps=0"}, {"8:0/..": "rbps=1"}, {"8:0": "rbps=1\n8:1 rbps=1"}, [], None):
        daemon.say("cap", key="1.1", io=io)

        assert "cap" == daemon.await_message(lambda m: "error" in m)["wish"]
    if "cap" in daemon.hello["controls"]:
        pytest.skip("a cap can be had here")
    daemon.say("cap", key="1.1", io={})
    daemon.say("cap", key="1.1", io={"8:0": "rbps=1000"})
    refusal = daemon.await_message(lambda m: "error" in m)

    assert ("1.1", "cap") == (refusal["key"], refusal["wish"])
    assert "slowed down" in refusal["error"]


WITHOUT_CLONE3 = """
import ctypes, os, struct, sys
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 435), (6, 0, 0, 0x50000 | 38), (6, 0, 0, 0x7fff0000)]
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(text))) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""A filter (seccomp(2)) under which the call is not known: ENOSYS."""


@over_both_launchers
def test_where_clone3_is_missing_jobs_run_as_well(make_root):
    daemon = make_root("cgroup", sys.executable, "-ISc", WITHOUT_CLONE3).connect()
    daemon.run("1.1", "sh", "-c", "(setsid sleep 0.1 &); exit 3")
    ended = daemon.await_state("1.1", "ended")

    assert (3, True) == (ended["exit"]["code"], ended["whole"])


def test_a_launcher_that_is_stopped_holds_up_starts_alone(make_root):
    root = make_root("cgroup")
    daemon = root.connect()
    daemon.run("1.1", "sleep", "1000")
    launcher = root.kill("iod-launcher", signal.SIGSTOP)
    for number in range(2, 100):
        daemon.start(f"{number}.1", "true")
    daemon.hold("1.1")
    os.kill(launcher, signal.SIGKILL)
    for number in range(2, 100):
        assert 0 == daemon.await_state(f"{number}.1", "ended")["exit"]["code"]


@pytest.mark.parametrize("program", [[PROGRAM], command("launcher")], ids=["compiled", "python"])
def test_jobs_inherit_nothing_of_a_launcher_that_was_given_high_numbers(program, tmp_path):
    """As of a supervisor that has a thousand jobs and more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ledger = os.open(tmp_path / "ledger", os.O_RDWR | os.O_CREAT)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 2000) for fd in (theirs.fileno(), ledger)]
    launcher = subprocess.Popen([*program, *map(str, high), "-1"], pass_fds=high)
    fds = Path(f"/proc/{launcher.pid}/fd")
    until(lambda: {int(path.name) < 2000 for path in fds.iterdir()} == {True})
    for line in (ours, theirs):
        line.close()
    for fd in (ledger, *high):
        os.close(fd)

    assert 0 == launcher.wait(20)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("launcher", ["compiled"])
@pytest.mark.parametrize(("means", "other"), [("cgroup", "/bin/false"), ("processes", "/dev/null")])
def test_a_compiled_launcher_that_does_not_run_here_is_done_without(means, other, make_root):
    """As one that was built for another machine, and one that is no program."""
    hide = f'mount --bind {other} {PROGRAM} && exec "$@"'
    root = make_root(means, "unshare", "--mount", "sh", "-c", hide, "sh")
    daemon = root.connect()

    assert 3 == daemon.code_of("1.1", "exit 3")
    assert 1 == root.log.read_text().count("the launcher in Python takes its place")
