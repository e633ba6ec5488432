"""``iod daemon``, ``iod stop``, and ``iod supervisor``, which systemd runs."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from typing import TYPE_CHECKING, Annotated, Final

from iodaemon.api.connection import UnixConnection
from iodaemon.cli.command import OFF, App, Context, Word, option, verb
from iodaemon.cli.failure import ExitCode, UsageError, hopeless, nearest
from iodaemon.cli.selector import job_words
from iodaemon.cli.session import SOCKET_NAME, Session
from iodaemon.errors import NotPermitted, RequestError

if TYPE_CHECKING:
    from iodaemon.config import Config

app = App()

LOG_LEVELS: Final = ("debug", "info", "warning", "error")


Backend = Annotated[
    Word, option("--backend", metavar="linux|simulated", text="What it runs jobs on [linux].")
]
Policy = Annotated[Word, option("--policy", metavar="POLICY|FILE", text="The policy in force.")]
StateDir = Annotated[
    Word, option("--state-dir", metavar="DIR", text="The journal and the jobs' directories.")
]
Socket = Annotated[Word, option("--socket", metavar=f"DIR/{SOCKET_NAME}", text="Where it listens.")]
System = Annotated[
    bool,
    option("--system", text="Be the service for all users, with the supervisor of its own unit."),
]
ConfigFile = Annotated[Word, option("--config", metavar="FILE", text="The configuration file.")]
LogLevel = Annotated[
    Word, option("--log-level", metavar="|".join(LOG_LEVELS), text="How much it tells [info].")
]


@verb(app, "daemon")
def daemon(
    ctx: Context,
    backend: Backend = None,
    policy: Policy = None,
    state_dir: StateDir = None,
    socket: Socket = None,
    config: ConfigFile = None,
    system: System = OFF,
    log_level: LogLevel = None,
) -> int:
    """Run the daemon in the foreground.

    It ends by SIGTERM or Ctrl-C; its jobs outlive it. Options stand above the configuration file,
    also when that is read again ('iod config reload', or SIGHUP).
    """
    session: Session = ctx.obj
    session.config = config or session.config
    if log_level is not None:
        _check_log_level(log_level)
    overrides = {
        "backend": backend,
        "policy": policy,
        "state_dir": None if state_dir is None else os.path.abspath(state_dir),
        "runtime_dir": _runtime_dir(socket or session.api),
        "log_level": log_level,
    }

    def read() -> Config:
        return session.load_config(overrides, is_system=system)

    with hopeless():
        loaded = read()
    from iodaemon.daemon.main import run

    return run(loaded, read)


def _runtime_dir(socket: str | None) -> str | None:
    """The directory of the sockets, from the path of the one that the daemon serves.

    Raises:
        UsageError: its name is not the one that clients look for.
    """
    if socket is None:
        return None
    folder, name = os.path.split(os.path.abspath(socket))
    if name != SOCKET_NAME:
        raise UsageError(
            f"--socket: the socket is called {SOCKET_NAME}: write {socket}/{SOCKET_NAME}"
        )
    return folder


def _check_log_level(level: str) -> None:
    if level not in LOG_LEVELS:
        hint = f"one of {', '.join(LOG_LEVELS)}"
        raise UsageError(f"--log-level: no level {level!r}{nearest(level, LOG_LEVELS, hint)}")


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


Thaw = Annotated[
    bool, option("--thaw", text="Let all suspended jobs run on, whoever suspended them, and end.")
]


@verb(app, "supervisor")
def supervisor(ctx: Context, config: ConfigFile = None, thaw: Thaw = OFF) -> int:
    """Start, hold and end all users' jobs, for the system's daemon.

    Runs as root, from iodaemon-supervisor.service. Jobs outlive it.
    """
    session: Session = ctx.obj
    session.config = config or session.config
    if thaw and os.environ.get("EXIT_STATUS") == str(ExitCode.HOPELESS.value):
        return 0  # of a start that was refused (systemd.exec(5)): it held no job, another may
    from iodaemon.node.root_side import become_supervisor, thaw_all

    with hopeless():
        loaded = session.load_config({}, is_system=True)
        if not thaw:
            become_supervisor(loaded)
    if count := thaw_all(loaded):
        print(f"{count} jobs may run")
    return 0
