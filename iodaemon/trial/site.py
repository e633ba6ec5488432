"""Where a trial takes place: its files on the disk that is tried, and a place for its daemons."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.calibration.record import known_leaves
from iodaemon.calibration.store import load
from iodaemon.core.platform import DeviceId, ServiceTimes
from iodaemon.errors import ConfigError, RequestError
from iodaemon.node.devices import PathDevice, find_device, find_identity
from iodaemon.trial.folder import has_meddlers
from iodaemon.trial.private import own_directory
from iodaemon.trial.workload import Places, Workload, data_file, needed_bytes
from iodaemon.units import format_bytes

_BLOCK: Final = 1 << 20
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST_PLACE: Final = 50
"""Bytes; what comes below it to the longest socket has 55, and 107 is the most (unix(7))."""
_DROP: Final = Path("/proc/sys/vm/drop_caches")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A trial's places, made.

    Attributes:
        runtime: for the daemons, of a short path.
        files: that were made to be read.
        calibration: what is known of the disks, for the daemons. None: nothing.
        services: how long lone requests take there, by that.
        calibrated: where that is from, for people; empty: nowhere.
    """

    workload: Workload
    runtime: Path
    places: Places
    disks: PathDevice
    files: tuple[Path, ...]
    calibration: Path | None = None
    services: dict[DeviceId, ServiceTimes] = {}
    calibrated: str = ""

    @property
    def devices(self) -> tuple[DeviceId, ...]:
        """The disks to watch; empty: memory, network, or not known."""
        return tuple(device.id for device in self.disks.devices)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results must know, one line each."""
        cold = "the files are out of the page cache before every run"
        if self._drops_all:
            cold = "the whole page cache is dropped before every run"
        elif self.workload.has_commands:
            cold = (
                "files of ours are out of the page cache before every run; those that the commands "
                "read besides may be in it (dropping all of it needs root)"
            )
        notes = [cold]
        if not self.places.is_direct:
            notes.append(f"{self.disks.path} takes no O_DIRECT: kernels use the page cache")
        if self.calibrated:
            notes.append(self.calibrated)
        if not self.devices:
            notes.append(
                f"no disk is known below it ({self.disks.description}), so neither is the time "
                "that requests wait and are served"
            )
        return tuple(notes)

    @property
    def _drops_all(self) -> bool:
        return self.workload.has_commands and os.access(_DROP, os.W_OK)

    def clean(self) -> None:
        """Before a run: nothing written is left, and nothing read is in a cache."""
        shutil.rmtree(self.places.scratch, ignore_errors=True)
        self.places.scratch.mkdir()
        if self._drops_all:
            os.sync()
            with contextlib.suppress(OSError):
                _DROP.write_text("1\n")
        for file in self.files:
            _forget(file)


@contextlib.contextmanager
def site(
    workload: Workload,
    *,
    calibration: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Site]:
    """Make the files of a workload; whatever was made is gone afterwards.

    Args:
        calibration: a file with what is known of the disks. None: nothing is.
        progress: is told how far the files are, in words.
        check: raises where the trial is to end.

    Raises:
        RequestError: the directory is none, cannot be written to, or has too little room.
    """
    disks = find_disks(workload.directory)
    check_room(workload.directory, needed_bytes(workload.jobs))
    services, calibrated = find_services(disks, calibration)
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(own_directory(_short_place()))
        base = stack.enter_context(_directory_on(workload.directory, runtime))
        places = Places(
            data=base / "data", scratch=base / "scratch", is_direct=_is_direct_possible(base)
        )
        places.data.mkdir()
        yield Site(
            workload=workload,
            runtime=runtime,
            places=places,
            disks=disks,
            files=_make_files(workload, places, progress, check),
            calibration=calibration,
            services=services,
            calibrated=calibrated,
        )


def _short_place() -> Path:
    """For sockets, whose paths have 107 bytes at most (unix(7))."""
    place = Path(tempfile.gettempdir())
    is_good = len(os.fsencode(place)) <= _LONGEST_PLACE and not has_meddlers(place)
    return place if is_good else Path("/tmp")  # noqa: S108


@contextlib.contextmanager
def _directory_on(directory: Path, runtime: Path) -> Iterator[Path]:
    """For the files; where others could put something else at its name, by its descriptor."""
    is_held = has_meddlers(directory)
    try:
        with own_directory(directory, goes_with=runtime, is_held=is_held) as base:
            yield base
    except OSError as error:
        if error.filename is None or not str(error.filename).startswith((str(directory), "/proc")):
            raise
        raise RequestError(
            f"{error.filename}: {error.strerror}: name another directory with --directory"
        ) from error


def _is_direct_possible(directory: Path) -> bool:
    probe = directory / ".probe"
    try:
        os.close(os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600))
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


def _make_files(
    workload: Workload,
    places: Places,
    progress: Callable[[str], None],
    check: Callable[[], None],
) -> tuple[Path, ...]:
    """A file for each copy that reads one, on the disk and not in the page cache."""
    total = sum(job.own_file_bytes * job.count for job in workload.jobs)
    done = 0
    files = []
    for job in workload.jobs:
        for copy in range(job.count if job.own_file_bytes else 0):
            path = data_file(job, copy, places)
            for written in _write(path, job.own_file_bytes):
                check()
                done += written
                progress(f"writing files: {format_bytes(done)} of {format_bytes(total)}")
            files.append(path)
    return tuple(files)


def _write(path: Path, size: int) -> Iterator[int]:
    """Bytes that no drive can compress; yields how many were written."""
    descriptor = os.open(path, _NEW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for at in range(0, size, _BLOCK):
            yield file.write(os.urandom(min(_BLOCK, size - at)))
    _forget(path)


def _forget(file: Path) -> None:
    """Have it on the disk and not in the page cache; one that is not there is in neither."""
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


# -- the machine -----------------------------------------------------------------------------------


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


def find_services(
    disks: PathDevice, calibration: Path | None
) -> tuple[dict[DeviceId, ServiceTimes], str]:
    """How long lone requests take at these disks, by the file of ``iod calibrate``; its date."""
    if calibration is None:
        return {}, ""
    try:
        kept = load(calibration.parent)
    except (ConfigError, OSError) as error:
        return {}, f"what was calibrated is left out: {error}"
    known = known_leaves(kept, {device.id: find_identity(device.id) for device in disks.devices})
    words = ", ".join(
        f"{name} on {time.strftime('%Y-%m-%d', time.localtime(made.at_s))}"
        for name, (made, _) in known.items()
    )
    services = {name: found for name, (_, leaf) in known.items() if (found := leaf.service)}
    return services, f"calibrated: {words}" if words else ""


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
