r"""/proc/self/mountinfo: what is mounted where, as one process sees it.

Linux 2.6.26 and newer. Documentation/filesystems/proc.rst section 3.5, man
proc_pid_mountinfo(5). Space, tab, line feed and backslash in a path are written as ``\ooo``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from iodaemon.errors import NoData
from iodaemon.sampler import KeptFile, as_bytes, whole_lines

_OCTAL: Final = re.compile(rb"\\([0-7]{3})")
_FIXED_WORDS: Final = 6
"""Words before the optional fields, which end with a lone hyphen."""


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """One line.

    Attributes:
        mount_id: number of this mount.
        parent_id: number of the mount it is mounted on; of one outside for the topmost.
        device_number: ``major:minor``; major 0 where there is no block device.
        subtree: the directory of the filesystem that is the root of this mount.
        mount_point: where it is, seen from the process's root.
        filesystem: type, for example ``ext4``.
        source: filesystem-specific: a device, ``host:/export``, or a word.
        options: of the filesystem (not of this mount), in their order, for example
            ``upperdir=/a``.
    """

    mount_id: int
    parent_id: int
    device_number: str
    subtree: str
    mount_point: str
    filesystem: str
    source: str
    options: tuple[str, ...] = ()


def parse_mountinfo(text: bytes | str) -> tuple[Mount, ...]:
    """All mounts, in the order of mounting; a line that is cut short is left out.

    Raises:
        NoData: no mount in the whole text.
    """
    lines = whole_lines(as_bytes(text))
    mounts = tuple(mount for mount in map(_parse_line, lines) if mount is not None)
    if not mounts:
        raise NoData("mountinfo: no mount in it")
    return mounts


def _parse_line(line: bytes) -> Mount | None:
    words = line.split(b" ")
    try:
        hyphen = words.index(b"-", _FIXED_WORDS)
        filesystem, source, options = words[hyphen + 1 : hyphen + 4]
        return Mount(
            mount_id=int(words[0]),
            parent_id=int(words[1]),
            device_number=words[2].decode(),
            subtree=_unescape(words[3]),
            mount_point=_unescape(words[4]),
            filesystem=_unescape(filesystem),
            source=_unescape(source),
            options=tuple(_unescape(option) for option in options.split(b",")),
        )
    except ValueError:
        return None


def _unescape(word: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), word))


def find_mount(mounts: Sequence[Mount], path: str) -> Mount | None:
    """The mount that a path without symbolic links is on; None: not below any of them.

    Walks down as the kernel does, because a later mount hides earlier ones below it.

    Args:
        mounts: of one namespace.
        path: absolute, without symbolic links, ``.`` and ``..``.
    """
    ids = {mount.mount_id for mount in mounts}
    tops = [mount for mount in mounts if mount.parent_id not in ids and _holds(mount, path)]
    found = max(tops, key=lambda mount: len(mount.mount_point), default=None)
    while found is not None:
        step = _find_next(mounts, found, path)
        if step is None:
            break
        found = step
    return found


def _find_next(mounts: Iterable[Mount], above: Mount, path: str) -> Mount | None:
    below = (
        mount
        for mount in mounts
        if mount.parent_id == above.mount_id
        and mount.mount_id != above.mount_id
        and len(mount.mount_point) >= len(above.mount_point)
        and _holds(mount, path)
    )
    return min(below, key=lambda mount: len(mount.mount_point), default=None)


def _holds(mount: Mount, path: str) -> bool:
    point = mount.mount_point.rstrip("/")
    return path == point or path.startswith(point + "/")


class Sampler:
    """Reads /proc/PID/mountinfo.

    Args:
        root: ``/``, or a directory that looks like it.
        pid: the process whose view is wanted; None: this one.
    """

    def __init__(self, root: Path, *, pid: int | None = None) -> None:
        name = "self" if pid is None else str(pid)
        self._file = KeptFile(root / "proc" / name / "mountinfo")

    def read(self) -> tuple[Mount, ...]:
        """The mounts now.

        Raises:
            NoData: no such file, or the process is gone.
        """
        return parse_mountinfo(self._file.read())

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
