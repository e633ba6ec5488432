"""Which jobs a request means: ``7``, ``3-9``, ``1,4``, ``last``, ``all``."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from iodaemon.core.job import JobState
from iodaemon.errors import RequestError

_PART: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


def parse_selector(text: str, last_id: int) -> Callable[[int], bool]:
    """True for the ids that the text selects.

    Args:
        text: parts separated by commas.
        last_id: the id of the user's newest job, for ``last``; 0: there is none.

    Raises:
        RequestError: it is no selector.
    """
    if text == "all":
        return lambda _: True
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if part.strip() == "last":
            ranges.append((last_id, last_id))
        elif match is None:
            raise RequestError(f"{part!r} selects no jobs; write 7, 3-9, 1,4, last or all")
        else:
            ranges.append((int(match[1]), int(match[2] or match[1])))
    firsts, lasts = zip(*_merged(ranges), strict=True)

    def selects(job_id: int) -> bool:
        place = bisect_right(firsts, job_id) - 1
        return place >= 0 and job_id <= lasts[place]

    return selects


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
    """Which jobs a request means: those that every given part selects.

    Attributes:
        select: ids, as ``parse_selector`` reads them; empty: any.
        user: the submitter, by name or number; ``me`` is the caller. Empty: anybody.
        name: a glob over job names, case counts. Empty: any.
        state: states by word or code; empty: those that the request is about.
    """

    select: str = ""
    user: str = ""
    name: str = ""
    state: tuple[str, ...] = ()

    @property
    def names_ids(self) -> bool:
        """True when ids are given, by number or as ``last``."""
        return self.select not in ("", "all")

    @property
    def has_filters(self) -> bool:
        """True when jobs are also selected by what they are."""
        return bool(self.user or self.name or self.state)

    @property
    def is_empty(self) -> bool:
        """True when nothing says which jobs are meant."""
        return not self.select and not self.has_filters

    @property
    def ids(self) -> tuple[int, ...]:
        """The jobs that are named by their number, each once."""
        parts = (part.strip() for part in self.select.split(","))
        return tuple(dict.fromkeys(int(part) for part in parts if part.isdigit()))

    @property
    def states(self) -> frozenset[JobState]:
        """The states that are given.

        Raises:
            RequestError: there is no such state.
        """
        return parse_states(self.state)


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


def id_bounds(select: str) -> tuple[int | None, int | None]:
    """The lowest and highest id that a selector names; None: it does not bound them."""
    if not select or re.search("[a-z]", select):
        return None, None
    ids = [int(digits) for digits in re.findall(r"\d+", select)]
    return min(ids), max(ids)
