"""A JSON document for people, whatever is in it: names, values with units, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from iodaemon.cli.output import Column, aligned, local_time, table

_INDENT: Final = "  "
_A_DATE_S: Final = 1e9
"""So many seconds are a point in time, in 2001 or later; as a duration they are 31 years."""


def document_lines(document: Mapping[str, Any], *, absent: str = "unknown") -> list[str]:
    """Plain values first, aligned; then every part with its name above it, indented.

    Args:
        absent: what stands for null.
    """
    plain = {key: value for key, value in document.items() if _is_plain(value)}
    lines = aligned((_label(key), value_words(key, plain[key], absent)) for key in plain)
    for key, value in document.items():
        if key not in plain:
            lines.append(_label(key))
            lines += [_INDENT + line for line in _part_lines(value, absent)]
    return lines


def _part_lines(value: Any, absent: str) -> list[str]:
    if isinstance(value, dict):
        return document_lines(value, absent=absent)
    if not all(isinstance(item, dict) for item in value):
        return [value_words("", item, absent) for item in value]
    if all(_is_plain(cell) for item in value for cell in item.values()):
        return _table_lines(value, absent)
    return [line for item in value for line in document_lines(item, absent=absent)]


def _table_lines(rows: Sequence[Mapping[str, Any]], absent: str) -> list[str]:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[value_words(key, row.get(key), absent) for key in keys] for row in rows]
    return table([Column(_label(key).upper()) for key in keys], cells)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return not any(isinstance(item, dict | list | tuple) for item in value)
    return not isinstance(value, dict)


def _label(key: str) -> str:
    """The name without the unit, which stands in the value."""
    for suffix in ("_bytes_per_s", "_per_s", "_bytes", "_s"):
        if key.endswith(suffix) and len(key) > len(suffix):
            return key.removesuffix(suffix).replace("_", " ")
    return key.replace("_", " ")


def value_words(key: str, value: Any, absent: str) -> str:
    """The value with its unit, which the name tells (``_bytes``, ``_bytes_per_s``, ``_s``)."""
    match value:
        case None:
            return absent
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return _number_words(key, value)
        case list() | tuple():
            return ", ".join(value_words(key, item, absent) for item in value) or "none"
        case dict():
            parts = (f"{name} {value_words(name, item, absent)}" for name, item in value.items())
            return ", ".join(parts)
        case _:
            return str(value) or "none"


def _number_words(key: str, value: float) -> str:
    from iodaemon.units import format_bytes, format_duration, format_rate

    if key.endswith("_bytes_per_s"):
        return format_rate(value)
    if key.endswith("_per_s"):
        return f"{value:.4g}/s"
    if key.endswith("_bytes"):
        return format_bytes(value)
    if key.endswith("_s"):
        return local_time(value) if value >= _A_DATE_S else format_duration(value)
    return str(value) if isinstance(value, int) else f"{value:.4g}"
