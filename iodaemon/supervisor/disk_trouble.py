"""What is wrong with the directory of a tier's disk: found here, and told in one sentence by all.

The supervisor's helper meets it as an error where it makes a job's directory, and looks for it on
behalf of the daemon, which a sandbox may hide places from; ``iod doctor`` and ``iod config check``
look themselves. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Any, Final

MISSING: Final = "does not exist; make it, or mount what belongs there"
NO_DIRECTORY: Final = "is no directory; name one"
READ_ONLY: Final = "is read-only; mount it writable"
FULL: Final = "is full to the last block; remove files there"
NO_INODES: Final = "has no inode left; remove files there, or make its file system with more inodes"
REPLACED: Final = (
    "is another file system than when the daemon was started; mount what belongs there, or restart "
    "the daemon if that is meant"
)
SILENT: Final = "does not answer; see the kernel's log, then mend or replace it"
_BROKEN: Final = frozenset(
    {errno.EIO, errno.EUCLEAN, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ESHUTDOWN}
)
"""ext4 turns read-only after one."""
OPEN: Final = 0o022
"""Others may change what is in it."""


def sentence(disk: str, trouble: str, tier: str = "") -> str:
    """Which disk it is, what is wrong with it, and the cure behind ``; ``."""
    which = f"disk {os.path.normpath(disk)} {trouble}"
    return f"tier {tier}: {which}" if tier else which


def look(disk: str, *, is_shared: bool) -> dict[str, Any]:
    """What is found at its path.

    Args:
        disk: its directory, absolute.
        is_shared: jobs of all users are to use it, whose directories root makes; else this one's.

    Returns:
        ``problem``, why it cannot be used; where that is empty as well ``obstacle`` and ``lack``
        (likewise, where the daemon starts nevertheless), ``filesystem``, ``total_bytes``,
        ``free_bytes`` (of users) and ``is_on_root``, as in ``core.storage.DiskFacts``.
    """
    try:
        found, sizes, real = os.stat(disk), os.statvfs(disk), os.path.realpath(disk)
    except OSError as error:
        return {"problem": of_way(error)}
    if not stat.S_ISDIR(found.st_mode):
        return {"problem": NO_DIRECTORY}
    if real != os.path.normpath(disk):
        return {"problem": f"leads over a symbolic link; write {real}"}
    if sizes.f_flag & os.ST_RDONLY:
        return {"problem": READ_ONLY}
    owner = 0 if is_shared else os.geteuid()
    obstacle = of_owner(real, found, owner) or of_right(real, owner)
    if is_shared and not obstacle:
        obstacle = _find_fence(Path(real))
    return {
        "problem": "",
        "obstacle": obstacle,
        "lack": of_room(sizes),
        "filesystem": str(found.st_dev),
        "total_bytes": (sizes.f_blocks - sizes.f_bfree + sizes.f_bavail) * sizes.f_frsize,
        "free_bytes": sizes.f_bavail * sizes.f_frsize,
        "is_on_root": found.st_dev == os.stat("/").st_dev,
    }


def _find_fence(path: Path) -> str:
    """Where users come no further on the way to it; empty: they come to it."""
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            if not place.stat().st_mode & stat.S_IXOTH:
                return f"is closed to users, who may not enter {place}; 'chmod o+x {place}'"
    return ""


def of_error(error: OSError) -> str:
    """What a disk has on which this error came of an operation; empty: it is not the disk's fault.

    Of a disk without room it is not known here whether it lacks blocks or inodes: ``of_room``.
    """
    if error.errno in _BROKEN:
        return f"does not work ({error.strerror}); see the kernel's log, then mend or replace it"
    return {errno.EROFS: READ_ONLY, errno.ENOSPC: FULL}.get(error.errno or 0, "")


def of_way(error: OSError) -> str:
    """Why it cannot be come to."""
    told = {errno.ENOENT: MISSING, errno.ENOTDIR: NO_DIRECTORY}.get(error.errno or 0, "")
    return told or of_error(error) or f"cannot be looked at ({error.strerror}); see that it can"


def of_room(sizes: os.statvfs_result) -> str:
    """What users lack there; empty: nothing.

    Blocks that are for root alone do not count; ext4 has some even root cannot have.
    """
    if sizes.f_bavail == 0:
        return FULL
    return NO_INODES if sizes.f_files > 0 and sizes.f_ffree == 0 else ""


def of_owner(disk: str, found: os.stat_result, owner: int) -> str:
    """That others could lay something in the way of what is made there; empty: they could not.

    It may be this owner's or root's. In a sticky directory, as ``/tmp`` is, others cannot move away
    what one has there.
    """
    is_safe = not found.st_mode & OPEN or found.st_mode & stat.S_ISVTX
    if found.st_uid in (0, owner) and is_safe:
        return ""
    return not_ours(disk, found, owner)


def of_right(disk: str, owner: int) -> str:
    """That this owner may not make directories there; empty: it may."""
    if owner == 0 or os.access(disk, os.W_OK | os.X_OK, effective_ids=True):
        return ""
    return f"may not be written to by uid {owner}; name a directory of your own"


def not_ours(path: str, found: os.stat_result, owner: int) -> str:
    """That others may change a directory, and how it becomes this owner's alone."""
    whose = f"belongs to uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
    return f"{whose}, so that others may change it; 'chown {owner} {path}; chmod go-w {path}'"
