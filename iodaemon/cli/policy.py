"""``iod policy``: the policies there are, and what they say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from iodaemon.cli import output
from iodaemon.cli.command import OFF, App, AsJson, Context, Word, argument, verb
from iodaemon.cli.output import Column
from iodaemon.cli.session import Session
from iodaemon.errors import ConfigError, NoDaemon, NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from iodaemon.config import PolicyFile

app = App()
policies = App("Policies: list, show, check.")
app.verbs["policy"] = policies

PolicyName = Annotated[Word, argument("POLICY|FILE")]


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
def show_policy(ctx: Context, name: PolicyName = None, as_json: AsJson = OFF) -> int:
    """Show a policy, by default the one in force."""
    document = _in_force(ctx.obj) if name is None else _document(_told(load_named(name)))
    _print(document, as_json=as_json)
    return 0


@verb(policies, "check")
def check_policy(ctx: Context, name: PolicyName = None, as_json: AsJson = OFF) -> int:
    """Check a policy, by default the configured one.

    Its rules are run on simulated loads as well, of the daemon's sockets and disks where one
    answers: an empty queue, jobs without hints, I/O that cannot be read, jobs that all stand
    still, and others.
    """
    policy = _configured(ctx.obj) if name is None else _told(load_named(name))
    remarks = _tried(ctx.obj, policy)
    if as_json:
        _print(_document(policy), as_json=True)
    else:
        print(f"policy {policy.name} is right ({policy.path})")
    for remark in remarks:
        output.say(remark)
    return 0


def _tried(session: Session, policy: PolicyFile) -> tuple[str, ...]:
    """What the policy cannot do on this platform, and how it went on simulated loads.

    Raises:
        RuleError: a rule failed.
    """
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
        policy = _configured(session)
        output.say(f"no daemon runs; this is what one would start with, {policy.path}")
        return _document(policy)


def _configured(session: Session) -> PolicyFile:
    config = session.load_config({})
    return _told(load_named(config.policy, config.policy_overrides, config.file))


def _told(policy: PolicyFile) -> PolicyFile:
    """The policy; its notes are printed."""
    for note in policy.notes:
        output.say(note)
    return policy


def load_named(
    name: str, overrides: dict[str, Any] | None = None, overrides_from: str | None = None
) -> PolicyFile:
    """The policy.

    Raises:
        NotFound: there is none of this name, or no such file.
        ConfigError: it is wrong.
    """
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
    from iodaemon.cli.document import document_lines

    output.show(document, lambda: document_lines(document, absent="none"), as_json=as_json)
