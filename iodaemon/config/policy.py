"""Policy files: one TOML file names the rules of one policy and their parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET, UnsetType

import iodaemon
from iodaemon.config.table import decode_table, read_toml
from iodaemon.core.platform import Platform
from iodaemon.core.rule import Rules
from iodaemon.core.rule_error import FROM_A_RULE, raised_at
from iodaemon.errors import ConfigError
from iodaemon.registry import FORMER, Kind, find_rule, nearest, rule_name, rule_names, shipped
from iodaemon.units import key_of

SYSTEM_POLICIES: Final = Path("/etc/iodaemon/policies")
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_NEWER: Final = f"; or it needs a newer iodaemon than {iodaemon.__version__}"
_DEFAULTS: Final = {"placement": {"rule": "least_io"}}
"""Tables that a policy file may leave out."""


class PolicyFile(msgspec.Struct, frozen=True, kw_only=True):
    """A policy as loaded.

    Attributes:
        name: the file's name without ``.toml``.
        path: where it was found.
        source: the publication it comes from; empty: ours.
        rules: what it composes, ready for the controller.
        notes: settings without effect; one line each, for people.
    """

    name: str
    path: Path
    source: str
    rules: Rules
    notes: tuple[str, ...] = ()

    def cautions(self, platform: Platform) -> tuple[str, ...]:
        """What people should know of the policy on this platform, one line each.

        A daemon, a check, a comparison and a simulation all tell these.
        """
        return (*self.notes, *self.rules.cautions(platform))


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of a policy file. A rule's parameters are decoded by the rule itself."""

    admission: dict[str, Any]
    regulation: dict[str, Any]
    placement: dict[str, Any]
    source: str = ""
    requires: str = ""
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
    name_or_path: str,
    *,
    overrides: Mapping[str, Any],
    search: Sequence[Path],
    overrides_from: str | None = None,
) -> PolicyFile:
    """The policy with this name, or in this file.

    Args:
        name_or_path: a name to look up; with a ``/`` or ``.toml`` in it a file.
        overrides: tables and values that replace single ones of the file, as a policy file has
            them: ``{"regulation": {"io_bound": "80 MB/s"}}``. Another ``rule`` than the file's
            drops the file's parameters of that table. A value that only other rules know has
            no effect and is noted: the configuration's ``io_bound`` under policy ``none``.
        search: folders for names, in this order (``policy_search``).
        overrides_from: the file that they stand in, for messages; None: given otherwise.

    Raises:
        ConfigError: not found, not readable, wrong, or of a newer iodaemon; one line with file,
            table and key.
    """
    path = _find(name_or_path, search)
    try:
        table = read_toml(path)
    except FileNotFoundError as e:
        raise ConfigError(f"policy file {path} does not exist") from e
    _check_version(table.get("requires"), where=str(path))
    rules = _rules(table, name=path.stem, where=str(path))
    notes: tuple[str, ...] = ()
    if overrides:
        where = f"{overrides_from or 'override'}, over policy {path.stem!r}"
        meant, notes = _without_vain(rules, overrides, where)
        rules = _rules(_merged(table, meant), name=path.stem, where=where)
    source = str(table.get("source", ""))
    return PolicyFile(name=path.stem, path=path, source=source, rules=rules, notes=notes)


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
    newer = "" if table.get("requires") else _NEWER
    document = decode_table({**_DEFAULTS, **table}, _Document, where=where, else_=newer)
    try:
        found = {kind: _rule(kind, getattr(document, kind), where, newer) for kind in _KINDS}
        if document.max_suspend_s is UNSET:
            rules = Rules(name=name, **found)
        else:
            rules = Rules(name=name, max_suspend_s=document.max_suspend_s, **found)
        _check_timeslice(rules, where)
        _check_guard(rules, where)
    except ConfigError:
        raise
    except FROM_A_RULE as error:  # a rule may be a user's own code
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(f"{where}: a rule fails at {raised_at(error)}: {text}") from error
    return rules


def _check_timeslice(rules: Rules, where: str) -> None:
    """Refuse a regulation that would be asked without a pause; shipped ones say so themselves."""
    slice_s: object = rules.regulation.timeslice_s
    is_time = isinstance(slice_s, int | float) and 0.0 < slice_s < math.inf
    if not is_time:
        raise ConfigError(
            f"{where} [regulation]: timeslice_s is {slice_s!r}; it must be a number of seconds "
            "above 0"
        )


def _check_guard(rules: Rules, where: str) -> None:
    """Refuse a guard over suspensions that never lets one be."""
    if rules.max_suspend_s == 0.0:
        raise ConfigError(f"{where}: max_suspend must be above 0; 'none' lifts the guard")


def _rule(kind: Kind, table: Mapping[str, Any], where: str, newer: str) -> Any:
    where = f"{where} [{kind}]"
    parameters = dict(table)
    name = parameters.pop("rule", None)
    if not isinstance(name, str):
        raise ConfigError(f'{where}: needs rule = "NAME", has {name!r}')
    try:
        type_ = find_rule(kind, name)
    except ConfigError as e:
        raise ConfigError(f"{where}: {e}{newer}") from e
    _, former = FORMER.get((kind, name), (name, {}))
    rule: Any = decode_table({**former, **parameters}, type_, where=where, else_=newer)
    for field in type_.__struct_fields__:
        value = getattr(rule, field)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where}: {key_of(field)} is {value:g}; write a finite number")
    return rule


def _check_version(requires: object, *, where: str) -> None:
    """Refuse a file that says that it is for a newer iodaemon than this."""
    if requires is None:
        return
    wanted = _version(requires) if isinstance(requires, str) else None
    if wanted is None:
        raise ConfigError(f'{where}: requires is {requires!r}; write a version such as "0.1"')
    if wanted > (_version(iodaemon.__version__) or ()):
        raise ConfigError(
            f"{where}: requires iodaemon {requires}, this is {iodaemon.__version__}; install the "
            "newer one, or choose another policy"
        )


def _version(text: str) -> tuple[int, ...] | None:
    """``0.1.0`` as numbers, zeros at the end left out; None for what is no version."""
    parts = text.split(".")
    if not all(part.isascii() and part.isdigit() for part in parts):
        return None
    numbers = [int(part) for part in parts]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _without_vain(
    rules: Rules, overrides: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The overrides without values that only other rules of the kind know, and what they are."""
    meant: dict[str, Any] = dict(overrides)
    notes: list[str] = []
    for kind in _KINDS:
        table = overrides.get(kind)
        if not isinstance(table, Mapping) or "rule" in table:
            continue
        rule = getattr(rules, kind)
        elsewhere = set().union(*(_keys(find_rule(kind, name)) for name in rule_names(kind)))
        vain = [key for key in table if key in elsewhere and key not in _keys(type(rule))]
        meant[kind] = {key: value for key, value in table.items() if key not in vain}
        notes += [
            f"{where} [{kind}]: {key} has no effect, rule {rule_name(rule)!r} has no such setting; "
            "take it out, or choose a policy whose rule has it"
            for key in vain
        ]
    return meant, tuple(notes)


def _keys(type_: type[msgspec.Struct]) -> set[str]:
    return {key_of(field.name) for field in msgspec.structs.fields(type_)}


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
