"""First come, first served: jobs start in the order in which they were submitted.

1. The head of the queue starts as soon as the placement rule finds room for it.
2. The first job that does not fit now, or that regulation does not let start yet, ends the round:
   nothing overtakes it.

Needs: nothing; no walltimes, no I/O hints.
Source: Lv et al., JCST 2014, section 3.1.2 ("serviced according to their submit order without
preemption. A job is scheduled whenever a core becomes available").
Differs: asks the placement rule where a job goes; takes no account of ``io_headroom``.
"""

from __future__ import annotations

import msgspec

from iodaemon.core.decision import AdmissionPlan, Placed
from iodaemon.core.job import JobId, Reason
from iodaemon.core.view import NotNow, StartGate, View


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Strict submit order; it has no parameters."""

    def decide(self, view: View, memory: None) -> tuple[AdmissionPlan, None]:
        draft, gate = view.draft(), StartGate(view)
        starts: list[Placed] = []
        reasons: dict[JobId, Reason] = {}
        for job in view.pending:
            answer = draft.place(job)
            if isinstance(answer, NotNow):
                reasons[job.id] = answer.reason
                break
            if (refusal := gate.refusal(job)) is not None:
                reasons[job.id] = refusal
                break
            gate.take(job)
            starts.append(draft.start(job, answer))
        return AdmissionPlan(starts=tuple(starts), reasons=reasons), memory
