"""Which jobs a request means: ``7``, ``3-9``, ``1,4``, ``last``, ``all``."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final

from iodaemon.errors import RequestError

_PART: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


def parse_selector(text: str, last_id: int) -> Callable[[int], bool]:
    """True for the ids that the text selects.

    Args:
        text: parts separated by commas.
        last_id: the newest job's id, for ``last``.

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
