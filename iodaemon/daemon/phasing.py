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

from iodaemon.core import event as ev
from iodaemon.core.job import Job, JobId, Phase
from iodaemon.daemon.lookup import Lookup, json_answer, read_body
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
        self._told: dict[JobId, Phase | None] = {}

    def routes(self) -> Sequence[web.RouteDef]:
        """The one route there is."""
        return [web.post("/v1/jobs/{id}/phase", self._phase)]

    async def _phase(self, request: web.Request) -> web.StreamResponse:
        job = await self._lookup.job(request)
        self._lookup.allow(request, "phase", job)
        asked = await read_body(request, _Asked)
        if not job.is_live:
            raise RequestError(f"job {job.id} is {job.state}; only a job that runs does I/O")
        if asked.phase == "done":
            return await self._done(job.id)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        granted = await self._await_turn(request, response, job.id, asked.expect_bytes)
        answer = {"granted": granted, "job": self._lookup.record(await self._lookup.get(job.id))}
        if not response.prepared:
            return json_answer(answer)
        await response.write(msgspec.json.encode(answer))
        return response

    async def _done(self, job_id: JobId) -> web.Response:
        before = self._phase_of(job_id)
        self._driver.post(ev.PhaseDone(at_s=self._driver.timeline.now_s, job_id=job_id))
        await self._driver.watch.until(
            lambda: before is None or self._phase_of(job_id) is not before
        )
        return json_answer({"job": self._lookup.record(await self._lookup.get(job_id))})

    async def _await_turn(
        self,
        request: web.Request,
        response: web.StreamResponse,
        job_id: JobId,
        expect_bytes: int | None,
    ) -> bool:
        """True when the job has its turn; False when it ended, or the daemon does."""
        self._waiting[job_id] += 1
        try:
            while (job := self._live(job_id)) is not None and not job.has_turn:
                if job.phase is None:
                    self._driver.post(
                        ev.PhaseAsked(
                            at_s=self._driver.timeline.now_s,
                            job_id=job_id,
                            expect_bytes=expect_bytes,
                        )
                    )
                if not await self._changed(job):
                    await self._beat(request, response)
        except (asyncio.CancelledError, ConnectionError):
            self._withdraw(job_id)
            raise
        finally:
            self._waiting[job_id] -= 1
            if not self._waiting[job_id]:
                del self._waiting[job_id]
        if job is not None:
            self._tell(job)
        return job is not None

    async def _changed(self, seen: Job) -> bool:
        """Wait until the job's phase is another than was seen; False when nothing came of it."""
        return await self._driver.watch.until(
            lambda: self._live(seen.id) is None or self._phase_of(seen.id) is not seen.phase,
            self._heartbeat_s,
        )

    async def _beat(self, request: web.Request, response: web.StreamResponse) -> None:
        if not response.prepared:
            await response.prepare(request)
        await response.write(b"\n")

    def _tell(self, job: Job) -> None:
        """From now on the turn is the job's to give back."""
        self._told = {i: phase for i, phase in self._told.items() if i in self._state.phases}
        self._told[job.id] = job.phase

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
