"""What a configuration that is read again changes: at once, or only with a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from iodaemon.config.describe import describe_settings, toml_value
from iodaemon.config.policy import PolicyFile, rule_tables
from iodaemon.config.settings import Config
from iodaemon.registry import rule_name
from iodaemon.systemd import is_unit
from iodaemon.units import key_of

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
_UNTOLD: Final = frozenset({"file", "origins", "is_system", "admission", "placement", "regulation"})
"""No settings; and the tables over the policy, of which the rules tell what came of them."""


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
    old, new, restarts = _values_of(before), _values_of(after), restarts_of(after)
    daemon, supervisor = _SYSTEM if after.is_system else _USER if is_unit() else _BY_HAND
    remedies = {
        "": "",
        "daemon": f"restart the daemon ({daemon}); jobs run on",
        "empty daemon": f"restart the daemon ({daemon}) when no job is left: another one does not "
        "find them",
        "supervisor": supervisor,
    }
    return tuple(
        Change(
            path=path,
            before=old[path],
            after=value,
            remedy=remedies[restarts.get(path, "")],
        )
        for path, value in new.items()
        if path not in _UNTOLD and value != old[path]
    )


def restarts_of(config: Config) -> dict[str, str]:
    """Of each setting that counts only after a restart, what has to be restarted."""
    return {each.path: each.restart for each in describe_settings(config) if each.restart}


def _values_of(config: Config) -> dict[str, str]:
    """Each setting's value as TOML, and that of all tiers together."""
    values = {each.path: each.value for each in describe_settings(config) if each.key}
    return {**values, "tier": toml_value(config.tier, "tier")}


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
    topology = before.topology
    kept = {name: getattr(before, name) for name in _fields_of(before, "", restarts)}
    divided = {
        name: getattr(topology, name) for name in _fields_of(topology, "topology.", restarts)
    }
    told = {path: before.origins.get(path, "default") for path in restarts}
    return msgspec.structs.replace(
        after,
        **kept,
        topology=msgspec.structs.replace(after.topology, **divided),
        is_system=before.is_system,
        origins={**after.origins, **told},
    )


def _fields_of(struct: msgspec.Struct, table: str, restarts: Mapping[str, str]) -> list[str]:
    """The fields of this table whose settings need a restart."""
    return [name for name in struct.__struct_fields__ if table + key_of(name) in restarts]


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
