"""Each role is killed alone, and both together: what is known afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import find_state, name_of, until
from root_side import by_either_means, is_alive

from iodaemon.supervisor.attempts import ENDS
from iodaemon.supervisor.ledger import EXEC, Key, Record, open_ledger

pytestmark = pytest.mark.node


def through_a_link() -> list[str]:
    """Run the interpreter by a link in the directory of the root side."""
    text = 'cd "${IOD_FAULTS%/*}"; ln -s "$0" python; shift; exec "$PWD/python" "$@"'
    return ["sh", "-c", text, os.path.realpath(sys.executable)]


@by_either_means
@pytest.mark.parametrize("role", ["iod-supervisor", "iod-anchor"])
def test_exit_codes_survive_the_death_of(role, root):
    """Of the supervisor also those of jobs that end before there is another one."""
    daemon = root.connect()
    child = "(dd if=/dev/zero of=/dev/null count=1 &)"
    pids = [
        daemon.run("1.1", *root.gate.wait_and(f"{child}; exit 42"))["pid"],
        daemon.run("2.1", *root.gate.wait_and("kill -KILL $$"))["pid"],
    ]
    daemon.run("3.1", "sh", "-c", "exit 3")
    daemon.await_state("3.1", "ended")
    if role == "iod-supervisor":
        root.arm("anchor.starting", signal.SIGSTOP)
    root.kill(role)
    if role == "iod-supervisor":
        until(lambda: root.has_fired("anchor.starting"), "an anchor that stands still")
    root.gate.open()
    if role == "iod-supervisor":
        until(lambda: not any(map(is_alive, pids)), "the end of both jobs")
        os.kill(root.process.pid, signal.SIGCONT)
    daemon = root.find("1.1", "2.1", "3.1")

    assert {"code": 42, "signal": None} == daemon.await_state("1.1", "ended")["exit"]
    assert {"code": None, "signal": 9} == daemon.await_state("2.1", "ended")["exit"]
    assert {"code": 3, "signal": None} == daemon.await_state("3.1", "ended")["exit"]
    assert all(daemon.states[key]["whole"] for key in ("1.1", "2.1", "3.1"))

    assert 4 == daemon.code_of("4.1", "exit 4")


@by_either_means
def test_what_a_job_stops_of_the_root_side_goes_on(means, make_root):
    """A job of a user's own daemon has the right to; its parent is the supervisor or its holder."""
    root = make_root(means, grace_s=1.0)
    daemon = root.connect()
    launchers = [str(root.role("iod-launcher"))] if means == "cgroup" else []
    for number, pid in enumerate(["$PPID", str(root.process.pid), *launchers], 1):
        daemon.run(f"{number}.1", "sh", "-c", f"kill -STOP {pid}; exit 3")

        assert 3 == daemon.await_state(f"{number}.1", "ended")["exit"]["code"]

    daemon.run("9.1", "sh", "-c", "exit 9")

    assert 9 == daemon.await_state("9.1", "ended")["exit"]["code"]
    until(lambda: find_state(root.process.pid) != "T", "an anchor that goes on")


def test_supervisors_that_die_leave_no_open_file_to_the_anchor(root):
    def count_open():
        root.connect()
        return len(os.listdir(f"/proc/{root.process.pid}/fd"))

    before = count_open()
    for _ in range(2):
        root.kill("iod-supervisor")
        count_open()

    assert before == count_open()


def test_what_ends_while_a_supervisor_begins_is_told_whole(make_root):
    """It has read that the first process ended, and not yet what that used."""
    root = make_root("processes")
    daemon = root.connect()
    daemon.run("1.1", *root.gate.wait_and("exit 6"))
    holder = root.role("iod-holder")
    root.arm("reap.exit_recorded", signal.SIGSTOP)
    root.gate.open()
    until(lambda: find_state(holder) == "T")
    root.arm("supervisor.begun", signal.SIGSTOP)
    root.kill("iod-supervisor")
    supervisor = root.role("iod-supervisor")
    until(lambda: find_state(supervisor) == "T")
    os.kill(holder, signal.SIGCONT)
    until(lambda: not is_alive(holder))
    os.kill(supervisor, signal.SIGCONT)
    daemon = root.find("1.1")
    ended = daemon.await_state("1.1", "ended")

    assert (6, True) == (ended["exit"]["code"], ended["whole"])
    assert ended["use"]["cpu_us"] > 0


@pytest.mark.parametrize(("loss", "means"), [("removed", "cgroup"), ("damaged", "processes")])
def test_a_job_runs_on_without_its_record(loss, means, make_root):
    """How it ends is lost, unless its holder was there."""
    root = make_root(means)
    daemon = root.connect()
    path = root.directory / "lines"
    daemon.run("1.1", "sh", "-c", f"echo x >> {path}; flock -s {root.gate.path} true")
    until(path.exists)
    daemon.hold("1.1")
    root.arm("child.prepared", signal.SIGSTOP)
    daemon.start("2.1", "sh", "-c", f"echo y >> {path}")  # no job yet, and never one
    until(lambda: root.has_fired("child.prepared"))
    root.kill_both()
    if loss == "removed":
        shutil.rmtree(root.runtime)
    else:
        with (root.runtime / "ledger").open("r+b") as ledger:
            ledger.seek(128)  # behind the record that it is open, and that of the holder
            ledger.write(bytes(8))
    root.begin()
    daemon = root.find("1.1", "2.1")
    daemon.await_state("1.1", "running", frozen=False)
    daemon.start("1.1", "sh", "-c", f"echo x >> {path}")
    daemon.await_state("2.1", "absent")

    assert (0, "running", None) == (
        daemon.states["1.1"]["pid"],
        daemon.states["1.1"]["state"],
        daemon.states["1.1"]["started_us"],
    )

    root.kill("iod-supervisor")
    daemon = root.find("1.1")
    daemon.await_state("1.1", "running")
    root.gate.open()

    report = daemon.await_state("1.1", "lost", "ended")

    assert "x\n" == path.read_text()
    assert (("lost", False) if means == "cgroup" else ("ended", True)) == (
        report["state"],
        report["whole"],
    )


def test_a_job_whose_holder_is_killed_ends_with_its_last_process(make_root):
    """The holder closes its files before its children are the supervisor's: here long before."""
    root = make_root("processes")
    daemon = root.connect()
    cpu = min(os.sched_getaffinity(0))
    for number in range(1, 4):
        key = f"{number}.1"
        pid = daemon.run(key, "sh", "-c", f"flock -s {root.gate.path} true & exit 3")["pid"]
        holder = root.role("iod-holder")
        until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
        os.sched_setscheduler(holder, os.SCHED_IDLE, os.sched_param(0))
        for each in (holder, root.role("iod-supervisor")):
            os.sched_setaffinity(each, {cpu})
        root.kill("iod-holder")
        daemon.beat()
        daemon.drain()

        assert "running" == daemon.states[key]["state"]

    root.gate.open()
    for number in range(1, 4):
        assert 3 == daemon.await_state(f"{number}.1", "ended")["exit"]["code"]


@by_either_means
def test_a_prepared_job_never_runs_once_the_supervisor_is_gone(root):
    daemon = root.connect()
    touched = root.directory / "touched"
    launch = {"command": ["touch", str(touched)], "environment": {"PATH": os.environ["PATH"]}}
    daemon.say("prepare", key="1.1", launch=launch)
    daemon.await_prepared("1.1")
    root.kill("iod-supervisor")
    daemon = root.find("1.1")
    daemon.await_state("1.1", "absent")

    assert not touched.exists()

    daemon.start("1.1", "touch", str(touched))

    assert 0 == daemon.await_state("1.1", "ended")["exit"]["code"]
    assert touched.exists()


def test_what_was_prepared_for_a_daemon_that_is_gone_never_runs(root):
    """What it let run does; and the next one may prepare the same attempt, to run otherwise."""
    touched = [root.directory / name for name in "abc"]
    launch = {"command": ["touch", str(touched[0])], "environment": {"PATH": os.environ["PATH"]}}
    daemon = root.connect()
    daemon.say("prepare", key="1.1", launch=launch)
    daemon.await_prepared("1.1")
    root.arm("child.begun", signal.SIGSTOP)
    daemon.say("prepare", key="2.1", launch=launch)
    until(lambda: root.has_fired("child.begun"))
    daemon.say("prepare", key="3.1", launch=launch)
    daemon.start("4.1", "touch", str(touched[1]))
    daemon.beat()
    daemon.close()
    daemon = root.find("3.1", "4.1")
    daemon.start("1.1", "touch", str(touched[2]))
    daemon.start("2.1", "touch", str(touched[2]))
    for key in ("1.1", "2.1", "4.1"):
        daemon.await_state(key, "ended")
    daemon.await_state("3.1", "absent")

    assert [False, True, True] == [path.exists() for path in touched]
    assert {"running", "ended", "absent"} >= {r["state"] for r in daemon.reports if "state" in r}


def test_without_an_anchor_it_makes_room_for_one_once_nothing_runs(root):
    daemon = root.connect()
    daemon.run("1.1", *root.gate.wait_and("exit 1"))
    before = daemon.hello["pid"]
    root.kill("iod-anchor")
    root.process.wait()

    assert {"protected": False} == daemon.await_message(lambda m: m == {"protected": False})

    root.gate.open()
    daemon.await_state("1.1", "ended")
    daemon.await_end()
    until(lambda: not is_alive(before))

    assert not (root.runtime / "supervisor.sock").exists()
    assert not root.cgroup.exists()

    root.begin()
    daemon = root.find("1.1")

    assert daemon.hello["protected"]
    assert 1 == daemon.states["1.1"]["exit"]["code"]


@pytest.mark.parametrize(
    ("means", "by"), [("cgroup", "the wish"), ("cgroup", "SIGHUP"), ("processes", "the wish")]
)
def test_it_becomes_the_installed_program_in_place(root, by):
    daemon = root.connect()
    pid = daemon.run("1.1", *root.gate.wait_and("exit 11"))["pid"]
    anchor = root.process.pid
    hello = daemon.hello
    if by == "SIGHUP":
        root.process.send_signal(signal.SIGHUP)
    else:
        daemon.say("reexec")
    daemon.await_end()
    daemon = root.connect()

    assert daemon.hello == hello
    assert root.process.poll() is None
    assert anchor == root.role("iod-anchor")

    daemon.sync(**{"1_1": "run"})
    daemon.await_state("1.1", "running", pid=pid)
    daemon.run("2.1", "sh", "-c", "exit 12")
    root.gate.open()

    assert 11 == daemon.await_state("1.1", "ended")["exit"]["code"]
    assert 12 == daemon.await_state("2.1", "ended")["exit"]["code"]


def test_a_program_that_is_not_there_is_not_become_and_nothing_leaks(make_root):
    root = make_root("cgroup", *through_a_link())
    link = root.directory / "python"
    daemon = root.connect()
    daemon.run("1.1", *root.gate.wait_and("exit 11"))
    link.rename(f"{link}.away")
    daemon.say("reexec")

    assert "reexec" == daemon.await_message(lambda m: "error" in m)["wish"]

    root.kill("iod-launcher")
    link.with_name("python.away").rename(link)
    daemon.start("2.1", "sleep", "1000")
    pid = daemon.await_state("2.1", "running")["pid"]
    launcher = root.role("iod-launcher")
    until(lambda: name_of(pid) == "sleep")

    assert ["0", "1", "2"] == sorted(os.listdir(f"/proc/{pid}/fd"))
    assert 6 == len(os.listdir(f"/proc/{launcher}/fd"))  # and a place, its line, the ledger

    root.arm("anchor.reexec", signal.SIGSTOP)
    daemon.say("reexec")
    until(lambda: root.has_fired("anchor.reexec"))
    link.rename(f"{link}.away")
    root.process.send_signal(signal.SIGCONT)
    until(lambda: "the anchor stays" in root.log.read_text())
    root.kill("iod-supervisor")
    until(lambda: "no supervisor can be started" in root.log.read_text())
    link.with_name("python.away").rename(link)
    root.gate.open()
    daemon = root.find("1.1", "2.1")

    assert 11 == daemon.await_state("1.1", "ended")["exit"]["code"]
    assert "running" == daemon.states["2.1"]["state"]
    assert root.process.poll() is None


def test_a_signal_waits_for_a_program_that_begins(make_root):
    """Here the anchor, as it becomes the installed program."""
    root = make_root("cgroup", *through_a_link(), is_service=True)
    link, begun = root.directory / "python", root.directory / "begun"
    slow, program = root.directory / "slow", os.path.realpath(sys.executable)
    slow.write_text(
        f"#!{program} -IS\nimport fcntl, os, sys\nopen('{begun}', 'w')\n"
        f"fcntl.flock(open('{root.gate.path}'), fcntl.LOCK_SH)\n"
        f"os.execv('{program}', ['{program}', *sys.argv[1:]])\n"
    )
    slow.chmod(0o755)
    root.connect()
    root.arm("anchor.reexec", signal.SIGSTOP)
    root.process.send_signal(signal.SIGHUP)
    until(lambda: root.has_fired("anchor.reexec") and find_state(root.process.pid) == "T")
    slow.rename(link)
    root.process.send_signal(signal.SIGCONT)
    until(begun.exists)
    root.process.send_signal(signal.SIGHUP)
    begun.unlink()
    root.process.send_signal(signal.SIGTERM)
    root.gate.open()

    assert 0 == root.process.wait(60)


def test_sigterm_lets_all_run_on_and_keeps_how_attempts_ended(make_root, tmp_path):
    (tmp_path / "outputs").mkdir()
    root = make_root("cgroup", is_service=True, outputs=str(tmp_path / "outputs"))
    daemon = root.connect()
    daemon.start("2.1", "sh", "-c", "exit 3")
    daemon.await_state("2.1", "ended")
    pid = daemon.run("1.1", "sleep", "1000")["pid"]
    daemon.hold("1.1")
    root.process.terminate()

    assert 0 == root.process.wait(60)
    assert is_alive(pid)
    assert "frozen 0" in (root.job_cgroup("1.1") / "cgroup.events").read_text()
    [(key, end)] = json.loads((tmp_path / ENDS).read_text()).items()

    assert ("2.1", 3) == (key, end["exit"]["code"])


def test_without_a_daemon_and_without_jobs_it_ends(make_root):
    root = make_root(grace_s=0.2)
    root.connect().close()

    assert 0 == root.process.wait(60)
    assert not root.cgroup.exists()


def test_one_root_side_serves_a_directory_also_once_that_is_removed(root):
    def begin_another():
        ended = subprocess.run(root.process.args, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stderr.count("\n")

    daemon = root.connect()
    daemon.run("1.1", "sleep", "1000")
    second = begin_another()
    subprocess.run(["rm", "-rf", str(root.runtime)], check=True)
    other = root.connect_abstract()
    other.sync(**{"1_1": "run"})

    assert "running" == other.states["1.1"]["state"]

    root.connect()
    root.kill("iod-supervisor")
    again = root.find("1.1")

    assert 9 == again.kill("1.1")["exit"]["signal"]
    assert [(78, 1)] * 2 == [second, begin_another()]


def test_what_is_left_of_a_forgotten_attempt_is_not_said_to_run(root):
    """Its EXEC stays for as long as others of that page are needed, and its EXIT may be gone."""
    daemon = root.connect()
    daemon.run("1.1", "sleep", "1000")
    ended = subprocess.Popen(["true"])
    ended.wait()
    ledger = open_ledger(str(root.runtime / "ledger"))
    ledger.append(Record(EXEC, Key(2, 1), ended.pid, values=(1, 1)))
    os.close(ledger.fd)
    root.kill("iod-supervisor")
    daemon = root.find("1.1")

    assert {"1.1"} == {r["key"] for r in daemon.reports if r.get("state") == "running"}
    assert {"lost"} == {daemon.await_state("2.1", "lost", "running")["state"]}
