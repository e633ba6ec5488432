"""Stored references: how they are written, and how a difference is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
DIGITS: Final = 9
"""Significant digits of a number that is kept: fewer than the order of a sum of floats changes."""
_SHOWN: Final = 300
"""Characters of a value in a message."""


def rounded(value: Any) -> Any:
    """The same document with its floats at ``DIGITS`` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value


def differences(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """One line for each place where two JSON documents are not the same."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in [*expected, *(key for key in found if key not in expected)]:
            at = f"{where}.{key}" if where else str(key)
            if key not in found:
                yield f"{at}: missing; expected {_shown(expected[key])}"
            elif key not in expected:
                yield f"{at}: not expected: {_shown(found[key])}"
            else:
                yield from differences(expected[key], found[key], at)
    elif _is_list(expected) and _is_list(found):
        for place, (one, other) in enumerate(zip(expected, found, strict=False)):
            yield from differences(one, other, f"{where}[{place}]")
        if len(expected) != len(found):
            yield f"{where}: {len(found)} items; expected {len(expected)}"
    elif expected != found or type(expected) is not type(found):
        yield f"{where}: {_shown(found)}; expected {_shown(expected)}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def told(lines: Sequence[str], most: int = 20) -> str:
    """The first of these lines, and how many more there are; empty: none."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join([*lines[:most], *more])


def head_of(doc: str | None) -> str:
    """A module's docstring as the comment at the head of its file of references."""
    lines = (doc or "").strip().splitlines()
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def lines_of(items: Sequence[Any]) -> str:
    """A JSON list with one item a line, so that a change of one is a change of one line."""
    return "[\n" + ",\n".join(json.dumps(item) for item in items) + "\n]\n"
