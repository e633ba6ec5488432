"""Signs of contention, before anything is tried: what memory and each device show in a slice.

1. **Memory**: what was read is mostly what had been in memory shortly before (refaults), it is more
   than a trickle, and jobs stall for it. That is proof: less would be read with fewer at once.
2. **A device**: requests take several times as long as alone (``core.congestion``), or none of
   those in flight completes. That is a sign and no proof: many requests in flight keep a parallel
   device, and the queue of an arm, busy. Whether fewer at once get more done is tried.

A set of files or memory that jobs go over again and again takes time to come in. It is *in* when
reads have fallen to a part of the most since the last change; or nothing is kept, because a whole
memory has been read since and nothing twice (streams); or it does not fit, because memory was read
twice over again.

Source: refaults over device reads, and when a working set is in: measured (docs/regulation.md);
Denning, "Working sets past and present", IEEE TSE 1980.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from iodaemon.core.meter import Sense, look
from iodaemon.core.platform import DeviceId
from iodaemon.core.sample import MOST_BYTES_PER_S, NodeCounters, grown, known_memory
from iodaemon.core.view import View

TRICKLE_BYTES_PER_S: Final = 4e6
"""Of fewer reads than these nothing is concluded."""
LEAST_QUEUE: Final = 1.5
"""Requests in flight in the mean from which on one waits for another: two, not at all times."""
SUSTAIN: Final = 2
"""Slices in a row for which a device has to look full: a single one may be a burst."""
FALLEN: Final = 0.25
"""Reads have fallen to this part of the most since the last change: what is kept is in."""
PROOF: Final = 0.25
"""So much of the memory was read again since the last change before that counts."""
LONGEST_LOAD_S: Final = 12.0
"""After so long what is kept is taken to be in where the size of the memory is not known."""
FILLS_S: Final = 10.0
"""Where it takes longer to fill the memory than this, nothing is to be learned soon."""
MOST_REFAULTS: Final = 4.0
"""What is read again has been read: more than so many times as much is others', or wrong."""
LONGEST_STALL: Final = 1.5
"""Time lost in stalls is no more than time that passes; the two are not read at one instant."""


class Reads(msgspec.Struct, frozen=True, kw_only=True):
    """What was read since the number of jobs at once last changed.

    Attributes:
        since_s: that time.
        peak_bytes_per_s: of the slice with the most.
        read_bytes: from devices.
        reread_bytes: of these, what had been in memory shortly before.
        rate_bytes_per_s: in the last slice.
        reread_ratio: part of the last slice's reads that was read again.
        stall_ratio: part of the last slice in which a task waited for I/O; None: not counted.
        cache_bytes: what the page cache can have; None: not known.
        memory_bytes: what there is of memory; None: not known.
    """

    since_s: float
    peak_bytes_per_s: float = 0.0
    read_bytes: float = 0.0
    reread_bytes: float = 0.0
    rate_bytes_per_s: float = 0.0
    reread_ratio: float = 0.0
    stall_ratio: float | None = None
    cache_bytes: float | None = None
    memory_bytes: float | None = None

    @property
    def cache_most_bytes(self) -> float:
        """What the page cache can have at most; infinite where it is not known."""
        return math.inf if self.cache_bytes is None else self.cache_bytes

    def is_thrash(self, *, reread_share: float, stall_share: float, load_bytes: float) -> bool:
        """Most of what is read was in memory, and jobs wait for it.

        So it looks as well when a job comes back and reads what it had: ``load_bytes`` of that are
        no proof. Where the size of the memory is not known, nothing is.
        """
        return (
            self.cache_bytes is not None
            and self.rate_bytes_per_s > TRICKLE_BYTES_PER_S
            and self.reread_ratio > reread_share
            and (self.stall_ratio is None or self.stall_ratio > stall_share)
            and self.reread_bytes > max(load_bytes, PROOF * self.cache_bytes)
        )

    def is_in(self, now_s: float) -> bool:
        """What the jobs keep in memory is there, as far as it fits."""
        is_loaded = self.rate_bytes_per_s < FALLEN * self.peak_bytes_per_s
        is_quiet = self.peak_bytes_per_s < TRICKLE_BYTES_PER_S and now_s > self.since_s
        is_too_much = self.reread_bytes > 2.0 * (self.memory_bytes or math.inf)
        is_untold = self.memory_bytes is None and now_s - self.since_s > LONGEST_LOAD_S
        return is_loaded or is_quiet or self.is_streaming() or is_too_much or is_untold

    def is_streaming(self) -> bool:
        """A whole memory was read and next to nothing twice: nothing is kept."""
        cache = self.cache_most_bytes
        return self.read_bytes > cache and self.reread_bytes < PROOF * cache

    def is_loading(self, now_s: float) -> bool:
        """What the jobs keep may not be in memory yet, for no longer than that takes."""
        return not self.is_in(now_s) and now_s - self.since_s <= LONGEST_LOAD_S

    def has_room(self) -> bool:
        """It would take long to fill the memory, and nothing was read twice: no harm soon."""
        if self.reread_ratio > 0.0 and self.rate_bytes_per_s > TRICKLE_BYTES_PER_S:
            return False
        return self.cache_most_bytes > FILLS_S * self.peak_bytes_per_s


def read_on(
    reads: Reads,
    before: NodeCounters,
    view: View,
    interval_s: float,
    *,
    own_bytes: float,
    counts: bool,
) -> Reads:
    """The reads with one more slice.

    What was read again is held against what the same read: the jobs, or the whole machine.

    Args:
        before: the node's counters at the beginning of the slice.
        own_bytes: that the jobs read in it.
        counts: it belongs to the time since the last change; the slice of the change does not.
    """
    now = view.node
    rate = own_bytes / interval_s
    again = grown(before.refault_bytes, now.refault_bytes, MOST_BYTES_PER_S * interval_s)
    if before.refaults_of != now.refaults_of:
        again = None
    stalled = grown(before.io_stall_s, now.io_stall_s, LONGEST_STALL * interval_s)
    if now.io_stall_s == 0.0:
        stalled = None  # no machine has never waited: it is hidden
    memory = known_memory(now)
    everybody = sum(load.read_bytes_per_s for load in view.devices.values()) * interval_s
    read_bytes = own_bytes if now.refaults_of else max(own_bytes, everybody)
    if again is None or read_bytes <= 0.0 or again > MOST_REFAULTS * read_bytes:
        ratio = 0.0
    else:
        ratio = min(1.0, again / read_bytes)
    kept = reads if counts else Reads(since_s=view.now_s)
    return Reads(
        since_s=kept.since_s,
        peak_bytes_per_s=max(kept.peak_bytes_per_s, rate),
        read_bytes=kept.read_bytes + rate * interval_s,
        reread_bytes=kept.reread_bytes + ratio * rate * interval_s,
        rate_bytes_per_s=rate,
        reread_ratio=ratio,
        stall_ratio=None if stalled is None else min(1.0, stalled / interval_s),
        cache_bytes=None if memory is None else memory[0],
        memory_bytes=None if memory is None else memory[1],
    )


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the devices.

    Attributes:
        senses: of each: how long requests take alone, and take now.
        stalled: slices in a row in which requests were in flight and none completed.
    """

    senses: Mapping[DeviceId, Sense] = MappingProxyType({})
    stalled: Mapping[DeviceId, int] = MappingProxyType({})

    def is_full(self, device: DeviceId) -> bool:
        """Requests wait for one another there, for long enough to say so."""
        sense = self.senses.get(device)
        is_slow = sense is not None and sense.high_slices >= SUSTAIN
        return is_slow or self.stalled.get(device, 0) >= SUSTAIN

    def is_rising(self, device: DeviceId) -> bool:
        """It looked full in the last slice, which may have been a burst."""
        return self.senses[device].high_slices > 0 or self.stalled.get(device, 0) > 0

    def told(self, device: DeviceId) -> str:
        """How it stands, for people."""
        if self.stalled.get(device, 0):
            return f"{device} completes no request"
        sense = self.senses.get(device, Sense())
        wait = 1.0 if sense.last_wait is None else sense.last_wait
        return f"requests to {device} take {wait:.1f} times as long as alone"


def look_on(signs: Signs, view: View, interval_s: float, high_wait: float) -> Signs:
    """The signs after one more slice; a device without counters is not in them."""
    senses: dict[DeviceId, Sense] = {}
    stalled: dict[DeviceId, int] = {}
    for device in view.platform.devices:
        load = view.devices.get(device.id)
        if load is None:
            continue
        senses[device.id] = look(
            signs.senses.get(device.id, Sense()),
            load,
            interval_s,
            rotational=device.rotational,
            high_wait=high_wait,
            least_queue=LEAST_QUEUE,
            service=device.service,
        )
        moves = load.reads_per_s + load.writes_per_s + load.discards_per_s + load.flushes_per_s
        if load.in_flight >= LEAST_QUEUE and moves <= 0.0:
            stalled[device.id] = signs.stalled.get(device.id, 0) + 1
    return Signs(senses=senses, stalled=stalled)
