"""``iod daemon``: runs the daemon in the foreground."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

from iodaemon.cli.command import App, Context, verb
from iodaemon.cli.failure import UsageError, hopeless, nearest
from iodaemon.cli.option import OFF, Word, option
from iodaemon.cli.session import SOCKET_NAME, Session

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
