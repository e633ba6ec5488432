"""A mean over runs in which what is old, or long overtaken, counts for less."""

from __future__ import annotations

import math
from typing import Final

import msgspec

HALF_LIFE_S: Final = 30 * 86400.0
"""After so long a run counts half: programs, their data and the machine change in months."""
KEPT: Final = 0.9
"""What a run still counts once another one has followed: the last ten are most of the mean."""


class Fading(msgspec.Struct):
    """A weighted mean and its spread (West 1979), one number a run in whatever order.

    A run weighs ``KEPT`` to the number of runs after it, times a half for each half-life. So it
    makes no difference whether runs come in the order of their ends or, read backwards from a
    journal, in the opposite one.

    Attributes:
        weight: of all runs together, as of ``last_s``.
        mean: weighted.
        last_s: the end of the newest run.
        count: how many runs.
    """

    weight: float = 0.0
    mean: float = 0.0
    last_s: float = -math.inf
    count: int = 0
    _squares: float = 0.0

    def add(self, value: float, at_s: float) -> float:
        """Count one more run, which ended then; returns its part of all weight."""
        fade, weight = self._shares(at_s)
        self.weight *= fade
        self._squares *= fade
        self.last_s = max(self.last_s, at_s)
        self.count += 1
        total = self.weight + weight
        if total <= 0.0:  # it is so old that nothing is left of it
            return 0.0
        part = weight / total
        step = value - self.mean
        self.mean += step * part
        self._squares += weight * step * (value - self.mean)
        self.weight = total
        return part

    def _shares(self, at_s: float) -> tuple[float, float]:
        """What earlier runs would still count, and what one more would, had it ended then."""
        if at_s >= self.last_s:
            return KEPT * 0.5 ** ((at_s - self.last_s) / HALF_LIFE_S), 1.0
        return 1.0, KEPT**self.count * 0.5 ** ((self.last_s - at_s) / HALF_LIFE_S)

    def weight_at(self, now_s: float) -> float:
        """How many runs of this moment all of them are worth then."""
        if now_s <= self.last_s:
            return self.weight
        return float(self.weight * 0.5 ** ((now_s - self.last_s) / HALF_LIFE_S))

    @property
    def spread(self) -> float:
        """The standard deviation; 0 for a single run."""
        return math.sqrt(max(0.0, self._squares) / self.weight) if self.weight > 0.0 else 0.0
