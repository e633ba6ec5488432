"""Who may still be in a job's directories, though nobody counts them among its processes.

Without cgroups a process that made itself a session of its own is out of sight once the job's shim
is dead; and others of its user may open what lies there. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterator, Sequence
from typing import Final, NamedTuple

_BLOCK_BYTES: Final = 512
"""Of ``st_blocks``, whatever the file system's are (stat(2))."""
_DELETED: Final = " (deleted)"
"""Ends the link to an open file that has no name any more (man proc(5))."""


class Held(NamedTuple):
    """Deleted files that are still open.

    Attributes:
        pid: who has some of them.
        size_bytes: what all of them take.
    """

    pid: int
    size_bytes: int


def find_held(paths: Sequence[str], uids: Container[int], proc: str = "/proc") -> Held | None:
    """What lay in these directories, has no name left, and is still open; None: nothing.

    A process that was never the job's may have opened it, as its user: ``tail -f`` in a login. What
    is mapped and not open is not seen. 50 us a process of these users.

    Args:
        paths: of the directories.
        uids: processes of others are not looked at.
        proc: the file system.
    """
    sizes: dict[tuple[int, int], int] = {}
    holder = 0
    for pid in _processes(proc):
        with contextlib.suppress(OSError):
            if os.stat(f"{proc}/{pid}").st_uid in uids:
                found = dict(_deleted(f"{proc}/{pid}/fd", paths))
                holder = holder or (pid if found else 0)
                sizes |= found
    return Held(holder, sum(sizes.values())) if sizes else None


def _deleted(files: str, paths: Sequence[str]) -> Iterator[tuple[tuple[int, int], int]]:
    """Those of one process: device and inode, and what it takes."""
    for name in os.listdir(files):
        with contextlib.suppress(OSError):
            target = os.readlink(f"{files}/{name}")
            if target.endswith(_DELETED) and any(target.startswith(f"{p}/") for p in paths):
                found = os.stat(f"{files}/{name}")
                if found.st_nlink == 0:
                    yield (found.st_dev, found.st_ino), found.st_blocks * _BLOCK_BYTES


def find_lingering(paths: Sequence[str], proc: str = "/proc") -> int | None:
    """A process that works in one of these directories, or was told of them; None: there is none.

    Seen is who has it in its environment as it began (``/proc/PID/environ``), as its working
    directory or among its open files (man proc(5)), where those may be read.

    Args:
        paths: of the directories.
        proc: the file system.
    """
    return next((pid for pid in _processes(proc) if _knows(f"{proc}/{pid}", paths)), None)


def _processes(proc: str) -> list[int]:
    """All but our own, by number."""
    pids = sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    return [pid for pid in pids if pid != os.getpid()]


def _knows(process: str, paths: Sequence[str]) -> bool:
    with contextlib.suppress(OSError):
        with open(f"{process}/environ", "rb") as file:
            environment = file.read()
        if any(os.fsencode(path) in environment for path in paths):
            return True
    links = [f"{process}/cwd"]
    with contextlib.suppress(OSError):
        links += [f"{process}/fd/{name}" for name in os.listdir(f"{process}/fd")]
    for link in links:
        with contextlib.suppress(OSError):
            target = f"{os.readlink(link)}/"
            if any(target.startswith(f"{path}/") for path in paths):
                return True
    return False
