"""Finds out how many jobs should contend at once, and lets the others wait in the queue.

1. As many jobs start as there are cores. While cores idle and nobody loses by it there may be more:
   twice as many where next to nothing is read, half as many again where what is read cannot be kept
   in memory, else one more once what the others keep there is in.
2. For the memory, and for each device, a limiter finds how many jobs should contend there: by proof
   (what is read had been in memory shortly before), or by trial where a device only shows that
   requests wait. What is compared is what the jobs get done.
3. Those beyond the limit wait in the queue. If they run already they stand still, and come back as
   soon as there is room: for the memory whoever started first runs on, for a device whoever puts
   least on it, and users take turns.
4. Nobody is stopped who asked not to be, who stood still for the longest time allowed, whose
   progress cannot be measured, who computes or sleeps; and one always runs.
   A job that asked not to be, and is one too many for a device, is slowed down where that can be
   done (``ladder``).
5. What was learned of a kind of job is kept: the next ones of that kind begin with that number.
6. ``io_bound`` is the operator's cap: jobs are stopped while all together move more.

Needs: Suspend, Resume.
Source: ours; see docs/regulation.md. Load control by the number of jobs: Denning, "Working sets
past and present", IEEE TSE 1980; Heiss and Wagner, VLDB 1991; Schroeder et al., ICDE 2006. Slow
start after Jacobson, "Congestion avoidance and control", SIGCOMM 1988.
"""

from __future__ import annotations

import math
from typing import ClassVar

import msgspec

from iodaemon.core.decision import RegulationPlan, Resume, Suspend
from iodaemon.core.view import View
from iodaemon.policy.regulation.adaptive.memory import Memory, nothing
from iodaemon.policy.regulation.adaptive.refill import refill
from iodaemon.policy.regulation.adaptive.timeslice import Marks, Timeslice


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Regulation by progress.

    Attributes:
        timeslice_s: how often it samples and decides, s.
        io_bound_bytes_per_s: the operator's cap on what all jobs move. None: none.
        high_wait: times a request may take longer than alone before fewer jobs are tried.
        reread_share: part of the reads that had been in memory shortly before: from here on
            memory is contended for.
        stall_share: part of the time for which a task has to wait for I/O then.
        budget: part of the time that trials may cost which do not pay, beyond the first.
    """

    needs: ClassVar[frozenset[type]] = frozenset({Suspend, Resume})

    timeslice_s: float = 1.0
    io_bound_bytes_per_s: float | None = None
    high_wait: float = 3.0
    reread_share: float = 0.3
    stall_share: float = 0.2
    budget: float = 0.02

    def __post_init__(self) -> None:
        """Refuse parameters that mean nothing."""
        if not 0.0 < self.timeslice_s < math.inf:
            text = "write a finite number above 0"
            raise ValueError(f"timeslice_s is {self.timeslice_s:g}; {text}")
        bound = self.io_bound_bytes_per_s
        if bound is not None and not 0.0 < bound < math.inf:
            text = "write a finite number above 0, or leave it out to go by evidence alone"
            raise ValueError(f"io_bound_bytes_per_s is {bound:g}; {text}")
        if not 1.0 < self.high_wait < math.inf:
            text = "write a finite number above 1, what a request takes alone"
            raise ValueError(f"high_wait is {self.high_wait:g}; {text}")
        for name in ("reread_share", "stall_share", "budget"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                text = "write a part, from 0 to 1"
                raise ValueError(f"{name} is {getattr(self, name):g}; {text}")

    def decide(self, view: View, memory: Memory | None) -> tuple[RegulationPlan, Memory | None]:
        """Look at the slice, go on with what is tried, and keep the limits.

        Within an instant nothing changes; what was remembered at a later time is forgotten.
        """
        if memory is not None and view.now_s == memory.at_s:
            return self.refill(view, memory)
        if memory is not None and view.now_s < memory.at_s:
            memory = None
        marks = Marks(
            timeslice_s=self.timeslice_s,
            io_bound_bytes_per_s=self.io_bound_bytes_per_s,
            high_wait=self.high_wait,
            reread_share=self.reread_share,
            stall_share=self.stall_share,
            budget=self.budget,
        )
        now = Timeslice(marks, view, memory or nothing(view.now_s - self.timeslice_s))
        now.look()
        now.learn_from_kinds()
        now.go_on()
        plan = now.plan()
        return plan, now.memory()

    def refill(self, view: View, memory: Memory | None) -> tuple[RegulationPlan, Memory | None]:
        """Let whoever stands still take the place of a job that has just ended."""
        if memory is None:
            return RegulationPlan(starts=view.start_limit), None
        return refill(view, memory)
