"""A client of the daemon: one method for each thing the API can do.

    client = Client("/run/iodaemon/iod.sock")
    [job_id] = client.submit([{"command": ["make", "-j4"], "cwd": "/home/ann"}], dict(os.environ))
    client.wait([job_id])

Standard library alone, and no connection is kept: a client may live as long as it likes.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from types import MappingProxyType
from typing import Final, TypeAlias, cast

from iodaemon.api.connection import Body, UnixConnection, not_ours, receive, refusal, send, stream
from iodaemon.api.model import (
    LAST_EVENT,
    OUTPUT_BEGIN,
    AwaitedAnswer,
    HistoryAnswer,
    Job,
    JobAnswer,
    JobDetail,
    JobsAnswer,
    JobSpec,
    JsonObject,
    JsonValue,
    MeAnswer,
    ModeAnswer,
    SamplesAnswer,
    SubmitAnswer,
    SumsAnswer,
    WaitAnswer,
    WhyAnswer,
)
from iodaemon.api.patience import Patience, ask_patiently
from iodaemon.api.shape import JOB_KEYS, Selector, is_job, is_sum, target_of
from iodaemon.errors import NoDaemon, RequestError, Unanswered

TIMEOUT_S: Final = 30.0
"""Longest silence of the daemon that is taken for work."""

RECONNECT_S: Final = 60.0
"""How long ``wait`` looks for a daemon that went away: a restart with a long journal fits."""

_REPEAT_S: Final = 0.2
"""Between attempts to have a request answered that was not."""
_ANSWER_S: Final = 60.0
"""What acting on very many jobs may take beyond the usual."""
_LONGEST_S: Final = 10 * 365 * 86400.0
"""To wait for an answer; a socket takes no timeout without a bound."""
_AWAITED_AT_ONCE: Final = 10_000  # the most that one request may wait for

Outcome: TypeAlias = JobAnswer | RequestError
"""What one of several requests came to."""


class Client:
    """Speaks to the daemon behind one socket.

    Args:
        timeout_s: longest silence of the daemon, beyond what a request itself may take.
        reconnect_s: how long ``wait``, and requests whose answer was lost, look for a daemon that
            went away meanwhile.

    Attributes:
        change: of the last request that changes something: ``sent``, or ``answered``; empty: there
            was none.
        told_by: what shows whether that change was made.

    Every method may raise ``NoDaemon``, ``NotPermitted`` and ``RequestError``; those that name a
    job, ``NotFound``.
    """

    def __init__(
        self, socket_path: str, timeout_s: float = TIMEOUT_S, *, reconnect_s: float = RECONNECT_S
    ) -> None:
        self.socket_path = socket_path
        self.timeout_s = timeout_s
        self.reconnect_s = reconnect_s
        self.change = ""
        self.told_by = ""

    def jobs(
        self,
        *,
        select: str = "",
        states: Sequence[str] = (),
        user: str = "",
        name: str = "",
        all_jobs: bool = False,
        limit: int | None = None,
    ) -> JobsAnswer:
        """The queue, ordered by id, and the node in one line.

        Args:
            select: such as ``7``, ``3-9``, ``1,4``, ``last`` (the newest of the user), ``all``.
            states: only these, by word or code.
            user: only this one's, by name or number; ``me`` is the caller.
            name: only such names, a glob.
            all_jobs: finished jobs too.
            limit: at most so many.
        """
        query = Selector(select, user, name, tuple(states)).query
        if all_jobs:
            query.append(("all", "1"))
        if limit is not None:
            query.append(("limit", str(limit)))
        answer = self.ask("GET", target_of("/v1/jobs", query), None, {"node", "jobs"})
        return cast("JobsAnswer", self._with_jobs(answer))

    def history(self, query: Iterable[tuple[str, str]] = ()) -> HistoryAnswer:
        """Finished jobs, the one that ended last at the end.

        Args:
            query: ``user`` (name or number), ``name`` (a glob), ``state`` (repeatable, word or
                code), ``since_s``, ``until_s`` (when they ended; a negative number: so many seconds
                ago), ``select`` (as for ``jobs``), ``limit`` (those that ended last).
        """
        answer = self.ask("GET", target_of("/v1/history", list(query)), None, {"jobs"})
        return cast("HistoryAnswer", self._with_jobs(answer))

    def history_sums(self, by: str, query: Iterable[tuple[str, str]] = ()) -> SumsAnswer:
        """Finished jobs added up, who moved most first.

        Args:
            by: ``user`` or ``name``.
            query: as for ``history``.
        """
        target = target_of("/v1/history", [*query, ("by", by)])
        answer = self.ask("GET", target, None, {"sums", "total"})
        sums = answer["sums"]
        if not isinstance(sums, list) or not all(map(is_sum, sums)):
            raise not_ours(self.socket_path, "its sums have another shape")
        return cast("SumsAnswer", answer)

    def submit(self, jobs: Sequence[JobSpec], environment: Mapping[str, str]) -> list[int]:
        """Submit all of these jobs or none; the numbers of the jobs, in order, once durable."""
        return self.submit_warned(jobs, environment)["ids"]

    def submit_warned(
        self,
        jobs: Sequence[JobSpec],
        environment: Mapping[str, str],
        *,
        on_lost: Callable[[NoDaemon], None] | None = None,
    ) -> SubmitAnswer:
        """Submit as ``submit`` does; also what was said of their I/O that makes no sense.

        Where the answer is lost the submission is repeated during ``reconnect_s``, with a key by
        which the daemon knows it: no job is made twice.

        Args:
            jobs: what is submitted.
            environment: of all of them.
            on_lost: called when the answer was lost for the first time.

        Raises:
            Unanswered: it is not known whether they were submitted.
        """
        key = {"Idempotency-Key": os.urandom(16).hex()}
        body = _submission(jobs, environment)
        answer = self._until_answered(
            lambda: self.ask("POST", "/v1/jobs", body, {"ids"}, key), on_lost
        )
        ids = answer["ids"]
        if not isinstance(ids, list) or len(ids) != len(jobs):
            raise not_ours(self.socket_path, f"{len(jobs)} jobs sent, ids {ids!r} came back")
        return cast("SubmitAnswer", answer)

    def try_submission(self, jobs: Sequence[JobSpec], environment: Mapping[str, str]) -> list[str]:
        """Have a submission checked and nothing made of it; what would be said of it.

        Raises:
            RequestError: it would be refused.
        """
        body = _submission(jobs, environment)
        answer = self.ask("POST", "/v1/jobs?dry_run=1", body, {"ids"})
        return cast("list[str]", answer.get("warnings", []))

    def job(self, job_id: int) -> JobDetail:
        """One job, with its processes and counters."""
        answer = self.ask("GET", f"/v1/jobs/{job_id}", None, JOB_KEYS)
        return cast("JobDetail", answer)

    def cancel(self, job_id: int, *, grace_s: float | None = None) -> JobAnswer:
        """End a job; answers when it is gone, or after the grace time with the reason why not.

        Args:
            grace_s: from asking it to end to killing it. None: as the daemon is configured.
        """
        return self._act_on_one(job_id, "cancel", grace_s)

    def requeue(self, job_id: int, *, grace_s: float | None = None) -> JobAnswer:
        """Put a job back into the queue, ended first where it runs, as by ``cancel``."""
        return self._act_on_one(job_id, "requeue", grace_s)

    def suspend(self, job_id: int) -> JobAnswer:
        """Make a job stand still until it is resumed."""
        return self._act_on_one(job_id, "suspend")

    def resume(self, job_id: int) -> JobAnswer:
        """Let a suspended or held job go on."""
        return self._act_on_one(job_id, "resume")

    def act(
        self, verb: str, selector: Selector, *, grace_s: float | None = None
    ) -> list[tuple[int, Outcome]]:
        """Do the same to many jobs in one request; each job with its answer or refusal, by id.

        Args:
            verb: ``cancel``, ``requeue``, ``suspend``, ``resume`` or
                ``scratch/remove``.
            selector: the jobs. Those named by number are acted on or refused; of the others only
                those are meant on which the verb can act. Without any id they are the caller's
                own, unless a user is given or the caller is root.
            grace_s: of cancel and requeue, as for one job.
        """
        grace = {} if grace_s is None else {"grace_s": grace_s}
        body, target = {**selector.body, **grace}, f"/v1/jobs/{verb}"
        answer = self._change(verb, target, body, _ANSWER_S + _patience_s(grace_s), {"results"})
        return [self._outcome(row) for row in cast("list[JsonObject]", answer["results"])]

    def cancel_each(
        self, ids: Sequence[int], *, grace_s: float | None = None
    ) -> Iterator[tuple[int, Outcome]]:
        """Cancel these jobs in one request; each with its answer or refusal, by id."""
        if ids:
            selector = Selector(",".join(map(str, ids)))
            yield from self.act("cancel", selector, grace_s=grace_s)

    def wait(
        self,
        ids: Sequence[int],
        *,
        timeout_s: float | None = None,
        on_lost: Callable[[NoDaemon], None] | None = None,
        on_told: Callable[[Sequence[Job]], None] | None = None,
    ) -> WaitAnswer:
        """Wait until all these jobs have ended.

        A daemon that goes away meanwhile is looked for again during ``reconnect_s``: jobs and
        their ends are durable, so that nothing is lost by its restart.

        Args:
            timeout_s: answer after so long in any case. None: wait for ever.
            on_lost: called once each time the daemon goes away.
            on_told: called with all these jobs, at once and then every 30 s. Of more than 10,000 so
                many are waited for at a time: the others are as they were when last asked for.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._connect().close()  # no daemon to begin with: say so at once
        batches = [ids[at : at + _AWAITED_AT_ONCE] for at in range(0, len(ids), _AWAITED_AT_ONCE)]
        patience = Patience(self.reconnect_s, on_lost=on_lost, on_told=on_told)
        answers = patience.wait([partial(self._wait_once, batch) for batch in batches], until_s)
        jobs = [job for answer in answers for job in answer["jobs"]]
        return {"jobs": jobs, "finished": all(answer["finished"] for answer in answers)}

    def awaited(self, selector: Selector, *, since_s: float | None = None) -> AwaitedAnswer:
        """The jobs of a user that have not ended, and those submitted or requeued since then.

        Args:
            selector: restricts them; without a user they are the caller's.
            since_s: negative: so long ago. None: since the session's first submission, or since
                ``note_told``.
        """
        since = [] if since_s is None else [("since_s", repr(since_s))]
        target = target_of("/v1/wait/all", [*selector.query, *since])
        return cast("AwaitedAnswer", self.ask("GET", target, None, {"since_s", "now_s", "ids"}))

    def own_job(self) -> int | None:
        """The job of this daemon that the calling process belongs to; None: to none.

        A daemon that goes away meanwhile is looked for, as in ``wait``.
        """
        self._connect().close()  # no daemon to begin with: say so at once
        ask = partial(self.ask, "GET", "/v1/me", None, {"job_id"})
        return cast("MeAnswer", ask_patiently(ask, self.reconnect_s))["job_id"]

    def note_told(self, now_s: float) -> None:
        """The caller knows how all jobs of ``now_s`` ended; ``awaited`` begins there."""
        self.ask("POST", "/v1/wait/all", {"now_s": now_s}, {"since_s"})

    def logs(
        self,
        job_id: int,
        *,
        stream_name: str = "stdout",
        follow: bool = False,
        tail: int | None = None,
        begin: int = 0,
        on_begin: Callable[[int], None] | None = None,
    ) -> Iterator[bytes]:
        """A job's output as bytes, piece by piece.

        Args:
            stream_name: ``stdout`` or ``stderr``.
            follow: go on until the job has ended; it need not have started.
            tail: only the last so many lines (and what follows).
            begin: leave out so many bytes at the beginning; not with ``tail``.
            on_begin: called with the place in the file of the first byte that is sent.
        """
        query = [("stream", stream_name)]
        if follow:
            query.append(("follow", "1"))
        if tail is not None:
            query.append(("tail", str(tail)))
        elif begin:
            query.append(("begin", str(begin)))

        def read_head(headers: Mapping[str, str]) -> None:
            if on_begin is not None:  # a daemon of a version before begins where it is told
                on_begin(int(headers.get(OUTPUT_BEGIN, 0)))

        target = target_of(f"/v1/jobs/{job_id}/logs", query)
        return self._stream(target, endless=follow, on_head=read_head)

    def why(self, job_id: int) -> WhyAnswer:
        """Why a job is where it is, what would let it go on, and the steps of its life."""
        keys = frozenset(WhyAnswer.__required_keys__)
        answer = self.ask("GET", f"/v1/jobs/{job_id}/why", None, keys)
        if not is_job(answer["job"]) or not isinstance(answer["history"], list):
            raise not_ours(self.socket_path, "its explanation has another shape")
        return cast("WhyAnswer", answer)

    def events(
        self,
        *,
        since_s: float | None = None,
        after: int | None = None,
        follow: bool = True,
        on_begin: Callable[[int | None], None] | None = None,
    ) -> Generator[JsonObject, None, None]:
        """What happens, as it happens: every step in a job's life, and what regulation did.

        Args:
            since_s: first what has happened since then; negative: so long ago. None: nothing of it.
            after: first what has happened after the event with this ``id``; not with ``since_s``.
            follow: go on for ever.
            on_begin: called with the id after which it begins; None: the daemon gives no ids.

        Raises:
            Gone: not all events after that one are in the journal.
        """
        query = [("follow", "1" if follow else "0")]
        if since_s is not None:
            query.append(("since", repr(since_s)))
        if after is not None:
            query.append(("after", str(after)))

        def read_head(headers: Mapping[str, str]) -> None:
            if on_begin is not None:
                begin = headers.get(LAST_EVENT)
                on_begin(None if begin is None else int(begin))

        rest = b""
        answer = self._stream(target_of("/v1/events", query), endless=True, on_head=read_head)
        with closing(answer) as pieces:
            for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(None, lines):
                    yield self._event(line)

    def mode(self) -> ModeAnswer:
        """What regulation may do now."""
        answer = self.ask("GET", "/v1/mode", None, {"mode", "shadow_suspended_s"})
        return cast("ModeAnswer", answer)

    def switch(self, mode: str) -> None:
        """Switch regulation to ``on``, ``shadow`` or ``off``; durable when this returns."""
        self.ask("POST", "/v1/mode", {"mode": mode}, {"mode"})

    def samples(self, since_s: float) -> Generator[SamplesAnswer, None, None]:
        """The raw samples since then, or so long ago; page by page; none where none are kept."""
        while True:
            target = target_of("/v1/samples", [("since", repr(since_s))])
            answer = self.ask("GET", target, None, {"samples", "jobs", "platform"})
            page = cast("SamplesAnswer", answer)
            if not page["samples"]:
                return
            yield page
            since_s = math.nextafter(float(str(page["samples"][-1]["at_s"])), math.inf)

    def node(self) -> JsonObject:
        """Sockets, slots, devices, and what is measured how."""
        return self.ask("GET", "/v1/node")

    def policy(self) -> JsonObject:
        """The policy in force: name, rules, parameters."""
        return self.ask("GET", "/v1/policy")

    def config(self) -> JsonObject:
        """The configuration in force, with where each value comes from."""
        return self.ask("GET", "/v1/config")

    # -- one request ---------------------------------------------------------------------------

    def _connect(self, extra_s: float | None = 0.0) -> UnixConnection:
        """A connection that waits ``extra_s`` longer than usual for the answer; None: for ever."""
        timeout_s = None if extra_s is None else self.timeout_s + extra_s
        connection = UnixConnection(self.socket_path, timeout_s)
        connection.connect()
        return connection

    def ask(
        self,
        method: str,
        target: str,
        body: Body = None,
        keys: frozenset[str] | set[str] = frozenset(),
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> JsonObject:
        """The answer to any one request: a JSON object with at least these keys."""
        connection = self._connect()
        with closing(connection):
            return self._checked(self._exchange(connection, method, target, body, headers), keys)

    def _exchange(
        self,
        connection: UnixConnection,
        method: str,
        target: str,
        body: Body,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> JsonValue:
        """The answer to one request, with a note of what is known of the change it asks for."""
        try:
            send(connection, method, target, body, headers)
        finally:  # also where Ctrl-C comes meanwhile
            if connection.is_change:
                self.change, self.told_by = "sent", connection.told_by
        answer = receive(connection)
        self.change = "answered" if connection.is_change else self.change
        return answer

    def _change(
        self, verb: str, target: str, body: Body, extra_s: float | None, keys: set[str]
    ) -> JsonObject:
        """Act on jobs; repeated where the answer is lost, except what makes a difference twice."""

        def ask() -> JsonObject:
            with closing(self._connect(extra_s)) as connection:
                return self._checked(self._exchange(connection, "POST", target, body), keys)

        return ask() if verb == "requeue" else self._until_answered(ask)

    def _until_answered(
        self,
        ask: Callable[[], JsonObject],
        on_lost: Callable[[NoDaemon], None] | None = None,
    ) -> JsonObject:
        """Repeat a request while its answer is lost, for ``reconnect_s``.

        Raises:
            Unanswered: it was sent, and is not known to have been done.
            NoDaemon: it was not sent.
        """
        lost: Unanswered | None = None
        until_s = math.inf
        while True:
            try:
                return ask()
            except Unanswered as error:
                if lost is None:
                    until_s = time.monotonic() + self.reconnect_s
                    if on_lost is not None:
                        on_lost(error)
                lost = error
            except NoDaemon:
                if lost is None:
                    raise
            if time.monotonic() >= until_s:
                raise lost
            time.sleep(_REPEAT_S)

    def _wait_once(self, ids: Sequence[int], poll_s: float) -> WaitAnswer:
        connection = self._connect(poll_s)
        with closing(connection):
            send(connection, "POST", "/v1/wait", {"ids": list(ids), "timeout_s": poll_s})
            answer = self._checked(receive(connection), {"jobs", "finished"})
        return cast("WaitAnswer", self._with_jobs(answer))

    def _act_on_one(self, job_id: int, verb: str, grace_s: float | None = None) -> JobAnswer:
        body = {} if grace_s is None else {"grace_s": grace_s}
        target = f"/v1/jobs/{job_id}/{verb}"
        answer = self._change(verb, target, body, _patience_s(grace_s), {"job"})
        if not is_job(answer["job"]):
            raise not_ours(self.socket_path, "no job in its answer")
        return cast("JobAnswer", answer)

    def _outcome(self, row: JsonObject) -> tuple[int, Outcome]:
        """One row of the answer to ``act``."""
        job_id, error = int(str(row["id"])), row.get("error")
        if isinstance(error, dict):
            return job_id, refusal(str(error["code"]), str(error["message"]))
        if not is_job(row.get("job")):
            raise not_ours(self.socket_path, "no job in its answer")
        return job_id, cast("JobAnswer", {key: row[key] for key in row if key != "id"})

    def _stream(
        self,
        target: str,
        *,
        endless: bool,
        on_head: Callable[[Mapping[str, str]], None] | None = None,
    ) -> Generator[bytes, None, None]:
        connection = self._connect(None if endless else 0.0)
        with closing(connection):
            send(connection, "GET", target, None)
            yield from stream(connection, on_head)

    # -- is the answer one of ours? --------------------------------------------------------------

    def _checked(self, answer: JsonValue, keys: frozenset[str] | set[str]) -> JsonObject:
        if not isinstance(answer, dict) or not keys <= answer.keys():
            raise not_ours(self.socket_path, "its answer has another shape")
        return answer

    def _with_jobs(self, answer: JsonObject) -> JsonObject:
        jobs = answer["jobs"]
        if not isinstance(jobs, list) or not all(map(is_job, jobs)):
            raise not_ours(self.socket_path, "its jobs have another shape")
        return answer

    def _event(self, line: bytes) -> JsonObject:
        try:
            return self._checked(cast("JsonValue", json.loads(line)), frozenset())
        except ValueError as error:
            raise not_ours(self.socket_path, str(error)) from error


def _submission(jobs: Sequence[JobSpec], environment: Mapping[str, str]) -> Body:
    head = {"environment": dict(environment)}
    return [head, *jobs] if len(jobs) > 1 else {**head, "jobs": list(jobs)}


def _patience_s(grace_s: float | None) -> float:
    """How long the answer may take; a grace time that cannot be is for the daemon to refuse."""
    return min(grace_s, _LONGEST_S) if grace_s is not None and grace_s >= 0.0 else 0.0
