"""Watches how jobs get on, slice by slice, against the wait at their devices.

What is not counted: slices in which a job ran for less than half of the time, or whose counters are
not known; those of which the wait is not known (it was held against a guess, or hardly a request
came back from a queue); those of a wait that the job made itself, moving nearly all that its
devices did. A job that does next to nothing (it sleeps, or stands in one request) goes on with its
window until something is done, for so long at most.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from iodaemon.core.bandwidth import LEAST_ACTIVE_SHARE, DeviceLoad
from iodaemon.core.congestion import ALONE_QUEUE, KNEE_WAIT, Sense, look
from iodaemon.core.job import Job, JobId
from iodaemon.core.platform import DeviceId, Platform
from iodaemon.core.sample import JobCounters, Sample
from iodaemon.core.work import HINDERED, Work

OWN_SHARE: Final = 0.9
"""A job that moved this part of its devices' bytes was hindered by nobody but itself."""
LEAST_CPU_SHARE: Final = 0.01
LEAST_BYTES: Final = 65536
"""With one of them a window is complete."""
LONGEST_S: Final = 10.0
"""A window that is not complete by then is nothing."""

_Wait = tuple[float | None, float]
"""Wait in excess (None: not known), and the bytes/s that were moved there."""


class _Watched:
    """One job: its counters at the last sample, its open window, and all its windows."""

    __slots__ = (
        *("counters", "cpu_s", "excess_s", "is_asleep", "read", "run_s", "seconds", "work"),
        "written",
    )

    def __init__(self, counters: JobCounters, run_s: float) -> None:
        self.counters = counters
        self.run_s = run_s
        self.is_asleep = False
        self.work = Work()
        self.begin_anew()

    def wake(self, counters: JobCounters, run_s: float) -> None:
        """It does something again; since when is not known, so this slice does not count."""
        self.counters, self.run_s, self.is_asleep = counters, run_s, False

    def begin_anew(self) -> None:
        """An empty window."""
        self.seconds = self.excess_s = self.cpu_s = self.read = self.written = 0.0


class Observer:
    """All that live, and the devices. A slice costs the same for a job however long it has run."""

    def __init__(self) -> None:
        self._senses: dict[DeviceId, Sense] = {}
        self._watched: dict[JobId, _Watched] = {}
        self._last_s = 0.0

    def take(
        self,
        sample: Sample,
        loads: Mapping[DeviceId, DeviceLoad],
        *,
        jobs: Collection[Job],
        run_s: Mapping[JobId, float],
        platform: Platform,
    ) -> None:
        """A timeslice is over.

        Args:
            sample: at its end.
            loads: of the devices in it.
            jobs: all that hold slots.
            run_s: how long each of them has run so far.
            platform: its devices are those that are watched.
        """
        interval_s, self._last_s = sample.at_s - self._last_s, sample.at_s
        waits = self._look(loads, platform, interval_s)
        known: dict[tuple[DeviceId, ...] | None, _Wait] = {}
        for job in jobs:
            job_id = job.id
            counters = sample.jobs.get(job_id)
            watched = self._watched.get(job_id)
            if counters is None or (watched and watched.is_asleep and watched.counters is counters):
                continue
            if watched is None:
                self._watched[job_id] = _Watched(counters, run_s[job_id])
            elif watched.is_asleep:
                watched.wake(counters, run_s[job_id])
            else:
                on = counters.devices
                if on not in known:
                    known[on] = _wait_on(on, waits)
                _count(watched, counters, run_s[job_id], interval_s, job.spec.cpus, known[on])
        if len(self._watched) > len(jobs):  # one never said that it ended
            for job_id in self._watched.keys() - {job.id for job in jobs}:
                del self._watched[job_id]

    def work(self, job_id: JobId) -> Work | None:
        """What the job got done so far; None: it was not seen."""
        watched = self._watched.get(job_id)
        return None if watched is None else watched.work

    def forget(self, job_id: JobId) -> None:
        """It has ended."""
        self._watched.pop(job_id, None)

    def _look(
        self, loads: Mapping[DeviceId, DeviceLoad], platform: Platform, interval_s: float
    ) -> dict[DeviceId, _Wait]:
        """Each device that is there: the wait, against a request alone on any of them."""
        waits: dict[DeviceId, _Wait] = {}
        for device in platform.devices:
            load = loads.get(device.id)
            if load is None:
                self._senses.pop(device.id, None)
                continue
            sense = look(
                self._senses.get(device.id, Sense()),
                load,
                interval_s,
                rotational=device.rotational,
                high_wait=KNEE_WAIT,
                least_queue=ALONE_QUEUE,
                service=device.service and device.service.one_at_a_time(),
            )
            self._senses[device.id] = sense
            waits[device.id] = (_excess(sense), load.total_bytes_per_s)
        return waits


def _excess(sense: Sense) -> float | None:
    """How much longer than alone a request takes; None: not known."""
    if sense.last_wait is None:  # hardly any came back
        return 0.0 if sense.queue_length <= ALONE_QUEUE else None
    return max(0.0, sense.last_wait - 1.0) if sense.is_sure else None


def _wait_on(on: tuple[DeviceId, ...] | None, waits: Mapping[DeviceId, _Wait]) -> _Wait:
    """The wait on these devices together, by the bytes moved; on all where none is known."""
    met = [waits[device] for device in on if device in waits] if on else list(waits.values())
    moved = sum(rate for _, rate in met)
    if not met or any(excess is None and rate >= 0.5 * moved for excess, rate in met):
        return None, moved
    sure = [(excess, rate) for excess, rate in met if excess is not None]
    weight = sum(rate for _, rate in sure)
    if weight <= 0.0:
        return max((excess for excess, _ in sure), default=None), moved
    return sum(excess * rate for excess, rate in sure) / weight, moved


def _count(
    watched: _Watched,
    counters: JobCounters,
    run_s: float,
    interval_s: float,
    cpus: int,
    wait: _Wait,
) -> None:
    """One more slice of a job."""
    before, watched.counters = watched.counters, counters
    ran_s, watched.run_s = run_s - watched.run_s, run_s
    excess, moved = wait
    if excess is None or ran_s < LEAST_ACTIVE_SHARE * interval_s or ran_s <= 0.0:
        return
    if before is not counters:  # else whoever read it knows that it did not run
        done = _difference(before, counters)
        if done is None or (
            excess >= HINDERED and done[1] + done[2] > OWN_SHARE * moved * interval_s
        ):
            return
        watched.cpu_s += done[0] / cpus
        watched.read += done[1]
        watched.written += done[2]
    watched.seconds += ran_s
    watched.excess_s += excess * ran_s
    is_complete = (
        watched.cpu_s >= LEAST_CPU_SHARE * watched.seconds
        or watched.read + watched.written >= LEAST_BYTES
    )
    if is_complete:
        done_now = (watched.cpu_s, watched.read, watched.written)
        watched.work.add(watched.seconds, done_now, watched.excess_s / watched.seconds)
    if is_complete or watched.seconds >= LONGEST_S:
        watched.is_asleep = not is_complete and before is counters
        watched.begin_anew()


def _difference(before: JobCounters, now: JobCounters) -> tuple[float, float, float] | None:
    """CPU time, bytes read and written in the slice; None: one of them is not known."""
    if now.cpu_s is None or before.cpu_s is None:
        return None
    if now.read_bytes is None or before.read_bytes is None:
        return None
    cpu_s, read = now.cpu_s - before.cpu_s, now.read_bytes - before.read_bytes
    written = (now.written_bytes or 0) - (before.written_bytes or 0)
    return None if cpu_s < 0.0 or read < 0 else (cpu_s, read, max(0, written))
