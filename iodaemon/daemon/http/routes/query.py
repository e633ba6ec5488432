"""The routes that read: jobs, their output, their steps, and waiting for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from aiohttp import web

from iodaemon.api.model import AwaitedAnswer, JobDetail, JobsAnswer, MarkAnswer, WaitAnswer
from iodaemon.core.job import Job, JobId, JobState
from iodaemon.daemon.http.access import give_place
from iodaemon.daemon.http.answer import OUTPUT, Answer, json_answer
from iodaemon.daemon.http.lookup import MOST_JOBS, Lookup, parse_number, parse_time
from iodaemon.daemon.http.output import OutputThreads, stream_output
from iodaemon.daemon.http.record import asked_path, load_line, output_path
from iodaemon.daemon.http.route import SELECTOR_KEYS, Route
from iodaemon.daemon.http.selector import Selector
from iodaemon.daemon.http.wait_mark import session_of
from iodaemon.errors import RequestError

_LONGEST_POLL_S: Final = 60.0
_MOST_AWAITED: Final = 10_000
"""Jobs in one request to wait; all of them are told of in its answer, some 10 MB."""


_MANY: Final = 100
"""Jobs of one request that only the journal may know: it is asked for each of them."""


class _Wait(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ids: Annotated[tuple[int, ...], msgspec.Meta(max_length=_MOST_AWAITED)]
    timeout_s: float = 30.0


class _Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    now_s: float


class Queries:
    """Looks at the state and changes nothing."""

    def __init__(
        self,
        lookup: Lookup,
        *,
        ending: asyncio.Event,
        pids: Callable[[JobId], list[int]],
        retain_s: Callable[[], float],
    ) -> None:
        self._lookup = lookup
        self._pids = pids
        self._retain_s = retain_s
        self._state = lookup.state
        self._driver = lookup.driver
        self._ending = ending
        self._threads = OutputThreads()

    def routes(self) -> Sequence[Route]:
        """What is read where."""
        logs = ("stream", "tail", "begin", "follow")
        return [
            Route(
                *("GET", "/v1/jobs", self._list_jobs, "the queue", JobsAnswer),
                (*SELECTOR_KEYS, "all", "limit"),
            ),
            Route("GET", "/v1/jobs/{id}", self._show_job, "one job", JobDetail),
            Route(
                *("GET", "/v1/jobs/{id}/logs", self._logs, "its output", OUTPUT, logs),
                right="read_output",
            ),
            Route("POST", "/v1/wait", self._wait, "wait for ends", WaitAnswer, body=_Wait),
            Route(
                *("GET", "/v1/wait/all", self._list_awaited, "what 'iod wait all' waits for"),
                AwaitedAnswer,
                (*SELECTOR_KEYS, "since_s"),
            ),
            Route(
                *("POST", "/v1/wait/all", self._note_told, "the caller knows of all ends of then"),
                MarkAnswer,
                body=_Told,
            ),
        ]

    # -- jobs ------------------------------------------------------------------------------------

    async def _list_jobs(self, request: web.Request) -> web.StreamResponse:
        limit = parse_number(request.query.get("limit", str(MOST_JOBS)))
        query = request.query
        asked = _selector(request)
        all_jobs = bool(asked.select) or query.get("all") == "1"
        states = asked.states or _states_of(all_jobs)
        async with Answer(request) as answer:
            if any(state.is_final for state in states):
                await answer.take_turn()  # before all of them are in memory
            chosen = await self._lookup.select(self._lookup.access.who(request), asked, states)
            controller = self._driver.controller
            head = {
                "version": 1,
                "now_s": self._driver.timeline.now_s,
                "node": load_line(
                    self._state,
                    controller.rules,
                    controller.faults,
                    controller.regulator.mode,
                ),
            }
            newest = chosen[max(0, len(chosen) - limit) :]
            return await answer.send_jobs(head, newest, self._lookup.record)

    async def _show_job(self, _: web.Request, job: Job) -> web.Response:
        counters = self._state.meter.counters(job.id) if job.is_live else None
        extra = {
            "pids": self._pids(job.id),
            "counters": msgspec.to_builtins(counters),
            "output_kept_s": self._retain_s() if asked_path(job, "stdout") is None else None,
        }
        return json_answer({**self._lookup.record(job), **extra})

    # -- output ------------------------------------------------------------------------------------

    async def _logs(self, request: web.Request, job: Job) -> web.StreamResponse:
        stream = request.query.get("stream", "stdout")
        tail = parse_number(request.query["tail"]) if "tail" in request.query else None
        begin = parse_number(request.query.get("begin", "0"))
        follow = request.query.get("follow") == "1"
        directory = self._lookup.outputs
        path = output_path(job, directory, stream)
        if self._lookup.access.rights.is_shared and (asked := asked_path(job, stream)) is not None:
            # The daemon reads its journal and all jobs' output; whoever asks may not. By who chose
            # the path, not by where it lies: one in the jobs' directory may be another job's, and
            # ".." in it leads out of it.
            raise RequestError(f"job {job.id} writes to {asked}; read it there")
        give_place()
        if path is None and not follow:
            raise RequestError(f"job {job.id} has no output: it is {job.state} and never started")

        async def look() -> tuple[Path | None, bool]:
            now = await self._lookup.get(job.id)
            over = now.state.is_final or self._ending.is_set()
            return output_path(now, directory, stream), over

        response = web.StreamResponse(headers={"Content-Type": OUTPUT})
        await stream_output(
            request,
            response,
            look,
            threads=self._threads,
            follow=follow,
            tail=tail,
            begin=begin,
        )
        return response

    # -- what happens ------------------------------------------------------------------------------

    async def _wait(self, request: web.Request, asked: _Wait) -> web.StreamResponse:
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

        await self._lookup.until(over, timeout_s)
        async with Answer(request) as answer:
            if len(ids) > _MANY:
                await answer.take_turn()
            jobs = await self._lookup.get_all(ids)
            return await answer.send_jobs({"finished": not left}, jobs, self._lookup.record)

    async def _list_awaited(self, request: web.Request) -> web.Response:
        """What ``iod wait all`` means: jobs that have not ended, or were queued since the mark."""
        actor, now_s = self._lookup.access.who(request), self._driver.timeline.now_s
        since_s = parse_time(request.query, "since_s", now_s)
        if since_s is None:
            since_s = self._lookup.wait_marks.since_s(actor.uid, session_of(actor.pid), now_s)
        asked = _selector(request)
        if not asked.user:
            asked = msgspec.structs.replace(asked, user="me")
        async with Answer(request) as answer:
            await answer.take_turn()
            jobs = await self._lookup.select(actor, asked, list(JobState), queued_from_s=since_s)
        return json_answer({"since_s": since_s, "now_s": now_s, "ids": [job.id for job in jobs]})

    async def _note_told(self, request: web.Request, told: _Told) -> web.Response:
        """The caller was told of the ends of all jobs of then."""
        actor, now_s = self._lookup.access.who(request), self._driver.timeline.now_s
        at_s = min(told.now_s, now_s)
        self._lookup.wait_marks.told(actor.uid, session_of(actor.pid), at_s)
        return json_answer({"since_s": at_s})


def _selector(request: web.Request) -> Selector:
    query = request.query
    return Selector(
        select=query.get("select", ""),
        user=query.get("user", ""),
        name=query.get("name", ""),
        state=tuple(query.getall("state", [])),
    )


def _states_of(all_jobs: bool) -> Collection[JobState]:  # noqa: FBT001
    """Those that are meant where none is named."""
    return [state for state in JobState if all_jobs or not state.is_final]
