"""Where a trial takes place: its files on the disk that is tried, and a place for its daemons."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.core.platform import DeviceId, ServiceTimes
from iodaemon.errors import RequestError
from iodaemon.node.devices import PathDevice
from iodaemon.trial.directory import own_directory
from iodaemon.trial.machine import (
    Cleaner,
    check_room,
    find_disks,
    find_services,
    forget,
    is_direct_possible,
)
from iodaemon.trial.trust import find_meddler
from iodaemon.trial.workload import JobTable, Places, Workload, data_file, needed_bytes
from iodaemon.units import format_bytes

_BLOCK: Final = 1 << 20
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST_PLACE: Final = 50
"""Bytes; what comes below it to the longest socket has 55, and 107 is the most (unix(7))."""

Progress = Callable[[str], None]
"""Takes what is being done, in words."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A trial's places, made.

    Attributes:
        workload: what is run.
        runtime: for the daemons, of a short path.
        places: the jobs' files.
        disks: where those are.
        files: that were made to be read.
        cleaner: empties the page cache.
        calibration: what is known of the disks, for the daemons. None: nothing.
        services: how long lone requests take there, by that.
        calibrated: where that is from, for people; empty: nowhere.
    """

    workload: Workload
    runtime: Path
    places: Places
    disks: PathDevice
    files: tuple[Path, ...]
    cleaner: Cleaner
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
        notes = [self.cleaner.words]
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

    def clean(self) -> None:
        """Before a run: nothing written is left, and nothing read is in a cache."""
        shutil.rmtree(self.places.scratch, ignore_errors=True)
        self.places.scratch.mkdir()
        self.cleaner.clean(self.files)


@contextlib.contextmanager
def site(
    workload: Workload,
    copies: Sequence[int],
    *,
    calibration: Path | None = None,
    progress: Progress = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Site]:
    """Make the files; whatever was made is gone afterwards.

    Args:
        workload: whose directory is on the disk that is tried.
        copies: of each job, so many at most.
        calibration: a file with what is known of the disks. None: nothing is.
        progress: is told how far the files are.
        check: raises where the trial is to end.

    Raises:
        RequestError: the directory is none, cannot be written to, or has too little room.
    """
    disks = find_disks(workload.directory)
    needed = needed_bytes(workload.jobs, copies)
    check_room(workload.directory, needed)
    services, calibrated = find_services(disks, calibration)
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(own_directory(_short_place()))
        base = stack.enter_context(_directory_on(workload.directory, runtime))
        places = Places(
            data=base / "data", scratch=base / "scratch", is_direct=is_direct_possible(base)
        )
        places.data.mkdir()
        files = _make_files(workload.jobs, copies, places, progress=progress, check=check)
        yield Site(
            workload=workload,
            runtime=runtime,
            places=places,
            disks=disks,
            files=files,
            cleaner=Cleaner(has_commands=workload.has_commands),
            calibration=calibration,
            services=services,
            calibrated=calibrated,
        )


def _short_place() -> Path:
    """For sockets, whose paths have 107 bytes at most (unix(7))."""
    place = Path(tempfile.gettempdir())
    is_good = len(os.fsencode(place)) <= _LONGEST_PLACE and find_meddler(place) is None
    return place if is_good else Path("/tmp")  # noqa: S108


@contextlib.contextmanager
def _directory_on(directory: Path, runtime: Path) -> Iterator[Path]:
    """For the files; where others could put something else at its name, by its descriptor."""
    is_held = find_meddler(directory) is not None
    try:
        with own_directory(directory, goes_with=runtime, is_held=is_held) as base:
            yield base
    except OSError as error:
        if error.filename is None or not str(error.filename).startswith((str(directory), "/proc")):
            raise
        raise RequestError(
            f"{error.filename}: {error.strerror}: name another directory with --directory"
        ) from error


def _make_files(
    jobs: Sequence[JobTable],
    copies: Sequence[int],
    places: Places,
    *,
    progress: Progress,
    check: Callable[[], None],
) -> tuple[Path, ...]:
    """A file for each copy that reads one, on the disk and not in the page cache."""
    total = sum(j.own_file_bytes * n for j, n in zip(jobs, copies, strict=True))
    done = 0
    files = []
    for job, count in zip(jobs, copies, strict=True):
        for copy in range(count if job.own_file_bytes else 0):
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
        file.flush()
        os.fsync(file.fileno())
    forget(path)
