"""The route by which a job tells of its I/O phases: it waits there until it has its turn.

While a client waits, nothing but white space is sent (a newline every ``HEARTBEAT_S``), so that
the answer is one JSON document and a client knows a daemon that is alive. A client that goes away
before its answer waits no longer; a turn that nobody was told of is given back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from aiohttp import web

from iodaemon.api.model import PhaseAnswer
from iodaemon.core import event as ev
from iodaemon.core.job import Job, JobId, Phase
from iodaemon.daemon.http.answer import json_answer
from iodaemon.daemon.http.lookup import Lookup
from iodaemon.daemon.http.route import Route
from iodaemon.errors import RequestError

HEARTBEAT_S: Final = 5.0
_MOST_BYTES: Final = 2**63 - 1

Bytes = Annotated[int, msgspec.Meta(ge=0, le=_MOST_BYTES)]


class _Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    phase: Literal["io", "done"]
    expect_bytes: Bytes | None = None


class Phasing:
    """Answers jobs that ask for their turn.

    Invariant: a job whose turn was granted but told to nobody is waited for by somebody.
    """

    def __init__(
        self, lookup: Lookup, *, ending: asyncio.Event, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self._lookup = lookup
        self._state = lookup.state
        self._driver = lookup.driver
        self._ending = ending
        self._heartbeat_s = heartbeat_s
        self._waiting: Counter[JobId] = Counter()
        self._told: dict[JobId, Phase] = {}

    def routes(self) -> Sequence[Route]:
        """The one route there is."""
        path = "/v1/jobs/{id}/phase"
        turn = Route(
            *("POST", path, self._phase, "ask for a turn to do I/O", PhaseAnswer),
            right="phase",
            body=_Asked,
        )
        return [turn]

    async def _phase(self, request: web.Request, job: Job, asked: _Asked) -> web.StreamResponse:
        if not job.is_live:
            raise RequestError(f"job {job.id} is {job.state}; only a job that runs does I/O")
        if asked.phase == "done":
            return await self._done(job.id)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self._waiting[job.id] += 1
        try:
            turn = await self._await_turn(request, response, job.id, asked.expect_bytes)
            await self._answer(request, response, job.id, granted=turn is not None)
        except (asyncio.CancelledError, ConnectionError):
            self._withdraw(job.id)
            raise
        finally:
            self._waiting = +(self._waiting - Counter({job.id: 1}))
        if turn is not None:
            self._told = {i: told for i, told in self._told.items() if i in self._state.phases}
            self._told[job.id] = turn
        return response

    async def _done(self, job_id: JobId) -> web.Response:
        before = self._phase_of(job_id)
        self._driver.post(ev.PhaseDone(at_s=self._driver.timeline.now_s, job_id=job_id))
        await self._lookup.until(lambda: before is None or self._phase_of(job_id) is not before)
        return json_answer({"job": self._lookup.record(await self._lookup.get(job_id))})

    async def _await_turn(
        self,
        request: web.Request,
        response: web.StreamResponse,
        job_id: JobId,
        expect_bytes: int | None,
    ) -> Phase | None:
        """The job's phase when it has its turn; None when the job ended, or the daemon does."""
        while (job := self._live(job_id)) is not None and not job.has_turn:
            if job.phase is None:
                now_s = self._driver.timeline.now_s
                self._driver.post(
                    ev.PhaseAsked(at_s=now_s, job_id=job_id, expect_bytes=expect_bytes)
                )
            if not await self._changed(job):
                await self._say(request, response, b"\n")
        return None if job is None else job.phase

    async def _answer(
        self, request: web.Request, response: web.StreamResponse, job_id: JobId, *, granted: bool
    ) -> None:
        job = self._lookup.record(await self._lookup.get(job_id))
        await self._say(request, response, msgspec.json.encode({"granted": granted, "job": job}))

    async def _say(self, request: web.Request, response: web.StreamResponse, data: bytes) -> None:
        """Send this; a client that closed its end before is gone (unix(7): EPIPE at once).

        Raises:
            ConnectionError: it is gone.
        """
        if not response.prepared:
            await response.prepare(request)
        await response.write(data)
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("the client is gone")

    async def _changed(self, seen: Job) -> bool:
        """Wait until the job's phase is another than was seen; False when nothing came of it."""
        return await self._lookup.until(
            lambda: self._live(seen.id) is None or self._phase_of(seen.id) is not seen.phase,
            self._heartbeat_s,
        )

    def _withdraw(self, job_id: JobId) -> None:
        """The client is gone: unless others wait, or know of the turn, the job wants it no more."""
        phase = self._phase_of(job_id)
        if phase is None or self._waiting[job_id] > 1 or self._ending.is_set():
            return
        if phase.granted_s is None or self._told.get(job_id) != phase:
            self._driver.post(ev.PhaseDone(at_s=self._driver.timeline.now_s, job_id=job_id))

    def _live(self, job_id: JobId) -> Job | None:
        """The job while it lives and the daemon serves; else None."""
        job = self._state.jobs.get(job_id)
        return None if job is None or not job.is_live or self._ending.is_set() else job

    def _phase_of(self, job_id: JobId) -> Phase | None:
        job = self._state.jobs.get(job_id)
        return None if job is None else job.phase
