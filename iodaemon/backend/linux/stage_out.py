"""Copying out what a job leaves: beside its names first, and not what only came in.

As the job's user. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import NamedTuple

from iodaemon.backend.linux.manifest import DIRECTORY, FILE, LINK, Copied, Manifest, kind_of
from iodaemon.backend.linux.stage_batch import Batch, part_of
from iodaemon.backend.linux.stage_file import StageError, copy_file, remove_file
from iodaemon.backend.linux.stage_place import Place, named
from iodaemon.backend.linux.stage_progress import Progress, is_there
from iodaemon.backend.linux.stage_walk import Census, walk
from iodaemon.fault import reach


class Output(NamedTuple):
    """Where to.

    Attributes:
        path: of the directory.
        mark: the attempt's own, for names that nobody else makes.
    """

    path: str
    mark: str


class Outlet:
    """Takes what is found in the job's directories, one after the other."""

    def __init__(
        self,
        place: Place,
        mark: str,
        *,
        came: Manifest,
        manifest: Manifest,
        progress: Progress,
        batch: Batch,
    ) -> None:
        """Nothing is taken yet; see ``stage.copy_out``."""
        self._place = place
        self._mark = mark
        self._came = came
        self._manifest = manifest
        self._progress = progress
        self._batch = batch
        self._tree = _Tree(place, manifest)
        self._taken: dict[str, str] = {}

    def take(self, source: str, number: int) -> None:
        """All of one of the job's directories that did not come in as it is.

        Raises:
            StageError: another one had a file of that name.
            OSError: it cannot be copied.
        """
        for name, found in walk(source):
            kind = kind_of(found)
            if kind == DIRECTORY:
                self._tree.know(name, found)
            if self._came.has(name, found, number):
                if kind == FILE:
                    self._progress.leave(found.st_size)
                continue
            if kind == DIRECTORY:
                self._tree.make(name)
            elif kind:
                if self._taken.setdefault(name, source) != source:
                    raise StageError(f"two of the job's directories have a file {name!a}")
                self._tree.make(os.path.dirname(name))
                copy = self._copy_file if kind == FILE else self._copy_link
                with named(os.path.join(self._place.path, name)):
                    copy(os.path.join(source, name), name, found, number)

    def finish(self) -> None:
        """What is copied has its names, and the directories that were made are as they were."""
        self._batch.publish()
        self._tree.finish()

    def _copy_file(self, source: str, name: str, found: os.stat_result, number: int) -> None:
        path = os.path.join(self._place.path, name)
        at, base = self._place.locate(path)
        known = self._manifest.copied.get(name)
        if known is not None and is_there(known, base, found, at=at):
            self._progress.add(found.st_size, 1)
            return
        part = part_of(path, self._mark)
        self._batch.begin(part)
        digest = copy_file(source, os.path.basename(part), self._progress.add, at=at)
        reach("stage.part")
        copied = Copied(name, found.st_size, found.st_mtime_ns, digest, 0, number)
        self._batch.add(part, path, copied)
        self._progress.add(files=1)

    def _copy_link(self, source: str, name: str, found: os.stat_result, number: int) -> None:
        path, text = os.path.join(self._place.path, name), os.readlink(source)
        at, base = self._place.locate(path)
        with contextlib.suppress(OSError):  # none is there
            if os.readlink(base, dir_fd=at) == text:
                return
        part = part_of(path, self._mark)
        self._batch.begin(part)
        remove_file(os.path.basename(part), at=at)
        os.symlink(text, os.path.basename(part), dir_fd=at)
        copied = Copied(name, found.st_size, found.st_mtime_ns, "", 0, number, LINK)
        self._batch.add(part, path, copied)


class _Tree:
    """Directories of the output: made when something comes into them, else left as they are."""

    def __init__(self, place: Place, manifest: Manifest) -> None:
        self._place = place
        self._manifest = manifest
        self._known: Census = {}
        self._there = {""}
        self._made: list[str] = []

    def know(self, name: str, found: os.stat_result) -> None:
        """The job has one of this name."""
        self._known.setdefault(name, found)

    def make(self, name: str) -> None:
        """It, and those above."""
        missing = []
        while name not in self._there:
            missing.append(name)
            name = os.path.dirname(name)
        for name in reversed(missing):
            if self._is_made(name):
                self._made.append(name)
            self._there.add(name)

    def finish(self) -> None:
        """Modes and times of those that were made, the deepest first."""
        self._place.leave()
        for name in reversed(self._made):
            found, fd = self._known[name], self._place.enter(name)
            group = os.fstat(fd).st_mode & stat.S_ISGID  # of the directory above, for new ones
            with named(os.path.join(self._place.path, name)):
                os.chmod(f"/proc/self/fd/{fd}", found.st_mode & 0o777 | group)
                os.utime(f"/proc/self/fd/{fd}", ns=(found.st_atime_ns, found.st_mtime_ns))

    def _is_made(self, name: str) -> bool:
        """Make it; False: somebody else's is there. One of an earlier try is noted as ours."""
        path = os.path.join(self._place.path, name)
        at, base = self._place.locate(path)
        known = self._manifest.copied.get(name)
        is_ours = known is not None and known.kind == DIRECTORY
        if not is_ours and not _is_there(at, base):
            self._manifest.add(Copied(name, 0, 0, "", 0, 0, DIRECTORY))
            is_ours = True
        with named(path), contextlib.suppress(FileExistsError):
            if is_ours:
                os.mkdir(base, 0o700, dir_fd=at)
        if is_ours:
            self._place.hold(name)
        else:
            self._place.enter(name)
        return is_ours


def _is_there(at: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def sweep(sources: list[str], output: Output) -> None:
    """Remove what a try that was killed has left beside the names in the output.

    Raises:
        StageError: the output is none.
        OSError: it cannot be looked for.
    """
    with Place(output.path) as place:
        for source in sources:
            for name, found in walk(source):
                if kind_of(found) in (FILE, LINK):
                    part = part_of(os.path.join(output.path, name), output.mark)
                    with contextlib.suppress(FileNotFoundError, StageError):
                        at, base = place.locate(part)
                        remove_file(base, at=at)
