"""Since when ``iod wait all`` looks back: a mark for each session of each user.

A session is the kernel's (setsid(2)): a login, a terminal, a cron job. Its mark is its first
submission, and then the last time that it was told of all ends. A session without a submission,
such as a second ``ssh host iod ...``, has the mark of its user's last ``iod wait all``. So a job
that fails before anybody waits is counted, and two sessions of a user that both submit do not move
each other's mark.

Marks are kept in memory. Without one, and at most, ``LONGEST_S`` are looked back: after a restart
of the daemon failures may be told twice, but none is passed over.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Final

LONGEST_S: Final = 86400.0
"""A day: longer than scripts wait, shorter than what nobody asks for any more."""
_MOST_MARKS: Final = 10_000
"""Sessions that are remembered; the one not heard of for longest goes first."""
_ANY: Final = -1
"""In place of a session: of whichever the user waited in last."""


class WaitMarks:
    """The marks, by user and session."""

    def __init__(self) -> None:
        self._marks: OrderedDict[tuple[int, int], float] = OrderedDict()

    def submitted(self, uid: int, session: int, at_s: float) -> None:
        """A session without a mark begins one."""
        self._put((uid, session), self._marks.get((uid, session), at_s))

    def told(self, uid: int, session: int, at_s: float) -> None:
        """The user knows how all jobs of then ended; what is submitted later comes next time."""
        for key in ((uid, session), (uid, _ANY)):
            self._put(key, max(at_s, self._marks.get(key, at_s)))

    def since_s(self, uid: int, session: int, now_s: float) -> float:
        """The mark of this session."""
        mark_s = self._marks.get((uid, session), self._marks.get((uid, _ANY), 0.0))
        return max(mark_s, now_s - LONGEST_S)

    def _put(self, key: tuple[int, int], at_s: float) -> None:
        self._marks[key] = at_s
        self._marks.move_to_end(key)
        if len(self._marks) > _MOST_MARKS:
            self._marks.popitem(last=False)


def session_of(pid: int) -> int:
    """The session of a process; 0 where it is gone or not visible."""
    try:
        return os.getsid(pid) if pid > 0 else 0
    except OSError:
        return 0
