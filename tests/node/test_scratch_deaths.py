"""Whoever dies at any step around a job's directories: nothing is left, no result is lost."""

import contextlib
import os
import selectors
import signal
import sys
from pathlib import Path

import pytest
from harness import until
from keeping import NOBODY
from scratching import both_disks, disks, jobs, left, needs_root, share

sys.path.insert(0, str(Path(__file__).parent / "campaign"))

from points import SCRATCH_POINTS

from iodaemon.backend.linux.directory import JobDirectories
from iodaemon.backend.linux.scratch_desk import ScratchDesk

__all__ = ["both_disks", "disks", "jobs"]

pytestmark = [pytest.mark.node, needs_root]

OUTPUT = b"result" * 1000
TEXT = (
    "cp -r $IOD_SCRATCH_0/. $IOD_SCRATCH_1/; cat {source}/data > $IOD_SCRATCH_1/result; : >> {ran}"
)


@pytest.fixture
def data(jobs):
    """Input, and a place for output."""
    place = jobs.keeper.root / "data"
    (place / "in" / "sub").mkdir(parents=True)
    (place / "in" / "data").write_bytes(OUTPUT)
    (place / "in" / "sub" / "b").write_text("b")
    (place / "out").mkdir()
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY.pw_uid, NOBODY.pw_gid)
    return place


def begin(jobs, data, *, waits):
    """A job with all there is; the line may break meanwhile, and the answer never come."""
    text = TEXT.format(source=data / "in", ran=data / "ran")
    staging = {"input": str(data / "in"), "output": str(data / "out"), "on": "success"}
    with contextlib.suppress(OSError, ValueError):  # the keeper died before it answered
        shares = [share(jobs.disks[0]), share(jobs.disks[1])]
        jobs.start(text, shares, staging=staging, waits=waits)


def settle(jobs):
    """Bring a keeper back, and wait until it says what is; that."""

    def look():
        if jobs.keeper.process.poll() is not None:
            jobs.begin_again()
        with contextlib.suppress(OSError, ValueError):
            jobs.line.ask("list", jobs=[[1, 1]])
            report = jobs.scratch()
            return report if report["state"] in ("kept", "removed") else None
        return None

    return until(look, "an end")


@pytest.mark.parametrize("who", ["it", "the keeper", "it and the keeper"])
@pytest.mark.parametrize("point", SCRATCH_POINTS)
def test_a_death_at_any_step_leaves_no_directory_and_loses_no_result(jobs, data, point, who):
    jobs.arm(point, number=signal.SIGSTOP if who == "the keeper" else signal.SIGKILL)
    begin(jobs, data, waits="the" not in who)
    if who == "the keeper":
        stopped = jobs.stopped_at(point)
    until(lambda: not jobs.keeper.armed(), f"passage of {point}")
    if who != "it":
        jobs.begin_again()
    if who == "the keeper":
        with contextlib.suppress(ProcessLookupError):  # its shim may have let it go on
            os.kill(stopped, signal.SIGCONT)
    report = settle(jobs)
    result = data / "out" / "result"
    is_whole = result.exists() and result.read_bytes() == OUTPUT
    status = jobs.keeper.directory(1) / "status.json"
    if report["state"] == "kept":
        kept = jobs.place(1) / "result"
        assert OUTPUT == kept.read_bytes()
        jobs.scratch(free=True)
        settle(jobs)
    elif status.exists() and '"code":0' in status.read_text():
        assert is_whole
    else:  # nothing was lost: what is gone never was, or is where it was to be
        assert is_whole or not (data / "ran").exists()
    until(lambda: jobs.scratch()["state"] == "removed", "removal")

    assert not result.exists() or OUTPUT == result.read_bytes()  # a step may outlive its shim
    assert [] == left(jobs.disks)
    assert not (jobs.keeper.directory(1) / "scratch.json").exists()


def test_the_directory_stays_until_a_first_process_without_a_session_yet_has_ended(jobs):
    jobs.arm("job.forked", number=signal.SIGSTOP)
    jobs.arm("scratch.made")
    jobs.start("true", waits=False)
    first = jobs.stopped_at("job.forked")
    jobs.line.hear()  # the keeper knows of the shim's death, and has looked who is left
    report = jobs.scratch()
    there = left(jobs.disks)
    os.kill(first, signal.SIGCONT)
    jobs.await_scratch("removed")

    assert "held" == report["state"]
    assert 1 == len(there)
    assert [] == left(jobs.disks)


def test_what_is_removed_is_not_held_again_when_a_process_of_the_job_is_seen_late(tmp_path):
    """No look at /proc is of one instant: who was missed may be seen by the next."""
    is_left = False
    with selectors.DefaultSelector() as selector:
        desk = ScratchDesk(
            JobDirectories(str(tmp_path)),
            selector,
            os.fork,
            lambda _key: is_left,
            lambda _key: False,
        )
        desk.expect("1.1", {"scratch": [{"path": "/disk", "size": 1}]})
        desk.is_over("1.1")
        desk.look()
        is_left = True
        told = []
        desk.ask("1.1", None, "", told.append)

    assert [{"state": "removed", "because": ""}] == told


@pytest.mark.parametrize("when", ["while it runs", "after its end"])
def test_the_end_of_a_shim_that_began_after_the_take_over_is_heard(jobs, when):
    gate = jobs.keeper.root / "gate"
    jobs.arm("shim.begun", number=signal.SIGSTOP)
    jobs.start(f"until [ -e {gate} ]; do sleep 0.02; done", waits=False)
    shim = jobs.stopped_at("shim.begun")
    jobs.begin_again()
    os.kill(shim, signal.SIGCONT)
    until(lambda: left(jobs.disks), "a directory")
    state = jobs.scratch()["state"] if when == "while it runs" else "held"
    gate.touch()
    jobs.keeper.status()

    assert "held" == state
    assert "removed" == jobs.await_scratch("removed")["state"]
    assert [] == left(jobs.disks)


def test_who_asks_about_a_job_without_directories_makes_the_keeper_watch_nothing(jobs):
    gate = jobs.keeper.root / "gate"
    jobs.start(f"until [ -e {gate} ]; do sleep 0.02; done", [])
    report = jobs.scratch()
    count = jobs.line.ask("leave")["jobs"]  # a service's keeper tells, and stays
    gate.touch()
    jobs.keeper.status()

    assert "removed" == report["state"]
    assert 1 == count
