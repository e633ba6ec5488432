"""EASY backfilling: first come, first served, and small jobs fill the gaps before the first.

Idea: the first job that does not fit is promised its slots; whoever does not touch that promise may
go before it.

1. Jobs start in the order in which they were submitted, wherever the placement rule finds room.
2. The first that does not fit (the head) is promised slots on one socket, from the time on at
   which, by the walltimes of those that run, enough of them are free. Suspended time does not
   count against a walltime.
3. A later job starts now if it fits now, and either ends by its walltime before that time, or takes
   slots only that the head does not need then. One without walltime can only do the latter.
4. Where running jobs have no walltimes nothing can be promised. Room is kept where it is expected
   by how long earlier runs of them took, which may be late; where that is not known either
   nothing overtakes. Without walltimes and earlier runs this is first come, first served.
5. A job that is known to do I/O waits while regulation leaves no headroom for it; meanwhile its
   slots are kept free for it as a head, and only jobs start that add no more than the headroom.

Needs: nothing; walltimes make it good.
Source: Lifka, JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 2001, section 2 (EASY).
Differs: several sockets, of which the promise concerns one; asks the placement rule; looks no
further than ``depth`` jobs behind the head; heeds ``io_headroom``.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from iodaemon.core.decision import AdmissionPlan
from iodaemon.core.job import Job
from iodaemon.core.view import View
from iodaemon.policy.bandwidth import Budget, no_demand
from iodaemon.policy.reservation import Round, account, admit


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Submit order with one reservation.

    Attributes:
        depth: how many jobs behind the head are looked at.
    """

    depth: int = 1000

    def __post_init__(self) -> None:
        """Refuse what is no number of jobs."""
        if self.depth < 0:
            raise ValueError(f"depth is {self.depth}; it must be 0 or more")

    def decide(self, view: View, memory: None) -> tuple[AdmissionPlan, None]:
        """Start jobs in order, and beside the promise to the first that does not fit."""
        return self._admit(view).plan(), memory

    def explain(self, view: View, job: Job, memory: Any) -> str:  # noqa: ARG002 - as all rules
        """Whom it waits behind, until when, and how it would get before that one."""
        return account(view, job, self._admit(view))

    def _admit(self, view: View) -> Round:
        return admit(view, Budget(view, math.inf, no_demand), self.depth)
