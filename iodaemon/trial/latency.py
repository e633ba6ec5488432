"""How long requests waited at the disk and how long they were served, from its own counters.

The kernel says how long a request took from queueing to completion, not which part of that the disk
served it. The part is estimated by size: what a request of that size takes where hardly another is
in flight counts as serving, all beyond it as waiting. That is seen where every kind of job runs
alone: what a tenth of those requests did not exceed. Where none of a size was alone, as of a
program that reads ahead, it is that of all of the size, and no more than lone requests of other
sizes say, of which there were more than a few: a smaller one takes no longer, and twice the size at
most twice as long. Of a disk that was calibrated it is known how long lone requests take at least
and at most, and what is seen counts within that.

Source of the division: Lv et al., JCST 2014, eq. 2. They took the serving time from iostat's
``svctm`` (the disk's busy time over its requests), which is right for a disk that serves one
request at a time and was taken out of sysstat 12.1.2 because other disks do not; it is given beside
the estimate as ``busy_s``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import msgspec

from iodaemon.core.meter import (
    ALONE_QUEUE,
    KNEE_WAIT,
    LEAST_REQUESTS_PER_S,
    DeviceLoad,
    await_of,
    device_load,
    lone_range_s,
)
from iodaemon.core.platform import DeviceId, ServiceTimes
from iodaemon.core.sample import DeviceCounters

_LOW_SHARE: Final = 0.1
"""Of the requests of one size: what so many did not exceed is their time without contention."""
_TELLING_REQUESTS: Final = 10.0
"""Fewer of one size say nothing of another: one can be a hit, or zeroes that were never written."""
_LEAST_BYTES: Final = 512.0


Kind = tuple[DeviceId, int]
"""A disk, and the size of requests: the whole part of the logarithm of their bytes to base 2."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What was read at one time.

    Attributes:
        at_s: monotonic.
        used_ratio: memory in use, of all (0 to 1); None: not known.
    """

    at_s: float
    devices: Mapping[DeviceId, DeviceCounters]
    used_ratio: float | None = None


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """One disk between two looks; ``at_s`` is the end, from the first look on."""

    device: DeviceId
    at_s: float
    interval_s: float
    load: DeviceLoad

    @property
    def requests(self) -> float:
        """Completed."""
        load = self.load
        rates = load.reads_per_s, load.writes_per_s, load.discards_per_s, load.flushes_per_s
        return sum(rates) * self.interval_s

    @property
    def is_telling(self) -> bool:
        """Whether there were requests enough to speak of their times."""
        return self.requests >= LEAST_REQUESTS_PER_S * self.interval_s > 0.0

    @property
    def kind(self) -> Kind:
        """The disk, and the size of its requests as a power of 2."""
        size = self.load.total_bytes_per_s * self.interval_s / self.requests
        return self.device, int(math.log2(max(_LEAST_BYTES, size)))


class Uncontended(msgspec.Struct, frozen=True, kw_only=True):
    """What a request takes alone.

    Attributes:
        seen_s: in this trial, by disk and size.
        measured: by a calibration, by disk.
    """

    seen_s: Mapping[Kind, float] = MappingProxyType({})
    measured: Mapping[DeviceId, ServiceTimes] = MappingProxyType({})

    def time_s(self, each: Slice) -> float | None:
        """Of the mean request of a slice; None: not known."""
        seen_s = self.seen_s.get(each.kind)
        service = self.measured.get(each.device)
        known_s = None if service is None else lone_range_s(each.load, service)
        if known_s is None or seen_s is None:
            return seen_s if known_s is None else known_s[0]
        return min(max(seen_s, known_s[0]), known_s[1])


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the requests of one run, from queueing to completion.

    Attributes:
        serving_s: of that time, by the estimate; ``waiting_s`` is the rest.
        busy_s: the disk's busy time over its requests.
        contended_ratio: part of the time in which requests took more than twice their time alone.
    """

    serving_s: float
    waiting_s: float
    busy_s: float
    contended_ratio: float


def slices_of(looks: Sequence[Look]) -> tuple[Slice, ...]:
    """Every disk between every two looks that follow each other."""
    found = []
    for before, after in pairwise(looks):
        interval_s = after.at_s - before.at_s
        if interval_s <= 0.0:
            continue
        for device in sorted(before.devices.keys() & after.devices.keys()):
            load = device_load(before.devices[device], after.devices[device], interval_s)
            if load is not None:
                at_s = after.at_s - looks[0].at_s
                found.append(Slice(device=device, at_s=at_s, interval_s=interval_s, load=load))
    return tuple(found)


def uncontended(
    slices: Iterable[Slice], measured: Mapping[DeviceId, ServiceTimes] | None = None
) -> Uncontended:
    """What requests of each size took where they were alone, or else at the least.

    Args:
        slices: of all runs of the trial.
        measured: by a calibration.
    """
    alone: dict[Kind, list[Slice]] = {}
    every: dict[Kind, list[Slice]] = {}
    for each in slices:
        if each.is_telling:
            every.setdefault(each.kind, []).append(each)
            if each.load.queue_length <= ALONE_QUEUE:
                alone.setdefault(each.kind, []).append(each)
    seen_s = {kind: _low(alone.get(kind, some)) for kind, some in every.items()}
    lone_s = {
        kind: seen_s[kind]
        for kind, some in alone.items()
        if sum(each.requests for each in some) >= _TELLING_REQUESTS
    }
    for device, size in every.keys() - alone.keys():
        bounds_s = [
            each_s * 2.0 ** max(0, size - other)
            for (of, other), each_s in lone_s.items()
            if of == device
        ]
        seen_s[device, size] = min([seen_s[device, size], *bounds_s])
    return Uncontended(seen_s=seen_s, measured=measured or {})


def _low(slices: Sequence[Slice]) -> float:
    """What a tenth of their requests did not exceed, s: the quantile of slices, by requests."""
    left = _LOW_SHARE * sum(each.requests for each in slices)
    for each in sorted(slices, key=lambda each: await_of(each.load)):
        left -= each.requests
        if left <= 0.0:
            break
    return await_of(each.load)


def latency_of(slices: Sequence[Slice], alone_s: Uncontended) -> Latency | None:
    """The means of one run; None where the disks are not known or had nothing to do.

    ``alone_s`` is of all runs that this one is compared with.
    """
    requests = sum(each.requests for each in slices)
    if requests <= 0.0:
        return None
    await_s = sum(await_of(each.load) * each.requests for each in slices)
    serving_s = sum(_serving_of(each, alone_s) * each.requests for each in slices)
    contended_s = sum(each.interval_s for each in slices if is_contended(each, alone_s))
    busy_s = sum(each.load.busy_ratio * each.interval_s for each in slices)
    return Latency(
        serving_s=serving_s / requests,
        waiting_s=max(0.0, await_s - serving_s) / requests,
        busy_s=busy_s / requests,
        contended_ratio=contended_s / sum(each.interval_s for each in slices),
    )


def _serving_of(each: Slice, alone_s: Uncontended) -> float:
    """The time that the disk served a request in this slice, by the estimate, s."""
    await_s = await_of(each.load)
    known_s = alone_s.time_s(each) if each.requests > 0.0 else None
    return await_s if known_s is None else min(await_s, known_s)


def is_contended(each: Slice, alone_s: Uncontended) -> bool:
    """Whether its requests took more than twice as long as uncontended ones: past the knee."""
    return each.is_telling and await_of(each.load) > KNEE_WAIT * _serving_of(each, alone_s)
