"""What holds up nobody else: hanging disks and commands, too few descriptors, too many ends."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hanging
import pytest
from root_side import RootSide, children_of, wait_until
from stuck_exec import SilentFileSystem, silent_file_system, stuck_command

from iodaemon.supervisor.anchor import command
from iodaemon.supervisor.cgroup import Cgroups
from iodaemon.supervisor.launch import PROGRAM
from iodaemon.supervisor.ledger import Key
from iodaemon.supervisor.protocol import Limits

pytestmark = pytest.mark.node


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


@pytest.mark.parametrize("killed", ["", "iod-holder"])
def test_a_hanging_execve_holds_up_nobody(
    killed: str, root: RootSide, silent: SilentFileSystem
) -> None:
    if killed and root.config.cgroup != "none":
        pytest.skip("no process holds a job")
    daemon = root.connect()
    pid = daemon.run("1.1", *stuck_command(silent.path))["pid"]
    wait_until(lambda: silent.stuck)
    if killed:
        root.kill(killed)
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
    failed = daemon.await_state("2.1", "failed")

    assert ("no_account", False) == (failed["code"], failed["is_lasting"])

    daemon.run("3.1", "true", uid=65534)

    assert 0 == daemon.await_state("3.1", "ended")["exit"]["code"]


def test_a_user_of_whom_the_databases_say_nothing_is_given_up_in_time(
    make_root: Callable[..., RootSide], tmp_path: Path
) -> None:
    databases = hanging.databases_of(tmp_path)
    tmp_path.chmod(0o755)
    daemon = make_root("cgroup", *databases.command(), min_uid=1).connect()
    databases.fall_silent()
    daemon.start("1.1", "true", uid=12345)
    failed = daemon.await_state("1.1", "failed")

    assert ("no_answer", False) == (failed["code"], failed["is_lasting"])

    databases.answer()
    daemon.start("1.1", "true", uid=65534)

    assert 0 == daemon.await_state("1.1", "ended")["exit"]["code"]


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


def test_a_start_for_which_no_descriptor_is_left_fails(make_root: Callable[..., RootSide]) -> None:
    root = make_root("cgroup")
    daemon = root.connect()
    supervisor = root.role("iod-supervisor")
    root.arm("child.prepared", signal.SIGSTOP)
    daemon.start("1.1", "true")
    wait_until(lambda: root.has_fired("child.prepared"))
    used = {int(fd) for fd in os.listdir(f"/proc/{supervisor}/fd")}
    least = next(fd for fd in range(len(used) + 1) if fd not in used)
    before = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (least, before[1]))
    for pid in Cgroups(str(root.cgroup)).pids(Key(1, 1)):
        os.kill(pid, signal.SIGCONT)

    assert "Too many open files" in daemon.await_state("1.1", "failed")["problem"]
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, before)
    assert supervisor == root.role("iod-supervisor")


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
    daemon.start("1.1", "sh", "-c", "exit 3")
    daemon.await_end()
    daemon = root.connect()
    daemon.run("1.1", "sh", "-c", "exit 3")

    assert 3 == daemon.await_state("1.1", "ended")["exit"]["code"]


def test_a_full_cgroup_tree_fails_the_start_in_words_and_keeps_nobody_busy(
    make_root: Callable[..., RootSide],
) -> None:
    root = make_root("cgroup")
    daemon = root.connect()
    (root.cgroup / "jobs" / "cgroup.max.descendants").write_text("0")
    failed = daemon.run("1.1", "true")
    (root.cgroup / "jobs" / "cgroup.max.descendants").write_text("max")
    daemon.start("1.2", "true")

    assert (failed["state"], failed["code"]) == ("failed", "system")
    assert "raise cgroup.max.descendants" in failed["problem"]
    assert daemon.await_state("1.2", "ended")["exit"]["code"] == 0


def test_limits_are_written_where_a_controller_is_delegated(tmp_path: Path) -> None:
    """No controller can be had on most machines that tests run on: a directory stands for it."""
    cgroups = Cgroups(str(tmp_path))
    cgroups.controls = ("cpuset", "io", "pids", "memory")
    (tmp_path / "jobs" / "1.1").mkdir(parents=True)
    files = ["cpuset.cpus", "cpuset.mems", "memory.oom.group", "memory.max", "pids.max"]
    for name in files:
        (tmp_path / "jobs" / "1.1" / name).touch()
    limits = Limits(1 << 30, 100, (2, 1), (0,))
    fd, problems = cgroups.prepare(Key(1, 1), limits)
    os.close(fd)
    os.close(cgroups.fd)
    written = [(tmp_path / "jobs" / "1.1" / name).read_text() for name in files]

    assert (["1,2", "0", "1", "1073741824", "100"], []) == (written, problems)


def test_what_the_kernel_killed_for_want_of_memory_is_told(tmp_path: Path) -> None:
    """Text of Linux 6.1: a job that met its limit twice, and one whose child was killed."""
    cgroups = Cgroups(str(tmp_path))
    cgroups.controls = ("memory",)
    events = "low 0\nhigh 0\nmax 31\noom {}\noom_kill {}\noom_group_kill 0\n"
    for number, (oom, killed, limit, nodes) in enumerate(
        ((2, 3, "1073741824\n", "0-1\n"), (0, 1, "max\n", "\n"), (1, 0, "max\n", "\n"))
    ):
        job = tmp_path / "jobs" / f"{number}.1"
        job.mkdir(parents=True)
        (job / "memory.events").write_text(events.format(oom, killed))
        (job / "memory.max").write_text(limit)
        (job / "cpuset.mems").write_text(nodes)
    ends = [cgroups.find_memory_end(Key(number, 1)) for number in range(4)]
    os.close(cgroups.fd)

    assert [
        {"killed": 3, "at_limit": 2, "limit_bytes": 1 << 30, "nodes": "0-1"},
        {"killed": 1, "at_limit": 0, "limit_bytes": None, "nodes": ""},
        None,
        None,
    ] == ends


@pytest.mark.parametrize("let_go", [Cgroups.thaw_all, lambda cgroups: cgroups.thaw(Key(1, 1))])
def test_caps_are_written_and_end_where_a_job_is_let_go(
    tmp_path: Path, let_go: Callable[[Cgroups], object]
) -> None:
    cgroups = Cgroups(str(tmp_path))
    cgroups.controls = ("io", "cap")
    file = tmp_path / "jobs" / "1.1" / "io.max"
    file.parent.mkdir(parents=True)
    file.touch()
    cgroups.cap(Key(1, 1), {"8:0": "rbps=1000 wbps=max"})

    assert "8:0 rbps=1000 wbps=max" == file.read_text()

    let_go(cgroups)

    assert "8:0 rbps=max wbps=max riops=max wiops=max" == file.read_text()
    os.close(cgroups.fd)


def test_a_cap_that_cannot_be_had_is_refused_by_name(root: RootSide) -> None:
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


def test_where_clone3_is_missing_jobs_run_as_well(
    means: str, make_root: Callable[..., RootSide]
) -> None:
    daemon = make_root(means, sys.executable, "-ISc", WITHOUT_CLONE3).connect()
    daemon.run("1.1", "sh", "-c", "(setsid sleep 0.1 &); exit 3")
    ended = daemon.await_state("1.1", "ended")

    assert (3, True) == (ended["exit"]["code"], ended["whole"])


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


@pytest.mark.parametrize("program", [[PROGRAM], command("launcher")], ids=["compiled", "python"])
def test_jobs_inherit_nothing_of_a_launcher_that_was_given_high_numbers(
    program: list[str], tmp_path: Path
) -> None:
    """As of a supervisor that has a thousand jobs and more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ledger = os.open(tmp_path / "ledger", os.O_RDWR | os.O_CREAT)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 2000) for fd in (theirs.fileno(), ledger)]
    launcher = subprocess.Popen([*program, *map(str, high), "-1"], pass_fds=high)
    fds = Path(f"/proc/{launcher.pid}/fd")
    wait_until(lambda: {int(path.name) < 2000 for path in fds.iterdir()} == {True})
    for line in (ours, theirs):
        line.close()
    for fd in (ledger, *high):
        os.close(fd)

    assert 0 == launcher.wait(20)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("launcher", ["compiled"])
@pytest.mark.parametrize("other", ["/bin/false", "/dev/null"])
def test_a_compiled_launcher_that_does_not_run_here_is_done_without(
    means: str, other: str, make_root: Callable[..., RootSide]
) -> None:
    """As one that was built for another machine, and one that is no program."""
    hide = f'mount --bind {other} {PROGRAM} && exec "$@"'
    root = make_root(means, "unshare", "--mount", "sh", "-c", hide, "sh")
    daemon = root.connect()
    daemon.run("1.1", "sh", "-c", "exit 3")

    assert 3 == daemon.await_state("1.1", "ended")["exit"]["code"]
    assert 1 == root.log.read_text().count("the launcher in Python takes its place")
