"""Who is who on this machine, from databases that may not answer: nsswitch.conf(5).

Behind ``passwd: files sss`` is a network. A lookup may take minutes, or for ever, and cannot be
interrupted. So each is made in a thread of its own, which nobody waits for longer than they say;
what was answered once is remembered.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import math
import pwd
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, NamedTuple, TypeVar

from iodaemon.thread import in_thread

Key = TypeVar("Key")
Value = TypeVar("Value")

MOST_AT_ONCE: Final = 8
"""Lookups that may hang at a time; who asks beyond that waits for one to end."""
_MOST_ASKED: Final = 256
"""Who asks beyond that is not answered now."""
COMPLAIN_EVERY_S: Final = 60.0
_MOST_KEPT: Final = 4096
_FIRST_GROUPS: Final = 64
_MOST_GROUPS: Final = 65536
"""include/uapi/linux/limits.h, NGROUPS_MAX."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
"""Its calls leave Python's lock to the other threads. ``os.getgrouplist`` keeps it (seen with
Python 3.11), and with it the whole process stands still."""


class Answer(NamedTuple, Generic[Value]):
    """What was answered, and when on the monotonic clock. A user who does not exist is one too."""

    value: Value
    at_s: float


class Lookups(Generic[Key, Value]):
    """Answers to one question about many; no caller waits longer than they say.

    Invariant: each key is asked for once at a time, ``MOST_AT_ONCE`` of them at a time. Where too
    much is known the oldest "there is no such user" goes, then the oldest answer.

    Args:
        look_up: asks; may take for ever. Its OSError is no answer.
        fresh_s: how long an answer is taken for today's.
        on_silence: told key and seconds waited when a deadline has passed; not for others while
            that lasts, and not more often than every ``COMPLAIN_EVERY_S``.
    """

    def __init__(
        self,
        look_up: Callable[[Key], Value],
        *,
        fresh_s: float,
        on_silence: Callable[[Key, float], None] = lambda _key, _waited_s: None,
    ) -> None:
        self._look_up = look_up
        self._fresh_s = fresh_s
        self._on_silence = on_silence
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[Key, Answer[Value]] = collections.OrderedDict()
        self._asked: dict[Key, Future[Value]] = {}
        self._began_s: dict[Key, float] = {}
        """On the monotonic clock, of those that have a thread."""
        self._turns = threading.Semaphore(MOST_AT_ONCE)
        self._silent: set[Key] = set()
        self._complained_s = -math.inf

    def known(self, key: Key) -> Answer[Value] | None:
        """The last answer, however old; None: there never was one."""
        return self._known.get(key)

    def is_fresh(self, key: Key) -> bool:
        """True while the last answer need not be asked for again."""
        answer = self._known.get(key)
        return answer is not None and time.monotonic() - answer.at_s < self._fresh_s

    def get(self, key: Key, within_s: float) -> Answer[Value] | None:
        """The answer; the last one where no new one comes in time; None: there is none.

        Who has an old one, or comes while others wait in vain, does not wait.
        """
        if self.is_fresh(key):
            return self.known(key)
        asked = self._ask(key)
        if asked is not None and key not in self._known and not self._silent:
            with contextlib.suppress(TimeoutError, OSError, RuntimeError):
                asked.result(within_s)
            if not asked.done():
                self._note_silence(key, within_s)
        return self.known(key)

    async def refresh(self, key: Key, within_s: float) -> None:
        """Wait for a fresh answer, without keeping the event loop; not where others wait in vain.

        It is ``known`` afterwards, if it came.
        """
        if self.is_fresh(key):
            return
        asked = self._ask(key)
        if asked is None or key in self._silent or len(self._silent) >= MOST_AT_ONCE:
            return
        answer = asyncio.wrap_future(asked)  # unlike in wait_for a cancel is one
        answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # it is seen
        await asyncio.wait({answer}, timeout=within_s)
        if not asked.done():
            self._note_silence(key, within_s)

    def _ask(self, key: Key) -> Future[Value] | None:
        """The question under way; None: too many are."""
        with self._lock:
            if key in self._asked:
                return self._asked[key]
            if len(self._asked) >= _MOST_ASKED:
                return None
            asked = in_thread(self._answer, key)
            if not asked.done():  # it has a thread, which waits for the lock at least
                self._asked[key] = asked
            return asked

    def _answer(self, key: Key) -> Value:
        """In a thread of its own, which hangs perhaps; the process can end meanwhile."""
        with self._turns:
            with self._lock:
                self._began_s[key] = time.monotonic()
            try:
                value = self._look_up(key)
                with self._lock:
                    self._keep(key, value)
            finally:
                with self._lock:
                    del self._asked[key], self._began_s[key]
                    self._silent.discard(key)
        return value

    def _keep(self, key: Key, value: Value) -> None:
        """Remember it; what others than this thread read is never without it meanwhile."""
        self._known[key] = Answer(value, time.monotonic())
        self._known.move_to_end(key)
        while len(self._known) > _MOST_KEPT:
            nobody = (
                one
                for one, answer in self._known.items()
                if answer.value in (None, frozenset()) and one != key
            )
            del self._known[next(nobody, next(iter(self._known)))]

    def _note_silence(self, key: Key, waited_s: float) -> None:
        """This one was waited for in vain: all that is asked for so long is silent."""
        with self._lock:
            now_s = time.monotonic()
            late = {one for one, at_s in self._began_s.items() if now_s - at_s >= waited_s}
            late |= self._asked.keys() & {key}
            self._silent |= late
            if not late or now_s - self._complained_s < COMPLAIN_EVERY_S:
                return
            self._complained_s = now_s
        self._on_silence(key, waited_s)


def find_name(uid: int) -> str | None:
    """The user's name; None: there is no such user. May take for ever."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def find_uid(name: str) -> int | None:
    """The user's number; None: there is no such user. May take for ever."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def find_groups(uid: int) -> frozenset[int]:
    """All groups of the user, as a login now would have them; empty: there is no such user.

    May take for ever: getgrouplist(3) asks every database, also for users of /etc/passwd.
    """
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return frozenset()
    room = _FIRST_GROUPS
    while room <= _MOST_GROUPS:
        groups, count = (ctypes.c_uint * room)(), ctypes.c_int(room)
        name = entry.pw_name.encode(errors="surrogateescape")
        if _LIBC.getgrouplist(name, ctypes.c_uint(entry.pw_gid), groups, ctypes.byref(count)) >= 0:
            return frozenset(groups[: count.value])
        room = max(2 * room, count.value)
    return frozenset({entry.pw_gid})
