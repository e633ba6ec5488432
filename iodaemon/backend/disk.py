"""A simulated disk and page cache: the parameters, and how flows share the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from iodaemon.core.platform import DeviceId

MIB: Final = 2**20
GIB: Final = 2**30

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


class SimulatedDisk(msgspec.Struct, frozen=True, kw_only=True):
    """One device below one page cache.

    The defaults of the page cache are Linux's: background writeback from 10 %, writers wait
    from 20 % of available memory (here 16 GiB), dirty data is written after 30 s
    (Documentation/admin-guide/sysctl/vm.rst).

    Attributes:
        id: the kernel's name of the device.
        capacity_bytes_per_s: what it delivers to one stream.
        scaling: the part of it that is left with n streams.
        stream_cap_bytes_per_s: no job's stream is faster; writeback is not bound by it.
        request_bytes: size of one request to the device.
        stream_depth: requests that one job keeps in flight.
        writeback_depth: requests that writeback keeps in flight.
        memory_bytes_per_s: how fast one writer dirties the page cache.
        dirty_background_bytes: writeback starts here.
        dirty_limit_bytes: writers wait for writeback here.
        dirty_expire_s: writeback starts when the oldest dirty data has this age.
    """

    id: DeviceId = DeviceId("sim0")
    capacity_bytes_per_s: float = 500e6
    scaling: Scaling = constant_scaling
    stream_cap_bytes_per_s: float | None = None
    request_bytes: int = 128 * 1024
    stream_depth: int = 1
    writeback_depth: int = 32
    memory_bytes_per_s: float = 2e9
    dirty_background_bytes: int = 16 * GIB // 10
    dirty_limit_bytes: int = 16 * GIB // 5
    dirty_expire_s: float = 30.0

    def __post_init__(self) -> None:
        """Refuse what would make the fluid stand still or spin."""
        above_zero = (
            self.capacity_bytes_per_s,
            self.request_bytes,
            self.stream_depth,
            self.writeback_depth,
            self.memory_bytes_per_s,
            self.dirty_background_bytes,
            self.dirty_expire_s,
        )
        if min(above_zero) <= 0 or self.dirty_limit_bytes < self.dirty_background_bytes:
            raise ValueError(f"{self}: all figures above 0, and the limit not below the background")

    def capacity_with(self, streams: int) -> float:
        """What it delivers to this many streams together, bytes/s."""
        return self.capacity_bytes_per_s * self.scaling(max(1, streams))


class Shares(msgspec.Struct, frozen=True):
    """What flows with caps get of one capacity.

    Attributes:
        rates: bytes/s, in the order of the caps.
        level: what a flow without a cap gets, or would get in place of the fastest, bytes/s.
        is_full: True when nothing of the capacity is left.
    """

    rates: tuple[float, ...]
    level: float
    is_full: bool


def share_equally(capacity: float, caps: Sequence[float]) -> Shares:
    """Equal shares, where what a capped flow leaves is shared by the others (max-min fair).

    Args:
        capacity: bytes/s, above 0.
        caps: bytes/s, above 0; infinite for a flow without a cap.
    """
    rates = [0.0] * len(caps)
    left = capacity
    by_cap = sorted(range(len(caps)), key=lambda index: caps[index])
    for done, index in enumerate(by_cap):
        level = left / (len(caps) - done)
        if caps[index] >= level:
            for other in by_cap[done:]:
                rates[other] = level
            return Shares(rates=tuple(rates), level=level, is_full=True)
        rates[index] = caps[index]
        left -= caps[index]
    return Shares(rates=tuple(rates), level=max(rates, default=0.0) + left, is_full=False)
