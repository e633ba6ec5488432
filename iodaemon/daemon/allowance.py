"""How much one user may have the daemon write down, whatever they ask for.

A token bucket: what is not used is saved up to ``BURST_BYTES``, and comes back at a steady rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from iodaemon.errors import RequestError
from iodaemon.units import format_bytes, format_duration

BURST_BYTES: Final = 2**30
"""Saved at most: four submissions of 100,000 jobs in a row."""
BYTES_PER_S: Final = 256 * 1024.0
"""And so much for ever: 22 GB a day of one user's, 120 jobs a second of the usual size."""
VERB_BYTES: Final = 4 * 1024
"""What a suspend or resume writes; a pair was measured at 4.4 KB."""
JOB_BYTES: Final = 2 * 1024
"""What a job writes in its life, beside its own text."""

NOT_COUNTED: Final = frozenset({0})
"""Users who may have as much written as they like."""


class Allowances:
    """What is left to each user.

    Args:
        now_s: the time, s; only differences count.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._spent: dict[int, tuple[float, float]] = {}

    def spend(self, uid: int, size_bytes: float) -> None:
        """Count this; nothing is counted where it is refused.

        Raises:
            RequestError: it is more than is left; says when it will not be.
        """
        now_s = self._now_s()
        at_s, spent = self._spent.get(uid, (now_s, 0.0))
        spent = max(0.0, spent - BYTES_PER_S * max(0.0, now_s - at_s)) + size_bytes
        if spent > BURST_BYTES:
            wait_s = (spent - BURST_BYTES) / BYTES_PER_S
            raise RequestError(
                f"uid {uid} has had {format_bytes(BURST_BYTES)} written to the journal lately; "
                f"try again in {format_duration(max(1, round(wait_s)))}"
            )
        self._spent[uid] = (now_s, spent)
