"""The route that submits jobs, checked before anything is queued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aiohttp import web

from iodaemon.api.model import SubmitAnswer
from iodaemon.core.footprint import environment_bytes, job_bytes
from iodaemon.core.job import Job
from iodaemon.daemon.environments import Claim
from iodaemon.daemon.http.access import body_of, give_place
from iodaemon.daemon.http.answer import LINES, json_answer
from iodaemon.daemon.http.lookup import Lookup
from iodaemon.daemon.http.route import Route
from iodaemon.daemon.http.routes.act import Actions, Grace
from iodaemon.daemon.http.submission import (
    Submission,
    SubmittedJob,
    decode_in_steps,
    environment_key,
    find_unlimited,
    find_vain,
    heed_hints,
    job_maker,
    limit_all,
)
from iodaemon.daemon.http.wait_mark import session_of
from iodaemon.errors import RequestError
from iodaemon.registry import rule_name

_CHOOSES: Final = "storage_aware"
_KEY: Final = "Idempotency-Key"
_LONGEST_KEY: Final = 64
_COPIES: Final = 2
"""Of a body that is decoded: as it came, and in lines."""


class Commands:
    """Submit; act on jobs."""

    def __init__(
        self,
        lookup: Lookup,
        *,
        grace: Callable[[], Grace],
        default_walltime_s: Callable[[], float | None],
        controls: Callable[[], Mapping[str, bool]],
    ) -> None:
        self._lookup = lookup
        self._state = lookup.state
        self._driver = lookup.driver
        self._actions = Actions(
            lookup,
            grace=grace,
            refuse_above_limits=self._refuse_above_limits,
            recall_environment=self._recall_environment,
        )
        self._default_walltime_s = default_walltime_s
        self._controls = controls

    def routes(self) -> Sequence[Route]:
        """What is done where."""
        submit = Route(
            *("POST", "/v1/jobs", self._submit, "submit jobs", SubmitAnswer),
            query=("dry_run",),
            right="submit",
            body=Submission,
            reads_body=True,
            statuses=(201, 200),
        )
        return [submit, *self._actions.routes()]

    async def _submit(self, request: web.Request) -> web.Response:
        actor = self._lookup.access.who(request)
        await self._lookup.access.refuse_stranger(actor, "submit")
        is_trial = request.query.get("dry_run") == "1"
        request_key = None if is_trial else _find_key(request, actor.uid)
        if request_key is not None and (ids := await self._driver.find_submitted(request_key)):
            return json_answer({"ids": ids}, status=201)
        async with body_of(request) as body:
            with self._driver.environments.claim(actor.uid) as claim:
                claim.take(_COPIES * len(body))
                submission = await self._decode(body, request.content_type, actor.uid, claim)
                key = environment_key(submission.environment)
                jobs, warnings = heed_hints(submission)
                jobs, told = limit_all(jobs, self._default_walltime_s())
                warnings += told + find_unlimited(jobs, self._controls()) + self._find_vain(jobs)
                makers = [job_maker(job, actor.uid, key) for job in jobs]
                self._refuse_above_limits(actor.uid, [job.cpus for job in jobs])
            answer = {"warnings": warnings} if warnings else {}
            if is_trial:
                return json_answer({"ids": [], **answer})
            now_s, session = self._driver.timeline.now_s, session_of(actor.pid)
            self._lookup.wait_marks.submitted(actor.uid, session, now_s)
            give_place()
            ids = await self._driver.submit(makers, submission.environment, key, request_key)
        return json_answer({"ids": ids, **answer}, status=201)

    def _find_vain(self, jobs: Sequence[SubmittedJob]) -> tuple[str, ...]:
        """Who will have no fast tier, whatever is free: known of the shipped rule that chooses."""
        if rule_name(self._driver.controller.rules.admission) != _CHOOSES:
            return ()
        return find_vain([job.scratch for job in jobs], self._state.stock.tiers)

    async def _decode(self, body: bytes, content_type: str, uid: int, claim: Claim) -> Submission:
        """The submission, decoded between other requests; what is above a limit not at all."""
        steps = decode_in_steps(
            body,
            self._state.platform,
            self._state.stock.tiers,
            any_tier=self._state.stock.any_tier,
            in_lines=content_type == LINES,
            admit=lambda cpus: self._refuse_above_limits(uid, cpus),
            take=claim.take,
        )
        while True:
            try:
                next(steps)
            except StopIteration as end:
                submission: Submission = end.value
                return submission
            await asyncio.sleep(0)

    def _refuse_above_limits(self, uid: int, cpus: Sequence[int]) -> None:
        text = self._state.users.refusal(uid, self._driver.waiting(uid), cpus)
        if text:
            raise RequestError(text)

    async def _recall_environment(self, job: Job) -> None:
        """Those of ended jobs are not kept in memory."""
        key = job.spec.environment_id
        stored = await asyncio.to_thread(self._lookup.journal.environment, key)
        if stored is None:
            raise RequestError(
                f"job {job.id}: its environment is not kept any more; submit it again"
            )
        taken_bytes = job_bytes(job.spec) + environment_bytes(stored)
        self._driver.environments.refuse_above(job.uid, taken_bytes)
        self._driver.environments.recall(key, stored)


def _find_key(request: web.Request, uid: int) -> tuple[int, str] | None:
    """The submitter and the key that makes a repeated submission the same one; None: none.

    Raises:
        RequestError: it is no key.
    """
    key = request.headers.get(_KEY)
    if key is None:
        return None
    if not (0 < len(key) <= _LONGEST_KEY and key.isascii() and key.isprintable()):
        raise RequestError(f"{_KEY}: give 1 to {_LONGEST_KEY} printable ASCII characters")
    return uid, key
