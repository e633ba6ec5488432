"""Learning from a pidfd how a process ended that is not our child."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final

from iodaemon.core.job import Exit

_INFO_BYTES: Final = 64  # struct pidfd_info, first version (include/uapi/linux/pidfd.h)
_PIDFD_GET_INFO: Final = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT: Final = 1 << 3
_EXIT_OFFSET: Final = 60


def find_exit(pidfd: int) -> Exit:
    """How the process ended; an empty Exit where the kernel cannot tell (before Linux 6.15).

    PIDFD_GET_INFO with PIDFD_INFO_EXIT answers after the process was reaped by its real parent.
    """
    info = bytearray(struct.pack("Q", _PIDFD_INFO_EXIT).ljust(_INFO_BYTES, b"\0"))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return Exit()
    (mask,) = struct.unpack_from("Q", info)
    if not mask & _PIDFD_INFO_EXIT:
        return Exit()
    (status,) = struct.unpack_from("i", info, _EXIT_OFFSET)
    if os.WIFSIGNALED(status):
        return Exit(signal=os.WTERMSIG(status))
    return Exit(code=os.WEXITSTATUS(status))
