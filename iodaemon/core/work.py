"""What a job got done in how long, while its devices were quiet and while others hindered it.

A job's work is of three kinds: CPU time, bytes read, bytes written. A window is a slice, or as many
as it takes until some of it is done. All windows of a job, and of all its like, come down to sums
of which any number can be added up, in any order; nothing else of them is kept.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

KINDS: Final = 3
"""CPU seconds per CPU asked for, bytes read, bytes written."""
QUIET: Final = 0.5
"""Wait in excess up to which nobody hindered the job: requests took up to 1.5 times as long."""
HINDERED: Final = 1.0
"""From here on others did: the wait was at the knee (``congestion.KNEE_WAIT``) or beyond."""
MOST_EXCESS: Final = 63.0
"""More counts as that: the wait of a device that empties a long queue says little of a job's."""
MOST_WINDOWS: Final = 4096.0
"""Of one job. Where there are more, all count half from then on: programs change their ways."""
_PAIRS: Final = tuple((one, other) for one in range(KINDS) for other in range(one, KINDS))
_DONE: Final = 2
_EXCESS: Final = _DONE + KINDS
_PRODUCTS: Final = _EXCESS + KINDS
_SIZE: Final = _PRODUCTS + len(_PAIRS)
LENGTH: Final = 2 * _SIZE
"""Numbers that a job's work comes down to."""
_DIGITS: Final = 7


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The windows in which the wait was alike.

    Attributes:
        windows: how many; what is old counts for less than one.
        seconds: that the job ran in them.
        done: work of each kind.
        excess: mean wait in excess (0: as if alone) that work of each kind met; 0 without any.
        products: for two kinds each, the sum of work times work over time.
    """

    windows: float
    seconds: float
    done: tuple[float, ...]
    excess: tuple[float, ...]
    products: tuple[tuple[float, ...], ...]


class Work:
    """Sums over windows.

    Args:
        sums: so many numbers (``LENGTH``). Empty: nothing yet.
    """

    __slots__ = ("_sums",)

    def __init__(self, sums: Sequence[float] = ()) -> None:
        self._sums = array("d", sums or bytes(8 * LENGTH))

    @property
    def windows(self) -> float:
        """How many there were; what is old counts for less than one."""
        return self._sums[0] + self._sums[_SIZE]

    def add(self, seconds: float, done: tuple[float, float, float], excess: float) -> None:
        """Count one more window; one in between quiet and hindered says nothing.

        Args:
            seconds: that the job ran in it, above 0.
            done: work of each kind, 0 or more.
            excess: mean wait less 1, in multiples of what a request takes alone, 0 or more.
        """
        if excess <= QUIET:
            at = 0
        elif excess >= HINDERED:
            at, excess = _SIZE, min(excess, MOST_EXCESS)
        else:
            return
        sums = self._sums
        if sums[at] >= MOST_WINDOWS:
            for place in range(at, at + _SIZE):
                sums[place] *= 0.5
        sums[at] += 1.0
        sums[at + 1] += seconds
        for kind, amount in enumerate(done, at + _DONE):
            sums[kind] += amount
            sums[kind + KINDS] += amount * excess
        for place, (one, other) in enumerate(_PAIRS, at + _PRODUCTS):
            sums[place] += done[one] * done[other] / seconds

    def blend(self, other: Work, weight: float = 1.0, *, keep: float = 1.0) -> None:
        """Count all windows of the other one too.

        Args:
            other: stays as it is.
            weight: each of its windows counts for so much of one.
            keep: each of those that are here for so much of what it did.
        """
        pairs = zip(self._sums, other._sums, strict=True)
        self._sums = array("d", [keep * mine + weight * more for mine, more in pairs])

    def fade(self, keep: float) -> None:
        """Let all windows count for so much of what they did."""
        self._sums = array("d", [keep * value for value in self._sums])

    @property
    def quiet(self) -> Part:
        """The windows in which nobody hindered the job."""
        return self._part(0)

    @property
    def hindered(self) -> Part:
        """The windows in which others did."""
        return self._part(_SIZE)

    @property
    def sums(self) -> tuple[float, ...]:
        """All of it."""
        return tuple(self._sums)

    def told(self) -> str:
        """As it is written down; empty: there is nothing."""
        return " ".join(f"{value:.{_DIGITS}g}" for value in self._sums) if self.windows else ""

    def _part(self, at: int) -> Part:
        sums = self._sums
        done = tuple(sums[at + _DONE : at + _EXCESS])
        met = sums[at + _EXCESS : at + _PRODUCTS]
        rows = [[0.0] * KINDS for _ in range(KINDS)]
        for place, (one, other) in enumerate(_PAIRS, at + _PRODUCTS):
            rows[one][other] = rows[other][one] = sums[place]
        return Part(
            windows=sums[at],
            seconds=sums[at + 1],
            done=done,
            excess=tuple(m / d if d else 0.0 for m, d in zip(met, done, strict=True)),
            products=tuple(map(tuple, rows)),
        )


def read_work(told: str) -> Work | None:
    """What was written down; None: nothing, or what cannot be."""
    try:
        sums = [float(word) for word in told.split(" ")] if told else []
    except ValueError:
        return None
    if len(sums) != LENGTH or not all(0.0 <= value < math.inf for value in sums):
        return None
    return Work(sums)
