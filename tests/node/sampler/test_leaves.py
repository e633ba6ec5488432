"""A job's bytes on disks: each layer of a stack says them again, only leaves are summed."""

import pytest

from iodaemon.core.platform import DeviceId
from iodaemon.node.sampler.client import Leaves

STACK = {
    "254:0": ("vda", ()),
    "254:1": ("vda1", ()),
    "252:0": ("dm-0", ("vda",)),
    "252:1": ("dm-1", ("vda",)),
    "9:9": ("md9", ("dm-0", "dm-1")),
    "7:0": ("loop0", ()),
    "251:0": ("zram0", ()),
}


@pytest.fixture
def root(tmp_path):
    for number, (name, slaves) in STACK.items():
        directory = tmp_path / "sys/devices" / name
        (directory / "slaves").mkdir(parents=True)
        (directory / "size").write_text("1000\n")
        if name == "vda1":
            (directory / "partition").write_text("1\n")
        for slave in slaves:
            (directory / "slaves" / slave).symlink_to(f"../../{slave}")
        link = tmp_path / "sys/dev/block" / number
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(directory)
    return tmp_path


def moved(*numbers):
    return dict.fromkeys(numbers, (1, 100))


def test_a_mirror_on_two_volumes_of_a_disk_counts_on_the_disk_alone(root):
    assert (1, 100) == Leaves(root).sum(moved("254:0", "252:0", "252:1", "9:9"))


def test_partitions_memory_and_files_are_no_leaves(root):
    assert (0, 0) == Leaves(root).sum(moved("254:1", "7:0", "251:0"))


def test_a_loop_device_that_is_all_there_is_to_see_counts(root):
    assert (1, 100) == Leaves(root, [DeviceId("loop0")]).sum(moved("7:0"))


def test_a_disk_that_comes_later_counts_from_then_on(root):
    link = root / "sys/dev/block/254:0"
    target = link.readlink()
    link.unlink()
    leaves = Leaves(root)

    assert (0, 0) == leaves.sum(moved("254:0"))
    link.symlink_to(target)
    assert (1, 100) == leaves.sum(moved("254:0"))


def test_no_device_yet_is_nothing_and_no_controller_is_unknown(root):
    assert (None, None) == Leaves(root).sum({})
    assert (0, 0) == Leaves(root).sum({"0:0": (0, 0)})
