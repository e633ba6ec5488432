"""What is found at the path of a tier's disk: how large, of which kind, and whose filesystem.

statvfs(3) for the sizes; the layers below by ``devices``; the kind of each leaf disk by udev's
database, else by sysfs. What udev says of rotation goes first: virtual disks and some bridges
call themselves rotational in sysfs whatever they are (ID_ATA_ROTATION_RATE_RPM is 0 for an SSD).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from iodaemon.backend.linux.devices import PathDevice, find_device
from iodaemon.core.platform import Device
from iodaemon.core.tier import DiskFacts, DiskKind
from iodaemon.errors import NoData
from iodaemon.sampler import mountinfo

_SPEED: Final[tuple[DiskKind, ...]] = ("hdd", "ssd", "nvme", "memory")
"""Slowest first."""


def probe_disk(path: str, *, by_mount: bool = True) -> DiskFacts:
    """Look at the path.

    Args:
        path: absolute.
        by_mount: whether the mount as this process sees it says if it can be written. A service
            in a sandbox sees everything read-only, and goes by the filesystem alone.
    """
    try:
        status = os.stat(path)
        real = os.path.realpath(path)
        sizes = os.statvfs(path)
    except FileNotFoundError:
        return DiskFacts(problem="does not exist; make it, or mount what belongs there")
    except OSError as error:
        return DiskFacts(problem=f"cannot be looked at ({error.strerror}); mend that")
    if not stat.S_ISDIR(status.st_mode):
        return DiskFacts(problem="is no directory; name one")
    if real != os.path.normpath(path):
        return DiskFacts(problem=f"leads over a symbolic link; write {real}")
    below = find_device(path)
    is_read_only = bool(sizes.f_flag & os.ST_RDONLY) if by_mount else _is_frozen(real)
    return DiskFacts(
        filesystem=str(status.st_dev),
        total_bytes=(sizes.f_blocks - sizes.f_bfree + sizes.f_bavail) * sizes.f_frsize,
        free_bytes=sizes.f_bavail * sizes.f_frsize,
        is_read_only=is_read_only,
        kind=find_kind(below),
        description=below.description,
    )


def find_kind(below: PathDevice) -> DiskKind:
    """The kind of the slowest disk below; ``hdd`` where none is known, on the safe side."""
    if below.kind == "tmpfs":
        return "memory"
    kinds = {_kind_of(device) for device in below.devices}
    return next((kind for kind in _SPEED if kind in kinds), "hdd")


def _kind_of(device: Device) -> DiskKind:
    if device.id.startswith("nvme"):
        return "nvme"
    rotates = _rotates_by_udev(device.id)
    if rotates is None:
        rotates = device.rotational
    return "ssd" if rotates is False else "hdd"


def _rotates_by_udev(name: str) -> bool | None:
    """Whether the disk turns, by udev's database; None: it does not say."""
    try:
        import pyudev

        device = pyudev.Devices.from_name(pyudev.Context(), "block", name)
    except ImportError:  # pyudev, or libudev
        return None
    except pyudev.DeviceNotFoundError:
        return None
    rate = str(device.properties.get("ID_ATA_ROTATION_RATE_RPM", ""))
    if rate.isdigit():
        return int(rate) > 0
    is_there = "queue/rotational" in device.attributes.available_attributes
    return device.attributes.asbool("queue/rotational") if is_there else None


def _is_frozen(path: str) -> bool:
    """Whether the filesystem itself is mounted read-only, whatever this process's mount is."""
    try:
        mount = mountinfo.find_mount(mountinfo.Sampler(Path("/")).read(), path)
    except NoData:
        return False
    return mount is not None and "ro" in mount.options
