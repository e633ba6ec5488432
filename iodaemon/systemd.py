"""What systemd is told and what it hands over.

See sd_notify(3), sd_watchdog_enabled(3), sd_listen_fds(3), sd-daemon(3). Each is a line or two
over a socket or the environment; standard library only. Without systemd all of it does nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final, TextIO

_FIRST_FD: Final = 3
"""SD_LISTEN_FDS_START."""
_NOTIFY_S: Final = 0.2
"""For which systemd may leave its queue full; a message that finds no room then is dropped."""


def is_unit() -> bool:
    """True where systemd started this very process as a unit, and would start it again.

    What is started below a unit inherits the variable and has another pid (systemd.exec(5)).
    """
    return os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())


def notify(*words: str) -> None:
    """Tell systemd, for example ``READY=1`` or ``STATUS=...``; nobody may be listening."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.settimeout(_NOTIFY_S)
        if _connect(line):
            line.sendall("\n".join(words).encode())


def _connect(line: socket.socket) -> bool:
    """Connect it to systemd's socket; False when the environment names none."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    line.connect("\0" + address[1:] if address.startswith("@") else address)
    return True


def find_watchdog_s() -> float | None:
    """How often at least ``WATCHDOG=1`` is expected, s; None: not at all."""
    pid, limit = os.environ.get("WATCHDOG_PID", ""), os.environ.get("WATCHDOG_USEC", "")
    is_ours = pid in ("", str(os.getpid()))
    return int(limit) / 1e6 if is_ours and limit.isdigit() and int(limit) > 0 else None


def take_socket() -> socket.socket | None:
    """The listening socket that was handed over; None: there is none. Takes it once only."""
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or count != "1":
        return None
    os.set_inheritable(_FIRST_FD, False)  # noqa: FBT003 - os has it so
    return socket.socket(fileno=_FIRST_FD)


def is_journal_stream(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """True where this very stream goes to journald, by device and inode (systemd.exec(5)).

    Whoever redirects it, or runs a daemon below a service, inherits the variable all the same.
    """
    device, colon, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    if not (colon and device.isdigit() and inode.isdigit()):
        return False
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # no file at all
        return False
    return (status.st_dev, status.st_ino) == (int(device), int(inode))
