"""The routes that act on jobs, on one by its number or on many by a selector.

Each job is authorised and checked by itself. What is asked of many is posted in slices: the events
of a slice are one step of the controller and one commit of the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

import msgspec
from aiohttp import web

from iodaemon.api.model import ActAnswer, JobAnswer
from iodaemon.core import event as ev
from iodaemon.core.job import FINAL, WAITING, Job, JobId, JobState, environment_bytes, job_bytes
from iodaemon.daemon.account import user_name
from iodaemon.daemon.http.access import Actor, Verb, authorise
from iodaemon.daemon.http.answer import Answer, json_answer
from iodaemon.daemon.http.context import Context, no_job
from iodaemon.daemon.http.refusal import error_text
from iodaemon.daemon.http.route import Handler, route
from iodaemon.daemon.http.selector import Ids, Selector
from iodaemon.errors import Conflict, RequestError

_SUSPEND_WAIT_S: Final = 5.0
_REMOVE_WAIT_S: Final = 10.0
"""What removing may take before the client is told that it goes on."""
_AFTER_GRACE_S: Final = 8.0
"""What a kill may take after the grace time before the client is told that it does."""
_AT_ONCE: Final = 500
"""Events posted between two looks at what else there is to do: a step of some 20 ms."""


class _Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said of one job's end."""

    grace_s: float | None = None


class _Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Wishes(Selector, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same of many jobs' ends."""

    grace_s: float | None = None


Settled = Callable[[], bool]


class Action:
    """One verb, with what was said of it.

    Attributes:
        right: what the actor must be allowed to do.
        wishes: what is said of it, of one job and of many.
        states: which jobs are meant where neither ids nor states are given.
        word: by which the answer says whether it is done; empty: the job says it.
        patience_s: after so long the answer tells how the job is then.
    """

    right: ClassVar[Verb]
    wishes: ClassVar[tuple[Any, Any]] = (_Nothing, Selector)
    states: ClassVar[frozenset[JobState]] = frozenset(JobState) - FINAL
    word: ClassVar[str] = ""
    patience_s: float

    def __init__(self, context: Context, wish: Any) -> None:
        self.context = context
        self.driver = context.driver
        self.jobs = context.state.jobs
        self.hear(wish)

    def hear(self, wish: Any) -> None:
        """Take what was said of it."""

    def refuse_now(self) -> None:
        """Refuse whatever job is meant."""

    async def refuse(self, job: Job) -> None:
        """Raise RequestError where this job cannot be acted on now."""
        raise NotImplementedError

    def event(self, job: Job, actor: Actor) -> ev.Event:
        raise NotImplementedError

    def is_done(self, job: Job) -> bool:
        """Whether it has taken effect on this job; the job as it was before."""
        raise NotImplementedError

    def settled(self, job: Job) -> Settled:
        """When it has, or will not any more."""
        return lambda: self.is_done(job)

    def told(self, job: Job) -> dict[str, bool]:
        """What the answer says beside the job."""
        return {self.word: self.is_done(job)} if self.word else {}

    def concerns(self, job: Job) -> bool:
        """Whether a job is meant that is not named by its number."""
        return not job.state.is_final


class _Stop(Action):
    wishes = (_Wish, _Wishes)

    def hear(self, wish: _Wish | _Wishes) -> None:
        config = self.context.force.config
        longest_s = config.longest_grace_s
        self.grace_s = config.cancel_grace_s if wish.grace_s is None else wish.grace_s
        if wish.grace_s is not None and not 0.0 <= wish.grace_s <= longest_s:
            raise RequestError(
                f"grace_s is {wish.grace_s:g}; give 0 to {longest_s:g} s (cancel_grace_max)"
            )
        self.patience_s = self.grace_s + _AFTER_GRACE_S


class _Cancel(_Stop):
    right = "cancel"
    word = "gone"

    async def refuse(self, job: Job) -> None:
        if job.state.is_final:
            raise Conflict(f"job {job.id} has ended already ({job.state})")

    def event(self, job: Job, actor: Actor) -> ev.Event:
        now_s, by = self.context.now_s, user_name(actor.uid)
        return ev.CancelRequested(at_s=now_s, job_id=job.id, by=by, grace_s=self.grace_s)

    def is_done(self, job: Job) -> bool:
        return self.context.is_over(job.id)


class _Requeue(_Stop):
    right = "requeue"
    word = "requeued"

    def refuse_now(self) -> None:
        self.context.refuse_unwritable()

    async def refuse(self, job: Job) -> None:
        if job.state in WAITING:
            raise Conflict(f"job {job.id} is {job.state}: it waits already")
        if job.stop is not None and job.stop is not JobState.PENDING:
            raise Conflict(f"job {job.id} is being ended; requeue it once it has")
        if job.state.is_final:
            self.context.refuse_above_limits(job.uid, [job.spec.cpus])
            await self._recall_environment(job)

    async def _recall_environment(self, job: Job) -> None:
        """Those of ended jobs are not kept in memory."""
        key = job.spec.environment_id
        stored = await asyncio.to_thread(self.context.journal.environment, key)
        if stored is None:
            raise RequestError(
                f"job {job.id}: its environment is not kept any more; submit it again"
            )
        taken_bytes = job_bytes(job.spec) + environment_bytes(stored)
        self.driver.environments.refuse_above(job.uid, taken_bytes)
        self.driver.environments.recall(key, stored)

    def event(self, job: Job, actor: Actor) -> ev.Event:
        return ev.RequeueRequested(
            at_s=self.context.now_s,
            job_id=job.id,
            by=user_name(actor.uid),
            grace_s=self.grace_s,
            by_uid=actor.uid,
            ended=job if job.state.is_final else None,
        )

    def is_done(self, job: Job) -> bool:
        """It waits again, or has been started since."""
        now = self.jobs.get(job.id, job)
        return now.attempt > job.attempt or (now is not job and now.state in WAITING)

    def settled(self, job: Job) -> Settled:
        def is_settled() -> bool:
            now = self.jobs.get(job.id, job)
            is_over = now.state.is_final and now is not job  # it was cancelled after all
            return is_over or (self.is_done(job) and self.driver.is_durable(job.id))

        return is_settled

    def concerns(self, job: Job) -> bool:  # noqa: ARG002
        return True


class _Hold(Action):
    def hear(self, _: Any) -> None:
        self.is_suspend = self.right == "suspend"
        self.patience_s = _SUSPEND_WAIT_S

    async def refuse(self, job: Job) -> None:
        if job.state.is_final or job.state is JobState.STOPPING:
            raise Conflict(f"job {job.id} is {job.state}; there is nothing to {self.right}")
        is_still = job.user_hold or self.driver.backend.describe_stop(job.id)
        if not self.is_suspend and not is_still:
            raise Conflict(f"job {job.id} is {job.state} and nobody suspended it: see 'iod show'")

    def event(self, job: Job, actor: Actor) -> ev.Event:
        now_s, by = self.context.now_s, user_name(actor.uid)
        if self.is_suspend:
            return ev.SuspendRequested(at_s=now_s, job_id=job.id, by=by, by_uid=actor.uid)
        return ev.ResumeRequested(at_s=now_s, job_id=job.id, by=by)

    def is_done(self, job: Job) -> bool:
        now = self.jobs.get(job.id)
        if now is None or now.state.is_final:
            return True
        failed = now.reason is not None and now.reason.code == "SuspendFailed"
        if self.is_suspend and failed and now is not job and not now.user_hold:
            return True
        as_asked = now.user_hold == self.is_suspend
        return as_asked and (not now.is_live or now.frozen == now.wants_freeze)


class _Suspend(_Hold):
    right = "suspend"


class _Resume(_Hold):
    right = "resume"


class _ClearScratch(Action):
    """Who may end a job may have what is kept of it removed."""

    right = "cancel"
    states = FINAL
    word = "removed"
    patience_s = _REMOVE_WAIT_S

    async def refuse(self, job: Job) -> None:
        if not job.shares:
            raise Conflict(f"job {job.id} has nothing in any tier's space")
        if job.is_live:
            raise Conflict(f"job {job.id} is {job.state}: what it uses is not removed")

    def event(self, job: Job, actor: Actor) -> ev.Event:
        now_s, by = self.context.now_s, user_name(actor.uid)
        return ev.ScratchUnwanted(at_s=now_s, job_id=job.id, by=by)

    def is_done(self, job: Job) -> bool:
        now = self.jobs.get(job.id)
        return now is None or not now.shares

    def settled(self, job: Job) -> Settled:
        was_kept, is_tried = job.scratch_kept is not None, False

        def is_settled() -> bool:
            """Gone, or kept once more."""
            nonlocal is_tried
            is_kept = not self.is_done(job) and self.jobs[job.id].scratch_kept is not None
            is_tried |= was_kept and not is_kept
            return self.is_done(job) or (is_tried and is_kept)

        return is_settled

    def concerns(self, job: Job) -> bool:
        return bool(job.shares)


# -- one job ---------------------------------------------------------------------------------------


def _on_one(kind: type[Action]) -> Handler:
    async def act(context: Context, request: web.Request, job: Job, wish: Any) -> web.Response:
        job = context.state.jobs.get(job.id, job)  # its body may have been long in coming
        action = kind(context, wish)
        action.refuse_now()
        await _post(action, context.access.who(request), job)
        await context.until(action.settled(job), action.patience_s)
        action.refuse_now()
        now = await context.get(job.id)
        return json_answer({"job": context.record(now), **action.told(job)})

    return act


async def _post(action: Action, actor: Actor, job: Job) -> None:
    """Ask for it.

    Raises:
        RequestError: this actor may not, or it cannot be done with this job.
    """
    authorise(actor, action.right, job, action.context.access.rights)
    await action.refuse(job)
    action.driver.post(action.event(job, actor))


# -- many ------------------------------------------------------------------------------------------


def _on_many(kind: type[Action]) -> Handler:
    async def act(context: Context, request: web.Request, wish: Selector) -> web.StreamResponse:
        if not (wish.select or wish.has_filters):
            raise RequestError("no job is named; give select, user, name or state")
        action = kind(context, wish)
        action.refuse_now()
        async with Answer(request) as answer:
            await answer.take_turn()  # all of them are in memory
            actor = context.access.who(request)
            jobs, refusals = await _find(action, actor, wish)
            before = await _post_all(action, actor, jobs, refusals)
            await _await_all(action, list(before.values()))
            action.refuse_now()
            now = {job.id: job for job in await context.get_all(before)}

            def row(job_id: JobId) -> dict[str, Any]:
                if (error := refusals.get(job_id)) is not None:
                    return {"id": job_id, "error": error_text(error)}
                told = action.told(before[job_id])
                return {"id": job_id, "job": context.record(now[job_id]), **told}

            return await answer.send_rows("results", map(row, sorted([*refusals, *before])))

    return act


async def _find(
    action: Action, actor: Actor, wish: Selector
) -> tuple[list[Job], dict[JobId, RequestError]]:
    """The jobs that are meant, and refusals by id of those named that do not exist.

    Jobs that are named by number are acted on, or refused, one by one. Of the others only those are
    meant that the action is about. Without any id they are the caller's own, unless the caller is
    root or names a user.
    """
    named = set() if wish.has_filters else set(map(JobId, Ids(wish.select).numbers))
    if not wish.names_ids and not wish.user and actor.uid != 0:
        wish = msgspec.structs.replace(wish, user="me")
    states = frozenset(JobState) if wish.names_ids else action.states
    found = await action.context.select(actor, wish, states)
    jobs = [job for job in found if job.id in named or action.concerns(job)]
    missing = named.difference(job.id for job in jobs)
    return jobs, {job_id: no_job(job_id) for job_id in missing}


async def _post_all(
    action: Action, actor: Actor, jobs: Iterable[Job], refusals: dict[JobId, RequestError]
) -> dict[JobId, Job]:
    """Ask for it of each job; those of which it could be asked, the others into refusals."""
    posted = {}
    for place, found in enumerate(jobs, 1):
        job = action.jobs.get(found.id, found)  # it may have gone on meanwhile
        try:
            await _post(action, actor, job)
        except RequestError as error:
            refusals[job.id] = error
        else:
            posted[job.id] = job
        if place % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return posted


async def _await_all(action: Action, posted: Sequence[Job]) -> None:
    """Until it has taken effect on all, each looked at once after that; or not in time."""
    left = [action.settled(job) for job in reversed(posted)]

    def settled() -> bool:
        while left and left[-1]():
            left.pop()
        return not left

    await action.context.until(settled, action.patience_s)


def _declare(name: str, text: str, kind: type[Action]) -> None:
    of_one, of_many = kind.wishes
    one, many = _on_one(kind), _on_many(kind)
    one.__doc__, many.__doc__ = f"{text} a job", f"{text} jobs"
    route(f"POST /v1/jobs/{{id}}/{name}", JobAnswer, right=kind.right, body=of_one)(one)
    route(f"POST /v1/jobs/{name}", ActAnswer, body=of_many)(many)


_declare("cancel", "Cancel", _Cancel)
_declare("requeue", "Requeue", _Requeue)
_declare("suspend", "Suspend", _Suspend)
_declare("resume", "Resume", _Resume)
_declare("scratch/remove", "Remove what was kept of", _ClearScratch)
