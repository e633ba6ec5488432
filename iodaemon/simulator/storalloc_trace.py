"""A substitute for StorAlloc's requests: 24,001 of them, with the moments of the real ones.

The real file (Theta, 2020) was never published; what 256 runs made of it was, and that tells how
many requests there are and their sum; by size, from what survives unsplit on disks of 1, 2, 4 and
8 TB, how many, their sum, and how much space they hold for how long; how many hold space at once;
and how far they are in each other's way on one disk. Sizes are a ladder from the lower to the upper
end of a class, bent so that the sum is met; lengths are log-normal; large requests come in groups,
small ones at random, some of the small ones in bursts.

By construction, so no evidence of anything: the unsplit cells of figure 4 on every layout, the
peak, and that a burst meets a request that leaves one disk of eight emptier than the others.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from typing import Final

import msgspec

from iodaemon.core.storage import StorageRequest
from iodaemon.simulator.storalloc import GB

FIRST_S: Final = 1_577_931_378.0
"""The first allocation of the published runs: 2020-01-02 02:16:18 UTC."""
SPAN_S: Final = 31_515_560.0
"""From the first allocation to the last end of the published runs."""
SHORTEST_S: Final = 30.0
LONGEST_S: Final = 86_399.0
"""Theta ends jobs after a day."""


class SizeClass(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one order of size.

    Attributes:
        count: how many.
        least_gb: from this size on.
        most_gb: to this one.
        sum_gb: of all, each rounded up to whole GB.
        median_s: of the length; with ``sigma`` and the cut to a day its mean is what the published
            runs give, by space: bytes x seconds over bytes.
        sigma: of the logarithm of the length.
        group: at most so many begin together; 1: each alone.
        spread_s: within this time.
    """

    count: int
    least_gb: float
    most_gb: float
    sum_gb: int
    median_s: float
    sigma: float
    group: int = 1
    spread_s: float = 7200.0


class Bursts(msgspec.Struct, frozen=True, kw_only=True):
    """Many requests of one GB in a short time: somebody's benchmark.

    Attributes:
        requests: of all bursts; they are part of the small ones.
        bursts: how many, of equal size.
        length_s: from the first to the last of a burst.
        beneath_gb: requests of these sizes are there during each burst. At the published peak 23
            allocations more are there where requests are split, and with worst-fit 164 of them are
            on one disk: so many parts that eight disks cannot share them evenly.
        beneath_s: their length; the burst is in its middle.
    """

    requests: int = 1380
    bursts: int = 3
    length_s: float = 7200.0
    beneath_gb: tuple[float, ...] = (*(799.0,) * 7, 599.0)
    beneath_s: float = 15_000.0


SMALL: Final = SizeClass(
    count=23_128, least_gb=0.05, most_gb=200.0, sum_gb=87_486, median_s=1546.0, sigma=1.25
)
LARGE: Final = (
    SizeClass(
        count=45,
        least_gb=8001.0,
        most_gb=16e3,
        sum_gb=563_140,
        median_s=524.0,
        sigma=0.6,
        group=2,
        spread_s=300.0,
    ),
    SizeClass(
        count=6,
        least_gb=4001.0,
        most_gb=8e3,
        sum_gb=35_370,
        median_s=12_587.0,
        sigma=0.6,
    ),
    SizeClass(
        count=166,
        least_gb=2001.0,
        most_gb=4e3,
        sum_gb=368_690,
        median_s=1799.0,
        sigma=0.6,
        group=4,
    ),
    SizeClass(
        count=237,
        least_gb=1001.0,
        most_gb=2e3,
        sum_gb=357_770,
        median_s=17_076.0,
        sigma=0.7,
        group=4,
    ),
    SizeClass(
        count=395,
        least_gb=201.0,
        most_gb=1e3,
        sum_gb=198_899,
        median_s=7749.0,
        sigma=0.9,
        group=4,
    ),
)
"""The largest first: they are placed first. Of 200 GB to 1 TB 24 more are beneath the bursts."""
PEAK_GB: Final = 28_900.0
"""The large ones never want more at once: the published peak of all is 29,178 GB."""
_Piece = tuple[float, float, float]
"""Begin, end, GB."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are drawn.

    Attributes:
        small: up to 200 GB; at random over the year.
        large: each class above; the first is placed first.
        bursts: of small ones.
        peak_gb: of the large ones together, at one time.
        part: of all requests, 0 to 1: every class is so much smaller, and so is the time.
    """

    small: SizeClass = SMALL
    large: tuple[SizeClass, ...] = LARGE
    bursts: Bursts = Bursts()
    peak_gb: float = PEAK_GB
    part: float = 1.0

    def __post_init__(self) -> None:
        """Refuse parts that are none."""
        if not 0.0 < self.part <= 1.0:
            raise ValueError(f"part is {self.part:g}; it must be above 0, at most 1")
        if SPAN_S * self.part < self.bursts.length_s + 3.0 * LONGEST_S:
            raise ValueError(f"part is {self.part:g}: too short a time for bursts and days")
        if self.bursts.bursts < 1:
            raise ValueError("bursts must be at least 1")


def draw_requests(trace: Trace, seed: int) -> tuple[StorageRequest, ...]:
    """The requests of a seed, in the order of their begin."""
    rng = random.Random(f"storalloc trace {seed}")  # noqa: S311 - for experiments, no secrets
    span_s = SPAN_S * trace.part
    room_s = span_s - trace.bursts.length_s - 2.0 * LONGEST_S
    bursts_s = [LONGEST_S + rng.uniform(0.0, room_s) for _ in range(trace.bursts.bursts)]
    pieces = [piece for begin_s in bursts_s for piece in _beneath(trace.bursts, begin_s)]
    for kind in trace.large:
        pieces += _grouped(scaled(kind, trace.part), pieces, trace.peak_gb, span_s, rng)
    pieces += _small(trace, bursts_s, span_s, rng)
    pieces.sort()
    return tuple(
        StorageRequest(
            id=str(number),
            size_bytes=max(1, round(size_gb * GB)),
            start_s=FIRST_S + math.floor(begin_s),
            end_s=FIRST_S + math.floor(begin_s) + math.ceil(end_s - begin_s),
        )
        for number, (begin_s, end_s, size_gb) in enumerate(pieces)
    )


def scaled(kind: SizeClass, part: float) -> SizeClass:
    """So much of a class, at least one request."""
    count = max(1, round(kind.count * part))
    sum_gb = round(kind.sum_gb * count / kind.count)
    return msgspec.structs.replace(kind, count=count, sum_gb=sum_gb)


@functools.lru_cache(maxsize=16)
def ladder_gb(kind: SizeClass) -> tuple[float, ...]:
    """Sizes from the least to the most, bent so that rounded up they have the sum.

    What whole GB leave of it is added in the middle.
    """

    def sizes(bend: float) -> list[float]:
        ratio = kind.most_gb / kind.least_gb
        rungs = ((place + 0.5) / kind.count for place in range(kind.count))
        return [round(kind.least_gb * ratio ** (rung**bend), 9) for rung in rungs]

    low, high = 1e-3, 1e3
    for _ in range(45):
        bend = math.sqrt(low * high)
        if sum(map(math.ceil, sizes(bend))) > kind.sum_gb:
            low = bend
        else:
            high = bend
    found = sizes(high)
    found[kind.count // 2] += kind.sum_gb - sum(map(math.ceil, found))
    return tuple(found)


def length_s(kind: SizeClass, rng: random.Random) -> float:
    """How long a request of this class is there."""
    drawn = kind.median_s * math.exp(rng.gauss(0.0, kind.sigma))
    return min(LONGEST_S, max(SHORTEST_S, drawn))


def _beneath(bursts: Bursts, begin_s: float) -> list[_Piece]:
    """The requests that are there during a burst, one a second."""
    early_s = begin_s + (bursts.length_s - bursts.beneath_s) / 2.0
    return [
        (early_s + place, early_s + place + bursts.beneath_s, size_gb)
        for place, size_gb in enumerate(bursts.beneath_gb)
    ]


def _grouped(
    kind: SizeClass, others: Sequence[_Piece], peak_gb: float, span_s: float, rng: random.Random
) -> list[_Piece]:
    """The requests of a class, in groups, none of which lifts the large ones over the peak."""
    sizes = list(ladder_gb(kind))
    rng.shuffle(sizes)
    placed: list[_Piece] = []
    while len(placed) < len(sizes):
        here = sizes[len(placed) : len(placed) + rng.randint(1, kind.group)]
        for _ in range(10_000):
            at_s = rng.uniform(0.0, span_s - kind.spread_s - LONGEST_S)
            begins = [at_s + rng.uniform(0.0, kind.spread_s) for _ in here]
            ends = [begin_s + length_s(kind, rng) for begin_s in begins]
            group = list(zip(begins, ends, here, strict=True))
            if all(_beside_gb(each, [*others, *placed, *group]) <= peak_gb for each in group):
                break
        else:
            raise ValueError(f"peak_gb is {peak_gb:g}: requests of {here} GB find no time")
        placed += group
    return placed


def _beside_gb(one: _Piece, others: Sequence[_Piece]) -> float:
    """What is there at any time with this one, itself included."""
    begin_s, end_s, _ = one
    return sum(gb for other_s, until_s, gb in others if other_s < end_s and until_s > begin_s)


def _small(
    trace: Trace, bursts_s: Sequence[float], span_s: float, rng: random.Random
) -> list[_Piece]:
    """The small ones: most at random over the year, those of one GB in bursts."""
    small = scaled(trace.small, trace.part)
    tiny = min(round(trace.bursts.requests * trace.part), small.count - 1)
    rest = msgspec.structs.replace(small, count=small.count - tiny, sum_gb=small.sum_gb - tiny)
    found = []
    for number in range(tiny):
        at_s = bursts_s[number % len(bursts_s)] + rng.uniform(0.0, trace.bursts.length_s)
        found.append((at_s, at_s + length_s(small, rng), 0.5))
    for size_gb in ladder_gb(rest):
        at_s = rng.uniform(0.0, span_s - LONGEST_S)
        found.append((at_s, at_s + length_s(small, rng), size_gb))
    return found
