"""What a job is charged: the time it would have taken on the slowest tier, wherever it ran.

Who was put on a slow tier is not charged for that, and who was put on a fast one pays for no less
than others. The time is reckoned from what was measured: of the time that it ran, what was spent on
staging is taken off, and what it moved besides is counted as moved at the slow tier's bandwidth in
place of the one that it had. Both are the bandwidths of whole tiers: what a job had of them
alone. That is the least by which they differ, so a job is charged too little rather than too much.
"""

from __future__ import annotations

from collections.abc import Sequence

from iodaemon.core.job import Job
from iodaemon.core.tier import Tier


def slow_tier_s(job: Job, tiers: Sequence[Tier]) -> float:
    """How long the job would have run on the slowest tier, s; as long as it ran where it did.

    Args:
        job: its run has ended.
        tiers: fastest first.
    """
    had = next((tier for tier in tiers if tier.name == job.tier), None)
    request = job.spec.scratch
    if had is None or request is None or had.name == tiers[-1].name:
        return job.run_s
    slow = tiers[-1]
    came = request.input_bytes if request.input_path is not None else 0
    went = request.output_bytes if request.output_path is not None else 0
    staged_s = (came + went) / had.staging_bytes_per_s
    total = job.io.total_bytes
    # What is staged is read from one tier and written to the other.
    moved = request.data_bytes if total is None else max(0, total - 2 * (came + went))
    longer = 1.0 / slow.bandwidth_bytes_per_s - 1.0 / had.bandwidth_bytes_per_s
    in_place_s = (came + went) / slow.bandwidth_bytes_per_s
    return max(0.0, job.run_s - staged_s) + in_place_s + moved * max(0.0, longer)
