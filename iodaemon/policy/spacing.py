"""When a tier of storage has room for a job, by the walltimes of those who hold its space."""

from __future__ import annotations

import math

from iodaemon.core.job import Job, JobId, Reason
from iodaemon.core.view import Draft
from iodaemon.policy.backfill import expected_end_s


def space_from_s(draft: Draft, job: Job, now_s: float) -> float | None:
    """The earliest time, from now on, at which the job finds space, if nobody else takes any.

    A job that ends gives its space back when that is cleared, which takes no time here. What is
    kept of jobs that have ended is not counted on: it may be kept for ever.

    Args:
        draft: with those that were started on it, which hold what they have.
        job: which.
        now_s: the instant.

    Returns:
        None where nobody can tell: by the walltimes that are known it never does.
    """
    gone: list[JobId] = list(draft.clearing)
    if not isinstance(draft.find_space(job, without=gone), Reason):
        return now_s
    ends = [(expected_end_s(other, now_s), other.id) for other in draft.live if other.shares]
    for end_s, job_id in sorted(each for each in ends if each[0] < math.inf):
        gone.append(job_id)
        if not isinstance(draft.find_space(job, without=gone), Reason):
            return end_s
    return None
