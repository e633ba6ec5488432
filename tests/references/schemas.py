"""Whether answers are as ``/v1/openapi.json`` says: each declared key, no other, right types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec


def find_undeclared(answer: Any, declared: Sequence[Any]) -> str:
    """How the answer is of none of the declared types; empty: it is of one."""
    found = [_find_undeclared(answer, each) for each in declared]
    return "" if "" in found else "; ".join(found) or "nothing is declared"


def _find_undeclared(answer: Any, declared: Any) -> str:
    try:
        read = msgspec.to_builtins(msgspec.convert(answer, declared))
    except msgspec.ValidationError as error:
        return str(error)
    return ", ".join(_more(answer, read, "$"))


def _more(answer: Any, read: Any, place: str) -> Iterator[str]:
    """What is in the answer and, because it is not declared, was not read."""
    if isinstance(answer, dict):
        for key in sorted(answer):
            if key in read:
                yield from _more(answer[key], read[key], f"{place}.{key}")
            else:
                yield f"{place}.{key} is not declared"
    elif isinstance(answer, list):
        for place_in, (one, other) in enumerate(zip(answer, read, strict=True)):
            yield from _more(one, other, f"{place}[{place_in}]")
