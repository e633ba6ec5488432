"""Scratch directories: made, removed, and whatever their users put there."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from root_side import Daemon, RootSide
from stuck_exec import silent_file_system

from iodaemon.supervisor import disk_trouble, scratch
from iodaemon.supervisor.line import Loop

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]
NOBODY = 65534


@pytest.fixture(scope="module")
def lasting():
    root = RootSide("cgroup", min_uid=1000)
    root.begin()
    yield root
    root.end()


@pytest.fixture
def daemon(lasting):
    return lasting.connect()


@pytest.fixture
def disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o755)
    yield disk
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed(mounts):
        if mount.startswith(str(disk)):
            subprocess.run(["umount", "-l", mount], check=True)


def ask(daemon: Daemon, do: str, disk: Path | str, name: str = "1.1-abc", **more: Any) -> Any:
    daemon.say("scratch", id=f"{do}-{disk}", do=do, disk=str(disk), name=name, **more)
    return daemon.await_message(lambda m: m.get("scratch") == f"{do}-{disk}" or "error" in m)


def make(daemon: Daemon, disk: Path, name: str = "1.1-abc") -> Path:
    assert ask(daemon, "make", disk, name, uid=NOBODY)["done"]
    return disk / ".iodaemon" / name


def test_a_directory_is_its_users_alone_and_is_removed(daemon, disk):
    path = make(daemon, disk)
    store = path.parent.stat()

    found = path.stat()

    assert (NOBODY, 0, 0o700) == (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))
    assert (0, 0o711) == (store.st_uid, stat.S_IMODE(store.st_mode))

    make(daemon, disk)

    assert ask(daemon, "remove", disk)["done"]
    assert not path.exists()
    assert ask(daemon, "remove", disk)["done"]


def test_what_is_on_a_disk_that_is_not_mounted_is_not_taken_for_removed(daemon, disk):
    device = disk.with_name("disk-device")
    device.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", str(device)], check=True)
    subprocess.run(["mount", "--bind", str(device), str(disk)], check=True)
    made = ask(daemon, "make", disk, uid=NOBODY, gid=NOBODY)
    subprocess.run(["umount", "-l", str(disk)], check=True)

    answer = ask(daemon, "remove", disk)

    assert (True, "has no .iodaemon") == (answer["is_disk"], answer["problem"].partition(";")[0])

    make(daemon, disk, "1.1-other")
    known = {"filesystem": made["filesystem"]}

    assert "another file system" in ask(daemon, "remove", disk, **known)["problem"]
    assert disk_trouble.REPLACED == ask(daemon, "make", disk, uid=NOBODY, **known)["problem"]

    subprocess.run(["mount", "--bind", str(device), str(disk)], check=True)

    assert ask(daemon, "remove", disk, **known)["done"]


def test_no_directory_is_made_for_a_uid_below_the_least(daemon, disk):
    for uid in (0, 999):
        assert "uid" in ask(daemon, "make", disk, uid=uid, gid=NOBODY)["error"]


def test_what_cannot_be_removed_is_kept_and_named(daemon, disk, tmp_path):
    """What is removed, and what is not, is tried by ``test_scratch_tree.py``."""
    path = make(daemon, disk)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (path / "mount").mkdir()
    subprocess.run(["mount", "--bind", str(tmp_path / "precious"), str(path / "mount")], check=True)
    answer = ask(daemon, "remove", disk)

    assert (False, True) == (answer["done"], "mount" in answer["problem"])
    assert (tmp_path / "precious" / "file").exists()


@pytest.mark.parametrize("kind", ["directory", "file", "itself"])
def test_what_a_user_mounted_by_fuse_is_unmounted_and_never_asked(kind, daemon, disk):
    """Nobody answers for it."""
    path = make(daemon, disk)
    point = path if kind == "itself" else path / "point"
    point.touch() if kind == "file" else point.mkdir(exist_ok=True)
    mode = "100000" if kind == "file" else "40000"
    with open("/dev/fuse", "r+b", buffering=0) as device:
        text = f"fd={device.fileno()},rootmode={mode},user_id={NOBODY},group_id=0,allow_other"
        done = ctypes.CDLL(None).mount(b"it", bytes(point), b"fuse", 6, text.encode())

        assert 0 == done
        assert ask(daemon, "remove", disk)["done"]
    assert not path.exists()


def test_a_store_that_is_not_roots_alone_is_refused(daemon, disk):
    (disk / ".iodaemon").mkdir()
    os.chown(disk / ".iodaemon", NOBODY, NOBODY)

    assert not ask(daemon, "make", disk, uid=NOBODY, gid=NOBODY)["done"]

    (disk / ".iodaemon").rmdir()
    (disk / ".iodaemon").symlink_to("/")

    assert not ask(daemon, "make", disk, uid=NOBODY, gid=NOBODY)["done"]

    (disk / ".iodaemon").unlink()
    disk.chmod(0o777)

    assert not ask(daemon, "make", disk, uid=NOBODY, gid=NOBODY)["done"]


def test_a_disk_of_no_use_is_told_apart_from_a_name_that_is_taken(daemon, disk):
    path = make(daemon, disk)
    path.rmdir()
    path.touch()
    answer = ask(daemon, "make", disk, uid=NOBODY)

    assert (False, False) == (answer["done"], answer["is_disk"])
    assert str(path) in answer["problem"]

    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=755", "none", str(disk)], check=True)
    answer = ask(daemon, "make", disk, uid=NOBODY)

    assert (True, disk_trouble.READ_ONLY) == (answer["is_disk"], answer["problem"])


def test_what_is_in_a_directory_is_measured_each_file_once(daemon, disk):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", str(disk)], check=True)
    path = make(daemon, disk)
    (path / "deep" / "er").mkdir(parents=True)
    (path / "deep" / "er" / "file").write_bytes(bytes(3 << 20))
    os.link(path / "deep" / "er" / "file", path / "other-name")
    (path / "link").symlink_to("/")
    answer = ask(daemon, "measure", disk)

    assert (True, 3 << 20, True) == (answer["done"], answer["used_bytes"], answer["is_all"])

    (path / "mount").mkdir()
    subprocess.run(["mount", "--bind", "/usr", str(path / "mount")], check=True)
    answer = ask(daemon, "measure", disk)

    assert (3 << 20, False) == (answer["used_bytes"], answer["is_all"])


def test_what_a_job_left_in_files_of_its_own_is_discarded(make_root, tmp_path):
    outputs = tmp_path / "outputs"
    daemon = make_root("cgroup", min_uid=1000, outputs=str(outputs)).connect()
    for name in ("7.1", "7.1.report", "7.2", "ledger"):
        (outputs / name).touch()
    for _ in range(2):
        daemon.say("scratch", id="x", do="discard", key="7.1")

        assert daemon.await_message(lambda m: m.get("scratch") == "x")["done"]
        assert {"7.2", "ledger"} == set(os.listdir(outputs))
    daemon.say("scratch", id="x", do="discard", key="../ledger")

    assert "no key" in daemon.await_message(lambda m: "error" in m)["error"]


def test_a_look_finds_what_is_at_the_path_and_whether_users_come_to_it(daemon, tmp_path):
    disk = Path(f"/dev/shm/iod-test-look-{os.getpid()}")
    disk.mkdir(mode=0o755)
    try:
        seen = ask(daemon, "look", disk)
        disk.chmod(0o750)
        closed = ask(daemon, "look", disk)
    finally:
        disk.rmdir()

    assert seen["done"]
    assert {"problem": "", "obstacle": "", "lack": "", "is_on_root": False}.items() <= (
        seen["found"].items()
    )
    assert seen["found"]["total_bytes"] >= seen["found"]["free_bytes"] > 0
    assert Path("/proc/self/mountinfo").read_text().splitlines()[0] in seen["mounts"]
    assert closed["found"]["obstacle"].startswith("is closed to users, who may not enter")
    assert disk_trouble.MISSING == ask(daemon, "look", tmp_path / "none")["found"]["problem"]
    for wrong in ("relative", "", "/a\0b"):
        assert "disk is no path" in ask(daemon, "look", wrong)["error"]


def test_a_silent_disk_is_named_at_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "DEADLINE_S", 0.2)
    monkeypatch.setattr(scratch, "_LOOK_S", 0.2)
    silent = silent_file_system(tmp_path)
    silent.is_mute = True
    loop, answers = Loop(), list[Any]()
    desk = scratch.Desk(loop, answers.append, (1000, 1 << 31), str(tmp_path))
    try:
        desk.ask({"id": 1, "do": "look", "disk": str(tmp_path)})
        desk.ask({"id": 2, "do": "discard", "key": "1.1"})
        desk.ask({"id": 3, "do": "look", "disk": str(tmp_path)})  # two wait already
        while len(answers) < 3:
            loop.turn()
            loop.work_off()
    finally:
        silent.let_go()
    while desk._helpers:
        loop.turn()
    os.waitpid(-1, os.WNOHANG)
    os.waitpid(-1, os.WNOHANG)
    told = {answer["scratch"]: (answer["is_disk"], answer["problem"]) for answer in answers}
    sentence = disk_trouble.sentence(str(tmp_path), disk_trouble.SILENT)

    silence = (True, disk_trouble.SILENT)
    assert {1: silence, 2: (False, sentence), 3: silence} == told


def test_a_disk_that_hangs_holds_up_neither_jobs_nor_other_disks(daemon, disk, tmp_path):
    point = tmp_path / "silent"
    point.mkdir()
    silent = silent_file_system(point)
    silent.is_mute = True
    try:
        for number in range(5):
            daemon.say("scratch", id=number, do="remove", disk=str(point), name="x")
        path = make(daemon, disk)
        daemon.run("1.1", "true", uid=NOBODY)

        assert 0 == daemon.await_state("1.1", "ended")["exit"]["code"]
        assert path.exists()
    finally:
        silent.let_go()


@pytest.mark.parametrize("point", ["scratch.made", "scratch.unlinked"])
def test_a_helper_that_dies_is_told_and_it_can_be_asked_again(point, lasting, daemon, disk):
    do = "make" if point == "scratch.made" else "remove"
    if do == "remove":
        (make(daemon, disk) / "file").touch()
    lasting.arm(point)

    assert not ask(daemon, do, disk, uid=NOBODY, gid=NOBODY)["done"]
    assert ask(daemon, do, disk, uid=NOBODY, gid=NOBODY)["done"]
