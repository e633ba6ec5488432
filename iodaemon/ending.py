"""Signals by which a command in the foreground is asked to end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def on_ending(receive: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let these signals be received so; afterwards as before."""
    before = {number: signal.signal(number, receive) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
