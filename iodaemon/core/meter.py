"""From counters to rates: what each job moved in a timeslice, what each device went through.

Is a device past what it can carry? The signal is the size-normalised wait: how long a request takes
now, over how long a request of its size takes when hardly any other is in flight. It is about 1 on
an idle device of any kind and grows with the queue past the knee, while MB/s and utilisation say
nothing of that on a parallel device. What a request takes alone is learned per size class. Where
the device was measured while nothing else used it (``Device.service``), that is the base: what is
learned counts up to the most that a lone request took then, and until a class has been seen alone
the least stands in for it. Where it was not, a cautious prior does. A device that gave many readers
several times as much as one is not full when a request takes several times as long: jobs that pause
between requests (to compute, or for a CPU) do not fill it alone, and fewer of them would move less.

Source: Kleinrock, "Power and deterministic rules of thumb for probabilistic problems in computer
communications", ICC 1979 (operate at the knee); the knee at a normalised wait near 2 was measured
on a virtual NVMe-like disk (psync 4 KiB: 1.0, 1.3, 1.4, 2.0, 4.3 for 1, 4, 8, 16, 32 readers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from iodaemon.core.job import JobId
from iodaemon.core.platform import DeviceId, ServiceTimes
from iodaemon.core.sample import (
    MOST_BYTES_PER_S,
    MOST_REQUESTS_PER_S,
    DeviceCounters,
    JobCounters,
    Sample,
)

SECTOR_BYTES: Final = 512
"""Unit of /proc/diskstats sectors, whatever the device (Documentation/admin-guide/iostats.rst)."""
LEAST_ACTIVE_SHARE: Final = 0.5
"""A slice in which a job ran for less than this share does not show what it moves."""
MOST_OTHERS: Final = 0.1
"""Of a slice with more discards and flushes than this part of its reads and writes nothing is said
of lone requests: their times are never measured."""
_WRAP_MS: Final = 2**32
"""The millisecond counters of /proc/diskstats are unsigned int, 32 bits wide, and wrap; all others
are unsigned long (Documentation/admin-guide/iostats.rst) and do not in a machine's life."""
_MOST_MS_PER_MS: Final = 1e5
"""So many requests in flight, and more, have no device: such growth is no wrap but a step back."""


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """What one job moved between two samples, bytes/s."""

    read_bytes_per_s: float = 0.0
    written_bytes_per_s: float = 0.0

    @property
    def total_bytes_per_s(self) -> float:
        return self.read_bytes_per_s + self.written_bytes_per_s


_NOTHING: Final = Bandwidth()


class DeviceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One device between two samples: the figures of ``iostat -x``, in base units.

    Attributes:
        reads_per_s: completed read requests (r/s).
        writes_per_s: completed write requests (w/s).
        discards_per_s: completed discards (d/s).
        flushes_per_s: completed flushes (f/s).
        read_bytes_per_s: rkB/s.
        written_bytes_per_s: wkB/s.
        read_await_s: mean time of a read from queueing to completion (r_await); None: no reads.
        write_await_s: the same for writes (w_await).
        discard_await_s: the same for discards (d_await).
        flush_await_s: the same for flushes (f_await).
        queue_length: mean number of requests in flight (aqu-sz).
        busy_ratio: share of the time with a request in flight (%util / 100), at most 1.
        in_flight: requests in flight at the second sample.
    """

    reads_per_s: float
    writes_per_s: float
    discards_per_s: float
    flushes_per_s: float
    read_bytes_per_s: float
    written_bytes_per_s: float
    read_await_s: float | None
    write_await_s: float | None
    discard_await_s: float | None
    flush_await_s: float | None
    queue_length: float
    busy_ratio: float
    in_flight: int

    @property
    def total_bytes_per_s(self) -> float:
        return self.read_bytes_per_s + self.written_bytes_per_s


def job_bandwidth(
    earlier: JobCounters | None, later: JobCounters, interval_s: float
) -> Bandwidth | None:
    """What the job moved in the interval; None when its counters at either end are unknown.

    Bytes read that go backwards are not those of the same job: unknown, and so is more than any
    machine moves. Bytes written may go backwards, by what a truncate takes back; they then did not
    grow.

    Args:
        earlier: counters at the beginning; None for a job that started within the interval,
            whose counters all belong to it.
    """
    if earlier is None:
        earlier = later.at_start()
    if earlier is later:  # whoever read it knows that it did not run
        return None if later.read_bytes is None and later.written_bytes is None else _NOTHING
    read = _difference(earlier.read_bytes, later.read_bytes)
    written = _difference(earlier.written_bytes, later.written_bytes)
    if read is None and written is None:
        return None
    most = MOST_BYTES_PER_S * interval_s
    if not 0 <= (read or 0) <= most or (written or 0) > most:
        return None
    return Bandwidth(
        read_bytes_per_s=(read or 0) / interval_s,
        written_bytes_per_s=max(0, written or 0) / interval_s,
    )


def _difference(earlier: int | None, later: int | None) -> int | None:
    return None if earlier is None or later is None else later - earlier


def device_load(
    earlier: DeviceCounters, later: DeviceCounters, interval_s: float
) -> DeviceLoad | None:
    """The figures of ``iostat -x`` for the interval; None when a counter went backwards.

    It does when the device was replaced. None as well when it grew by more than any device does.
    The counters of milliseconds may wrap.

    The formulas are those of sysstat 12 (iostat.c, rd_stats.c) on the fields of
    Documentation/admin-guide/iostats.rst; ``svctm`` is not among them (removed in 12.1.2).
    """
    reads = later.reads - earlier.reads
    writes = later.writes - earlier.writes
    discards = later.discards - earlier.discards
    flushes = later.flushes - earlier.flushes
    read_sectors = later.read_sectors - earlier.read_sectors
    written_sectors = later.written_sectors - earlier.written_sectors
    if min(reads, writes, discards, flushes, read_sectors, written_sectors) < 0:
        return None
    if reads + writes + discards + flushes > MOST_REQUESTS_PER_S * interval_s:
        return None
    if (read_sectors + written_sectors) * SECTOR_BYTES > MOST_BYTES_PER_S * interval_s:
        return None
    if _any_time_went_back(earlier, later, interval_s):
        return None
    queue_ms = elapsed_ms(earlier.queue_ms, later.queue_ms)
    busy_ms = elapsed_ms(earlier.busy_ms, later.busy_ms)
    return DeviceLoad(
        reads_per_s=reads / interval_s,
        writes_per_s=writes / interval_s,
        discards_per_s=discards / interval_s,
        flushes_per_s=flushes / interval_s,
        read_bytes_per_s=read_sectors * SECTOR_BYTES / interval_s,
        written_bytes_per_s=written_sectors * SECTOR_BYTES / interval_s,
        read_await_s=_await_s(earlier.read_ms, later.read_ms, reads),
        write_await_s=_await_s(earlier.write_ms, later.write_ms, writes),
        discard_await_s=_await_s(earlier.discard_ms, later.discard_ms, discards),
        flush_await_s=_await_s(earlier.flush_ms, later.flush_ms, flushes),
        queue_length=queue_ms / 1000.0 / interval_s,
        busy_ratio=min(1.0, busy_ms / 1000.0 / interval_s),
        in_flight=later.in_flight,
    )


def lone_range_s(load: DeviceLoad, service: ServiceTimes) -> tuple[float, float] | None:
    """The least and the most that the mean request of a slice would have taken alone.

    None: there was none, or what is needed for it was not measured.
    """
    others_per_s = load.discards_per_s + load.flushes_per_s
    requests_per_s = load.reads_per_s + load.writes_per_s
    if requests_per_s <= 0.0 or others_per_s > MOST_OTHERS * requests_per_s:
        return None
    low_s = high_s = 0.0
    for times, count_per_s, moved_bytes_per_s in (
        (service.reads, load.reads_per_s, load.read_bytes_per_s),
        (service.writes, load.writes_per_s, load.written_bytes_per_s),
    ):
        if count_per_s <= 0.0:
            continue
        found = times.range_s(moved_bytes_per_s / count_per_s)
        if found is None:
            return None
        low_s += found[0] * count_per_s / requests_per_s
        high_s += found[1] * count_per_s / requests_per_s
    return low_s, high_s


def _any_time_went_back(earlier: DeviceCounters, later: DeviceCounters, interval_s: float) -> bool:
    """True where a counter of ms would have grown by more than any device's can."""
    pairs = (
        (earlier.queue_ms, later.queue_ms),
        (earlier.busy_ms, later.busy_ms),
        (earlier.read_ms, later.read_ms),
        (earlier.write_ms, later.write_ms),
        (earlier.discard_ms, later.discard_ms),
        (earlier.flush_ms, later.flush_ms),
    )
    most_ms = min(_MOST_MS_PER_MS * 1000.0 * interval_s, _WRAP_MS / 2)
    return any(elapsed_ms(before, after) > most_ms for before, after in pairs)


def elapsed_ms(earlier: int, later: int) -> int:
    """Between two readings of a counter of ms of /proc/diskstats, which may have wrapped."""
    return (later - earlier) % _WRAP_MS


def _await_s(earlier_ms: int, later_ms: int, completed: int) -> float | None:
    if completed == 0:
        return None
    return elapsed_ms(earlier_ms, later_ms) / 1000.0 / completed


class Meter:
    """Keeps the last sample and what followed from it: one rate a job, one load a device.

    Invariant: ``bandwidth`` speaks of the slice between the last two samples; a job that is
    not in both (unless it started in between) has no rate, which is not a rate of 0. Counters of
    one attempt are never compared with those of another.

    Attributes:
        last: the last sample taken; None before the first.
        devices: what each went through in the last slice.
    """

    def __init__(self) -> None:
        self.last: Sample | None = None
        self._bandwidth: dict[JobId, Bandwidth] = {}
        self._active: dict[JobId, Bandwidth] = {}
        self._begun: set[JobId] = set()
        self._ended: set[JobId] = set()  # since the last sample, which is of that attempt
        self._run_s: dict[JobId, float] = {}
        self._peak_bytes: dict[JobId, int] = {}
        self.devices: dict[DeviceId, DeviceLoad] = {}

    def begin(self, job_id: JobId) -> None:
        self._begun.add(job_id)

    def take(self, sample: Sample, *, run_s: Mapping[JobId, float]) -> None:
        """Take in a sample.

        Args:
            sample: not older than the last one.
            run_s: how long each job has run so far, suspensions apart. What a job moves when it
                runs is learned from slices in which it ran for half of the time at least: less
                says little about it.
        """
        before_s, self._run_s = self._run_s, dict(run_s)
        begun, self._begun = self._begun, self._begun.difference(sample.jobs)
        ended, self._ended = self._ended, set()
        last, self.last = self.last, sample
        self._note_peaks(sample)
        self._bandwidth = {}
        if last is None or sample.at_s <= last.at_s:
            return
        interval_s = sample.at_s - last.at_s
        for job_id, counters in sample.jobs.items():
            earlier = None if job_id in ended else last.jobs.get(job_id)
            if earlier is None and job_id not in begun:
                continue
            rate = job_bandwidth(earlier, counters, interval_s)
            if rate is not None:
                self._bandwidth[job_id] = rate
        for job_id, rate in self._bandwidth.items():
            share = (run_s.get(job_id, 0.0) - before_s.get(job_id, 0.0)) / interval_s
            if share >= LEAST_ACTIVE_SHARE:
                self._active[job_id] = _scaled(rate, 1.0 / min(1.0, share))
        self.devices = _loads(last, sample, interval_s)

    def forget(self, job_id: JobId) -> None:
        self._bandwidth.pop(job_id, None)
        self._active.pop(job_id, None)
        self._begun.discard(job_id)
        self._run_s.pop(job_id, None)
        self._peak_bytes.pop(job_id, None)
        self._ended.add(job_id)

    def bandwidth(self, job_id: JobId) -> Bandwidth | None:
        """What the job moved in the last slice; None where that is unknown."""
        return self._bandwidth.get(job_id)

    def counters(self, job_id: JobId) -> JobCounters | None:
        """The job's counters at the last sample; None where there are none."""
        if self.last is None or job_id in self._ended:
            return None
        return self.last.jobs.get(job_id)

    def peak_bytes(self, job_id: JobId) -> int | None:
        """The most that this attempt of the job had in memory at any sample; None: unknown."""
        return self._peak_bytes.get(job_id)

    def _note_peaks(self, sample: Sample) -> None:
        peaks = self._peak_bytes
        for job_id, counters in sample.jobs.items():
            resident = counters.resident_bytes
            if resident is not None and resident > peaks.get(job_id, 0):
                peaks[job_id] = resident

    def active(self, job_id: JobId) -> Bandwidth | None:
        """What the job moves while it runs, by the last slice that shows it; None: none yet."""
        return self._active.get(job_id)


def _scaled(rate: Bandwidth, factor: float) -> Bandwidth:
    if factor == 1.0 or rate is _NOTHING:
        return rate
    return Bandwidth(
        read_bytes_per_s=rate.read_bytes_per_s * factor,
        written_bytes_per_s=rate.written_bytes_per_s * factor,
    )


def _loads(last: Sample, sample: Sample, interval_s: float) -> dict[DeviceId, DeviceLoad]:
    loads: dict[DeviceId, DeviceLoad] = {}
    for device_id, counters in sample.devices.items():
        earlier = last.devices.get(device_id)
        load = None if earlier is None else device_load(earlier, counters, interval_s)
        if load is not None:
            loads[device_id] = load
    return loads


KNEE_WAIT: Final = 2.0
"""Normalised wait at the knee: beyond it more requests in flight bring no more throughput."""
ALONE_QUEUE: Final = 1.25
"""Up to this many requests in flight a request's time counts as uncontended."""
LEAST_REQUESTS_PER_S: Final = 5.0
"""A slice with fewer requests says nothing about their times."""
RISE_PER_S: Final = 0.01 / 60.0
"""Learned minima rise by 1 % a minute: what was once best is forgotten."""
_FASTEST: Final = (10e-6, 10e9)
"""Seconds and bytes/s that no lone request beats. A few hits of a drive's cache in one slice can
round to no time at all in a file that counts milliseconds."""
_PRIOR_ROTATIONAL: Final = (0.001, 100e6)
"""Seconds and bytes/s of a lone request on a disk with an arm, while none was seen alone."""
_PRIOR_OTHER: Final = (0.0002, 500e6)
"""The same for any other device; both are on the fast side of what is sold."""


class Sense(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one device.

    Attributes:
        alone_s: time of a lone request by size class (log2 of its bytes), s.
        last_wait: normalised wait of the newest slice; None when it had too few requests.
        queue_length: requests in flight in the newest slice.
        high_slices: how many slices in a row the wait has been high.
        is_sure: the wait was held against a request that was seen alone, or against an arm, which
            serves one at a time; not against a guess.
    """

    alone_s: Mapping[int, float] = MappingProxyType({})
    last_wait: float | None = None
    queue_length: float = 0.0
    high_slices: int = 0
    is_sure: bool = False


def look(
    sense: Sense,
    load: DeviceLoad,
    interval_s: float,
    *,
    rotational: bool | None,
    high_wait: float,
    least_queue: float,
    service: ServiceTimes | None = None,
) -> Sense:
    """What is known after one more slice.

    Args:
        high_wait: normalised wait from which a slice counts as high.
        least_queue: requests in flight below which no slice counts as high.
    """
    requests_per_s = _requests_per_s(load)
    if requests_per_s < LEAST_REQUESTS_PER_S:
        return Sense(alone_s=sense.alone_s, queue_length=load.queue_length)
    size_class = _size_class(load.total_bytes_per_s / requests_per_s)
    await_s = await_of(load)
    alone_s = _learn_alone(sense, size_class, await_s, load.queue_length, interval_s)
    measured_s = None if service is None else lone_range_s(load, service)
    width = 1.0 if service is None or measured_s is None else service.width
    base_s = _base_s(alone_s.get(size_class), measured_s, width)
    wait = await_s / (base_s or _prior_s(size_class, rotational=rotational))
    is_high = wait > high_wait and load.queue_length > least_queue
    return Sense(
        alone_s=alone_s,
        last_wait=wait,
        queue_length=load.queue_length,
        high_slices=sense.high_slices + 1 if is_high else 0,
        is_sure=base_s is not None or bool(rotational),
    )


def await_of(load: DeviceLoad) -> float:
    """Mean time of a request of any kind, s; 0 for none."""
    requests_per_s = _requests_per_s(load)
    return load.queue_length / requests_per_s if requests_per_s else 0.0


def _base_s(
    learned_s: float | None, measured_s: tuple[float, float] | None, width: float
) -> float | None:
    """What a request takes without contention: as learned, but no longer than was ever measured.

    How long it is between the least and the most depends on where the requests go. On a device
    that serves several at once it is as many times longer than alone. None: it is not known.
    """
    if measured_s is None:
        return learned_s
    least_s, most_s = (max(each, _FASTEST[0]) for each in measured_s)
    return width * (least_s if learned_s is None else min(learned_s, most_s))


def _learn_alone(
    sense: Sense, size_class: int, await_s: float, queue_length: float, interval_s: float
) -> Mapping[int, float]:
    """The minimum seen, slowly rising; a class is first learned from a request that was alone."""
    await_s = max(await_s, _time_s(size_class, _FASTEST))
    known_s = sense.alone_s.get(size_class)
    if known_s is None:
        if queue_length > ALONE_QUEUE:
            return sense.alone_s
        return {**sense.alone_s, size_class: await_s}
    return {**sense.alone_s, size_class: min(await_s, known_s * (1.0 + RISE_PER_S * interval_s))}


def _requests_per_s(load: DeviceLoad) -> float:
    return load.reads_per_s + load.writes_per_s + load.discards_per_s + load.flushes_per_s


def _size_class(size_bytes: float) -> int:
    return int(math.log2(max(512.0, size_bytes)))


def _prior_s(size_class: int, *, rotational: bool | None) -> float:
    return _time_s(size_class, _PRIOR_ROTATIONAL if rotational else _PRIOR_OTHER)


def _time_s(size_class: int, device: tuple[float, float]) -> float:
    """What a request of this class takes on a device of so many seconds and bytes/s."""
    base_s, bytes_per_s = device
    return base_s + float(2**size_class) / bytes_per_s
