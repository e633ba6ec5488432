"""Why a value does not fit its declared type, in words: of a request, and of a configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_PLACE: Final = re.compile(r"(.*?)(?: - at `(?:key in )?\$(.*)`)?", re.DOTALL)
"""What is wrong, and where (msgspec says both in one sentence, and in no other way)."""
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
TYPES: Final[Mapping[str, str]] = {
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
            r"Object missing required field `(?P<missing>.+)`",
            "{missing!r} is missing; docs/api.md lists what is required",
        ),
        (
            r"Object contains unknown field `(?P<a>.*)`",
            "there is no {a!r}; docs/api.md lists the keys",
        ),
        (r"Invalid enum value (?P<a>.+)", "{name} cannot be {a}; docs/api.md lists what it may be"),
        (r"(?:Integer|Number).* out of range", "{name} is out of range"),
    )
)
"""Every refusal of msgspec that a declared type may meet, and what is said instead."""
_LONGEST: Final = 60
"""Characters that are quoted of what somebody sent."""


class Misfit(NamedTuple):
    """What is wrong.

    Attributes:
        message: with the name of the value.
        problem: the same where the last step of ``at`` is that name already.
        at: the way to the value, keys and numbers.
    """

    message: str
    problem: str
    at: tuple[str | int, ...]


def explain(
    text: str, document: str = "", *, root: str = "", types: Mapping[str, str] = TYPES
) -> Misfit:
    """What msgspec's words say.

    Args:
        text: of its ValidationError.
        document: what the whole is called, where that itself does not fit.
        root: goes before the way to a value.
        types: what its types are called.
    """
    found = _PLACE.fullmatch(text)
    assert found is not None
    problem, place = found[1], found[2] or ""
    at = tuple(int(number) if number else key for key, number in _STEP.findall(place))
    name = (root + place).removeprefix(".").replace("[...]", "") or document
    said, told = "{name}: {problem}", {"problem": problem}
    for pattern, words in _SAID:
        if (match := pattern.fullmatch(problem)) is not None:
            said = words
            told = {key: _types(part, types)[:_LONGEST] for key, part in match.groupdict().items()}
            break
    message = said.format(name=name, **told)
    if "missing" in told:
        at = (*at, told["missing"])
    if at and isinstance(at[-1], str):
        said = said.removeprefix("{name} ").removeprefix("{missing!r} ")
    return Misfit(message, said.format(name=name, **told), at)


def _types(text: str, types: Mapping[str, str]) -> str:
    """What msgspec calls types, in words; a whole number without ``.0``; anything else as it is."""
    if re.fullmatch(r"-?\d+\.0", text):
        return text.removesuffix(".0")
    parts = text.split(" | ")
    return " or ".join(types[each] for each in parts) if types.keys() >= {*parts} else text
