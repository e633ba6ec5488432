"""Directories of jobs on tier disks: where root makes none, what it measures, what it keeps."""

import json
import os
import subprocess
import time

import pytest
from keeping import NOBODY, ServiceKeeper
from mounting import mount
from scratching import MIB, both_disks, disks, left, needs_root, place_of

from iodaemon.backend.linux import scratch
from iodaemon.backend.linux.process import read_boot_id

__all__ = ["both_disks", "disks"]

pytestmark = [pytest.mark.node, needs_root]


def made(directory, disk, output=None, size=4 * MIB):
    """The path of a directory of nobody's on this disk."""
    shares = scratch.plan("1.1", [{"path": str(disk), "size": size}])
    scratch.make(str(directory), {"uid": NOBODY.pw_uid, "shares": shares, "output": output})
    return scratch.paths_of(shares)[0]


def told(work, directory, **more):
    """What a helper reports to the keeper."""
    read, write = os.pipe()
    work(str(directory), write, **more)
    os.close(write)
    with open(read) as file:
        return json.loads(file.read())


def removed(directory, **more):
    return told(scratch.remove, directory, **{"is_freed": False, **more})


def test_a_disk_that_does_not_answer_is_waited_for_no_longer_than_the_deadline(
    disks, tmp_path, monkeypatch
):
    monkeypatch.setattr(scratch, "MAKE_S", 0.1)
    monkeypatch.setattr(scratch, "_make", lambda *_: time.sleep(600))
    with pytest.raises(scratch.ScratchError, match="does not answer") as caught:
        made(tmp_path, disks[0])

    assert (str(disks[0]), True) == (caught.value.disk, caught.value.is_silent)


@pytest.fixture
def store(disks):
    """Where ``.iodaemon`` of a disk is to be; put in order afterwards."""
    path = disks[0] / ".iodaemon"
    subprocess.run(["rm", "-rf", path], check=True)
    yield path
    subprocess.run(["rm", "-rf", path], check=True)


def test_nothing_is_made_in_a_store_that_others_made_or_may_change(disks, store, tmp_path):
    elsewhere = disks[0] / "elsewhere"
    elsewhere.mkdir()
    problems = []
    for lay in (
        lambda: store.symlink_to(elsewhere),
        lambda: (store.mkdir(), os.chown(store, NOBODY.pw_uid, 0)),
        lambda: (store.mkdir(), store.chmod(0o777)),
    ):
        lay()
        with pytest.raises(scratch.ScratchError) as caught:
            made(tmp_path, disks[0])
        problems.append((caught.value.disk, str(caught.value).partition(".iodaemon")[2][:26]))
        store.unlink() if store.is_symlink() else store.rmdir()
    remaining = list(elsewhere.iterdir())
    elsewhere.rmdir()

    assert [
        ("", ": it is no directory; move"),
        ("", " was made by another user;"),
        ("", " belongs to uid 0, mode 07"),
    ] == problems
    assert [] == remaining
    assert not (tmp_path / "scratch.json").exists()


def test_a_uid_that_has_no_jobs_is_given_no_directory(disks):
    with ServiceKeeper("signals") as keeper:
        line = keeper.begin()
        shares = [{"path": str(disks[0]), "size": MIB}]
        launch = {**keeper.launch("true"), "scratch": shares, "uid": 1}
        line.ask("start", job=1, attempt=1, launch=launch)
        status = keeper.status(1)

    assert "no scratch space is given to uid 1" == status["never_ran"]
    assert [] == left(disks)


def test_what_is_in_it_is_measured_and_a_mount_on_it_is_too_much(disks, tmp_path):
    path = made(tmp_path, disks[0], size=MIB)
    empty = told(scratch.measure, tmp_path)
    with open(f"{path}/f", "wb") as file:
        file.write(bytes(2 * MIB))
    full = told(scratch.measure, tmp_path)
    mount("-t", "tmpfs", "none", path)
    covered, kept = told(scratch.measure, tmp_path), removed(tmp_path)
    subprocess.run(["umount", path], check=True)

    assert ("held", False, True) == (empty["state"], empty["is_over"], empty["is_all"])
    assert (True, True) == (full["is_over"], full["is_all"])
    assert 2 * MIB <= full["used_bytes"] < 3 * MIB
    assert covered["is_over"]
    assert ("kept", False) == (kept["state"], kept["is_result"])
    assert kept["because"].startswith(path)
    assert {"state": "removed"} == removed(tmp_path) == removed(tmp_path)


OUT = {"path": "/out", "on": "success"}
FAILED = {
    "exit": {"code": 74, "signal": None},
    "io": {"read_bytes": 0, "written_bytes": 0},
    "started_s": 1.0,
    "ended_s": 2.0,
    "stage_failed": {"step": "out", "program": "cp", "code": 1, "signal": None, "line": "why"},
}
SHIM = {
    "pid": 1,
    "start_ticks": 1,
    "main_pid": None,
    "main_start_ticks": None,
    "started_s": 1.0,
    "freezer": "signals",
    "cgroup": None,
    "baseline": [0, 0, 0],
}
HERE, ELSEWHERE = {**SHIM, "boot_id": read_boot_id()}, {**SHIM, "boot_id": "another"}
OLD = {**{name: FAILED[name] for name in FAILED if name != "stage_failed"}, "stage_out": "so"}


@pytest.mark.parametrize(
    ("output", "files", "is_kept"),
    [
        (None, {"shim.json": HERE}, False),
        (OUT, {"status.json": FAILED}, True),
        (OUT, {"status.json": OLD}, True),
        (OUT, {"shim.json": HERE}, True),
        (OUT, {"shim.json": HERE, "stage.json": {"step": "in"}}, False),
        (OUT, {"shim.json": ELSEWHERE, "stage.json": {"step": "run"}}, False),
        (OUT, {"shim.json": ELSEWHERE, "stage.json": {"step": "out"}}, True),
        ({**OUT, "on": "always"}, {"shim.json": ELSEWHERE}, True),
    ],
)
def test_only_what_may_be_a_result_is_kept_and_never_without_a_word(
    disks, tmp_path, output, files, is_kept
):
    path = made(tmp_path, disks[0], output)
    for name, record in files.items():
        (tmp_path / name).write_text(json.dumps(record))
    (place_of(disks) / "result").write_text("x")
    report = removed(tmp_path)

    assert (["result"] if is_kept else []) == (os.listdir(path) if is_kept else [])
    assert is_kept == report.get("is_result", False)
    assert not is_kept or f"it lies in {path}" in report["because"]
    if is_kept:
        assert {"state": "removed"} == removed(tmp_path, is_freed=True)
    assert [] == left(disks)
    assert not (tmp_path / "scratch.json").exists()


def test_of_another_file_system_at_the_path_nothing_is_taken_for_gone(disks, tmp_path):
    made(tmp_path, disks[0])
    aside = tmp_path / "aside"
    aside.mkdir()
    mount("-t", "tmpfs", "none", str(disks[0]))
    disks[0].chmod(0o755)
    (disks[0] / ".iodaemon").mkdir()
    try:
        report = removed(tmp_path)
    finally:
        subprocess.run(["umount", disks[0]], check=True)

    assert "another file system is there now" in report["because"]
    assert {"state": "removed"} == removed(tmp_path)
    assert [] == left(disks)
