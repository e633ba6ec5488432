"""A job whose processes are moved out of its cgroup, as systemd does it where their user asks."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from harness import Server, cgroup_trees, end, until
from keeping import Keeper

from iodaemon.backend.linux.freezer import CgroupFreezer
from iodaemon.backend.linux.process import descendants_of, find_state
from iodaemon.backend.linux.track import Track

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can move a process out"),
]

ONE = {"job": 1, "attempt": 1}
DAEMON = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open("daemon", "w") as file:
    file.write(str(os.getpid()))
os.rename("daemon", "pid")
while not os.path.exists("gate-far"):
    time.sleep(0.02)
    with open("ticks-far", "a") as file:
        file.write("x")
"""
FORKS_ON = """
import os, time
while not os.path.exists("gate-far"):
    if os.fork():
        os._exit(0)
    with open("ticks-far", "a") as file:
        file.write("x")
"""


@pytest.fixture
def means():
    return "cgroup"


@pytest.fixture
def keeper():
    with Keeper("cgroup") as keeper:
        yield keeper


@pytest.fixture
def elsewhere(keeper):
    """Another cgroup, as of a scope of the user's own systemd."""
    parent = next(path for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
                  if (path / "cgroup.procs").exists())  # fmt: skip
    path = parent / f"elsewhere-{keeper.mark}"
    path.mkdir()
    yield path
    with contextlib.suppress(OSError):
        (path / "cgroup.kill").write_text("1")
    until(lambda: not (path / "cgroup.procs").read_text(), "an empty cgroup")
    path.rmdir()


def move(pid, cgroup):
    (cgroup / "cgroup.procs").write_text(str(pid))


def inside(keeper):
    [tree] = cgroup_trees(keeper.state)
    return (tree / "jobs" / "1.1" / "cgroup.procs").read_text().split()


def begin(keeper, launch):
    """The connection, and what the shim says of itself."""
    line = keeper.begin()
    return line, line.ask("start", **ONE, launch=launch)["shim"]


def begin_outside(keeper, elsewhere):
    """A gated job of which no process is in its cgroup; the same."""
    line, shim = begin(keeper, keeper.gated_launch())
    for _ in range(20):
        for pid in descendants_of(shim["pid"]):
            with contextlib.suppress(ProcessLookupError):
                move(pid, elsewhere)
    until(lambda: not inside(keeper), "all outside")
    keeper.goes_on("it")
    return line, shim


def begin_with_daemon(keeper, elsewhere, code=DAEMON):
    """A gated job with a process that has left its session and its cgroup; the same."""
    command = f"{sys.executable} -I -S daemon.py & "
    (keeper.place / "daemon.py").write_text(code)
    launch = keeper.gated_launch()
    launch["command"][-1] = command + launch["command"][-1]
    line, shim = begin(keeper, launch)
    if code is DAEMON:
        until((keeper.place / "pid").exists, "a daemon")
        move(int((keeper.place / "pid").read_text()), elsewhere)
    else:
        until(lambda: keeper.ticks("far"), "a chain")
        until(lambda: _catch(shim["pid"], elsewhere), "a chain outside")
    keeper.goes_on("it")
    keeper.goes_on("far")
    return line, shim


def _catch(shim, elsewhere):
    _, *others = descendants_of(shim)
    for pid in others:
        with contextlib.suppress(OSError):
            move(pid, elsewhere)
    return (elsewhere / "cgroup.procs").read_text() != ""


@pytest.mark.parametrize("again", range(3))
def test_what_has_left_stands_still_and_goes_on(keeper, elsewhere, again):
    line, _ = begin_outside(keeper, elsewhere)

    assert {"frozen": True} == line.ask("freeze", **ONE)
    assert keeper.stands_still("it")
    [there] = line.ask("list", jobs=[[1, 1]])["jobs"]
    assert there["frozen"]
    assert {"frozen": False} == line.ask("thaw", **ONE)
    keeper.goes_on("it")
    keeper.open_gate("it")
    assert 3 == keeper.status()["exit"]["code"]


def test_a_daemon_of_the_jobs_stands_still_and_goes_on_with_it(keeper, elsewhere):
    line, _ = begin_with_daemon(keeper, elsewhere)
    for _ in range(5):
        assert {"frozen": True} == line.ask("freeze", **ONE)
        assert keeper.stands_still("it")
        assert keeper.stands_still("far")
        line.ask("thaw", **ONE)
        keeper.goes_on("it")
        keeper.goes_on("far")
    keeper.open_gate("it", "far")

    assert 3 == keeper.status()["exit"]["code"]


def test_a_chain_that_forks_on_outside_is_caught(keeper, elsewhere):
    line, _ = begin_with_daemon(keeper, elsewhere, FORKS_ON)

    assert {"frozen": True} == line.ask("freeze", **ONE)
    assert keeper.stands_still("far")
    line.ask("thaw", **ONE)
    keeper.goes_on("far")
    keeper.open_gate("it", "far")
    assert 3 == keeper.status()["exit"]["code"]


def test_it_is_not_called_frozen_while_one_outside_runs(keeper, elsewhere):
    line, _ = begin_with_daemon(keeper, elsewhere)
    line.ask("freeze", **ONE)
    os.kill(int((keeper.place / "pid").read_text()), signal.SIGCONT)
    [there] = line.ask("list", jobs=[[1, 1]])["jobs"]

    assert not there["frozen"]
    assert {"frozen": True} == line.ask("freeze", **ONE)
    assert keeper.stands_still("far")
    keeper.open_gate("it", "far")
    line.ask("thaw", **ONE)
    keeper.status()


def test_the_keeper_says_once_who_has_left(keeper, elsewhere):
    line, _ = begin_with_daemon(keeper, elsewhere)
    for verb in ("freeze", "thaw", "freeze", "thaw"):
        line.ask(verb, **ONE)
    keeper.open_gate("it", "far")
    keeper.status()

    log = (keeper.state / "keeper.log").read_text()
    assert 1 == log.count("job 1.1: 1 of its processes left its cgroup")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_signal_ends_what_has_left(keeper, elsewhere, number, is_frozen):
    line, _ = begin_outside(keeper, elsewhere)
    if is_frozen:
        line.ask("freeze", **ONE)
    told = line.ask("kill", **ONE, signal=number)

    assert told["signalled"] >= 1
    assert number == keeper.status()["exit"]["signal"]


@pytest.mark.parametrize("code", [DAEMON, FORKS_ON])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_kill_ends_a_daemon_outside_as_well(keeper, elsewhere, code, is_frozen):
    line, _ = begin_with_daemon(keeper, elsewhere, code)
    if is_frozen:
        line.ask("freeze", **ONE)
    line.ask("kill", **ONE, signal=signal.SIGKILL)

    assert signal.SIGKILL == keeper.status()["exit"]["signal"]
    until(lambda: not (elsewhere / "cgroup.procs").read_text(), "its end outside")


def test_sigterm_reaches_a_daemon_outside(keeper, elsewhere):
    line, _ = begin_with_daemon(keeper, elsewhere)
    told = line.ask("kill", **ONE, signal=signal.SIGTERM)

    assert told["signalled"] >= 2
    assert signal.SIGTERM == keeper.status()["exit"]["signal"]


def test_a_shim_lets_go_what_has_left_when_the_keeper_dies(keeper, elsewhere):
    line, _ = begin_with_daemon(keeper, elsewhere)
    line.ask("freeze", **ONE)
    end(keeper.process.pid)
    keeper.goes_on("it")
    keeper.goes_on("far")
    keeper.open_gate("it", "far")

    assert 3 == keeper.status()["exit"]["code"]


def test_the_next_keeper_lets_go_what_the_last_one_held(keeper, elsewhere):
    line, shim = begin_with_daemon(keeper, elsewhere)
    line.ask("freeze", **ONE)
    os.kill(shim["pid"], signal.SIGSTOP)
    end(keeper.process.pid)
    keeper.process.wait()
    line = keeper.begin()
    os.kill(shim["pid"], signal.SIGCONT)
    line.ask("thaw", **ONE)
    keeper.goes_on("it")
    keeper.goes_on("far")
    keeper.open_gate("it", "far")

    assert 3 == keeper.status()["exit"]["code"]


def test_without_its_shim_what_has_left_is_let_go_and_can_be_killed(keeper, elsewhere):
    line, shim = begin_outside(keeper, elsewhere)
    line.ask("freeze", **ONE)
    end(shim["pid"])
    keeper.goes_on("it")
    track = Track(1, 1, shim)
    track.lose_shim(())
    before = track.pids()
    told = line.ask("kill", **ONE, signal=signal.SIGKILL)
    until(lambda: find_state(shim["main_pid"]) in (None, "Z"), "its end")
    track.close()

    assert shim["main_pid"] in before
    assert told["signalled"] >= 1
    line.ask("tidy", **ONE)


def test_the_daemon_sees_who_is_left_where_the_cgroup_is_empty(keeper, elsewhere):
    _, shim = begin_outside(keeper, elsewhere)
    track = Track(1, 1, shim)
    pids = track.pids()
    track.close()
    keeper.open_gate("it")
    keeper.status()

    assert shim["main_pid"] in pids


def test_who_is_all_inside_is_let_go_without_a_look(keeper, monkeypatch, elsewhere):
    """The cost of a timeslice is one look, at the freeze."""
    _, shim = begin(keeper, keeper.gated_launch())
    [tree] = cgroup_trees(keeper.state)
    freezer = CgroupFreezer(str(tree))
    until(lambda: freezer.freeze("1.1", shim["pid"]), "a standstill")
    monkeypatch.setattr("iodaemon.backend.linux.freezer.let_go", _fail)
    freezer.thaw("1.1", shim["pid"])
    keeper.goes_on("it")
    keeper.open_gate("it")
    keeper.status()


def _fail(*_):
    raise AssertionError("it was looked for")


def test_a_shell_with_job_control_does_not_notice_that_its_child_outside_was_stopped(
    keeper, elsewhere
):
    text = "set -m; sh -c 'touch ready; until [ -e go ]; do sleep 0.02; done'; echo rc=$? > rc"
    launch = keeper.launch(text)
    launch["command"][0] = "/bin/bash"
    line, shim = begin(keeper, launch)
    until((keeper.place / "ready").exists, "start")
    child = list(descendants_of(shim["pid"]))[1]
    move(child, elsewhere)
    for _ in range(12):
        assert {"frozen": True} == line.ask("freeze", **ONE)
        assert find_state(child) in ("T", "D")  # D: it waits in vfork for one that is stopped
        line.ask("thaw", **ONE)
        time.sleep(0.005)
    (keeper.place / "go").touch()
    keeper.status()

    assert "rc=0\n" == (keeper.place / "rc").read_text()


def test_a_job_whose_cgroup_somebody_froze_is_shown_and_resumed():
    with Server("cgroup") as server:
        server.start()
        job = server.gated("it")
        server.goes_on("it")
        [tree] = cgroup_trees(server.state)
        freeze = tree / "jobs" / f"{job}.1" / "cgroup.freeze"
        freeze.write_text("1")
        held = server.await_state(job, "SUSPENDED_USER")
        server.client.resume(job)
        server.goes_on("it")
        resumed = server.job(job)
        freeze.write_text("1")
        server.await_state(job, "SUSPENDED_USER")
        freeze.write_text("0")
        server.await_state(job, "RUNNING")
        server.suspend(job)
        freeze.write_text("0")  # what a person holds here is held again
        until(lambda: freeze.read_text() == "1\n", "the person's hold")
        server.client.resume(job)
        server.open_gate("it")

        assert "FrozenOutside" == held["reason"]["code"]
        assert ("RUNNING", None) == (resumed["state"], resumed["reason"])
        assert ("COMPLETED", 0) == server.outcome(job)[0]
