"""Size, kind and state of the disks of storage tiers.

udev's rotation rate goes before sysfs, where virtual disks and some bridges always claim to rotate
(ID_ATA_ROTATION_RATE_RPM is 0 for an SSD).

The service's sandbox hides paths (ProtectHome=, PrivateTmp=) and shows others read-only, so its
daemon asks the supervisor, whose helper looks (``supervisor.scratch``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import wait
from pathlib import Path
from typing import Any, Final

from iodaemon.core.platform import Device
from iodaemon.core.storage import DiskFacts, DiskKind
from iodaemon.node.devices import (
    PathDevice,
    find_device,
    find_mount_devices,
    find_named_block,
    read_udev,
)
from iodaemon.node.sampler.proc_files import find_mount, parse_mountinfo
from iodaemon.supervisor import disk_trouble
from iodaemon.thread import in_thread

_SPEED: Final[tuple[DiskKind, ...]] = ("hdd", "ssd", "nvme", "memory")
"""Slowest first."""
_PATIENCE_S: Final = 5.0
"""For a look at all disks; one that takes longer does not answer."""


def probe_disks(paths: Iterable[str], *, is_shared: bool) -> dict[str, DiskFacts]:
    """What this process finds at these absolute paths, each in a thread that may hang.

    Args:
        is_shared: whether jobs of all users use them, so that root makes the directories.
    """
    looks = {path: in_thread(probe_disk, path, is_shared=is_shared) for path in paths}
    done, _ = wait(looks.values(), _PATIENCE_S)
    silent = DiskFacts(problem=disk_trouble.SILENT)
    return {path: look.result() if look in done else silent for path, look in looks.items()}


def probe_disk(path: str, *, is_shared: bool = False) -> DiskFacts:
    """The same for one path."""
    found = disk_trouble.look(path, is_shared=is_shared)
    return _facts(found, None if found["problem"] else find_device(path))


def read_answer(path: str, answer: Mapping[str, Any]) -> DiskFacts:
    """What the supervisor's helper found at this path (wish ``look``)."""
    if not answer.get("done"):
        no_process = "cannot be looked at (no process can be made); see that one can"
        return DiskFacts(problem=answer.get("problem") or no_process)
    below = None
    if answer["mounts"]:
        mounts = parse_mountinfo(answer["mounts"].encode("latin-1"))
        mount = find_mount(mounts, os.path.normpath(path))
        below = None if mount is None else find_mount_devices(mount, mounts)
    return _facts(answer["found"], below)


def _facts(found: Mapping[str, Any], below: PathDevice | None) -> DiskFacts:
    if below is None:
        return DiskFacts(**found)
    return DiskFacts(**found, kind=find_kind(below), description=below.description)


def find_kind(below: PathDevice) -> DiskKind:
    """The kind of the slowest disk; ``hdd`` if none is known."""
    if below.kind == "tmpfs":
        return "memory"
    kinds = {_kind_of(device) for device in below.devices}
    return next((kind for kind in _SPEED if kind in kinds), "hdd")


def _kind_of(device: Device) -> DiskKind:
    if device.id.startswith("nvme"):
        return "nvme"
    directory = find_named_block(Path("/"), device.id)
    rate = "" if directory is None else read_udev(directory, "ID_ATA_ROTATION_RATE_RPM")
    rotates = int(rate) > 0 if rate.isdigit() else device.rotational
    return "ssd" if rotates is False else "hdd"
