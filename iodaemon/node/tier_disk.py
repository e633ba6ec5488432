"""What is found at the path of a tier's disk: how large, of which kind, and whose filesystem.

The path by ``disk_trouble.look``; the layers below by ``devices``; the kind of each leaf disk by
udev's database, else by sysfs. What udev says of rotation goes first: virtual disks and some
bridges call themselves rotational in sysfs whatever they are (ID_ATA_ROTATION_RATE_RPM is 0 for an
SSD).

The sandbox of the service hides places (ProtectHome=, PrivateTmp=) and shows all others read-only.
So its daemon asks the supervisor, whose helper looks for it (``supervisor.scratch``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, Final

from iodaemon.core.platform import Device
from iodaemon.core.tier import DiskFacts, DiskKind
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


class DiskProbe:
    """Looks at disks, each in a thread of its own: one that hangs holds up nobody.

    While a look at a disk is under way no second one is begun.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, Future[DiskFacts]] = {}

    def look(
        self,
        paths: Iterable[str],
        probe: Callable[[str], DiskFacts],
        patience_s: float = _PATIENCE_S,
    ) -> dict[str, DiskFacts]:
        """What is found at each path.

        Args:
            paths: of disks.
            probe: ``probe_disk``, with what it takes besides the path.
            patience_s: for all of them together.

        Raises:
            Exception: what a probe raised, whatever that is.
        """
        looks = {path: self._under_way.get(path) or in_thread(probe, path) for path in paths}
        done, _ = wait(looks.values(), patience_s)
        self._under_way = {path: look for path, look in looks.items() if look not in done}
        silent = DiskFacts(problem=disk_trouble.SILENT)
        return {path: look.result() if look in done else silent for path, look in looks.items()}


def probe_disk(path: str, *, is_shared: bool = False) -> DiskFacts:
    """Look at the path, as this process sees it.

    Args:
        path: absolute.
        is_shared: jobs of all users are to use it, whose directories root makes; else this one's.
    """
    found = disk_trouble.look(path, is_shared=is_shared)
    return _facts(found, None if found["problem"] else find_device(path))


def read_answer(path: str, answer: Mapping[str, Any]) -> DiskFacts:
    """What the supervisor's helper found there (wish ``look``).

    Args:
        path: as it was asked.
        answer: to it, which is done or says why not.
    """
    if not answer.get("done"):
        no_process = "cannot be looked at (no process can be made); see that one can"
        return DiskFacts(problem=answer.get("problem") or no_process)
    if not answer["mounts"]:
        return _facts(answer["found"], None)
    mounts = parse_mountinfo(answer["mounts"].encode("latin-1"))
    mount = find_mount(mounts, os.path.normpath(path))
    return _facts(answer["found"], None if mount is None else find_mount_devices(mount, mounts))


def _facts(found: Mapping[str, Any], below: PathDevice | None) -> DiskFacts:
    if below is None:
        return DiskFacts(**found)
    return DiskFacts(**found, kind=find_kind(below), description=below.description)


def find_kind(below: PathDevice) -> DiskKind:
    """The kind of the slowest disk below; ``hdd`` where none is known, on the safe side."""
    if below.kind == "tmpfs":
        return "memory"
    kinds = {_kind_of(device) for device in below.devices}
    return next((kind for kind in _SPEED if kind in kinds), "hdd")


def _kind_of(device: Device) -> DiskKind:
    if device.id.startswith("nvme"):
        return "nvme"
    rate = _udev_rate(device)
    rotates = int(rate) > 0 if rate.isdigit() else device.rotational
    return "ssd" if rotates is False else "hdd"


def _udev_rate(device: Device) -> str:
    directory = find_named_block(Path("/"), device.id)
    return "" if directory is None else read_udev(directory, "ID_ATA_ROTATION_RATE_RPM")
