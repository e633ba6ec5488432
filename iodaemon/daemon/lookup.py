"""What every request needs: who asks, which job is meant, and how things are put into JSON."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from iodaemon.core.job import Job, JobId, JobState
from iodaemon.core.signature import name_of
from iodaemon.daemon.account import Accounts, groups_of_users, parse_user, refresh_groups
from iodaemon.daemon.allowance import NOT_COUNTED, Allowances
from iodaemon.daemon.authorise import Actor, Rights, Verb, authorise, read_peer
from iodaemon.daemon.driver import Driver
from iodaemon.daemon.front import read_bytes
from iodaemon.daemon.journal.writer import Journal
from iodaemon.daemon.record import job_record
from iodaemon.daemon.selector import Selector, id_bounds, parse_selector
from iodaemon.daemon.wait_mark import WaitMarks
from iodaemon.errors import NotFound, NotPermitted, RequestError
from iodaemon.supervisor.identity import no_account
from iodaemon.text import printable

MOST_JOBS: Final = 100_000
"""Finished jobs that one request looks at."""
_LOOKED_AT_ONCE: Final = 5000
"""Jobs looked at between two looks at what else there is to do: some milliseconds."""
Handler = TypeVar("Handler", bound=Callable[..., Any])
_QUERY_KEYS: Final = "query_keys"
SELECTOR_KEYS: Final = ("select", "user", "name", "state")
"""Of a query that selects jobs."""
LARGEST_ID: Final = 2**63 - 1
"""What the journal's database can hold."""
LARGEST_REQUEST_BYTES: Final = 8 * 1024 * 1024
"""But for submissions: it is decoded in one go, in less than half a second whatever it is."""
_MOST_DIGITS: Final = 30
"""A number beyond any that means something, and far below what Python refuses to read."""
_LONGEST_MESSAGE: Final = 490
"""Characters; what is longer quotes what somebody sent."""


class Lookup:
    """Finds jobs in memory or in the journal, and shows them."""

    def __init__(
        self,
        driver: Driver,
        journal: Journal,
        *,
        outputs: Path,
        rights: Rights,
        accounts: Accounts,
    ) -> None:
        self.driver = driver
        self.state = driver.state
        self.journal = journal
        self.outputs = outputs
        self._rights = rights
        self._accounts = accounts
        self.wait_marks = WaitMarks()
        self._allowances = Allowances(lambda: driver.timeline.now_s)

    @property
    def is_shared(self) -> bool:
        """True when users other than the daemon's own are served."""
        return self._rights.is_shared

    def allow(self, request: web.Request, verb: Verb, job: Job | None = None) -> Actor:
        """Who asks, if they may do this.

        Raises:
            NotPermitted: they may not.
        """
        actor = self.who(request)
        self.authorise(actor, verb, job)
        return actor

    def authorise(self, actor: Actor, verb: Verb, job: Job | None = None) -> None:
        """Let this actor do this.

        Raises:
            NotPermitted: they may not.
        """
        authorise(actor, verb, job, self._rights)

    def spend(self, uid: int, size_bytes: float) -> None:
        """What one user has written down is bounded; root, and who is alone, may fill the disk.

        Raises:
            RequestError: it is more than is left to this user.
        """
        if self.is_shared and uid not in NOT_COUNTED:
            self._allowances.spend(uid, size_bytes)

    async def refuse_stranger(self, actor: Actor, what: str) -> None:
        """Refuse who is only a number; where nobody answers who is, the supervisor will.

        Raises:
            NotPermitted: there is no such user.
        """
        if self.is_shared and await self._accounts.ask(actor.uid) is False:
            raise NotPermitted(
                f"{no_account(actor.uid)}, and may not {what}; {what} as yourself, outside of the "
                "user namespace"
            )

    def who(self, request: web.Request) -> Actor:
        """Who asks, whatever they may.

        Raises:
            NotPermitted: they are gone.
        """
        connection = _connection(request)
        if connection is None:
            raise NotPermitted("the connection is gone")
        return self._now(read_peer(connection))

    async def prepare(self, request: web.Request) -> None:
        """Learn which groups who asks is in now; their processes have those of their login."""
        connection = _connection(request)
        if connection is not None and self.is_shared:
            actor = read_peer(connection)
            if actor.uid not in (0, self._rights.owner_uid):
                await refresh_groups(actor.uid)

    def _now(self, actor: Actor) -> Actor:
        """With the groups of today where they are known; else with those of the login."""
        known = groups_of_users().known(actor.uid) if self.is_shared else None
        return actor if known is None else actor._replace(gids=known.value)

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


def takes(*keys: str) -> Callable[[Handler], Handler]:
    """Say which keys a route's query may have; without it there are none."""

    def mark(handler: Handler) -> Handler:
        handler.__dict__[_QUERY_KEYS] = frozenset(keys)
        return handler

    return mark


def refuse_unknown_keys(request: web.Request) -> None:
    """Refuse a query with a key that its route does not know: it may restrict what is meant.

    Raises:
        RequestError: names the key.
    """
    if request.match_info.http_exception is not None:
        return  # no such route
    known: frozenset[str] = getattr(request.match_info.handler, _QUERY_KEYS, frozenset())
    for key in request.query:
        if key not in known:
            keys = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
            raise RequestError(
                f"{request.method} {request.path}: no query key {key[:_MOST_DIGITS]!r}; {keys}"
            )


def _connection(request: web.Request) -> socket.socket | None:
    """Of the client; None: it is gone."""
    transport = request.transport
    return None if transport is None else transport.get_extra_info("socket")


async def read_body(request: web.Request, type_: Any) -> Any:
    """The body as this type; an empty one is ``{}``.

    Raises:
        RequestError: it is malformed.
    """
    body = await read_bytes(request)
    if len(body) > LARGEST_REQUEST_BYTES:
        raise RequestError(
            f"a request of {len(body)} bytes, {LARGEST_REQUEST_BYTES} are the most; send less"
        )
    try:
        return msgspec.json.decode(body or b"{}", type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"malformed request: {error}") from error


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


def json_answer(value: object, *, status: int = 200) -> web.Response:
    """The value as JSON."""
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def error_answer(status: int, code: str, message: str) -> web.Response:
    """The error as JSON, its message in one line that gives no orders to a terminal."""
    text = printable(" ".join(message.split()))
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[:_LONGEST_MESSAGE]}..."
    body = json.dumps({"error": {"code": code, "message": text}})
    return web.Response(text=body, status=status, content_type="application/json")
