"""The page cache of a simulated node: dirtied by writers, emptied by writeback."""

from __future__ import annotations

import math

from iodaemon.model.disk import SimulatedDisk


class PageCache:
    """How much is dirty, whether it is being written, and when that changes.

    Invariant: between two calls of ``settle`` both rates are constant. Writeback, once begun,
    goes on until nothing is dirty; so while it is off the oldest dirty data is the first since.

    Attributes:
        is_writing: writeback has begun.
        is_at_limit: all writers together get the pace of writeback.
        next_s: when one of the two changes by itself.
        cleaned: bytes that ever reached the device.
    """

    def __init__(self, disk: SimulatedDisk) -> None:
        self.is_writing = False
        self.is_at_limit = False
        self.next_s = math.inf
        self.cleaned = 0.0
        self._disk = disk
        self._dirtied = 0.0
        self._in_rate = 0.0
        self._out_rate = 0.0
        self._first_dirty_s: float | None = None

    @property
    def dirty(self) -> float:
        """Bytes that are not on the device yet."""
        return max(0.0, self._dirtied - self.cleaned)

    @property
    def being_written(self) -> float:
        """The part of the dirty bytes that is in requests to the device."""
        in_requests = float(self._disk.writeback_depth * self._disk.request_bytes)
        return min(self.dirty, in_requests) if self.is_writing else 0.0

    def flow(self, interval_s: float) -> None:
        """Go on at the present rates."""
        self._dirtied += self._in_rate * interval_s
        self.cleaned = min(self._dirtied, self.cleaned + self._out_rate * interval_s)

    def correct(self, dirtied: float) -> None:
        """All bytes that were ever dirtied, where that is known better than by adding up rates."""
        self._dirtied = dirtied

    def turn(self) -> None:
        """The time ``next_s`` has come: start writeback, or find all clean, or full."""
        if not self.is_writing:
            self.is_writing = True
        elif self._in_rate < self._out_rate:
            self.cleaned = self._dirtied
            self.is_writing = False
            self.is_at_limit = False
            self._first_dirty_s = None
        else:
            self.is_at_limit = True

    def settle(self, now_s: float, wanted: float, writeback_rate: float) -> None:
        """Take up new rates.

        Args:
            now_s: the present.
            wanted: what all writers would dirty unhindered, bytes/s.
            writeback_rate: what writeback gets of the disk, bytes/s; 0 while it is off.
        """
        self.is_at_limit = self.is_at_limit and wanted > writeback_rate
        self._out_rate = writeback_rate
        self._in_rate = writeback_rate if self.is_at_limit else wanted
        if self._in_rate > 0.0 and self._first_dirty_s is None:
            self._first_dirty_s = now_s
        self.next_s = max(now_s, self._next_turn_s(now_s))

    def _next_turn_s(self, now_s: float) -> float:
        grows = self._in_rate - self._out_rate
        if not self.is_writing:
            return min(self._expires_s(), now_s + self._time_to(self._disk.dirty_background_bytes))
        if grows < 0.0:
            return now_s + self.dirty / -grows
        if grows == 0.0:
            return math.inf
        return now_s + self._time_to(self._disk.dirty_limit_bytes)

    def _expires_s(self) -> float:
        if self._first_dirty_s is None:
            return math.inf
        return self._first_dirty_s + self._disk.dirty_expire_s

    def _time_to(self, dirty_bytes: int) -> float:
        """Until this much is dirty, s, at the present rates; infinite where they never lead."""
        missing = dirty_bytes - self.dirty
        grows = self._in_rate - self._out_rate
        if missing <= 0.0:
            return 0.0
        return missing / grows if grows > 0.0 else math.inf
