"""``GET /v1/history``: finished jobs by user, name, state and time, one by one or added up.

Read from the journal a page at a time, in a thread: the loop never waits for the disk, and no
other reader waits for more than a page.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import AsyncIterator, Callable, Iterable
from fnmatch import fnmatchcase
from typing import Final

import msgspec
from aiohttp import web

from iodaemon.api.model import HistoryAnswer, KeyedSum, Sum, SumsAnswer
from iodaemon.core import measure
from iodaemon.core.job import Job, JobState
from iodaemon.core.signature import name_of
from iodaemon.daemon.account import parse_user, user_name
from iodaemon.daemon.http.answer import Answer, json_answer
from iodaemon.daemon.http.context import MOST_JOBS, Context, parse_number, parse_time
from iodaemon.daemon.http.route import SELECTOR_KEYS, route
from iodaemon.daemon.http.selector import Ids, parse_states
from iodaemon.daemon.journal.writer import Journal

_PAGE: Final = 1000
"""Jobs read at a time: some milliseconds, in which others who read the journal wait."""
_ENDED_WELL: Final = frozenset({JobState.COMPLETED, JobState.CANCELLED})

Cursor = tuple[float, int]
"""When the last job of a page ended, and its id."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Which finished jobs are meant; what is None or empty does not restrict.

    Attributes:
        select: ids as in ``GET /v1/jobs``; ``last`` is the job of ``last_of`` that ended last.
        last_of: the user asked for, else the caller.
        limit: of these, the ones that ended last.
        by: what they are added up by.
    """

    uid: int | None = None
    name: str = ""
    states: frozenset[JobState] = frozenset()
    since_s: float | None = None
    until_s: float | None = None
    select: str = ""
    last_of: int | None = None
    limit: int | None = None
    by: str | None = None


class Tally:
    """Adds jobs up: what SUM of docs/api.md has."""

    def __init__(self) -> None:
        self.sum: Sum = {
            "jobs": 0,
            "failed": 0,
            "cancelled": 0,
            "run_s": 0.0,
            "suspended_io_s": 0.0,
            "suspended_user_s": 0.0,
            "read_bytes": None,
            "written_bytes": None,
            "unknown_io_jobs": 0,
            "bandwidth_bytes_per_s": None,
            "charged_s": 0.0,
            "mean_slowdown": None,
            "jain_index": None,
        }
        self._moved_bytes = 0
        self._moving_s = 0.0
        self._slowdowns = array("d")

    def shown(self) -> Sum:
        """The sum as the API has it."""
        shown = self.sum.copy()
        if self._moving_s > 0:  # of the jobs whose I/O is known
            shown["bandwidth_bytes_per_s"] = self._moved_bytes / self._moving_s
        if self._slowdowns:
            shown["mean_slowdown"] = measure.mean(self._slowdowns)
            shown["jain_index"] = measure.jain_index(self._slowdowns)
        return shown

    def add(self, job: Job) -> None:
        """Count this finished job."""
        total = self.sum
        total["jobs"] += 1
        total["failed"] += job.state not in _ENDED_WELL
        total["cancelled"] += job.state is JobState.CANCELLED
        total["run_s"] += job.run_s
        total["charged_s"] += job.run_s if job.charged_s is None else job.charged_s
        total["suspended_io_s"] += job.suspended_io_s
        total["suspended_user_s"] += job.suspended_user_s
        total["read_bytes"] = _plus(total["read_bytes"], job.io.read_bytes)
        total["written_bytes"] = _plus(total["written_bytes"], job.io.written_bytes)
        is_known = None not in (job.io.read_bytes, job.io.written_bytes)
        total["unknown_io_jobs"] += job.started_s is not None and not is_known
        if job.io.total_bytes is not None:
            self._moved_bytes += job.io.total_bytes
            self._moving_s += job.run_s
        turnaround_s = measure.turnaround_s(job)
        if turnaround_s is not None and job.run_s > 0.0:
            self._slowdowns.append(measure.bounded_slowdown(turnaround_s, job.run_s))


def _plus(total: int | None, more: int | None) -> int | None:
    """The sum of what is known; None when nothing is."""
    return total if more is None else (total or 0) + more


class Tallies:
    """One tally for each user or name, and one for all."""

    def __init__(self, by: str) -> None:
        self._by = by
        self._of: dict[str, Tally] = {}
        self._all = Tally()

    def add(self, jobs: Iterable[Job]) -> None:
        """Count these finished jobs."""
        for job in jobs:
            key = user_name(job.uid) if self._by == "user" else name_of(job.spec)
            self._of.setdefault(key, Tally()).add(job)
            self._all.add(job)

    def rows(self) -> list[KeyedSum]:
        """One sum a key, who moved most first."""
        rows: list[KeyedSum] = [{"key": key, **tally.shown()} for key, tally in self._of.items()]
        return sorted(rows, key=lambda row: (-_moved_bytes(row), row["key"]))

    def total(self) -> Sum:
        """The sum of all."""
        return self._all.shown()


def _moved_bytes(row: KeyedSum) -> int:
    return (row["read_bytes"] or 0) + (row["written_bytes"] or 0)


@route(
    *("GET /v1/history", (HistoryAnswer, SumsAnswer)),
    *(*SELECTOR_KEYS, "since_s", "until_s", "limit", "by"),
)
async def tell_history(context: Context, request: web.Request) -> web.StreamResponse:
    """finished jobs, or their sums"""
    now_s = context.now_s
    asked = await asyncio.to_thread(parse_query, list(request.query.items()), now_s)
    last_of = context.access.who(request).uid if asked.uid is None else asked.uid
    asked = msgspec.structs.replace(asked, last_of=last_of)
    head = {"version": 1, "now_s": now_s}
    async with Answer(request) as answer:
        await answer.take_turn()  # before all of them are in memory
        if asked.by is None:
            limit = MOST_JOBS if asked.limit is None else min(asked.limit, MOST_JOBS)
            asked = msgspec.structs.replace(asked, limit=limit)
            jobs = [job async for page in pages(context.journal, asked) for job in page]
            return await answer.send_rows("jobs", map(context.record, reversed(jobs)), head)
        tallies = Tallies(asked.by)
        async for page in pages(context.journal, asked):
            await asyncio.to_thread(tallies.add, page)
        sums = {"by": asked.by, "sums": tallies.rows(), "total": tallies.total()}
        return json_answer({**head, **sums})


async def pages(journal: Journal, asked: Asked) -> AsyncIterator[list[Job]]:
    """The jobs asked for, some at a time, the one that ended last first."""
    left = math.inf if asked.limit is None else asked.limit
    matches = await asyncio.to_thread(_matcher, journal, asked)
    after: Cursor | None = None
    while left > 0:
        found, after = await asyncio.to_thread(
            _read_page, journal, asked, after=after, matches=matches
        )
        yield found if len(found) <= left else found[: int(left)]
        left = left - len(found) if after is not None else 0


def _read_page(
    journal: Journal, asked: Asked, *, after: Cursor | None, matches: Callable[[Job], bool]
) -> tuple[list[Job], Cursor | None]:
    """The jobs meant among the next ones, and where to go on; None: these were the last."""
    first_id, last_id = Ids(asked.select).bounds if "last" not in asked.select else (None, None)
    page = journal.list_finished(
        _PAGE,
        uid=asked.uid,
        states=sorted(asked.states),
        first_id=first_id,
        last_id=last_id,
        ended_from_s=asked.since_s,
        ended_before_s=asked.until_s,
        after=after,
    )
    last = page[-1] if len(page) == _PAGE else None
    go_on = None if last is None or last.ended_s is None else (last.ended_s, last.id)
    return list(filter(matches, page)), go_on


def _matcher(journal: Journal, asked: Asked) -> Callable[[Job], bool]:
    """True for the jobs whose id and name are meant; the rest is the journal's to compare."""
    newest = journal.list_finished(1, uid=asked.last_of) if "last" in asked.select else ()
    ids = Ids(asked.select, newest[0].id if newest else 0)
    return lambda job: (
        job.id in ids and (not asked.name or fnmatchcase(name_of(job.spec), asked.name))
    )


def parse_query(items: Iterable[tuple[str, str]], now_s: float) -> Asked:
    """What a query asks for. May wait for the system's user database.

    Raises:
        RequestError: a value of it means nothing.
        NotFound: no such user.
    """
    pairs = list(items)
    query = dict(pairs)
    select = query.get("select", "")
    Ids(select)  # says what is wrong with it
    return Asked(
        uid=parse_user(query["user"]) if "user" in query else None,
        name=query.get("name", ""),
        states=parse_states(value for key, value in pairs if key == "state"),
        since_s=parse_time(query, "since_s", now_s),
        until_s=parse_time(query, "until_s", now_s),
        select=select,
        limit=parse_number(query["limit"]) if "limit" in query else None,
        by=query.get("by"),
    )
