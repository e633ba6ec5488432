"""Scratch directories: made, removed, and whatever their users put there."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from root_side import Daemon, RootSide
from stuck_exec import silent_file_system

pytestmark = [
    pytest.mark.node,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]
NOBODY = 65534


@pytest.fixture
def daemon(make_root: Callable[..., RootSide]) -> Daemon:
    return make_root("cgroup", min_uid=1000).connect()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o755)
    yield disk
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in mounts:
        if mount.startswith(str(disk)):
            subprocess.run(["umount", "-l", mount], check=True)


def ask(daemon: Daemon, do: str, disk: Path | str, name: str = "1.1-abc", **more: Any) -> Any:
    daemon.say("scratch", id=f"{do}-{disk}", do=do, disk=str(disk), name=name, **more)
    return daemon.await_message(lambda m: m.get("scratch") == f"{do}-{disk}" or "error" in m)


def make(daemon: Daemon, disk: Path, name: str = "1.1-abc") -> Path:
    assert ask(daemon, "make", disk, name, uid=NOBODY, gid=NOBODY)["done"]
    return disk / ".iodaemon" / name


def test_a_directory_is_its_users_alone_and_is_removed(daemon: Daemon, disk: Path) -> None:
    path = make(daemon, disk)
    store = path.parent.stat()

    assert (NOBODY, 0o700) == (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode))
    assert (0, 0o711) == (store.st_uid, stat.S_IMODE(store.st_mode))

    make(daemon, disk)

    assert ask(daemon, "remove", disk)["done"]
    assert not path.exists()
    assert ask(daemon, "remove", disk)["done"]


def test_what_is_on_a_disk_that_is_not_mounted_is_not_taken_for_removed(
    daemon: Daemon, disk: Path
) -> None:
    device = disk.with_name("disk-device")
    device.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", str(device)], check=True)
    subprocess.run(["mount", "--bind", str(device), str(disk)], check=True)
    made = ask(daemon, "make", disk, uid=NOBODY, gid=NOBODY)
    subprocess.run(["umount", "-l", str(disk)], check=True)

    assert "has no .iodaemon" in ask(daemon, "remove", disk)["problem"]

    make(daemon, disk, "1.1-other")
    known = {"filesystem": made["filesystem"]}

    assert "another file system" in ask(daemon, "remove", disk, **known)["problem"]
    assert "another file" in ask(daemon, "make", disk, uid=NOBODY, gid=1, **known)["problem"]

    subprocess.run(["mount", "--bind", str(device), str(disk)], check=True)

    assert ask(daemon, "remove", disk, **known)["done"]


def test_no_directory_is_made_for_a_uid_below_the_least(daemon: Daemon, disk: Path) -> None:
    for uid in (0, 999):
        assert "uid" in ask(daemon, "make", disk, uid=uid, gid=NOBODY)["error"]


def test_removal_follows_no_link_and_goes_deep(daemon: Daemon, disk: Path, tmp_path: Path) -> None:
    path = make(daemon, disk)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (path / "link").symlink_to(outside)
    os.link(outside / "file", path / "other-name")
    deep = os.open(path, os.O_RDONLY)
    for _ in range(200):
        os.mkdir("d" * 100, dir_fd=deep)
        (below, deep) = (deep, os.open("d" * 100, os.O_RDONLY, dir_fd=deep))
        os.close(below)
    os.close(deep)

    assert ask(daemon, "remove", disk)["done"]
    assert (False, True) == (path.exists(), (outside / "file").exists())


def test_what_is_mounted_is_kept_and_named(daemon: Daemon, disk: Path, tmp_path: Path) -> None:
    path = make(daemon, disk)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (path / "mount").mkdir()
    subprocess.run(["mount", "--bind", str(tmp_path / "precious"), str(path / "mount")], check=True)
    answer = ask(daemon, "remove", disk)

    assert (False, True) == (answer["done"], "mount" in answer["problem"])
    assert (tmp_path / "precious" / "file").exists()


def test_a_store_that_is_not_roots_alone_is_refused(daemon: Daemon, disk: Path) -> None:
    (disk / ".iodaemon").mkdir()
    os.chown(disk / ".iodaemon", NOBODY, NOBODY)

    assert not ask(daemon, "make", disk, uid=NOBODY, gid=NOBODY)["done"]

    (disk / ".iodaemon").rmdir()
    (disk / ".iodaemon").symlink_to("/")

    assert not ask(daemon, "make", disk, uid=NOBODY, gid=NOBODY)["done"]

    (disk / ".iodaemon").unlink()
    disk.chmod(0o777)

    assert not ask(daemon, "make", disk, uid=NOBODY, gid=NOBODY)["done"]


def test_a_disk_that_hangs_holds_up_neither_jobs_nor_other_disks(
    daemon: Daemon, disk: Path, tmp_path: Path
) -> None:
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
def test_a_helper_that_dies_is_told_and_it_can_be_asked_again(
    point: str, make_root: Callable[..., RootSide], disk: Path
) -> None:
    root = make_root("cgroup", min_uid=1000)
    daemon = root.connect()
    root.arm(point)
    do = "make" if point == "scratch.made" else "remove"
    if do == "remove":
        (make(daemon, disk) / "file").touch()

    assert not ask(daemon, do, disk, uid=NOBODY, gid=NOBODY)["done"]
    assert ask(daemon, do, disk, uid=NOBODY, gid=NOBODY)["done"]
