"""Ends a call of a rule that does not return in time, from a signal.

Python handles a signal between two instructions of the code under way. A rule that never comes
back from compiled code cannot be ended so.
"""

from __future__ import annotations

import mmap
import signal
import sys
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Final

from iodaemon.core.rule_error import RuleTimeout

RULE_LIMIT_S: Final = 10.0
"""Less than the half of WatchdogSec (systemd/system/iodaemon.service) in which nobody feeds it."""
ASKED: Final = ("", "admission", "regulation", "allocation")
"""The kinds of rules by the number that is noted while one is asked; the first: none is."""
_AGAIN_S: Final = 0.001
"""Between attempts to find the rule's own code under way, not ours."""


class RuleLimit:
    """The limit on each call of a rule (``core.rule.Limit``); one at a time."""

    def __init__(
        self, limit_s: float = RULE_LIMIT_S, note: bytearray | mmap.mmap | None = None
    ) -> None:
        """Limit calls from now on; in the main thread.

        Args:
            limit_s: for one call.
            note: its first item is the number of the kind that is being asked, 0 between calls.
        """
        self._limit_s = limit_s
        self._note = bytearray(1) if note is None else note
        self._before = signal.signal(signal.SIGALRM, self._on_alarm)

    def __call__(self, kind: str) -> AbstractContextManager[object]:
        """The limit for a rule of this kind."""
        return _Call(self._note, ASKED.index(kind), self._limit_s)

    def close(self) -> None:
        """Limit nothing any more."""
        signal.signal(signal.SIGALRM, self._before)

    def _on_alarm(self, _: int, frame: FrameType | None) -> None:
        if _is_in_a_rule(frame):
            raise RuleTimeout(f"did not return within {self._limit_s:g} s")


class _Call:
    """One call: not a generator, whose frames would be the standard library's."""

    def __init__(self, note: bytearray | mmap.mmap, kind: int, limit_s: float) -> None:
        self._note = note
        self._kind = kind
        self._limit_s = limit_s

    def __enter__(self) -> None:
        self._note[0] = self._kind
        signal.setitimer(signal.ITIMER_REAL, self._limit_s, _AGAIN_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        self._note[0] = 0


def _is_in_a_rule(frame: FrameType | None) -> bool:
    """Whether the code that runs is a rule's, or a library's that a rule called.

    Never one of ours that a rule called: it would leave the state half changed.
    """
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        top = module.partition(".")[0]
        if top == "iodaemon":
            return module.startswith("iodaemon.policy.")
        if top not in sys.stdlib_module_names:
            return True
        frame = frame.f_back
    return False
