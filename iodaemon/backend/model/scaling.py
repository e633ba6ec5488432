"""How much of its capacity a link or a disk keeps when many streams use it at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

Scaling = Callable[[int], float]
"""The part of the capacity that is left with this many streams (at least 1)."""


def constant_scaling(streams: int) -> float:  # noqa: ARG001 - it is the same for any number
    """A device whose total throughput does not depend on the number of streams."""
    return 1.0


LV_KNEE_STREAMS: Final = 8
"""Lv et al. 2014: eight jobs on one socket still get the full throughput."""
LV_EXPONENT: Final = 0.374
"""Fitted to Lv et al. 2014: x264 takes 7 s with 8 and 122 s with 64 streams, so 0.459 is left."""


def lv_scaling(streams: int) -> float:
    """Throughput that shrinks with concurrency: 1 for n <= 8 streams, (8/n)^0.374 beyond.

    Source: a fit to Lv et al., JCST 29(4), 2014, figures 1 and 14.
    """
    if streams <= LV_KNEE_STREAMS:
        return 1.0
    return float((LV_KNEE_STREAMS / streams) ** LV_EXPONENT)


def table_scaling(factors: Sequence[float]) -> Scaling:
    """The factor for 1, 2, 3 ... streams from a table; its last entry holds beyond.

    Raises:
        ValueError: no entries, or one that is not above 0.
    """
    table = tuple(factors)
    if not table or min(table) <= 0.0:
        raise ValueError(f"{table}: give at least one factor, each above 0")
    return lambda streams: table[min(streams, len(table)) - 1]
