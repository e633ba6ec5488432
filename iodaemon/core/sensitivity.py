"""How much a program suffers from others' I/O, by what its work cost while they did some.

1. A program's work is CPU seconds, bytes read and bytes written (``core.work``). Two lists of what
   each of these costs in time are found by least squares: one from the windows in which its devices
   were quiet, one from those in which the wait was at the knee or beyond. Costs are not negative,
   and are scaled so that all work of a list costs all the time that it took: no time is lost.
2. All its work at both lists: how much more it costs, of each kind over the wait in excess that
   this kind met, in parts of what all costs alone::

       S = sum_k (h_k - q_k) W_k / (x_hk - x_qk)  /  sum_k a_k W_k,   a_k the cost at x = 0

   So a unit of work takes ``1 + S x`` times as long at a wait of ``1 + x``. Of a program that waits
   for each of its requests S is the part of its time alone that it spends waiting for them.
3. Its own phases confound nothing: a second of computing is compared with a second of computing,
   a byte with a byte, and the same work is priced twice. Where one of the lists saw next to
   nothing of a kind of work that the program does, nothing is known.
4. The interval (about 95 %) goes by how unevenly the windows of each list got on, and by how much
   the mix of its work differs from the program's. Windows that follow one another are alike, so
   only one in four counts.
5. Few windows, or an interval that could mean anything: nothing is known, which is not 0.

What hits at the same time as the wait (memory bandwidth, CPUs shared with others) counts as if the
wait had done it.

Source: ours, after Lv et al., JCST 29(4), 2014, section 3.3.2 and its first future work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

import msgspec

from iodaemon.core.work import HINDERED, KINDS, QUIET, Part, Work

MOST: Final = 4.0
"""Nobody is said to suffer more: five times as long where requests take twice as long."""
LEAST_WINDOWS: Final = 5.0
"""Of each list."""
WIDEST: Final = 0.5
"""An interval that reaches further to one side (of more than 1: this part of it) says nothing."""
LEAST_BYTES_PER_S: Final = 4096.0
"""What is moved more slowly, as a mean over all windows, is no part of the work: one page."""
_ALIKE: Final = 4.0
"""So many windows in a row say as much as one."""
_LEAST_ERROR: Final = 0.02
"""However evenly a program got on, what its work costs next time will differ by so much."""
_CLOSEST: Final = HINDERED - QUIET
"""Hindered work met at least so much more wait in excess than quiet work."""
_TINY: Final = 1e-12
_NOTHING: Final = 1e-100
"""A record that was damaged may hold any numbers; from here on they can be divided by."""
_MOST_STRETCHED: Final = 20.0
"""A list may see a kind of work for about so many times less of its time than the program does."""
_RIDGE: Final = 1e-6
"""Keeps costs of kinds that only come together (a steady program's) apart in equal parts."""
_SIGMAS: Final = 2.0

Matrix = Sequence[Sequence[float]]


class Sensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """How much a program suffers from others' I/O.

    Attributes:
        value: extra time for the same work, in parts of what it takes alone, per unit of
            normalised wait in excess of 1; 0 (not at all) to ``MOST``.
        low: it is hardly less.
        high: it is hardly more.
        quiet: windows (timeslices, as a rule) without others' I/O that it is known from.
        hindered: windows with it. What is old counts for less than one, in both.
    """

    value: float
    low: float
    high: float
    quiet: float
    hindered: float

    def slowdown(self, wait: float) -> float:
        """How many times as long as alone work takes at this normalised wait (1: alone)."""
        return 1.0 + self.value * max(0.0, wait - 1.0)


class _Bill(msgspec.Struct, frozen=True, kw_only=True):
    """What all work of a program costs by one list.

    Attributes:
        costs: s, of each of its kinds.
        error: of their sum, as a part of that (one standard deviation).
    """

    costs: tuple[float, ...]
    error: float


def find_sensitivity(work: Work | None) -> Sensitivity | None:
    """What these windows say; None: that cannot be said."""
    if work is None:
        return None
    quiet, hindered = work.quiet, work.hindered
    if min(quiet.windows, hindered.windows) < LEAST_WINDOWS:
        return None
    least = LEAST_BYTES_PER_S * (quiet.seconds + hindered.seconds)
    done = [one + other for one, other in zip(quiet.done, hindered.done, strict=True)]
    kinds = [kind for kind in range(KINDS) if done[kind] > (least if kind else 0.0)]
    bills = [_find_bill(part, kinds, done) for part in (quiet, hindered)]
    if bills[0] is None or bills[1] is None:
        return None
    apart = [max(_CLOSEST, hindered.excess[kind] - quiet.excess[kind]) for kind in kinds]
    slopes = [(h - q) / x for q, h, x in zip(bills[0].costs, bills[1].costs, apart, strict=True)]
    met = [max(0.0, s) * quiet.excess[kind] for s, kind in zip(slopes, kinds, strict=True)]
    alone = sum(bills[0].costs) - sum(met)
    if alone <= 0.0:
        return None
    steep = sum(h / x for h, x in zip(bills[1].costs, apart, strict=True)) / alone
    reach = _SIGMAS * steep * math.hypot(bills[0].error, bills[1].error)
    value = sum(slopes) / alone
    if not (math.isfinite(value) and reach <= WIDEST * max(1.0, value)):
        return None
    value = _bounded(value)  # who got on better beside others was lucky, not surer of it
    return Sensitivity(
        value=value,
        low=_bounded(value - reach),
        high=_bounded(value + reach),
        quiet=quiet.windows,
        hindered=hindered.windows,
    )


def _bounded(value: float) -> float:
    return min(MOST, max(0.0, value))


def _find_bill(part: Part, kinds: Sequence[int], done: Sequence[float]) -> _Bill | None:
    """What all the work costs at what it cost in these windows; None: they show too little of it.

    Args:
        part: the windows.
        kinds: of work that count.
        done: all work, of each kind.
    """
    scales = [math.sqrt(part.products[kind][kind]) for kind in kinds]
    if not kinds or min(scales) < _NOTHING:
        return None
    matrix = [
        [part.products[kind][other] / (a * b) for other, b in zip(kinds, scales, strict=True)]
        for kind, a in zip(kinds, scales, strict=True)
    ]
    for place in range(len(kinds)):
        matrix[place][place] += _RIDGE
    seen = [part.done[kind] / scale for kind, scale in zip(kinds, scales, strict=True)]
    asked = [done[kind] / scale for kind, scale in zip(kinds, scales, strict=True)]
    prices = _fit(matrix, seen)
    cost, whole = _dot(prices, seen), _dot(prices, asked)
    if cost < _NOTHING or whole < _NOTHING:
        return None
    level = part.seconds / cost
    in_these = math.sqrt(part.seconds) / (level * whole) if level * whole > _NOTHING else math.inf
    stretch = _dot(asked, _solve(matrix, asked)) * in_these * in_these
    if not stretch <= _MOST_STRETCHED:
        return None
    uneven = level * level * _dot(prices, [_dot(row, prices) for row in matrix]) / part.seconds
    spread = max(0.0, uneven - 1.0) * max(1.0, stretch) * _ALIKE / part.windows
    return _Bill(
        costs=tuple(level * price * each for price, each in zip(prices, asked, strict=True)),
        error=math.sqrt(_LEAST_ERROR * _LEAST_ERROR + spread),
    )


def _fit(matrix: Matrix, target: Sequence[float]) -> list[float]:
    """The prices, none below 0, that explain the time best: of all subsets the best legal one."""
    best, found = 0.0, [0.0] * len(target)
    for places in _subsets(len(target)):
        part = _solve([[matrix[i][j] for j in places] for i in places], [target[i] for i in places])
        gain = _dot(part, [target[i] for i in places])
        if min(part) >= 0.0 and gain > best:
            best, found = gain, [0.0] * len(target)
            for place, price in zip(places, part, strict=True):
                found[place] = price
    return found


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    for size in range(count, 0, -1):
        yield from combinations(range(count), size)


def _solve(matrix: Matrix, target: Sequence[float]) -> list[float]:
    """The solution of a positive definite system of up to three, by Cholesky's factors."""
    count = len(target)
    lower = [[0.0] * count for _ in range(count)]
    for i in range(count):
        for j in range(i + 1):
            left = matrix[i][j] - _dot(lower[i][:j], lower[j][:j])
            lower[i][j] = math.sqrt(max(_TINY, left)) if i == j else left / lower[j][j]
    forward: list[float] = []
    for i in range(count):
        forward.append((target[i] - _dot(lower[i][:i], forward)) / lower[i][i])
    found = [0.0] * count
    for i in reversed(range(count)):
        below = sum(lower[j][i] * found[j] for j in range(i + 1, count))
        found[i] = (forward[i] - below) / lower[i][i]
    return found


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
