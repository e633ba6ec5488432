"""What is wrong with a request, in words: the answer of every refusal."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from aiohttp import web

from iodaemon.errors import RequestError
from iodaemon.text import printable

_LONGEST_MESSAGE: Final = 490
"""Characters; a longer message quotes what somebody sent."""


def error_answer(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """The error as JSON, its message in one line that gives no orders to a terminal."""
    text = printable(" ".join(message.split()))
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[:_LONGEST_MESSAGE]}..."
    body = json.dumps({"error": {"code": code, "message": text}})
    return web.Response(text=body, status=status, content_type="application/json", headers=headers)


@contextlib.contextmanager
def refuse_malformed(text: bytes, what: str, which: str = "") -> Iterator[None]:
    """Turn what msgspec says of a document into what its sender can do.

    Args:
        text: the document.
        what: it is, such as ``request``.
        which: goes before what is said of a value.

    Raises:
        RequestError: instead of any error in decoding.
    """
    try:
        yield
    except msgspec.ValidationError as error:
        raise RequestError(which + _say(str(error), f"the {what}", text)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{which}the {what} is no JSON: {error}") from error


_PLACE: Final = re.compile(r"(.*?)(?: - at `(?:key in )?\$(.*)`)?", re.DOTALL)
"""What is wrong, and where (msgspec says both in one sentence, and in no other way)."""
_ELEMENT: Final = re.compile(r"^\.(jobs|runs)\[(\d+)\]")
_TYPES: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_SAID: Final = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (
            r"Expected `str` of length <= (?P<a>\d+)",
            "{name} has more than {a} characters; shorten it",
        ),
        (r"Expected `\w+` of length <= (?P<a>\d+)", "{name} has more than {a} elements"),
        (r"Expected `\w+` of length >= 1", "{name} is empty"),
        (r"Expected `\w+` >= (?P<a>\S+)", "{name} must be at least {a}"),
        (r"Expected `\w+` <= (?P<a>\S+)", "{name} must be at most {a}"),
        (r"Expected `\w+` > (?P<a>\S+)", "{name} must be above {a}"),
        (r"Expected `str` matching regex '\^/'", "{name} must begin with /"),
        (r"Expected `(?P<a>.+)`, got `(?P<b>\w+)`", "{name} must be {a}, not {b}"),
        (
            r"Object missing required field `(?P<a>.+)`",
            "{a!r} is missing; docs/api.md lists what is required",
        ),
        (
            r"Object contains unknown field `(?P<a>.*)`",
            "there is no {a!r}; docs/api.md lists the keys",
        ),
        (r"Invalid enum value (?P<a>.+)", "{name} cannot be {a}; docs/api.md lists what it may be"),
        (r"(?:Integer|Number).* out of range", "{name} is out of range"),
    )
)
"""Every refusal of msgspec that a declared shape may meet, and what is said instead."""
_LONGEST: Final = 60
"""Characters that are quoted of what somebody sent."""


def _say(text: str, document: str, sent: bytes) -> str:
    """One refusal of msgspec's in words."""
    found = _PLACE.fullmatch(text)
    assert found is not None
    problem, place = found[1], found[2] or ""
    which = ""
    if (element := _ELEMENT.match(place)) is not None:
        several, number = element[1], int(element[2])
        if _has_several(sent, several):
            which = f"{several.removesuffix('s')} {number + 1}: "
        document = f"the {several.removesuffix('s')}"
        place = place[element.end() :]
    name = place.removeprefix(".").replace("[...]", "")
    for pattern, words in _SAID:
        if (match := pattern.fullmatch(problem)) is not None:
            parts = {key: _types(part)[:_LONGEST] for key, part in match.groupdict().items()}
            return which + words.format(name=name or document, **parts)
    return f"{which}{name or document}: {problem}"


def _has_several(sent: bytes, name: str) -> bool:
    """Whether the list of this name has more elements than one."""
    try:
        elements = msgspec.json.decode(sent, type=dict[str, msgspec.Raw])[name]
        return len(msgspec.json.decode(elements, type=list[msgspec.Raw])) > 1
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return True  # the rest of it is wrong as well


def _types(text: str) -> str:
    """What msgspec calls types, in words; anything else as it is."""
    parts = text.split(" | ")
    return " or ".join(_TYPES[each] for each in parts) if _TYPES.keys() >= {*parts} else text
