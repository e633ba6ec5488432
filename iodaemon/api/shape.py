"""Whether an answer is one of ours, and how a question is put."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeGuard
from urllib.parse import urlencode

from iodaemon.api.model import Job, JsonObject, JsonValue, KeyedSum

JOB_KEYS: Final = frozenset(Job.__required_keys__)
_SUM_KEYS: Final = frozenset(KeyedSum.__required_keys__)


def is_job(value: JsonValue) -> TypeGuard[JsonObject]:
    """True for a job with all that every daemon says of one."""
    return isinstance(value, dict) and value.keys() >= JOB_KEYS


def is_sum(value: JsonValue) -> bool:
    """True for one sum of a history."""
    return isinstance(value, dict) and value.keys() >= _SUM_KEYS


def target_of(path: str, query: Sequence[tuple[str, str]]) -> str:
    """The path with the query behind it."""
    return f"{path}?{urlencode(query)}" if query else path
