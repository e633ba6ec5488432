"""From a path to its disks, on this machine."""

import os
import subprocess
from pathlib import Path

import pytest
from mounting import make_file_system, mount

from iodaemon.node.devices import PathDevice, find_device, leaf_devices

pytestmark = pytest.mark.node


def summary(found: PathDevice) -> tuple[str, list[str], str]:
    return found.kind, [device.id for device in found.devices], found.description


def disk_of_root() -> str:
    """The disk below / by lsblk's reckoning, which is not ours."""
    number = os.stat("/").st_dev
    link = f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"
    if not os.path.exists(link):
        pytest.skip("/ is on no block device")
    words = ["lsblk", "-nsro", "NAME,TYPE", f"/dev/{os.path.basename(os.path.realpath(link))}"]
    lsblk = subprocess.run(words, capture_output=True, text=True, check=True)
    return next(line.split()[0] for line in lsblk.stdout.splitlines() if line.endswith(" disk"))


def test_the_root_of_this_machine_is_on_its_disk_and_the_node_of_that_is_it():
    name, found = disk_of_root(), find_device("/")

    assert name in [device.id for device in found.devices]
    assert set(found.devices) <= set(leaf_devices())
    assert f"disk {name}" in found.description
    assert ("block", [name]) == summary(find_device(f"/dev/{name}"))[:2]


def test_memory_of_this_machine_has_no_disk():
    assert summary(find_device("/dev/shm/x")) == ("tmpfs", [], "tmpfs (memory, no disk)")


def test_a_mounted_image_is_on_the_disk_of_its_file(tmp_path):
    image, point = tmp_path / "image", tmp_path / "point"
    point.mkdir()
    make_file_system(image)
    mount("-o", "loop", str(image), str(point))
    try:
        found = summary(find_device(point / "file"))
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        [loop] = [words[0].removeprefix("/dev/") for words in mounts if words[1] == str(point)]
    finally:
        subprocess.run(["umount", point], check=True)

    _, disks, below = summary(find_device(image))
    assert ("block", disks, f"ext4 on loop device {loop} of file {image} on {below}") == found
    assert disks
