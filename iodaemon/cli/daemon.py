"""``iod daemon``, ``stop``, ``supervisor``, which systemd runs; and copies of the journal."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

from iodaemon.api.connection import UnixConnection
from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, Word, argument, option, verb
from iodaemon.cli.failure import ExitCode, UsageError, hopeless, nearest
from iodaemon.cli.selector import format_ids, job_words
from iodaemon.cli.session import SOCKET_NAME, Session, find_places
from iodaemon.errors import NoDaemon, NotPermitted, RequestError
from iodaemon.units import format_bytes

if TYPE_CHECKING:
    from iodaemon.api.model import JsonObject
    from iodaemon.config import Config
    from iodaemon.daemon.journal.restore import Restored

app = App()

LOG_LEVELS: Final = ("debug", "info", "warning", "error")

Backend = Annotated[
    Word, option("--backend", metavar="linux|simulated", text="What it runs jobs on [linux].")
]
Policy = Annotated[Word, option("--policy", metavar="POLICY|FILE", text="The policy in force.")]
StateDir = Annotated[
    Word, option("--state-dir", metavar="DIR", text="The journal and the jobs' directories.")
]
Socket = Annotated[Word, option("--socket", metavar="DIR/iod.sock", text="Where it listens.")]
ConfigFile = Annotated[Word, option("--config", metavar="FILE", text="The configuration file.")]
System = Annotated[
    bool,
    option("--system", text="Be the service for all users, with the supervisor of its own unit."),
]
LogLevel = Annotated[
    Word,
    option("--log-level", metavar="debug|info|warning|error", text="How much it tells [info]."),
]


@verb(app, "daemon")
def daemon(
    session: Session,
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
    """The directory of the sockets, from the path of the one that the daemon serves."""
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
def stop(session: Session) -> int:
    """Stop the daemon; its jobs run on.

    It thaws what it has suspended, and ends. The next 'iod daemon' takes the jobs over. A daemon
    that systemd keeps up is stopped by systemctl; the line to type is told.
    """
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
    """Ask it to end, and wait until it has."""
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
def supervisor(session: Session, config: ConfigFile = None, thaw: Thaw = OFF) -> int:
    """Start, hold and end all users' jobs, for the system's daemon.

    Runs as root, from iodaemon-supervisor.service. Jobs outlive it.
    """
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


KeptStateDir = Annotated[
    Word, option("--state-dir", metavar="DIR", text="Of which daemon [--api's, or as configured].")
]


@verb(app, "backup")
def backup(
    session: Session,
    file: Annotated[Word, argument("FILE")] = None,
    force: Annotated[bool, option("--force", text="Replace a FILE that is there.")] = OFF,
    state_dir: KeptStateDir = None,
    system: Annotated[bool, option("--system", text="That of the service for all users.")] = OFF,
) -> int:
    """Copy the journal to FILE, while the daemon runs or not.

    The copy is checked, and complete when it has its name. It holds all jobs, their history and
    their environments, so only you can read it. Only root can copy the journal of the service for
    all users. The configuration and the jobs' output are not in it.
    """
    if file is None:
        raise UsageError("no FILE given: 'iod backup --help' shows how")
    from pathlib import Path

    from iodaemon.daemon.journal.backup import back_up

    config = config_of(session, state_dir, is_system=system)
    copied = back_up(Path(config.state_dir), Path(os.path.abspath(file)), replace=force)
    print(
        f"copied {copied.jobs} jobs ({copied.unfinished} not ended) to {file}, "
        f"{format_bytes(copied.size_bytes)}"
    )
    where = config.file or "there is no file, all is as by default"
    output.say(f"not in it: the configuration ({where}), and the jobs' output")
    return 0


def config_of(session: Session, state_dir: str | None, *, is_system: bool) -> Config:
    """The configuration of the daemon whose journal is meant.

    Root means the service for all users where the state directory is that service's.
    """
    served: JsonObject | None = None
    if state_dir is None and session.api and not is_system:
        served = _served(session, session.api)
    if served is not None:
        state_dir = find_places(served)["state_dir"]
    overrides = {"state_dir": None if state_dir is None else os.path.abspath(state_dir)}
    config = session.load_config(overrides, is_system=is_system)
    if not is_system and os.geteuid() == 0 and _is_anothers(config.state_dir):
        config = session.load_config(overrides, is_system=True)
    if served is not None:
        import msgspec

        file = served.get("file")
        config = msgspec.structs.replace(config, file=file if isinstance(file, str) else None)
    return config


def _served(session: Session, socket: str) -> JsonObject | None:
    """The settings of the daemon on a socket; None: those that are configured have that socket."""
    if os.path.realpath(socket) == os.path.realpath(session.load_config({}).socket_path):
        return None
    try:
        return session.client().config()
    except NoDaemon as error:
        raise NoDaemon(f"{error}; or name the journal's directory with --state-dir") from error


def _is_anothers(folder: str) -> bool:
    try:
        return os.stat(folder).st_uid != 0
    except OSError:
        return False


_START: Final = {
    True: "systemctl start iodaemon.socket iodaemon",
    False: "start the daemon as before",
}


@verb(app, "restore")
def restore(
    session: Session,
    file: Annotated[Word, argument("FILE")] = None,
    state_dir: KeptStateDir = None,
    system: Annotated[bool, option("--system", text="That of the service for all users.")] = OFF,
) -> int:
    """Put the copy of 'iod backup' back; the daemon must not run.

    The replaced journal stays beside it, under a dated name. Jobs that run now are taken over from
    it, and what it knows of jobs that had not ended in the copy: none runs twice. Ids are not used
    again.
    """
    if file is None:
        raise UsageError("no FILE given: 'iod restore --help' shows how")
    from pathlib import Path

    from iodaemon.daemon.journal import restore as restoring

    config = config_of(session, state_dir, is_system=system)
    done = restoring.restore(config, Path(os.path.abspath(file)))
    made = "" if done.copied_s is None else f" of {output.local_time(done.copied_s)}"
    print(
        f"restored {done.jobs} jobs ({done.unfinished} not ended) from {file}{made}; next: "
        f"{_START[config.is_system]}"
    )
    for line in _lines(done):
        output.say(line)
    return 0


def _lines(done: Restored) -> Iterator[str]:
    """What else is to be known."""
    if done.replaced is not None:
        count = done.merged.left
        left = f"; {count} later job{'s are' if count > 1 else ' is'} only in it" if count else ""
        yield f"the replaced journal is {done.replaced}{left}"
    for words, ids in done.merged.told:
        yield f"{words}: {format_ids(ids)}"
    if done.unreadable:
        yield f"nothing was taken over from the replaced journal: {done.unreadable}"
    for key, pid in done.strangers:
        yield (
            f"attempt {key} runs (pid {pid}) and no journal knows it any more: it runs on, "
            "unregulated and unseen; end it by hand if it is not wanted"
        )
    if done.is_drained:
        yield "the node is drained, as it was then: 'iod drain --off' lets jobs start"
