"""The machine of a trial: its room, its storage, what it is made of, its page cache."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from iodaemon.calibration.record import known_leaves
from iodaemon.calibration.store import load
from iodaemon.core.platform import DeviceId, ServiceTimes
from iodaemon.errors import ConfigError, RequestError
from iodaemon.node.devices import PathDevice, find_device, find_identity
from iodaemon.units import format_bytes

_DROP: Final = Path("/proc/sys/vm/drop_caches")


def find_disks(directory: Path) -> PathDevice:
    """The disks below the directory.

    Raises:
        RequestError: it is no directory, cannot be written to, or is none for root to write to.
    """
    if not directory.is_dir():
        raise RequestError(f"{directory} is no directory: make it, or name one with --directory")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise RequestError(f"{directory} cannot be written to: name another with --directory")
    return find_device(str(directory))


def check_room(directory: Path, size_bytes: int) -> None:
    """Refuse what would fill the file system.

    Raises:
        RequestError: there is less room than that, and a tenth of it to spare.
    """
    status = os.statvfs(directory)
    free, wanted = status.f_bavail * status.f_frsize, size_bytes + size_bytes // 10
    if free < wanted:
        raise RequestError(
            f"{directory} has {format_bytes(free)} free, the files of this workload take "
            f"{format_bytes(wanted)}: free some, or name another with --directory"
        )


def is_direct_possible(directory: Path) -> bool:
    """Whether files there can be read and written past the page cache."""
    probe = directory / f".probe.{os.getpid()}"
    try:
        os.close(os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600))
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


def find_services(
    disks: PathDevice, calibration: Path | None
) -> tuple[dict[DeviceId, ServiceTimes], str]:
    """How long lone requests take at these disks, as they were calibrated; and where that is from.

    Args:
        disks: of the trial.
        calibration: the file of ``iod calibrate``. None: there is none.
    """
    if calibration is None:
        return {}, ""
    try:
        kept = load(calibration.parent)
    except (ConfigError, OSError) as error:
        return {}, f"what was calibrated is left out: {error}"
    identities = {device.id: find_identity(device.id) for device in disks.devices}
    known = known_leaves(kept, identities)
    words = ", ".join(f"{name} on {_day(made.at_s)}" for name, (made, _) in known.items())
    services = {name: found for name, (_, leaf) in known.items() if (found := leaf.service)}
    return services, f"calibrated: {words}" if words else ""


def _day(at_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at_s))


class Cleaner:
    """Empties the page cache before every run, as far as it may.

    Attributes:
        words: what it does, for people.
    """

    def __init__(self, *, has_commands: bool) -> None:
        self._drops_all = has_commands and os.access(_DROP, os.W_OK)
        if not has_commands:
            self.words = "the files are out of the page cache before every run"
        elif self._drops_all:
            self.words = "the whole page cache is dropped before every run"
        else:
            self.words = (
                "files of ours are out of the page cache before every run; those that the commands "
                "read besides may be in it (dropping all of it needs root)"
            )

    def clean(self, files: Iterable[Path]) -> None:
        """Write back and forget these files, and all others where that is done."""
        if self._drops_all:
            os.sync()
            with contextlib.suppress(OSError):
                _DROP.write_text("1\n")
        for file in files:
            forget(file)


def forget(file: Path) -> None:
    """Take a file out of the page cache; one that is not there is not in it either."""
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def describe(disks: PathDevice) -> dict[str, object]:
    """What the trial was run on, for its results."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_model": _cpu_model(),
        "memory_bytes": memory,
        "storage": disks.description,
        "filesystem": disks.filesystem,
        "devices": [device.id for device in disks.devices],
        "is_rotational": [device.rotational for device in disks.devices],
    }


def _cpu_model() -> str:
    """What the kernel calls the processor; where it does not, its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
