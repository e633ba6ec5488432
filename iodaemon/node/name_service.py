"""Users and groups, from databases (nsswitch.conf(5)) that may not answer.

Behind ``passwd: files sss`` is a network, so a lookup may take minutes, or for ever, and cannot be
interrupted. Each runs in a thread of its own, callers wait for a limited time; answers are kept.
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
"""Lookups that run at a time; further ones wait for one to end."""
_MOST_ASKED: Final = 256
"""Lookups that run or wait; further ones are not begun."""
COMPLAIN_EVERY_S: Final = 60.0
_MOST_KEPT: Final = 4096
_FIRST_GROUPS: Final = 64
_MOST_GROUPS: Final = 65536
"""include/uapi/linux/limits.h, NGROUPS_MAX."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
"""Its calls release Python's lock. ``os.getgrouplist`` keeps it (Python 3.11), which stops all
threads."""


class Answer(NamedTuple, Generic[Value]):
    """An answer (also that a user does not exist), and its time on the monotonic clock."""

    value: Value
    at_s: float


class Lookups(Generic[Key, Value]):
    """Answers by key. No caller waits longer than it says.

    There is one lookup for each key at a time. If too many answers are kept, the oldest "there is
    no such user" is dropped, else the oldest answer.

    Args:
        look_up: may take for ever. An OSError is no answer.
        fresh_s: the age up to which an answer is not asked for again.
        on_silence: called with the key and the time waited after a deadline, at most every
            ``COMPLAIN_EVERY_S``.
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
        """By key, on the monotonic clock: of the lookups that run."""
        self._turns = threading.Semaphore(MOST_AT_ONCE)
        self._silent: set[Key] = set()
        self._complained_s = -math.inf

    def known(self, key: Key) -> Answer[Value] | None:
        """The last answer of any age, or None."""
        return self._known.get(key)

    def is_fresh(self, key: Key) -> bool:
        answer = self._known.get(key)
        return answer is not None and time.monotonic() - answer.at_s < self._fresh_s

    def get(self, key: Key, within_s: float) -> Answer[Value] | None:
        """The answer, or the last one if no new one comes in time; None without any.

        Does not wait if there is an old one, or while other lookups hang.
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
        """Wait in the event loop for a fresh ``known`` answer; not while other lookups hang."""
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
        """The running lookup, or None if there are too many."""
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
        """Mark this lookup, and all that run for so long, as silent."""
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
    """The user's name, or None. May take for ever."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def find_uid(name: str) -> int | None:
    """The user's number, or None. May take for ever."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def find_groups(uid: int) -> frozenset[int]:
    """The groups that a login of the user would have now; empty for an unknown user.

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
