"""How far a step of staging is, and what of it an earlier try has done. Standard library only."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import Any, Final

from iodaemon.backend.linux.manifest import Copied
from iodaemon.backend.linux.stage_clock import Clock
from iodaemon.backend.linux.stage_file import hash_file

_TELL_S: Final = 1.0
_BLOCK_BYTES: Final = 512
"""Of ``ru_inblock`` and ``ru_oublock``, whatever the disk's are."""

Tell = Callable[[dict[str, Any]], None]


class Progress:
    """Counts, and tells about it at most once a second; ``end`` it."""

    def __init__(self, step: str, tell: Tell) -> None:
        self._step = step
        self._tell = tell
        self._next_s = 0.0
        self._moved_before = _moved_bytes()
        self._clock = Clock()
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

    def end(self) -> None:
        """Tell how it was in the end, and how long it took."""
        try:
            self.report()
        finally:
            self._clock.stop()

    def report(self) -> None:
        """Tell now."""
        self._next_s = time.monotonic() + _TELL_S
        names = ("bytes", "total_bytes", "files", "total_files", "others", "left_bytes")
        counts = {name: getattr(self, name) for name in names}
        moved = _moved_bytes() - self._moved_before
        took = {"moved_bytes": moved, "took_s": self._clock.took_s()}
        self._tell({"step": self._step, **counts, **took})


def _moved_bytes() -> int:
    """What this process has read from disks and written, as /proc/PID/io has it (getrusage(2))."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_inblock + used.ru_oublock) * _BLOCK_BYTES


def is_there(known: Copied, path: str, source: os.stat_result, *, at: int | None = None) -> bool:
    """True where an earlier try copied this very version, and the copy is still what it was."""
    if (known.size_bytes, known.mtime_ns) != (source.st_size, source.st_mtime_ns):
        return False
    try:
        copy = os.stat(path, dir_fd=at, follow_symlinks=False)
        if (copy.st_size, copy.st_mtime_ns) != (known.size_bytes, known.mtime_ns):
            return False
        return hash_file(path, from_disk=False, at=at) == known.digest
    except OSError:
        return False
