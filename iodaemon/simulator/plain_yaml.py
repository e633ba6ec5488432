"""The little YAML that StorAlloc's files are written in: block mappings, block lists, scalars.

No anchors, tags, flow collections or text over several lines: each is refused with its line. That
is what ``yaml.dump`` writes for records, and what people write by hand for requests.
"""

from __future__ import annotations

import re
from typing import Any, Final

from iodaemon.errors import RequestError

_KEY: Final = re.compile(r"([A-Za-z_][\w .-]*?)\s*:(?:\s+(.*)|)$")
_WHOLE: Final = re.compile(r"[-+]?[0-9]+")
_QUOTED: Final = re.compile(r"""'((?:[^']|'')*)'|"([^"\\]*)\"""")
_REFUSED: Final = tuple("&*!|>%@`{[")
_Line = tuple[int, int, str]
"""Number, indent, text."""


def parse_yaml(text: str, where: str) -> Any:
    """What the text holds: dictionaries, lists, strings and numbers.

    A scalar is a whole number, a number, or text; dates are text.

    Args:
        text: a document.
        where: for messages.

    Raises:
        RequestError: it is no such document; names the line.
    """
    lines = [
        (number, len(line) - len(line.lstrip(" ")), line.strip())
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#") and line.strip() != "---"
    ]
    if not lines:
        return None
    reader = _Reader(lines, where)
    value = reader.block(lines[0][1])
    if reader.place < len(lines):
        reader.refuse("it is indented less than what is above it")
    return value


class _Reader:
    """Where the reading stands."""

    def __init__(self, lines: list[_Line], where: str) -> None:
        self.lines = lines
        self.where = where
        self.place = 0

    def refuse(self, problem: str) -> None:
        number, _, text = self.lines[min(self.place, len(self.lines) - 1)]
        shown = text if len(text) <= 40 else f"{text[:39]}…"
        raise RequestError(f"{self.where}:{number}: {problem}: {shown}")

    def block(self, indent: int) -> Any:
        """The list or mapping whose lines begin at this indent."""
        text = self.lines[self.place][2]
        return self._list(indent) if text == "-" or text.startswith("- ") else self._table(indent)

    def _is_at(self, indent: int) -> bool:
        return self.place < len(self.lines) and self.lines[self.place][1] == indent

    def _list(self, indent: int) -> list[Any]:
        found = []
        while self._is_at(indent):
            number, _, text = self.lines[self.place]
            if text != "-" and not text.startswith("- "):
                break
            rest = text[1:].lstrip()
            if not rest:
                self.place += 1
                found.append(self._below(indent))
            elif _KEY.match(rest):
                inner = indent + len(text) - len(rest)
                self.lines[self.place] = (number, inner, rest)
                found.append(self._table(inner))
            else:
                found.append(self._scalar(rest))
                self.place += 1
        return found

    def _table(self, indent: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._is_at(indent):
            text = self.lines[self.place][2]
            if text.startswith("- "):
                break
            match = _KEY.match(text)
            if match is None:
                self.refuse("this is no 'key: value'")
                break
            key, value = match[1], (match[2] or "").strip()
            if key in found:
                self.refuse(f"{key!r} is there twice")
            if value and not value.startswith("#"):
                found[key] = self._scalar(value)
                self.place += 1
            else:
                self.place += 1
                found[key] = self._below(indent)
        if self.place < len(self.lines) and self.lines[self.place][1] > indent:
            self.refuse("it is indented more than what is above it")
        return found

    def _below(self, indent: int) -> Any:
        """What belongs to a key or a dash: lines indented more, or a list as far as the key."""
        if self.place == len(self.lines):
            return None
        _, inner, text = self.lines[self.place]
        if inner > indent or (inner == indent and text.startswith("-")):
            return self.block(inner)
        return None

    def _scalar(self, text: str) -> str | int | float:
        if match := _QUOTED.match(text):
            rest = text[match.end() :].strip()
            if rest and not rest.startswith("#"):
                self.refuse("there is more behind the quotes")
            return match[2] if match[1] is None else match[1].replace("''", "'")
        if text.startswith((*_REFUSED, "'", '"')):
            self.refuse("this is more YAML than is understood here")
        text = text.partition(" #")[0].rstrip()
        if _WHOLE.fullmatch(text):
            return int(text)
        try:
            return float(text)
        except ValueError:
            return text
