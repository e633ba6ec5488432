"""How busy the machine is while nothing is measured: its figures would be those of others."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec
import psutil

from iodaemon.core.meter import DeviceLoad, device_load
from iodaemon.core.platform import DeviceId
from iodaemon.node.devices import read_disks

LOOK_S: Final = 2.0
"""Two jiffies of 10 ms are 1 % of it."""
MOST_BUSY_RATIO: Final = 0.1
"""Of the time with a request in flight: a quiet system's own writing stays below it."""
MOST_BYTES_PER_S: Final = 5e6
"""Only where the kernel does not count for how long a disk is busy: it is little for a fast one."""
MOST_CPU_RATIO: Final = 0.5
"""Of all CPUs; the readers need next to none, but need it at once."""
_CPU_FIELDS: Final = 8
_IDLE_FIELDS: Final = (3, 4)
"""idle and iowait (Documentation/filesystems/proc.rst 1.7), counted from user = 0."""


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """What went on while nothing was measured.

    Attributes:
        cpu_ratio: of all CPUs; None: not known.
        loads: of the disks; one whose counters cannot be read is not in it.
        untimed: those of them for which the kernel has never counted for how long they were busy.
    """

    cpu_ratio: float | None
    loads: Mapping[DeviceId, DeviceLoad]
    untimed: frozenset[DeviceId] = frozenset()

    @property
    def why(self) -> tuple[str, ...]:
        """What is too much; empty: the machine is quiet."""
        told = [
            f"{name} is busy for {100.0 * load.busy_ratio:.0f} % of the time and moves "
            f"{load.total_bytes_per_s / 1e6:.1f} MB/s"
            for name, load in self.loads.items()
            if load.busy_ratio > MOST_BUSY_RATIO
            or (name in self.untimed and load.total_bytes_per_s > MOST_BYTES_PER_S)
        ]
        if self.cpu_ratio is not None and self.cpu_ratio > MOST_CPU_RATIO:
            told.append(f"the CPUs are busy for {100.0 * self.cpu_ratio:.0f} %")
        return tuple(told)


def look(devices: Collection[DeviceId], for_s: float = LOOK_S) -> Busy:
    """Watch the machine for a while."""
    begun_s, cpu, disks = time.monotonic(), _read_cpu(), read_disks(devices)
    time.sleep(for_s)
    later = read_disks(devices)
    spent_s = time.monotonic() - begun_s
    found = {
        name: device_load(counters, later[name], spent_s)
        for name, counters in disks.items()
        if name in later
    }
    return Busy(
        cpu_ratio=busy_ratio(cpu, _read_cpu()),
        loads={name: load for name, load in found.items() if load is not None},
        untimed=frozenset(name for name, counters in later.items() if counters.busy_ms == 0),
    )


def _read_cpu() -> tuple[float, ...]:
    """User to steal; what guests use is in user and nice already."""
    try:
        return tuple(psutil.cpu_times())[:_CPU_FIELDS]
    except OSError:
        return ()


def busy_ratio(earlier: Sequence[float], later: Sequence[float]) -> float | None:
    """The part of the time between that was not idle; None: it is not known."""
    if len(earlier) != len(later) or len(later) <= max(_IDLE_FIELDS):
        return None
    spent = [after - before for before, after in zip(earlier, later, strict=True)]
    total = sum(spent)
    if total <= 0:
        return None
    return min(1.0, max(0.0, 1.0 - sum(spent[field] for field in _IDLE_FIELDS) / total))
