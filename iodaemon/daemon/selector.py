"""Which jobs a request means: ``7``, ``3-9``, ``1,4``, ``last``, ``all``."""

from __future__ import annotations

import re
from collections.abc import Callable
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
    return lambda job_id: any(first <= job_id <= last for first, last in ranges)
