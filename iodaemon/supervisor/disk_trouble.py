"""What is wrong with the directory of a tier's disk: found here, and told in one sentence by all.

The supervisor's helper meets it as an error where it makes a job's directory; the daemon,
``iod doctor`` and ``iod config check`` see it when they look. Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

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
    """Which disk it is, what is wrong with it, and the cure behind ``; ``.

    Args:
        disk: its directory.
        trouble: of this module, or the like.
        tier: the disk's; empty: not known.
    """
    which = f"disk {os.path.normpath(disk)} {trouble}"
    return f"tier {tier}: {which}" if tier else which


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


def of_use(disk: str, found: os.stat_result, sizes: os.statvfs_result, owner: int) -> str:
    """Why nobody's directory may or can be made on a disk that works; empty: it may and can."""
    return of_owner(disk, found, owner) or of_right(disk, owner) or of_room(sizes)


def of_room(sizes: os.statvfs_result) -> str:
    """What users lack there; empty: nothing.

    Blocks that are for root alone do not count; ext4 has some even root cannot have.
    """
    if sizes.f_bavail == 0:
        return FULL
    return NO_INODES if sizes.f_files > 0 and sizes.f_ffree == 0 else ""


def of_owner(disk: str, found: os.stat_result, owner: int) -> str:
    """Whether others could lay something in the way of what is made there; empty: they could not.

    In a sticky directory, as ``/tmp`` is, others cannot move away what one has there.

    Args:
        disk: its directory.
        found: of it.
        owner: whose it may be; it may be root's as well.
    """
    is_safe = not found.st_mode & OPEN or found.st_mode & stat.S_ISVTX
    if found.st_uid in (0, owner) and is_safe:
        return ""
    return not_ours(disk, found, owner)


def of_right(disk: str, owner: int) -> str:
    """That this process may not make the directories there; empty: it may, or root makes them.

    Args:
        disk: its directory.
        owner: whose the directories are to be.
    """
    if owner == 0 or os.access(disk, os.W_OK | os.X_OK, effective_ids=True):
        return ""
    return f"may not be written to by uid {owner}; name a directory of your own"


def not_ours(path: str, found: os.stat_result, owner: int) -> str:
    """That others may change a directory, and how it becomes this owner's alone."""
    whose = f"belongs to uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
    return f"{whose}, so that others may change it; 'chown {owner} {path}; chmod go-w {path}'"
