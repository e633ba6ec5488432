"""Copies that are made durable, read back and given their names together. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

from iodaemon.backend.linux.manifest import FILE, Copied, Manifest
from iodaemon.backend.linux.stage_file import StageError, hash_file, remove_file
from iodaemon.fault import reach

MOST_FILES: Final = 256
MOST_BYTES: Final = 1 << 30
PART: Final = ".iod-part."
"""Begins the name of what is not yet a file of the output."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


Locate = Callable[[str], tuple[int | None, str]]
"""Where a path is: a directory that is open until the next one is asked for, and a name in it."""


class _Piece(NamedTuple):
    part: str
    path: str
    copied: Copied


class Batch:
    """Those that are copied, and not noted yet.

    In the job's own directories they have their names at once, in the output only at the end.
    """

    def __init__(
        self,
        tops: Sequence[str | int],
        manifest: Manifest,
        locate: Locate = lambda path: (None, path),
    ) -> None:
        """Nothing is copied yet.

        Args:
            tops: directories on all file systems that are copied to, some of them open.
            manifest: is told what is whole.
            locate: where others may be at work in them.
        """
        self._locate = locate
        self._tops = tops
        self._manifest = manifest
        self._pieces: list[_Piece] = []
        self._unnamed: set[str] = set()
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for part in self._unnamed:
            with contextlib.suppress(OSError, StageError):  # a directory is gone, or another's
                at, name = self._locate(part)
                remove_file(name, at=at)

    def begin(self, part: str) -> None:
        """A file of this name is about to be made, which is to go unless it gets another."""
        self._unnamed.add(part)

    def add(self, part: str, path: str, copied: Copied) -> None:
        """One more; with many or large ones all are published.

        Args:
            part: where it is.
            path: where it is to be.
            copied: what the manifest is to say.
        """
        self._pieces.append(_Piece(part, path, copied))
        self._bytes += copied.size_bytes
        if len(self._pieces) >= MOST_FILES or self._bytes >= MOST_BYTES:
            self.publish()

    def publish(self) -> None:
        """Have all of them on the disk, under their names, and noted.

        Raises:
            StageError: what is on the disk is something else.
            OSError: as from syncfs(2), or the disk of the manifest is full.
        """
        if not self._pieces:
            return
        for top in self._tops:
            sync(top)
        if self._unnamed:
            reach("stage.synced")
        for part, path, copied in self._pieces:
            at, name = self._locate(part)
            if copied.kind == FILE and hash_file(name, from_disk=True, at=at) != copied.digest:
                raise StageError(f"{path!a}: what was read back is not what was written")
        self._give_names()
        self._manifest.add(*(piece.copied for piece in self._pieces))
        reach("stage.noted")
        self._pieces.clear()
        self._bytes = 0

    def _give_names(self) -> None:
        for part, path, _ in self._pieces:
            if part in self._unnamed:
                at, name = self._locate(path)
                os.rename(os.path.basename(part), name, src_dir_fd=at, dst_dir_fd=at)
                self._unnamed.discard(part)
                reach("stage.named")


def part_of(path: str, mark: str) -> str:
    """Beside it, the same at each try of one attempt, and of no other one.

    Args:
        path: where it is to be.
        mark: the attempt's own.
    """
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return os.path.join(os.path.dirname(path), f"{PART}{mark}.{name}")


def sync(top: str | int) -> None:
    """Make all of its file system durable, and hear of what could not be (syncfs(2), Linux 5.8)."""
    path, at = (top, None) if isinstance(top, str) else (".", top)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
    try:
        if _LIBC.syncfs(fd) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), path)
    finally:
        os.close(fd)
