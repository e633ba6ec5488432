"""What is found at the path of a tier's disk: how large, of which kind, and whose filesystem.

statvfs(3) for the sizes; the layers below by ``devices``; the kind of each leaf disk by udev's
database, else by sysfs. What udev says of rotation goes first: virtual disks and some bridges
call themselves rotational in sysfs whatever they are (ID_ATA_ROTATION_RATE_RPM is 0 for an SSD).

The service's sandbox hides places (ProtectHome=, PrivateTmp=) and shows all others read-only. So
it looks at a disk through the keeper, who makes the directories there: /proc/PID/root and
/proc/PID/mountinfo, proc(5), which CAP_SYS_PTRACE opens (fs/proc/base.c, proc_pid_get_link).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from iodaemon.backend.linux import quota
from iodaemon.backend.linux.attempt_record import RecordError, read_keeper
from iodaemon.backend.linux.devices import PathDevice, find_device, find_mount_devices
from iodaemon.backend.linux.process import Identity, is_alive
from iodaemon.backend.linux.reader_thread import find_start_ticks_in_thread
from iodaemon.core.platform import Device
from iodaemon.core.tier import DiskFacts, DiskKind
from iodaemon.errors import NoData
from iodaemon.sampler import mountinfo

_SPEED: Final[tuple[DiskKind, ...]] = ("hdd", "ssd", "nvme", "memory")
"""Slowest first."""
_BY_MOUNT: Final = "prjquota"
"""Among the options of an ext4 or xfs that enforces project quotas."""
_INIT: Final = 1
_MOST_LINKS: Final = 40
"""On the way to a file; the kernel follows no more (include/linux/namei.h, MAXSYMLINKS)."""


def probe_disk(path: str, *, by_mount: bool = True, seen_by: int | None = None) -> DiskFacts:
    """Look at the path.

    Args:
        path: absolute.
        by_mount: whether the mount says if it can be written. As a sandbox has them all are
            read-only, and the filesystem alone counts.
        seen_by: the process that sees it; None: this one.
    """
    root = "" if seen_by is None else f"/proc/{seen_by}/root"
    try:
        real = _resolve(root, path)
        status = os.stat(root + real)
        sizes = os.statvfs(root + real)
    except FileNotFoundError:
        return DiskFacts(problem="does not exist; make it, or mount what belongs there")
    except OSError as error:
        return DiskFacts(problem=f"cannot be looked at ({error.strerror}); mend that")
    if not stat.S_ISDIR(status.st_mode):
        return DiskFacts(problem="is no directory; name one")
    if real != os.path.normpath(path):
        return DiskFacts(problem=f"leads over a symbolic link; write {real}")
    below = find_device(real) if seen_by is None else _find_device_of(seen_by, real)
    is_read_only = bool(sizes.f_flag & os.ST_RDONLY) if by_mount else _is_frozen(real)
    return DiskFacts(
        filesystem=str(status.st_dev),
        total_bytes=(sizes.f_blocks - sizes.f_bfree + sizes.f_bavail) * sizes.f_frsize,
        free_bytes=sizes.f_bavail * sizes.f_frsize,
        is_read_only=is_read_only,
        is_full=sizes.f_bfree == 0 or (sizes.f_files > 0 and sizes.f_ffree == 0),
        is_on_root=status.st_dev == os.stat(root + "/").st_dev,
        is_limited=_is_limited(root, real, seen_by),
        kind=find_kind(below),
        description=below.description,
    )


def find_witness(keeper_state: Path) -> int | None:
    """A process outside the sandbox, to look through: the keeper, else the machine's first.

    Args:
        keeper_state: the keeper's directory.

    Returns:
        Its number; None: neither may be looked through.
    """
    pids = [_INIT]
    with contextlib.suppress(OSError, RecordError):
        record = read_keeper(str(keeper_state))
        if record is not None:
            keeper = Identity(record["pid"], record["start_ticks"], record["boot_id"])
            pids = [keeper.pid, *pids] if is_alive(keeper, find_start_ticks_in_thread) else pids
    for pid in pids:
        with contextlib.suppress(OSError):
            os.stat(f"/proc/{pid}/root/")
            return pid
    return None


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
    mounts = _read_mounts(pid)
    mount = mountinfo.find_mount(mounts, path)
    if mount is None:
        description = "unknown: not on a visible mount"
        return PathDevice(path=path, kind="other", description=description)
    return find_mount_devices(mount, mounts)


def _read_mounts(pid: int | None) -> tuple[mountinfo.Mount, ...]:
    """As that process has them, None: as this one; empty where they cannot be read."""
    sampler = mountinfo.Sampler(Path("/"), pid=pid)
    try:
        return tuple(sampler.read())
    except NoData:
        return ()
    finally:
        sampler.close()


def _is_limited(root: str, path: str, seen_by: int | None) -> bool | None:
    """Whether project quotas hold there: by the kernel's word, else by how it is mounted.

    The service's sandbox lets nobody ask the kernel (quotactl_fd(2) is among its @privileged).
    """
    try:
        fd = os.open(root + path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return quota.is_enforced(fd)
    except PermissionError:
        mount = mountinfo.find_mount(_read_mounts(seen_by), path)
        return None if mount is None else _BY_MOUNT in mount.options
    except OSError:  # no quotas, or a kernel before 5.14
        return False
    finally:
        os.close(fd)


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
