"""What every route has at hand: the daemon's parts, the jobs that a request means, its numbers."""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter, OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from aiohttp import web

from iodaemon.core.job import Job, JobId, JobState, Phase
from iodaemon.core.similarity import name_of
from iodaemon.core.state import State
from iodaemon.daemon.account import parse_user
from iodaemon.daemon.backends import Door
from iodaemon.daemon.calibrating import Measured
from iodaemon.daemon.driver import Driver
from iodaemon.daemon.http.access import Access, Actor, Rights, give_place, rights_of
from iodaemon.daemon.http.answer import Cached
from iodaemon.daemon.http.output import OutputThreads
from iodaemon.daemon.http.record import job_record
from iodaemon.daemon.http.report import node_report
from iodaemon.daemon.http.selector import Ids, Selector, parse_states
from iodaemon.daemon.journal.writer import Journal
from iodaemon.daemon.knowledge import Knowledge
from iodaemon.daemon.reload import InForce
from iodaemon.errors import JournalError, NotFound, RequestError

if TYPE_CHECKING:
    from multidict import MultiMapping

MOST_JOBS: Final = 100_000
"""Finished jobs that one request looks at."""
LONGEST_POLL_S: Final = 60
_LOOKED_AT_ONCE: Final = 5000
"""Jobs looked at between two looks at what else there is to do: some milliseconds."""
LARGEST_ID: Final = 2**63 - 1
"""What the journal's database can hold."""
_PAGE: Final = 1000
"""Finished jobs read at a time: some milliseconds."""
_MOST_DIGITS: Final = 30
"""A number beyond any that means something, and far below what Python refuses to read."""
_HEARTBEAT_S: Final = 5.0
Reload = Callable[[str], Awaitable[dict[str, Any]]]


@dataclass(kw_only=True)
class Context:
    """What one daemon's routes work on, and what they remember from request to request.

    Attributes:
        force: the configuration and the policy.
        door: the backend.
        outputs: where the output files of jobs are that name none.
        measured: of the disks. None: nothing was looked for.
        reload: reads the configuration again for the user of this name. None: there is none.
        rights: whom the daemon serves. None: as it is configured.
        ending: the daemon is about to end: who waits is answered.
        phase_waits: how many requests wait for a job's turn.
        phases_told: the turns that somebody knows of.
    """

    driver: Driver
    journal: Journal
    knowledge: Knowledge
    force: InForce
    door: Door
    outputs: Path
    measured: Measured | None = None
    reload: Reload | None = None
    rights: Rights | None = None
    heartbeat_s: float = _HEARTBEAT_S
    phase_waits: Counter[JobId] = field(default_factory=Counter)
    phases_told: dict[JobId, Phase] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.access = Access(self.rights or rights_of(self.force.config))
        self.ending = asyncio.Event()
        self.threads = OutputThreads()
        self.wait_marks = WaitMarks()
        self.node = Cached(self._report_node, self.driver)

    @property
    def state(self) -> State:
        return self.driver.state

    @property
    def now_s(self) -> float:
        return self.driver.timeline.now_s

    def _report_node(self) -> bytes:
        driver, config, measured = self.driver, self.force.config, self.measured
        report = node_report(
            driver.state,
            config.backend,
            self.door.describe(),
            driver.pace.report(self.door.samples_skipped),
            measured.report() if measured else (),
            calibration_problem=measured.problem if measured else "",
            faults=driver.controller.faults,
            is_system=config.is_system,
            mode=driver.controller.regulator.mode,
        )
        return msgspec.json.encode(report)

    async def until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait as ``Watch.until``; a request that has to wait gives its place to another one."""
        if holds():
            return True
        give_place()
        return await self.driver.watch.until(holds, timeout_s)

    def refuse_unwritable(self) -> None:
        """Refuse what only the journal can keep, while it cannot be written.

        Raises:
            JournalError: it cannot.
        """
        if self.driver.problem:
            raise JournalError(self.driver.problem)

    def refuse_above_limits(self, uid: int, cpus: Sequence[int]) -> None:
        """Refuse so many more jobs of a user, each with its CPUs.

        Raises:
            RequestError: they are too many.
        """
        text = self.state.users.refusal(uid, self.driver.waiting(uid), cpus)
        if text:
            raise RequestError(text)

    # -- jobs ------------------------------------------------------------------------------------

    async def job(self, request: web.Request) -> Job:
        """The job that the path names.

        Raises:
            RequestError: it names none.
            NotFound: there is none with this number.
        """
        text = request.match_info["id"]
        try:
            number = parse_number(text)
        except RequestError as error:
            raise RequestError(
                f"{text[:_MOST_DIGITS]!r} is no job id; ids are numbers, see 'iod queue'"
            ) from error
        return await self.get(number)

    async def get(self, job_id: int) -> Job:
        """The job with this number; raises NotFound."""
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

    def _read(self, job_ids: Iterable[JobId]) -> dict[JobId, Job]:
        """Jobs that only the journal knows; in a thread, because its disk may be busy."""
        found: dict[JobId, Job] = {}
        for job_id in job_ids:
            job = self.journal.finished(job_id) if 0 < job_id <= LARGEST_ID else None
            if job is None:
                raise no_job(job_id)
            found[job_id] = job
        return found

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
            states: where the selector gives none.
            queued_from_s: of those that have ended only those that were submitted, or requeued,
                then or later.

        Raises:
            RequestError: a part of it means nothing.
            NotFound: no such user.
        """
        wanted = parse_states(asked.state) or states
        uid = await find_uid(asked.user, actor.uid)
        last_id = 0
        if "last" in asked.select:
            whose = actor.uid if uid is None else uid
            last_id = await asyncio.to_thread(self.journal.newest_job, whose)
        ids = Ids(asked.select, last_id)
        known: dict[JobId, Job] = {}
        if final := [state for state in sorted(wanted) if state.is_final]:
            ended = Ended(uid=uid, name=asked.name, ids=ids, states=final, from_s=queued_from_s)
            async for page in pages(self.journal, ended):
                known |= {job.id: job for job in page}
        found = []
        for place, (job_id, job) in enumerate(sorted((known | self.state.jobs).items()), 1):
            if place % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if job.state not in wanted or job_id not in ids or uid not in (None, job.uid):
                continue
            if queued_from_s is not None and job.state.is_final and job.queued_s < queued_from_s:
                continue
            if not asked.name or fnmatchcase(name_of(job.spec), asked.name):
                found.append(job)
        return found

    def is_over(self, job_id: JobId) -> bool:
        """Ended, and on the disk as ended: so it stays, unless requeued. Unknown jobs are over."""
        job = self.state.jobs.get(job_id)
        return job is None or (job.state.is_final and self.driver.is_durable(job_id))

    def record(self, job: Job) -> dict[str, Any]:
        state = self.state if job.id in self.state.jobs else None
        return job_record(job, state, self.now_s, self.outputs)


def no_job(job_id: int) -> NotFound:
    return NotFound(f"no job {job_id}; 'iod queue -a' lists all that are known")


async def find_uid(user: str, caller_uid: int) -> int | None:
    """Whom a selector means; None: anybody."""
    if user in ("", "me"):
        return caller_uid if user else None
    return await asyncio.to_thread(parse_user, user)


# -- jobs that have ended --------------------------------------------------------------------------


class Ended(NamedTuple):
    """Which finished jobs are meant; what is None or empty does not restrict.

    Attributes:
        name: a glob over job names, case counts.
        from_s: when they ended, and so ``before_s``.
        limit: of these, the ones that ended last.
    """

    ids: Ids
    uid: int | None = None
    name: str = ""
    states: Sequence[JobState] = ()
    from_s: float | None = None
    before_s: float | None = None
    limit: int = MOST_JOBS


async def pages(journal: Journal, asked: Ended) -> AsyncIterator[list[Job]]:
    """The jobs asked for, the one that ended last first.

    Some at a time, in a thread: the loop never waits for the disk, and no other reader of the
    journal waits for more than a page.
    """
    left, after = asked.limit, None
    while left > 0:
        found, after = await asyncio.to_thread(_read_page, journal, asked, after)
        yield found[:left]
        left = left - len(found) if after is not None else 0


def _read_page(
    journal: Journal, asked: Ended, after: tuple[float, int] | None
) -> tuple[list[Job], tuple[float, int] | None]:
    """The jobs meant among the next ones, and where to go on; None: these were the last."""
    first, last = asked.ids.bounds
    page = journal.list_finished(
        _PAGE,
        uid=asked.uid,
        states=asked.states,
        first_id=first,
        last_id=None if last is None else min(last, LARGEST_ID),
        ended_from_s=asked.from_s,
        ended_before_s=asked.before_s,
        after=after,
    )
    end = page[-1] if len(page) == _PAGE else None
    go_on = None if end is None or end.ended_s is None else (end.ended_s, end.id)
    is_named = (lambda job: fnmatchcase(name_of(job.spec), asked.name)) if asked.name else bool
    return [job for job in page if job.id in asked.ids and is_named(job)], go_on


# -- queries ---------------------------------------------------------------------------------------


def selector_of(query: MultiMapping[str]) -> Selector:
    return Selector(
        select=query.get("select", ""),
        user=query.get("user", ""),
        name=query.get("name", ""),
        state=tuple(query.getall("state", [])),
    )


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


# -- since when 'iod wait all' looks back ----------------------------------------------------------

LONGEST_BACK_S: Final = 86400.0
"""A day: longer than scripts wait, shorter than what nobody asks for any more."""
_MOST_MARKS: Final = 10_000
"""Sessions that are remembered; the one not heard of for longest goes first."""
_ANY: Final = -1
"""In place of a session: of whichever the user waited in last."""


class WaitMarks:
    """Since when ``iod wait all`` looks back: a mark for each session of each user.

    A session is the kernel's (setsid(2)): a login, a terminal, a cron job. Its mark is its first
    submission, and then the last time that it was told of all ends. A session without a submission,
    such as a second ``ssh host iod ...``, has the mark of its user's last ``iod wait all``. So a
    job that fails before anybody waits is counted, and two sessions of a user that both submit do
    not move each other's mark.

    Without a mark, and at most, ``LONGEST_BACK_S`` are looked back: after a restart of the daemon
    failures may be told twice, but none is passed over.
    """

    def __init__(self) -> None:
        self._marks: OrderedDict[tuple[int, int], float] = OrderedDict()

    def submitted(self, uid: int, session: int, at_s: float) -> None:
        """A session without a mark begins one."""
        self._put((uid, session), self._marks.get((uid, session), at_s))

    def told(self, uid: int, session: int, at_s: float) -> None:
        """The user knows how all jobs of then ended; what is submitted later comes next time."""
        for key in ((uid, session), (uid, _ANY)):
            self._put(key, max(at_s, self._marks.get(key, at_s)))

    def since_s(self, uid: int, session: int, now_s: float) -> float:
        """The mark of this session."""
        mark_s = self._marks.get((uid, session), self._marks.get((uid, _ANY), 0.0))
        return max(mark_s, now_s - LONGEST_BACK_S)

    def _put(self, key: tuple[int, int], at_s: float) -> None:
        self._marks[key] = at_s
        self._marks.move_to_end(key)
        if len(self._marks) > _MOST_MARKS:
            self._marks.popitem(last=False)


def session_of(pid: int) -> int:
    """The session of a process; 0 where it is gone or not visible."""
    try:
        return os.getsid(pid) if pid > 0 else 0
    except OSError:
        return 0
