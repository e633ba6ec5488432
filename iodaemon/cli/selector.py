"""Which jobs are meant: ``7``, ``3-9``, ``1,4``, ``last``, ``all``, several of them in a row."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from iodaemon.api.client import Client
from iodaemon.api.model import FINAL_STATES, Job
from iodaemon.cli.failure import UsageError
from iodaemon.errors import NotFound, RequestError

_HOW: Final = "write 7, 3-9, 1,4, last or all"
_DIGITS_MAX: Final = 18
"""Fits into the journal's 64-bit integers."""


class Selection(NamedTuple):
    """Jobs as the user named them.

    Attributes:
        items: each selector, without the commas.
        ids: the jobs named by their number, in order.
    """

    items: tuple[str, ...]
    ids: tuple[int, ...]

    @property
    def text(self) -> str:
        """As the API takes it; ``all`` stands alone there."""
        return "all" if self.is_all else ",".join(self.items)

    @property
    def is_plain(self) -> bool:
        """True when every job is named by its number: nobody needs to be asked."""
        return len(self.ids) == len(self.items)

    @property
    def is_all(self) -> bool:
        """True when ``all`` is among them."""
        return "all" in self.items


def parse_selectors(words: Sequence[str]) -> Selection:
    """What these words select.

    Raises:
        UsageError: a word selects nothing, or there is none.
    """
    items = [item for word in words for item in word.split(",")]
    if not items:
        raise UsageError(f"no job given: {_HOW}")
    return Selection(tuple(items), tuple(map(int, filter(_is_id, items))))


def _is_id(item: str) -> bool:
    """True for a number, False for the other selectors.

    Raises:
        UsageError: it is no selector.
    """
    if item in ("last", "all"):
        return False
    first, dash, last = item.partition("-")
    if not _is_number(first) or (dash and not _is_number(last)):
        raise UsageError(f"{item!r} selects no job: {_HOW}")
    if dash and int(first) > int(last):
        raise UsageError(f"{item!r} runs backwards: write {last}-{first}")
    return not dash


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) > 0


def find_ids(client: Client, selection: Selection, *, finished: bool) -> list[int]:
    """The numbers of the selected jobs, each once; asks the daemon only where it must.

    ``all`` is all that the caller may act on: the own jobs, or everybody's for root.

    Args:
        client: the daemon.
        selection: what the user named.
        finished: finished jobs too, where they are not named by number.

    Raises:
        NotFound: a range without any job in it.
        RequestError: all that are meant have ended, and finished ones are not wanted.
    """
    if selection.is_plain:
        return list(dict.fromkeys(selection.ids))
    unfinished = selection.is_all and not finished
    jobs = client.jobs(select="" if unfinished else selection.text, all_jobs=not unfinished)["jobs"]
    named = set(selection.ids)
    found = [job["id"] for job in jobs if job["id"] in named or _is_meant(job, selection, finished)]
    if not found and not selection.is_all and jobs:
        ended = job_words([job["id"] for job in jobs])
        raise RequestError(f"{ended} {'have' if len(jobs) > 1 else 'has'} ended already")
    if not found and not selection.is_all:
        raise NotFound(f"no job in {selection.text}: 'iod queue -a' lists them")
    return list(dict.fromkeys([*found, *selection.ids]))


def _is_meant(job: Job, selection: Selection, finished: bool) -> bool:  # noqa: FBT001
    if selection.is_all and not may_act_on(job):
        return False
    return finished or job["state"] not in FINAL_STATES


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
