"""What jobs and devices moved, made from the samples as they come.

Of jobs: one row a minute for the journal, and totals by socket, disk and direction. Of devices:
what the kernel counts, and what others than jobs moved.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from iodaemon.core import event as ev
from iodaemon.core.decision import Transition
from iodaemon.core.job import Job, JobId, JobState
from iodaemon.core.meter import SECTOR_BYTES
from iodaemon.core.platform import DeviceId
from iodaemon.core.sample import DeviceCounters, Sample
from iodaemon.daemon.journal.record import BandwidthMinute

DIRECTIONS: Final = ("read", "write")
PLACES: Final = ("several", "none", "unknown")
"""Where a job's open files may lie besides on one disk."""
_UNPLACED: Final = ("several", "unknown")
"""Where jobs may move bytes on any disk of this machine."""
_MINUTE_S: Final = 60


@dataclass(slots=True)
class _Followed:
    """A job from its start, or its first sample, to its end; pairs are read and written bytes.

    Attributes:
        seen: its totals as last known; None: not known yet.
        place: where its open files lay at the last look: a disk, or one of ``PLACES``.
        minute: of the row that is not handed out yet; None: there is none.
        moved: of that row.
        seconds: of that row.
    """

    socket: str
    seen: list[int | None]
    place: str = "unknown"
    minute: int | None = None
    moved: list[int] = field(default_factory=lambda: [0, 0])
    seconds: float = 0.0


@dataclass(slots=True)
class _Side:
    """One direction of one device, in bytes.

    Attributes:
        beyond: what it moved less what jobs are known to have moved on it, at the last sample.
        shared: its part of what jobs moved on a disk that is not known.
        base: what all that came to when it was first seen.
        others: the highest that it came to since.
    """

    beyond: int = 0
    shared: int = 0
    base: int = 0
    others: int = 0


class Usage:
    """Adds up what each job moved in each minute, and what others moved on each device.

    Invariant: over all rows of a finished job the bytes add up to its totals, less what it had
    moved when this daemon adopted it. What crosses the end of a minute is booked before it.

    What others moved is what the device moved, less what jobs did. Of a job with files on several
    disks, or that ended before a sample saw it, the disk is not known: what it moved is taken from
    all disks, by what they moved beyond the other jobs. Jobs write into the page cache first, which
    reaches the device later, so the difference over a slice may be anything. The total is the
    highest difference so far since the beginning: it never falls, and what jobs have written ahead
    is not taken for others' when it arrives.

    Attributes:
        moved: bytes of all rows, by the job's socket, by the disk that its open files lay on then
            (its name, or one of ``PLACES``), and by direction.
        devices: the last counters of each device ever seen.
    """

    def __init__(self) -> None:
        self.moved: Counter[tuple[str, str, str]] = Counter()
        self.devices: dict[DeviceId, DeviceCounters] = {}
        self._jobs: dict[JobId, _Followed] = {}
        self._last_s: float | None = None
        self._sides: defaultdict[tuple[DeviceId, str], _Side] = defaultdict(_Side)
        self._given: Counter[str] = Counter()

    def follow(
        self,
        events: Iterable[ev.Event],
        transitions: Sequence[Transition],
        jobs: Mapping[JobId, Job],
    ) -> list[BandwidthMinute]:
        """Take in one step of the controller, after which jobs are as in ``jobs``.

        Returns the rows of minutes that are over.
        """
        rows: list[BandwidthMinute] = []
        samples = []
        for event in events:
            if isinstance(event, ev.SampleTaken):
                rows += self._take(event.sample, jobs)
                samples.append(event.sample)
            elif isinstance(event, ev.JobExited) and event.job_id in self._jobs:
                totals = (event.io.read_bytes, event.io.written_bytes)
                self._add(self._jobs[event.job_id], int(event.at_s) // _MINUTE_S, totals)
                rows += self._close([event.job_id])
                del self._jobs[event.job_id]
        for step in transitions:  # what exited above belongs to an earlier attempt than these start
            if step.after is JobState.STARTING:
                self._jobs[step.job_id] = _Followed(_socket(jobs.get(step.job_id)), [0, 0])
            elif step.after.is_final:  # without a word on its totals
                self._jobs.pop(step.job_id, None)
        for sample in samples:
            self._take_devices(sample.devices)
        return rows

    def others(self) -> Mapping[tuple[DeviceId, str], int]:
        """Bytes that others than jobs moved since the beginning, by device and direction."""
        return {key: side.others for key, side in self._sides.items()}

    # -- jobs ------------------------------------------------------------------------------------

    def _take(self, sample: Sample, jobs: Mapping[JobId, Job]) -> list[BandwidthMinute]:
        """A sample may name jobs that ended while it was taken."""
        last_s, self._last_s = self._last_s, sample.at_s
        spent_s = 0.0 if last_s is None else max(0.0, sample.at_s - last_s)
        minute = int(sample.at_s) // _MINUTE_S
        for job_id, counters in sample.jobs.items():
            job, followed = jobs.get(job_id), self._jobs.get(job_id)
            if job is not None and job.is_live:
                if not job.is_counted_at(sample.at_s):
                    continue
            elif followed is None:
                continue
            if followed is None:  # adopted: it counts from here
                followed = self._jobs[job_id] = _Followed(_socket(job), [None, None])
            followed.place = _place(counters.devices)
            followed.seconds += spent_s
            self._add(followed, minute, (counters.read_bytes, counters.written_bytes))
        of = ((job_id, each.minute) for job_id, each in self._jobs.items())
        return self._close([job_id for job_id, last in of if last is not None and last < minute])

    def _add(self, job: _Followed, minute: int, totals: Iterable[int | None]) -> None:
        """Book what its totals have grown by; one that could not be read stays as it was."""
        if job.minute is None:
            job.minute = minute
        for way, total in enumerate(totals):
            if total is None:
                continue
            before, job.seen[way] = job.seen[way], total
            grown = 0 if before is None else max(0, total - before)
            job.moved[way] += grown
            self.moved[job.socket, job.place, DIRECTIONS[way]] += grown

    def _close(self, job_ids: Iterable[JobId]) -> list[BandwidthMinute]:
        rows = []
        for job_id in job_ids:
            job = self._jobs[job_id]
            if job.minute is not None:
                row = BandwidthMinute(
                    job_id=job_id,
                    minute=job.minute,
                    read_bytes=job.moved[0],
                    written_bytes=job.moved[1],
                    seconds=job.seconds,
                )
                rows.append(row)
            job.minute, job.moved, job.seconds = None, [0, 0], 0.0
        return rows

    # -- devices ---------------------------------------------------------------------------------

    def _take_devices(self, devices: Mapping[DeviceId, DeviceCounters]) -> None:
        fresh = set()
        for device, now in devices.items():
            before = self.devices.get(device)
            # Counts that do not wrap and fall are another device's.
            if before is None or now.reads < before.reads or now.writes < before.writes:
                fresh.add(device)
        self.devices.update(devices)
        for direction in DIRECTIONS:
            self._note_others(devices, direction, fresh)

    def _note_others(
        self,
        devices: Mapping[DeviceId, DeviceCounters],
        direction: str,
        fresh: Collection[DeviceId],
    ) -> None:
        by_jobs: Counter[str] = Counter()
        for (_, place, way), size in self.moved.items():
            if way == direction:
                by_jobs[place] += size
        grown = {}
        for device, counters in devices.items():
            side = self._sides[device, direction]
            sectors = counters.read_sectors if direction == "read" else counters.written_sectors
            before, side.beyond = side.beyond, sectors * SECTOR_BYTES - by_jobs[device]
            grown[device] = 0 if device in fresh else max(0, side.beyond - before)
        unplaced = sum(by_jobs[place] for place in _UNPLACED) - self._given[direction]
        room = sum(grown.values())
        given = max(0, min(unplaced, room))
        for device in devices:
            side = self._sides[device, direction]
            if given:
                part = given * grown[device] // room
                side.shared += part
                self._given[direction] += part
            level = side.beyond - side.shared
            if device in fresh:
                side.base = level - side.others
            side.others = max(side.others, level - side.base)


def _socket(job: Job | None) -> str:
    return "unknown" if job is None or job.partition is None else str(job.partition)


def _place(devices: tuple[DeviceId, ...] | None) -> str:
    if devices is None:
        return "unknown"
    if len(devices) > 1:
        return "several"
    return devices[0] if devices else "none"
