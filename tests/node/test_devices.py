"""From a path to its disks: sysfs trees with links as the kernel's own."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from iodaemon.core.platform import Device, DeviceId
from iodaemon.node.devices import (
    PathDevice,
    device_numa_node,
    find_device,
    find_mount_devices,
    leaf_devices,
    leaf_names,
    unaccounted_devices,
)
from iodaemon.node.sampler.proc_files import read_mounts


class Machine:
    """Builds sysfs and mountinfo below a directory; all links are relative, as the kernel's are."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mounts: list[str] = []

    def disk(self, name: str, number: str, *, size=1000, node="", **attributes: str) -> None:
        directory = self._add(f"pci0000:00/{name}-host/block/{name}", number)
        self._write(directory, {"size": str(size), "queue/rotational": "1", "queue/iostats": "1"})
        (directory / "slaves").mkdir()
        if node:
            self._write(directory.parent.parent, {"numa_node": node})
        self._write(directory, {key.replace("__", "/"): text for key, text in attributes.items()})

    def partition(self, disk: str, name: str, number: str) -> None:
        directory = self._add(f"pci0000:00/{disk}-host/block/{disk}/{name}", number)
        self._write(directory, {"partition": "1", "size": "500"})

    def stacked(
        self, name: str, number: str, slaves: Iterable[str] = (), size=1000, **attributes: str
    ) -> None:
        directory = self._add(f"virtual/block/{name}", number)
        self._write(directory, {"size": str(size)})
        self._write(directory, {key.replace("__", "/"): text for key, text in attributes.items()})
        (directory / "slaves").mkdir()
        for slave in slaves:
            target = (self.root / "sys/class/block" / slave).resolve()
            self._link(directory / "slaves" / slave, target)

    def mount(self, point: str, number: str, filesystem: str, source: str, options="rw") -> None:
        mount_id = 30 + len(self._mounts)
        parent = 1 if point == "/" else 30
        line = f"{mount_id} {parent} {number} / {point} rw - {filesystem} {source} {options}\n"
        self._mounts.append(line)
        self._write(self.root, {"proc/self/mountinfo": "".join(self._mounts)})

    def make(self, *paths: str) -> None:
        for path in paths:
            (self.root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def find(self, path: str) -> PathDevice:
        return find_device(path, self.root)

    def _add(self, path: str, number: str) -> Path:
        directory = self.root / "sys/devices" / path
        directory.mkdir(parents=True)
        self._link(self.root / "sys/dev/block" / number, directory)
        self._link(self.root / "sys/class/block" / directory.name, directory)
        if directory.parent.name == "block":
            self._link(self.root / "sys/block" / directory.name, directory)
        return directory

    def _link(self, link: Path, target: Path) -> None:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))

    def _write(self, directory: Path, files: dict[str, str]) -> None:
        for name, text in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text + ("" if text.endswith("\n") else "\n"))


@pytest.fixture
def machine(tmp_path):
    """Disks sda (two partitions) and sdb; the root filesystem is on sda1."""
    machine = Machine(tmp_path)
    machine.disk("sda", "8:0")
    machine.partition("sda", "sda1", "8:1")
    machine.partition("sda", "sda2", "8:2")
    machine.disk("sdb", "8:16")
    machine.mount("/", "8:1", "ext4", "/dev/sda1")
    return machine


def ids(found: PathDevice) -> list[str]:
    return [device.id for device in found.devices]


def summary(found: PathDevice) -> tuple[str, list[str], str]:
    return found.kind, ids(found), found.description


def test_a_filesystem_on_a_whole_disk_is_on_that_disk(machine):
    machine.mount("/data", "8:16", "xfs", "/dev/sdb")

    found = machine.find("/data/file")

    assert summary(found) == ("block", ["sdb"], "xfs on disk sdb")
    assert found.filesystem == "xfs"


def test_a_partition_is_on_its_parent_disk(machine):
    found = machine.find("/home")

    assert summary(found) == ("block", ["sda"], "ext4 on partition sda1 of disk sda")


def test_a_path_that_does_not_exist_is_answered_for_where_it_would_be(machine):
    machine.mount("/data", "8:16", "xfs", "/dev/sdb")

    assert ids(machine.find("/data/not/yet/there")) == ["sdb"]


def test_a_symbolic_link_is_followed_before_the_mount_is_looked_for(machine):
    machine.mount("/data", "8:16", "xfs", "/dev/sdb")
    machine.make("/data", "/home")
    (machine.root / "home/scratch").symlink_to("../data")

    found = machine.find("/home/scratch/file")

    assert (found.path, ids(found)) == ("/data/file", ["sdb"])


def test_lvm_on_a_partition_is_followed_to_the_disk(machine):
    machine.stacked("dm-0", "252:0", ["sda2"], dm__uuid="LVM-abc", dm__name="vg-data")
    machine.mount("/srv", "252:0", "ext4", "/dev/mapper/vg-data")

    expected = (
        "block",
        ["sda"],
        "ext4 on LVM volume vg-data (dm-0) on partition sda2 of disk sda",
    )
    assert expected == summary(machine.find("/srv"))


def test_encryption_below_lvm_is_followed_to_the_disk(machine):
    machine.stacked("dm-0", "252:0", ["sda2"], dm__uuid="CRYPT-LUKS2-1", dm__name="luks")
    machine.stacked("dm-1", "252:1", ["dm-0"], dm__uuid="LVM-abc", dm__name="vg-root")
    machine.mount("/srv", "252:1", "ext4", "/dev/mapper/vg-root")
    machine.mount("/raw", "252:0", "ext4", "/dev/mapper/luks")

    assert summary(machine.find("/raw")) == (
        "block",
        ["sda"],
        "ext4 on crypt luks (dm-0) on partition sda2 of disk sda",
    )
    assert ids(machine.find("/srv")) == ["sda"]


def test_a_mirror_of_two_volumes_on_one_disk_is_on_that_disk_once(machine):
    machine.stacked("dm-2", "252:2", ["sdb"], dm__uuid="LVM-a", dm__name="vg-m1")
    machine.stacked("dm-3", "252:3", ["sdb"], dm__uuid="LVM-b", dm__name="vg-m2")
    machine.stacked("md0", "9:0", ["dm-2", "dm-3"], md__level="raid1")
    machine.mount("/srv", "9:0", "ext4", "/dev/md0")

    first, second = "LVM volume vg-m1 (dm-2) on disk sdb", "LVM volume vg-m2 (dm-3) on disk sdb"
    expected = ("block", ["sdb"], f"ext4 on md raid1 array md0 on {first} and {second}")
    assert expected == summary(machine.find("/srv"))


def test_an_array_over_two_disks_is_on_both(machine):
    machine.stacked("md0", "9:0", ["sdb", "sda2"], md__level="raid0")
    machine.mount("/srv", "9:0", "ext4", "/dev/md0")

    assert ids(machine.find("/srv")) == ["sda", "sdb"]


def test_a_loop_device_is_on_the_disk_of_its_file(machine):
    machine.mount("/images", "8:16", "ext4", "/dev/sdb")
    machine.stacked("loop3", "7:3", loop__backing_file="/images/a.img")
    machine.mount("/mnt", "7:3", "ext4", "/dev/loop3")

    expected = (
        "block",
        ["sdb"],
        "ext4 on loop device loop3 of file /images/a.img on ext4 on disk sdb",
    )
    assert expected == summary(machine.find("/mnt/x"))


def test_a_loop_device_below_a_volume_is_followed_too(machine):
    machine.mount("/images", "8:16", "ext4", "/dev/sdb")
    machine.stacked("loop3", "7:3", loop__backing_file="/images/a.img")
    machine.stacked("dm-0", "252:0", ["loop3"], dm__uuid="LVM-abc", dm__name="vg-l")
    machine.mount("/mnt", "252:0", "ext4", "/dev/mapper/vg-l")

    assert ids(machine.find("/mnt")) == ["sdb"]


def test_a_loop_device_whose_file_is_on_itself_ends(machine):
    machine.stacked("loop3", "7:3", loop__backing_file="/mnt/a.img")
    machine.mount("/mnt", "7:3", "ext4", "/dev/loop3")

    assert (machine.find("/mnt").kind, ids(machine.find("/mnt"))) == ("other", [])


@pytest.mark.parametrize(
    ("filesystem", "source"), [("fuse", "nbdfuse"), ("nfs4", "server:/export")]
)
def test_a_loop_device_whose_file_is_on_no_disk_of_ours_is_a_device_itself(
    machine, filesystem, source
):
    machine.mount("/far/image", "0:50", filesystem, source)
    machine.stacked("loop3", "7:3", loop__backing_file="/far/image", queue__rotational="1")
    machine.mount("/mnt", "7:3", "ext4", "/dev/loop3")

    assert ids(machine.find("/mnt/x")) == ["loop3"]
    assert [device.id for device in leaf_devices(machine.root)] == ["loop3", "sda", "sdb"]
    assert leaf_devices(machine.root)[0].rotational is True


def test_a_loop_device_in_a_file_of_such_a_loop_device_is_on_that_one(machine):
    machine.mount("/far", "0:50", "fuse", "sshfs")
    machine.stacked("loop3", "7:3", loop__backing_file="/far/image")
    machine.mount("/mnt", "7:3", "ext4", "/dev/loop3")
    machine.stacked("loop4", "7:4", loop__backing_file="/mnt/image")
    machine.mount("/inner", "7:4", "ext4", "/dev/loop4")

    assert ids(machine.find("/inner/x")) == ["loop3"]
    assert [device.id for device in leaf_devices(machine.root)] == ["loop3", "sda", "sdb"]


def test_a_loop_device_in_memory_on_a_disk_or_without_a_visible_file_is_none_itself(machine):
    machine.mount("/dev/shm", "0:51", "tmpfs", "tmpfs")
    files = ("/dev/shm/image", "/var/image", "/gone/image (deleted)", "")
    for number, file in enumerate(files):
        machine.stacked(f"loop{number}", f"7:{number}", loop__backing_file=file)

    assert [device.id for device in leaf_devices(machine.root)] == ["sda", "sdb"]


def test_a_mount_is_answered_for_without_a_look_at_it(machine):
    machine.mount("/data", "8:16", "xfs", "/dev/sdb")
    mounts = read_mounts(machine.root)

    found = [find_mount_devices(mount, mounts, machine.root) for mount in mounts]

    assert [["sda"], ["sdb"]] == [ids(each) for each in found]


def test_btrfs_is_on_all_its_devices_whatever_its_anonymous_number(machine):
    machine.stacked("dm-1", "252:1", ["sda2"], dm__uuid="LVM-abc", dm__name="vg-b")
    machine.make("/dev/mapper")
    (machine.root / "dev/dm-1").touch()
    (machine.root / "dev/mapper/vg-b").symlink_to("../dm-1")
    machine.make("/sys/fs/btrfs/3b7e/devices", "/sys/fs/btrfs/features")
    for name in ("dm-1", "sdb"):
        link = machine.root / "sys/fs/btrfs/3b7e/devices" / name
        link.symlink_to(f"../../../../class/block/{name}")
    machine.mount("/srv", "0:49", "btrfs", "/dev/mapper/vg-b", "rw,subvol=/")

    expected = (
        "btrfs",
        ["sda", "sdb"],
        "btrfs on LVM volume vg-b (dm-1) on partition sda2 of disk sda and disk sdb",
    )
    assert expected == summary(machine.find("/srv"))


def test_btrfs_without_its_sysfs_directory_is_on_the_device_it_was_mounted_from(machine):
    machine.mount("/srv", "0:49", "btrfs", "/dev/sdb")

    assert summary(machine.find("/srv")) == ("btrfs", ["sdb"], "btrfs on disk sdb")


def test_overlay_is_on_the_disks_of_its_directories_upper_first(machine):
    machine.mount("/data", "8:16", "xfs", "/dev/sdb")
    machine.make("/lower", "/data/upper", "/data/low:er")
    options = r"rw,lowerdir=/lower:/data/low\134:er,upperdir=/data/upper,workdir=/data/work"
    machine.mount("/merged", "0:52", "overlay", "overlay", options)

    expected = ("overlay", ["sdb", "sda"], "overlay on xfs on disk sdb")
    assert expected == summary(machine.find("/merged/x"))


def test_overlay_of_new_kernels_names_each_lower_directory(machine):
    machine.mount("/data", "8:16", "xfs", "/dev/sdb")
    machine.make("/lower", "/data/lower")
    machine.mount(
        "/merged", "0:52", "overlay", "overlay", "ro,lowerdir+=/lower,lowerdir+=/data/lower"
    )

    assert ids(machine.find("/merged")) == ["sda", "sdb"]


def test_overlay_whose_directories_cannot_be_seen_has_no_known_disk(tmp_path):
    machine = Machine(tmp_path)
    machine.disk("sda", "8:0")
    options = "rw,lowerdir=l/ABC:l/DEF,upperdir=/var/lib/docker/x/diff"
    machine.mount("/", "0:52", "overlay", "overlay", options)

    expected = ("overlay", [], "overlay on directories that cannot be seen from here")
    assert expected == summary(machine.find("/etc"))


def test_overlay_over_itself_ends(tmp_path):
    machine = Machine(tmp_path)
    machine.make("/upper")
    machine.mount("/", "0:52", "overlay", "overlay", "rw,lowerdir=/upper,upperdir=/upper")

    assert ids(machine.find("/upper")) == []


def test_nfs_is_named_and_has_no_disk_here(machine):
    machine.mount("/home", "0:56", "nfs4", "server:/export/home", "rw,vers=4.2")

    expected = ("nfs", [], "nfs4 from server:/export/home (network, no disk here)")
    assert expected == summary(machine.find("/home/me"))


@pytest.mark.parametrize("filesystem", ["tmpfs", "ramfs", "devtmpfs"])
def test_memory_has_no_disk(machine, filesystem):
    machine.mount("/run", "0:60", filesystem, filesystem)

    assert summary(machine.find("/run/x")) == ("tmpfs", [], f"{filesystem} (memory, no disk)")


def test_a_filesystem_that_names_no_device_is_other(machine):
    machine.mount("/pool", "0:61", "zfs", "pool/data")

    assert summary(machine.find("/pool/x")) == ("other", [], "zfs on pool/data (no disk known)")


def test_a_filesystem_on_compressed_memory_has_no_disk(machine):
    machine.stacked("zram0", "253:0", queue__rotational="0")
    machine.mount("/tmp", "253:0", "ext4", "/dev/zram0")

    assert summary(machine.find("/tmp")) == ("other", [], "ext4 on zram0")


def test_without_mountinfo_the_path_is_of_unknown_kind(tmp_path):
    found = find_device("/x", tmp_path)

    assert summary(found) == ("other", [], "unknown: not on a visible mount")


def test_a_disk_has_model_and_says_whether_it_rotates(machine):
    machine.disk("sdc", "8:32", device__model="WDC WD40EFRX  ", queue__rotational="1")
    machine.disk("nvme0n1", "259:0", device__model="Samsung 980", queue__rotational="0")
    machine.disk("mmcblk0", "179:0", device__name="SD64G", queue__rotational="")

    found = {device.id: device for device in leaf_devices(machine.root)}

    expected = [
        Device(id=DeviceId("sdc"), model="WDC WD40EFRX", rotational=True),
        Device(id=DeviceId("nvme0n1"), model="Samsung 980", rotational=False),
        Device(id=DeviceId("mmcblk0"), model="SD64G", rotational=None),
    ]
    assert expected == [found[name] for name in ("sdc", "nvme0n1", "mmcblk0")]


def test_leaf_devices_are_whole_disks_with_room_on_them(machine):
    for name, number in (("loop0", "7:0"), ("ram0", "1:0"), ("zram0", "253:0"), ("dm-9", "252:9")):
        machine.stacked(name, number)
    machine.stacked("dm-0", "252:0", ["sda2"])
    machine.stacked("md127", "9:127", ["sdb"])
    machine.stacked("bcache0", "251:0", ["sdb"])
    machine.disk("sr0", "11:0")
    machine.disk("sdz", "65:144", size=0)
    machine.disk("nvme0c0n1", "259:1", hidden="1")
    machine.disk("nvme0n1", "259:0")
    machine.disk("cciss!c0d0", "104:0")

    expected = ["cciss/c0d0", "nvme0n1", "sda", "sdb"]
    assert expected == [device.id for device in leaf_devices(machine.root)]
    assert expected == list(leaf_names(machine.root))


def test_a_machine_without_sysfs_has_no_disks(tmp_path):
    assert leaf_devices(tmp_path) == ()


def test_disks_whose_accounting_is_off_are_reported(machine):
    machine.disk("sdc", "8:32", queue__iostats="0")

    assert unaccounted_devices(machine.root) == ("sdc",)


def test_the_numa_node_of_a_disk_is_that_of_the_nearest_controller(machine):
    machine.disk("sdc", "8:32", node="1")
    machine.disk("sdd", "8:48", node="-1")

    nodes = [device_numa_node(machine.root, DeviceId(name)) for name in ("sdc", "sdd", "sdz")]

    assert nodes == [1, None, None]
