"""``GET /v1/history``: finished jobs by user, name, state and time, one by one or added up."""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from aiohttp import web

from iodaemon.api.model import HistoryAnswer, KeyedSum, Sum, SumsAnswer
from iodaemon.core import measure
from iodaemon.core.job import Job, JobState
from iodaemon.core.similarity import name_of
from iodaemon.daemon.account import user_name
from iodaemon.daemon.http.answer import Answer, json_answer
from iodaemon.daemon.http.context import (
    MOST_JOBS,
    Context,
    Ended,
    find_uid,
    pages,
    parse_number,
    parse_time,
    selector_of,
)
from iodaemon.daemon.http.route import SELECTOR_KEYS, route
from iodaemon.daemon.http.selector import Ids, parse_states
from iodaemon.daemon.journal.writer import Journal

if TYPE_CHECKING:
    from multidict import MultiMapping

_ENDED_WELL: Final = frozenset({JobState.COMPLETED, JobState.CANCELLED})


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
        shown = self.sum.copy()
        if self._moving_s > 0:  # of the jobs whose I/O is known
            shown["bandwidth_bytes_per_s"] = self._moved_bytes / self._moving_s
        if self._slowdowns:
            shown["mean_slowdown"] = measure.mean(self._slowdowns)
            shown["jain_index"] = measure.jain_index(self._slowdowns)
        return shown

    def add(self, job: Job) -> None:
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
        is_known = None not in (job.io.read_bytes, job.io.written_bytes) and not job.io.at_least
        total["unknown_io_jobs"] += job.started_s is not None and not is_known
        if job.io.total_bytes is not None and not job.io.at_least:
            self._moved_bytes += job.io.total_bytes
            self._moving_s += job.run_s
        turnaround_s = measure.turnaround_s(job)
        if turnaround_s is not None and job.run_s > 0.0:
            self._slowdowns.append(measure.bounded_slowdown(turnaround_s, job.run_s))


def _plus(total: int | None, more: int | None) -> int | None:
    """The sum of what is known; None when nothing is."""
    return total if more is None else (total or 0) + more


class Tallies:
    def __init__(self, by: str) -> None:
        self._by = by
        self._of: dict[str, Tally] = {}
        self._all = Tally()

    def add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            key = user_name(job.uid) if self._by == "user" else name_of(job.spec)
            self._of.setdefault(key, Tally()).add(job)
            self._all.add(job)

    def rows(self) -> list[KeyedSum]:
        rows: list[KeyedSum] = [{"key": key, **tally.shown()} for key, tally in self._of.items()]
        return sorted(rows, key=lambda row: (-_moved_bytes(row), row["key"]))

    def total(self) -> Sum:
        return self._all.shown()


def _moved_bytes(row: KeyedSum) -> int:
    return (row["read_bytes"] or 0) + (row["written_bytes"] or 0)


@route(
    *("GET /v1/history", (HistoryAnswer, SumsAnswer)),
    *(*SELECTOR_KEYS, "since_s", "until_s", "limit", "by"),
)
async def tell_history(context: Context, request: web.Request) -> web.StreamResponse:
    """Finished jobs, or their sums."""
    now_s, by = context.now_s, request.query.get("by")
    caller_uid = context.access.who(request).uid
    head = {"version": 1, "now_s": now_s}
    async with Answer(request) as answer:
        await answer.take_turn()  # before all of them are in memory
        asked = await find_ended(context.journal, request.query, caller_uid, now_s)
        if by is None:
            jobs = [job async for page in pages(context.journal, asked) for job in page]
            return await answer.send_rows("jobs", map(context.record, reversed(jobs)), head)
        tallies = Tallies(by)
        async for page in pages(context.journal, asked):
            await asyncio.to_thread(tallies.add, page)
        return json_answer({**head, "by": by, "sums": tallies.rows(), "total": tallies.total()})


async def find_ended(
    journal: Journal, query: MultiMapping[str], caller_uid: int, now_s: float
) -> Ended:
    """What the query asks for; ``last`` is the job of its user, else the caller's, that ended last.

    Raises:
        RequestError: a value of it means nothing.
        NotFound: no such user.
    """
    asked = selector_of(query)
    Ids(asked.select)  # says what is wrong with it
    limit = parse_number(query.get("limit", str(sys.maxsize)))
    if "by" not in query:
        limit = min(limit, MOST_JOBS)
    states = sorted(parse_states(asked.state))
    from_s, before_s = (parse_time(query, name, now_s) for name in ("since_s", "until_s"))
    uid = await find_uid(asked.user, caller_uid)
    last_id = 0
    if "last" in asked.select:
        whose = caller_uid if uid is None else uid
        last_id = next(
            (job.id for job in await asyncio.to_thread(journal.list_finished, 1, uid=whose)), 0
        )
    return Ended(Ids(asked.select, last_id), uid, asked.name, states, from_s, before_s, limit)
