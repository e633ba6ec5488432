"""The routes that tell why: explanations, events, samples for replay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

from iodaemon.api.model import LAST_EVENT, SamplesAnswer, WhyAnswer
from iodaemon.core.decision import Transition
from iodaemon.core.job import Job, JobId
from iodaemon.core.why import explain
from iodaemon.daemon.http.answer import LINES, PIECE_BYTES, Answer, json_answer
from iodaemon.daemon.http.lookup import Lookup, parse_event, parse_time
from iodaemon.daemon.http.route import Route
from iodaemon.daemon.http.scratch_record import find_stage
from iodaemon.daemon.journal.record import Event, Note
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


_EVENT_KEYS: Final = ("since", "after", "follow")


class Telling:
    """Why, what happened, what was seen."""

    def __init__(self, lookup: Lookup, *, ending: asyncio.Event) -> None:
        self._lookup = lookup
        self._driver = lookup.driver
        self._state = lookup.state
        self._journal = lookup.journal
        self._ending = ending

    def routes(self) -> Sequence[Route]:
        """What is told where."""
        return [
            Route("GET", "/v1/jobs/{id}/why", self._why, "why it is where it is", WhyAnswer),
            Route("GET", "/v1/events", self._events, "what happens", LINES, _EVENT_KEYS),
            Route("GET", "/v1/samples", self._samples, "raw samples", SamplesAnswer, ("since",)),
        ]

    async def _why(self, _: web.Request, job: Job) -> web.Response:
        controller, now_s = self._driver.controller, self._driver.timeline.now_s
        told = explain(
            self._state,
            controller.rules,
            job,
            now_s,
            shadow=controller.regulator.shadow,
            account=controller.account(job),
        )
        stage = find_stage(job, self._lookup.outputs)
        if stage is not None:
            told = msgspec.structs.replace(told, is_so=f"{told.is_so}; {stage.text}")
        if job.is_live and self._driver.backend.is_stopped(job.id):
            cure = f"'iod resume {job.id}' lets it go on"
            is_so = f"{told.is_so}; its first process was stopped by a signal: {cure}"
            told = msgspec.structs.replace(told, is_so=is_so)
        steps = await asyncio.to_thread(self._life, job.id)
        return json_answer(
            {
                "job": self._lookup.record(job),
                **msgspec.to_builtins(told),
                "history": [_record(step) for step in steps[-_MOST_STEPS:]],
            }
        )

    def _life(self, job_id: JobId) -> Sequence[Event]:
        self._journal.flush(_MOMENT_S)
        return self._journal.steps(job_id)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """What happened since then or after that event; then what happens, for ever or until now.

        All of it is read from the journal: what is told is durable.
        """
        since_s, after = _beginning(request, self._driver.timeline.now_s)
        follow = request.query.get("follow", "1") == "1"
        async with Answer(request, LINES) as answer:
            try:
                if not follow:
                    await asyncio.to_thread(self._journal.flush, _SETTLING_S)
                told = await self._tell_past(answer, since_s, after)
                await answer.begin()
                if follow:
                    await self._tell_on(answer, told)
            except ConnectionResetError:
                pass  # nobody reads any more
            except Gone:  # at the beginning, or because the reader is too far behind
                if not answer.is_begun:
                    raise
            return await answer.begin()

    async def _tell_past(self, answer: Answer, since_s: float | None, after: int | None) -> int:
        """The event up to which all is told."""
        newest = self._journal.newest_event
        if after is None and since_s is None:
            answer.headers[LAST_EVENT] = str(newest)
            return newest
        await answer.take_turn()  # before much of it is in memory
        if after is not None:
            answer.headers[LAST_EVENT] = str(after)
            told = await self._tell_after(answer, after, newest)
        else:
            past, told = await asyncio.to_thread(
                self._journal.events_since, since_s or 0.0, limit=_MOST_EVENTS
            )
            first = next((event for event, _ in past), told + 1)
            answer.headers[LAST_EVENT] = str(first - 1)
            await answer.write_all(map(_line, past))
        answer.give_turn()
        return told

    async def _tell_after(self, answer: Answer, told: int, until: int) -> int:
        """Tell the events after this one, at least until that one."""
        while True:
            page = await asyncio.to_thread(self._journal.events_after, told, limit=_PAGE_EVENTS)
            await answer.write_all(map(_line, page))
            told = max((event for event, _ in page), default=told)
            if told >= until or not page:
                return told

    async def _tell_on(self, answer: Answer, told: int) -> None:
        """Tell what becomes durable, until the daemon ends."""

        def is_due() -> bool:
            return self._journal.newest_event > told or self._ending.is_set()

        while await self._lookup.until(is_due) and not self._ending.is_set():
            told = await self._tell_after(answer, told, self._journal.newest_event)

    async def _samples(self, request: web.Request) -> web.StreamResponse:
        """Raw samples and the jobs they speak of."""
        now_s = self._driver.timeline.now_s
        since_s = parse_time(request.query, "since", now_s) or 0.0
        async with Answer(request) as answer:
            await answer.take_turn()
            body = await self._sampled(since_s)
            starts = range(0, len(body), PIECE_BYTES)
            return await answer.send(body[at : at + PIECE_BYTES] for at in starts)

    async def _sampled(self, since_s: float) -> bytes:
        samples = await asyncio.to_thread(
            self._journal.samples, since_s=since_s, limit=_MOST_SAMPLES
        )
        ids = sorted({job_id for sample in samples for job_id in sample.jobs})
        known = {i: job for i in ids if (job := self._state.jobs.get(i)) is not None}
        stored = await asyncio.to_thread(self._stored, [i for i in ids if i not in known])
        answer = {
            "samples": samples,
            "jobs": [job for _, job in sorted({**known, **stored}.items())],
            "platform": self._state.platform,
        }
        return await asyncio.to_thread(msgspec.json.encode, answer)

    def _stored(self, ids: Iterable[JobId]) -> dict[JobId, Job]:
        found = {job_id: self._journal.finished(job_id) for job_id in ids}
        return {job_id: job for job_id, job in found.items() if job is not None}


def _beginning(request: web.Request, now_s: float) -> tuple[float | None, int | None]:
    """Since when, or after which event, events are asked for.

    Raises:
        RequestError: both, or one that is none.
    """
    since_s = parse_time(request.query, "since", now_s)
    if "after" in request.query:
        if since_s is not None:
            raise RequestError("'since' and 'after' exclude each other; give one of them")
        return None, parse_event(request.query["after"], "after")
    if LAST_EVENT in request.headers:  # of a stream that began with 'since', and is resumed
        return None, parse_event(request.headers[LAST_EVENT], LAST_EVENT)
    return since_s, None


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
