"""A budget of bandwidth: jobs start only while the I/O expected of all fits it (I/O-aware EASY).

Idea: slots are one resource, the storage's bandwidth is another; a job starts when there is enough
of both, and nobody who comes later takes what is promised of either.

1. As rule ``easy``, with a second condition for room: what the job is expected to move, and what
   those that hold slots are, suspended ones too, is together at most ``bandwidth``.
2. What counts of a job is its mean rate over its run, or, with ``demand = "burst"``, what it moves
   while it does I/O. Means fill the storage in the long run and collide at times; bursts never
   collide, and leave it idle in between.
3. The head's promise holds for both: a job that overtakes it and does not end in time takes
   neither its slots nor its bandwidth. One of whose I/O nothing is known could: it overtakes a head
   that does I/O only if it ends in time.
4. A job above the whole budget by itself runs when all others do next to no I/O (a tenth of what
   it does).
5. A job of whose I/O nothing is known counts 0 while it waits, and what is measured while it runs.
   So one that ran before the promise was made can exceed the budget, and put the promise off until
   it ends; so can one that does more than was declared.
6. Without ``bandwidth`` the budget is what the devices deliver, where that is known, else there is
   none, and this is rule ``easy``.

Needs: nothing; I/O hints and walltimes make it good.
Source: Herbein, Ahn, Lipari, Scogland, Stearman, Grondona, Garlick, Springmeyer, Taufer, HPDC 2016
(I/O-aware FCFS and EASY: do not start what would overcommit the bandwidth of the file system).
Differs: one level of bandwidth where theirs is a tree of links; ``demand`` is ours.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from iodaemon.core.decision import AdmissionPlan
from iodaemon.core.job import Job
from iodaemon.core.platform import Platform
from iodaemon.core.view import View
from iodaemon.policy.bandwidth import Budget
from iodaemon.policy.reservation import Round, account, admit


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Submit order with one reservation, of slots and of bandwidth.

    Attributes:
        bandwidth_bytes_per_s: of the whole storage. None: the devices' capacities, where known.
        demand: what counts of a job: its mean over its run, or what it moves while in I/O.
        depth: how many jobs behind the head are looked at.
    """

    bandwidth_bytes_per_s: float | None = None
    demand: Literal["mean", "burst"] = "mean"
    depth: int = 1000

    def __post_init__(self) -> None:
        """Refuse parameters that mean nothing."""
        bandwidth = self.bandwidth_bytes_per_s
        if bandwidth is not None and not bandwidth > 0:
            raise ValueError(f"bandwidth_bytes_per_s is {bandwidth:g}; it must be above 0")
        if self.depth < 0:
            raise ValueError(f"depth is {self.depth}; it must be 0 or more")

    def caution(self, platform: Platform) -> str | None:
        """Without any bandwidth there is no budget."""
        if self._limit(platform) < math.inf:
            return None
        return "no capacity is known, so no job waits for bandwidth; set [admission] bandwidth"

    def decide(self, view: View, memory: None) -> tuple[AdmissionPlan, None]:
        """Start jobs in order while slots and bandwidth last, then beside the promise."""
        return self._admit(view).plan(), memory

    def explain(self, view: View, job: Job, memory: Any) -> str:  # noqa: ARG002 - as all rules
        """Whom it waits behind, until when, and how it would get before that one."""
        return account(view, job, self._admit(view))

    def _admit(self, view: View) -> Round:
        def counted(job: Job) -> float:
            expected = view.expected(job.id)
            if self.demand == "burst":
                return expected.burst_bytes_per_s
            return expected.rate_bytes_per_s

        return admit(view, Budget(view, self._limit(view.platform), counted), self.depth)

    def _limit(self, platform: Platform) -> float:
        """What all storage delivers, bytes/s; infinite where nothing is known of it."""
        return self.bandwidth_bytes_per_s or platform.capacity_bytes_per_s or math.inf
