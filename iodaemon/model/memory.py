"""Memory that jobs share, and what is paged in when their working sets do not fit.

Model:
    1. A job's working set is all there when it starts; a job without one takes no room.
    2. Working sets may fill a part of the memory (``usable``); beyond it pages are given up:
       first those of suspended jobs, then those of all others, in proportion to what each has.
    3. A job goes over its memory evenly: of what it touches the part is missing that is missing
       of its whole set. What is missing is read from the disk and takes the room of others.
    4. Pages are given up without being written: graphs are built once and then only read.

With all jobs running a set of them in sum W above the room U has U/W of its pages in the mean, so
a job that touches t bytes/s pages in t (1 - U/W) for every second that it gets on.

Source: the threshold of half of the memory is that of Lv et al., JCST 29(4), 2014, section 2.4.2.
"""

from __future__ import annotations

from typing import Final

import msgspec

from iodaemon.core.job import JobId

PAGE_BYTES: Final = 4096
"""Less than a page is not read."""
_LEAST_FACTOR: Final = 1e-3
"""Below this the factor of a group is multiplied out, and sums are added up anew."""


class SimulatedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a node.

    Attributes:
        capacity_bytes: how much there is.
        usable: the part of it that working sets can fill before pages are given up.
    """

    capacity_bytes: int
    usable: float = 0.5

    def __post_init__(self) -> None:
        """Refuse memory that holds nothing."""
        if self.capacity_bytes <= 0 or not 0.0 < self.usable <= 1.0:
            raise ValueError(f"{self}: a capacity above 0, and usable above 0 and at most 1")


class Memory:
    """Who has how many of its pages. Invariant: all together never have more than the room.

    Who gives up pages gives up the same part of what it has as all others of its group, so a
    group (those who run, those who stand still) has a factor, and a page-in costs O(1).
    """

    def __init__(self, spec: SimulatedMemory) -> None:
        self.room_bytes = spec.capacity_bytes * spec.usable
        self._size: dict[JobId, float] = {}
        self._running = _Group()
        self._held = _Group()

    @property
    def available_bytes(self) -> int:
        """What is left of the room."""
        return max(0, int(self.room_bytes - self._running.total - self._held.total))

    def here(self, job_id: JobId) -> float:
        """What the job has of its working set, bytes."""
        return self._running.here(job_id) + self._held.here(job_id)

    def enter(self, job_id: JobId, size_bytes: float) -> None:
        """A job starts with its whole set, as far as there is room at all."""
        if size_bytes > 0.0:
            self._size[job_id] = size_bytes
            self._take(job_id, min(size_bytes, self.room_bytes))

    def leave(self, job_id: JobId) -> None:
        """A job ends."""
        self._size.pop(job_id, None)
        self._running.remove(job_id)
        self._held.remove(job_id)

    def hold(self, job_id: JobId) -> None:
        """A job is suspended: its pages are the first to go."""
        if job_id in self._size:
            self._held.add(job_id, self._running.remove(job_id))

    def release(self, job_id: JobId) -> None:
        """A job goes on, with what it still has."""
        if job_id in self._size:
            self._running.add(job_id, self._held.remove(job_id))

    def fault(self, job_id: JobId, touched_bytes: float) -> float:
        """What has to be read of what the job touches, bytes, taken from others where need be."""
        size = self._size.get(job_id)
        if size is None:
            return 0.0
        missing = size - self.here(job_id)
        wanted = min(missing, touched_bytes * missing / size)
        if wanted < PAGE_BYTES:
            return 0.0
        self._take(job_id, wanted)
        return wanted

    def _take(self, job_id: JobId, size_bytes: float) -> None:
        self._running.add(job_id, size_bytes)
        excess = self._running.total + self._held.total - self.room_bytes
        if excess > 0.0:
            excess -= self._held.give_up(excess)
            self._running.give_up(excess)


class _Group:
    """Jobs that give up pages alike: each has its units times the factor of the group."""

    def __init__(self) -> None:
        self._units: dict[JobId, float] = {}
        self._sum = 0.0
        self._factor = 1.0

    @property
    def total(self) -> float:
        """What all of them have, bytes."""
        return self._sum * self._factor

    def here(self, job_id: JobId) -> float:
        """What one has, bytes; 0 for who is not in it."""
        return self._units.get(job_id, 0.0) * self._factor

    def add(self, job_id: JobId, size_bytes: float) -> None:
        """One has more, or comes."""
        units = size_bytes / self._factor
        self._units[job_id] = self._units.get(job_id, 0.0) + units
        self._sum += units

    def remove(self, job_id: JobId) -> float:
        """One goes, with so many bytes."""
        units = self._units.pop(job_id, 0.0)
        self._sum = self._sum - units if self._units else 0.0
        return units * self._factor

    def give_up(self, size_bytes: float) -> float:
        """Take so much from all of them, or all that there is; what was taken."""
        total = self.total
        taken = min(total, size_bytes)
        if taken <= 0.0:
            return 0.0
        self._factor *= 1.0 - taken / total
        if self._factor < _LEAST_FACTOR:
            self._units = {job_id: self.here(job_id) for job_id in self._units}
            self._sum, self._factor = sum(self._units.values()), 1.0
        return taken
