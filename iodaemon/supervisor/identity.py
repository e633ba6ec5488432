"""Who may speak to the supervisor, and whose jobs it runs.

The daemon is one uid, by SO_PEERCRED. What it says of a job's user is a number; names and groups
are the system's, looked up in the job's own process before ``execve`` (``launcher``): behind
nsswitch.conf(5) is a network, so that a lookup may take for ever.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")


def no_account(*uids: int | str) -> str:
    """That these numbers, one at least, are no user's."""
    have = "has" if len(uids) == 1 else "have"
    return f"uid {', '.join(map(str, uids))} {have} no account on this machine (any more)"


def peer_of(line: socket.socket) -> tuple[int, int]:
    """Pid and uid of the process at the other end when it connected."""
    data = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def why_not_run(uid: int | None, min_uid: int | None) -> str:
    """Why no job of this uid is run; empty: it is, if it has an account.

    Args:
        uid: of the launch; None: the supervisor's own.
        min_uid: no job runs as a uid below; None: the supervisor is a user's own, and runs jobs
            as that user alone.
    """
    if min_uid is None:
        return "" if uid in (None, os.geteuid()) else f"jobs of uid {uid} are not run here"
    if uid is None or uid < min_uid:
        return f"jobs of uid {uid} are not run here; min_uid is {min_uid}"
    return ""
