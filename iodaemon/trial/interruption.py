"""Signals that end, obeyed between two steps: what a trial has begun is tidied up in order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import FrameType

from iodaemon.ending import on_ending


class InterruptedTrialError(Exception):
    """Somebody asked the trial to end; ``signal_number`` is how."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


@contextlib.contextmanager
def interruptible(on_signal: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Take signals that end until this is left.

    An exception out of nowhere would tear holes into the tidying itself, so further ones change
    nothing: it takes seconds.

    Args:
        on_signal: called at the first one, to say that it was heard.

    Yields:
        To be called between two steps; raises InterruptedTrialError once a signal came.
    """
    received: list[int] = []

    def receive(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            on_signal()

    def check() -> None:
        if received:
            raise InterruptedTrialError(received[0])

    with on_ending(receive):
        yield check
