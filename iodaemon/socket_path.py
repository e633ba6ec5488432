"""Where a daemon has its socket: the usual place, and what one that runs has noted of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

LONGEST_BYTES: Final = 107
"""sun_path holds 108 bytes with the closing NUL (unix(7))."""
STATE_LOCK: Final = "daemon.lock"
"""In the state directory; the daemon that holds it has written its pid and its socket there."""
_NOTE_BYTES: Final = 4096


def why_too_long(path: str) -> str:
    """Why no socket can have this path; empty: one can."""
    size_bytes = len(os.fsencode(path))
    if size_bytes <= LONGEST_BYTES:
        return ""
    return f"socket path {path} has {size_bytes} bytes, the kernel takes {LONGEST_BYTES}"


def usual_runtime_dir(environ: Mapping[str, str], uid: int) -> str:
    """Where a user's daemon has its socket unless the configuration says otherwise.

    Without ``$XDG_RUNTIME_DIR`` (cron), and with that of another user (su), it is below /tmp, where
    anybody may have made it before: who creates or trusts it must check that it is the user's own,
    with mode 0700.
    """
    given = environ.get("XDG_RUNTIME_DIR", "").rstrip("/")
    if given.startswith("/") and not _is_anothers(given, uid):
        return f"{given}/iodaemon"
    return f"/tmp/iodaemon-{uid}"  # noqa: S108 - see above


def usual_state_dir(environ: Mapping[str, str]) -> str | None:
    """Likewise, of the journal; None where there is no home directory."""
    given, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if given.startswith("/"):
        return f"{given.rstrip('/')}/iodaemon"
    return f"{home.rstrip('/')}/.local/state/iodaemon" if home else None


def _is_anothers(path: str, uid: int) -> bool:
    try:
        return os.stat(path).st_uid != uid
    except OSError:  # it is gone: it may come back
        return False


class Running(NamedTuple):
    """A daemon that runs, and where it has its socket."""

    state_dir: str
    pid: int
    socket: str

    @property
    def why_lost(self) -> str:
        """That somebody removed the socket, and what to do; empty: it is there."""
        if os.path.exists(self.socket):
            return ""
        return (
            f"the daemon on {self.state_dir} (pid {self.pid}) lost its socket {self.socket}, and "
            "makes it again as soon as that directory can be made; log in again ('loginctl "
            f"enable-linger' keeps it), or 'kill {self.pid}' and start another: jobs run on"
        )


def find_holder(path: str) -> int | None:
    """The process that has an exclusive lock on this file (/proc/locks); None: no process.

    Each line is ``1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END``; a process that waits
    for a lock has ``->`` behind the number. A filesystem may give its device another number there
    than stat(2) does (btrfs), so that is not compared.

    Raises:
        OSError: the file cannot be looked at.
    """
    inode = os.stat(path).st_ino
    with open("/proc/locks") as file:
        for line in file:
            words = line.split()
            if len(words) < 6 or words[1] == "->" or words[3] != "WRITE":
                continue
            pid = int(words[4])
            if words[5].rpartition(":")[2] == str(inode) and pid > 0:
                return pid
    return None


def find_running(state_dir: str) -> Running | None:
    """The daemon that runs on this state directory; None: none does, or it notes no socket.

    Raises:
        OSError: its lock may not be looked at.
    """
    path = os.path.join(state_dir, STATE_LOCK)
    try:
        pid = find_holder(path)
        with open(path, "rb") as file:
            note = os.fsdecode(file.read(_NOTE_BYTES)).split("\n")
    except FileNotFoundError:
        return None
    return Running(state_dir, pid, note[1]) if pid is not None and len(note) > 2 else None
