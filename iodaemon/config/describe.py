"""Settings as docs and ``iod config`` show them, read off the structs that declare them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec

from iodaemon.config.table import plain_type
from iodaemon.errors import ConfigError
from iodaemon.units import Quantity, key_of, quantity_of

_KINDS: Final[dict[Any, str]] = {
    str: "text",
    bool: "true or false",
    int: "number",
    NoneType: "none",
}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting.

    Attributes:
        table: the file's table it stands in; empty: at the top.
        key: its name there; empty: the table itself, whose keys are not ours to list.
        value: as TOML; empty for a table.
        kind: ``duration``, ``rate``, ``size``, ``text``, ``list``, ``table``, or the choices.
        help: what it does.
        restart: what has to be restarted so that another value counts (``Restart``); empty:
            nothing, a reload will do.
    """

    table: str
    key: str
    value: str
    kind: str
    help: str
    restart: str = ""

    @property
    def path(self) -> str:
        """Table and key with a dot, for example ``topology.slot``."""
        return ".".join(filter(None, (self.table, self.key)))


def describe_settings(settings: msgspec.Struct) -> tuple[Setting, ...]:
    """Every setting of the struct with its present value, in the order of declaration.

    A field that is no table and says nothing of itself is no setting.
    """
    return tuple(_described(settings, table=""))


def config_toml(settings: msgspec.Struct) -> str:
    """A configuration file that explains every setting and, as it stands, changes none."""
    lines: list[str] = []
    table = ""
    for setting in describe_settings(settings):
        if setting.table != table:
            table = setting.table
            lines += [f"[{table}]"]
        lines += [f"# {setting.help} ({setting.kind})"]
        lines += [f"#{setting.key} = {setting.value}"] if setting.key else []
        lines += [""]
    return "\n".join(lines)


def toml_value(value: object, field: str) -> str:
    """The value as TOML, a quantity with its unit where that says it exactly.

    Args:
        value: of a setting; None is written ``"none"``.
        field: its name, whose suffix says the unit.
    """
    if value is None:
        return '"none"'
    quantity = quantity_of(field)
    if quantity is not None and isinstance(value, int | float):
        return _quantity(quantity, value)
    if isinstance(value, bool | str | int | float):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_value(item, "") for item in value) + "]"
    if isinstance(value, msgspec.Struct):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, dict):
        inner = (f"{key_of(key)} = {toml_value(each, key)}" for key, each in value.items())
        return f"{{{', '.join(inner)}}}"
    raise ConfigError(f"{field}: {value!r} cannot be written to a file")


def _quantity(quantity: Quantity, value: float) -> str:
    text = quantity.format(value)
    return f'"{text}"' if quantity.parse(text) == value else repr(value)


def _described(struct: msgspec.Struct, table: str) -> Iterator[Setting]:
    for field in msgspec.structs.fields(type(struct)):
        value = getattr(struct, field.name)
        key = key_of(field.name)
        if isinstance(value, msgspec.Struct):
            yield from _described(value, table=key)
        elif (said := _said(field.type)) and isinstance(value, dict):
            yield Setting(table=key, key="", value="", kind="table", **said)
        elif said:
            shown = toml_value(value, field.name)
            yield Setting(table=table, key=key, value=shown, kind=_kind(field), **said)


def _kind(field: msgspec.structs.FieldInfo) -> str:
    type_ = plain_type(field.type)
    if (quantity := quantity_of(field.name)) is not None:
        return quantity.kind
    if type_ in _KINDS:
        return _KINDS[type_]
    if get_origin(type_) is tuple:
        return "list"
    return " or ".join(_choices(type_))


def _choices(type_: Any) -> Iterator[str]:
    """Words that may be written, and kinds of value."""
    for each in get_args(type_):
        plain = plain_type(each)
        if get_args(plain):
            yield from _choices(plain)
        else:
            yield _KINDS[plain] if isinstance(plain, type) else str(plain)


def _said(type_: Any) -> dict[str, str]:
    """What the declaration says of the setting; nothing of what is none."""
    notes = get_args(type_)[1:] if get_origin(type_) is Annotated else ()
    for note in notes:
        if isinstance(note, msgspec.Meta) and note.description:
            return {"help": note.description, **(note.extra or {})}
    return {}
