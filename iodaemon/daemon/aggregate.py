"""Per-job bandwidth as one row a minute, made from the samples as they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from iodaemon.core import event as ev
from iodaemon.core.decision import Transition
from iodaemon.core.job import IoTotals, Job, JobId, JobState
from iodaemon.core.platform import DeviceId
from iodaemon.core.sample import Sample
from iodaemon.daemon.journal.record import BandwidthMinute

_MINUTE_S: Final = 60
_UNKNOWN: Final = "unknown"
PLACES: Final = ("several", "none", _UNKNOWN)
"""Where a job's open files may lie besides on one disk."""


class MinuteBook:
    """Adds up what each job moved in each minute.

    Invariant: over all rows of a finished job the bytes add up to its totals, less what it had
    moved when this daemon adopted it. What crosses the end of a minute is booked before it.

    Attributes:
        moved: bytes of all rows, by the job's socket, by the disk that its open files lay on then
            (its name, ``several``, ``none`` or ``unknown``), and by direction.
    """

    def __init__(self) -> None:
        self.moved: Counter[tuple[str, str, str]] = Counter()
        self._socket: dict[JobId, str] = {}
        self._place: dict[JobId, str] = {}
        self._seen: dict[JobId, IoTotals] = {}
        self._open: dict[JobId, BandwidthMinute] = {}
        self._last_s: float | None = None

    def follow(
        self,
        events: Iterable[ev.Event],
        transitions: Sequence[Transition],
        jobs: Mapping[JobId, Job],
    ) -> list[BandwidthMinute]:
        """Take in one step of the controller; returns the rows of minutes that are over.

        Args:
            events: what had happened, in order.
            transitions: what it came to.
            jobs: as they are after it.
        """
        rows: list[BandwidthMinute] = []
        for step in transitions:
            if step.after is JobState.STARTING:
                self.begin(step.job_id, jobs.get(step.job_id))
        for event in events:
            if isinstance(event, ev.SampleTaken):
                rows += self.take(event.sample, jobs)
            elif isinstance(event, ev.JobExited) and self.knows(event.job_id):
                rows += self.end(event.job_id, event.at_s, event.io)
        for step in transitions:
            if step.after.is_final:
                self.forget(step.job_id)
        return rows

    def begin(self, job_id: JobId, job: Job | None = None) -> None:
        """A job starts now, with counters at zero."""
        self._seen[job_id] = IoTotals()
        self._note_socket(job_id, job)

    def knows(self, job_id: JobId) -> bool:
        """True from the job's beginning, or its first sample, to its end."""
        return job_id in self._seen

    def take(self, sample: Sample, jobs: Mapping[JobId, Job]) -> list[BandwidthMinute]:
        """Take in a sample, which may name jobs that ended while it was taken.

        Returns:
            The rows of minutes that are over.
        """
        last_s, self._last_s = self._last_s, sample.at_s
        spent_s = 0.0 if last_s is None else max(0.0, sample.at_s - last_s)
        minute = int(sample.at_s) // _MINUTE_S
        for job_id, counters in sample.jobs.items():
            job = jobs.get(job_id)
            if job is not None and not job.is_live:
                job = None
            if job is None and job_id not in self._seen:
                continue
            if job is not None and not job.is_counted_at(sample.at_s):
                continue
            self._place[job_id] = _place(counters.devices)
            if job_id not in self._socket:
                self._note_socket(job_id, job)
            totals = IoTotals(read_bytes=counters.read_bytes, written_bytes=counters.written_bytes)
            self._add(job_id, minute, totals, spent_s)
        return self._close([i for i, row in self._open.items() if row.minute < minute])

    def end(self, job_id: JobId, at_s: float, totals: IoTotals) -> list[BandwidthMinute]:
        """A job ended with these totals; returns its last row, if it has one."""
        self._add(job_id, int(at_s) // _MINUTE_S, totals, 0.0)
        self._seen.pop(job_id, None)
        self._place.pop(job_id, None)
        self._socket.pop(job_id, None)
        return self._close([job_id])

    def forget(self, job_id: JobId) -> None:
        """A job ended without a word on its totals."""
        self._seen.pop(job_id, None)
        self._open.pop(job_id, None)
        self._place.pop(job_id, None)
        self._socket.pop(job_id, None)

    def _note_socket(self, job_id: JobId, job: Job | None) -> None:
        is_known = job is not None and job.partition is not None
        self._socket[job_id] = str(job.partition) if job and is_known else _UNKNOWN

    def _add(self, job_id: JobId, minute: int, totals: IoTotals, spent_s: float) -> None:
        before = self._seen.get(job_id, totals)
        self._seen[job_id] = _known(before, totals)
        row = self._open.get(job_id) or BandwidthMinute(
            job_id=job_id, minute=minute, read_bytes=0, written_bytes=0, seconds=0.0
        )
        read = _grown(before.read_bytes, totals.read_bytes)
        written = _grown(before.written_bytes, totals.written_bytes)
        self._open[job_id] = BandwidthMinute(
            job_id=job_id,
            minute=row.minute,
            read_bytes=row.read_bytes + read,
            written_bytes=row.written_bytes + written,
            seconds=row.seconds + spent_s,
        )
        place, socket = self._place.get(job_id, _UNKNOWN), self._socket.get(job_id, _UNKNOWN)
        self.moved.update({(socket, place, "read"): read, (socket, place, "write"): written})

    def _close(self, job_ids: list[JobId]) -> list[BandwidthMinute]:
        return [self._open.pop(job_id) for job_id in job_ids if job_id in self._open]


def _place(devices: tuple[DeviceId, ...] | None) -> str:
    if devices is None:
        return _UNKNOWN
    if len(devices) > 1:
        return "several"
    return devices[0] if devices else "none"


def _known(before: IoTotals, after: IoTotals) -> IoTotals:
    """What could not be read this time stays as it was last known."""
    return IoTotals(
        read_bytes=before.read_bytes if after.read_bytes is None else after.read_bytes,
        written_bytes=before.written_bytes if after.written_bytes is None else after.written_bytes,
    )


def _grown(before: int | None, after: int | None) -> int:
    return max(0, (after or 0) - (before or 0))
