"""Storage-aware scheduling: each job on the tier of storage with which it ends first (SAS).

Idea: a fast tier saves time and may have to be waited for. Whether it is worth the wait is known
best by who knows when it will be free.

1. For each tier a job may use, it is found when its slots and its space there will be free, by the
   expected ends of those that hold them, and with that when the job would end. What is staged in
   and out before and after counts, other jobs' traffic does not. The tier with which it ends first
   is its own; of two the slower one. Who names a tier has that one.
2. In the order of the queue jobs start for which that time is now. The first for which it is not
   is the head: slots and space are kept for it as found. It may wait for a fast tier beside
   idle slots and a slow one that is free: that is the point.
3. All others are tried, the shortest first, of equals that with less space: one starts if its own
   time is now and the head's does not become later. So at the next decision the head ends at
   the same time or earlier, as long as the others keep to what is expected; it may start later
   than was promised where another tier has become the better one.
4. A job that says nothing of what it moves, or wants no space, gains nothing by a fast tier and
   waits for none. Without such jobs this is ``easy`` with the gaps for the shortest.
5. ``ends``: when those that run are expected to end: as reckoned for their tier, or
   (``walltime``) when they are ended at the latest. The first fills the tiers better; the second
   keeps promises that estimates break.

Needs: ``--fast`` with sizes, walltimes; tiers with bandwidths.
Source: Lackner, Fard, Wolf, CCGRID 2019, section III, algorithms 1 and 2.
Differs: any number of tiers; space is that of disks, by the allocation rule; several sockets; jobs
without walltime; heeds ``io_headroom``; looks no further than ``depth`` jobs behind the head.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, ClassVar, Literal

import msgspec

from iodaemon.core.decision import AdmissionPlan
from iodaemon.core.job import Job
from iodaemon.core.view import View
from iodaemon.policy.staging import Memory, Wishes, recalled, remembered
from iodaemon.policy.tiering import Planned, Tiering, waits
from iodaemon.policy.wording import told_span


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Submit order, a tier each, one reservation, and the shortest into the gaps.

    Attributes:
        depth: how many jobs behind the head are looked at.
        ends: how long jobs that run are expected to: as their tier lets them, or their walltime.
    """

    chooses_tier: ClassVar[bool] = True
    depth: int = 1000
    ends: Literal["estimate", "walltime"] = "estimate"

    def __post_init__(self) -> None:
        """Refuse what is no number of jobs."""
        if self.depth < 0:
            raise ValueError(f"depth is {self.depth}; it must be 0 or more")

    def decide(self, view: View, memory: Memory | None) -> tuple[AdmissionPlan, Memory]:
        """Start jobs in order, each on its tier, then those that do not put off the first left."""
        wishes = recalled(view, memory)
        plan = self._admit(view, wishes).plan()
        return plan, remembered(view, wishes, memory)

    def explain(self, view: View, job: Job, memory: Any) -> str:
        """Whom it waits behind, and which tier it would take when."""
        made = self._admit(view, recalled(view, memory))
        planned, parts = made.planned(job), []
        if made.head is not None and made.head.job.id != job.id:
            parts.append(f"waits behind job {made.head.job.id}, {waits(made.head, view.now_s)}")
        if planned is None:
            parts.append("no time is known at which there is room for it (--time of the others)")
        elif job.spec.scratch is not None:
            parts.append(_told(planned, view.now_s))
        if made.head is not None and made.head.job.id != job.id:
            parts.append("it starts before that one if that is not put off by it")
        return "; ".join(parts)

    def _admit(self, view: View, wishes: Wishes) -> Tiering:
        queue = iter(view.pending)
        made = Tiering(view, wishes, by_estimate=self.ends == "estimate")
        made.start_in_order(queue)
        made.backfill(islice(queue, self.depth))
        return made


def _told(planned: Planned, now_s: float) -> str:
    """On which tier it is, and what that saves."""
    option = planned.option
    wait_s = max(0.0, planned.at_s - now_s)
    when = "now" if wait_s == 0.0 else f"in {told_span(wait_s)}"
    text = f"with what is free by then it is to run on tier {option.tier}, {when}"
    if option.extra_s < 0.0:
        return f"{text}, where it takes {told_span(-option.extra_s)} less"
    return text
