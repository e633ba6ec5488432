"""Points in time as people type them: ``2d``, ``2 hours ago``, ``12:00``, ``2026-11-21 12:00``."""

from __future__ import annotations

import re
import time
from typing import Final

from iodaemon.cli.failure import UsageError
from iodaemon.errors import ConfigError

_WORDS: Final = {"now": None, "today": 0, "yesterday": 1}
"""Days before this one; None: the moment itself."""
_MOMENT: Final = re.compile(
    r"(?:(\d{4})-(\d{1,2})-(\d{1,2}))?(?:(?:^|[T ])(\d{1,2}):(\d{2})(?::(\d{2}))?)?", re.ASCII
)
_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(second|minute|hour|day|week)s?\s+ago", re.ASCII)
_HINT: Final = "write 2d, '2 hours ago', 12:00, 2026-11-21, '2026-11-21 12:00', today or yesterday"


def parse_moment_s(text: str, now_s: float, option: str) -> float:
    """The point in time as the API takes it: seconds since 1970, or less than 0: so long ago.

    What is so long ago is for the daemon to say, whose clock the records have; it may differ from
    this process's where the machine was suspended or its clock set.

    Args:
        text: a duration with its unit (so long ago), a time of day (the last one), a date (its
            first moment), both, or ``now``, ``today``, ``yesterday``.
        now_s: now, on the clock of the place.
        option: what the error names.

    Raises:
        UsageError: it means nothing.
    """
    word = text.strip()
    if word in _WORDS:
        days = _WORDS[word]
        return -0.0 if days is None else _clock_s(now_s, days, (0, 0, 0))
    word = _AGO.sub(lambda ago: f"{ago[1]}{ago[2][0]}", word)
    match = _MOMENT.fullmatch(word) if word else None
    moment_s = _ago_s(word) if match is None else _match_s(match, now_s)
    if moment_s is None:
        raise UsageError(f"{option}: {text!r} is no point in time: {_HINT}")
    return moment_s


def _ago_s(word: str) -> float | None:
    from iodaemon.units import parse_duration_s

    try:
        return -parse_duration_s(word) if re.search("[a-z]", word) else None
    except ConfigError:
        return None


def _match_s(match: re.Match[str], now_s: float) -> float | None:
    """The moment of a date, a time of day, or both; None: there is none such."""
    hour, minute, second = (int(field or 0) for field in match.groups()[3:])
    if hour > 23 or minute > 59 or second > 59:
        return None
    clock = (hour, minute, second)
    if match[1] is None:
        today_s = _clock_s(now_s, 0, clock)
        return today_s if today_s <= now_s else _clock_s(now_s, 1, clock)
    date = (int(match[1]), int(match[2]), int(match[3]))
    return _date_s(date, clock)


def _clock_s(now_s: float, days: int, clock: tuple[int, int, int]) -> float:
    """This time of day, so many days before today."""
    today = time.localtime(now_s)
    return time.mktime((today.tm_year, today.tm_mon, today.tm_mday - days, *clock, 0, 0, -1))


def _date_s(date: tuple[int, int, int], clock: tuple[int, int, int]) -> float | None:
    try:
        moment_s = time.mktime((*date, *clock, 0, 0, -1))
        found = time.localtime(moment_s)
    except (OverflowError, ValueError):
        return None
    return moment_s if date == (found.tm_year, found.tm_mon, found.tm_mday) else None
