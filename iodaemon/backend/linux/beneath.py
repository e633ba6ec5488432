"""Open a name below an open directory without ever leaving that directory.

What lies in a job's directory belongs to its user: between any two steps a name may become a link,
a directory may be moved or mounted over. So each step is one name, and the kernel refuses what
leads elsewhere (openat2(2), Linux 5.6). Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

from iodaemon.backend.linux.process import system_call

_SYS_OPENAT2: Final = 437  # the same on every architecture
_HOW: Final = struct.Struct("QQQ")  # struct open_how: flags, mode, resolve
_RESOLVE: Final = 0x01 | 0x02 | 0x04 | 0x08
"""RESOLVE_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS and _BENEATH of include/uapi/linux/openat2.h."""
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_DETACH: Final = 0x2 | 0x8
"""MNT_DETACH and UMOUNT_NOFOLLOW of umount(2)."""


def open_directory(parent: int, name: str, flags: int = _FLAGS) -> int:
    """Open the directory of this name; never a link, nor what is mounted there.

    A file system mounted there is not asked for anything (RESOLVE_NO_XDEV).

    Raises:
        OSError: EXDEV: something is mounted there; ELOOP, ENOTDIR: it is not a directory.
    """
    if "/" in name or name in ("", ".", ".."):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)
    return open_below(parent, name, flags)


def open_below(root: int, path: str, flags: int = _FLAGS) -> int:
    """As ``open_directory``, of a path in which no part may be a link or a mount."""
    how = _HOW.pack(flags, 0, _RESOLVE)
    fd, error = system_call(_SYS_OPENAT2, root, os.fsencode(path), how, len(how))
    if fd < 0:
        raise OSError(error, os.strerror(error), path)
    return fd


def unmount_fuse(parent: int, name: str) -> bool:
    """Unmount what a user mounted there by FUSE; True if that was done.

    Only the caller may change names in ``parent``. The FUSE server is not asked for anything, and
    processes that use the mount go on (MNT_DETACH).
    """
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            with open(f"/proc/self/fdinfo/{fd}") as file:
                mount = next(line.split()[1] for line in file if line.startswith("mnt_id:"))
        finally:
            os.close(fd)
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            fields = next(line for line in file if line.split(None, 1)[0] == mount).split(" - ")
    except (OSError, StopIteration):
        return False
    kind, _, options = fields[1].split()[:3]
    if kind.split(".")[0] != "fuse" or "user_id=0," in f"{options},":
        return False
    path = f"/proc/self/fd/{parent}/".encode() + os.fsencode(name)
    return _LIBC.umount2(path, _DETACH) == 0  # type: ignore[no-any-return]  # ctypes has no types
