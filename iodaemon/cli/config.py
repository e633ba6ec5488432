"""``iod config``: the configuration in force, one to begin with, and reading it again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

from iodaemon.api.model import JsonObject
from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, AsJson, Context, Word, argument, option, verb
from iodaemon.cli.failure import ExitCode
from iodaemon.cli.output import Column
from iodaemon.cli.session import Session, load_config_of_daemon
from iodaemon.errors import ConfigError, IodaemonError, RequestError
from iodaemon.text import printable

app = App()
configs = App("Configuration: show, check, init, reload.")
app.verbs["config"] = configs

_ANSWER_WITHIN_S: Final = 1.0
"""A daemon that is silent for longer is left out of the check."""

Running = Annotated[bool, option("--running", text="Ask the daemon for what it runs with.")]
Force = Annotated[bool, option("--force", text="Replace a FILE that is there.")]


@verb(configs, "show")
def show_config(ctx: Context, running: Running = OFF, as_json: AsJson = OFF) -> int:
    """Show every setting, its value, and where that comes from."""
    session: Session = ctx.obj
    answer = session.client().config() if running else _configured(session)
    output.show(answer, lambda: _lines(answer), as_json=as_json)
    return 0


@verb(configs, "check")
def check_config(ctx: Context, as_json: AsJson = OFF) -> int:
    """Check what a daemon that is started now would read.

    It checks what that daemon checks before it serves: policy, sockets, storage tiers and their
    disks. It starts nothing. The exit code is 1 if something is wrong. Directories, journal and
    supervisor are checked by 'iod doctor'.
    """
    from iodaemon.daemon.preflight import Preflight

    session: Session = ctx.obj
    notes: tuple[str, ...] = ()
    try:
        config, _ = load_config_of_daemon(session)
    except ConfigError as error:
        file, problems = None, [str(error)]
    else:
        preflight = Preflight(config)
        file, problems = config.file, list(preflight.find_problems())
        problems += preflight.find_obstacles(_promised(session) if config.tier else {})
        notes = () if problems else preflight.policy.notes
    if as_json:
        output.print_json({"problems": problems})
    else:
        right = f"the configuration is right ({file or 'there is no file, all is as by default'})"
        print("\n".join(map(printable, problems or [right])))
    for note in notes:
        output.say(printable(note))
    return ExitCode.REFUSED if problems else ExitCode.OK


@verb(configs, "reload")
def reload(ctx: Context, as_json: AsJson = OFF) -> int:
    """Have the daemon read configuration and policy again.

    Tells what changed, and what needs a restart to. A file with an error changes nothing. For
    administrators.
    """
    from iodaemon.api.care import reload_config

    session: Session = ctx.obj
    answer = reload_config(session.client())
    if as_json:
        output.print_json(answer)
        return 0
    lines = [f"{each['path']}: {each['before']} -> {each['after']}" for each in answer["changed"]]
    print("\n".join(map(printable, lines or ["nothing else is in force than before"])))
    for each in answer["needs_restart"]:
        told = f"{each['path']}: {each['before']} -> {each['after']}"
        output.say(printable(f"{told} needs a restart: {each['remedy']}"))
    for note in answer["notes"]:
        output.say(printable(note))
    return 0


@verb(configs, "init")
def init_config(file: Annotated[Word, argument("FILE")] = None, force: Force = OFF) -> int:
    """Print a configuration to edit, or write it to FILE.

    It explains every setting and, as it stands, changes none.
    """
    from iodaemon.config import config_toml, default_settings

    text = config_toml(default_settings(os.environ, os.geteuid()))
    if file is None or file == "-":
        sys.stdout.write(text)
    else:
        _write(Path(file), text, force=force)
        output.say(f"wrote {file}")
    return 0


def _configured(session: Session) -> JsonObject:
    """As the API shows a running daemon's, of one that is started now."""
    from iodaemon.config import config_document

    config, _ = load_config_of_daemon(session)
    return config_document(config)


def _promised(session: Session) -> dict[str, int]:
    """Bytes of each disk; nothing where no daemon answers."""
    from iodaemon.api.client import Client
    from iodaemon.doctor.tier import find_allocated

    try:
        return find_allocated(Client(session.socket_path(), _ANSWER_WITHIN_S).node())
    except IodaemonError:
        return {}


def _lines(document: JsonObject) -> list[str]:
    """One setting a line; a table without keys of its own says nothing and is left out."""
    from iodaemon.cli.document import document_lines

    settings = document.get("settings")
    if not isinstance(settings, list):
        return document_lines(document)
    rows = [
        (f"{row['table']}.{row['key']}".lstrip("."), str(row["value"]), str(row["origin"]))
        for row in settings
        if isinstance(row, dict) and row["key"]
    ]
    return output.table((Column("SETTING"), Column("VALUE"), Column("FROM")), rows)


def _write(path: Path, text: str, *, force: bool) -> None:
    """Write a new file; an old one only by force.

    Raises:
        RequestError: it is there already, or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise RequestError(f"{path} is there already: edit it, or replace it by --force") from error
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}") from error
