"""Staging: a job's input is copied in before its command, what it leaves is copied out after.

Both as the job's user and in the job's cgroup: what it reads and writes is the job's, it is held
and ended with it. Files, directories and links (as links) are copied, with modes and times;
sockets, pipes, devices, owners, attributes and lists of access rights are not. Standard library
only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from iodaemon.backend.linux.manifest import DIRECTORY, FILE, LINK, Copied, Manifest, kind_of
from iodaemon.backend.linux.stage_batch import Batch, sync
from iodaemon.backend.linux.stage_file import StageError, copy_file, explain, remove_file
from iodaemon.backend.linux.stage_out import Outlet, Output, sweep
from iodaemon.backend.linux.stage_place import Place
from iodaemon.backend.linux.stage_progress import Progress, Tell, is_there
from iodaemon.backend.linux.stage_walk import Census, refuse_change, walk
from iodaemon.fault import reach


class Target(NamedTuple):
    """A directory that files are copied to, and how many bytes it takes."""

    path: str
    room_bytes: int


def copy_in(source: str, targets: Sequence[Target], manifest: Manifest, tell: Tell) -> None:
    """Copy what is in a directory into the first target, or spread its files over several.

    A file goes to the first that has room for it; directories are made in all. What is copied is
    on the disk and was read back from there, and is what the directory had from the beginning to
    the end.

    Raises:
        StageError: it cannot be done.
    """
    progress = Progress("in", tell)
    _attempt(progress, lambda: _copy_in(source, targets, manifest, progress))


def _copy_in(
    source: str, targets: Sequence[Target], manifest: Manifest, progress: Progress
) -> None:
    for target in targets:
        _refuse_within(target.path, source)
    census = dict(walk(source))
    _count(progress, [census])
    room = sum(target.room_bytes for target in targets)
    if progress.total_bytes > room:
        raise StageError(
            f"{source!a} has {progress.total_bytes} bytes; the scratch space is {room}"
        )
    with Batch([target.path for target in targets], manifest) as batch:
        _Inlet(source, targets, manifest, progress, batch).take(census)
        batch.publish()
    refuse_change(source, census)
    for target in targets:
        _finish(target.path, census)
    manifest.complete()


class _Inlet:
    """Puts each file where it belongs."""

    def __init__(
        self,
        source: str,
        targets: Sequence[Target],
        manifest: Manifest,
        progress: Progress,
        batch: Batch,
    ) -> None:
        self._source = source
        self._targets = targets
        self._room = [target.room_bytes for target in targets]
        self._manifest = manifest
        self._progress = progress
        self._batch = batch

    def take(self, census: Census) -> None:
        """All of it."""
        for name, found in census.items():
            match kind_of(found):
                case "directory":
                    self._make_directories(name)
                case "file":
                    self._copy_file(name, found)
                case "link":
                    self._copy_link(name)

    def _make_directories(self, name: str) -> None:
        paths = [os.path.join(target.path, name) for target in self._targets]
        for path in paths:
            if not os.path.isdir(path):  # an earlier try has made it
                os.mkdir(path, 0o700)
        self._batch.add(paths[0], paths[0], Copied(name, 0, 0, "", 0, 0, DIRECTORY))

    def _copy_file(self, name: str, found: os.stat_result) -> None:
        place = self._find_room(found.st_size, name)
        path = os.path.join(self._targets[place].path, name)
        known = self._manifest.copied.get(name)
        if known is not None and is_there(known, path, found):
            self._progress.add(found.st_size, 1)
            return
        digest = copy_file(os.path.join(self._source, name), path, self._progress.add)
        reach("stage.copied")
        self._batch.add(path, path, _copied(name, path, digest, place, FILE))
        self._progress.add(files=1)

    def _copy_link(self, name: str) -> None:
        path = os.path.join(self._targets[0].path, name)
        text = os.readlink(os.path.join(self._source, name))
        remove_file(path)
        os.symlink(text, path)
        self._batch.add(path, path, _copied(name, path, "", 0, LINK))

    def _find_room(self, size_bytes: int, name: str) -> int:
        for place, left in enumerate(self._room):
            if left >= size_bytes:
                self._room[place] -= size_bytes
                return place
        raise StageError(f"{name!a} has {size_bytes} bytes; no disk of the job has so much left")


def copy_out(
    sources: Sequence[str], output: Output, came: Manifest, manifest: Manifest, tell: Tell
) -> None:
    """Copy what a job leaves in its directories into one of its user's.

    What was copied in and is as it was is left out. Each file gets its name once it is on the disk
    and was read back from there, so that at any time what has a name there is whole.

    Args:
        sources: the job's directories.
        output: made, should it not be there.
        came: what was copied in.
        manifest: what an earlier try copied out.
        tell: takes progress.

    Raises:
        StageError: it cannot be done; what is there is whole.
    """
    progress = Progress("out", tell)
    _attempt(progress, lambda: _copy_out(sources, output, came, manifest, progress))


def _copy_out(
    sources: Sequence[str], output: Output, came: Manifest, manifest: Manifest, progress: Progress
) -> None:
    for source in sources:
        _refuse_within(output.path, source)
    _count(progress, [dict(walk(source)) for source in sources])
    with (
        Place(output.path, makes=True) as place,
        Batch([place.fd], manifest, place.locate) as batch,
    ):
        books = {"came": came, "manifest": manifest}
        outlet = Outlet(place, output.mark, **books, progress=progress, batch=batch)
        for number, source in enumerate(sources):
            outlet.take(source, number)
        outlet.finish()
        sync(place.fd)
    manifest.complete()


def _attempt(progress: Progress, work: Callable[[], None]) -> None:
    try:
        work()
    except FileNotFoundError as error:
        raise StageError(f"{error.filename!a} vanished, or was never there") from error
    except OSError as error:
        raise StageError(explain(error, progress.total_bytes, progress.bytes)) from error
    finally:
        progress.end()


def _count(progress: Progress, all_found: Sequence[Census]) -> None:
    for census in all_found:
        for found in census.values():
            kind = kind_of(found)
            if kind == FILE:
                progress.total_bytes += found.st_size
                progress.total_files += 1
            elif not kind:
                progress.others += 1
    progress.report()


def _copied(name: str, path: str, digest: str, place: int, kind: str) -> Copied:
    found = os.stat(path, follow_symlinks=False)
    times = found.st_mtime_ns, digest, found.st_ctime_ns
    return Copied(name, found.st_size, *times, place, kind)


def _refuse_within(inner: str, outer: str) -> None:
    """What would be copied into itself has no end."""
    inner_path, outer_path = os.path.realpath(inner), os.path.realpath(outer)
    if os.path.commonpath([inner_path, outer_path]) == outer_path:
        raise StageError(f"{inner!a} is within {outer!a}, which would be copied into it")


def _finish(top: str, census: Census) -> None:
    """Modes and times of directories, the deepest first: nothing is written to them any more."""
    for name in reversed(census):
        found = census[name]
        if kind_of(found) == DIRECTORY:
            path = os.path.join(top, name)
            os.chmod(path, found.st_mode & 0o777)
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


__all__ = ["Output", "StageError", "Target", "copy_in", "copy_out", "sweep"]
