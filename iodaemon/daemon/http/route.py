"""How a route is declared: once, for the server, for its checks and for ``/v1/openapi.json``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from aiohttp import web

from iodaemon.daemon.http.access import Verb
from iodaemon.errors import RequestError

Handler = Callable[..., Awaitable[web.StreamResponse]]
_LONGEST: Final = 30
"""Characters that are quoted of what somebody sent."""


class Key(NamedTuple):
    """A query key, which means the same in every request that takes it; or a request's header.

    Attributes:
        kind: ``string``, ``integer``, ``number`` or ``boolean`` (1: true).
        choices: the values that it may have; empty: any of its kind.
    """

    kind: str
    text: str
    choices: tuple[str, ...] = ()
    may_repeat: bool = False


_TIME: Final = "seconds since 1970; negative: so many seconds ago"

KEYS: Final[Mapping[str, Key]] = MappingProxyType(
    {
        "after": Key("integer", "the id of an event: only events after it"),
        "all": Key("boolean", "finished jobs too", ("0", "1")),
        "begin": Key("integer", "bytes to leave out at the beginning"),
        "by": Key("string", "add jobs up by this", ("user", "name")),
        "dry_run": Key("boolean", "check and queue nothing", ("0", "1")),
        "follow": Key("boolean", "go on with what happens", ("0", "1")),
        "limit": Key("integer", "at most so many, the newest"),
        "name": Key("string", "a glob over names; case counts"),
        "select": Key("string", "ids: 7, 3-9, 1,4, last or all"),
        "since": Key("number", f"from then on; {_TIME}"),
        "since_s": Key("number", f"from then on; {_TIME}"),
        "state": Key("string", "a state, by word or code", may_repeat=True),
        "stream": Key("string", "which output", ("stdout", "stderr")),
        "tail": Key("integer", "only so many lines from the end"),
        "until_s": Key("number", f"before then; {_TIME}"),
        "user": Key("string", "the submitter by name or number; me: the caller"),
        "wait": Key("integer", "answer after so many seconds at the latest"),
    }
)
HEADERS: Final[Mapping[str, Key]] = MappingProxyType(
    {
        "Idempotency-Key": Key("string", "1 to 64 printable ASCII characters; once a submission"),
        "Last-Event-ID": Key("integer", "the id of the last event of a stream that was cut off"),
    }
)
SELECTOR_KEYS: Final = ("select", "user", "name", "state")
"""Of a query that selects jobs."""


class Route(NamedTuple):
    """One request that the daemon answers.

    Attributes:
        path: with ``{id}`` for the number of a job.
        handler: called with the context and the request; then, where the path names one, with the
            job; then, where it has a type, with the body. Its docstring says what it does.
        answer: the type of the JSON that it answers with, or the types where the query decides; a
            media type where that is not JSON.
        query: the keys that its query may have.
        right: what the caller must be allowed to do, with the job where the path names one.
        body: the type of its body. None: it has none.
        reads_body: the handler reads the body itself, which may be in lines.
        headers: of the request, that mean something.
        statuses: of an answer.
    """

    method: str
    path: str
    handler: Handler
    answer: Any
    query: tuple[str, ...] = ()
    right: Verb = "see"
    body: Any = None
    reads_body: bool = False
    headers: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (200,)

    @property
    def text(self) -> str:
        return (self.handler.__doc__ or "").partition("\n")[0].rstrip(".")

    @property
    def answers(self) -> tuple[Any, ...]:
        if isinstance(self.answer, str):
            return ()
        return self.answer if isinstance(self.answer, tuple) else (self.answer,)

    def check_query(self, request: web.Request) -> None:
        """Refuse a key that this route does not know: it may restrict what is meant.

        Raises:
            RequestError: names the key, or the value that means nothing.
        """
        for name, value in request.query.items():
            is_known = name in self.query
            if is_known and len(request.query.getall(name)) > 1 and not KEYS[name].may_repeat:
                raise RequestError(f"{name} is given more than once; write it once")
            if not is_known:
                takes = f"it takes {', '.join(sorted(self.query)) or 'none'}"
                raise RequestError(
                    f"{request.method} {request.path}: no query key {name[:_LONGEST]!r}; {takes}"
                )
            choices = KEYS[name].choices
            if choices and value not in choices:
                known = " or ".join(choices)
                raise RequestError(f"{name}={value[:_LONGEST]!r} means nothing; write {known}")


ROUTES: Final[list[Route]] = []


def route(request: str, answer: Any, *query: str, **declared: Any) -> Callable[[Handler], Handler]:
    """Declare what the decorated function answers.

    Args:
        request: ``METHOD /path``.
        answer: as in ``Route``, and so are ``query`` and all others.
    """
    method, path = request.split()

    def declare(handler: Handler) -> Handler:
        ROUTES.append(Route(method, path, handler, answer, query, **declared))
        return handler

    return declare
