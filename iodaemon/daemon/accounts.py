"""Who has an account on this machine, and who is only a number: of those there are 65,536 a user.

(subuid(5): a user becomes any of them in a user namespace.) The databases behind nsswitch.conf may
take as long as they like; nobody here waits longer than ``WITHIN_S``.
"""

from __future__ import annotations

import asyncio
import contextlib
import pwd
import threading
import time
from collections.abc import Callable
from typing import Final

WITHIN_S: Final = 2.0
"""A lookup in /etc/passwd takes 0.05 ms."""
FRESH_S: Final = 300.0
STRANGERS: Final = -1
"""No user's number."""
_MOST_AT_ONCE: Final = 8
"""Lookups that may hang at a time."""
_MOST_KNOWN: Final = 4096


def has_account(uid: int) -> bool:
    """Whether there is a user with this number; may take for ever."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


class Accounts:
    """Remembers who has one. Use from one event loop.

    Args:
        look_up: asks; called in a thread. Its OSError is no answer.
    """

    def __init__(self, look_up: Callable[[int], bool] = has_account) -> None:
        self._look_up = look_up
        self._known: dict[int, tuple[bool, float]] = {}
        self._asked: dict[int, asyncio.Future[bool | None]] = {}
        self._free = asyncio.Semaphore(_MOST_AT_ONCE)

    def pool(self, uid: int) -> int:
        """As whom this user is counted: all that are not known to have an account are one."""
        found, _ = self._known.get(uid, (False, 0.0))
        return uid if found or uid == 0 else STRANGERS

    def is_fresh(self, uid: int) -> bool:
        """True when it need not be asked whether this user has one; root always has."""
        return uid == 0 or (uid in self._known and time.monotonic() - self._known[uid][1] < FRESH_S)

    async def ask(self, uid: int) -> bool | None:
        """Whether this user has an account; None: nobody answers in time."""
        if self.is_fresh(uid):
            return uid == 0 or self._known[uid][0]
        try:
            async with asyncio.timeout(WITHIN_S):
                if uid not in self._asked:
                    await self._free.acquire()
                    if uid in self._asked:
                        self._free.release()
                    else:
                        self._asked[uid] = self._begin(uid)
                return await asyncio.shield(self._asked[uid])
        except TimeoutError:
            return None

    def _begin(self, uid: int) -> asyncio.Future[bool | None]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool | None] = loop.create_future()

        def work() -> None:
            try:
                found: bool | None = self._look_up(uid)
            except OSError:
                found = None
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody wants to know
                loop.call_soon_threadsafe(self._end, uid, answer, found)

        threading.Thread(target=work, name="account", daemon=True).start()
        return answer

    def _end(
        self,
        uid: int,
        answer: asyncio.Future[bool | None],
        found: bool | None,  # noqa: FBT001
    ) -> None:
        self._free.release()
        del self._asked[uid]
        if found is not None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[uid] = (found, time.monotonic())
        answer.set_result(found)
