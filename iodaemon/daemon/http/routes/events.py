"""The routes that tell why: explanations, events, samples for replay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

from iodaemon.api.model import LAST_EVENT, SamplesAnswer, WhyAnswer
from iodaemon.core.decision import Transition
from iodaemon.core.explain import explain
from iodaemon.core.job import Job, JobId
from iodaemon.daemon.http.answer import LINES, PIECE_BYTES, Answer, json_answer
from iodaemon.daemon.http.context import LARGEST_ID, Context, parse_number, parse_time
from iodaemon.daemon.http.record import STAGES, find_stage
from iodaemon.daemon.http.route import route
from iodaemon.daemon.journal.record import Event, Note
from iodaemon.daemon.journal.writer import Journal
from iodaemon.errors import Gone, RequestError

_MOST_EVENTS: Final = 100_000
_MOST_STEPS: Final = 1000
"""Of one job's life; the newest. Who suspends and resumes it all day long makes more."""
_SETTLING_S: Final = 2.0
"""How long what just happened may take to reach the disk before the past is read without it."""
_MOMENT_S: Final = 0.25
"""The same for somebody who only wants to know why; the last steps may then be missing."""
_PAGE_EVENTS: Final = 1000
"""Events that are read from the journal at a time."""
_MOST_SAMPLES: Final = 3600
"""Samples in one answer: an hour of one a second; ask again from the last one on."""


@route("GET /v1/jobs/{id}/why", WhyAnswer)
async def tell_why(context: Context, _: web.Request, job: Job) -> web.Response:
    """Why a job is where it is."""
    controller = context.driver.controller
    told = explain(
        context.state,
        controller.rules,
        job,
        context.now_s,
        shadow=controller.regulator.shadow,
        account=controller.account(job),
    )
    is_so = told.is_so
    if (stage := find_stage(job, context.outputs)) is not None:
        is_so += f"; {STAGES[stage]}"
    if job.is_live and (stop := context.driver.backend.describe_stop(job.id)):
        is_so += f"; {stop}: 'iod resume {job.id}' lets it go on"
    steps = await asyncio.to_thread(_life, context.journal, job.id)
    return json_answer(
        {
            "job": context.record(job),
            **msgspec.to_builtins(told),
            "is_so": is_so,
            "history": [_record(step) for step in steps[-_MOST_STEPS:]],
        }
    )


def _life(journal: Journal, job_id: JobId) -> Sequence[Event]:
    journal.flush(_MOMENT_S)
    return journal.steps(job_id)


# -- events ----------------------------------------------------------------------------------------


@route("GET /v1/events", LINES, "since", "after", "follow", headers=(LAST_EVENT,))
async def tell_events(context: Context, request: web.Request) -> web.StreamResponse:
    """What happens.

    First what happened since then or after that event. All of it is read from the journal: what is
    told is durable.
    """
    since_s, after = _beginning(request, context.now_s)
    follow = request.query.get("follow", "1") == "1"
    async with Answer(request, LINES) as answer:
        try:
            if not follow:
                await asyncio.to_thread(context.journal.flush, _SETTLING_S)
            told = await _tell_past(context.journal, answer, since_s, after)
            await answer.begin()
            if follow:
                await _tell_on(context, answer, told)
        except ConnectionResetError:
            pass  # nobody reads any more
        except Gone:  # at the beginning, or because the reader is too far behind
            if not answer.is_begun:
                raise
        return await answer.begin()


def _beginning(request: web.Request, now_s: float) -> tuple[float | None, int | None]:
    """Since when, or after which event, events are asked for.

    Raises:
        RequestError: both, or one that is none.
    """
    since_s = parse_time(request.query, "since", now_s)
    if "after" in request.query:
        if since_s is not None:
            raise RequestError("'since' and 'after' exclude each other; give one of them")
        after = request.query["after"]
    elif LAST_EVENT in request.headers:  # of a stream that began with 'since', and is resumed
        after = request.headers[LAST_EVENT]
    else:
        return since_s, None
    try:
        return None, min(parse_number(after), LARGEST_ID)
    except RequestError as error:
        raise RequestError(f"{after[:40]!r} is no event; write the 'id' of one") from error


async def _tell_past(
    journal: Journal, answer: Answer, since_s: float | None, after: int | None
) -> int:
    """The event up to which all is told."""
    newest = journal.newest_event
    if after is None and since_s is None:
        answer.headers[LAST_EVENT] = str(newest)
        return newest
    await answer.take_turn()  # before much of it is in memory
    if after is not None:
        answer.headers[LAST_EVENT] = str(after)
        told = await _tell_after(journal, answer, after, newest)
    else:
        past, told = await asyncio.to_thread(
            journal.events_since, since_s or 0.0, limit=_MOST_EVENTS
        )
        first = next((event for event, _ in past), told + 1)
        answer.headers[LAST_EVENT] = str(first - 1)
        await answer.write_all(map(_line, past))
    answer.give_turn()
    return told


async def _tell_after(journal: Journal, answer: Answer, told: int, until: int) -> int:
    """Tell the events after this one, at least until that one."""
    while True:
        page = await asyncio.to_thread(journal.events_after, told, limit=_PAGE_EVENTS)
        await answer.write_all(map(_line, page))
        told = max((event for event, _ in page), default=told)
        if told >= until or not page:
            return told


async def _tell_on(context: Context, answer: Answer, told: int) -> None:
    journal = context.journal

    def is_due() -> bool:
        return journal.newest_event > told or context.ending.is_set()

    while await context.until(is_due) and not context.ending.is_set():
        told = await _tell_after(journal, answer, told, journal.newest_event)


def _record(event: Event) -> dict[str, Any]:
    event_id, item = event
    match item:
        case Transition():
            return {"id": event_id, "kind": "moved", **msgspec.to_builtins(item)}
        case Note():
            told = {key: value for key, value in item.record.items() if key != "type"}
            return {"id": event_id, "kind": item.kind, **told}


def _line(event: Event) -> bytes:
    return msgspec.json.encode(_record(event)) + b"\n"


# -- samples ---------------------------------------------------------------------------------------


@route("GET /v1/samples", SamplesAnswer, "since")
async def tell_samples(context: Context, request: web.Request) -> web.StreamResponse:
    """Raw samples."""
    since_s = parse_time(request.query, "since", context.now_s) or 0.0
    async with Answer(request) as answer:
        await answer.take_turn()
        body = await _sampled(context, since_s)
        starts = range(0, len(body), PIECE_BYTES)
        return await answer.send(body[at : at + PIECE_BYTES] for at in starts)


async def _sampled(context: Context, since_s: float) -> bytes:
    journal, jobs = context.journal, context.state.jobs
    samples = await asyncio.to_thread(journal.samples, since_s=since_s, limit=_MOST_SAMPLES)
    ids = sorted({job_id for sample in samples for job_id in sample.jobs})
    known = {job_id: jobs[job_id] for job_id in ids if job_id in jobs}
    missing = [job_id for job_id in ids if job_id not in known]
    stored = await asyncio.to_thread(_stored, journal, missing)
    answer = {
        "samples": samples,
        "jobs": [job for _, job in sorted({**known, **stored}.items())],
        "platform": context.state.platform,
    }
    return await asyncio.to_thread(msgspec.json.encode, answer)


def _stored(journal: Journal, ids: Iterable[JobId]) -> dict[JobId, Job]:
    found = {job_id: journal.finished(job_id) for job_id in ids}
    return {job_id: job for job_id, job in found.items() if job is not None}
