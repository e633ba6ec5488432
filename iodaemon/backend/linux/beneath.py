"""Going down a tree that others may change at any moment, without ever leaving it.

All that lies in a job's directory is its user's: names may become links, directories be moved or
mounted over, between any two steps. So each step is one name below an open directory, and the
kernel refuses what leads elsewhere. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

from iodaemon.backend.linux.process import system_call

_SYS_OPENAT2: Final = 437  # the same on every architecture, Linux 5.6
_HOW: Final = struct.Struct("QQQ")  # struct open_how: flags, mode, resolve
_RESOLVE: Final = 0x01 | 0x02 | 0x04 | 0x08
"""RESOLVE_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS and _BENEATH of include/uapi/linux/openat2.h."""
_NODE: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_DETACH: Final = 0x2 | 0x8
"""MNT_DETACH and UMOUNT_NOFOLLOW of umount(2)."""
_NOT_THERE: Final = frozenset({errno.ENOSYS, errno.EPERM})
"""An older kernel, or a filter (seccomp) that does not know the call."""


def open_directory(parent: int, name: str) -> int:
    """The directory of this name itself: no link, nothing that is mounted there.

    A mount of the same file system is told apart as well, and a FUSE that never answers is not
    asked (openat2(2), RESOLVE_NO_XDEV).

    Raises:
        OSError: EXDEV: something is mounted there; ELOOP, ENOTDIR: it is no directory.
    """
    return _open(parent, name, _FLAGS)


def open_node(parent: int, name: str) -> int:
    """Likewise whatever has this name, itself, for ``fstat``.

    Raises:
        OSError: EXDEV: something is mounted there.
    """
    return _open(parent, name, _NODE)


def _open(parent: int, name: str, flags: int) -> int:
    if "/" in name or name in ("", ".", ".."):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)
    how = _HOW.pack(flags, 0, _RESOLVE)
    fd, error = system_call(_SYS_OPENAT2, parent, os.fsencode(name), how, len(how))
    if fd >= 0:
        return fd
    if error not in _NOT_THERE:
        raise OSError(error, os.strerror(error), name)
    fd = os.open(name, flags, dir_fd=parent)
    if mount_of(fd) != mount_of(parent):
        os.close(fd)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    return fd


def mount_of(fd: int) -> str:
    """The number of the mount that a descriptor is on (/proc/PID/fdinfo, Linux 3.15)."""
    with open(f"/proc/self/fdinfo/{fd}") as file:
        return next(line.split()[1] for line in file if line.startswith("mnt_id:"))


def unmount_fuse(parent: int, name: str) -> bool:
    """Unmount what a user has mounted there by FUSE; True where that was done.

    Nobody but the caller may change names in ``parent``. It is asked for nothing, and who uses it
    goes on (MNT_DETACH).
    """
    try:
        fd = os.open(name, _NODE, dir_fd=parent)
        try:
            mount = mount_of(fd)
        finally:
            os.close(fd)
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            line = next(line for line in file if line.split(None, 1)[0] == mount)
    except (OSError, StopIteration):
        return False
    kind, _, options = line.partition(" - ")[2].split()[:3]
    if kind.split(".")[0] != "fuse" or "user_id=0," in f"{options},":
        return False
    path = f"/proc/self/fd/{parent}/".encode() + os.fsencode(name)
    return _LIBC.umount2(path, _DETACH) == 0  # type: ignore[no-any-return]  # ctypes has no types
