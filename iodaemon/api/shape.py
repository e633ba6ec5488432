"""Whether an answer is one of ours, and how a question is put."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeGuard
from urllib.parse import urlencode

from iodaemon.api.model import Job, JsonObject, JsonValue, KeyedSum
from iodaemon.errors import RequestError

JOB_KEYS: Final = frozenset(Job.__required_keys__)
_SUM_KEYS: Final = frozenset(KeyedSum.__required_keys__)

_AROUND: Final = 20
"""Characters that are shown before one that cannot be sent, and about as many after it."""


class Selector(NamedTuple):
    """Jobs by what every given part says (SELECTOR of docs/api.md); what is empty does not."""

    select: str = ""
    user: str = ""
    name: str = ""
    states: tuple[str, ...] = ()

    @property
    def query(self) -> list[tuple[str, str]]:
        parts = (("select", self.select), ("user", self.user), ("name", self.name))
        states = [("state", state) for state in self.states]
        return [(key, value) for key, value in parts if value] + states

    @property
    def body(self) -> dict[str, object]:
        parts = dict(self.query)
        parts.pop("state", None)
        return {**parts, **({"state": list(self.states)} if self.states else {})}


def is_job(value: JsonValue) -> TypeGuard[JsonObject]:
    return isinstance(value, dict) and value.keys() >= JOB_KEYS


def is_sum(value: JsonValue) -> bool:
    return isinstance(value, dict) and value.keys() >= _SUM_KEYS


def target_of(path: str, query: Sequence[tuple[str, str]]) -> str:
    """The path with the query behind it. Raises RequestError: a text in it is none."""
    try:
        return f"{path}?{urlencode(query)}" if query else path
    except UnicodeEncodeError as error:
        raise no_text(error) from error


def no_text(error: UnicodeEncodeError) -> RequestError:
    """The error for a text that cannot be sent: itself, or as it stands in JSON."""
    begin = error.object.rfind('"', 0, error.start) + 1
    word = error.object[max(begin, error.start - _AROUND) :].partition('"')[0]
    shown = f"{os.fsencode(word[: 2 * _AROUND])!r}"[1:]
    return RequestError(f"{shown} is no UTF-8 text; nothing was done")
