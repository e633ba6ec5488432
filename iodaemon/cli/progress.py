"""How far a long computation is, on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self

from iodaemon.cli.output import say

REDRAWN_S: Final = 0.2
"""Between two changes of the line on a terminal."""
TOLD_S: Final = 30.0
"""Between two lines where nobody looks at a terminal."""


class Progress:
    """One line that changes on a terminal; a line now and then elsewhere."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_terminal = sys.stderr.isatty()
        self._begun_s = self._told_s = time.monotonic()
        self._is_line_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_line_open:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, done: int, total: int) -> None:
        """Tell it, unless it was told a moment ago.

        Args:
            done: tasks.
            total: tasks; the time left is reckoned from what the done ones took.
        """
        elapsed_s = time.monotonic() - self._begun_s
        self.tell(progress_words(self._what, done, total, elapsed_s=elapsed_s), is_first=done == 0)

    def tell(self, words: str, *, is_first: bool = False) -> None:
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
            self._is_line_open = True
            print(f"\r\x1b[Kiod: {words}", end="", file=sys.stderr, flush=True)
        else:
            say(words)


def progress_words(what: str, done: int, total: int, *, elapsed_s: float) -> str:
    """What is done, of how much, and how long the rest takes at this pace."""
    words = f"{what}: {done} of {total} tasks"
    if not 0 < done < total:
        return words
    from iodaemon.units import format_duration

    return f"{words}, {format_duration(round(elapsed_s / done * (total - done), 1))} left"
