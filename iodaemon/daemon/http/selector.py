"""Which jobs a request means: ``7``, ``3-9``, ``1,4``, ``last``, ``all``."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

import msgspec

from iodaemon.core.job import JobState
from iodaemon.errors import RequestError

_PART: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


class Ids:
    """The ids that a selector's text means.

    Attributes:
        bounds: the lowest and the highest; None: it does not bound them.
        numbers: those that are named by themselves, each once.
    """

    def __init__(self, text: str, last_id: int = 0) -> None:
        """Read the text.

        Args:
            text: parts separated by commas; empty: all.
            last_id: what ``last`` means; 0: no id.

        Raises:
            RequestError: it is no selector.
        """
        self.bounds: tuple[int, int] | tuple[None, None] = (None, None)
        self.numbers: dict[int, None] = {}
        self._is_all = text in ("", "all")
        if self._is_all:
            return
        ranges: list[tuple[int, int]] = []
        for part in map(str.strip, text.split(",")):
            match = _PART.fullmatch(part)
            if part == "last":
                ranges.append((last_id, last_id))
            elif match is None:
                raise RequestError(f"{part!r} selects no jobs; write 7, 3-9, 1,4, last or all")
            else:
                ranges.append((int(match[1]), int(match[2] or match[1])))
                if match[2] is None:
                    self.numbers[int(match[1])] = None
        merged = _merged(ranges)
        self._firsts, self._lasts = zip(*merged, strict=True)
        self.bounds = (merged[0][0], merged[-1][1])

    def __contains__(self, job_id: int) -> bool:
        if self._is_all:
            return True
        place = bisect_right(self._firsts, job_id) - 1
        return place >= 0 and job_id <= self._lasts[place]


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same ids in ranges that do not meet, in order; at least one, which may be empty.

    A request may name thousands, and each of thousands of jobs is looked up in them.
    """
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        elif first <= last:
            merged.append((first, last))
    return merged or [(0, -1)]


class Selector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs a request means: those that every given part selects. What is empty does not.

    Attributes:
        select: ids, as ``Ids`` reads them.
        user: the submitter, by name or number; ``me`` is the caller.
        name: a glob over job names, case counts.
        state: states by word or code; empty: those that the request is about.
    """

    select: str = ""
    user: str = ""
    name: str = ""
    state: tuple[str, ...] = ()

    @property
    def names_ids(self) -> bool:
        return self.select not in ("", "all")

    @property
    def has_filters(self) -> bool:
        return bool(self.user or self.name or self.state)


def parse_states(words: Iterable[str]) -> frozenset[JobState]:
    """States from words or codes, in any case.

    Raises:
        RequestError: there is no such state.
    """
    found = set()
    for word in words:
        state = _STATES.get(word.upper())
        if state is None:
            raise RequestError(f"no state {word!r}; known: {', '.join(sorted(_STATES))}")
        found.add(state)
    return frozenset(found)


_STATES: Final = {word: state for state in JobState for word in (str(state), state.code)}
