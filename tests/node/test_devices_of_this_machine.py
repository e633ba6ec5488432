"""From a path to its disks, on this machine."""

import os
import shutil
import subprocess

import pytest

from iodaemon.node.devices import PathDevice, find_device, leaf_devices

pytestmark = pytest.mark.node


def ids(found: PathDevice) -> list[str]:
    return [device.id for device in found.devices]


def summary(found: PathDevice) -> tuple[str, list[str], str]:
    return found.kind, ids(found), found.description


def disk_of_root() -> str:
    """The disk below / by lsblk's reckoning, which is not ours."""
    number = os.stat("/").st_dev
    link = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"
    if not os.path.exists(link):
        pytest.skip("/ is on no block device")
    lsblk = subprocess.run(
        ["lsblk", "-nsro", "NAME,TYPE", "/dev/" + os.path.basename(os.path.realpath(link))],
        capture_output=True,
        text=True,
        check=True,
    )
    return next(line.split()[0] for line in lsblk.stdout.splitlines() if line.endswith(" disk"))


def test_the_root_of_this_machine_is_on_its_disk():
    found = find_device("/")

    assert disk_of_root() in ids(found)
    assert set(found.devices) <= set(leaf_devices())
    assert "disk " + disk_of_root() in found.description


def test_the_node_of_a_disk_is_that_disk():
    name = disk_of_root()
    if not os.path.exists(f"/dev/{name}"):
        pytest.skip(f"no /dev/{name}")

    found = find_device(f"/dev/{name}")

    assert (found.kind, ids(found), found.filesystem) == ("block", [name], "")


def test_memory_of_this_machine_has_no_disk():
    if not os.path.ismount("/dev/shm"):
        pytest.skip("/dev/shm is not mounted")

    assert summary(find_device("/dev/shm/x")) == ("tmpfs", [], "tmpfs (memory, no disk)")


@pytest.fixture
def loop_mount(tmp_path):
    """An ext4 image in a file, mounted through a loop device; undone whatever happens."""
    missing = [tool for tool in ("losetup", "mkfs.ext4", "mount") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and losetup, mkfs.ext4, mount (missing: {missing})")
    image, point = tmp_path / "image", tmp_path / "point"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(8 * 1024 * 1024)
    run("mkfs.ext4", "-q", "-F", str(image))
    loop = run("losetup", "--find", "--show", str(image), why="no loop device to be had")
    mounted = False
    try:
        run("mount", loop, str(point), why="mount is not allowed")
        mounted = True
        yield point, os.path.basename(loop)
    finally:
        if mounted:
            run("umount", str(point))
        run("losetup", "--detach", loop)


def run(*command: str, why: str = "") -> str:
    """What the command printed; if it fails: skip when there is a reason to, else fail."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 and why:
        pytest.skip(f"{why}: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_mounted_image_is_on_the_disk_of_its_file(loop_mount, tmp_path):
    point, loop = loop_mount

    found = find_device(point / "file")

    below = find_device(tmp_path / "image")
    expected = (
        "block",
        ids(below),
        f"ext4 on loop device {loop} of file {tmp_path}/image on {below.description}",
    )
    assert expected == summary(found)
    assert ids(found) != []
