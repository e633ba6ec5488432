"""What a configuration that is read again changes: at once, or only with a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from iodaemon.config.describe import describe_settings, toml_value
from iodaemon.config.policy import PolicyFile, rule_tables
from iodaemon.config.settings import Config
from iodaemon.registry import rule_name
from iodaemon.systemd import is_unit
from iodaemon.units import key_of

S = TypeVar("S", bound=msgspec.Struct)

_OWN_SUPERVISOR: Final = "restart the daemon when no job runs: the supervisor ends with it then"
_SYSTEM: Final = (
    "systemctl restart iodaemon",
    (
        "'iod drain --wait', then 'systemctl restart iodaemon-supervisor iodaemon': exit codes of "
        "jobs that run would be lost"
    ),
)
_USER: Final = ("systemctl --user restart iodaemon", _OWN_SUPERVISOR)
_BY_HAND: Final = ("'iod stop', then start it as before", _OWN_SUPERVISOR)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is otherwise than before.

    Attributes:
        path: table and key with a dot; of a rule's parameter the table of the policy file.
        before: as TOML.
        after: likewise.
        remedy: what to do so that it counts; empty: it counts.
    """

    path: str
    before: str
    after: str
    remedy: str = ""

    @property
    def text(self) -> str:
        """In one line, for people."""
        told = f"{self.path}: {self.before} -> {self.after}"
        return f"{told}, {self.remedy}" if self.remedy else told


def setting_changes(before: Config, after: Config) -> tuple[Change, ...]:
    """The settings that differ, in the order of their declaration."""
    old, new = _values_of(before), _values_of(after)
    daemon, supervisor = _SYSTEM if after.is_system else _USER if is_unit() else _BY_HAND
    remedies = {
        "": "",
        "daemon": f"restart the daemon ({daemon}); jobs run on",
        "empty daemon": f"restart the daemon ({daemon}) when no job is left: another one does not "
        "find them",
        "supervisor": supervisor,
    }
    return tuple(
        Change(path=path, before=old[path][0], after=value, remedy=remedies[restart])
        for path, (value, restart) in new.items()
        if value != old[path][0]
    )


def restarts_of(config: Config) -> dict[str, str]:
    """Of each setting that counts only after a restart, what has to be restarted."""
    return {each.path: each.restart for each in describe_settings(config) if each.restart}


def _values_of(config: Config) -> dict[str, tuple[str, str]]:
    """Each setting's value as TOML, and what has to be restarted; of all tiers together.

    Of the tables over the policy the rules tell what came of them.
    """
    values = {each.path: (each.value, each.restart) for each in describe_settings(config)}
    tier = toml_value(config.tier, "tier"), values["tier"][1]
    return {path: each for path, each in values.items() if each[0]} | {"tier": tier}


def policy_changes(before: PolicyFile, after: PolicyFile) -> tuple[Change, ...]:
    """What differs in the rules in force, from whichever file; of another rule its name alone."""
    return tuple(
        Change(path=path, before=old, after=new)
        for path, old, new in _differences(before, after)
        if old != new
    )


def in_force(before: Config, after: Config) -> Config:
    """The configuration of a daemon that goes on: ``after`` but for what needs a restart."""
    restarts = restarts_of(before)
    told = {path: before.origins.get(path, "default") for path in restarts}
    return msgspec.structs.replace(
        _kept(before, after, "", restarts),
        topology=_kept(before.topology, after.topology, "topology.", restarts),
        is_system=before.is_system,
        origins={**after.origins, **told},
    )


def _kept(before: S, after: S, table: str, restarts: Mapping[str, str]) -> S:
    """``after`` with the values of ``before`` where those need a restart."""
    names = [name for name in before.__struct_fields__ if table + key_of(name) in restarts]
    return msgspec.structs.replace(after, **{name: getattr(before, name) for name in names})


def _differences(before: PolicyFile, after: PolicyFile) -> Iterator[tuple[str, str, str]]:
    yield "policy", toml_value(before.name, ""), toml_value(after.name, "")
    old_s, new_s = before.rules.max_suspend_s, after.rules.max_suspend_s
    yield "max_suspend", toml_value(old_s, "max_suspend_s"), toml_value(new_s, "max_suspend_s")
    old, new = rule_tables(before.rules), rule_tables(after.rules)
    for kind in old:
        yield from _rule_differences(kind, old[kind], new[kind])
        if _is_written_anew(getattr(before.rules, kind), getattr(after.rules, kind)):
            name = toml_value(new[kind]["rule"], "")
            yield f"{kind}.rule", name, f"{name}, its code is another"


def _is_written_anew(old: object, new: object) -> bool:
    """The same rule by name, and other code: a user's, imported again."""
    return type(old) is not type(new) and rule_name(old) == rule_name(new)


def _rule_differences(
    kind: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    fields = ["rule"] if old["rule"] != new["rule"] else list(new)
    for field in fields:
        yield (
            f"{kind}.{key_of(field)}",
            toml_value(old.get(field), field),
            toml_value(new[field], field),
        )
