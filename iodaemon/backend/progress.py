"""One simulated job's way through its profile."""

from __future__ import annotations

import math

from iodaemon.backend.profile import Compute, Profile, Read, Step, Write
from iodaemon.core.job import IoTotals
from iodaemon.core.platform import DeviceId
from iodaemon.core.sample import JobCounters


class Progress:
    """One job's way through its profile. Invariant: what is counted is what was done."""

    def __init__(self, profile: Profile, slots: int) -> None:
        self.profile = profile
        self.suspended = False
        self.rate = 0.0
        self.in_flight = 0.0
        self.stall_ratio = 0.0
        self.finish_s = math.inf
        self._slots = slots
        self._steps = iter(profile.steps)
        self._compute_s = 0.0
        self._stall_s = 0.0
        self._read_bytes = 0
        self._buffered_bytes = 0
        self._direct_bytes = 0
        self.step: Step | None = None
        self._left = 0.0
        self.next_step()

    def next_step(self) -> None:
        """Count the present step as wholly done and begin the next one that is not empty."""
        self._book()
        self.step, self._left = None, 0.0
        for step in self._steps:
            if _size(step) > 0:
                self.step, self._left = step, float(_size(step))
                return

    def _book(self) -> None:
        match self.step:
            case Compute(seconds):
                self._compute_s += seconds
            case Read(size_bytes):
                self._read_bytes += size_bytes
            case Write(size_bytes, direct=True):
                self._direct_bytes += size_bytes
            case Write(size_bytes):
                self._buffered_bytes += size_bytes
            case None:
                pass

    def flow(self, interval_s: float) -> None:
        """Go on at the present rate."""
        self._stall_s += self.stall_ratio * interval_s
        self._left = max(0.0, self._left - self.rate * interval_s)

    def run_at(
        self, rate: float, now_s: float, *, in_flight: float = 0.0, stall_ratio: float = 0.0
    ) -> None:
        """Do the present step at this rate from now on; with no step left it ends now.

        Args:
            rate: seconds of computing, or bytes, per second.
            now_s: the present.
            in_flight: mean number of requests to the device.
            stall_ratio: share of the time spent waiting for I/O.
        """
        self.rate, self.in_flight, self.stall_ratio = rate, in_flight, stall_ratio
        self.finish_s = now_s + (self._left / rate if self.step is not None else 0.0)

    def stand(self) -> None:
        """No progress until further notice."""
        self.rate, self.in_flight, self.stall_ratio = 0.0, 0.0, 0.0
        self.finish_s = math.inf

    @property
    def _done(self) -> float:
        return 0.0 if self.step is None else _size(self.step) - self._left

    @property
    def read_bytes(self) -> int:
        """Read from the device until now."""
        return self._read_bytes + (int(self._done) if isinstance(self.step, Read) else 0)

    @property
    def buffered_bytes(self) -> int:
        """Dirtied in the page cache until now."""
        return self._buffered_bytes + (int(self._done) if is_buffered(self.step) else 0)

    @property
    def dirtied(self) -> float:
        """Bytes dirtied until now, the begun one in part: what the page cache reckons with."""
        return self._buffered_bytes + (self._done if is_buffered(self.step) else 0.0)

    @property
    def direct_bytes(self) -> int:
        """Written past the page cache until now."""
        return self._direct_bytes + (int(self._done) if is_direct(self.step) else 0)

    @property
    def totals(self) -> IoTotals:
        """Its I/O from its start, as /proc/PID/io counts it; unknown when it is hidden."""
        if self.profile.hides_io:
            return IoTotals()
        written_bytes = self.buffered_bytes + self.direct_bytes
        return IoTotals(read_bytes=self.read_bytes, written_bytes=written_bytes)

    def counters(self, request_bytes: int, device: DeviceId) -> JobCounters:
        """Its counters now; a system call moves as much as a request, all files are on one disk."""
        totals = self.totals
        moved_bytes = totals.total_bytes
        compute_s = self._compute_s + (self._done if isinstance(self.step, Compute) else 0.0)
        return JobCounters(
            read_bytes=totals.read_bytes,
            written_bytes=totals.written_bytes,
            operations=None if moved_bytes is None else moved_bytes // request_bytes,
            device_read_bytes=totals.read_bytes,
            cpu_s=compute_s * self._slots,
            resident_bytes=self.profile.resident_bytes,
            io_stall_s=self._stall_s,
            devices=None if self.profile.hides_io else (device,),
        )


def _size(step: Step) -> float:
    return step.seconds if isinstance(step, Compute) else step.size_bytes


def is_buffered(step: Step | None) -> bool:
    """True for a write into the page cache."""
    return isinstance(step, Write) and not step.direct


def is_direct(step: Step | None) -> bool:
    """True for a write past the page cache."""
    return isinstance(step, Write) and step.direct
