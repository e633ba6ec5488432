"""The routes that read: jobs, their output, and waiting for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
from aiohttp import web

from iodaemon.api.model import (
    AwaitedAnswer,
    JobDetail,
    JobsAnswer,
    MarkAnswer,
    MeAnswer,
    WaitAnswer,
)
from iodaemon.core.job import Job, JobId, JobState
from iodaemon.daemon.account import user_name
from iodaemon.daemon.http.access import give_place
from iodaemon.daemon.http.answer import OUTPUT, Answer, json_answer
from iodaemon.daemon.http.context import (
    LONGEST_POLL_S,
    MOST_JOBS,
    Context,
    parse_number,
    parse_time,
    selector_of,
    session_of,
)
from iodaemon.daemon.http.output import stream_output
from iodaemon.daemon.http.record import asked_path, load_line, output_path
from iodaemon.daemon.http.route import SELECTOR_KEYS, route
from iodaemon.daemon.http.selector import parse_states
from iodaemon.errors import RequestError

_MOST_AWAITED: Final = 10_000
"""Jobs in one request to wait; all of them are told of in its answer, some 10 MB."""
_MANY: Final = 100
"""Jobs of one request that only the journal may know: it is asked for each of them."""


class _Wait(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ids: Annotated[tuple[int, ...], msgspec.Meta(max_length=_MOST_AWAITED)]
    timeout_s: float = 30.0


class _Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    now_s: float


@route("GET /v1/jobs", JobsAnswer, *SELECTOR_KEYS, "all", "limit")
async def list_jobs(context: Context, request: web.Request) -> web.StreamResponse:
    """The queue."""
    limit = parse_number(request.query.get("limit", str(MOST_JOBS)))
    asked = selector_of(request.query)
    all_jobs = bool(asked.select) or request.query.get("all") == "1"
    states = parse_states(asked.state) or [
        state for state in JobState if all_jobs or not state.is_final
    ]
    async with Answer(request) as answer:
        if any(state.is_final for state in states):
            await answer.take_turn()  # before all of them are in memory
        chosen = await context.select(context.access.who(request), asked, states)
        controller = context.driver.controller
        node = load_line(
            context.state, controller.rules, controller.faults, controller.regulator.mode
        )
        newest = chosen[max(0, len(chosen) - limit) :]
        head = {"version": 1, "now_s": context.now_s, "node": node}
        return await answer.send_rows("jobs", map(context.record, newest), head)


@route("GET /v1/jobs/{id}", JobDetail)
async def show_job(context: Context, _: web.Request, job: Job) -> web.Response:
    """One job."""
    config = context.force.config
    counters = context.state.meter.counters(job.id) if job.is_live else None
    extra = {
        "pids": context.door.pids(job.id),
        "counters": msgspec.to_builtins(counters),
        "output_kept_s": config.retain_s if asked_path(job, "stdout") is None else None,
    }
    return json_answer({**context.record(job), **extra})


@route(
    *("GET /v1/jobs/{id}/logs", OUTPUT, "stream", "tail", "begin", "follow"),
    right="read_output",
)
async def read_output(context: Context, request: web.Request, job: Job) -> web.StreamResponse:
    """A job's output."""
    stream = request.query.get("stream", "stdout")
    tail = parse_number(request.query["tail"]) if "tail" in request.query else None
    begin = parse_number(request.query.get("begin", "0"))
    follow = request.query.get("follow") == "1"
    path = output_path(job, context.outputs, stream)
    if context.access.rights.is_shared and (asked := asked_path(job, stream)) is not None:
        # The daemon reads its journal and all jobs' output; whoever asks may not. By who chose the
        # path, not by where it lies: one in the jobs' directory may be another job's, and ".." in
        # it leads out of it.
        raise RequestError(f"job {job.id} writes to {asked}; read it there")
    give_place()
    if path is None and not follow:
        raise RequestError(f"job {job.id} has no output: it is {job.state} and never started")

    async def look() -> tuple[Path | None, bool]:
        now = await context.get(job.id)
        over = now.state.is_final or context.ending.is_set()
        return output_path(now, context.outputs, stream), over

    response = web.StreamResponse(headers={"Content-Type": OUTPUT})
    await stream_output(
        *(request, response, look),
        threads=context.threads,
        follow=follow,
        tail=tail,
        begin=begin,
    )
    return response


@route("GET /v1/me", MeAnswer)
async def show_caller(context: Context, request: web.Request) -> web.Response:
    """Who asks, and from within which job."""
    actor = context.access.who(request)
    job_id = context.door.job_of(actor.pid)
    return json_answer({"uid": actor.uid, "user": user_name(actor.uid), "job_id": job_id})


# -- waiting ---------------------------------------------------------------------------------------


@route("POST /v1/wait", WaitAnswer, body=_Wait)
async def wait(context: Context, request: web.Request, asked: _Wait) -> web.StreamResponse:
    """Wait until jobs have ended."""
    ids = list(dict.fromkeys(map(JobId, asked.ids)))
    async with Answer(request) as answer:
        if len(ids) > _MANY:
            await answer.take_turn()  # the journal is asked for what is over
        await context.get_all(ids)
    left = ids[::-1]

    def over() -> bool:
        """What is over stays over: each job is looked at once after its end."""
        while left and context.is_over(left[-1]):
            left.pop()
        return not left or context.ending.is_set()

    await context.until(over, min(max(0.0, asked.timeout_s), LONGEST_POLL_S))
    async with Answer(request) as answer:
        if len(ids) > _MANY:
            await answer.take_turn()
        jobs = await context.get_all(ids)
        return await answer.send_rows("jobs", map(context.record, jobs), {"finished": not left})


@route("GET /v1/wait/all", AwaitedAnswer, *SELECTOR_KEYS, "since_s")
async def list_awaited(context: Context, request: web.Request) -> web.Response:
    """What 'iod wait all' waits for."""
    actor, now_s = context.access.who(request), context.now_s
    since_s = parse_time(request.query, "since_s", now_s)
    if since_s is None:
        since_s = context.wait_marks.since_s(actor.uid, session_of(actor.pid), now_s)
    asked = selector_of(request.query)
    if not asked.user:
        asked = msgspec.structs.replace(asked, user="me")
    async with Answer(request) as answer:
        await answer.take_turn()
        jobs = await context.select(actor, asked, list(JobState), queued_from_s=since_s)
    return json_answer({"since_s": since_s, "now_s": now_s, "ids": [job.id for job in jobs]})


@route("POST /v1/wait/all", MarkAnswer, body=_Told)
async def note_told(context: Context, request: web.Request, told: _Told) -> web.Response:
    """The caller knows how all jobs of then ended."""
    actor, at_s = context.access.who(request), min(told.now_s, context.now_s)
    context.wait_marks.told(actor.uid, session_of(actor.pid), at_s)
    return json_answer({"since_s": at_s})
