"""The disks of a path, and all disks of the machine.

From /proc/self/mountinfo to a block device in sysfs, down its layers to the leaves; btrfs by
/sys/fs/btrfs/UUID/devices (Linux 3.14; Documentation/filesystems/btrfs.rst), overlay by the
directories in its mount options (Documentation/filesystems/overlayfs.rst), a loop device by its
file. ``st_dev`` is not enough: btrfs, overlay and NFS have anonymous device numbers.

Block devices are in /sys/block, /sys/class/block, /sys/dev/block/MAJOR:MINOR and slaves/ (Linux
2.6.27; Documentation/ABI/stable/sysfs-block, Documentation/ABI/testing/sysfs-block-dm). The kernel
counts the I/O of each layer (diskstats, io.stat), so only leaves may be summed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Final, Literal

import msgspec

from iodaemon.core.platform import Device, DeviceId
from iodaemon.core.sample import DeviceCounters
from iodaemon.node.sampler.proc_files import (
    Mount,
    find_mount,
    known,
    parse_diskstats,
    read_file,
    read_mounts,
)

Kind = Literal["block", "btrfs", "overlay", "nfs", "tmpfs", "other"]

_ROOT: Final = Path("/")
MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
"""Types of file systems without a disk."""
NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "afs", "lustre", "gfs2", "virtiofs"}
    | {"fuse.sshfs"}
)
"""Types of file systems whose disk is another machine's, or shared with one."""
_OF_USERS: Final = "fuse"
"""Any user may mount these, with a source that may lead to a directory that hangs."""
_OF_ROOT: Final = ("btrfs", "bcachefs", "ubifs")
"""Filesystems with an anonymous device number that only root can mount."""
_LAYERS: Final = ("upperdir", "lowerdir")
"""Options of an overlay that name its directories."""
_MOST_LAYERS: Final = 500
"""Directories of an overlay, at most: as many as Linux takes (fs/overlayfs/params.h)."""
_UNESCAPED_COLON: Final = re.compile(r"(?<!\\):")
_NO_DISK: Final = re.compile(r"(loop|ram|zram|sr|fd|mtdblock|drbd)\d|dm-\d|md[\d_]")
"""Memory, removable media of old, and devices made of others. drbd names no slaves."""


class PathDevice(msgspec.Struct, frozen=True, kw_only=True):
    """Where a path's I/O goes.

    Attributes:
        path: absolute, without symbolic links.
        kind: the topmost layer.
        description: all layers, for people.
        filesystem: empty for a block device itself.
        devices: the leaf disks; empty for memory, for a network, or if none is known.
    """

    path: str
    kind: Kind
    description: str
    filesystem: str = ""
    devices: tuple[Device, ...] = ()


def leaf_devices(root: Path = _ROOT) -> tuple[Device, ...]:
    """All leaf disks, sorted by name, and loop devices whose file is on FUSE or NFS: nothing else
    shows their I/O.

    Without partitions, devices made of others (device mapper, md, drbd, non-empty slaves/), memory
    (ram, zram), empty drives and single paths of a multipath NVMe disk.
    """
    return tuple(_make_device(root, directory) for directory in _leaf_directories(root))


def read_disks(wanted: Container[DeviceId]) -> dict[DeviceId, DeviceCounters]:
    """The counters of these disks; empty if they cannot be read."""
    found = known("/proc/diskstats", lambda text: parse_diskstats(text, wanted), read_file)
    return {DeviceId(name): disk_counters(fields) for name, fields in (found or {}).items()}


def disk_counters(fields: Iterable[int]) -> DeviceCounters:
    """Counters from the fields of a line of diskstats."""
    return DeviceCounters(**dict(zip(DeviceCounters.__struct_fields__, fields, strict=True)))


def unaccounted_devices(root: Path = _ROOT) -> tuple[DeviceId, ...]:
    """Leaf disks whose I/O the kernel does not count (queue/iostats is 0)."""
    leaves = _leaf_directories(root)
    return tuple(device_id(each) for each in leaves if _read(each / "queue/iostats") == "0")


def _leaf_directories(root: Path) -> list[Path]:
    blocks = _blocks(root)
    search = _Search(root)
    return [each for each in blocks if _is_disk(each) or search.is_end(each)]


def find_device(
    path: str | os.PathLike[str], root: Path = _ROOT, *, is_written: bool = False
) -> PathDevice:
    """Where the I/O of a file, a directory or a block device goes.

    Args:
        path: as seen below ``root``; need not exist.
        is_written: only writes count: of an overlay the upper directory.
    """
    absolute = _resolve(os.fspath(path), root)
    search = _Search(root, layers=("upperdir",) if is_written else _LAYERS)
    directory = _find_node(root, absolute)
    if directory is not None:
        return search.on_block(absolute, directory, filesystem="")
    return search.find(absolute)


def find_mount_devices(
    mount: Mount, mounts: tuple[Mount, ...] | None = None, root: Path = _ROOT
) -> PathDevice:
    """Where the I/O of files on a mount of any namespace goes; touches no file, so cannot hang.

    Args:
        mounts: of the files of loop devices and the layers of overlays; None for this process's.
    """
    return _Search(root, mounts, touches=False).on_mount(mount.mount_point, mount)


class _Search:
    """Goes down from a path to its disks.

    Args:
        mounts: all mounts; None for this process's.
        touches: whether paths in mount options may be looked at; not those of a job's own mounts.
        layers: options of an overlay whose directories count.
    """

    def __init__(
        self,
        root: Path,
        mounts: tuple[Mount, ...] | None = None,
        *,
        touches: bool = True,
        layers: tuple[str, ...] = _LAYERS,
    ) -> None:
        self._root = root
        self._mounts = read_mounts(root) if mounts is None else mounts
        self._touches = touches
        self._layers = layers
        self._through: list[int] = []
        """The mounts above, to stop at a cycle."""

    def find(self, path: str) -> PathDevice:
        mount = find_mount(self._mounts, path)
        if mount is None or mount.mount_id in self._through:
            text = "unknown: not on a visible mount"
            return PathDevice(path=path, kind="other", description=text)
        return self.on_mount(path, mount)

    def on_mount(self, path: str, mount: Mount) -> PathDevice:
        self._through.append(mount.mount_id)
        try:
            return self._look(path, mount)
        finally:
            self._through.pop()

    def _look(self, path: str, mount: Mount) -> PathDevice:
        name = mount.filesystem
        if name == "overlay":
            return self._on_overlay(path, mount)
        if name in ("nfs", "nfs4"):
            text = f"{name} from {mount.source} (network, no disk here)"
            return PathDevice(path=path, kind="nfs", description=text, filesystem=name)
        if name in MEMORY:
            text = f"{name} (memory, no disk)"
            return PathDevice(path=path, kind="tmpfs", description=text, filesystem=name)
        directory = find_block(self._root, mount.device_number)
        if directory is not None:
            return self.on_block(path, directory, filesystem=name)
        return self._on_source(path, mount)

    def on_block(self, path: str, directory: Path, *, filesystem: str) -> PathDevice:
        description = describe_block(directory)
        if (file := find_backing_file(directory)) is not None:
            description += f" on {self._find_backing(file).description}"
        disks = self._disks([directory])
        return PathDevice(
            path=path,
            kind="block" if disks else "other",
            description=f"{filesystem} on {description}" if filesystem else description,
            filesystem=filesystem,
            devices=disks,
        )

    def _find_backing(self, file: str) -> PathDevice:
        """The kernel names the file without links, and a look at it could hang."""
        return self.find(os.path.normpath(file))

    def is_end(self, loop: Path) -> bool:
        """Whether it is a loop device without a disk below: its file is on FUSE or NFS."""
        if (file := find_backing_file(loop)) is None:
            return False
        below = self._find_backing(file)
        return below.kind in ("nfs", "other") and below.filesystem != "" and not below.devices

    def _disks(self, directories: Iterable[Path]) -> tuple[Device, ...]:
        """The leaf disks below block devices, through the files of loop devices; each once."""
        disks: dict[Device, None] = {}
        for leaf in (leaf for directory in directories for leaf in find_leaf_blocks(directory)):
            file = find_backing_file(leaf)
            if file is not None and not self.is_end(leaf):
                disks.update(dict.fromkeys(self._find_backing(file).devices))
            elif file is not None or _is_disk(leaf):
                disks[_make_device(self._root, leaf)] = None
        return tuple(disks)

    def _on_overlay(self, path: str, mount: Mount) -> PathDevice:
        """The disks of the upper directory (writes) first, then those of the lower ones."""
        directories = _overlay_directories(mount.options, self._layers)[:_MOST_LAYERS]
        if self._touches:
            seen = (each for each in directories if _is_visible(self._root, each))
            layers = [self.find(_resolve(each, self._root)) for each in seen]
        else:  # by name alone
            layers = [self.find(os.path.normpath(each)) for each in directories]
        known = [layer for layer in layers if layer.filesystem]
        below = known[0].description if known else "directories that cannot be seen from here"
        is_upper = len(self._layers) == 1 and known
        return PathDevice(
            path=path,
            kind=known[0].kind if is_upper else "overlay",
            description=f"overlay on {below}",
            filesystem="overlay",
            devices=tuple(dict.fromkeys(device for layer in known for device in layer.devices)),
        )

    def _on_source(self, path: str, mount: Mount) -> PathDevice:
        """A filesystem with an anonymous device number that names its device: btrfs, bcachefs."""
        is_named = mount.source.startswith("/dev/") and not mount.filesystem.startswith(_OF_USERS)
        is_named = is_named and (self._touches or mount.filesystem in _OF_ROOT)
        directories: list[Path] = []
        for source in mount.source.split(":") if is_named else ():
            resolved = _resolve(source, self._root)
            directory = _find_node(self._root, resolved)
            directory = directory or find_named_block(self._root, os.path.basename(resolved))
            if directory is not None:
                directories.append(directory)
        if mount.filesystem == "btrfs" and directories:
            directories = _btrfs_members(self._root, directories[0])
        below = " and ".join(describe_block(directory) for directory in directories)
        return PathDevice(
            path=path,
            kind="btrfs" if mount.filesystem == "btrfs" else "other",
            description=f"{mount.filesystem} on {below or f'{mount.source} (no disk known)'}",
            filesystem=mount.filesystem,
            devices=self._disks(directories),
        )


def _resolve(path: str, root: Path) -> str:
    """The path below root without symbolic links."""
    base = os.path.realpath(root).rstrip("/")
    if not base:
        return os.path.realpath(path)
    full = os.path.realpath(f"{base}/{path.lstrip('/')}")
    return full[len(base) :] or "/" if f"{full}/".startswith(f"{base}/") else os.path.normpath(path)


def _find_node(root: Path, path: str) -> Path | None:
    """The sysfs directory of the block device whose node the path is, or None."""
    try:
        status = os.stat(os.path.join(root, path.lstrip("/")))
    except OSError:
        return None
    if not stat.S_ISBLK(status.st_mode):
        return None
    return find_block(root, f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")


def _is_visible(root: Path, directory: str) -> bool:
    try:
        os.stat(os.path.join(root, directory.lstrip("/")))
    except PermissionError:  # it is there, which is all that was asked
        return True
    except OSError:
        return False
    return True


def _overlay_directories(options: Iterable[str], names: Iterable[str]) -> list[str]:
    """Upper, lower and data directories that are absolute (docker's lower ones are not)."""
    values: dict[str, list[str]] = {name: [] for name in names}
    for option in options:
        name, _, value = option.partition("=")
        name = "lowerdir" if name in ("lowerdir+", "datadir+") else name
        if name in values:
            values[name].extend(_UNESCAPED_COLON.split(value) if name == "lowerdir" else [value])
    every = [re.sub(r"\\(.)", r"\1", text) for name in values for text in values[name]]
    return [text for text in every if text.startswith("/")]


def _btrfs_members(root: Path, member: Path) -> list[Path]:
    for devices in sorted((root / "sys/fs/btrfs").glob("*/devices")):
        names = sorted(os.listdir(devices))
        if member.name in names:
            found = (find_named_block(root, name) for name in names)
            return [directory for directory in found if directory is not None]
    return [member]


# -- block devices in sysfs ------------------------------------------------------------------------


def find_block(root: Path, number: str) -> Path | None:
    """The sysfs directory of the block device ``major:minor``, or None."""
    return _follow(root / "sys/dev/block" / number)


def find_named_block(root: Path, name: str) -> Path | None:
    """The sysfs directory of the block device with this kernel name, or None."""
    return _follow(root / "sys/class/block" / name.replace("/", "!"))


def _follow(link: Path) -> Path | None:
    return link.resolve() if link.exists() else None


def find_number(name: DeviceId, root: Path = _ROOT) -> str:
    """``major:minor`` of the block device; empty if it is missing."""
    directory = find_named_block(root, name)
    return "" if directory is None else _read(directory / "dev")


def device_id(directory: Path) -> DeviceId:
    """The kernel's name of the device; sysfs writes ``!`` for the slash in ``cciss/c0d0``."""
    return DeviceId(directory.name.replace("!", "/"))


def describe_block(directory: Path) -> str:
    """The device and its layers down to disks or a loop device's file, for people."""
    text: str = device_id(directory)
    name = text
    if (directory / "partition").exists():
        return f"partition {name} of {describe_block(directory.parent)}"
    if (file := find_backing_file(directory)) is not None:
        return f"loop device {name} of file {file}"
    if (directory / "dm").is_dir():
        target = _read(directory / "dm/uuid").partition("-")[0]
        what = "LVM volume" if target == "LVM" else target.lower() or "device-mapper"
        text = f"{what} {_read(directory / 'dm/name')} ({name})"
    elif (directory / "md").is_dir():
        text = f"md {_read(directory / 'md/level')} array {name}"
    elif _is_disk(directory):
        text = f"disk {name}"
    below = " and ".join(describe_block(slave) for slave in _slaves(directory))
    return f"{text} on {below}" if below else text


def find_leaf_blocks(directory: Path) -> tuple[Path, ...]:
    """The devices at the bottom, each once, through partitions and slaves/."""
    leaves: dict[Path, None] = {}
    if (directory / "partition").exists():
        return find_leaf_blocks(directory.parent)
    for slave in _slaves(directory):
        leaves.update(dict.fromkeys(find_leaf_blocks(slave)))
    return tuple(leaves) or (directory,)


def _slaves(directory: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(directory / "slaves"))
    except FileNotFoundError:
        return []
    return [(directory / "slaves" / name).resolve() for name in names]


def find_backing_file(directory: Path) -> str | None:
    """The file behind a loop device, or None."""
    return _read(directory / "loop/backing_file") or None


def is_read_through_cache(directory: Path) -> bool:
    """Whether a loop device reads its file through the page cache (Linux 4.4: loop/dio)."""
    return _read(directory / "loop/dio") == "0"


def _is_disk(directory: Path) -> bool:
    return (
        _NO_DISK.match(directory.name) is None
        and _read(directory / "size") not in ("", "0")
        and _read(directory / "hidden") != "1"  # one path of a multipath NVMe disk
        and not _slaves(directory)
    )


def _make_device(root: Path, directory: Path) -> Device:
    """The device of a sysfs directory; its model by udev first."""
    rotational = _read(directory / "queue/rotational")
    model = read_udev(directory, "ID_MODEL") if root == _ROOT else ""
    model = model.replace("_", " ").strip()
    return Device(
        id=device_id(directory),
        model=model or _read(directory / "device/model") or _read(directory / "device/name"),
        rotational=rotational == "1" if rotational else None,
    )


def read_udev(directory: Path, name: str) -> str:
    """A property of the device in the udev database; empty without it or the library."""
    try:
        import pyudev

        device = pyudev.Devices.from_sys_path(pyudev.Context(), str(directory))
    except ImportError:  # also where pyudev is there, and libudev is not
        return ""
    except pyudev.DeviceNotFoundError:  # unplugged meanwhile
        return ""
    return str(device.properties.get(name, ""))


def leaf_names(root: Path) -> tuple[DeviceId, ...]:
    """Names of ``leaf_devices`` without loop devices."""
    return tuple(device_id(directory) for directory in _blocks(root) if _is_disk(directory))


def _blocks(root: Path) -> list[Path]:
    """Directories of all block devices except partitions, sorted by name."""
    try:
        names = sorted(os.listdir(root / "sys/block"))
    except FileNotFoundError:
        return []
    found = (find_named_block(root, name) or _follow(root / "sys/block" / name) for name in names)
    return [directory for directory in found if directory is not None]


def device_numa_node(root: Path, name: DeviceId) -> int | None:
    """The NUMA node of the disk's controller (the nearest ``numa_node`` in sysfs), or None."""
    directory = find_named_block(root, name)
    for above in directory.parents if directory is not None else ():
        text = _read(above / "numa_node")
        if text:
            return int(text) if int(text) >= 0 else None
    return None


_IDENTITIES: Final = ("wwid", "device/wwid", "uuid", "serial", "device/serial", "device/cid")
"""The most distinct first (nvme, virtio, scsi, mmc; Linux 4.20)."""


def find_identity(name: DeviceId, root: Path = _ROOT) -> str:
    """A disk's own name (else the kernel's; of a loop device its file) and its size, which hold
    after a reboot. Empty if there is no such disk.
    """
    directory = find_named_block(root, name)
    if directory is None:
        return ""
    size = f"{_read(directory / 'size')} sectors"
    file = find_backing_file(directory)
    if file is not None:
        return f"file {file}, {size}"
    for source in _IDENTITIES:
        if word := _read(directory / source, errors="replace"):
            return f"{Path(source).name} {' '.join(word.split())}, {size}"
    return f"name {name}, {size}"


def _read(path: Path, *, errors: str = "surrogateescape") -> str:
    """The attribute, stripped; empty if it is missing or the device just went away."""
    try:
        return path.read_text(errors=errors).strip()
    except OSError:
        return ""
