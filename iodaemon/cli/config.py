"""``iod config`` and ``iod policy``: what is in force, what could be, and what is wrong with it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from iodaemon.api.model import JsonObject
from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, AsJson, Word, argument, option, verb
from iodaemon.cli.failure import ExitCode
from iodaemon.cli.output import Column
from iodaemon.cli.session import Session, load_config_of_daemon
from iodaemon.errors import ConfigError, IodaemonError, NoDaemon, NotFound, RequestError
from iodaemon.text import printable

if TYPE_CHECKING:
    from iodaemon.config import PolicyFile

app = App()
configs = App("Configuration: show, check, init, reload.")
app.verbs["config"] = configs

_ANSWER_WITHIN_S: Final = 1.0
"""A daemon that is silent for longer is left out of the check."""

Running = Annotated[bool, option("--running", text="Ask the daemon for what it runs with.")]


@verb(configs, "show")
def show_config(session: Session, running: Running = OFF, as_json: AsJson = OFF) -> int:
    """Show every setting, its value, and where that comes from."""
    answer = session.client().config() if running else _configured(session)
    output.show(answer, lambda: _lines(answer), as_json=as_json)
    return 0


@verb(configs, "check")
def check_config(session: Session, as_json: AsJson = OFF) -> int:
    """Check what a daemon that is started now would read.

    It checks what that daemon checks before it serves: policy, sockets, storage tiers and their
    disks. It starts nothing. The exit code is 1 if something is wrong. Directories, journal and
    supervisor are checked by 'iod doctor'.
    """
    from iodaemon.daemon.preflight import Preflight

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
        right = f"the configuration is valid ({file or 'no file; the defaults apply'})"
        print("\n".join(map(printable, problems or [right])))
    for note in notes:
        output.say(printable(note))
    return ExitCode.REFUSED if problems else ExitCode.OK


@verb(configs, "reload")
def reload(session: Session, as_json: AsJson = OFF) -> int:
    """Have the daemon read configuration and policy again.

    Tells what changed, and what needs a restart to. A file with an error changes nothing. For
    administrators.
    """
    from iodaemon.api.care import reload_config

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
def init_config(
    file: Annotated[Word, argument("FILE")] = None,
    force: Annotated[bool, option("--force", text="Replace a FILE that is there.")] = OFF,
) -> int:
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
    from iodaemon.doctor.disks import find_allocated

    try:
        return find_allocated(Client(session.socket_path(), _ANSWER_WITHIN_S).node())
    except IodaemonError:
        return {}


def _lines(document: JsonObject) -> list[str]:
    """One setting a line; a table without keys of its own says nothing and is left out."""
    from iodaemon.cli.output import document_lines

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
    """Write a new file; an old one only by force."""
    try:
        with contextlib.suppress(
            FileExistsError
        ):  # it is no directory, which opening the file says
            path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise RequestError(f"{path} is there already: edit it, or replace it by --force") from error
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}") from error


policies = App("Policies: list, show, check.")
app.verbs["policy"] = policies


@verb(policies, "list")
def list_policies(as_json: AsJson = OFF) -> int:
    """List the policies and their files.

    WHAT IT DOES is the first comment of the file. A narrow terminal leaves out FILE.
    """
    from iodaemon.config import find_policies, policy_search

    found = find_policies(policy_search(os.environ))
    named = [{"name": name, "path": str(path)} for name, path in found.items()]
    output.show(named, lambda: _list_lines(found), as_json=as_json)
    return 0


def _list_lines(found: Mapping[str, Path]) -> list[str]:
    rows = [(name, _told_of(path), str(path)) for name, path in found.items()]
    columns = (Column("NAME"), Column("WHAT IT DOES"), Column("FILE", drop=1))
    return output.table(columns, rows, width=output.terminal_columns())


def _told_of(path: Path) -> str:
    """The first line of a policy's file, if it is a comment."""
    with path.open(encoding="utf-8", errors="replace") as file:
        line = file.readline().strip()
    return line.lstrip("# ") if line.startswith("#") else output.NOTHING


@verb(policies, "show")
def show_policy(
    session: Session, name: Annotated[Word, argument("POLICY|FILE")] = None, as_json: AsJson = OFF
) -> int:
    """Show a policy, by default the one in force."""
    document = _in_force(session) if name is None else _document(_noted(load_named(name)))
    _print(document, as_json=as_json)
    return 0


@verb(policies, "check")
def check_policy(
    session: Session, name: Annotated[Word, argument("POLICY|FILE")] = None, as_json: AsJson = OFF
) -> int:
    """Check a policy, by default the configured one.

    Its rules are run on simulated loads as well, of the daemon's sockets and disks where one
    answers: an empty queue, jobs without hints, I/O that cannot be read, jobs that all stand
    still, and others.
    """
    policy = _configured_policy(session) if name is None else _noted(load_named(name))
    remarks = _tried(session, policy)
    if as_json:
        _print(_document(policy), as_json=True)
    else:
        print(f"policy {policy.name} is valid ({policy.path})")
    for remark in remarks:
        output.say(remark)
    return 0


def _tried(session: Session, policy: PolicyFile) -> tuple[str, ...]:
    """What the policy cannot do on this platform, and how it went on simulated loads."""
    from iodaemon.rule_limit import RuleLimit
    from iodaemon.simulator.policy_check import any_platform, platform_of, try_policy

    try:
        platform = platform_of(session.client().node())
    except NoDaemon:
        platform = any_platform()
    limit = RuleLimit()
    try:
        remarks = try_policy(policy.rules, platform, limit=limit)
    finally:
        limit.close()
    return (*policy.rules.cautions(platform), *remarks)


def _in_force(session: Session) -> dict[str, Any]:
    """The daemon's policy; the configured one where no daemon runs."""
    try:
        return session.client().policy()
    except NoDaemon:
        policy = _configured_policy(session)
        output.say(f"no daemon runs; this is what one would start with, {policy.path}")
        return _document(policy)


def _configured_policy(session: Session) -> PolicyFile:
    config = session.load_config({})
    return _noted(load_named(config.policy, config.policy_overrides, config.file))


def _noted(policy: PolicyFile) -> PolicyFile:
    """The policy; its notes are printed."""
    for note in policy.notes:
        output.say(note)
    return policy


def load_named(
    name: str, overrides: dict[str, Any] | None = None, overrides_from: str | None = None
) -> PolicyFile:
    """The policy."""
    from iodaemon.config import find_policies, load_policy, policy_search

    search = policy_search(os.environ)
    try:
        return load_policy(
            name, overrides=overrides or {}, search=search, overrides_from=overrides_from
        )
    except ConfigError as error:
        is_file = "/" in name or name.endswith(".toml")
        is_there = os.path.exists(name) if is_file else name in find_policies(search)
        if is_there:
            raise
        raise NotFound(str(error)) from error


def _document(policy: PolicyFile) -> dict[str, Any]:
    from iodaemon.config import rule_tables

    about = {"name": policy.name, "path": str(policy.path), "source": policy.source}
    return {**about, **rule_tables(policy.rules)}


def _print(document: dict[str, Any], *, as_json: bool) -> None:
    from iodaemon.cli.output import document_lines

    output.show(
        document, lambda: document_lines(document, absent="none", as_keys=True), as_json=as_json
    )
