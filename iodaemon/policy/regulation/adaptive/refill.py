"""Who comes back at the instant at which a job ends, and not only at the end of the timeslice.

Source: measured; jobs of a second or two leave a disk idle for half a timeslice each without it.
"""

from __future__ import annotations

import msgspec

from iodaemon.core.decision import RegulationPlan
from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.view import View
from iodaemon.policy.regulation.adaptive.contender import MEMORY
from iodaemon.policy.regulation.adaptive.memory import Memory
from iodaemon.policy.regulation.adaptive.selector import RunOrder
from iodaemon.policy.regulation.adaptive.wording import told_room


def refill(view: View, before: Memory) -> tuple[RegulationPlan, Memory]:
    """Let those come back for whom there is room, and leave everything else as it is.

    One comes back in any case when no other job runs.
    """
    order = RunOrder(view)
    running = {job.id for job in view.running}
    fresh = running - before.jobs.keys()
    resumes: dict[JobId, Reason] = {}
    for resource, limiter in before.limiters.items():
        waiting = order.in_order(resource, _waiting(view, before, resource))
        if limiter.target is not None:
            here = len(running & before.crew.get(resource, frozenset()) | fresh)
            waiting = waiting[: max(0, limiter.target - here)]
        why = Reason(code="Fits", text=told_room(resource))
        resumes |= {job.id: why for job in waiting}
    if not running and not resumes:
        still = [job for job in view.suspended if job.id in before.held and not job.user_hold]
        alone = Reason(code="Fits", text="no other job runs")
        resumes = {job.id: alone for job in order.in_order(MEMORY, still)[:1]}
    plan = RegulationPlan(
        resumes=tuple(resumes),
        caps=view.caps,
        reasons=resumes,
        starts=view.start_limit,
        io_headroom_bytes_per_s=view.io_headroom_bytes_per_s,
        limits=before.limits,
    )
    back = frozenset(resumes)
    crew = {
        resource: jobs | {i for i in back if before.held[i] == resource}
        for resource, jobs in before.crew.items()
    }
    held = {i: r for i, r in before.held.items() if i not in back}
    return plan, msgspec.structs.replace(before, held=held, crew=crew)


def _waiting(view: View, before: Memory, resource: str) -> list[Job]:
    """Those who stand still for it, and whom nobody else holds."""
    return [
        job for job in view.suspended if before.held.get(job.id) == resource and not job.user_hold
    ]
