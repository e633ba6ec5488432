"""The routes that act on jobs: each posts an event and answers once it has taken effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from aiohttp import web

from iodaemon.core import event as ev
from iodaemon.core.job import WAITING, Job, JobState
from iodaemon.core.scratch import COPYING
from iodaemon.daemon.account import user_name
from iodaemon.daemon.allowance import JOB_BYTES, VERB_BYTES
from iodaemon.daemon.authorise import Verb
from iodaemon.daemon.environments import environment_bytes
from iodaemon.daemon.front import body_of
from iodaemon.daemon.lookup import Lookup, json_answer, read_body
from iodaemon.daemon.scratch_request import find_vain
from iodaemon.daemon.submission import (
    LINES,
    Submission,
    SubmittedJob,
    decode_in_steps,
    environment_key,
    heed_hints,
    job_maker,
)
from iodaemon.errors import JournalError, RequestError
from iodaemon.registry import rule_name
from iodaemon.units import format_bytes

_CHOOSES: Final = "storage_aware"
_SUSPEND_WAIT_S: Final = 5.0
_REMOVE_WAIT_S: Final = 10.0
"""What removing may take before the client is told that it goes on."""
_AFTER_GRACE_S: Final = 8.0
"""What a kill may take after the grace time before the client is told that it does."""


MOST_KEPT_BYTES: Final = 256 * 2**20
"""Of commands and environments of one user's waiting and live jobs: ten times the longest
submission of 100,000 usual jobs."""


class _Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    grace_s: float | None = None


class Commands:
    """Submit, cancel, requeue, suspend, resume; remove what was kept."""

    def __init__(self, lookup: Lookup, *, cancel_grace_s: Callable[[], float]) -> None:
        self._lookup = lookup
        self._state = lookup.state
        self._driver = lookup.driver
        self._cancel_grace_s = cancel_grace_s

    def routes(self) -> Sequence[web.RouteDef]:
        """What is done where."""
        return [
            web.post("/v1/jobs", self._submit),
            web.post("/v1/jobs/{id}/cancel", self._cancel),
            web.post("/v1/jobs/{id}/requeue", self._requeue),
            web.post("/v1/jobs/{id}/suspend", self._suspend),
            web.post("/v1/jobs/{id}/resume", self._resume),
            web.post("/v1/jobs/{id}/scratch/remove", self._remove_scratch),
            web.post("/v1/jobs/{id}/scratch/copy", self._copy_scratch),
        ]

    async def _submit(self, request: web.Request) -> web.Response:
        actor = self._lookup.allow(request, "submit")
        await self._lookup.refuse_stranger(actor, "submit")
        async with body_of(request) as body:
            submission = await self._decode(body, request.content_type, actor.uid)
            key = environment_key(submission.environment)
            jobs, warnings = heed_hints(submission)
            warnings += self._find_vain(jobs)
            makers = [job_maker(job, actor.uid, key) for job in jobs]
            self._refuse_above_limits(actor.uid, [job.cpus for job in jobs])
            self._refuse_above_room(actor.uid, submission)
            self._lookup.spend(actor.uid, len(body) + JOB_BYTES * len(jobs))
            ids = await self._driver.submit(makers, submission.environment, key)
        answer = {"ids": ids} | ({"warnings": warnings} if warnings else {})
        return json_answer(answer, status=201)

    def _find_vain(self, jobs: Sequence[SubmittedJob]) -> tuple[str, ...]:
        """Who will have no fast tier, whatever is free: known of the shipped rule that chooses."""
        if rule_name(self._driver.controller.rules.admission) != _CHOOSES:
            return ()
        return find_vain([job.scratch for job in jobs], self._state.stock.tiers)

    async def _decode(self, body: bytes, content_type: str, uid: int) -> Submission:
        """The submission, decoded between other requests; what is above a limit not at all."""
        steps = decode_in_steps(
            body,
            self._state.platform,
            self._state.stock.tiers,
            any_tier=self._state.stock.any_tier,
            in_lines=content_type == LINES,
            admit=lambda cpus: self._refuse_above_limits(uid, cpus),
        )
        while True:
            try:
                next(steps)
            except StopIteration as end:
                submission: Submission = end.value
                return submission
            await asyncio.sleep(0)

    async def _cancel(self, request: web.Request) -> web.Response:
        job = await self._lookup.job(request)
        actor = self._lookup.allow(request, "cancel", job)
        grace_s = await self._read_grace_s(request)
        if job.state.is_final:
            raise RequestError(f"job {job.id} has ended already ({job.state})")
        self._driver.post(
            ev.CancelRequested(
                at_s=self._driver.timeline.now_s,
                job_id=job.id,
                by=user_name(actor.uid),
                grace_s=grace_s,
            )
        )
        gone = await self._driver.watch.until(
            lambda: self._lookup.is_over(job.id), grace_s + _AFTER_GRACE_S
        )
        return json_answer({"job": await self._record(request), "gone": gone})

    async def _read_grace_s(self, request: web.Request) -> float:
        asked = await read_body(request, _Stop)
        return self._cancel_grace_s() if asked.grace_s is None else max(0.0, asked.grace_s)

    async def _requeue(self, request: web.Request) -> web.Response:
        job = await self._lookup.job(request)
        actor = self._lookup.allow(request, "requeue", job)
        grace_s = await self._read_grace_s(request)
        self._refuse_requeue(job)
        self._lookup.spend(actor.uid, VERB_BYTES)
        if job.state.is_final:
            self._refuse_above_limits(job.uid, [job.spec.cpus])
        if self._driver.problem:
            raise JournalError(self._driver.problem)
        if job.state.is_final:
            await self._recall_environment(job)
        event = ev.RequeueRequested(
            at_s=self._driver.timeline.now_s,
            job_id=job.id,
            by=user_name(actor.uid),
            grace_s=grace_s,
            ended=job if job.state.is_final else None,
        )
        self._driver.post(event)

        def settled() -> bool:
            now = self._state.jobs.get(job.id, job)
            is_over = now.state.is_final and now is not job  # it was cancelled after all
            return is_over or (_is_requeued(job, now) and self._driver.is_durable(job.id))

        await self._driver.watch.until(settled, grace_s + _AFTER_GRACE_S)
        if self._driver.problem:
            raise JournalError(self._driver.problem)
        now = self._state.jobs.get(job.id, job)
        return json_answer({"job": self._lookup.record(now), "requeued": _is_requeued(job, now)})

    def _refuse_above_limits(self, uid: int, cpus: Sequence[int]) -> None:
        text = self._state.users.refusal(uid, self._driver.waiting(uid), cpus)
        if text:
            raise RequestError(text)

    def _refuse_above_room(self, uid: int, submission: Submission) -> None:
        """Memory is everybody's."""
        if not self._lookup.is_shared:
            return
        asked_bytes = environment_bytes(submission.environment)
        asked_bytes += sum(sum(map(len, job.command)) for job in submission.jobs)
        kept_bytes = self._driver.environments.kept_bytes(uid)
        if kept_bytes + asked_bytes > MOST_KEPT_BYTES:
            raise RequestError(
                f"commands and environments of uid {uid} come to {format_bytes(kept_bytes)}, "
                f"with {format_bytes(asked_bytes)} more above the {format_bytes(MOST_KEPT_BYTES)} "
                "that one user may have; submit them when some have ended"
            )

    def _refuse_requeue(self, job: Job) -> None:
        if job.state in WAITING:
            raise RequestError(f"job {job.id} is {job.state}: it waits already")
        if job.stop is not None and job.stop is not JobState.PENDING:
            raise RequestError(f"job {job.id} is being ended; requeue it once it has")

    async def _recall_environment(self, job: Job) -> None:
        """Those of ended jobs are not kept in memory."""
        key = job.spec.environment_id
        stored = await asyncio.to_thread(self._lookup.journal.environment, key)
        if stored is None:
            raise RequestError(
                f"job {job.id}: its environment is not kept any more; submit it again"
            )
        self._driver.environments.recall(key, stored)

    async def _suspend(self, request: web.Request) -> web.Response:
        return await self._hold(request, "suspend")

    async def _resume(self, request: web.Request) -> web.Response:
        return await self._hold(request, "resume")

    async def _hold(self, request: web.Request, verb: Verb) -> web.Response:
        job = await self._lookup.job(request)
        actor = self._lookup.allow(request, verb, job)
        if job.state.is_final or job.state is JobState.STOPPING:
            raise RequestError(f"job {job.id} is {job.state}; there is nothing to {verb}")
        if verb == "resume" and not job.user_hold:
            raise RequestError(
                f"job {job.id} is {job.state} and nobody suspended it: see 'iod show'"
            )
        self._lookup.spend(actor.uid, VERB_BYTES)
        kind = ev.SuspendRequested if verb == "suspend" else ev.ResumeRequested
        at_s = self._driver.timeline.now_s
        self._driver.post(kind(at_s=at_s, job_id=job.id, by=user_name(actor.uid)))

        def settled() -> bool:
            now = self._state.jobs.get(job.id)
            if now is None or now.state.is_final:
                return True
            refused = now.reason is not None and now.reason.code == "SuspendFailed"
            if verb == "suspend" and refused and now is not job and not now.user_hold:
                return True
            as_asked = now.user_hold == (verb == "suspend")
            return as_asked and (not now.is_live or now.frozen == now.wants_freeze)

        await self._driver.watch.until(settled, _SUSPEND_WAIT_S)
        return json_answer({"job": await self._record(request)})

    async def _remove_scratch(self, request: web.Request) -> web.Response:
        """Who may end a job may have removed what is kept of it."""
        return await self._clear_scratch(request, copies=False)

    async def _copy_scratch(self, request: web.Request) -> web.Response:
        """Likewise copied to where it was to be, as the job's user."""
        return await self._clear_scratch(request, copies=True)

    async def _clear_scratch(self, request: web.Request, *, copies: bool) -> web.Response:
        job = await self._lookup.job(request)
        actor = self._lookup.allow(request, "cancel", job)
        await read_body(request, _Nothing)
        if not job.shares:
            raise RequestError(f"job {job.id} has nothing in any tier's space")
        if job.is_live:
            raise RequestError(f"job {job.id} is {job.state}: what it uses is not removed")
        if copies and (job.spec.scratch is None or job.spec.scratch.output_path is None):
            line = f"job {job.id} has no output directory: copy what it left by hand"
            raise RequestError(f"{line} ('iod why {job.id}' says where it lies)")
        self._lookup.spend(actor.uid, VERB_BYTES)
        now_s, by = self._driver.timeline.now_s, user_name(actor.uid)
        self._driver.post(ev.ScratchUnwanted(at_s=now_s, job_id=job.id, by=by, copies=copies))

        def is_gone() -> bool:
            now = self._state.jobs.get(job.id)
            return now is None or not now.shares

        was_kept, is_tried = job.scratch_kept is not None, False

        def settled() -> bool:
            """Gone, or kept once more."""
            nonlocal is_tried
            why = None if is_gone() else self._state.jobs[job.id].scratch_kept
            is_kept = why is not None and why.code != COPYING
            is_tried |= was_kept and not is_kept
            return is_gone() or (is_tried and is_kept)

        await self._driver.watch.until(settled, _REMOVE_WAIT_S)
        told = {"copied" if copies else "removed": is_gone()}
        return json_answer({"job": await self._record(request), **told})

    async def _record(self, request: web.Request) -> dict[str, object]:
        return self._lookup.record(await self._lookup.job(request))


def _is_requeued(before: Job, now: Job) -> bool:
    """True when it waits again, or has been started since."""
    return now.attempt > before.attempt or (now is not before and now.state in WAITING)
