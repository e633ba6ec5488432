"""What is found at the path of a tier's disk: how large, of which kind, and whose filesystem.

statvfs(3) for the sizes; the layers below by ``devices``; the kind of each leaf disk by udev's
database, else by sysfs. What udev says of rotation goes first: virtual disks and some bridges
call themselves rotational in sysfs whatever they are (ID_ATA_ROTATION_RATE_RPM is 0 for an SSD).

The service's sandbox hides places (ProtectHome=, PrivateTmp=) and shows all others read-only. So
it looks at a disk through the anchor, which is in no sandbox: /proc/PID/root and
/proc/PID/mountinfo, proc(5), which CAP_SYS_PTRACE opens (fs/proc/base.c, proc_pid_get_link).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Final

from iodaemon.core.platform import Device
from iodaemon.core.tier import DiskFacts, DiskKind
from iodaemon.node.devices import (
    PathDevice,
    find_device,
    find_mount_devices,
    find_named_block,
    read_udev,
)
from iodaemon.node.sampler.proc_files import find_holder, find_mount, read_mounts
from iodaemon.supervisor import disk_trouble
from iodaemon.supervisor.anchor import LOCK
from iodaemon.thread import in_thread

_SPEED: Final[tuple[DiskKind, ...]] = ("hdd", "ssd", "nvme", "memory")
"""Slowest first."""
_INIT: Final = 1
_MOST_LINKS: Final = 40
"""On the way to a file; the kernel follows no more (include/linux/namei.h, MAXSYMLINKS)."""
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


def probe_disk(
    path: str,
    *,
    is_shared: bool = False,
    by_mount: bool = True,
    seen_by: int | None = None,
) -> DiskFacts:
    """Look at the path.

    Args:
        path: absolute.
        is_shared: jobs of all users are to use it, whose directories root makes; else this one's.
        by_mount: whether the mount says if it can be written. As a sandbox has them all are
            read-only, and the filesystem alone counts.
        seen_by: the process that sees it; None: this one.

    Raises:
        OSError: that process is gone.
    """
    root = "" if seen_by is None else f"/proc/{seen_by}/root"
    root_filesystem = os.stat(f"{root}/").st_dev
    try:
        real = _resolve(root, path)
        status = os.stat(root + real)
        sizes = os.statvfs(root + real)
    except OSError as error:
        return DiskFacts(problem=disk_trouble.of_way(error))
    if not stat.S_ISDIR(status.st_mode):
        return DiskFacts(problem=disk_trouble.NO_DIRECTORY)
    if real != os.path.normpath(path):
        return DiskFacts(problem=f"leads over a symbolic link; write {real}")
    if sizes.f_flag & os.ST_RDONLY if by_mount else _is_frozen(real):
        return DiskFacts(problem=disk_trouble.READ_ONLY)
    below = find_device(real) if seen_by is None else _find_device_of(seen_by, real)
    owner = 0 if is_shared else os.geteuid()
    obstacle = disk_trouble.of_owner(real, status, owner) or disk_trouble.of_right(real, owner)
    if is_shared and not obstacle:
        obstacle = _find_fence(root, Path(real))
    return DiskFacts(
        obstacle=obstacle,
        lack=disk_trouble.of_room(sizes),
        filesystem=str(status.st_dev),
        total_bytes=(sizes.f_blocks - sizes.f_bfree + sizes.f_bavail) * sizes.f_frsize,
        free_bytes=sizes.f_bavail * sizes.f_frsize,
        is_on_root=status.st_dev == root_filesystem,
        kind=find_kind(below),
        description=below.description,
    )


def find_witness(runtime_dir: str) -> int | None:
    """A process outside the sandbox, to look through: the anchor, else the machine's first.

    Args:
        runtime_dir: with the lock that the anchor holds.

    Returns:
        Its number; None: neither may be looked through.
    """
    pids = [_INIT]
    with contextlib.suppress(OSError):
        holder = find_holder(f"{runtime_dir}/{LOCK}")
        pids = pids if holder is None else [holder, *pids]
    for pid in pids:
        with contextlib.suppress(OSError):
            os.stat(f"/proc/{pid}/root/")
            return pid
    return None


def _find_fence(root: str, path: Path) -> str:
    """Where users come no further on the way to it; empty: they come to it."""
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            if not os.stat(f"{root}{place}").st_mode & stat.S_IXOTH:
                return f"is closed to users, who may not enter {place}; 'chmod o+x {place}'"
    return ""


def _resolve(root: str, path: str) -> str:
    """The path without symbolic links, which lead to places below that root.

    Raises:
        OSError: there are too many.
    """
    parts, done, links = path.split("/")[::-1], [""], 0
    while parts:
        part = parts.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = done[:-1] or [""]
            continue
        here = "/".join([*done, part])
        try:
            target = os.readlink(root + here)
        except OSError:  # no link, or not there: who looks at it next says so
            done.append(part)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        done = [""] if target.startswith("/") else done
        parts += target.split("/")[::-1]
    return "/".join(done) or "/"


def _find_device_of(pid: int, path: str) -> PathDevice:
    """As ``find_device``, by the mounts as that process has them."""
    mounts = read_mounts(pid=pid)
    mount = find_mount(mounts, path)
    if mount is None:
        description = "unknown: not on a visible mount"
        return PathDevice(path=path, kind="other", description=description)
    return find_mount_devices(mount, mounts)


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


def _is_frozen(path: str) -> bool:
    """Whether the filesystem itself is mounted read-only, whatever this process's mount is."""
    mount = find_mount(read_mounts(), path)
    return mount is not None and "ro" in mount.options
