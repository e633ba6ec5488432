"""Totals of each device for counters: what the kernel counts, and what others than jobs moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec

from iodaemon.core.bandwidth import SECTOR_BYTES
from iodaemon.core.platform import DeviceId
from iodaemon.core.sample import DeviceCounters

_WRAP_MS: Final = 2**32
"""Milliseconds of /proc/diskstats are 32 bits wide (Documentation/admin-guide/iostats.rst)."""
_TIMES: Final = ("read_ms", "write_ms", "queue_ms", "busy_ms")
_DIRECTIONS: Final = ("read", "write")
_UNPLACED: Final = ("several", "unknown")
"""Where jobs may move bytes on any disk of this machine (``daemon.aggregate.PLACES``)."""


class DeviceTotals(msgspec.Struct, frozen=True, kw_only=True):
    """One device since the machine was started; what others moved: since the daemon was.

    Attributes:
        bytes: by direction.
        requests: completed, by direction.
        request_s: from queueing to completion, summed over requests, by direction.
        queue_s: time with requests in flight, times how many.
        busy_s: time with a request in flight.
        other_bytes: by direction; see ``DeviceBook``.
    """

    bytes: Mapping[str, int]
    requests: Mapping[str, int]
    request_s: Mapping[str, float]
    queue_s: float
    busy_s: float
    other_bytes: Mapping[str, int]


class DeviceBook:
    """Follows the samples.

    What others than jobs moved is what the device moved, less what jobs did. Of a job with files
    on several disks, or that ended before anybody looked, the disk is not known: what it moved is
    taken from all disks, by what they moved beyond the other jobs. Jobs write into the page cache
    first, which reaches the device later, so the difference over a slice may be anything. The
    total is the highest difference so far since the beginning: it never falls, and what jobs have
    written ahead is not taken for others' when it arrives.
    """

    def __init__(self) -> None:
        self._last: dict[DeviceId, DeviceCounters] = {}
        self._wraps: Counter[tuple[DeviceId, str]] = Counter()
        self._base: dict[tuple[DeviceId, str], int] = {}
        self._beyond: dict[tuple[DeviceId, str], int] = {}
        self._shared: Counter[tuple[DeviceId, str]] = Counter()
        self._unplaced: Counter[str] = Counter()
        self._others: Counter[tuple[DeviceId, str]] = Counter()

    def take(
        self,
        devices: Mapping[DeviceId, DeviceCounters],
        moved: Mapping[tuple[str, str, str], int],
    ) -> None:
        """Take in a sample.

        Args:
            devices: of the sample.
            moved: by jobs until then, by socket, device and direction (``MinuteBook.moved``).
        """
        fresh = set()
        for device_id, counters in devices.items():
            before = self._last.get(device_id)
            if before is None or _went_back(before, counters):
                fresh.add(device_id)
            self._note_wraps(device_id, None if device_id in fresh else before, counters)
            self._last[device_id] = counters
        for direction in _DIRECTIONS:
            self._note_others(devices, direction, _by_device(moved, direction), fresh)

    def _note_others(
        self,
        devices: Mapping[DeviceId, DeviceCounters],
        direction: str,
        by_jobs: Mapping[str, int],
        fresh: Collection[DeviceId],
    ) -> None:
        beyond = {
            device_id: _bytes(counters)[direction] - by_jobs.get(device_id, 0)
            for device_id, counters in devices.items()
        }
        grown = {
            device_id: max(0, size - self._beyond.get((device_id, direction), size))
            for device_id, size in beyond.items()
            if device_id not in fresh
        }
        unplaced = sum(by_jobs.get(place, 0) for place in _UNPLACED) - self._unplaced[direction]
        room = sum(grown.values())
        given = min(unplaced, room)
        for device_id, size in beyond.items():
            key = (device_id, direction)
            self._beyond[key] = size
            if given > 0:
                part = given * grown.get(device_id, 0) // room
                self._shared[key] += part
                self._unplaced[direction] += part
            level = size - self._shared[key]
            if device_id in fresh:
                self._base[key] = level - self._others[key]
            self._others[key] = max(self._others[key], level - self._base[key])

    def totals(self) -> Iterator[tuple[DeviceId, DeviceTotals]]:
        """Every device ever seen, ordered by name."""
        for device_id, counters in sorted(self._last.items()):
            times_s = {
                name: (getattr(counters, name) + _WRAP_MS * self._wraps[device_id, name]) / 1000.0
                for name in _TIMES
            }
            yield (
                device_id,
                DeviceTotals(
                    bytes=_bytes(counters),
                    requests={"read": counters.reads, "write": counters.writes},
                    request_s={"read": times_s["read_ms"], "write": times_s["write_ms"]},
                    queue_s=times_s["queue_ms"],
                    busy_s=times_s["busy_ms"],
                    other_bytes={each: self._others[device_id, each] for each in _DIRECTIONS},
                ),
            )

    def _note_wraps(
        self, device_id: DeviceId, before: DeviceCounters | None, now: DeviceCounters
    ) -> None:
        for name in _TIMES:
            if before is None:
                self._wraps.pop((device_id, name), None)
            elif getattr(now, name) < getattr(before, name):
                self._wraps[device_id, name] += 1


def _by_device(moved: Mapping[tuple[str, str, str], int], direction: str) -> Counter[str]:
    by_device: Counter[str] = Counter()
    for (_, device, way), size in moved.items():
        if way == direction:
            by_device[device] += size
    return by_device


def _bytes(counters: DeviceCounters) -> dict[str, int]:
    return {
        "read": counters.read_sectors * SECTOR_BYTES,
        "write": counters.written_sectors * SECTOR_BYTES,
    }


def _went_back(before: DeviceCounters, now: DeviceCounters) -> bool:
    """Whether it is another device of the same name: these are wide and do not wrap."""
    pairs = ((before.reads, now.reads), (before.writes, now.writes))
    return any(later < earlier for earlier, later in pairs)
