"""The routes that read: jobs, their output, their steps, and waiting for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from aiohttp import web

from iodaemon.core.job import Job, JobId, JobState
from iodaemon.daemon.answer import Answer
from iodaemon.daemon.lookup import Lookup, json_answer, parse_number, read_body
from iodaemon.daemon.output import OutputThreads, stream_output
from iodaemon.daemon.record import asked_path, load_line, output_path
from iodaemon.daemon.selector import parse_selector
from iodaemon.errors import RequestError

_LONGEST_POLL_S: Final = 60.0
_MOST_JOBS: Final = 100_000
_MOST_AWAITED: Final = 10_000
"""Jobs in one request to wait; all of them are told of in its answer, some 10 MB."""


_LOOKED_AT_ONCE: Final = 5000
_MANY: Final = 100
"""Jobs of one request that only the journal may know: it is asked for each of them."""
"""Jobs looked at between two looks at what else there is to do: some milliseconds."""


class _Wait(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ids: Annotated[tuple[int, ...], msgspec.Meta(max_length=_MOST_AWAITED)]
    timeout_s: float = 30.0


class Queries:
    """Looks at the state and changes nothing."""

    def __init__(
        self, lookup: Lookup, *, ending: asyncio.Event, pids: Callable[[JobId], list[int]]
    ) -> None:
        self._lookup = lookup
        self._pids = pids
        self._state = lookup.state
        self._driver = lookup.driver
        self._ending = ending
        self._threads = OutputThreads()

    def close(self) -> None:
        """No output is sent any more."""
        self._threads.close()

    def routes(self) -> Sequence[web.RouteDef]:
        """What is read where."""
        return [
            web.get("/v1/jobs", self._list_jobs),
            web.get("/v1/jobs/{id}", self._show_job),
            web.get("/v1/jobs/{id}/logs", self._logs),
            web.post("/v1/wait", self._wait),
        ]

    # -- jobs ------------------------------------------------------------------------------------

    async def _list_jobs(self, request: web.Request) -> web.StreamResponse:
        limit = parse_number(request.query.get("limit", str(_MOST_JOBS)))
        select = request.query.get("select", "")
        states = _states(request.query.getall("state", []))
        all_jobs = bool(select) or request.query.get("all") == "1"
        finished_too = all_jobs or any(state.is_final for state in states)
        async with Answer(request) as answer:
            stored: Sequence[Job] = ()
            if finished_too:
                await answer.take_turn()  # before all of them are in memory
                stored = await asyncio.to_thread(self._lookup.journal.list_finished, _MOST_JOBS)
            chosen = await self._chosen(
                stored, select=select, states=states or _states_of(all_jobs)
            )
            head = {
                "version": 1,
                "now_s": self._driver.timeline.now_s,
                "node": load_line(self._state, self._driver.controller.rules),
            }
            newest = chosen[max(0, len(chosen) - limit) :]
            return await answer.send_jobs(head, newest, self._lookup.record)

    async def _chosen(
        self, stored: Sequence[Job], *, select: str, states: Collection[JobState]
    ) -> list[Job]:
        """The jobs asked for, of those stored and those in memory, ordered by id."""
        known = {job.id: job for job in stored} | self._state.jobs
        selects = parse_selector(select or "all", max(known, default=0))
        chosen = []
        for place, (job_id, job) in enumerate(sorted(known.items()), 1):
            if place % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if job.state in states and selects(job_id):
                chosen.append(job)
        return chosen

    async def _show_job(self, request: web.Request) -> web.Response:
        job = await self._lookup.job(request)
        counters = self._state.meter.counters(job.id) if job.is_live else None
        extra = {"pids": self._pids(job.id), "counters": msgspec.to_builtins(counters)}
        return json_answer({**self._lookup.record(job), **extra})

    # -- output ------------------------------------------------------------------------------------

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        job = await self._lookup.job(request)
        self._lookup.allow(request, "read_output", job)
        stream = request.query.get("stream", "stdout")
        if stream not in ("stdout", "stderr"):
            raise RequestError(f"no stream {stream!r}; ask for stdout or stderr")
        tail = parse_number(request.query["tail"]) if "tail" in request.query else None
        follow = request.query.get("follow") == "1"
        directory = self._lookup.jobs_directory
        path = output_path(job, directory, stream)
        if self._lookup.is_shared and (asked := asked_path(job, stream)) is not None:
            # The daemon may read every file of the machine; whoever asks may not. By who chose
            # the path, not by where it lies: one in the jobs' directory may be another job's, and
            # ".." in it leads out of it.
            raise RequestError(f"job {job.id} writes to {asked}; read it there")
        if path is None and not follow:
            raise RequestError(f"job {job.id} has no output: it is {job.state} and never started")

        async def look() -> tuple[Path | None, bool]:
            now = await self._lookup.get(job.id)
            over = now.state.is_final or self._ending.is_set()
            return output_path(now, directory, stream), over

        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        await stream_output(
            request, response, look, threads=self._threads, follow=follow, tail=tail
        )
        return response

    # -- what happens ------------------------------------------------------------------------------

    async def _wait(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, _Wait)
        ids = list(dict.fromkeys(asked.ids))
        async with Answer(request) as answer:
            if len(ids) > _MANY:
                await answer.take_turn()  # the journal is asked for what is over
            await self._lookup.get_all(ids)
        timeout_s = min(max(0.0, asked.timeout_s), _LONGEST_POLL_S)
        left = [JobId(job_id) for job_id in reversed(ids)]

        def over() -> bool:
            """What is over stays over: each job is looked at once after its end."""
            while left and self._lookup.is_over(left[-1]):
                left.pop()
            return not left or self._ending.is_set()

        await self._driver.watch.until(over, timeout_s)
        async with Answer(request) as answer:
            if len(ids) > _MANY:
                await answer.take_turn()
            jobs = await self._lookup.get_all(ids)
            return await answer.send_jobs({"finished": not left}, jobs, self._lookup.record)


def _states_of(all_jobs: bool) -> Collection[JobState]:  # noqa: FBT001
    """Those that are meant where none is named."""
    return [state for state in JobState if all_jobs or not state.is_final]


def _states(words: Sequence[str]) -> set[JobState]:
    by_word = {str(state): state for state in JobState} | {s.code: s for s in JobState}
    for word in words:
        if word.upper() not in by_word:
            raise RequestError(f"no state {word!r}; known: {', '.join(sorted(by_word))}")
    return {by_word[word.upper()] for word in words}
