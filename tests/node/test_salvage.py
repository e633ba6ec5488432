"""What an ended job left can be copied out later, and no halves of it stay in the output."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys

import pytest
from harness import find_state, marked, until
from keeping import NOBODY
from scratching import KEY, both_disks, disks, jobs, left, needs_root, own_jobs, share
from stuck_exec import silent_file_system, stuck_command

from iodaemon.backend.linux import salvage
from iodaemon.backend.linux.lingering import find_lingering
from iodaemon.backend.linux.manifest import is_at_work

__all__ = ["both_disks", "disks", "jobs", "own_jobs"]

pytestmark = [pytest.mark.node, needs_root]

PART = ".iod-part."


@pytest.fixture
def data(jobs):
    """Input, and a place for output that has something of the user's."""
    place = jobs.keeper.root / "data"
    (place / "in" / "sub").mkdir(parents=True)
    (place / "in" / "sub" / "b").write_text("b")
    (place / "in" / "link").symlink_to("sub/b")
    (place / "out" / "sub").mkdir(parents=True)
    (place / "out" / "link").write_text("mine")
    subprocess.run(["chown", "-R", "--no-dereference", NOBODY.pw_name, place], check=True)
    return place


@pytest.fixture
def silent(tmp_path):
    """A file system that does not answer."""
    files = silent_file_system(tmp_path)
    yield files
    files.let_go()


def staging(data, **more):
    return {"input": str(data / "in"), "output": str(data / "out"), "on": "success", **more}


def names(top):
    return sorted(str(path.relative_to(top)) for path in top.rglob("*"))


def copied(jobs):
    """Ask for it to be copied out; the state that comes of it."""
    jobs.scratch(copy=True)
    return jobs.await_scratch("kept", "removed")


def test_what_was_kept_is_copied_out_as_its_user_once_that_works_and_then_goes(jobs, data):
    os.chown(data / "out", 0, 0)
    status = jobs.run("cd $IOD_SCRATCH; echo x > x; echo y > sub/y", staging=staging(data))
    before = jobs.await_scratch("kept")
    again = copied(jobs)
    os.chown(data / "out", NOBODY.pw_uid, NOBODY.pw_gid)
    last = copied(jobs)

    assert 74 == status["exit"]["code"]
    assert "kept" == before["state"] == again["state"]
    assert f"it was not copied to {data / 'out'}" in again["because"]
    assert "Permission denied" in again["because"]
    assert str(jobs.disks[0]) in again["because"]
    assert "removed" == last["state"]
    assert ["link", "sub", "sub/y", "x"] == names(data / "out")
    assert "mine" == (data / "out" / "link").read_text()
    assert NOBODY.pw_uid == (data / "out" / "x").stat().st_uid
    assert [] == left(jobs.disks)


def test_who_hears_that_it_is_copied_finds_nobody_at_it_any_more(jobs, data):
    """Else what removes it then would keep it, for it may still be copied."""
    os.chown(data / "out", 0, 0)
    jobs.run("echo x > $IOD_SCRATCH/x", staging=staging(data))
    jobs.await_scratch("kept")
    os.chown(data / "out", NOBODY.pw_uid, NOBODY.pw_gid)
    directory = str(jobs.keeper.directory(1))

    def copy():
        """None while the keeper sweeps what the last try has left."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            salvage.copy(directory, theirs.fileno())
            theirs.recv(1)
            os._exit(0)
        with ours, theirs:
            word, is_held = json.loads(ours.recv(65536)), is_at_work(directory, "out")
            ours.send(b"x")
            os.waitpid(pid, 0)
        return None if "just now" in word.get("because", "") else (word, is_held)

    word, is_held = until(copy, "a copy")
    jobs.scratch(free=True)
    last = jobs.await_scratch("removed")

    assert "copied" == word["state"]
    assert not is_held
    assert "removed" == last["state"]


def test_what_a_job_without_its_shim_has_made_can_be_copied_out(jobs, data):
    gate = data / "gate"
    text = f"echo x > $IOD_SCRATCH/x; until [ -e {gate} ]; do sleep 0.02; done"
    jobs.start(text, staging=staging(data))
    until(lambda: left(jobs.disks) and (jobs.place() / "x").exists(), "the command")
    jobs.keeper.kill_shim(1)
    gate.touch()
    kept = jobs.await_scratch("kept")
    last = copied(jobs)

    assert "its shim was killed" in kept["because"]
    assert "removed" == last["state"]
    assert ["link", "sub", "x"] == names(data / "out")


def test_what_a_job_without_input_has_made_is_kept_though_copying_it_out_fails(jobs, data):
    text = "echo x > $IOD_SCRATCH/x; sleep 600"
    jobs.start(text, staging=staging(data, input=None))
    until(lambda: left(jobs.disks) and (jobs.place() / "x").exists(), "the command")
    jobs.keeper.kill_shim(1)
    jobs.line.ask("kill", **KEY, signal=9)
    jobs.await_scratch("kept")
    os.chown(data / "out", 0, 0)
    copied(jobs)
    jobs.begin_again()
    again = jobs.await_scratch("kept", "removed")
    os.chown(data / "out", NOBODY.pw_uid, NOBODY.pw_gid)
    last = copied(jobs)

    assert "kept" == again["state"]
    assert "removed" == last["state"]
    assert "x" in names(data / "out")


@pytest.mark.parametrize("on", ["always", "success"])
def test_input_that_was_cut_off_with_its_shim_is_no_result(jobs, data, on):
    """Not to be kept, either: copied out later it would replace what it is half of."""
    (data / "in" / "a").write_bytes(os.urandom(3 << 20))
    jobs.arm("stage.piece", number=19)
    jobs.start("true", staging=staging(data, on=on, output=str(data / "in")))
    step = jobs.stopped_at("stage.piece")
    jobs.keeper.kill_shim(1)
    os.kill(step, signal.SIGKILL)
    last = jobs.await_scratch("kept", "removed")

    assert "removed" == last["state"]
    assert 3 << 20 == (data / "in" / "a").stat().st_size


def test_a_job_that_ended_well_has_nothing_to_copy(jobs, data):
    jobs.run("true", staging=staging(data))

    assert "removed" == copied(jobs)["state"]


def test_copying_that_is_killed_is_told_and_can_be_asked_for_again(jobs, data):
    os.chown(data / "out", 0, 0)
    jobs.run("echo x > $IOD_SCRATCH/x", staging=staging(data))
    jobs.await_scratch("kept")
    os.chown(data / "out", NOBODY.pw_uid, NOBODY.pw_gid)
    jobs.arm("stage.part", number=19)
    told = jobs.scratch(copy=True)
    step = jobs.stopped_at("stage.part")
    during = jobs.scratch(known="kept")
    os.kill(step, signal.SIGKILL)
    kept = jobs.await_scratch("kept")
    until(lambda: not any(PART in name for name in names(data / "out")), "the halves to go")
    last = copied(jobs)

    assert "copying" == told["state"] == during["state"]
    assert "what copied it out was killed" in kept["because"]
    assert "removed" == last["state"]
    assert "x\n" == (data / "out" / "x").read_text()


def test_what_is_being_copied_out_can_be_removed_all_the_same(jobs, data):
    os.chown(data / "out", 0, 0)
    jobs.run("echo x > $IOD_SCRATCH/x", staging=staging(data))
    jobs.await_scratch("kept")
    os.chown(data / "out", NOBODY.pw_uid, NOBODY.pw_gid)
    jobs.arm("stage.part", number=19)
    jobs.scratch(copy=True)
    jobs.stopped_at("stage.part")
    jobs.scratch(free=True)
    jobs.await_scratch("removed")

    assert ["link", "sub"] == names(data / "out")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_copying_out_that_is_cancelled_leaves_no_halves(jobs, data, number):
    jobs.arm("stage.part", passage=2, number=19)
    text = "cd $IOD_SCRATCH; for n in 1 2 3; do echo $n > $n; done"
    jobs.start(text, staging=staging(data))
    jobs.stopped_at("stage.part")
    halves = [name for name in names(data / "out") if PART in name]
    jobs.line.ask("kill", **KEY, signal=int(number))
    status = jobs.keeper.status()
    report = jobs.await_scratch("kept")
    until(lambda: ["link", "sub"] == names(data / "out"), f"the halves to go ({halves})")
    jobs.scratch(free=True)

    assert 2 == len(halves)
    assert 74 == status["exit"]["code"]
    assert str(data / "out") in report["because"]


def test_while_a_step_outlives_its_shim_nothing_else_copies_or_removes(jobs, data):
    jobs.arm("stage.part", number=19)
    jobs.start("echo x > $IOD_SCRATCH/x", staging=staging(data))
    step = jobs.stopped_at("stage.part")
    jobs.keeper.kill_shim(1)
    jobs.await_scratch("kept")
    jobs.scratch(copy=True)
    busy = jobs.await_scratch("kept")
    jobs.scratch(free=True)
    still = until(
        lambda: (r := jobs.scratch())["state"] == "kept" and "still" in r["because"] and r, "so"
    )
    halves = [name for name in names(data / "out") if PART in name]
    os.kill(step, signal.SIGCONT)
    until(lambda: find_state(step) is None, "end of the step")
    jobs.scratch(free=True)
    jobs.await_scratch("removed")

    assert "it is being copied just now" in busy["because"]
    assert "is still at it" in still["because"]
    assert 1 == len(halves)
    assert ["link", "sub", "x"] == names(data / "out")


def test_halves_of_a_step_that_outlived_its_shim_go_with_the_space(jobs, data):
    jobs.arm("stage.part", number=19)
    jobs.start("echo x > $IOD_SCRATCH/x", staging=staging(data))
    step = jobs.stopped_at("stage.part")
    jobs.keeper.kill_shim(1)
    jobs.await_scratch("kept")
    os.kill(step, signal.SIGKILL)
    until(lambda: find_state(step) is None, "end of the step")
    jobs.scratch(free=True)
    jobs.await_scratch("removed")

    assert ["link", "sub"] == names(data / "out")


def test_a_process_that_hides_from_a_dead_shim_keeps_its_directory(jobs):
    """Without cgroups, in a session of its own, with no parent that is known."""
    text = "(setsid sh -c 'echo x > $IOD_SCRATCH/x; exec sleep 60' &); sleep 60"
    jobs.start(text)
    until(lambda: left(jobs.disks) and (jobs.place() / "x").exists(), "the command")
    place = str(jobs.place())
    jobs.keeper.kill_shim(1)
    jobs.line.ask("kill", **KEY, signal=9)
    kept = jobs.await_scratch("kept")
    lingering = find_lingering([place]).pid
    is_there = os.path.exists(f"{place}/x")
    os.kill(lingering, signal.SIGKILL)
    until(lambda: find_state(lingering) is None, "its end")
    jobs.scratch(free=True)
    jobs.await_scratch("removed")

    assert f"process {lingering} still uses {place}" in kept["because"]
    assert is_there
    assert marked(jobs.keeper.mark)


@pytest.mark.parametrize("means", ["signals"])
def test_a_process_that_hides_and_hangs_keeps_the_directory_until_it_answers(own_jobs, silent):
    hides = shlex.join(["setsid", *stuck_command(silent.path)])
    own_jobs.start(f"(env -u IOD_SCRATCH -u IOD_SCRATCH_0 {hides} &); sleep 60")
    (stuck,) = silent.wait_for(1)
    place = str(own_jobs.place())
    own_jobs.keeper.kill_shim(1)
    own_jobs.line.ask("kill", **KEY, signal=9)
    kept = own_jobs.await_scratch("kept")
    silent.let_go()
    until(lambda: find_state(stuck) is None, "its end")
    own_jobs.scratch(free=True)
    own_jobs.await_scratch("removed")

    assert f"process {stuck} does not answer and may use {place}" in kept["because"]


def test_who_works_in_a_directory_or_has_a_file_of_it_open_is_found(tmp_path):
    inside, beside = tmp_path / "a", tmp_path / "ab"
    (inside / "sub").mkdir(parents=True)
    beside.mkdir()
    (inside / "file").touch()
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    found = []
    for options in ({"cwd": inside / "sub"}, {"stdin": (inside / "file").open()}, {"cwd": beside}):
        process = subprocess.Popen(sleeper, env={}, **options)
        lingering = find_lingering([str(inside)])
        found.append(lingering is not None and lingering.pid == process.pid)
        process.kill()
        process.wait()
        if "stdin" in options:
            options["stdin"].close()

    assert [True, True, False] == found
    assert None is find_lingering([str(inside)])


def test_splits_are_copied_out_from_all_their_disks(jobs, data):
    os.chown(data / "out", 0, 0)
    shares = [share(disk, 2) for disk in jobs.disks]
    jobs.run("echo 0 > $IOD_SCRATCH_0/x; echo 1 > $IOD_SCRATCH_1/y", shares, staging=staging(data))
    jobs.await_scratch("kept")
    os.chown(data / "out", NOBODY.pw_uid, NOBODY.pw_gid)
    last = copied(jobs)

    assert "removed" == last["state"]
    assert ["link", "sub", "x", "y"] == names(data / "out")
