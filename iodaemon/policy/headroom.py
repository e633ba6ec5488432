"""Whether a job's I/O has room: in a budget of bandwidth, and in the headroom of regulation.

A job whose I/O is unknown adds nothing to either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.view import StartGate, View

IO_BUDGET: Final = "IoBudget"
"""The code of the reason of a job for which there is no room in a budget."""
IO_HEADROOM: Final = "IoHeadroom"
"""The same for the headroom of regulation."""
FOR_STORAGE: Final = frozenset({IO_BUDGET, IO_HEADROOM})
"""The codes of jobs that wait for the storage's bandwidth."""
ALONE_SHARE: Final = 0.1
"""A job is as good as alone where all others move at most this part of what it moves (ours)."""
NEXT_TO_NOTHING: Final = 0.01
"""What a job adds counts from this part of what all others move (ours): most write a log."""
_ROUNDING: Final = 1e-9
"""Part of a budget by which sums of rates may be wrong."""


def told_rate(rate_bytes_per_s: float) -> str:
    """A rate: ``12.5 MB/s``."""
    return f"{rate_bytes_per_s / 1e6:.1f} MB/s"


class Budget:
    """The I/O expected of all jobs that hold slots, held against a limit.

    Args:
        view: its live jobs count.
        limit_bytes_per_s: infinite if there is no budget.
        demand: the rate expected of a job, bytes/s; 0 if unknown.

    Attributes:
        used_bytes_per_s: the sum of these rates now.
    """

    def __init__(
        self, view: View, limit_bytes_per_s: float, demand: Callable[[Job], float]
    ) -> None:
        self.limit_bytes_per_s = limit_bytes_per_s
        self._view = view
        self._demand = demand
        self._rates: dict[JobId, float] = {}
        if limit_bytes_per_s < math.inf:
            self._rates = {job.id: demand(job) for job in view.live}
        self.used_bytes_per_s = math.fsum(self._rates.values())

    def rate(self, job: Job) -> float:
        """The rate that the job counts for, bytes/s."""
        if self.limit_bytes_per_s == math.inf:
            return 0.0
        rate = self._rates.get(job.id)
        return self._demand(job) if rate is None else rate

    def is_open(self, job: Job) -> bool:
        """Whether the job may do more than it counts for, since its I/O is unknown."""
        return self.limit_bytes_per_s < math.inf and not self._view.expected(job.id).is_known

    def fits(self, rate_bytes_per_s: float, used_bytes_per_s: float) -> bool:
        """Whether a rate may be added to what is used.

        A rate above the limit may be added if the job is as good as alone.
        """
        if rate_bytes_per_s <= 0.0:
            return True
        limit = self.limit_bytes_per_s * (1.0 + _ROUNDING)
        if rate_bytes_per_s > limit:
            return used_bytes_per_s <= ALONE_SHARE * rate_bytes_per_s
        return used_bytes_per_s + rate_bytes_per_s <= limit

    def refusal(self, job: Job) -> Reason | None:
        """Why the job may not start now; None: it may."""
        rate = self.rate(job)
        if self.fits(rate, self.used_bytes_per_s):
            return None
        used, limit = told_rate(self.used_bytes_per_s), told_rate(self.limit_bytes_per_s)
        if rate > self.limit_bytes_per_s:
            text = f"does {told_rate(rate)}, above the budget of {limit}: runs when others do next "
            return Reason(code=IO_BUDGET, text=f"{text}to no I/O; now they do {used}")
        text = f"would add {told_rate(rate)} to the {used} that running jobs do, of {limit}"
        return Reason(code=IO_BUDGET, text=f"{text} budgeted")

    def take(self, job: Job) -> None:
        if self.limit_bytes_per_s < math.inf:
            self._rates[job.id] = self._demand(job)
            self.used_bytes_per_s = math.fsum(self._rates.values())


class Headroom:
    """The I/O and the jobs that regulation lets admission add, less what has started since.

    A job that is not known to do I/O, or does next to none, has room for it at any time; so has a
    job that is as good as alone, or one larger than any headroom would wait for ever. The number
    of jobs is limited by ``StartGate``.

    Attributes:
        left_bytes_per_s: None if there is no limit.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._gate = StartGate(view)
        self.left_bytes_per_s = view.io_headroom_bytes_per_s
        self._others = 0.0
        self._rates: dict[JobId, float] = {}
        if self.left_bytes_per_s is None:
            return
        for job in view.live:
            rate = view.predicted(job.id).rate_bytes_per_s
            self._others += rate
            if job.started_s is None or job.started_s >= (view.sampled_s or 0.0):
                self.left_bytes_per_s -= rate

    @property
    def lets_all(self) -> bool:
        """Whether any job may start, whatever it is."""
        return self.left_bytes_per_s is None and self._gate.lets_all

    @property
    def shut_by(self) -> Reason | None:
        """Why no job may start now; None if one might."""
        return self._gate.shut_by

    def has_room(self, job: Job) -> bool:
        return self.limit_refusal(job) is None and self._has_room_for_io(job)

    def _has_room_for_io(self, job: Job) -> bool:
        left = self.left_bytes_per_s
        if left is None:
            return True
        rate = self._rate(job)
        free = max(0.0, left, NEXT_TO_NOTHING * self._others)
        return rate <= free or self._others <= ALONE_SHARE * rate

    def refusal(self, job: Job) -> Reason | None:
        """Why the job may not start now; None: it may."""
        if (refusal := self.limit_refusal(job)) is not None:
            return refusal
        left = self.left_bytes_per_s
        if left is None or self._has_room_for_io(job):
            return None
        room = "none" if left <= 0.0 else told_rate(left)
        text = f"would add {told_rate(self._rate(job))} of I/O; regulation leaves room for {room}"
        return Reason(code=IO_HEADROOM, text=f"{text} now")

    def limit_refusal(self, job: Job) -> Reason | None:
        """Why the limit on the number of jobs keeps it from starting; None if it does not."""
        return self._gate.refusal(job)

    def take(self, job: Job) -> None:
        self._gate.take(job)
        if self.left_bytes_per_s is not None:
            rate = self._rate(job)
            self.left_bytes_per_s -= rate
            self._others += rate

    def _rate(self, job: Job) -> float:
        """The rate expected of the job, looked up once, bytes/s."""
        rate = self._rates.get(job.id)
        if rate is None:
            rate = self._rates[job.id] = self._view.predicted(job.id).rate_bytes_per_s
        return rate
