"""``iod stop``: ends the daemon; its jobs run on."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from typing import Final

from iodaemon.api.connection import UnixConnection
from iodaemon.cli.command import App, Context, verb
from iodaemon.cli.selector import job_words
from iodaemon.cli.session import Session
from iodaemon.errors import NotPermitted, RequestError

app = App()

_OWN: Final = "iod stop"
_ENDS_WITHIN_S: Final = 60.0
"""It thaws what is suspended and closes the journal: seconds, on a busy disk more."""
_HOLDS_CPUS: Final = ("STARTING", "RUNNING", "SUSPENDED_IO", "SUSPENDED_USER", "STOPPING")
_CONNECT_WITHIN_S: Final = 5.0


@verb(app, "stop")
def stop(ctx: Context) -> int:
    """Stop the daemon; its jobs run on.

    It thaws what it has suspended, and ends. The next 'iod daemon' takes the jobs over. A daemon
    that systemd keeps up is stopped by systemctl; the line to type is told.
    """
    session: Session = ctx.obj
    client = session.client()
    command = str(client.node().get("stopped_by", _OWN))
    if command != _OWN:
        raise RequestError(f"systemd keeps this daemon up: '{command}' stops it, jobs run on")
    live = [job["id"] for job in client.jobs(states=_HOLDS_CPUS)["jobs"]]
    pid = _listener(session.socket_path())
    _end(pid)
    jobs = f"; {job_words(live)} run{'s' if len(live) == 1 else ''} on" if live else ""
    print(f"the daemon (pid {pid}) has ended{jobs}")
    return 0


def _listener(socket_path: str) -> int:
    """The process that listens on the socket (SO_PEERCRED, unix(7))."""
    connection = UnixConnection(socket_path, _CONNECT_WITHIN_S)
    connection.connect()
    try:
        assert connection.sock is not None
        size = struct.calcsize("3i")
        pid, _, _ = struct.unpack(
            "3i", connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        )
    finally:
        connection.close()
    return int(pid)


def _end(pid: int) -> None:
    """Ask it to end, and wait until it has.

    Raises:
        NotPermitted: it is another user's.
        RequestError: it does not end.
    """
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not select.select([process], [], [], _ENDS_WITHIN_S)[0]:
            raise RequestError(
                f"the daemon (pid {pid}) was asked to end {_ENDS_WITHIN_S:.0f} s ago and has not: "
                "look at its log"
            )
    except PermissionError as error:
        raise NotPermitted(
            f"the daemon (pid {pid}) is another user's: ask its owner to run 'iod stop'"
        ) from error
    finally:
        os.close(process)
