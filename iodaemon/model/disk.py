"""The parameters of a simulated disk and of the page cache above it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from iodaemon.core.platform import DeviceId
from iodaemon.model.scaling import Scaling, constant_scaling

MIB: Final = 2**20
GIB: Final = 2**30


class SimulatedDisk(msgspec.Struct, frozen=True, kw_only=True):
    """One device below one page cache.

    The defaults of the page cache are Linux's: background writeback from 10 %, writers wait
    from 20 % of available memory (here 16 GiB), dirty data is written after 30 s
    (Documentation/admin-guide/sysctl/vm.rst).

    Attributes:
        id: the kernel's name of the device.
        capacity_bytes_per_s: what it delivers to one stream.
        scaling: the part of it that is left with n streams.
        counted: which streams ``scaling`` is asked with: ``all`` jobs that read or write, or those
            ``waiting``: the ones that the disk, and not their own cap, holds back; a job that moves
            k streams at once then counts k times. ``waiting`` needs a scaling that never rises.
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
    counted: Literal["all", "waiting"] = "all"
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
