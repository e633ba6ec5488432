"""Is a device past what it can carry? Evidence from its own figures, learned while it works.

The signal is the size-normalised wait: how long a request takes now, over how long a request of
its size takes when hardly any other is in flight. It is about 1 on an idle device of any kind and
grows with the queue past the knee, while MB/s and utilisation say nothing of that on a parallel
device. What a request takes alone is learned per size class. Where the device was measured while
nothing else used it (``Device.service``), that is the base: what is learned counts up to the most
that a lone request took then, and until a class has been seen alone the least stands in for it.
Where it was not, a cautious prior does. A device that gave many readers several times as much as
one is not full when a request takes several times as long: jobs that pause between requests (to
compute, or for a CPU) do not fill it alone, and fewer of them would move less.

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

from iodaemon.core.bandwidth import DeviceLoad, lone_range_s
from iodaemon.core.service import ServiceTimes

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
        sense: what was known before.
        load: the device in this slice.
        interval_s: time since the last look.
        rotational: chooses the prior.
        high_wait: normalised wait from which a slice counts as high.
        least_queue: requests in flight below which no slice counts as high.
        service: how long lone requests take there, where that was measured.
    """
    requests_per_s = _requests_per_s(load)
    if requests_per_s < LEAST_REQUESTS_PER_S:
        return msgspec.structs.replace(
            sense,
            last_wait=None,
            queue_length=load.queue_length,
            high_slices=0,
            is_sure=False,
        )
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
