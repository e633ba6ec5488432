"""The route by which a job tells of its I/O phases: it waits there until it has its turn.

While a client waits, nothing but white space is sent (a newline every ``heartbeat_s``), so that
the answer is one JSON document and a client knows a daemon that is alive. A client that goes away
before its answer waits no longer; a turn that nobody was told of is given back.

Invariant: a job whose turn was granted but told to nobody is waited for by somebody.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web

from iodaemon.api.model import PhaseAnswer
from iodaemon.core import event as ev
from iodaemon.core.job import Job, JobId, Phase
from iodaemon.daemon.http.answer import json_answer
from iodaemon.daemon.http.context import Context
from iodaemon.daemon.http.route import route
from iodaemon.errors import RequestError

Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    phase: Literal["io", "done"]
    expect_bytes: Bytes | None = None


@route("POST /v1/jobs/{id}/phase", PhaseAnswer, right="phase", body=_Asked)
async def ask_for_turn(
    context: Context, request: web.Request, job: Job, asked: _Asked
) -> web.StreamResponse:
    """Ask for a turn to do I/O."""
    if not job.is_live:
        raise RequestError(f"job {job.id} is {job.state}; only a job that runs does I/O")
    if asked.phase == "done":
        before = _phase_of(context, job.id)
        context.driver.post(ev.PhaseDone(at_s=context.now_s, job_id=job.id))
        await context.until(lambda: before is None or _phase_of(context, job.id) is not before)
        return json_answer({"job": context.record(await context.get(job.id))})
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    context.phase_waits[job.id] += 1
    try:
        turn = await _await_turn(context, request, response, job.id, asked.expect_bytes)
        now = context.record(await context.get(job.id))
        told: dict[str, Any] = {"granted": turn is not None, "job": now}
        await _say(request, response, msgspec.json.encode(told))
    except (asyncio.CancelledError, ConnectionError):
        _withdraw(context, job.id)
        raise
    finally:
        context.phase_waits = +(context.phase_waits - Counter({job.id: 1}))
    if turn is not None:
        known = context.phases_told.items()
        context.phases_told = {i: told for i, told in known if i in context.state.phases}
        context.phases_told[job.id] = turn
    return response


async def _await_turn(
    context: Context,
    request: web.Request,
    response: web.StreamResponse,
    job_id: JobId,
    expect_bytes: int | None,
) -> Phase | None:
    """The job's phase when it has its turn; None when the job ended, or the daemon does."""
    while (job := _live(context, job_id)) is not None and not job.has_turn:
        if job.phase is None:
            asked = ev.PhaseAsked(at_s=context.now_s, job_id=job_id, expect_bytes=expect_bytes)
            context.driver.post(asked)
        seen = job.phase

        def is_other(seen: Phase | None = seen) -> bool:
            return _live(context, job_id) is None or _phase_of(context, job_id) is not seen

        if not await context.until(is_other, context.heartbeat_s):
            await _say(request, response, b"\n")
    return None if job is None else job.phase


async def _say(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Send this; a client that closed its end before is gone (unix(7): EPIPE at once).

    Raises:
        ConnectionError: it is gone.
    """
    if not response.prepared:
        await response.prepare(request)
    await response.write(data)
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the client is gone")


def _withdraw(context: Context, job_id: JobId) -> None:
    """The client is gone: unless others wait, or know of the turn, the job wants it no more."""
    phase = _phase_of(context, job_id)
    if phase is None or context.phase_waits[job_id] > 1 or context.ending.is_set():
        return
    if phase.granted_s is None or context.phases_told.get(job_id) != phase:
        context.driver.post(ev.PhaseDone(at_s=context.now_s, job_id=job_id))


def _live(context: Context, job_id: JobId) -> Job | None:
    job = context.state.jobs.get(job_id)
    return None if job is None or not job.is_live or context.ending.is_set() else job


def _phase_of(context: Context, job_id: JobId) -> Phase | None:
    job = context.state.jobs.get(job_id)
    return None if job is None else job.phase
