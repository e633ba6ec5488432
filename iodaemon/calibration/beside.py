"""What others do with the disks, before anything is measured and in each step.

In a step the disks' own counters are held against what the readers had:

1. The disks counted less than half of what was read: something in between answered (a page cache,
   memory, a file behind a loop device). What was measured is not the disk, and is not kept.
2. They counted more: others use them. In a step of readers every write is another's, because what
   was written before has been made durable; so is what was read beyond what the readers had, where
   they read past the page cache (through it more is read ahead). In a step of a writer every read
   is another's, and what was written beyond what it wrote: on several disks beyond so many times as
   much, for a mirror counts each of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import psutil

from iodaemon.core.meter import SECTOR_BYTES, DeviceLoad, device_load, elapsed_ms
from iodaemon.core.platform import DeviceId
from iodaemon.core.sample import DeviceCounters
from iodaemon.errors import RequestError
from iodaemon.kernels.paced import Order, Told
from iodaemon.node.condition import not_counted
from iodaemon.node.devices import read_disks

_LOOK_S: Final = 2.0
"""Two jiffies of 10 ms are 1 % of it."""
_MOST_BUSY_RATIO: Final = 0.1
"""Of the time with a request in flight: a quiet system's own writing stays below it."""
_MOST_BYTES_PER_S: Final = 5e6
"""Only where the kernel does not count for how long a disk is busy: it is little for a fast one."""
_MOST_CPU_RATIO: Final = 0.5
"""Of all CPUs; the readers need next to none, but need it at once."""
_LEAST_SEEN: Final = 0.5
"""Of what was moved, the disks have to have counted so much. A mirror counts writes twice."""
_MOST_SHARE: Final = 0.05
"""Of what the readers had, others may move so much: as much as a step may be late (``knee``)."""
_LEAST_BYTES_PER_S: Final = 0.5e6
"""What a quiet system writes (commits of journals, logs) stays below this in most steps."""
_MOST_OTHERS_SHARE: Final = 0.1
"""Of the readers' requests, others' writes: with an arm each costs a seek, however small it is."""
_LEAST_OTHERS_PER_S: Final = 20.0
_MOST_DISTURBED: Final = 0.1
"""Of all steps that are planned."""
TRIES: Final = 3
"""Of a step that others disturb."""


def look(devices: Collection[DeviceId], for_s: float = _LOOK_S) -> tuple[str, ...]:
    """Watch the machine for a while; what is too much, as of ``why_busy``."""
    begun_s, before = time.monotonic(), read_disks(devices)
    cpu_ratio = _watch_cpus(for_s)
    later, spent_s = read_disks(devices), time.monotonic() - begun_s
    loads = {}
    for name in sorted(before.keys() & later.keys()):
        if (load := device_load(before[name], later[name], spent_s)) is not None:
            loads[name] = load
    untimed = frozenset(name for name, counters in later.items() if counters.busy_ms == 0)
    return why_busy(cpu_ratio, loads, untimed)


def why_busy(
    cpu_ratio: float | None,
    loads: Mapping[DeviceId, DeviceLoad],
    untimed: frozenset[DeviceId] = frozenset(),
) -> tuple[str, ...]:
    """What goes on too much while nothing is measured; empty: the machine is quiet.

    Args:
        cpu_ratio: of all CPUs; None: not known.
        loads: of the disks.
        untimed: those of them for which the kernel has never counted for how long they were busy.
    """
    told = [
        f"{name} is busy for {100.0 * load.busy_ratio:.0f} % of the time and moves "
        f"{load.total_bytes_per_s / 1e6:.1f} MB/s"
        for name, load in loads.items()
        if load.busy_ratio > _MOST_BUSY_RATIO
        or (name in untimed and load.total_bytes_per_s > _MOST_BYTES_PER_S)
    ]
    if cpu_ratio is not None and cpu_ratio > _MOST_CPU_RATIO:
        told.append(f"the CPUs are busy for {100.0 * cpu_ratio:.0f} %")
    return tuple(told)


def _watch_cpus(for_s: float) -> float | None:
    try:
        return psutil.cpu_percent(for_s) / 100.0
    except OSError:
        time.sleep(for_s)
        return None


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What one disk did in a step: requests, their bytes and the time they took, ms."""

    reads: int
    read_bytes: int
    read_ms: int
    writes: int
    written_bytes: int
    write_ms: int


def _difference(before: DeviceCounters, after: DeviceCounters) -> Moved:
    return Moved(
        reads=after.reads - before.reads,
        read_bytes=(after.read_sectors - before.read_sectors) * SECTOR_BYTES,
        read_ms=elapsed_ms(before.read_ms, after.read_ms),
        writes=after.writes - before.writes,
        written_bytes=(after.written_sectors - before.written_sectors) * SECTOR_BYTES,
        write_ms=elapsed_ms(before.write_ms, after.write_ms),
    )


def others_bytes(
    moved: Collection[Moved], had_bytes: int, *, is_direct: bool, writes: bool = False
) -> int:
    """What others moved while readers, or a writer, had so much."""
    read = sum(each.read_bytes for each in moved)
    written = sum(each.written_bytes for each in moved)
    if writes:
        return read + max(0, written - len(moved) * had_bytes)
    return written + (max(0, read - had_bytes) if is_direct else 0)


def is_disturbed(
    moved: Collection[Moved],
    *,
    had_bytes: int,
    ios: int,
    spent_s: float,
    is_direct: bool,
    writes: bool = False,
) -> bool:
    """Whether others moved so much, or so often, that a step may have been slower for it.

    Args:
        moved: by each disk.
        had_bytes: by the readers, who made so many ``ios``.
        is_direct: they read past the page cache.
        writes: it is a writer's step.
    """
    most_bytes = max(_LEAST_BYTES_PER_S * spent_s, _MOST_SHARE * had_bytes)
    most = max(_LEAST_OTHERS_PER_S * spent_s, _MOST_OTHERS_SHARE * ios)
    others = others_bytes(moved, had_bytes, is_direct=is_direct, writes=writes)
    return others > most_bytes or sum(m.reads if writes else m.writes for m in moved) > most


class Witness:
    """Watches the disks in every step.

    Args:
        planned: steps.
        is_direct: the readers read past the page cache.
        is_forced: others who use the disks are told, and no reason to end.

    Attributes:
        was_disturbed: others used the disks in the last step.
    """

    def __init__(
        self,
        names: Sequence[DeviceId],
        *,
        planned: int,
        is_direct: bool,
        is_forced: bool,
        read: Callable[[Collection[DeviceId]], Mapping[DeviceId, DeviceCounters]] = read_disks,
    ) -> None:
        self._names = names
        self._planned = planned
        self._is_direct = is_direct
        self._is_forced = is_forced
        self._read_all = read
        self._steps = self._disturbed = self._others_bytes = 0
        self._others_s = 0.0
        self._before: Mapping[DeviceId, DeviceCounters] = {}
        self._at_end = ""
        self.was_disturbed = False

    @property
    def words(self) -> tuple[str, ...]:
        """What others did, where it was too much; empty: nothing that matters."""
        during = self._others_words() if self._is_too_much else ""
        return tuple(filter(None, (during, self._at_end)))

    @property
    def _is_too_much(self) -> bool:
        """Whether others used the disks in so many steps that repeating them is no way out."""
        return self._disturbed > _MOST_DISTURBED * self._planned

    def steady(
        self,
        do: Callable[[dict[int, Order]], Mapping[int, Told]],
        make: Callable[[], dict[int, Order]],
        *,
        writes: bool = False,
    ) -> tuple[list[Told], dict[DeviceId, Moved]]:
        """One step, and what each disk did in it; again where others disturbed it: the last counts.

        Args:
            do: has the readers do as ordered.
            make: the orders, each time anew: no byte shall be read twice.

        Raises:
            RequestError: as ``end``.
        """
        for _ in range(TRIES):
            orders = make()
            self.begin()
            begun_s = time.monotonic()
            told = list(do(orders).values())
            moved = self.end(told, time.monotonic() - begun_s, writes=writes)
            if not self.was_disturbed or self._is_too_much:
                break
        return told, moved

    def begin(self) -> None:
        self._before = self._read()

    def end(
        self, told: Collection[Told], spent_s: float, *, writes: bool = False
    ) -> dict[DeviceId, Moved]:
        """The step is over; what each disk did in it.

        Raises:
            RequestError: it was not the disks, or others used them in too many steps.
        """
        after = self._read()
        by_name = {name: _difference(self._before[name], after[name]) for name in self._names}
        moved = tuple(by_name.values())
        had = sum(each.bytes for each in told)
        counted = sum(m.written_bytes if writes else m.read_bytes for m in moved)
        if counted < _LEAST_SEEN * had:
            raise RequestError(
                f"what was moved did not come from {', '.join(self._names)}: {counted / 1e6:.1f} "
                f"of {had / 1e6:.1f} MB were counted there; something in between answered (a "
                "cache, memory, a file behind a device), or the kernel does not count that disk; "
                "nothing is kept, name a directory that lies on the disk itself"
            )
        self._steps += 1
        self.was_disturbed = is_disturbed(
            moved,
            had_bytes=had,
            ios=sum(each.ios for each in told),
            spent_s=spent_s,
            is_direct=self._is_direct,
            writes=writes,
        )
        if self.was_disturbed:
            self._disturbed += 1
            self._others_bytes += others_bytes(moved, had, is_direct=self._is_direct, writes=writes)
            self._others_s += spent_s
            if self._is_too_much and not self._is_forced:
                raise RequestError(
                    f"the machine became busy: {self._others_words()}; nothing is kept; wait until "
                    "it is quiet, or --force to measure beside that"
                )
        return by_name

    def look_back(self, why: Collection[str]) -> None:
        """After the last step: what goes on then is told only, for every step was judged itself."""
        if why:
            self._at_end = f"at the end {'; '.join(why)}"

    def _others_words(self) -> str:
        rate = self._others_bytes / self._others_s / 1e6
        return (
            f"others moved {rate:.1f} MB/s on {', '.join(self._names)} in {self._disturbed} of "
            f"{self._steps} steps"
        )

    def _read(self) -> Mapping[DeviceId, DeviceCounters]:
        found = self._read_all(self._names)
        check_counted(name for name in self._names if name not in found)
        return found


def check_counted(uncounted: Iterable[DeviceId]) -> None:
    """Refuse disks of which the kernel has no counters.

    Raises:
        RequestError: there is one; nothing would show that it was the disk that answered.
    """
    if names := tuple(uncounted):
        fact, cure = not_counted(names)
        raise RequestError(
            f"{fact}, so nothing would show that it was the disk that answered; nothing is kept; "
            f"{cure}"
        )
