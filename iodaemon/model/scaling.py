"""How much of its capacity a link or a disk keeps when many streams use it at once."""

from __future__ import annotations

import math
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


def waning_scaling(knee_streams: int, exponent: float) -> Scaling:
    """Throughput that shrinks with concurrency: 1 for n <= knee streams, (knee/n)^exponent beyond.

    Raises:
        ValueError: a knee below 1, or an exponent below 0.
    """
    if knee_streams < 1 or not 0.0 <= exponent < math.inf:
        raise ValueError(f"knee {knee_streams}, exponent {exponent:g}: 1 or more, 0 or more")

    def scaling(streams: int) -> float:
        return 1.0 if streams <= knee_streams else float((knee_streams / streams) ** exponent)

    return scaling


lv_scaling: Final = waning_scaling(LV_KNEE_STREAMS, LV_EXPONENT)
"""As fitted to Lv et al., JCST 29(4), 2014, figures 1 and 14."""


def table_scaling(factors: Sequence[float]) -> Scaling:
    """The factor for 1, 2, 3 ... streams from a table; its last entry holds beyond.

    Raises:
        ValueError: no entries, or one that is not above 0.
    """
    table = tuple(factors)
    if not table or min(table) <= 0.0:
        raise ValueError(f"{table}: give at least one factor, each above 0")
    return lambda streams: table[min(streams, len(table)) - 1]
