"""How long a lone request takes at a device, as measured while nothing else used it.

It is the base of the size-normalised wait: what a request takes now over what one of its kind and
size takes alone. How long that is depends on where on the disk the requests go, which no counter
tells: in order it is the least, at random places the most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

Points = tuple[tuple[float, float], ...]
"""Size of a request, bytes, and its time, s; by size."""


class LoneTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Of reads, or of writes; empty where none was measured.

    Attributes:
        in_order: one after the other, as they lie on the disk.
        at_random: anywhere on it.
    """

    in_order: Points = ()
    at_random: Points = ()

    def range_s(self, size_bytes: float) -> tuple[float, float] | None:
        """The least and the most that a lone request of this size takes; None: not measured."""
        known = [time_s(points, size_bytes) for points in (self.in_order, self.at_random) if points]
        return (min(known), max(known)) if known else None


class ServiceTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one device.

    Attributes:
        reads: lone ones.
        writes: lone ones.
        width: how many times as much many readers had as one, 1 or more. A device that serves
            several at once is not full because a request takes as many times longer.
    """

    reads: LoneTimes = LoneTimes()
    writes: LoneTimes = LoneTimes()
    width: float = 1.0

    def one_at_a_time(self) -> ServiceTimes:
        """The same times, as of a device that is full with one request."""
        return msgspec.structs.replace(self, width=1.0)


def time_s(points: Sequence[tuple[float, float]], size_bytes: float) -> float:
    """What a request of this size takes, s, between and beyond the sizes that were measured.

    Between two sizes it grows along a power of the size. Smaller requests than any take as long as
    the smallest; larger ones are moved as fast as the largest.

    Args:
        points: one at least, by size; sizes and times above 0.
        size_bytes: above 0; 0 counts as a byte.
    """
    size_bytes = max(1.0, size_bytes)
    first, last = points[0], points[-1]
    if size_bytes <= first[0]:
        return first[1]
    if size_bytes >= last[0]:
        return last[1] * size_bytes / last[0]
    upper = next(place for place, (size, _) in enumerate(points) if size >= size_bytes)
    (low, low_s), (high, high_s) = points[upper - 1], points[upper]
    if high <= low:
        return high_s
    share = math.log(size_bytes / low) / math.log(high / low)
    return float(low_s * (high_s / low_s) ** share)
