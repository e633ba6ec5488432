"""Project quotas: a directory's own limit of space, kept by the kernel where its disk has them.

ext4 made with ``-O project,quota -E quotatype=prjquota`` and mounted with ``prjquota``; xfs mounted
with ``prjquota`` (quotactl(2); Documentation/filesystems/ext4, "Project quotas"; quotactl_fd: Linux
5.14). They hold back a mistake, not malice: who owns a file may give it to another project (tried
on Linux 6.1), so whoever relies on the limit measures as well.

Standard library only.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from typing import Final

from iodaemon.backend.linux.process import system_call

_SYS_QUOTACTL_FD: Final = 443  # the same on every architecture
_PROJECT: Final = 2  # PRJQUOTA of include/uapi/linux/quota.h
_GET: Final = 0x800007
_SET: Final = 0x800008
_STATE: Final = ord("X") << 8 | 8  # Q_XGETQSTATV of include/uapi/linux/dqblk_xfs.h
_ENFORCED: Final = 1 << 5  # FS_QUOTA_PDQ_ENFD
_STATE_FORMAT: Final = struct.Struct("bBHI")
_STATE_BYTES: Final = 256
_LIMITS: Final = struct.Struct("QQQQQQQQI4x")  # struct if_dqblk
_BLOCK_LIMITS: Final = 1  # QIF_BLIMITS
_BLOCK_BYTES: Final = 1024  # QIF_DQBLKSIZE
_GET_ATTRIBUTES: Final = 0x801C581F  # FS_IOC_FSGETXATTR
_SET_ATTRIBUTES: Final = 0x401C5820
_ATTRIBUTES: Final = struct.Struct("IIIII8x")  # struct fsxattr: xflags, extsize, nextents, projid
_INHERIT: Final = 0x200  # FS_XFLAG_PROJINHERIT
_OURS: Final = 1 << 30
"""Numbers from here on are ours, each once: administrators' are in /etc/projid, and small."""


def new_project() -> int:
    """A number that no other directory has, as far as chance goes: one of 2^30."""
    return _OURS | int.from_bytes(os.urandom(4), "little") >> 2


def limit(directory: int, project: int, size_bytes: int) -> bool:
    """Have the directory, open and empty, and all that comes into it hold at most so much.

    Returns:
        False where its disk has no project quotas, or does not enforce them; nothing is changed.
    """
    try:
        if not is_enforced(directory) or _used_bytes(directory, project):
            return False
        _set_limit(directory, project, -(-size_bytes // _BLOCK_BYTES))
        _adopt(directory, project)
    except OSError:
        return False
    return True


def unlimit(directory: int, project: int) -> None:
    """Forget the limit; harmless where there is none."""
    try:
        if is_enforced(directory):
            _set_limit(directory, project, 0)
    except OSError:
        return


def disown(directory: int) -> None:
    """Let a directory be of no project, so that all can be moved into it; harmless otherwise."""
    try:
        _adopt(directory, 0)
    except OSError:
        return


def used_bytes(directory: int, project: int) -> int | None:
    """What the kernel counts for it, deleted files that are still open as well; None: unknown.

    Args:
        directory: any on the disk.
        project: its number.
    """
    try:
        return _used_bytes(directory, project) if is_enforced(directory) else None
    except OSError:
        return None


def is_enforced(directory: int) -> bool:
    """Whether the disk of an open directory keeps project quotas.

    Raises:
        OSError: it has none, or the kernel does not say.
    """
    data = bytearray(_STATE_BYTES)
    _STATE_FORMAT.pack_into(data, 0, 1, 0, 0, 0)  # FS_QSTATV_VERSION1
    _ask(directory, _STATE, 0, data)
    flags: int = _STATE_FORMAT.unpack_from(data)[2]
    return bool(flags & _ENFORCED)


def _used_bytes(directory: int, project: int) -> int:
    data = bytearray(_LIMITS.size)
    try:
        _ask(directory, _GET, project, data)
    except FileNotFoundError:  # xfs, of a project that it has never heard of
        return 0
    used: int = _LIMITS.unpack(data)[2]
    return used


def _set_limit(directory: int, project: int, blocks: int) -> None:
    data = bytearray(_LIMITS.pack(blocks, 0, 0, 0, 0, 0, 0, 0, _BLOCK_LIMITS))
    _ask(directory, _SET, project, data)


def _ask(directory: int, command: int, project: int, data: bytearray) -> None:
    buffer = ctypes.create_string_buffer(bytes(data), len(data))
    command = command << 8 | _PROJECT
    answer, error = system_call(_SYS_QUOTACTL_FD, directory, command, project, buffer)
    if answer != 0:
        raise OSError(error, os.strerror(error))
    data[:] = buffer.raw


def _adopt(directory: int, project: int) -> None:
    data = bytearray(_ATTRIBUTES.size)
    fcntl.ioctl(directory, _GET_ATTRIBUTES, data)
    flags, extent, extents, _, cow = _ATTRIBUTES.unpack(data)
    flags = flags | _INHERIT if project else flags & ~_INHERIT
    _ATTRIBUTES.pack_into(data, 0, flags, extent, extents, project, cow)
    fcntl.ioctl(directory, _SET_ATTRIBUTES, data)
