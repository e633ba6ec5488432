"""Policy files: one TOML file names the rules of one policy and their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET, UnsetType

from iodaemon.config.table import decode_table, read_toml
from iodaemon.core.rule import Rules
from iodaemon.errors import ConfigError
from iodaemon.registry import Kind, find_rule, nearest, rule_name, shipped

SYSTEM_POLICIES: Final = Path("/etc/iodaemon/policies")
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_DEFAULTS: Final = {"placement": {"rule": "least_io"}}
"""Tables that a policy file may leave out."""


class PolicyFile(msgspec.Struct, frozen=True, kw_only=True):
    """A policy as loaded.

    Attributes:
        name: the file's name without ``.toml``.
        path: where it was found.
        source: the publication it comes from; empty: ours.
        rules: what it composes, ready for the controller.
    """

    name: str
    path: Path
    source: str
    rules: Rules


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of a policy file. A rule's parameters are decoded by the rule itself."""

    admission: dict[str, Any]
    regulation: dict[str, Any]
    placement: dict[str, Any]
    source: str = ""
    max_suspend_s: float | UnsetType | None = UNSET


def policy_search(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders in which policies are looked up by name, the first hit counts."""
    folders = [SYSTEM_POLICIES, shipped("policies")]
    if config_home := config_home_of(environ):
        folders.insert(0, config_home / "iodaemon" / "policies")
    return tuple(folders)


def config_home_of(environ: Mapping[str, str]) -> Path | None:
    """``$XDG_CONFIG_HOME``, else ``~/.config``; None where neither is known."""
    if environ.get("XDG_CONFIG_HOME", "").startswith("/"):
        return Path(environ["XDG_CONFIG_HOME"])
    return Path(environ["HOME"]) / ".config" if environ.get("HOME") else None


def find_policies(search: Sequence[Path]) -> dict[str, Path]:
    """Every policy by name, sorted; of two with one name the one found first in ``search``."""
    found: dict[str, Path] = {}
    for folder in reversed(search):
        if folder.is_dir():
            found |= {path.stem: path for path in folder.glob("*.toml")}
    return dict(sorted(found.items()))


def load_policy(
    name_or_path: str, *, overrides: Mapping[str, Any], search: Sequence[Path]
) -> PolicyFile:
    """The policy with this name, or in this file.

    Args:
        name_or_path: a name to look up; with a ``/`` or ``.toml`` in it a file.
        overrides: tables and values that replace single ones of the file, as a policy file has
            them: ``{"regulation": {"io_bound": "80 MB/s"}}``. Another ``rule`` than the file's
            drops the file's parameters of that table.
        search: folders for names, in this order (``policy_search``).

    Raises:
        ConfigError: not found, not readable, or wrong; one line with file, table and key.
    """
    path = _find(name_or_path, search)
    try:
        table = read_toml(path)
    except FileNotFoundError as e:
        raise ConfigError(f"policy file {path} does not exist") from e
    rules = _rules(table, name=path.stem, where=str(path))
    if overrides:
        where = f"override of policy {path.stem!r}"
        rules = _rules(_merged(table, overrides), name=path.stem, where=where)
    return PolicyFile(name=path.stem, path=path, source=str(table.get("source", "")), rules=rules)


def check_offers(rules: Rules, offers: Iterable[type], backend_name: str) -> None:
    """Refuse a policy whose rules decide what the backend cannot carry out.

    Args:
        rules: the policy.
        offers: decision types that the backend performs.
        backend_name: for the message.

    Raises:
        ConfigError: names the policy, the rule, what it needs, and the backend.
    """
    offered = frozenset(offers)
    for kind in _KINDS:
        rule = getattr(rules, kind)
        needed: frozenset[type] = getattr(rule, "needs", frozenset())
        lacking = needed - offered
        if lacking:
            names = " and ".join(sorted(type_.__name__ for type_ in lacking))
            raise ConfigError(
                f"policy {rules.name!r}: {kind} rule {rule_name(rule)!r} needs {names}, which "
                f"backend {backend_name!r} does not offer; choose another, for example 'none'"
            )


def rule_tables(rules: Rules) -> dict[str, dict[str, Any]]:
    """The rules and their parameters by kind, with the unit in each name: to be shown."""
    return {
        kind: {"rule": rule_name(rule), **msgspec.structs.asdict(rule)}
        for kind in _KINDS
        if isinstance(rule := getattr(rules, kind), msgspec.Struct)
    }


def _find(name_or_path: str, search: Sequence[Path]) -> Path:
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        return Path(name_or_path)
    known = find_policies(search)
    if name_or_path not in known:
        hint = nearest(name_or_path, tuple(known))
        folders = ", ".join(map(str, search))
        raise ConfigError(f"no policy {name_or_path!r} in {folders}; {hint}")
    return known[name_or_path]


def _rules(table: Mapping[str, Any], *, name: str, where: str) -> Rules:
    document = decode_table({**_DEFAULTS, **table}, _Document, where=where)
    found = {kind: _rule(kind, getattr(document, kind), where) for kind in _KINDS}
    if document.max_suspend_s is UNSET:
        return Rules(name=name, **found)
    if document.max_suspend_s == 0.0:
        raise ConfigError(f"{where}: max_suspend must be above 0; 'none' lifts the guard")
    return Rules(name=name, max_suspend_s=document.max_suspend_s, **found)


def _rule(kind: Kind, table: Mapping[str, Any], where: str) -> Any:
    where = f"{where} [{kind}]"
    parameters = dict(table)
    name = parameters.pop("rule", None)
    if not isinstance(name, str):
        raise ConfigError(f'{where}: needs rule = "NAME", has {name!r}')
    try:
        type_ = find_rule(kind, name)
    except ConfigError as e:
        raise ConfigError(f"{where}: {e}") from e
    return decode_table(parameters, type_, where=where)


def _merged(table: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {**_DEFAULTS, **table}
    for key, value in overrides.items():
        before = merged.get(key)
        if not isinstance(value, Mapping) or not isinstance(before, Mapping):
            merged[key] = value
        elif value.get("rule", before.get("rule")) == before.get("rule"):
            merged[key] = {**before, **value}
        else:
            merged[key] = dict(value)
    return merged
