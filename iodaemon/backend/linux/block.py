"""Block devices as sysfs shows them: layers, the leaf disks below them, and what these are.

/sys/block, /sys/class/block, /sys/dev/block/MAJOR:MINOR, slaves/ (Linux 2.6.27 and newer;
Documentation/ABI/stable/sysfs-block, Documentation/ABI/testing/sysfs-block-dm). A disk and what
is built on it are counted each (diskstats, io.stat), so only leaves may be summed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Literal

from iodaemon.core.platform import Device, DeviceId

BlockKind = Literal["disk", "partition", "lvm", "md", "loop", "device-mapper", "other"]

_LOOP: Final = re.compile(r"loop\d")
_NO_DISK: Final = re.compile(r"(loop|ram|zram|sr|fd|mtdblock|drbd)\d|dm-\d|md[\d_]")
"""Memory, removable media of old, and devices made of others. drbd names no slaves."""


def find_directory(root: Path, number: str) -> Path | None:
    """The sysfs directory of the block device ``major:minor``; None: there is none."""
    return _resolve(root / "sys/dev/block" / number)


def find_named_directory(root: Path, name: str) -> Path | None:
    """The sysfs directory of the block device with this kernel name; None: there is none."""
    return _resolve(root / "sys/class/block" / name.replace("/", "!"))


def _resolve(link: Path) -> Path | None:
    return link.resolve() if link.exists() else None


def device_id(directory: Path) -> DeviceId:
    """The kernel's name of the device; sysfs writes ``!`` for the slash in ``cciss/c0d0``."""
    return DeviceId(directory.name.replace("!", "/"))


def find_kind(directory: Path) -> BlockKind:
    """What the topmost layer of the device is."""
    if (directory / "partition").exists():
        return "partition"
    if (directory / "dm").is_dir():
        return "lvm" if _read(directory / "dm/uuid").startswith("LVM-") else "device-mapper"
    if (directory / "md").is_dir():
        return "md"
    if _LOOP.match(directory.name):
        return "loop"
    return "disk" if _is_disk(directory) else "other"


def describe(directory: Path) -> str:
    """The device and what it is made of, for people; ends at a loop device's file."""
    name = device_id(directory)
    below = " and ".join(describe(slave) for slave in _slaves(directory))
    on_below = f" on {below}" if below else ""
    match find_kind(directory):
        case "partition":
            return f"partition {name} of {describe(directory.parent)}"
        case "lvm":
            return f"LVM volume {_read(directory / 'dm/name')} ({name}){on_below}"
        case "device-mapper":
            target = _read(directory / "dm/uuid").partition("-")[0].lower() or "device-mapper"
            return f"{target} {_read(directory / 'dm/name')} ({name}){on_below}"
        case "md":
            return f"md {_read(directory / 'md/level')} array {name}{on_below}"
        case "loop":
            return f"loop device {name} of file {find_backing_file(directory) or '(none)'}"
        case "disk":
            return f"disk {name}"
        case "other":
            return f"{name}{on_below}"


def find_leaves(directory: Path) -> tuple[Path, ...]:
    """The devices at the bottom, each once: followed from partitions to disks, and slaves/."""
    leaves: dict[Path, None] = {}
    if (directory / "partition").exists():
        return find_leaves(directory.parent)
    for slave in _slaves(directory):
        leaves.update(dict.fromkeys(find_leaves(slave)))
    return tuple(leaves) or (directory,)


def _slaves(directory: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(directory / "slaves"))
    except FileNotFoundError:
        return []
    return [(directory / "slaves" / name).resolve() for name in names]


def find_backing_file(directory: Path) -> str | None:
    """The file behind a loop device; None: it has none (any more)."""
    return _read(directory / "loop/backing_file") or None


def is_read_through_cache(directory: Path) -> bool:
    """True for a loop device that reads its file through the page cache (Linux 4.4: loop/dio)."""
    return _read(directory / "loop/dio") == "0"


def _is_disk(directory: Path) -> bool:
    """True for a disk with room on it that is made of nothing else."""
    return (
        _NO_DISK.match(directory.name) is None
        and _read(directory / "size") not in ("", "0")
        and _read(directory / "hidden") != "1"  # one path of a multipath NVMe disk
        and not _slaves(directory)
    )


def is_disk(directory: Path) -> bool:
    """True for a leaf disk worth sampling, whose directory this is; False for its partitions."""
    return not (directory / "partition").exists() and _is_disk(directory)


def find_device_of(root: Path, directory: Path) -> Device | None:
    """The leaf disk whose directory this is; None when it is no disk worth sampling."""
    return make_device(root, directory) if _is_disk(directory) else None


def make_device(root: Path, directory: Path) -> Device:
    """What sysfs says of the device whose directory this is."""
    rotational = _read(directory / "queue/rotational")
    return Device(
        id=device_id(directory),
        model=_find_model(root, directory),
        rotational=rotational == "1" if rotational else None,
    )


def _find_model(root: Path, directory: Path) -> str:
    """ID_MODEL of the udev database, else what sysfs knows; empty where neither does."""
    model = _find_udev_model(directory) if root == Path("/") else ""
    return model or _read(directory / "device/model") or _read(directory / "device/name")


def _find_udev_model(directory: Path) -> str:
    try:
        import pyudev
    except ImportError:
        return ""
    try:
        device = pyudev.Devices.from_sys_path(pyudev.Context(), str(directory))
    except ImportError:  # pyudev is there, libudev is not
        return ""
    except pyudev.DeviceNotFoundError:  # unplugged meanwhile
        return ""
    return str(device.properties.get("ID_MODEL", "")).replace("_", " ").strip()


def leaf_names(root: Path) -> tuple[DeviceId, ...]:
    """Names of all leaf disks worth sampling, sorted; see ``devices.leaf_devices``."""
    return tuple(device_id(directory) for directory in leaf_directories(root))


def leaf_directories(root: Path) -> list[Path]:
    """Directories of all leaf disks worth sampling, sorted by name."""
    try:
        names = sorted(os.listdir(root / "sys/block"))
    except FileNotFoundError:
        return []
    found = (
        find_named_directory(root, name) or _resolve(root / "sys/block" / name) for name in names
    )
    return [directory for directory in found if directory is not None and _is_disk(directory)]


def loop_directories(root: Path) -> list[Path]:
    """Directories of all loop devices that have a file, sorted by name."""
    try:
        names = sorted(name for name in os.listdir(root / "sys/block") if _LOOP.match(name))
    except FileNotFoundError:
        return []
    found = (find_named_directory(root, name) for name in names)
    return [each for each in found if each is not None and find_backing_file(each) is not None]


def is_accounted(directory: Path) -> bool:
    """False when the kernel was told not to count the device's I/O (queue/iostats)."""
    return _read(directory / "queue/iostats") != "0"


def device_numa_node(root: Path, name: DeviceId) -> int | None:
    """The NUMA node that the disk's controller is attached to; None where unknown.

    The nearest ``numa_node`` above it in sysfs; -1 there means unknown.
    """
    directory = find_named_directory(root, name)
    for above in directory.parents if directory is not None else ():
        text = _read(above / "numa_node")
        if text:
            return int(text) if int(text) >= 0 else None
    return None


def _read(path: Path) -> str:
    """The attribute, stripped; empty where it is missing or the device just went away."""
    try:
        return path.read_text(errors="surrogateescape").strip()
    except OSError:
        return ""
