"""Staging: a job's input is copied in before its command, what it leaves is copied out after.

Both as the job's user and in the job's cgroup: what it reads and writes is the job's, it is held
and ended with it. Files, directories and links (as links) are copied, with modes and times;
sockets, pipes, devices, owners, attributes and lists of access rights are not. Standard library
only.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import resource
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Self

from iodaemon.backend.linux.manifest import Copied, Manifest
from iodaemon.backend.linux.stage_file import (
    StageError,
    copy_file,
    explain,
    hash_file,
    remove_file,
)
from iodaemon.fault import reach

_TELL_S: Final = 1.0
_BATCH_FILES: Final = 256
_BATCH_BYTES: Final = 1 << 30
"""Made durable, read back and given their names together."""
_BLOCK_BYTES: Final = 512
"""Of ``ru_inblock`` and ``ru_oublock``, whatever the disk's are."""
_PART: Final = ".iod-part."
"""What is not yet a file of the output; the next try of the same job removes it."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

Tell = Callable[[dict[str, Any]], None]


class Target(NamedTuple):
    """A directory that files are copied to, and how many bytes it takes."""

    path: str
    room_bytes: int


class Progress:
    """Counts, and tells about it at most once a second."""

    def __init__(self, step: str, tell: Tell) -> None:
        self._step = step
        self._tell = tell
        self._next_s = 0.0
        self._moved_before = _moved_bytes()
        self.total_bytes = self.total_files = self.bytes = self.files = self.others = 0
        self.left_bytes = 0

    def add(self, size_bytes: int = 0, files: int = 0) -> None:
        """So much more is there."""
        self.bytes += size_bytes
        self.files += files
        if time.monotonic() >= self._next_s:
            self.report()

    def leave(self, size_bytes: int) -> None:
        """A file is dealt with, and need not be copied."""
        self.left_bytes += size_bytes
        self.add(size_bytes, 1)

    def report(self) -> None:
        """Tell now."""
        self._next_s = time.monotonic() + _TELL_S
        names = ("bytes", "total_bytes", "files", "total_files", "others", "left_bytes")
        counts = {name: getattr(self, name) for name in names}
        moved = _moved_bytes() - self._moved_before
        self._tell({"step": self._step, **counts, "moved_bytes": moved})


def _moved_bytes() -> int:
    """What this process has read from disks and written, as /proc/PID/io has it (getrusage(2))."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_inblock + used.ru_oublock) * _BLOCK_BYTES


def walk(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """All below a directory, each directory before what is in it; no link is followed.

    Raises:
        OSError: a directory cannot be read, or is gone.
    """
    waiting = [""]
    while waiting:
        place = waiting.pop()
        with os.scandir(os.path.join(top, place) if place else top) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            name = os.path.join(place, entry.name)
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                waiting.append(name)
            yield name, status


def copy_in(source: str, targets: Sequence[Target], manifest: Manifest, tell: Tell) -> None:
    """Copy what is in a directory into the first target, or spread its files over several.

    A file goes to the first that has room for it; directories are made in all.

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
    _count(progress, [source])
    room = [target.room_bytes for target in targets]
    if progress.total_bytes > sum(room):
        raise StageError(
            f"{source!a} has {progress.total_bytes} bytes; the scratch space is {sum(room)}"
        )
    made: list[tuple[str, os.stat_result]] = []
    for name, found in walk(source):
        if stat.S_ISDIR(found.st_mode):
            for target in targets:
                _make_directory(os.path.join(target.path, name))
                made.append((os.path.join(target.path, name), found))
        elif stat.S_ISREG(found.st_mode):
            place = _find_room(room, found.st_size, name)
            target_path = os.path.join(targets[place].path, name)
            known = manifest.copied.get(name)
            if known is not None and _is_there(known, target_path, found):
                progress.add(found.st_size, 1)
                continue
            digest = copy_file(os.path.join(source, name), target_path, progress.add)
            reach("stage.copied")
            manifest.add(_copied(name, target_path, digest, place))
            reach("stage.noted")
            progress.add(files=1)
        elif stat.S_ISLNK(found.st_mode):
            _copy_link(os.path.join(source, name), os.path.join(targets[0].path, name))
    _finish(made)


def copy_out(
    sources: Sequence[str], target: str, came: Manifest, manifest: Manifest, tell: Tell
) -> None:
    """Copy what a job leaves in its directories into one of its user's.

    What was copied in and is as it was is left out. Each file gets its name once it is on the disk
    and was read back from there, so that at any time what has a name there is whole.

    Args:
        sources: the job's directories.
        target: made, should it not be there.
        came: what was copied in.
        manifest: what an earlier try copied out.
        tell: takes progress.

    Raises:
        StageError: it cannot be done; what is there is whole.
    """
    progress = Progress("out", tell)
    _attempt(progress, lambda: _copy_out(sources, target, came, manifest, progress))


def _copy_out(
    sources: Sequence[str], target: str, came: Manifest, manifest: Manifest, progress: Progress
) -> None:
    for source in sources:
        _refuse_within(target, source)
    _count(progress, sources)
    os.makedirs(target, exist_ok=True)
    made: list[tuple[str, os.stat_result]] = []
    names: dict[str, str] = {}
    with _Batch(target, manifest, progress.add) as batch:
        for number, source in enumerate(sources):
            for name, found in walk(source):
                path = os.path.join(target, name)
                if stat.S_ISDIR(found.st_mode):
                    _make_directory(path)
                    made.append((path, found))
                elif came.has(name, found, number):
                    progress.leave(found.st_size)
                elif stat.S_ISREG(found.st_mode):
                    if names.setdefault(name, source) != source:
                        raise StageError(f"two of the job's directories have a file {name!a}")
                    batch.add(os.path.join(source, name), path, found, (name, number))
                    progress.add(files=1)
                elif stat.S_ISLNK(found.st_mode):
                    _copy_link(os.path.join(source, name), path)
        batch.publish()
    _finish(made)
    _sync(target)


class _Batch:
    """Files that are copied and have no names yet."""

    def __init__(self, target: str, manifest: Manifest, on_bytes: Callable[[int], None]) -> None:
        self._target = target
        self._on_bytes = on_bytes
        self._manifest = manifest
        self._parts: list[tuple[str, str, Copied]] = []
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for part, _path, _copied in self._parts:
            remove_file(part)

    def add(self, source: str, path: str, found: os.stat_result, place: tuple[str, int]) -> None:
        """Copy one, unless it is there."""
        name, number = place
        known = self._manifest.copied.get(name)
        if known is not None and _is_there(known, path, found):
            self._on_bytes(found.st_size)
            return
        part = _part_of(path)
        digest = copy_file(source, part, self._on_bytes)
        reach("stage.part")
        copied = Copied(name, found.st_size, found.st_mtime_ns, digest, 0, number)
        self._parts.append((part, path, copied))
        self._bytes += found.st_size
        if len(self._parts) >= _BATCH_FILES or self._bytes >= _BATCH_BYTES:
            self.publish()

    def publish(self) -> None:
        """Give all of them their names."""
        _sync(self._target)
        reach("stage.synced")
        for part, path, copied in self._parts:
            if hash_file(part, from_disk=True) != copied.digest:
                raise StageError(f"{path!a}: what was read back is not what was written")
        for part, path, _copied in self._parts:
            os.rename(part, path)
        reach("stage.named")
        self._manifest.add(*(copied for _, _, copied in self._parts))
        self._parts.clear()
        self._bytes = 0


def _attempt(progress: Progress, work: Callable[[], None]) -> None:
    try:
        work()
    except FileNotFoundError as error:
        raise StageError(f"{error.filename!a} vanished, or was never there") from error
    except OSError as error:
        raise StageError(explain(error, progress.total_bytes, progress.bytes)) from error
    finally:
        progress.report()


def _count(progress: Progress, sources: Sequence[str]) -> None:
    for source in sources:
        for _, found in walk(source):
            if stat.S_ISREG(found.st_mode):
                progress.total_bytes += found.st_size
                progress.total_files += 1
            elif not (stat.S_ISDIR(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                progress.others += 1
    progress.report()


def _find_room(room: list[int], size_bytes: int, name: str) -> int:
    for place, left in enumerate(room):
        if left >= size_bytes:
            room[place] -= size_bytes
            return place
    raise StageError(f"{name!a} has {size_bytes} bytes; no disk of the job has so much left")


def _is_there(known: Copied, path: str, source: os.stat_result) -> bool:
    """True where an earlier try copied this very version, and the copy is still what it was."""
    if (known.size_bytes, known.mtime_ns) != (source.st_size, source.st_mtime_ns):
        return False
    try:
        copy = os.stat(path, follow_symlinks=False)
        if (copy.st_size, copy.st_mtime_ns) != (known.size_bytes, known.mtime_ns):
            return False
        return hash_file(path, from_disk=False) == known.digest
    except OSError:
        return False


def _copied(name: str, target: str, digest: str, place: int) -> Copied:
    found = os.stat(target, follow_symlinks=False)
    return Copied(name, found.st_size, found.st_mtime_ns, digest, found.st_ctime_ns, place)


def _part_of(path: str) -> str:
    """Beside it, and the same at each try."""
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return os.path.join(os.path.dirname(path), f"{_PART}{name}")


def _refuse_within(inner: str, outer: str) -> None:
    """What would be copied into itself has no end."""
    inner_path, outer_path = os.path.realpath(inner), os.path.realpath(outer)
    if os.path.commonpath([inner_path, outer_path]) == outer_path:
        raise StageError(f"{inner!a} is within {outer!a}, which would be copied into it")


def _make_directory(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(path, follow_symlinks=False).st_mode):
            raise


def _copy_link(source: str, target: str) -> None:
    text = os.readlink(source)
    remove_file(target)
    os.symlink(text, target)


def _finish(made: list[tuple[str, os.stat_result]]) -> None:
    """Modes and times of directories, the deepest first: nothing is written to them any more."""
    for path, found in reversed(made):
        os.chmod(path, found.st_mode & 0o777)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def _sync(path: str) -> None:
    """Make all of its file system durable, and hear of what could not be (syncfs(2), Linux 5.8)."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _LIBC.syncfs(fd) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), path)
    finally:
        os.close(fd)


__all__ = ["StageError"]
