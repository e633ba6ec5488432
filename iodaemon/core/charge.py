"""What a job is charged: the time it would have taken on the slowest tier, wherever it ran.

Who was put on a slow tier is not charged for that, and who was put on a fast one pays for no less
than others. The time is reckoned from what was measured: of the time that it ran, what was spent on
staging is taken off, and what it moved besides is counted as moved at the slow tier's bandwidth in
place of the one that it had. What was staged, and what that read and wrote, is what the steps that
copied said (of a job whose shim was killed: what was asked for). Both are the bandwidths of whole
tiers: what a job had of them alone. That is the least by which they differ, so a job is charged too
little rather than too much.
"""

from __future__ import annotations

from collections.abc import Sequence

from iodaemon.core.job import Job
from iodaemon.core.scratch import ScratchRequest, Staged
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
    staged = job.staged or _as_asked(request)
    staged_s = staged.copied_bytes / had.staging_bytes_per_s
    total = job.io.total_bytes
    moved = request.data_bytes if total is None else max(0, total - staged.moved_bytes)
    longer = 1.0 / slow.bandwidth_bytes_per_s - 1.0 / had.bandwidth_bytes_per_s
    in_place_s = staged.copied_bytes / slow.bandwidth_bytes_per_s
    return max(0.0, job.run_s - staged_s) + in_place_s + moved * max(0.0, longer)


def _as_asked(request: ScratchRequest) -> Staged:
    """As if all had been copied that the job named: read from one tier, written to the other."""
    came = request.input_bytes if request.input_path is not None else 0
    went = request.output_bytes if request.output_path is not None else 0
    return Staged(copied_bytes=came + went, moved_bytes=2 * (came + went))
