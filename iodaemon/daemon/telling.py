"""The routes that tell why: explanations, events, samples for replay; and regulation's mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from aiohttp import web

from iodaemon.core import event as ev
from iodaemon.core.decision import Transition
from iodaemon.core.job import Job, JobId
from iodaemon.core.rule import Mode
from iodaemon.core.why import explain
from iodaemon.daemon.account import user_name
from iodaemon.daemon.answer import PIECE_BYTES, Answer
from iodaemon.daemon.batch import Batch
from iodaemon.daemon.decree import decree
from iodaemon.daemon.lookup import Lookup, json_answer, read_body
from iodaemon.daemon.notebook import Note
from iodaemon.daemon.scratch_record import find_stage
from iodaemon.daemon.watch import News
from iodaemon.errors import RequestError

_MOST_EVENTS: Final = 100_000
_MOST_STEPS: Final = 1000
"""Of one job's life; the newest. Who suspends and resumes it all day long makes more."""
_SETTLING_S: Final = 2.0
"""How long what just happened may take to reach the disk before the past is read without it."""
_MOMENT_S: Final = 0.25
"""The same for somebody who only wants to know why; the last steps may then be missing."""
_OVERLAP_S: Final = 60.0
"""The past and what is heard meanwhile overlap by far less than this."""
_MOST_SAMPLES: Final = 3600
"""Samples in one answer: an hour of one a second; ask again from the last one on."""


class _Switch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Mode


class Telling:
    """Why, what happened, what was seen."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._driver = lookup.driver
        self._state = lookup.state
        self._journal = lookup.journal

    def routes(self) -> Sequence[web.RouteDef]:
        """What is told where."""
        return [
            web.get("/v1/jobs/{id}/why", self._why),
            web.get("/v1/events", self._events),
            web.get("/v1/samples", self._samples),
            web.get("/v1/mode", self._mode),
            web.post("/v1/mode", self._switch),
        ]

    async def _why(self, request: web.Request) -> web.Response:
        job = await self._lookup.job(request)
        controller, now_s = self._driver.controller, self._driver.timeline.now_s
        told = explain(
            self._state,
            controller.rules,
            job,
            now_s,
            shadow=controller.regulator.shadow,
            account=controller.account(job),
        )
        stage = find_stage(job, self._lookup.jobs_directory)
        if stage is not None:
            told = msgspec.structs.replace(told, is_so=f"{told.is_so}; {stage.text}")
        steps = await asyncio.to_thread(self._life, job.id)
        return json_answer(
            {
                "job": self._lookup.record(job),
                **msgspec.to_builtins(told),
                "history": [_event(step) for step in steps[-_MOST_STEPS:]],
            }
        )

    def _life(self, job_id: JobId) -> Sequence[Transition]:
        self._journal.flush(_MOMENT_S)
        return self._journal.transitions(job_id)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """What happened since then, if asked; then what happens, for ever or until now."""
        since_s = _seconds(request.query.get("since"))
        follow = request.query.get("follow", "1") == "1"
        async with Answer(request, "application/x-ndjson") as answer:
            nobody_listens = suppress(ConnectionResetError)
            with self._driver.watch.listening() as news, nobody_listens:
                told = await self._tell_past(answer, since_s)
                await answer.begin()
                if follow:
                    await _tell_on(answer, news, told)
            return await answer.begin()

    async def _tell_past(self, answer: Answer, since_s: float | None) -> Container[bytes]:
        """What has been told of the last minute."""
        if since_s is None:
            return ()
        began_s = self._driver.timeline.now_s
        await answer.take_turn()  # before all of it is in memory
        past = await asyncio.to_thread(self._past, since_s)
        await answer.write_all(line for _, line in past)
        answer.give_turn()
        return {line for at_s, line in past if at_s > began_s - _OVERLAP_S}

    def _past(self, since_s: float) -> list[tuple[float, bytes]]:
        """When it happened, and its line."""
        self._journal.flush(_SETTLING_S)
        steps: Iterable[News] = self._journal.recent_transitions(
            since_s=since_s, limit=_MOST_EVENTS
        )
        notes: Iterable[News] = self._journal.notes(since_s=since_s, limit=_MOST_EVENTS)
        events = (_event(item) for item in (*steps, *notes))
        lines = ((event["at_s"], _line(event)) for event in events)
        return sorted(lines, key=lambda at_and_line: at_and_line[0])

    async def _samples(self, request: web.Request) -> web.StreamResponse:
        """Raw samples and the jobs they speak of."""
        since_s = _seconds(request.query.get("since")) or 0.0
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

    async def _mode(self, _: web.Request) -> web.Response:
        regulator = self._driver.controller.regulator
        stood_s = regulator.shadow.stood_s(self._driver.timeline.now_s)
        return json_answer({"mode": regulator.mode, "shadow_suspended_s": stood_s})

    async def _switch(self, request: web.Request) -> web.Response:
        actor = self._lookup.allow(request, "regulate")
        asked = await read_body(request, _Switch)
        now_s = self._driver.timeline.now_s
        event = ev.ModeChanged(at_s=now_s, mode=asked.mode, by=user_name(actor.uid))
        await decree(self._driver, Batch(mode=asked.mode), event)
        return json_answer({"mode": str(asked.mode)})


async def _tell_on(answer: Answer, news: AsyncIterable[News], told: Container[bytes]) -> None:
    """What happens from now on, but for what has been told."""
    async for item in news:
        if (line := _line(_event(item))) not in told:
            await answer.write(line)


def _event(item: News) -> dict[str, Any]:
    match item:
        case Transition():
            return {"kind": "moved", **msgspec.to_builtins(item)}
        case Note():
            return {"kind": item.kind, **{k: v for k, v in item.record.items() if k != "type"}}


def _line(event: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(event) + b"\n"


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise RequestError(f"since={text!r} is no time; write seconds since 1970") from error
