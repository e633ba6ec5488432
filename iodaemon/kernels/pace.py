"""What becomes of lost time where a program moves bytes at a rate. Standard library only."""

from __future__ import annotations

from typing import Final

_BLOCKS: Final = 2.0
"""So many blocks late are caught up: a disk serves them in no even time."""
_LEAST_S: Final = 0.05
"""Nor is who is woken later by so much on a busy CPU one that stood still."""
_MOST_S: Final = 0.25
"""Whatever a block takes: less than any timeslice, so that a suspension is never made good."""


def lost_s(late_s: float, block: int, rate: float) -> float:
    """How much of a delay is lost, s: all of a long one, as for a program that computes meanwhile.

    One that caught all of it up would lose nothing by being suspended, and read faster afterwards
    than it was said to.

    Args:
        late_s: after the time at which the next block was due.
        block: bytes moved at a time.
        rate: bytes/s, above 0.
    """
    forgiven_s = min(max(_LEAST_S, _BLOCKS * block / rate), _MOST_S)
    return late_s if late_s > forgiven_s else 0.0
