"""Finding the jobs that a request means, and reading what its query says."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from iodaemon.core.job import Job, JobId, JobState
from iodaemon.core.signature import name_of
from iodaemon.daemon.account import parse_user
from iodaemon.daemon.driver import Driver
from iodaemon.daemon.http.access import Access, Actor, give_place
from iodaemon.daemon.http.record import job_record
from iodaemon.daemon.http.selector import Selector, id_bounds, parse_selector
from iodaemon.daemon.http.wait_mark import WaitMarks
from iodaemon.daemon.journal.writer import Journal
from iodaemon.errors import NotFound, RequestError

MOST_JOBS: Final = 100_000
"""Finished jobs that one request looks at."""
_LOOKED_AT_ONCE: Final = 5000
"""Jobs looked at between two looks at what else there is to do: some milliseconds."""
LARGEST_ID: Final = 2**63 - 1
"""What the journal's database can hold."""
_MOST_DIGITS: Final = 30
"""A number beyond any that means something, and far below what Python refuses to read."""


class Lookup:
    """Finds jobs in memory or in the journal, and shows them."""

    def __init__(
        self,
        driver: Driver,
        journal: Journal,
        access: Access,
        *,
        outputs: Path,
    ) -> None:
        self.driver = driver
        self.state = driver.state
        self.journal = journal
        self.outputs = outputs
        self.access = access
        self.wait_marks = WaitMarks()

    async def until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait as ``Watch.until``; a request that has to wait gives its place to another one."""
        if holds():
            return True
        give_place()
        return await self.driver.watch.until(holds, timeout_s)

    async def job(self, request: web.Request) -> Job:
        """The job that the path names.

        Raises:
            RequestError: it names none.
            NotFound: there is none with this number.
        """
        text = request.match_info["id"]
        try:
            return await self.get(parse_number(text))
        except NotFound:
            raise
        except RequestError as error:
            raise RequestError(
                f"{text[:_MOST_DIGITS]!r} is no job id; ids are numbers, see 'iod queue'"
            ) from error

    async def get(self, job_id: int) -> Job:
        """The job with this number.

        Raises:
            NotFound: there is none.
        """
        [job] = await self.get_all([job_id])
        return job

    async def get_all(self, job_ids: Iterable[int]) -> list[Job]:
        """The jobs with these numbers, in this order.

        Raises:
            NotFound: one of them is unknown.
        """
        ids = [JobId(job_id) for job_id in job_ids]
        found = {job_id: self.state.jobs[job_id] for job_id in ids if job_id in self.state.jobs}
        missing = [job_id for job_id in ids if job_id not in found]
        if missing:
            found |= await asyncio.to_thread(self._read, missing)
        return [found[job_id] for job_id in ids]

    async def select(
        self,
        actor: Actor,
        asked: Selector,
        states: Collection[JobState],
        *,
        queued_from_s: float | None = None,
    ) -> list[Job]:
        """The jobs that the selector means, ordered by id.

        Args:
            actor: whose newest job is ``last``, where no user is given.
            asked: the selector.
            states: where the selector gives none.
            queued_from_s: of those that have ended only those that were submitted, or requeued,
                then or later.

        Raises:
            RequestError: a part of it means nothing.
            NotFound: no such user.
        """
        wanted = asked.states or states
        uid = await self._uid(actor, asked.user)
        last_id = 0
        if "last" in asked.select:
            last_id = await self._newest(actor.uid if uid is None else uid)
        selects = parse_selector(asked.select or "all", last_id)
        first, last = (last_id, last_id) if asked.select == "last" else id_bounds(asked.select)
        known: dict[JobId, Job] = {}
        if final := [state for state in sorted(wanted) if state.is_final]:
            stored = await asyncio.to_thread(
                self.journal.list_finished,
                MOST_JOBS,
                uid=uid,
                states=final,
                ended_from_s=queued_from_s,
                first_id=first,
                last_id=None if last is None else min(last, LARGEST_ID),
            )
            known = {job.id: job for job in stored}
        found = []
        for place, (job_id, job) in enumerate(sorted((known | self.state.jobs).items()), 1):
            if place % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if job.state not in wanted or not selects(job_id) or uid not in (None, job.uid):
                continue
            if queued_from_s is not None and job.state.is_final and job.queued_s < queued_from_s:
                continue
            if not asked.name or fnmatchcase(name_of(job.spec), asked.name):
                found.append(job)
        return found

    async def _uid(self, actor: Actor, user: str) -> int | None:
        if not user:
            return None
        return actor.uid if user == "me" else await asyncio.to_thread(parse_user, user)

    async def _newest(self, uid: int) -> int:
        stored = await asyncio.to_thread(self.journal.newest_job, uid)
        known = (job.id for job in self.state.jobs.values() if job.uid == uid)
        return max(stored, max(known, default=0))

    def _read(self, job_ids: Iterable[JobId]) -> dict[JobId, Job]:
        """Jobs that only the journal knows; in a thread, because its disk may be busy."""
        found: dict[JobId, Job] = {}
        for job_id in job_ids:
            job = self.journal.finished(job_id) if 0 < job_id <= LARGEST_ID else None
            if job is None:
                raise NotFound(f"no job {job_id}; 'iod queue -a' lists all that are known")
            found[job_id] = job
        return found

    def is_over(self, job_id: JobId) -> bool:
        """Ended, and on the disk as ended: so it stays, unless requeued. Unknown jobs are over."""
        job = self.state.jobs.get(job_id)
        return job is None or (job.state.is_final and self.driver.is_durable(job_id))

    def record(self, job: Job) -> dict[str, Any]:
        """The job as the API shows it."""
        state = self.state if job.id in self.state.jobs else None
        return job_record(job, state, self.driver.timeline.now_s, self.outputs)


def parse_number(text: str) -> int:
    """A number from a path or query, 0 or above.

    Raises:
        RequestError: it is none.
    """
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise RequestError(f"{text[:_MOST_DIGITS]!r} is no number; write one from 0 on")
    return int(text)


def parse_time(query: Mapping[str, str], key: str, now_s: float) -> float | None:
    """A time from a query, seconds since 1970; None: it names none.

    A negative number is so many seconds before now (-0 is now), so that ages are judged by the
    clock of the records, which need not be the caller's.

    Raises:
        RequestError: it is none.
    """
    if key not in query:
        return None
    try:
        value = float(query[key])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RequestError(f"{key}={query[key][:40]!r} is no time; write seconds since 1970")
    return now_s + value if math.copysign(1.0, value) < 0.0 else value


def parse_event(text: str, name: str) -> int:
    """The id of an event.

    Raises:
        RequestError: it is none.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS:
        raise RequestError(f"{name} {text[:40]!r} is no event; write the 'id' of one")
    return min(int(text), LARGEST_ID)
