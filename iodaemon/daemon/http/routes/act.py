"""The routes that act on jobs, on one by its number or on many by a selector.

Each job is authorised and checked by itself. What is asked of many is posted in slices: the events
of a slice are one step of the controller and one commit of the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from iodaemon.api.model import ActAnswer, JobAnswer
from iodaemon.core import event as ev
from iodaemon.core.job import FINAL, WAITING, Job, JobId, JobState
from iodaemon.daemon.account import user_name
from iodaemon.daemon.http.access import Actor, Verb, authorise
from iodaemon.daemon.http.answer import Answer, json_answer
from iodaemon.daemon.http.lookup import Lookup
from iodaemon.daemon.http.route import Handler, Route
from iodaemon.daemon.http.selector import Selector
from iodaemon.errors import Conflict, JournalError, NotFound, NotPermitted, RequestError

_SUSPEND_WAIT_S: Final = 5.0
_REMOVE_WAIT_S: Final = 10.0
"""What removing may take before the client is told that it goes on."""
_AFTER_GRACE_S: Final = 8.0
"""What a kill may take after the grace time before the client is told that it does."""
_AT_ONCE: Final = 500
"""Events posted between two looks at what else there is to do: a step of some 20 ms."""
_UNFINISHED: Final = frozenset(JobState) - FINAL


class _Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said of one job's end."""

    grace_s: float | None = None


class _Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Wishes(Selector, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same of many jobs' ends."""

    grace_s: float | None = None


Settled = Callable[[], bool]


class Grace(NamedTuple):
    """From asking a job to end to killing it, s: where a request says nothing, and at most."""

    usual_s: float
    longest_s: float


class Action(NamedTuple):
    """One verb with what was said of it.

    Attributes:
        right: what the actor must be allowed to do.
        refuse: raises ``RequestError`` where this job cannot be acted on now.
        event: what is posted for a job, and who asks.
        settled: when it has taken effect on this job; the job as it was before.
        patience_s: after so long the answer tells how the job is then.
        told: what the answer says beside the job; the job as it was before.
        concerns: whether a job is meant that is not named by its number.
        states: which jobs are meant where neither ids nor states are given.
    """

    right: Verb
    refuse: Callable[[Job], Awaitable[None]]
    event: Callable[[Job, Actor], ev.Event]
    settled: Callable[[Job], Settled]
    patience_s: float
    told: Callable[[Job], dict[str, Any]]
    concerns: Callable[[Job], bool]
    states: frozenset[JobState] = _UNFINISHED


class Actions:
    """Cancel, requeue, suspend, resume; copy out or remove what was kept.

    Args:
        lookup: finds and authorises.
        grace: from asking a job to end to killing it.
        refuse_above_limits: raises ``RequestError`` where a job more is too many for its user.
        recall_environment: brings an ended job's environment back, or raises ``RequestError``.
    """

    def __init__(
        self,
        lookup: Lookup,
        *,
        grace: Callable[[], Grace],
        refuse_above_limits: Callable[[int, Sequence[int]], None],
        recall_environment: Callable[[Job], Awaitable[None]],
    ) -> None:
        self._lookup = lookup
        self._state = lookup.state
        self._driver = lookup.driver
        self._grace = grace
        self._refuse_above_limits = refuse_above_limits
        self._recall_environment = recall_environment
        self._stops = {"cancel": self._cancel, "requeue": self._requeue}
        self._others = {
            "suspend": lambda: self._hold("suspend"),
            "resume": lambda: self._hold("resume"),
            "scratch/remove": self._clear_scratch,
        }

    def routes(self) -> Sequence[Route]:
        """What is done where."""
        routes = []
        for name in (*self._stops, *self._others):
            wish, wishes = (_Wish, _Wishes) if name in self._stops else (_Nothing, Selector)
            one, many = f"/v1/jobs/{{id}}/{name}", f"/v1/jobs/{name}"
            text = name.replace("scratch/remove", "remove what was kept of")
            right = self._action(name, None).right
            routes += [
                Route(
                    *("POST", one, self._on_one(name), f"{text} a job", JobAnswer),
                    right=right,
                    body=wish,
                ),
                Route("POST", many, self._on_many(name), f"{text} jobs", ActAnswer, body=wishes),
            ]
        return routes

    def _action(self, name: str, grace_s: float | None) -> Action:
        if name in self._others:
            return self._others[name]()
        return self._stops[name](self._grace_s(grace_s))

    def _grace_s(self, asked_s: float | None) -> float:
        grace = self._grace()
        if asked_s is None:
            return grace.usual_s
        if not 0.0 <= asked_s <= grace.longest_s:
            raise RequestError(
                f"grace_s is {asked_s:g}; give 0 to {grace.longest_s:g} s (cancel_grace_max)"
            )
        return asked_s

    # -- one job -----------------------------------------------------------------------------------

    def _on_one(self, name: str) -> Handler:
        async def act(request: web.Request, job: Job, wish: _Wish | _Nothing) -> web.StreamResponse:
            job = self._state.jobs.get(job.id, job)  # its body may have been long in coming
            action = self._action(name, getattr(wish, "grace_s", None))
            self._refuse_without_journal(name)
            await self._post(self._lookup.access.who(request), action, job)
            await self._lookup.until(action.settled(job), action.patience_s)
            self._refuse_without_journal(name)
            return json_answer(await self._answer(action, job))

        return act

    def _refuse_without_journal(self, name: str) -> None:
        if name == "requeue" and self._driver.problem:
            raise JournalError(self._driver.problem)

    async def _post(self, actor: Actor, action: Action, job: Job) -> None:
        """Ask for it.

        Raises:
            RequestError: this actor may not, or it cannot be done with this job.
        """
        authorise(actor, action.right, job, self._lookup.access.rights)
        await action.refuse(job)
        self._driver.post(action.event(job, actor))

    async def _answer(self, action: Action, before: Job) -> dict[str, Any]:
        now = await self._lookup.get(before.id)
        return {"job": self._lookup.record(now), **action.told(before)}

    # -- many --------------------------------------------------------------------------------------

    def _on_many(self, name: str) -> Handler:
        async def act(request: web.Request, wish: Selector) -> web.StreamResponse:
            if wish.is_empty:
                raise RequestError("no job is named; give select, user, name or state")
            action = self._action(name, getattr(wish, "grace_s", None))
            self._refuse_without_journal(name)
            async with Answer(request) as answer:
                await answer.take_turn()  # all of them are in memory
                actor = self._lookup.access.who(request)
                jobs, refusals = await self._find(actor, action, wish)
                posted = await self._post_all(actor, action, jobs, refusals)
                await self._await_all(action, posted)
                self._refuse_without_journal(name)
                rows = [*refusals, *(job.id for job in posted)]
                now = {job.id: job for job in await self._lookup.get_all(j.id for j in posted)}
                before = {job.id: job for job in posted}
                return await answer.send(
                    _parts(
                        self._row(action, before, now, refusals, job_id) for job_id in sorted(rows)
                    )
                )

        return act

    async def _find(
        self, actor: Actor, action: Action, wish: Selector
    ) -> tuple[list[Job], dict[int, RequestError]]:
        """The jobs that are meant, and refusals by id of those named that do not exist.

        Jobs that are named by number are acted on, or refused, one by one. Of the others only
        those are meant that the action is about. Without any id they are the caller's own, unless
        the caller is root or names a user.
        """
        named = set() if wish.has_filters else set(wish.ids)
        if not wish.names_ids and not wish.user and actor.uid != 0:
            wish = msgspec.structs.replace(wish, user="me")
        states = frozenset(JobState) if wish.names_ids else action.states
        found = await self._lookup.select(actor, wish, states)
        jobs = [job for job in found if job.id in named or action.concerns(job)]
        missing = named.difference(job.id for job in jobs)
        return jobs, {
            i: NotFound(f"no job {i}; 'iod queue -a' lists all that are known") for i in missing
        }

    async def _post_all(
        self,
        actor: Actor,
        action: Action,
        jobs: Iterable[Job],
        refusals: dict[int, RequestError],
    ) -> list[Job]:
        """Ask for it of each job; those of which it could be asked, the others into refusals."""
        posted = []
        for place, found in enumerate(jobs, 1):
            job = self._state.jobs.get(found.id, found)  # it may have gone on meanwhile
            try:
                await self._post(actor, action, job)
            except RequestError as error:
                refusals[job.id] = error
            else:
                posted.append(job)
            if place % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return posted

    async def _await_all(self, action: Action, posted: Sequence[Job]) -> None:
        """Until it has taken effect on all, each looked at once after that; or not in time."""
        left = [action.settled(job) for job in reversed(posted)]

        def settled() -> bool:
            while left and left[-1]():
                left.pop()
            return not left

        await self._lookup.until(settled, action.patience_s)

    def _row(
        self,
        action: Action,
        before: dict[JobId, Job],
        now: dict[JobId, Job],
        refusals: dict[int, RequestError],
        job_id: int,
    ) -> dict[str, Any]:
        if (error := refusals.get(job_id)) is not None:
            return {"id": job_id, "error": {"code": code_of(error), "message": str(error)}}
        record = self._lookup.record(now[JobId(job_id)])
        return {"id": job_id, "job": record, **action.told(before[JobId(job_id)])}

    # -- the verbs ---------------------------------------------------------------------------------

    def _cancel(self, grace_s: float) -> Action:
        async def refuse(job: Job) -> None:
            if job.state.is_final:
                raise Conflict(f"job {job.id} has ended already ({job.state})")

        def event(job: Job, actor: Actor) -> ev.Event:
            now_s, by = self._driver.timeline.now_s, user_name(actor.uid)
            return ev.CancelRequested(at_s=now_s, job_id=job.id, by=by, grace_s=grace_s)

        return Action(
            right="cancel",
            refuse=refuse,
            event=event,
            settled=lambda job: lambda: self._lookup.is_over(job.id),
            patience_s=grace_s + _AFTER_GRACE_S,
            told=lambda job: {"gone": self._lookup.is_over(job.id)},
            concerns=lambda job: not job.state.is_final,
        )

    def _requeue(self, grace_s: float) -> Action:
        async def refuse(job: Job) -> None:
            if job.state in WAITING:
                raise Conflict(f"job {job.id} is {job.state}: it waits already")
            if job.stop is not None and job.stop is not JobState.PENDING:
                raise Conflict(f"job {job.id} is being ended; requeue it once it has")
            if job.state.is_final:
                self._refuse_above_limits(job.uid, [job.spec.cpus])
                await self._recall_environment(job)

        def event(job: Job, actor: Actor) -> ev.Event:
            return ev.RequeueRequested(
                at_s=self._driver.timeline.now_s,
                job_id=job.id,
                by=user_name(actor.uid),
                grace_s=grace_s,
                by_uid=actor.uid,
                ended=job if job.state.is_final else None,
            )

        def settled(job: Job) -> Settled:
            def is_settled() -> bool:
                now = self._state.jobs.get(job.id, job)
                is_over = now.state.is_final and now is not job  # it was cancelled after all
                return is_over or (_is_requeued(job, now) and self._driver.is_durable(job.id))

            return is_settled

        def told(job: Job) -> dict[str, Any]:
            return {"requeued": _is_requeued(job, self._state.jobs.get(job.id, job))}

        return Action(
            right="requeue",
            refuse=refuse,
            event=event,
            settled=settled,
            patience_s=grace_s + _AFTER_GRACE_S,
            told=told,
            concerns=lambda _: True,
        )

    def _hold(self, verb: Verb) -> Action:
        is_suspend = verb == "suspend"

        def event(job: Job, actor: Actor) -> ev.Event:
            now_s, by = self._driver.timeline.now_s, user_name(actor.uid)
            if is_suspend:
                return ev.SuspendRequested(at_s=now_s, job_id=job.id, by=by, by_uid=actor.uid)
            return ev.ResumeRequested(at_s=now_s, job_id=job.id, by=by)

        async def refuse(job: Job) -> None:
            if job.state.is_final or job.state is JobState.STOPPING:
                raise Conflict(f"job {job.id} is {job.state}; there is nothing to {verb}")
            is_stopped = self._driver.backend.is_stopped(job.id)
            if not is_suspend and not job.user_hold and not is_stopped:
                raise Conflict(
                    f"job {job.id} is {job.state} and nobody suspended it: see 'iod show'"
                )

        def settled(job: Job) -> Settled:
            def is_settled() -> bool:
                now = self._state.jobs.get(job.id)
                if now is None or now.state.is_final:
                    return True
                failed = now.reason is not None and now.reason.code == "SuspendFailed"
                if is_suspend and failed and now is not job and not now.user_hold:
                    return True
                as_asked = now.user_hold == is_suspend
                return as_asked and (not now.is_live or now.frozen == now.wants_freeze)

            return is_settled

        return Action(
            right=verb,
            refuse=refuse,
            event=event,
            settled=settled,
            patience_s=_SUSPEND_WAIT_S,
            told=lambda _: {},
            concerns=lambda job: not job.state.is_final,
        )

    def _clear_scratch(self) -> Action:
        """Who may end a job may have what is kept of it removed."""

        async def refuse(job: Job) -> None:
            if not job.shares:
                raise Conflict(f"job {job.id} has nothing in any tier's space")
            if job.is_live:
                raise Conflict(f"job {job.id} is {job.state}: what it uses is not removed")

        def event(job: Job, actor: Actor) -> ev.Event:
            now_s, by = self._driver.timeline.now_s, user_name(actor.uid)
            return ev.ScratchUnwanted(at_s=now_s, job_id=job.id, by=by)

        def is_gone(job: Job) -> bool:
            now = self._state.jobs.get(job.id)
            return now is None or not now.shares

        def settled(job: Job) -> Settled:
            was_kept, is_tried = job.scratch_kept is not None, False

            def is_settled() -> bool:
                """Gone, or kept once more."""
                nonlocal is_tried
                why = None if is_gone(job) else self._state.jobs[job.id].scratch_kept
                is_kept = why is not None
                is_tried |= was_kept and not is_kept
                return is_gone(job) or (is_tried and is_kept)

            return is_settled

        return Action(
            right="cancel",
            refuse=refuse,
            event=event,
            settled=settled,
            patience_s=_REMOVE_WAIT_S,
            told=lambda job: {"removed": is_gone(job)},
            concerns=lambda job: bool(job.shares),
            states=FINAL,
        )


def _is_requeued(before: Job, now: Job) -> bool:
    """True when it waits again, or has been started since."""
    return now.attempt > before.attempt or (now is not before and now.state in WAITING)


def _parts(rows: Iterable[dict[str, Any]]) -> Iterable[bytes]:
    before = b'{"results":['
    for row in rows:
        yield before + msgspec.json.encode(row)
        before = b","
    yield b"]}" if before == b"," else before + b"]}"


def code_of(error: RequestError) -> str:
    """The error's code in the API."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return "refused"


_CODES: Final = ((NotPermitted, "not_permitted"), (NotFound, "not_found"), (Conflict, "conflict"))
