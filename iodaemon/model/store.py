"""Room in a store, reserved over intervals of time; never more than there is."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable

from iodaemon.errors import BackendError


class NoSpace(BackendError):
    """There is not enough room in the interval; a start that needs it is tried again."""


class Store:
    """A capacity in bytes, and who holds how much of it from when to when.

    Invariant: at no time more than ``capacity_bytes`` are reserved. Bytes are whole, so that
    nothing is lost by adding and taking away. A call costs O(changes in its interval) and a
    shift of a list.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._held: dict[Hashable, tuple[int, float, float]] = {}
        self._times = [-math.inf]
        self._used = [0]
        """``_used[i]`` bytes from ``_times[i]`` to ``_times[i + 1]``, the last for ever."""

    def free(self, start_s: float, end_s: float | None = None) -> int:
        """The least that is free at any time in [start, end). None: at the start."""
        first = bisect_right(self._times, start_s) - 1
        last = first + 1
        while end_s is not None and last < len(self._times) and self._times[last] < end_s:
            last += 1
        return self.capacity_bytes - max(self._used[first:last])

    def reserve(
        self, key: Hashable, size_bytes: int, start_s: float, end_s: float = math.inf
    ) -> None:
        """Hold so much from start to end, or until it is released.

        Args:
            key: by which it is released; one reservation a key.
            size_bytes: 0 or more.
            start_s: from then on.
            end_s: after the start.

        Raises:
            NoSpace: at some time in between there is less.
            ValueError: the key holds something already, or a figure makes no sense.
        """
        if key in self._held:
            raise ValueError(f"{key} holds something already")
        if size_bytes < 0 or not start_s < end_s:
            raise ValueError(f"{size_bytes} bytes from {start_s:g} to {end_s:g} s")
        if (free := self.free(start_s, end_s)) < size_bytes:
            raise NoSpace(f"needs {size_bytes} bytes of room, {free} are free")
        self._held[key] = (size_bytes, start_s, end_s)
        self._add(size_bytes, start_s, end_s)

    def release(self, key: Hashable, at_s: float) -> None:
        """Give back what the key holds from then on; harmless when that is over or unknown."""
        size_bytes, start_s, end_s = self._held.pop(key, (0, 0.0, 0.0))
        from_s = max(start_s, at_s)
        if from_s < end_s:
            self._add(-size_bytes, from_s, end_s)

    def _add(self, size_bytes: int, start_s: float, end_s: float) -> None:
        first = self._split(start_s)
        last = self._split(end_s) if end_s < math.inf else len(self._times)
        for index in range(first, last):
            self._used[index] += size_bytes
        for index in range(min(last, len(self._times) - 1), max(first - 1, 0), -1):
            if self._used[index] == self._used[index - 1]:
                del self._times[index], self._used[index]

    def _split(self, time_s: float) -> int:
        """The index from which on it is that time, made where there is none."""
        index = bisect_right(self._times, time_s) - 1
        if self._times[index] == time_s:
            return index
        self._times.insert(index + 1, time_s)
        self._used.insert(index + 1, self._used[index])
        return index + 1
