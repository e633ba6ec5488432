"""``iod backup`` and ``iod restore``: a copy of the journal, and back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, Context, Word, argument, option, verb
from iodaemon.cli.failure import UsageError
from iodaemon.cli.selector import format_ids
from iodaemon.cli.session import Session, find_places
from iodaemon.errors import NoDaemon

if TYPE_CHECKING:
    from iodaemon.api.model import JsonObject
    from iodaemon.config import Config
    from iodaemon.daemon.journal.restore import Restored

app = App()

StateDir = Annotated[
    Word, option("--state-dir", metavar="DIR", text="Of which daemon [--api's, or as configured].")
]
System = Annotated[bool, option("--system", text="That of the service for all users.")]
Force = Annotated[bool, option("--force", text="Replace a FILE that is there.")]


@verb(app, "backup")
def backup(
    ctx: Context,
    file: Annotated[Word, argument("FILE")] = None,
    force: Force = OFF,
    state_dir: StateDir = None,
    system: System = OFF,
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
    from iodaemon.units import format_bytes

    config = config_of(ctx.obj, state_dir, is_system=system)
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

    Raises:
        NoDaemon: a socket was given that is not where this configuration has it, and nobody there
            can say where the journal is.
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
    ctx: Context,
    file: Annotated[Word, argument("FILE")] = None,
    state_dir: StateDir = None,
    system: System = OFF,
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

    config = config_of(ctx.obj, state_dir, is_system=system)
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
