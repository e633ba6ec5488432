"""Who asks, what they may do, and how much of the daemon one user may have at a time.

Identity is what the kernel says of the peer of a socket, and nothing else. One user's flood, or
slowness, is that user's own: connections, requests in work, large bodies and large answers are
counted for each user. Users without an account (65,536 a user: subuid(5)) are counted as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any, Final, Literal, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec
from aiohttp import web

from iodaemon.config import Config
from iodaemon.core.job import Job
from iodaemon.daemon.account import Accounts, find_gid, groups_of_users, refresh_groups
from iodaemon.daemon.http.refusal import refuse_malformed
from iodaemon.errors import NotPermitted, RequestError
from iodaemon.supervisor.launch import no_account

# -- identity and rights ---------------------------------------------------------------------------

Verb = Literal[
    "see",
    "submit",
    "cancel",
    "requeue",
    "suspend",
    "resume",
    "phase",
    "read_output",
    "regulate",
    "drain",
    "reload",
    "hint",
    "hint_others",
]

ADMIN_GROUP: Final = "iodaemon"
"""Its members act on all jobs (systemd/sysusers.conf)."""
_CREDENTIALS: Final = "3i"  # struct ucred: pid, uid, gid (unix(7), SO_PEERCRED)
_SO_PEERGROUPS: Final = 59  # include/uapi/asm-generic/socket.h, Linux 4.13
_MOST_GROUPS: Final = 65536  # include/uapi/linux/limits.h, NGROUPS_MAX
_FOR_ALL: Final = frozenset({"see", "submit", "hint"})
_LETS_GO: Final = frozenset({"resume", "requeue"})
"""Verbs that end a hold. A hold of an administrator is ended by administrators only."""
_OVERFLOW_UID: Final = 65534
"""Every user of another user namespace, and so nobody (DEFAULT_OVERFLOWUID, linux/highuid.h)."""
_OF_SUBMITTERS: Final = frozenset({"submit", "hint"})


class Actor(NamedTuple):
    """The process at the other end of a connection, as it was when the connection was made."""

    pid: int
    uid: int
    gids: frozenset[int] = frozenset()


class Rights(NamedTuple):
    """Whom a daemon serves: its owner, who may do everything, or all users of the machine.

    Attributes:
        admin_gid: of a shared one, the group whose members may act on all jobs; so may root.
        min_uid: of a shared one, the lowest uid whose jobs are run.
    """

    owner_uid: int
    is_shared: bool = False
    admin_gid: int | None = None
    min_uid: int = 0

    def is_admin(self, actor: Actor) -> bool:
        if actor.uid == self.owner_uid:
            return True
        return self.is_shared and (actor.uid == 0 or self.admin_gid in actor.gids)


def rights_of(config: Config) -> Rights:
    """A user's own daemon serves that user; the system's serves all, each with their own rights."""
    if not config.is_system:
        return Rights(owner_uid=os.geteuid())
    return Rights(
        owner_uid=os.geteuid(),
        is_shared=True,
        admin_gid=find_gid(ADMIN_GROUP),
        min_uid=config.min_uid,
    )


def read_peer(connection: socket.socket) -> Actor:
    """The peer of a unix socket connection, from the kernel (SO_PEERCRED, SO_PEERGROUPS).

    The kernel's word on groups waits for no directory service, unlike getgrouplist(3).
    """
    size = struct.calcsize(_CREDENTIALS)
    pid, uid, gid = struct.unpack(
        _CREDENTIALS, connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MOST_GROUPS)
    except OSError:  # an older kernel: the first group is known, and that is less, never more
        data = b""
    return Actor(pid, uid, frozenset((gid, *(one for (one,) in struct.iter_unpack("I", data)))))


def authorise(actor: Actor, verb: Verb, job: Job | None, rights: Rights) -> None:
    """Let the actor do this, or refuse.

    A user's own daemon serves only that user. It runs no others' jobs, so only root's takes hints
    on them. On the system's daemon everybody sees the queue, submits, gives hints on their own jobs
    and acts on these; root, the daemon's group and its user act on all jobs.

    Raises:
        NotPermitted: says who may.
    """
    if (why := _why_not(actor, verb, job, rights)) is not None:
        what = verb if job is None else f"{verb} job {job.id}"
        raise NotPermitted(f"uid {actor.uid} may not {what}: {why}")


def _why_not(actor: Actor, verb: Verb, job: Job | None, rights: Rights) -> str | None:
    if not rights.is_shared:
        if actor.uid != rights.owner_uid:
            return (
                f"this daemon serves uid {rights.owner_uid} alone; start your own with 'iod daemon'"
            )
        if verb == "hint_others" and actor.uid != 0:
            return "only its own jobs are run here"
        return None
    if verb in _OF_SUBMITTERS and actor.uid == _OVERFLOW_UID:
        return (
            f"users whom this machine does not know all have this number; {verb} as yourself, "
            "outside of the user namespace"
        )
    if verb in _OF_SUBMITTERS and actor.uid < rights.min_uid:
        return (
            f"jobs are run for uids from {rights.min_uid} on; {verb} as an ordinary user, or lower "
            "min_uid"
        )
    if rights.is_admin(actor):
        return None
    if job is not None and job.held_by_uid is not None and verb in _LETS_GO:
        return "an administrator suspended it; ask root or a member of the daemon's group"
    if verb in _FOR_ALL or (job is not None and job.uid == actor.uid):
        return None
    owner = "" if job is None else f"uid {job.uid}, "
    return f"{owner}root and the daemon's group may"


class Access:
    def __init__(self, rights: Rights) -> None:
        self.rights = rights
        self.accounts = Accounts()
        self.queue = FairQueue()
        self._turns = WeakValueDictionary[tuple[Kind, int], asyncio.Lock]()

    def who(self, request: web.Request) -> Actor:
        """Who asks, whatever they may do; with their groups of today where these are known.

        Raises:
            NotPermitted: the connection is gone.
        """
        transport = request.transport
        connection = None if transport is None else transport.get_extra_info("socket")
        if connection is None:
            raise NotPermitted("the connection is gone")
        actor = read_peer(connection)
        known = groups_of_users().known(actor.uid) if self.rights.is_shared else None
        return actor if known is None else actor._replace(gids=known.value)

    def allow(self, request: web.Request, verb: Verb, job: Job | None = None) -> Actor:
        actor = self.who(request)
        authorise(actor, verb, job, self.rights)
        return actor

    @contextlib.asynccontextmanager
    async def admit(self, request: web.Request) -> AsyncIterator[None]:
        """Let the request in, with its place among those of its user.

        Raises:
            NotPermitted: the daemon does not serve who asks.
        """
        uid = self.who(request).uid
        if self.rights.is_shared and uid not in (0, self.rights.owner_uid):
            await refresh_groups(uid)  # their processes have those of their login
        self.allow(request, "see")
        async with self.queue.place(self.accounts.pool(uid)):
            yield

    async def refuse_stranger(self, actor: Actor, what: Verb) -> None:
        """Refuse a user without an account; where no lookup answers, the supervisor refuses.

        Raises:
            NotPermitted: there is no such user.
        """
        if self.rights.is_shared and await self.accounts.ask(actor.uid) is False:
            raise NotPermitted(
                f"{no_account(actor.uid)}, and may not {what}; {what} as yourself, outside of the "
                "user namespace"
            )

    def turn(self, request: web.Request, kind: Kind) -> asyncio.Lock:
        """While this lock is held, the user's other requests of this kind wait."""
        key = (kind, self.accounts.pool(self.who(request).uid))
        return _get_or(self._turns, key, asyncio.Lock)


ACCESS: Final = web.AppKey("access", Access)


# -- requests in work ------------------------------------------------------------------------------

AT_ONCE: Final = 4
"""Requests of one user in work. A cached answer takes 0.4 ms: others wait 1.6 ms a round of the
loop. One would make a user's small requests wait for the same user's large ones."""


class FairQueue:
    """Fair queueing of requests: each user has a few in work, and all others of that user wait.

    The event loop serves the users side by side. So a request waits for a few requests of each
    other user, however many those have sent. A request gives its place back when it waits for
    something that needs no computing: an end, the disk, its reader.

    Invariant: a place that is given back is taken again in the next round of the event loop at the
    earliest, so that one round serves at most ``AT_ONCE`` requests of one user.
    """

    def __init__(self) -> None:
        self._lines = WeakValueDictionary[int, asyncio.Semaphore]()

    @contextlib.asynccontextmanager
    async def place(self, pool: int) -> AsyncIterator[None]:
        """Wait for a place, and hold it until the end or until ``give_place``.

        Args:
            pool: the user, as connections are counted.
        """
        place = _Place(_get_or(self._lines, pool, lambda: asyncio.Semaphore(AT_ONCE)))
        await place.take()
        token = _PLACE.set(place)
        try:
            yield
        finally:
            _PLACE.reset(token)
            place.give()


class _Place:
    def __init__(self, line: asyncio.Semaphore) -> None:
        self._line = line
        self._is_held = False

    def give(self) -> None:
        if self._is_held:
            self._is_held = False
            asyncio.get_running_loop().call_soon(self._line.release)

    async def take(self) -> None:
        if not self._is_held:
            await self._line.acquire()
            self._is_held = True


_K = TypeVar("_K")
_V = TypeVar("_V")


def _get_or(known: WeakValueDictionary[_K, _V], key: _K, make: Callable[[], _V]) -> _V:
    """What is known under the key, kept for as long as somebody uses it."""
    value = known.get(key)
    if value is None:
        value = known[key] = make()
    return value


_PLACE: Final[ContextVar[_Place | None]] = ContextVar("place", default=None)


def give_place() -> None:
    if (place := _PLACE.get()) is not None:
        place.give()


@contextlib.asynccontextmanager
async def _without_place() -> AsyncIterator[None]:
    """Wait inside for something that needs no computing, then for a place again."""
    give_place()
    yield
    if (place := _PLACE.get()) is not None:
        await place.take()


# -- bodies ----------------------------------------------------------------------------------------

LARGEST_BODY_BYTES: Final = 64 * 1024 * 1024
"""Of a submission: a hundred thousand jobs of 600 bytes each."""
LARGEST_REQUEST_BYTES: Final = 8 * 1024 * 1024
"""Of any other request: it is decoded in one go, in less than half a second whatever it is."""
BODY_WITHIN_S: Final = 60.0
_SMALL_BYTES: Final = 64 * 1024
"""Bodies up to this are read beside each other: 256 connections hold 16 MiB of them at most."""
Kind = Literal["body", "search", "answer", "import"]
"""Of each user one large body is read at a time, one output searched, one large answer sent, one
import of hints written."""


@contextlib.asynccontextmanager
async def body_of(request: web.Request) -> AsyncIterator[bytes]:
    """The whole body of the request; until the end no other large one of this user is read.

    Raises:
        RequestError: it does not come, or comes drop by drop.
        web.HTTPRequestEntityTooLarge: it is too large.
    """
    length = request.content_length
    is_small = length is not None and length <= _SMALL_BYTES
    is_small &= "Content-Encoding" not in request.headers
    async with contextlib.AsyncExitStack() as held:
        try:
            async with _without_place():
                if not is_small:
                    await held.enter_async_context(request.app[ACCESS].turn(request, "body"))
                async with asyncio.timeout(BODY_WITHIN_S):
                    body = await request.read()
        except TimeoutError as error:
            raise RequestError(
                f"the body was not here within {BODY_WITHIN_S:g} s; send it at once"
            ) from error
        yield body


async def read_body(request: web.Request, type_: Any) -> Any:
    """The body as this type; an empty one is ``{}``.

    Raises:
        RequestError: it is malformed.
    """
    async with body_of(request) as body:
        if len(body) > LARGEST_REQUEST_BYTES:
            raise RequestError(
                f"a request of {len(body)} bytes, {LARGEST_REQUEST_BYTES} are the most; send less"
            )
        with refuse_malformed("request"):
            return msgspec.json.decode(body or b"{}", type=type_)


# -- connections -----------------------------------------------------------------------------------

MOST_OF_A_USER: Final = 256
"""Connections at once on a shared daemon; of its 65,536 files one user takes half a percent."""
MOST_IN_ALL: Final = 16 * 1024
"""Connections of all users but root together: a quarter of its 65,536 files; jobs have the rest."""
UNREAD_S: Final = 60.0
"""In which a client takes an answer that is large and made already; else it is hung up on."""
_UNREAD_BYTES: Final = 1024 * 1024
"""An answer that waits for its reader is large from here on; a smaller one may wait (a pager)."""
ASKING: Final = -2
"""No user's number: users about whom a lookup is under way, for two seconds at most."""
_REFUSED_S: Final = 0.1
"""In which a connection that is one too many may ask, to be told so."""


class Front:
    """Makes the protocol of each new connection; one that is too many is told so, and closed.

    Attributes:
        make: the protocol of a connection that is let in (``web.Server``).
        accounts: who has none is counted with all others who have none.
    """

    def __init__(self, make: Callable[[], Any], accounts: Accounts) -> None:
        self.make = make
        self.accounts = accounts
        self._open: Counter[int] = Counter()

    def __call__(self) -> Any:
        return _Connection(self)

    def enter(self, pool: int) -> bool:
        """Count a connection; False: it is one too many."""
        others = self._open.total() - self._open[0]
        if self._open[pool] >= MOST_OF_A_USER or (pool != 0 and others >= MOST_IN_ALL):
            return False
        self._open[pool] += 1
        return True

    def leave(self, pool: int) -> None:
        self._open[pool] -= 1
        if not self._open[pool]:
            del self._open[pool]


class _Connection:
    """An asyncio protocol that hands on what it does not do itself to the one it lets in."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._pool: int | None = None
        self._asking: asyncio.Task[None] | None = None
        self._is_lost = False
        self._inner: Any = asyncio.Protocol()
        self._unread: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Let it in, or say that it is too many, once it is known who has an account."""
        self._transport = transport
        uid = read_peer(transport.get_extra_info("socket")).uid
        if self._front.accounts.is_fresh(uid):
            self._begin(self._front.accounts.pool(uid))
        elif self._enter(ASKING):
            loop = asyncio.get_running_loop()
            # Not at once: up to Python 3.11.3 asyncio begins to read after this, paused or not, and
            # what the client has sent already would be lost.
            loop.call_soon(transport.pause_reading)
            self._asking = loop.create_task(self._ask(uid))

    async def _ask(self, uid: int) -> None:
        await self._front.accounts.ask(uid)
        if self._is_lost:  # just now; up to Python 3.11 ``wait_for`` may answer although cancelled
            return
        self._leave()
        self._transport.resume_reading()
        self._begin(self._front.accounts.pool(uid))

    def _begin(self, pool: int) -> None:
        if self._enter(pool):
            self._inner = self._front.make()
            self._inner.connection_made(self._transport)

    def _enter(self, pool: int) -> bool:
        if self._front.enter(pool):
            self._pool = pool
            return True
        self._inner = _Refusal(self._transport)
        return False

    def _leave(self) -> None:
        if self._pool is not None:
            self._front.leave(self._pool)
        self._pool = None

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._stop_waiting()
        if self._asking is not None:
            self._asking.cancel()
        self._leave()
        self._inner.connection_lost(error)

    def pause_writing(self) -> None:
        self._inner.pause_writing()
        if self._transport.get_write_buffer_size() > _UNREAD_BYTES:
            loop = asyncio.get_running_loop()
            self._unread = loop.call_later(UNREAD_S, self._transport.abort)

    def resume_writing(self) -> None:
        self._stop_waiting()
        self._inner.resume_writing()

    def _stop_waiting(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class _Refusal(asyncio.Protocol):
    """Refuses a connection that is one too many, once the client has spoken: a connection that is
    closed before its data are read loses the answer.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        asyncio.get_running_loop().call_later(_REFUSED_S, transport.close)

    def data_received(self, _: bytes) -> None:
        self._transport.write(_TOO_MANY)
        self._transport.close()


def _too_many() -> bytes:
    text = "too many connections of this user; close some, or try again"
    body = json.dumps({"error": {"code": "unavailable", "message": text}}).encode()
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )


_TOO_MANY: Final = _too_many()
