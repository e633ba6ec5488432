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


def two_disks(root: Path) -> Machine:
    """Disks sda (two partitions) and sdb; the root filesystem is on sda1, /data on sdb."""
    machine = Machine(root)
    machine.disk("sda", "8:0")
    machine.partition("sda", "sda1", "8:1")
    machine.partition("sda", "sda2", "8:2")
    machine.disk("sdb", "8:16")
    machine.mount("/", "8:1", "ext4", "/dev/sda1")
    machine.mount("/data", "8:16", "xfs", "/dev/sdb")
    return machine


@pytest.fixture
def machine(tmp_path):
    return two_disks(tmp_path)


@pytest.fixture(scope="module")
def layered(tmp_path_factory):
    """With whatever a file system may lie on: volumes, arrays, images, other directories."""
    machine = two_disks(tmp_path_factory.mktemp("layered"))
    for number, (slave, uuid, name) in enumerate(
        [
            ("sda2", "LVM-a", "vg-data"),
            ("sda2", "CRYPT-LUKS2-1", "luks"),
            ("dm-1", "LVM-b", "vg-root"),
            ("sdb", "LVM-c", "vg-m1"),
            ("sdb", "LVM-d", "vg-m2"),
        ]
    ):
        volume, device = f"dm-{number}", f"252:{number}"
        machine.stacked(volume, device, [slave], dm__uuid=uuid, dm__name=name)
        machine.mount(f"/{name}", device, "ext4", f"/dev/mapper/{name}")
    machine.stacked("md0", "9:0", ["dm-3", "dm-4"], md__level="raid1")
    machine.mount("/mirror", "9:0", "ext4", "/dev/md0")
    machine.stacked("md1", "9:1", ["sdb", "sda2"], md__level="raid0")
    machine.mount("/striped", "9:1", "ext4", "/dev/md1")
    machine.mount("/nfs", "0:56", "nfs4", "server:/export/home", "rw,vers=4.2")
    machine.mount("/sshfs", "0:57", "fuse", "sshfs")
    images = ("/data/a", "/data/b", "/nfs/a", "/sshfs/a", "/on-nfs/a")
    places = ("/image", "/unused", "/on-nfs", "/on-sshfs", "/within")
    for number, (image, place) in enumerate(zip(images, places, strict=True)):
        machine.stacked(
            f"loop{number}", f"7:{number}", loop__backing_file=f"{image}.img", queue__rotational="1"
        )
        machine.mount(place, f"7:{number}", "ext4", f"/dev/loop{number}")
    machine.stacked("dm-9", "252:9", ["loop1"], dm__uuid="LVM-e", dm__name="vg-l")
    machine.mount("/deep", "252:9", "ext4", "/dev/mapper/vg-l")
    return machine


def ids(found: PathDevice) -> list[str]:
    return [device.id for device in found.devices]


def summary(found: PathDevice) -> tuple[str, list[str], str]:
    return found.kind, ids(found), found.description


VOLUMES = "LVM volume vg-m1 (dm-3) on disk sdb and LVM volume vg-m2 (dm-4) on disk sdb"


@pytest.mark.parametrize(
    ("path", "kind", "devices", "description"),
    [
        ("/home", "block", ["sda"], "ext4 on partition sda1 of disk sda"),
        ("/data/not/yet/there", "block", ["sdb"], "xfs on disk sdb"),
        (
            "/vg-data", "block", ["sda"],
            "ext4 on LVM volume vg-data (dm-0) on partition sda2 of disk sda",
        ),
        ("/luks", "block", ["sda"], "ext4 on crypt luks (dm-1) on partition sda2 of disk sda"),
        (
            "/vg-root", "block", ["sda"],
            "ext4 on LVM volume vg-root (dm-2) on crypt luks (dm-1) on partition sda2 of disk sda",
        ),
        (  # two volumes on one disk
            "/mirror", "block", ["sdb"],
            f"ext4 on md raid1 array md0 on {VOLUMES}",
        ),
        (
            "/striped", "block", ["sda", "sdb"],
            "ext4 on md raid0 array md1 on partition sda2 of disk sda and disk sdb",
        ),
        (
            "/image/x", "block", ["sdb"],
            "ext4 on loop device loop0 of file /data/a.img on xfs on disk sdb",
        ),
        (
            "/deep", "block", ["sdb"],
            "ext4 on LVM volume vg-l (dm-9) on loop device loop1 of file /data/b.img",
        ),
        ("/on-nfs", "block", ["loop2"], None),  # on no disk of ours: a device itself
        ("/on-sshfs", "block", ["loop3"], None),
        ("/within", "block", ["loop2"], None),
        ("/nfs/me", "nfs", [], "nfs4 from server:/export/home (network, no disk here)"),
    ],
)  # fmt: skip
def test_a_path_is_on_the_disks_below_all_layers(layered, path, kind, devices, description):
    found = layered.find(path)

    assert (kind, devices) == summary(found)[:2]
    assert description in (found.description, None)


def test_a_loop_device_is_a_leaf_where_its_file_is_on_no_disk_of_ours(layered, machine):
    machine.mount("/dev/shm", "0:51", "tmpfs", "tmpfs")
    for number, file in enumerate(("/dev/shm/image", "/gone/image (deleted)", "")):
        machine.stacked(f"loop{number}", f"7:{number}", loop__backing_file=file)
    found = leaf_devices(layered.root)

    assert ["loop2", "loop3", "sda", "sdb"] == [each.id for each in found]
    assert found[0].rotational is True
    assert ["sda", "sdb"] == [each.id for each in leaf_devices(machine.root)]


def test_a_loop_device_whose_file_is_on_itself_ends(machine):
    machine.stacked("loop3", "7:3", loop__backing_file="/mnt/a.img")
    machine.mount("/mnt", "7:3", "ext4", "/dev/loop3")

    assert ("other", []) == summary(machine.find("/mnt"))[:2]


def test_a_symbolic_link_is_followed_before_the_mount_is_looked_for(machine):
    machine.make("/data", "/home")
    (machine.root / "home/scratch").symlink_to("../data")

    found = machine.find("/home/scratch/file")

    assert ("/data/file", ["sdb"], "xfs") == (found.path, ids(found), found.filesystem)


def test_a_mount_is_answered_for_without_a_look_at_it(machine):
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


@pytest.mark.parametrize(
    ("options", "devices", "description"),
    [
        (
            r"rw,lowerdir=/lower:/data/low\134:er,upperdir=/data/upper,workdir=/data/work",
            ["sdb", "sda"],  # upper first
            "overlay on xfs on disk sdb",
        ),
        (  # as new kernels tell it
            "ro,lowerdir+=/lower,lowerdir+=/data/lower",
            ["sda", "sdb"],
            "overlay on ext4 on partition sda1 of disk sda",
        ),
        (
            "rw,lowerdir=l/ABC:l/DEF,upperdir=/var/lib/docker/x/diff",
            [],
            "overlay on directories that cannot be seen from here",
        ),
        ("rw,lowerdir=/merged,upperdir=/merged/upper", [], None),  # over itself
    ],
)
def test_overlay_is_on_the_disks_of_its_directories(machine, options, devices, description):
    machine.make("/lower", "/data/upper", "/data/low:er", "/data/lower", "/merged/upper")
    machine.mount("/merged", "0:52", "overlay", "overlay", options)
    found = machine.find("/merged/x")

    assert ("overlay", devices) == summary(found)[:2]
    assert description in (found.description, None)


@pytest.mark.parametrize(
    ("filesystem", "source", "number", "expected"),
    [
        ("tmpfs", "tmpfs", "0:60", ("tmpfs", [], "tmpfs (memory, no disk)")),
        ("ramfs", "ramfs", "0:60", ("tmpfs", [], "ramfs (memory, no disk)")),
        ("devtmpfs", "udev", "0:60", ("tmpfs", [], "devtmpfs (memory, no disk)")),
        ("zfs", "pool/data", "0:61", ("other", [], "zfs on pool/data (no disk known)")),
        ("ext4", "/dev/zram0", "253:0", ("other", [], "ext4 on zram0")),  # compressed memory
        ("btrfs", "/dev/sdb", "0:49", ("btrfs", ["sdb"], "btrfs on disk sdb")),  # no sysfs of it
    ],
)
def test_a_filesystem_is_told_by_its_kind(machine, filesystem, source, number, expected):
    machine.stacked("zram0", "253:0", queue__rotational="0")
    machine.mount("/place", number, filesystem, source)

    assert expected == summary(machine.find("/place/x"))


def test_without_mountinfo_or_sysfs_nothing_is_known(tmp_path):
    found = find_device("/x", tmp_path)

    assert summary(found) == ("other", [], "unknown: not on a visible mount")
    assert leaf_devices(tmp_path) == ()


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


def test_disks_whose_accounting_is_off_are_reported(machine):
    machine.disk("sdc", "8:32", queue__iostats="0")

    assert unaccounted_devices(machine.root) == ("sdc",)


def test_the_numa_node_of_a_disk_is_that_of_the_nearest_controller(machine):
    machine.disk("sdc", "8:32", node="1")
    machine.disk("sdd", "8:48", node="-1")

    nodes = [device_numa_node(machine.root, DeviceId(name)) for name in ("sdc", "sdd", "sdz")]

    assert nodes == [1, None, None]
