"""Which jobs and moments are meant: ``7``, ``3-9``, ``last``, ``all``; ``2d``, ``12:00``."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from iodaemon.api.client import Client
from iodaemon.api.model import FINAL_STATES, STATE_CODES, Job
from iodaemon.api.shape import Selector
from iodaemon.cli.failure import UsageError, find_number, nearest
from iodaemon.errors import ConfigError, NotFound, RequestError

_HOW: Final = "write 7, 3-9, 1,4, last or all"


class Selection(NamedTuple):
    """Jobs as the user named them: those that every part selects.

    Attributes:
        items: each selector, without the commas.
        ids: the jobs named by their number, in order.
        user: the submitter; empty: as ``selector`` says.
        name: a glob over names; empty: any.
        states: empty: any that the verb is about.
    """

    items: tuple[str, ...]
    ids: tuple[int, ...]
    user: str = ""
    name: str = ""
    states: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The ids as the API takes them; ``all`` stands alone there."""
        return "all" if self.is_all else ",".join(self.items)

    @property
    def has_filters(self) -> bool:
        """True when jobs are also selected by what they are."""
        return bool(self.user or self.name or self.states)

    @property
    def is_plain(self) -> bool:
        """True when every job is named by its number: nobody needs to be asked."""
        return len(self.ids) == len(self.items) and not self.has_filters

    @property
    def is_all(self) -> bool:
        """True when no ids restrict it: ``all`` is among them, or there are none."""
        return "all" in self.items or not self.items

    @property
    def selector(self) -> Selector:
        """As the API takes it: without ids the caller's own jobs, or everybody's for root."""
        own = "me" if self.is_all and os.geteuid() != 0 else ""
        return Selector(self.text, self.user or own, self.name, self.states)


def parse_selectors(
    jobs: Sequence[str] | None = None,
    *,
    name: str | None = None,
    user: str | None = None,
    state: Sequence[str] | None = None,
) -> Selection:
    """What the words and options of ``SELECTED`` select."""
    for option, value in (("--user", user), ("--name", name)):
        if value == "":
            raise UsageError(f"{option} is empty, and would select every job: leave it out")
    items = [item for word in jobs or () for item in word.split(",")]
    wanted = tuple(parse_states(state or []))
    if not items and user is None and name is None and not wanted:
        raise UsageError(f"no job given: {_HOW}, or select by -J, -u or -s")
    ids = tuple(map(int, filter(_is_id, items)))
    return Selection(tuple(items), ids, user or "", name or "", wanted)


def _is_id(item: str) -> bool:
    """True for a number, False for the other selectors."""
    if item in ("last", "all"):
        return False
    first, dash, last = item.partition("-")
    if not _is_number(first) or (dash and not _is_number(last)):
        raise UsageError(f"{item!r} selects no job: {_HOW}, or -J NAME")
    if dash and int(first) > int(last):
        raise UsageError(f"{item!r} runs backwards: write {last}-{first}")
    return not dash


def _is_number(text: str) -> bool:
    return bool(find_number(text))


def find_ids(client: Client, selection: Selection, *, finished: bool) -> list[int]:
    """The numbers of the selected jobs, each once; asks the daemon only where it must.

    ``all`` is all that the caller may act on: the own jobs, or everybody's for root.

    Args:
        finished: finished jobs too, where they are not named by number.
    """
    if selection.is_plain:
        return list(dict.fromkeys(selection.ids))
    select, user, name, states = selection.selector
    unfinished = selection.is_all and not finished
    jobs = client.jobs(
        select="" if unfinished else select,
        user=user,
        name=name,
        states=states,
        all_jobs=not unfinished,
    )["jobs"]
    named = () if selection.has_filters else selection.ids
    found = [
        job["id"]
        for job in jobs
        if finished or states or job["id"] in named or job["state"] not in FINAL_STATES
    ]
    if not found and not selection.is_all and jobs:
        ended = job_words([job["id"] for job in jobs])
        raise RequestError(f"{ended} {'have' if len(jobs) > 1 else 'has'} ended already")
    if not found and not selection.is_all:
        such = " that is so" if selection.has_filters else ""
        raise NotFound(f"no job in {selection.text}{such}: 'iod queue -a' lists them")
    return list(dict.fromkeys([*found, *named]))


def may_act_on(job: Job) -> bool:
    """True for the caller's own jobs, and for root; the daemon's group may too, unknown here."""
    return os.geteuid() in (0, job["uid"])


def format_ids(ids: Iterable[int]) -> str:
    """Numbers with runs written as ranges: ``1-3,7``."""
    parts: list[list[int]] = []
    for number in sorted(ids):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def job_words(ids: Sequence[int]) -> str:
    """The jobs in a sentence: ``job 7`` or ``jobs 7-9``."""
    return f"job{'s' if len(ids) > 1 else ''} {format_ids(ids)}"


def parse_states(words: Sequence[str]) -> list[str]:
    """The states' words, from words or codes in any case, several in one word or not."""
    by_code = {code: state for state, code in STATE_CODES.items()}
    states = []
    for word in (part.upper() for text in words for part in text.split(",")):
        state = by_code.get(word, word)
        if state not in STATE_CODES:
            hint = f"one of {', '.join(STATE_CODES)}"
            raise UsageError(f"--state: no state {word!r}{nearest(word, STATE_CODES, hint)}")
        states.append(state)
    return states


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
