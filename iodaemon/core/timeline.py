"""Time as everything but the timeline sees it. Only a timeline knows what time it is.

``daemon/timeline.py`` is wall time, ``simulator/timeline.py`` virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that has not been made yet."""

    def cancel(self) -> None:
        """The call will not be made; harmless when it already was."""
        ...


class Timeline(Protocol):
    """A clock that can be asked to call back."""

    @property
    def now_s(self) -> float:
        """The present, s since 1970 on wall time, since 0 on virtual time; never backwards."""
        ...

    def call_at(self, time_s: float, call: Callable[[], None]) -> Timer:
        """Make the call at that time, or as soon as possible when it has passed.

        Calls for the same time are made in the order in which they were asked for.
        """
        ...
