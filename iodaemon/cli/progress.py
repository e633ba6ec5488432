"""How far a long computation is, on standard error."""

from __future__ import annotations

import math
import sys
import time
from typing import Final, Self

from iodaemon.cli.output import say

REDRAWN_S: Final = 0.2
"""Between two changes of the line on a terminal."""
TOLD_S: Final = 30.0
"""Between two lines where nobody looks at a terminal."""
_AGAIN: Final = "\r\x1b[K"
"""To the beginning of the line, which is emptied."""


class Line:
    """One line that changes on a terminal; a line now and then elsewhere.

    Args:
        told_s: monotonic; when something was told last.
    """

    def __init__(self, told_s: float = -math.inf) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._told_s = told_s
        self._is_open = False

    def say(self, words: str, *, is_first: bool = False) -> None:
        """Tell these words, unless others were told a moment ago.

        Args:
            words: without an end.
            is_first: of a terminal nothing was told before.
        """
        now_s = time.monotonic()
        is_due = now_s - self._told_s >= (REDRAWN_S if self._is_terminal else TOLD_S)
        if not is_due and not (self._is_terminal and is_first):
            return
        self._told_s = now_s
        if self._is_terminal:
            self._is_open = True
            print(f"{_AGAIN}iod: {words}", end="", file=sys.stderr, flush=True)
        else:
            say(words)

    def close(self) -> None:
        """Take the line away."""
        if self._is_open:
            print(_AGAIN, end="", file=sys.stderr, flush=True)
        self._is_open = False


class Progress:
    """How many tasks are done, of how many."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._begun_s = time.monotonic()
        self._line = Line(told_s=self._begun_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    def __call__(self, done: int, total: int) -> None:
        """Tell it, unless it was told a moment ago.

        Args:
            done: tasks.
            total: tasks; the time left is reckoned from what the done ones took.
        """
        elapsed_s = time.monotonic() - self._begun_s
        self.tell(progress_words(self._what, done, total, elapsed_s=elapsed_s), is_first=done == 0)

    def tell(self, words: str, *, is_first: bool = False) -> None:
        """As ``Line.say``."""
        self._line.say(words, is_first=is_first)


def progress_words(what: str, done: int, total: int, *, elapsed_s: float) -> str:
    """What is done, of how much, and how long the rest takes at this pace."""
    words = f"{what}: {done} of {total} tasks"
    if not 0 < done < total:
        return words
    from iodaemon.units import format_duration

    return f"{words}, {format_duration(round(elapsed_s / done * (total - done), 1))} left"
