"""Streams of bytes to the disks of one storage node: max-min fair over its disks and its link.

1. A stream is what one request moves to one disk. It has a pace, which it never exceeds, and a
   weight: the number of its parts there.
2. All streams rise together by weight until one has its pace, or a disk or the link is full, whose
   streams then keep what they have (progressive filling: Bertsekas, Gallager, Data Networks, 1992,
   section 6.5.2).
3. Work is counted in seconds at full pace, so that a stream that always had its pace ends exactly
   when it was to end, to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from iodaemon.core.job import DiskId

FULL: Final = 1.0
"""The speed of a stream that has its pace."""


class Stream:
    """What one request moves to one disk at present.

    Attributes:
        owner: whose; the pool does not look at it.
        disk: where to.
        pace_bytes_per_s: it never gets more.
        weight: at least 1.
        full_s: when it ends if it has its pace from the pool's present on.
        end_s: when it ends if nobody comes or goes.
        speed: the part of its pace that it gets, above 0 and at most 1.
    """

    __slots__ = ("disk", "end_s", "full_s", "owner", "pace_bytes_per_s", "speed", "weight")

    def __init__(
        self, owner: Any, disk: DiskId, *, pace_bytes_per_s: float, weight: int, full_s: float
    ) -> None:
        self.owner = owner
        self.disk = disk
        self.pace_bytes_per_s = pace_bytes_per_s
        self.weight = weight
        self.full_s = self.end_s = full_s
        self.speed = FULL


class Pool:
    """The disks of a node behind its link, and the streams to them.

    Use: ``advance`` to the present, ``add`` and ``take_ended``, then ``settle``. Invariant: between
    two calls of ``settle`` all speeds are constant.

    Attributes:
        streams: in the order in which they came.
        is_contended: somebody gets less than its pace.
        next_s: when the next one ends; infinite for never.
        ticket: raised whenever ``next_s`` may have changed.
    """

    def __init__(self, disks: Mapping[DiskId, float], link_bytes_per_s: float) -> None:
        self.streams: list[Stream] = []
        self.is_contended = False
        self.next_s = math.inf
        self.ticket = 0
        self._now_s = -math.inf
        self._disks = dict(disks)
        self._link = link_bytes_per_s

    def advance(self, now_s: float) -> None:
        """What does not have its pace falls behind."""
        if self.is_contended:
            passed_s = now_s - self._now_s
            for stream in self.streams:
                if stream.speed < FULL:
                    stream.full_s += passed_s * (FULL - stream.speed)
        self._now_s = now_s

    def full_s(self, stream: Stream, now_s: float) -> float:
        """When a stream of this pool ends if it has its pace from now on."""
        return stream.full_s + (now_s - self._now_s) * (FULL - stream.speed)

    def add(self, streams: Iterable[Stream]) -> None:
        """They come."""
        self.streams += streams

    def take_ended(self) -> list[Stream]:
        """Those that have ended by now; they are gone."""
        now_s = self._now_s
        ended = [stream for stream in self.streams if stream.end_s <= now_s]
        self.streams = [stream for stream in self.streams if stream.end_s > now_s]
        return ended

    def settle(self) -> None:
        """Share anew among those that are there."""
        now_s = self._now_s
        was_contended, self.is_contended = self.is_contended, not self._all_fit()
        if self.is_contended:
            self._fill()
        elif was_contended:
            for stream in self.streams:
                stream.speed = FULL
        next_s = math.inf
        for stream in self.streams:
            end_s = stream.full_s
            if stream.speed < FULL:
                end_s = now_s + (stream.full_s - now_s) / stream.speed
            stream.end_s = end_s
            next_s = min(next_s, end_s)
        self.next_s = next_s
        self.ticket += 1

    def _all_fit(self) -> bool:
        """Whether everybody can have its pace."""
        wanted: dict[DiskId, float] = {}
        for stream in self.streams:
            wanted[stream.disk] = wanted.get(stream.disk, 0.0) + stream.pace_bytes_per_s
        disks = self._disks
        return sum(wanted.values()) <= self._link and all(
            pace <= disks[disk] for disk, pace in wanted.items()
        )

    def _fill(self) -> None:
        """Progressive filling: at each step the lowest pace or the fullest resource is settled."""
        waiting = sorted(self.streams, key=_level, reverse=True)
        left: dict[DiskId | None, float] = dict(self._disks.items())
        left[None] = self._link
        weights: dict[DiskId | None, int] = dict.fromkeys(left, 0)
        for stream in waiting:
            weights[stream.disk] += stream.weight
            weights[None] += stream.weight
        while waiting:
            level, fullest = min(
                ((left[name] / weight, name) for name, weight in weights.items() if weight),
                key=_first,
            )
            if _level(waiting[-1]) <= level:
                settled = [waiting.pop()]
            else:
                settled = [each for each in waiting if fullest in {None, each.disk}]
                waiting = [each for each in waiting if fullest not in {None, each.disk}]
            for stream in settled:
                rate = min(stream.pace_bytes_per_s, level * stream.weight)
                stream.speed = rate / stream.pace_bytes_per_s
                for name in (stream.disk, None):
                    left[name] -= rate
                    weights[name] -= stream.weight


def _level(stream: Stream) -> float:
    """At which it has its pace."""
    return stream.pace_bytes_per_s / stream.weight


def _first(pair: tuple[float, DiskId | None]) -> float:
    return pair[0]
