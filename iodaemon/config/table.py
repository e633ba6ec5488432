"""From a table of a TOML file to a frozen struct, with errors that name file, table and key.

A struct's field ``io_bound_bytes_per_s`` is the key ``io_bound`` in a file: the unit is part of the
value there (``"40 MB/s"``). For a field that may be None, ``"none"`` says so.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from iodaemon.errors import ConfigError
from iodaemon.misfit import TYPES, explain
from iodaemon.registry import nearest
from iodaemon.units import key_of, quantity_of

_TYPES: Final = {**TYPES, "object": "a table", "null": '"none"'}
S = TypeVar("S", bound=msgspec.Struct)


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        FileNotFoundError: there is no such file.
        ConfigError: it cannot be read or is no TOML.
    """
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        line = e.object.count(b"\n", 0, e.start) + 1
        raise ConfigError(f"{path}: line {line} is no UTF-8 text; save the file as UTF-8") from e
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"{path}: no valid TOML: {' '.join(str(e).split())}") from e


def plain_type(type_: Any) -> Any:
    """The type without ``Annotated``."""
    return get_args(type_)[0] if get_origin(type_) is Annotated else type_


def decode_table(table: Mapping[str, object], type_: type[S], *, where: str, else_: str = "") -> S:
    """The struct that the table describes.

    Args:
        table: as ``tomllib`` reads it; strings with units or plain base units.
        type_: a frozen struct; a field that is a struct itself is a table in the table, one that
            is a tuple of structs an array of tables, one that is a dictionary of structs a table
            of tables.
        where: file and table for messages, for example ``policies/dynamic.toml [regulation]``.
        else_: what an unknown key may be besides a misspelt one, for its message.

    Raises:
        ConfigError: unknown or missing key, wrong type, or the struct refuses the values.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: must be a table, is {table!r}")
    fields = {key_of(field.name): field for field in msgspec.structs.fields(type_)}
    for key in table:
        if key not in fields:
            raise ConfigError(
                f"{where}: unknown key {key!r}; {nearest(key_of(key), tuple(fields))}{else_}"
            )
    missing = [key for key, field in fields.items() if field.required and key not in table]
    if missing:
        raise ConfigError(f"{where}: {missing[0]!r} is missing; add it")
    values = {fields[key].name: _value(table[key], fields[key], key, where) for key in table}
    try:
        return type_(**values)
    except (ValueError, TypeError) as e:
        raise ConfigError(f"{where}: {_in_keys(str(e), fields)}") from e


def _value(value: Any, field: msgspec.structs.FieldInfo, key: str, where: str) -> object:
    type_ = plain_type(field.type)
    if value == "none" and NoneType in get_args(type_):
        return None
    if (table := _struct_in(type_)) is not None:
        return decode_table(value, table, where=f"{where} [{key}]")
    many, shape = _struct_in_each(type_), get_origin(type_)
    if many is not None and shape is tuple and isinstance(value, list):
        return tuple(
            decode_table(item, many, where=f"{where} [[{key}]] {number}")
            for number, item in enumerate(value, start=1)
        )
    if many is not None and shape is dict and isinstance(value, Mapping):
        return {
            name: decode_table(inner, many, where=f"{where} [{key}.{name}]")
            for name, inner in value.items()
        }
    try:
        quantity = quantity_of(field.name)
        if quantity is not None and value is not None:
            kinds = (type_, *get_args(type_))  # a tuple, or one that may be None
            is_many = any(get_origin(kind) is tuple for kind in kinds)
            is_many = is_many and isinstance(value, list)
            value = [quantity.parse(one) for one in value] if is_many else quantity.parse(value)
        return msgspec.convert(value, field.type)
    except ConfigError as e:
        raise ConfigError(f"{where}: {key}: {e}") from e
    except (msgspec.ValidationError, TypeError) as e:
        raise ConfigError(f"{where}: {_problem(e, key, value, type_)}") from e


def _struct_in(type_: Any) -> type[msgspec.Struct] | None:
    """The struct that the type is, alone or with None."""
    choices = [choice for choice in get_args(type_) or (type_,) if choice is not NoneType]
    if get_origin(type_) in (UnionType, Union, None) and len(choices) == 1:
        (only,) = choices
        return only if isinstance(only, type) and issubclass(only, msgspec.Struct) else None
    return None


def _struct_in_each(type_: Any) -> type[msgspec.Struct] | None:
    """The struct of which the type is a tuple, or a table of many under names of their own."""
    place = {tuple: 0, dict: 1}.get(get_origin(type_))
    return None if place is None else _struct_in(get_args(type_)[place])


def _problem(error: Exception, key: str, value: object, type_: Any) -> str:
    choices = [each for each in get_args(type_) or (type_,) if each is not NoneType]
    for choice in (type_, *choices):  # alone, or one that may be None
        if get_origin(choice) is Literal and (
            choice is type_ or len(choices) == 1 or isinstance(value, str)
        ):
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            return f"{key}: {shown} is none of {', '.join(map(repr, get_args(choice)))}"
    if isinstance(value, Mapping) and get_origin(type_) is dict:
        for name, each in value.items():  # msgspec does not say which of them
            try:
                msgspec.convert({name: each}, type_)
            except msgspec.ValidationError as inner:
                return explain(str(inner), root=f"{key}.{name}", types=_TYPES).message
    return explain(str(error), root=key, types=_TYPES).message


def _in_keys(text: str, fields: Mapping[str, msgspec.structs.FieldInfo]) -> str:
    """A struct speaks of its fields; the reader of a file knows their keys."""
    for key, field in fields.items():
        text = re.sub(rf"\b{field.name}\b", key, text)
    return " ".join(text.split())
